"""The rules of runtime/uncertainty/rules.py for one column of one stream, in plain Python.

The equations are those of recurrence.py, lengths.py and stretch.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rfa.runtime.uncertainty import stretch
from rfa.runtime.uncertainty.lengths import BINS, FARTHEST
from rfa.runtime.uncertainty.recurrence import (
    BY_CHANCE,
    DAILY_TOLERANCE_FACTOR,
    DURATION_FACTOR,
    END_FRACTION,
    EPISODES,
    LARGEST_DAILY_TOLERANCE,
    LEAST_ENDS,
    LEAST_PERIODS,
    OLDEST,
    PERIODS,
    SHORTEST_PERIOD,
    SIZE_RATIO,
    TOLERANCE,
    USUAL_PERIODS,
    WORKDAY,
)
from tests.runtime.uncertainty.learned_tail_reference import RareTail


def alike(one: float, other: float) -> bool:
    return one * other > 0


@dataclass
class Recurrence:
    """Episodes as (begin, end, peak) in a ring; peak 0 is none."""

    step: float
    episodes: list[tuple[float, float, float]] = field(default_factory=lambda: [(0.0, 0.0, 0.0)] * EPISODES)
    newest: int = 0
    recurred: tuple[float, float] = (0.0, 0.0)

    def share(self, t: float, deviation: float) -> float:
        """The share of the last periods with this deviation; 0 where it does not recur."""
        alike_ones = [one for one in self.episodes if alike(one[2], deviation)]
        ongoing = next((one for one in alike_ones if abs(t - one[1]) <= TOLERANCE * self.step), None)
        begin = t if ongoing is None else ongoing[0]
        others = [one for one in alike_ones if one is not ongoing]
        weekday = (t // 86_400 + 3) % 7
        lags = [(lag, weekday if k == WORKDAY else 7) for k, lag in enumerate(USUAL_PERIODS)]
        if weekday >= 5:
            del lags[WORKDAY]
        if self._chance(t, deviation, others) <= BY_CHANCE:
            lags += [(begin - one[0], 7) for one in others]
        for lag, last_day in lags:
            if lag >= SHORTEST_PERIOD * self.step and (
                share := self._with_period(t, deviation, lag, LEAST_PERIODS, last_day)
            ):
                self.recurred = t, lag
                return share
        last, period = self.recurred
        return self._with_period(t, deviation, period, 1) if 0 < t - last <= period / 4 else 0.0

    def _chance(self, t: float, deviation: float, others: list[tuple[float, float, float]]) -> float:
        """A bound of the probability that any of these lags is a period by chance."""
        oldest = min([begin for begin, _, peak in self.episodes if peak != 0], default=t)
        sizes = [
            end - begin + 2 * TOLERANCE * self.step
            for begin, end, peak in others
            if SIZE_RATIO * abs(peak) >= abs(deviation)
        ]
        return len(others) * 4 * (sum(sizes) / (t - oldest)) ** 3 if t > oldest else 1.0

    def add_again(self, t: float, change: float) -> None:
        """Add a change that follows an episode of its size by an hour, a day or a week."""
        periods = [period for period in USUAL_PERIODS if period >= SHORTEST_PERIOD * self.step]
        near = TOLERANCE * self.step
        if any(0 < self._peak(t - period, change, near) <= SIZE_RATIO * abs(change) for period in periods):
            self.add(t, change)

    def add(self, t: float, deviation: float) -> None:
        """Add a large deviation."""
        for k, (begin, end, peak) in enumerate(self.episodes):
            if alike(peak, deviation) and abs(t - end) <= TOLERANCE * self.step:
                self.episodes[k] = begin, t, max(peak, deviation, key=abs)
                return
        self.newest = (self.newest + 1) % EPISODES
        oldest = [(self.newest + k) % EPISODES for k in range(OLDEST)]
        self.episodes[min(oldest, key=lambda k: abs(self.episodes[k][2]))] = self.episodes[self.newest]
        self.episodes[self.newest] = t, t, deviation

    def follows(self, t: float, deviation: float) -> bool:
        """Whether a row belongs to what recurred, which ended with a deviation of the other sign."""
        last, period = self.recurred
        if not 0 < t - last <= period / 4:
            return False
        recent = [one for one in self.episodes if one[2] and last - period / 4 <= one[0] <= last]
        start, _, peak = max(recent, key=lambda one: abs(one[2]), default=(last, last, 0.0))
        if abs(deviation) > SIZE_RATIO * abs(peak) or not peak:
            return False
        lengths = []
        for k in range(1, PERIODS + 1):
            before = start - k * period
            ends = [
                (begin, end)
                for begin, end, other in self.episodes
                if alike(other, -peak) and abs(other) >= END_FRACTION * abs(peak) and 0 < begin - before <= period / 4
            ]
            if SIZE_RATIO * self._peak(before, peak, self._near(period)) >= abs(peak) and ends:
                lengths.append(min(ends)[1] - before)
        if len(lengths) < LEAST_ENDS:
            return False
        return bool(t - start <= DURATION_FACTOR * np.mean(sorted(lengths)[:-1]) + TOLERANCE * self.step)

    def _near(self, period: float) -> float:
        near = TOLERANCE * self.step
        return max(near, min(DAILY_TOLERANCE_FACTOR * near, LARGEST_DAILY_TOLERANCE)) if period >= 86_400 else near

    def _with_period(self, t: float, deviation: float, period: float, least: int, last_day: float = 7) -> float:
        times = [t - (k + (2 if k > last_day else 0) * 86_400 / period) * period for k in range(1, PERIODS + 1)]
        peaks = [self._peak(time, deviation, self._near(period)) for time in times]
        count = sum(peak > 0 for peak in peaks)
        return count / PERIODS if count >= least and abs(deviation) * count <= SIZE_RATIO * sum(peaks) else 0.0

    def _peak(self, t: float, deviation: float, near: float) -> float:
        peaks = [
            abs(peak)
            for begin, end, peak in self.episodes
            if begin - near <= t <= end + near and alike(peak, deviation)
        ]
        return max(peaks, default=0.0)


@dataclass
class Lengths:
    """All lengths so far; `longest` is set by the caller."""

    lengths: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    longest: float = 0.0

    def tail(self, length: float) -> float:
        """Tail probability of a length, which is then counted."""
        count = len(self.lengths)
        if length > self.longest:
            p = max((self.longest / length) ** 2, 1 / FARTHEST) / (count + 1)
        else:
            p = (1 + sum(self.counts[self._bin(length) :])) / (count + 1)
        self.lengths.append(length)
        self.counts[self._bin(length)] += 1
        return p

    def _bin(self, length: float) -> int:
        return min(int(2 * math.log2(max(length, 1.0))), BINS - 1)


def bounded(x: float, bound: float) -> float:
    return max(-bound, min(bound, x))


class Peaks:
    """The stretch of a score T, and the tail of the peaks of those before it."""

    def __init__(self) -> None:
        self.lengths, self.tail = list[int](), RareTail()
        self.peak, self.length = 0.0, 0

    def probability(self, score: float, scored: int, covers_week: bool) -> float:
        mean = max(float(np.mean(self.lengths)) if self.lengths else 0.0, stretch.SHORTEST)
        is_begun, p = self.tail.has_begun, 1.0
        if is_begun and score > self.peak:
            tail = self.tail.probability(score)
            p = max(
                (1.0 if tail is None or score <= self.tail.threshold else tail) / mean, 1 / (stretch.FARTHEST * scored)
            )
        self.peak, self.length = max(self.peak, score), self.length + 1
        if self.length >= stretch.SHORTEST and not (is_begun and score > self.tail.threshold):
            self.tail.learn(self.peak)
            if covers_week and len(self.tail.first) >= stretch.FEWEST_STRETCHES and not self.tail.has_begun:
                self.tail.begin()
            self.tail.keep()
            self.lengths.append(self.length)
            self.peak, self.length = 0.0, 0
        return p


class Stretch:
    """stretch.py for values with a clock that is no counter, on a Monday first."""

    def __init__(self, step: float) -> None:
        self.rows_of_day = 86_400 / step
        self.of_day = min(round(self.rows_of_day), stretch.BINS)
        self.cells: dict[tuple[str, int], int] = {}
        self.unit = self.level = self.spread = self.square = 0.0
        self.near, self.slow, self.since = [0.0] * 3, [0.0] * 3, stretch.SLOW[-1]
        self.means, self.typical, self.peaks = [0.0] * 5, [0.0] * 5, Peaks()
        self.error = 0.0
        self.seen, self.scored, self.weekend = 0, 0, False
        self.begin = self.first = self.last = math.nan
        self.moves = 0.0

    def probability(self, value: float, time: float, innovation: float, follows: bool) -> float:
        """Of a row, which is then learned."""
        if not self.seen:
            self.begin, self.first = time, value
        else:
            self.moves += ((value != self.last) - self.moves) / min(self.seen, 2 * self.rows_of_day)
        self.seen, y, self.last = self.seen + 1, value - self.first, value
        if self.seen <= stretch.FIRST_ROWS or self.spread <= 0:
            self._begin(y - self.level)
            return 1.0
        if self.seen % stretch.UNIT_ROWS == 0 or self.unit <= 0:
            self._choose_unit()
        weekend, k, hour = self._places(time)
        if ("weekend" if weekend else "day", k) not in self.cells:
            self._write("weekend" if weekend else "day", k, y - self.level)
            return 1.0
        r = y - self.level - self._read("weekend" if weekend else "day", k)
        scale = max(self._hour_spread(weekend, hour), 0.0 if weekend else self._read("spread", k))
        self.since, self.weekend = (0 if weekend != self.weekend else self.since + 1), weekend
        if self.since == 0:
            self.near, self.slow = [r] * 3, [r] * 3
        error, p = r - self.slow[0], 1.0
        dates = range(int(self.begin // 86_400), int((time + 43_200 / self.rows_of_day) // 86_400))
        days = sum(((day + 3) % 7 >= 5) == weekend for day in dates)
        if not follows:
            score = self._score(r, scale, abs(innovation) / scale)
            if self.scored > stretch.FIRST_ROWS and days >= 1:
                covers_week = time - self.begin >= stretch.FEWEST_DAYS * 86_400
                p = self.peaks.probability(score, self.scored, covers_week)
        self._learn(r, error, scale, weekend, k, hour, days)
        return p

    def is_usual(self, value: float, time: float, deviation: float) -> bool:
        """Whether a deviation leads towards the profile, in a bin that differs from those around it."""
        is_old = time - self.begin >= stretch.LEAST_VISITS * 86_400
        if not is_old or self.moves < stretch.LEAST_MOVES:
            return False
        weekend, k, hour = self._places(time)
        spread = self._hour_spread(weekend, hour)
        y = value - self.first - self.level - self.slow[0]
        for kind in ("day", "weekend"):
            of_bin = self._read("spread", k) if kind == "day" else 0.0
            near = [(kind, (k + offset) % self.of_day) for offset in (-1, 0, 1)]
            profile = [self._read(*one) for one in near if one in self.cells]
            if (kind, k) in self.cells and max(of_bin, max(profile) - min(profile)) >= stretch.DISTINCT * spread:
                away = y - max(profile) if deviation > 0 else min(profile) - y
                if away <= stretch.WITHIN * max(of_bin, spread):
                    return True
        return False

    def _places(self, time: float) -> tuple[bool, int, float]:
        time += 43_200 / self.rows_of_day
        of_time = time % 86_400 / 86_400
        return (time // 86_400 + 3) % 7 >= 5, int(of_time * self.of_day), of_time * stretch.HOURS

    def _read(self, kind: str, k: int) -> float:
        return self.cells.get((kind, k), 0) * self.unit

    def _write(self, kind: str, k: int, number: float) -> None:
        units = math.floor(number / self.unit + self.seen * stretch.GOLDEN % 1)
        self.cells[kind, k] = int(bounded(units, stretch.LARGEST_CELL))

    def _choose_unit(self) -> None:
        largest, fitting = max(map(abs, self.cells.values()), default=0), self.spread / stretch.PARTS
        factor = 1.0
        if self.unit <= 0 or largest == 0:
            self.unit = fitting
        elif largest > stretch.LARGEST_CELL / 2 or 2 * self.unit < fitting:
            factor = 0.5
        elif largest < stretch.LARGEST_CELL / 8 and self.unit > 2 * fitting:
            factor = 2.0
        self.unit /= factor
        self.cells = {one: round(cell * factor) for one, cell in self.cells.items()}

    def _begin(self, r: float) -> None:
        self.spread += (abs(r - self.slow[0]) - self.spread) / self.seen
        for k, rows in enumerate(stretch.SLOW):
            self.slow[k] += (r - self.slow[k]) / min(self.seen, rows)
        self.near = list(self.slow)

    def _hour_spread(self, weekend: bool, hour: float) -> float:
        low, share = math.floor(hour - 0.5) % stretch.HOURS, (hour - 0.5) % 1
        kind = "weekend hour" if weekend else "day hour"
        two = [self._read(kind, one % stretch.HOURS) for one in (low, low + 1)]
        if min(two) == 0:
            return self.spread
        return max((1 - share) * two[0] + share * two[1], stretch.LEAST_SPREAD * self.spread)

    def _score(self, r: float, scale: float, error: float) -> float:
        self.scored += 1
        bound, largest, rate = stretch.FAR * scale, 0.0, 1 / min(self.scored, stretch.MEMORY)
        above = bounded(r - self.slow[0], bound)
        self.square += ((above / scale) ** 2 - self.square) / min(stretch.SPREAD_ROWS, self.since + 1)
        error = min(error, stretch.LARGEST_ERROR * self.means[4] if self.means[4] > 0 else stretch.FAR)
        self.error += (error - self.error) / min(self.scored, stretch.SPREAD_ROWS)
        for k, rows in enumerate([*stretch.FAST, stretch.SPREAD_ROWS, stretch.SPREAD_ROWS]):
            if k >= 3:
                found = self.error if k == 4 else math.sqrt(self.square)
            else:
                self.near[k] += (self.slow[0] + above - self.near[k]) / min(rows, self.since + 1)
                found = (self.near[k] - self.slow[k]) / scale
            away = found - self.means[k]
            if (self.scored if k == 4 else self.since) >= stretch.SETTLING * rows and self.typical[k] > 0:
                largest = max(largest, abs(away) / self.typical[k])
            away = bounded(away, stretch.FAR_FROM_MEAN)
            self.means[k] += away * rate
            self.typical[k] += (abs(away) - self.typical[k]) * rate
        for k, rows in enumerate(stretch.SLOW):
            self.slow[k] += bounded(r - self.slow[k], bound) / min(self.since + 1, rows)
        return largest

    def _learn(self, r: float, error: float, scale: float, weekend: bool, k: int, hour: float, days: int) -> None:
        bound, kind = stretch.FAR * scale, "weekend" if weekend else "day"
        size, wide = min(abs(error), bound), min(abs(error), stretch.FARTHEST_SPREAD * scale)
        self.spread += (size - self.spread) / min(self.seen, stretch.MEMORY)
        spread = self._read(f"{kind} hour", int(hour)) or self.spread
        spread += (size - spread) / (min(days + 1, stretch.SPREAD_DAYS) * max(self.rows_of_day / stretch.HOURS, 1))
        self._write(f"{kind} hour", int(hour), max(spread, self.unit))
        gain = max(stretch.GAIN, 1 / (days + 1)) * self.of_day / self.rows_of_day
        spread, profile = self._read("spread", k), self._read(kind, k)
        if not weekend:
            self._write("spread", k, spread + gain * (wide - spread))
        self._write(kind, k, profile + gain * bounded(error, bound))
        self.level += bounded(r, bound) / min(self.seen, 7 * self.rows_of_day)
