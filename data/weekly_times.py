"""Find the weekdays and times of day at which a series never has rows, such as closed days and nights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rfa.data.durations import SECONDS

DAY: Final = SECONDS["d"]
WEEK: Final = 7
# Largest difference of a whole number of steps from a day, as a fraction of a day, and shortest step in seconds.
DAY_TOLERANCE: Final = 0.01
SHORTEST: Final = 1.0
# Times are irregular if more than MOST_IRREGULAR of them are more than OFF steps away from the grid of the last row.
OFF: Final = 0.25
MOST_IRREGULAR: Final = 0.05
# Weekends are skipped if at least this number of days have rows, and none of them is on a weekend.
WORKING_DAYS: Final = 10
# Least numbers of days without a time of day, and of weeks without a weekday, before it is skipped.
FEWEST_DAYS: Final = 5
FEWEST_WEEKS: Final = 3
# Nothing is skipped if a larger fraction of the other rows is missing, or if the probability that random losses empty
# any time is larger than RARE.
MOST_MISSING: Final = 0.3
RARE: Final = 1e-4
# Nothing is skipped if less than 1 / MOST_SPARSE of a week would be left. This limits the number of candidate times.
MOST_SPARSE: Final = 50


@dataclass(frozen=True)
class WeeklyTimes:
    """Times of a week at which a series can have rows. A day is divided into cells of one step.

    Attributes:
        is_open: Whether a row can occur, by weekday from Monday and cell of the day, `[7, S]`.
        last: Local time of the last row, in seconds since 1970.
        cell: Number of its cell since 1970.
    """

    is_open: np.ndarray
    last: float
    cell: int

    @property
    def step(self) -> float:
        """Length of a cell in seconds. A step measured from a few rows is less exact, and would shift rows after a
        night."""
        return DAY / self.is_open.shape[1]

    def enough(self, count: int) -> int:
        """Return a number of successive steps that contains at least `count` rows."""
        weeks = -(-count // int(self.is_open.sum())) + 1  # one more week, because clocks may change
        return weeks * self.is_open.size

    def holds(self, local: np.ndarray) -> np.ndarray:
        """Return whether a row can occur at local times `[M]`."""
        days, slot = np.divmod(self.cell + _steps(local - self.last, self.step), self.is_open.shape[1])
        found: np.ndarray = self.is_open[_weekday(days), slot]
        return found


def weekly_times(local: np.ndarray, step: float) -> WeeklyTimes | None:
    """Return the times of a week at which a series can have rows, or None if it can have rows at any time.

    Args:
        local: Local times of the rows `[N]`, in seconds since 1970.
        step: Typical step between rows in seconds. If days are no multiple of it, or times are irregular, the result
            is None.
    """
    slots = round(DAY / step)
    if step < SHORTEST or slots < 1 or abs(slots * step - DAY) > DAY_TOLERANCE * DAY:
        return None
    last, exact = float(local[-1]), DAY / slots
    places = (local - last) / exact
    if (np.abs(places - np.rint(places)) > OFF).mean() > MOST_IRREGULAR:
        return None
    cell = int(last // exact)
    is_open = ~_closed(np.unique(cell + _steps(local - last, exact)), slots)
    if is_open.all() or MOST_SPARSE * is_open.sum() < is_open.size:
        return None
    return WeeklyTimes(is_open, last, cell)


def _closed(cells: np.ndarray, slots: int) -> np.ndarray:
    """Return the times of a week `[7, S]` that never occur in increasing cells, although they had enough chances."""
    days, slot = np.divmod(cells, slots)
    active = np.unique(days)
    seen_days = np.bincount(_weekday(active), minlength=WEEK)
    dates = np.bincount(_weekday(np.arange(days[0], days[-1] + 1)), minlength=WEEK)
    is_closed = np.repeat(_never(seen_days, dates, FEWEST_WEEKS)[:, None], slots, axis=1)
    if len(active) >= WORKING_DAYS and not seen_days[5:].any():
        is_closed[5:] = True
    if len(active) < FEWEST_DAYS:
        return is_closed
    seen = np.bincount(_weekday(days) * slots + slot, minlength=WEEK * slots).reshape(WEEK, slots)
    # A day without any row says nothing about its times. Nor do the times before the first and after the last row.
    chances = np.repeat(seen_days[:, None], slots, axis=1)
    chances[_weekday(days[0]), : slot[0]] -= 1
    chances[_weekday(days[-1]), slot[-1] + 1 :] -= 1
    of_day = _never(seen.sum(axis=0), chances.sum(axis=0), FEWEST_DAYS)
    return np.asarray(is_closed | of_day | _never(seen, chances, FEWEST_WEEKS))


def _never(seen: np.ndarray, chances: np.ndarray, fewest: int) -> np.ndarray:
    """Return which times never occur although they had enough chances that random losses do not explain it.

    If a fraction q of the rows is lost at random, n rows at the same time are all lost with probability q^n. This is
    compared with RARE after multiplication by the number of times, because any of them could be empty by chance.
    """
    occurs = seen > 0
    count = int(chances[occurs].sum())
    lost = (count - seen[occurs].sum() + 0.5) / (count + 1)
    if lost > MOST_MISSING:
        return np.zeros_like(occurs)
    return np.asarray(~occurs & (chances >= fewest) & (lost**chances * occurs.size < RARE))


def _steps(seconds: np.ndarray, step: float) -> np.ndarray:
    """Return the nearest numbers of steps. Halves are always rounded down, so that rows that are half a step off the
    grid, such as rows of two hours after a clock change, stay one cell apart."""
    return np.ceil(seconds / step - 0.5).astype(np.int64)


def _weekday(days: np.ndarray) -> np.ndarray:
    """Return the weekdays, from Monday, of days since 1970-01-01, which was a Thursday."""
    return (days + 3) % WEEK
