"""Sample the times of the values of a series.

A clock has a step, from a second to a year, and a start date. Daily, weekly and yearly seasons therefore have the same
periods as in recorded data with that step. For example, hourly series have periods of 24 and 168 values. One series in
seven has no dates. Its values are 1 s apart and start at the epoch.

Most clocks are regular. The others have jitter, exponential time steps, missing rows and blocks, or bursts of values.
Series are evaluated at these times, without resampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rfa.training.synthetic.priors import choose, log_uniform

MINUTE, HOUR, DAY, WEEK, YEAR = 60.0, 3600.0, 86400.0, 604800.0, 365.25 * 86400.0
MONTH, QUARTER = YEAR / 12, YEAR / 4
# Weight of each step, in seconds, of clocks with dates.
STEPS = {
    1.0: 3, 10.0: 4, MINUTE: 8, 5 * MINUTE: 14, 10 * MINUTE: 7, 15 * MINUTE: 10, 30 * MINUTE: 7,
    HOUR: 24, DAY: 14, WEEK: 9, MONTH: 4, QUARTER: 1,
}  # fmt: skip
# Weight of each step of short series.
SHORT_STEPS = {
    5 * MINUTE: 3, 15 * MINUTE: 4, HOUR: 14, DAY: 16, WEEK: 14, MONTH: 28, QUARTER: 14, YEAR: 10,
}  # fmt: skip
WITHOUT_CALENDAR = 1 / 7
# 2000-01-01 and 2030-01-01, in seconds since the epoch.
FIRST_START, LAST_START = 946_684_800.0, 1_893_456_000.0
KINDS = {"regular": 80, "jittered": 6, "random": 5, "dropped": 6, "bursts": 3}
SHORT_KINDS = {"regular": 93, "jittered": 3, "dropped": 4}
# Weight of each cycle, in seconds, as the season of a series whose step and length resolve the cycle.
CYCLES = {MINUTE: 0.4, HOUR: 0.8, DAY / 2: 0.3, DAY: 3.0, WEEK: 1.5, MONTH: 0.3, YEAR: 1.5}
SHORTEST_PERIOD = 3.0
# Periods of series without dates, in steps.
COMMON_PERIODS = np.array([4, 5, 6, 7, 10, 12, 12, 20, 24, 24, 24, 30, 48, 52, 60, 96, 100, 144, 168, 288, 365])


@dataclass(frozen=True)
class Clock:
    """Times of B series with N values each.

    Args:
        times: Seconds since the epoch, `[B, N]`, increasing.
        step: Nominal step in seconds, `[B]`, which is the mean time step unless rows were dropped.
        has_calendar: Whether times are dates, `[B]`.
    """

    times: np.ndarray
    step: np.ndarray
    has_calendar: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Clock:
        return Clock(self.times[rows], self.step[rows], self.has_calendar[rows])

    @property
    def count(self) -> int:
        return int(self.times.shape[0])

    @property
    def length(self) -> int:
        return int(self.times.shape[1])

    @cached_property
    def steps(self) -> np.ndarray:
        """Time since the first value in nominal steps, `[B, N]`."""
        return (self.times - self.times[:, :1]) / self.step[:, None]

    @cached_property
    def lags(self) -> np.ndarray:
        """Time since the previous value in nominal steps, `[B, N]`. It is 0 for the first value."""
        return np.diff(self.steps, axis=1, prepend=0.0)

    @cached_property
    def _nearest(self) -> np.ndarray:
        return np.rint(self.steps).astype(np.int64)

    @property
    def grid_length(self) -> int:
        """Number of points of a grid of nominal steps that covers every series."""
        return int(self._nearest.max()) + 1

    def from_grid(self, values: np.ndarray) -> np.ndarray:
        """Return the values of a process at the grid point nearest to each time, `[B, N]`.

        Args:
            values: Values of the process on a grid of nominal steps, `[B, G]`.
        """
        if values.shape[1] == self.length and self.is_regular:
            return values
        return np.take_along_axis(values, self._nearest, axis=1)

    @cached_property
    def is_regular(self) -> bool:
        return bool((self._nearest == np.arange(self.length)).all())

    def periods(self, rng: np.random.Generator) -> np.ndarray:
        """Sample the number of steps per season, `[B]`. It is usually that of a calendar cycle that is longer than
        three steps and shorter than the series. Otherwise, it is a random number."""
        cycles, weights = np.array(list(CYCLES)), np.array(list(CYCLES.values()))
        found = cycles / self.step[:, None]
        is_shown = (found >= SHORTEST_PERIOD) & (found <= self.length) & self.has_calendar[:, None]
        chances = np.cumsum(np.where(is_shown, weights, 0.0), axis=1)
        index = (rng.random(self.count)[:, None] * chances[:, -1:] >= chances).sum(axis=1)
        period = np.take_along_axis(found, np.minimum(index, len(cycles) - 1)[:, None], axis=1)[:, 0]
        free = log_uniform(rng, SHORTEST_PERIOD, self.length / 2, self.count)
        is_common = ~self.has_calendar & (rng.random(self.count) < 0.5)
        free = np.where(is_common, rng.choice(COMMON_PERIODS, self.count), free)
        is_free = ~is_shown.any(axis=1) | (rng.random(self.count) < 0.2)
        return np.where(is_free, free, period)

    def days(self, rng: np.random.Generator) -> np.ndarray:
        """Return the times in days since the epoch (a Thursday), `[B, N]`. For series without dates, the length of a
        day and the first day are random."""
        period = np.where(self.has_calendar, 1.0, self.periods(rng))[:, None]
        phase = rng.uniform(0, 7, self.count)[:, None]
        return np.where(self.has_calendar[:, None], self.times / DAY, self.steps / period + phase)


def draw_clock(rng: np.random.Generator, count: int, length: int, *, is_short: bool = False) -> Clock:
    """Sample the clocks of `count` series. The steps of short series are mostly months, quarters, years, weeks or
    days."""
    has_calendar = rng.random(count) >= WITHOUT_CALENDAR
    step = np.where(has_calendar, choose(rng, SHORT_STEPS if is_short else STEPS, count), 1.0)
    start = rng.uniform(FIRST_START, LAST_START, count)
    unit = np.minimum(step, DAY)
    start = np.where(has_calendar, np.floor(start / unit) * unit, 0.0)
    kind = choose(rng, SHORT_KINDS if is_short else KINDS, count)
    steps = np.tile(np.arange(length, dtype=np.float64), (count, 1))
    for name, irregular in IRREGULAR.items():
        rows = np.flatnonzero(kind == name)
        if len(rows):
            steps[rows] = irregular(rng, len(rows), length)
    return Clock(start[:, None] + steps * step[:, None], step, has_calendar)


def _jittered(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Return regular steps, each shifted by up to 0.45 steps."""
    width = log_uniform(rng, 0.005, 0.45, count)[:, None]
    return np.arange(length) + width * rng.uniform(-1, 1, (count, length))


def _random(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Return the times of a Poisson process, whose time steps are exponential with mean one."""
    return _cumulated(rng.standard_exponential((count, length - 1)))


def _dropped(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Return integer steps without a random fraction of them. In some series, one to three blocks are also missing."""
    lags = rng.geometric(rng.uniform(0.6, 0.98, count)[:, None], (count, length - 1)).astype(np.float64)
    for row in np.flatnonzero(rng.random(count) < 0.4):
        gaps = int(rng.integers(1, 4))
        lags[row, rng.integers(0, length - 1, gaps)] += np.rint(log_uniform(rng, 2, 0.1 * length + 2, gaps))
    return np.concatenate([np.zeros((count, 1)), np.cumsum(lags, axis=1)], axis=1)


def _bursts(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """Return times with bursts of 5 to 50 values. Time steps are short within a burst and long between bursts."""
    lags = rng.standard_exponential((count, length - 1)) + 0.2
    is_long = rng.random(lags.shape) < log_uniform(rng, 0.02, 0.2, count)[:, None]
    return _cumulated(np.where(is_long, lags * log_uniform(rng, 5, 50, count)[:, None], lags))


def _cumulated(lags: np.ndarray) -> np.ndarray:
    """Return times `[B, N]` with the lags `[B, N-1]`, scaled so that the mean lag is one."""
    steps = np.concatenate([np.zeros((len(lags), 1)), np.cumsum(lags, axis=1)], axis=1)
    # Time steps are at least a thousandth of a step, so that float64 seconds since the epoch are distinct.
    steps += 1e-3 * np.arange(steps.shape[1])
    return steps * ((steps.shape[1] - 1) / steps[:, -1:])


IRREGULAR = {"jittered": _jittered, "random": _random, "dropped": _dropped, "bursts": _bursts}
