"""The result of `rfa.detect`, and incidents as columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from rfa.data import Series
from rfa.library.frames import Clock, Column
from rfa.runtime.outputs import Incident

Frame = TypeVar("Frame")


@dataclass(frozen=True, repr=False)
class Detection(Generic[Frame]):
    """The result of `rfa.detect`.

    Attributes:
        rows: the alarms: the data's columns; for each column x its forecast `x_expected`, with `x_expected_low90` and
            `x_expected_high90` (a pair per level); and `anomaly`, 1 minus the probability of so unusual a row. Columns
            with models of their own each have `x_anomaly` and `x_alarm`, whether this column raised it.
        incidents: a row for the alarms that belong together: the keys; `begin` and `end`, of the first and the last of
            its `alarms`; `column`, `value`, `expected` and `direction` of its rarest alarm; that one's `probability`;
            and `rule`. An incident ends after ten ordinary rows; of a series at most 1,000 are listed.
        raised: the number of alarms.
        expected: the number of alarms that the rate gives for these rows.
        observations: rows that could raise an alarm.
        bound: 95 % bounds of the rate by these rows, as shares of the observations; None without observations.
    """

    rows: Frame
    incidents: Frame
    raised: int
    expected: float
    observations: int
    bound: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{self.observations:,} observations, {self.raised} of them alarms, {self.expected:.3g} expected"

    def __repr__(self) -> str:
        return f"{self}\n{self.incidents!r}"


def incident_columns(
    series: Series, incidents: Sequence[Incident], write: Callable[[np.ndarray], Clock]
) -> dict[str, Column]:
    """Begin, end, number of alarms, column, peak and rule of each incident.

    Args:
        write: returns times in the format of the data; their names are left out if there is one column of times.
    """
    found: dict[str, Column] = {}
    for name in ("begin", "end"):
        clock = write(np.array([getattr(one, name) for one in incidents], np.float64))
        found |= {name if len(clock) == 1 else f"{name}_{part}": column for part, column in clock.items()}
    return found | {
        "alarms": np.array([one.alarms for one in incidents], np.int64),
        "column": np.array([series.names[one.component] for one in incidents], np.str_),
        "value": np.array([one.value for one in incidents], np.float64),
        "expected": np.array([np.nan if one.expected is None else one.expected for one in incidents], np.float64),
        "direction": np.array([one.direction or "" for one in incidents], np.str_),
        "probability": np.array([one.probability for one in incidents], np.float64),
        "rule": np.array(["+".join(one.rules) for one in incidents], np.str_),
    }
