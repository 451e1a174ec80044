"""A labelled series, and functions that generate random components of series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

Array = np.ndarray

DAY = 86_400
SEED = 20261128


@dataclass(frozen=True)
class Series:
    """Values at times in seconds since 1970.

    An incident, if there is one, lasts from the row at `begin` to the row at `end`. It is found by an alarm at most
    `within` rows after its beginning. A job runs in each of the `occurrences`, from its first to its last row. The
    clocks in `zone` change at `change`.
    """

    name: str
    kind: str
    times: Array
    values: Array
    step: int
    days: float
    begin: int | None = None
    end: int | None = None
    within: int = 3
    occurrences: tuple[tuple[int, int], ...] = ()
    zone: str = "UTC"
    change: int | None = None


class Clock:
    """Evenly spaced times from a midnight in UTC on."""

    def __init__(self, minutes: int, days: int, start: str = "2026-05-04") -> None:
        self.step = 60 * minutes
        first = int(datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp())
        self.times: Array = first + np.arange(days * DAY // self.step) * self.step
        self.days = days

    def __len__(self) -> int:
        return len(self.times)

    @property
    def hours(self) -> Array:
        return hours_of(self.times)

    @property
    def weekdays(self) -> Array:
        return weekdays_of(self.times)

    def row(self, day: int, hour: float) -> int:
        """Return the first row at or after this hour of a day, which is counted from 0."""
        return int(np.searchsorted(self.times, self.times[0] + day * DAY + hour * 3600))


def labelled(
    name: str, kind: str, clock: Clock, values: Array, rows: tuple[int, int] | None = None, **fields: Any
) -> Series:
    """Return a series with an incident in these rows, the second excluded, with values rounded to `digits` (3).

    Args:
        dropped: Rows that are left out.
        fields: Other fields of `Series`.
    """
    digits, dropped = fields.pop("digits", 3), fields.pop("dropped", ())
    if values.dtype.kind == "f":
        values = np.array([float(f"{value:.{digits}f}") for value in values])
    if rows is not None:
        begin, end = rows
        fields |= {"begin": int(clock.times[begin]), "end": int(clock.times[min(end, len(clock)) - 1])}
    times, values = (np.delete(column, dropped) if len(dropped) else column for column in (clock.times, values))
    return Series(name, kind, times, values, clock.step, float(clock.days), **fields)


def generator(kind: int, number: int) -> np.random.Generator:
    return np.random.default_rng([SEED, kind, number])


def hours_of(times: Array) -> Array:
    found: Array = (times % DAY) / 3600.0
    return found


def weekdays_of(times: Array) -> Array:
    """Return the weekdays. 0 is Monday."""
    found: Array = ((times // DAY) + 3) % 7
    return found


def autoregressive(rng: np.random.Generator, rows: int, memory: float, deviation: float = 1.0) -> Array:
    """Return noise with the given standard deviation, whose neighbouring values have the correlation `memory`."""
    shocks = rng.standard_normal(rows) * math.sqrt(1 - memory * memory)
    values, last = np.empty(rows), 0.0
    for row in range(rows):
        last = memory * last + shocks[row]
        values[row] = last
    return deviation * values


def heavy(rng: np.random.Generator, rows: int, freedom: float) -> Array:
    """Return Student-t noise with standard deviation 1."""
    found: Array = rng.standard_t(freedom, rows) / math.sqrt(freedom / (freedom - 2))
    return found


def counts(rng: np.random.Generator, mean: Array, spread: float) -> Array:
    """Return counts with variance mean + spread × mean²."""
    mean = np.maximum(mean, 1e-9)
    return rng.poisson(mean * rng.gamma(1 / spread, spread, len(mean)))


def daily(hours: Array, peak: float = 14.0) -> Array:
    """Return a smooth daily profile, about 0 at night and 1 at the peak."""
    wave = 0.5 + 0.5 * np.cos((hours - peak) / 24 * 2 * np.pi)
    found: Array = np.clip(wave, 0, 1) ** 1.2 + 0.08 * np.cos((hours - 11) / 12 * 2 * np.pi) + 0.08
    return found


def office(hours: Array) -> Array:
    """Return 1 in office hours and 0 outside."""
    found: Array = 1 / (1 + np.exp(-(hours - 8.5) * 2.5)) * 1 / (1 + np.exp((hours - 17.5) * 2.0))
    return found
