"""Define the result of `rfa.detect`, and convert incidents to columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from rfa.data import Series
from rfa.library.frames import Clock, Column, New
from rfa.library.options import ends
from rfa.runtime.outputs import Incident
from rfa.runtime.uncertainty.input import level_name

Frame = TypeVar("Frame")


@dataclass(frozen=True, repr=False)
class Detection(Generic[Frame]):
    """Result of `rfa.detect`.

    Attributes:
        rows: Table with one row per alarm. It contains the columns of the data and `anomaly`, which is 1 minus the
            probability of a row that is at least as unusual. For each column x, it contains the forecast `x_expected`,
            with `x_expected_low90` and `x_expected_high90` (a pair per level), which are not negative for counts. If
            each column has its own model, it also contains `x_anomaly`, and `x_alarm`, which is true if this column
            raised the alarm.
        incidents: Table with one row per incident, which is a group of alarms. It contains the key columns; `begin` and
            `end`, the times of the first and last of its `alarms`; `column`, `value`, `expected`, `direction`,
            `probability` and `time` of its rarest alarm; and `rule`. A gap begins at the last value before it. An
            incident ends after ten ordinary rows. At most 1,000 are listed per series.
        raised: Number of alarms.
        expected: Expected number of alarms in these rows at the requested rate.
        observations: Number of rows that were checked for alarms.
        bound: 95 % confidence interval of the alarm rate, as fractions of the observations. None if there are no
            observations.
        omitted: Number of incidents that are not listed.
    """

    rows: Frame
    incidents: Frame
    raised: int
    expected: float
    observations: int
    bound: tuple[float, float] | None
    omitted: int = 0

    def __str__(self) -> str:
        incidents = len(self.incidents) + self.omitted  # type: ignore[arg-type]
        return f"{self.observations:,} observations, {describe_incidents(incidents, self.raised, self.expected)}"

    def __repr__(self) -> str:
        return f"{self}\n{self.incidents!r}"


def plural(number: int, noun: str) -> str:
    """Return a number and a noun, such as "1 row" or "1,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe_incidents(incidents: int, raised: int, expected: float) -> str:
    """Return a text with the number of incidents, such as "5 incidents (22 alarms, 8.1 expected by chance)".

    The requested rate counts rows, so the numbers in brackets are those of rows. The number of incidents comes first,
    because all alarms of an incident have the same cause.

    Args:
        incidents: Number of incidents.
        raised: Number of alarms.
        expected: Expected number of alarms at the requested rate.
    """
    by_chance = f"{expected:,.0f}" if expected >= 10 else f"{expected:.2g}"
    return f"{plural(incidents, 'incident')} ({plural(raised, 'alarm')}, {by_chance} expected by chance)"


def incident_columns(
    series: Series, incidents: Sequence[Incident], write: Callable[[np.ndarray], Clock]
) -> dict[str, Column]:
    """Return columns with the start, end, number of alarms, rarest alarm and rules of each incident.

    Args:
        write: Function that converts times to the time columns of the data.
    """

    def times(name: str, seconds: Sequence[float]) -> dict[str, Column]:
        clock = write(np.array(seconds, np.float64))
        return {name if len(clock) == 1 else f"{name}_{part}": column for part, column in clock.items()}

    return {
        **times("begin", [one.begin for one in incidents]),
        **times("end", [one.end for one in incidents]),
        "alarms": np.array([one.alarms for one in incidents], np.int64),
        "column": np.array([series.names[one.component] for one in incidents], np.str_),
        "value": np.array([one.value for one in incidents], np.float64),
        "expected": np.array([np.nan if one.expected is None else one.expected for one in incidents], np.float64),
        "direction": np.array([one.direction or "" for one in incidents], np.str_),
        "probability": np.array([one.probability for one in incidents], np.float64),
        "rule": np.array(["+".join(one.rules) for one in incidents], np.str_),
        **times("time", [one.t for one in incidents]),
    }


def expected_columns(
    series: Series, outputs: dict[str, np.ndarray], step: float, rows: np.ndarray, levels: Sequence[float]
) -> New:
    """Return the forecasts of `rows` with their intervals. Each forecast is made one typical time step ahead."""
    new: dict[str, Column] = {}
    before, is_first = np.maximum(rows - 1, 0), rows == 0
    for a, name in enumerate(series.names):
        expected = np.where(is_first, np.nan, series.values[rows, a] - outputs[f"innovation.{name}"][rows])
        new[f"{name}_expected"] = expected
        for level in levels:
            lower, upper = (
                outputs[f"forecast.{step!r}.{end}.{level_name(level)}.{name}"] for end in ("lower", "upper")
            )
            bounds = _interval_around(expected, lower[before], upper[before])
            new |= dict(zip(ends(f"{name}_expected", level), bounds, strict=True))
    new["anomaly"] = outputs["anomaly"][rows]
    return new


def _interval_around(expected: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval from `lower` to `upper`, moved so that its centre is `expected`.

    If neither `expected` nor `lower` is negative, as for counts, the interval is not moved below 0. All arrays have one
    number per row.
    """
    half = (upper - lower) / 2
    low = np.where((lower >= 0) & (expected >= 0), np.maximum(expected - half, 0.0), expected - half)
    return low, low + (upper - lower)
