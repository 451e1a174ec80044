"""Incidents, which are sequences of alarms.

An incident begins with an alarm. It lasts while rows are unusual, with a tail probability of at most UNUSUAL, and ends
after ENDS_AFTER ordinary rows in succession (rules.py). An incident that begins with the alarm of a gap begins at the
last value before the gap, so that it is as long as the gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rfa.runtime.outputs import FilterStep, Incident, RaisedAlarm
from rfa.runtime.uncertainty.alarms import RULE_NAMES
from rfa.runtime.uncertainty.rules import COMPONENT, FIRST_ALARM, GAP, PROBABILITY, RAISED_BY, TIME
from rfa.runtime.uncertainty.step_outputs import StepOutputs

Array = np.ndarray[Any, Any]
# Maximum number of incidents of a request that are listed.
MOST_INCIDENTS: Final = 1_000
# Rules whose alarms are deviations from a forecast. If an incident has alarms of these rules, its peak is one of them.
_WITH_SIZE: Final = ("value", "stretch", "range")


def raised_alarm(raised: Sequence[float]) -> RaisedAlarm | None:
    """Return the alarm in a row of `StepOutputs.raised`, or None if the row is not an alarm."""
    rule = raised[RAISED_BY]
    if rule != rule:  # noqa: PLR0124
        return None
    return RaisedAlarm(
        RULE_NAMES[int(rule)], int(raised[FIRST_ALARM]), int(raised[COMPONENT]), float(raised[PROBABILITY])
    )


@dataclass
class Incidents:
    """The incidents of a series. The first MOST_INCIDENTS are listed.

    Attributes:
        listed: The listed incidents.
        omitted: Number of incidents that are not listed.
    """

    listed: list[Incident]
    omitted: int = 0
    _latest: int = -1
    _value_times: Array | None = None  # time of the last value of each component, `[P]`, NaN if there is none

    @classmethod
    def empty(cls, adaptive: Mapping[str, Array] | None = None) -> Incidents:
        """Return a collection without incidents. `adaptive` is the adaptive state of the stream before the first row.
        None stands for a new stream."""
        return cls([], _value_times=None if adaptive is None else adaptive["alarm.last"][:, TIME].copy())

    def add(self, times: Array, values: Array, outputs: StepOutputs) -> None:
        """Add the alarms of the next rows. Their times are `[k]`, and their values `[k, P]`."""
        for row in np.flatnonzero(outputs.alarm == 1).tolist():
            alarm = raised_alarm(outputs.raised[row].tolist())
            assert alarm is not None
            a = alarm.component
            t, innovation = float(times[row]), float(outputs.innovation[row, a])
            begin = self._begin(alarm, t, times[:row], values[:row, a])
            self._add(alarm, begin, t, float(values[row, a]), innovation)
        self._note_values(times, values)

    def add_step(self, step: FilterStep, values: Array) -> None:
        """Add the alarm of a step if it is an alarm. `values` are its values, `[P]`."""
        if step.raised is not None:
            a, innovation = step.raised.component, step.innovation or []
            begin = self._begin(step.raised, step.t, np.empty(0), np.empty(0))
            self._add(step.raised, begin, step.t, float(values[a]), innovation[a] or 0.0)
        self._note_values(np.array([step.t]), values[None])

    def _begin(self, alarm: RaisedAlarm, t: float, times: Array, values: Array) -> float:
        """Return the time from which an incident lasts that begins with an alarm at time t: that of the last value
        before a gap, and otherwise t.

        Args:
            times, values: Times and values of the alarm's component in the rows before the alarm, `[k]`, after those
                that `_note_values` has noted.
        """
        if alarm.rule != RULE_NAMES[GAP]:
            return t
        seen = np.flatnonzero(~np.isnan(values))
        if len(seen):
            return float(times[seen[-1]])
        before = t if self._value_times is None else float(self._value_times[alarm.component])
        return t if math.isnan(before) else before

    def _note_values(self, times: Array, values: Array) -> None:
        """Note the times of the last values in the next rows. Their times are `[k]`, and their values `[k, P]`."""
        if not len(times):
            return
        is_seen = ~np.isnan(values)
        latest = times[len(times) - 1 - is_seen[::-1].argmax(axis=0)]
        before = np.full(values.shape[1], np.nan) if self._value_times is None else self._value_times
        self._value_times = np.where(is_seen.any(axis=0), latest, before)

    def _add(self, alarm: RaisedAlarm, begin: float, t: float, value: float, innovation: float) -> None:
        is_new, self._latest = alarm.incident != self._latest, alarm.incident
        if is_new and len(self.listed) == MOST_INCIDENTS:
            self.omitted += 1
        if self.omitted:
            return
        has_size = alarm.rule in _WITH_SIZE
        found = Incident(
            index=alarm.incident, begin=begin, end=t, alarms=1, rules=[alarm.rule], component=alarm.component, t=t,
            value=value, expected=value - innovation if has_size else None, probability=alarm.probability,
            direction=("up" if innovation > 0 else "down") if has_size else None,
        )  # fmt: skip
        if is_new:
            self.listed.append(found)
            return
        before = self.listed[-1]
        rules = [*dict.fromkeys([*before.rules, alarm.rule])]
        if (has_size, -alarm.probability) > (before.direction is not None, -before.probability):
            rules = [*dict.fromkeys([alarm.rule, *before.rules])]
            found = replace(found, index=before.index, begin=before.begin, alarms=before.alarms + 1, rules=rules)
            self.listed[-1] = found
        else:
            before.end, before.alarms, before.rules = t, before.alarms + 1, rules
