"""Clocks of synthetic series: when each value is measured.

A clock has a step, from a second to a week, a moment where it begins, and times that are even, jittered, random
(exponential lags), or in bursts. One series in four has no clock: its rows are counted, and only seasons of any period
are in it. Steps are those of recorded data (1 s to a week), by WEIGHTS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

Array = np.ndarray
MINUTE, HOUR, DAY, WEEK, YEAR = 60.0, 3600.0, 86_400.0, 604_800.0, 365.2425 * 86_400.0
STEPS: Final = np.array([1.0, 10.0, MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, DAY, WEEK])
WEIGHTS: Final = np.array([0.03, 0.04, 0.06, 0.10, 0.06, 0.10, 0.08, 0.33, 0.13, 0.07])
# Shares of series: without a clock, and with uneven times of each kind.
COUNTED, JITTERED, RANDOM, IN_BURSTS = 0.25, 0.04, 0.04, 0.03
FIRST_MOMENT, LAST_MOMENT = 3.0e8, 1.9e9


@dataclass(frozen=True)
class Clocks:
    """Of B series of N rows.

    Attributes:
        times: `[B, N]`, seconds since 1970, or rows from some number on where rows are counted.
        step: `[B]`, the usual time from row to row.
        is_dated: `[B]`, whether times are moments.
    """

    times: Array
    step: Array
    is_dated: Array

    def __getitem__(self, which: Array) -> Clocks:
        return Clocks(self.times[which], self.step[which], self.is_dated[which])

    @property
    def shape(self) -> tuple[int, int]:
        """B and N."""
        count, length = self.times.shape
        return count, length

    @property
    def rows(self) -> Array:
        """`[B, N]`, times from the first on in steps."""
        found: Array = (self.times - self.times[:, :1]) / self.step[:, None]
        return found

    @property
    def share(self) -> Array:
        """`[B, N]`, from 0 at the first row to 1 at the last."""
        rows = self.rows
        return rows / rows[:, -1:]

    def turns(self, period: Array) -> Array:
        """`[B, N]`, times in periods of `[B]` seconds, without whole ones: in float32, of which few digits are lost."""
        turns = self.times / period[:, None]
        turns -= np.floor(turns)
        return turns.astype(np.float32)


def draw_clocks(rng: np.random.Generator, count: int, length: int) -> Clocks:
    """Clocks of so many series of so many rows."""
    is_dated = rng.random(count) >= COUNTED
    step = np.where(is_dated, rng.choice(STEPS, count, p=WEIGHTS / WEIGHTS.sum()), 1.0)
    # Begins at a whole step, as recorded data do.
    first = np.where(is_dated, rng.uniform(FIRST_MOMENT, LAST_MOMENT, count), rng.uniform(0, 1e4, count))
    first = np.floor(first / step) * step
    rows = np.broadcast_to(np.arange(float(length)), (count, length)).copy()
    kind = rng.random(count)
    for k in np.flatnonzero(kind < JITTERED + RANDOM + IN_BURSTS).tolist():
        uneven = _uneven(rng, length, kind[k])
        rows[k] = uneven - uneven[0]
    return Clocks(first[:, None] + rows * step[:, None], step, is_dated)


def _uneven(rng: np.random.Generator, length: int, kind: float) -> Array:
    if kind < JITTERED:
        return np.arange(float(length)) + rng.uniform(0, 0.45) * rng.uniform(-1, 1, length)
    if kind < JITTERED + RANDOM:
        return rng.exponential(size=length).cumsum()
    lags = np.where(rng.random(length) < rng.uniform(0.02, 0.1), rng.exponential(30, length) + 1, 1.0)
    return lags.cumsum()


def even_clocks(count: int, length: int, step: float = HOUR, first: float = 1.7e9) -> Clocks:
    """Clocks of one step, even and dated: for pictures and tests."""
    times = np.floor(first / step) * step + step * np.arange(float(length))
    return Clocks(np.tile(times, (count, 1)), np.full(count, step), np.ones(count, bool))
