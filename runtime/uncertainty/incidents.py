"""Incidents, which are sequences of alarms.

An incident begins with an alarm. It lasts while rows are unusual, with a tail probability of at most UNUSUAL, and ends
after ENDS_AFTER ordinary rows in succession (rules.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rfa.runtime.outputs import FilterStep, Incident, RaisedAlarm
from rfa.runtime.uncertainty.alarms import RULE_NAMES
from rfa.runtime.uncertainty.rules import COMPONENT, FIRST_ALARM, PROBABILITY, RAISED_BY
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

    @classmethod
    def empty(cls) -> Incidents:
        """Return a collection without incidents."""
        return cls([])

    def add(self, times: Array, values: Array, outputs: StepOutputs) -> None:
        """Add the alarms of the next rows. Their times are `[k]`, and their values `[k, P]`."""
        for row in np.flatnonzero(outputs.alarm == 1).tolist():
            alarm = raised_alarm(outputs.raised[row].tolist())
            assert alarm is not None
            a = alarm.component
            self._add(alarm, float(times[row]), float(values[row, a]), float(outputs.innovation[row, a]))

    def add_step(self, step: FilterStep, values: Array) -> None:
        """Add the alarm of a step if it is an alarm. `values` are its values, `[P]`."""
        if step.raised is not None:
            a = step.raised.component
            self._add(step.raised, step.t, float(values[a]), (step.innovation or [])[a] or 0.0)

    def _add(self, alarm: RaisedAlarm, t: float, value: float, innovation: float) -> None:
        is_new, self._latest = alarm.incident != self._latest, alarm.incident
        if is_new and len(self.listed) == MOST_INCIDENTS:
            self.omitted += 1
        if self.omitted:
            return
        has_size = alarm.rule in _WITH_SIZE
        found = Incident(
            index=alarm.incident, begin=t, end=t, alarms=1, rules=[alarm.rule], component=alarm.component, t=t,
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
