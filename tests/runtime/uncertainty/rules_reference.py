"""The rules of runtime/uncertainty/rules.py for one column of one stream, in plain Python.

The equations are those of recurrence.py, lengths.py and stretch.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rfa.runtime.uncertainty import stretch
from rfa.runtime.uncertainty.learned_tail import FIRST
from rfa.runtime.uncertainty.lengths import BINS, FARTHEST
from rfa.runtime.uncertainty.recurrence import (
    BY_CHANCE,
    EPISODES,
    LARGER,
    LEAST_PERIODS,
    OLDEST,
    PERIODS,
    SHORTEST_PERIOD,
    TOLERANCE,
    USUAL_PERIODS,
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
        lags = list(USUAL_PERIODS)
        if self._chance(t, deviation, others) <= BY_CHANCE:
            lags += [begin - one[0] for one in others]
        for lag in lags:
            if lag >= SHORTEST_PERIOD * self.step and (share := self._with_period(t, deviation, lag, LEAST_PERIODS)):
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
            if LARGER * abs(peak) >= abs(deviation)
        ]
        return len(others) * 4 * (sum(sizes) / (t - oldest)) ** 3 if t > oldest else 1.0

    def add_again(self, t: float, change: float) -> None:
        """Add a change that follows an episode of its size by an hour, a day or a week."""
        periods = [period for period in USUAL_PERIODS if period >= SHORTEST_PERIOD * self.step]
        if any(0 < self._peak(t - period, change) <= LARGER * abs(change) for period in periods):
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

    def _with_period(self, t: float, deviation: float, period: float, least: int) -> float:
        peaks = [self._peak(t - k * period, deviation) for k in range(1, PERIODS + 1)]
        count = sum(peak > 0 for peak in peaks)
        return count / PERIODS if count >= least and abs(deviation) * count <= LARGER * sum(peaks) else 0.0

    def _peak(self, t: float, deviation: float) -> float:
        near = TOLERANCE * self.step
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
    longest: float = 0.0

    def tail(self, length: float) -> float:
        """Tail probability of a length, which is then counted."""
        count = len(self.lengths)
        if length > self.longest:
            p = max(self.longest / length, 1 / FARTHEST) / (count + 1)
        else:
            p = (1 + sum(self._bin(one) >= self._bin(length) for one in self.lengths)) / (count + 1)
        self.lengths.append(length)
        return p

    def _bin(self, length: float) -> int:
        return min(int(2 * math.log2(max(length, 1.0))), BINS - 1)


def bounded(x: float, bound: float) -> float:
    return max(-bound, min(bound, x))


class Score:
    """The stretch of a score T, and the tail of the peaks of those before it."""

    def __init__(self, shortest: float) -> None:
        self.shortest, self.lengths, self.tail = shortest, list[int](), RareTail()
        self.peak, self.length = 0.0, 0

    def probability(self, score: float, scored: int) -> float:
        p = self.tail.probability(score) if score > self.peak else None
        mean = float(np.mean(self.lengths)) if self.lengths else 0.0
        p = 1.0 if p is None else max(p / max(mean, self.shortest), 1 / (stretch.FARTHEST * (scored + 1)))
        if score > self.peak and len(self.tail.first) == FIRST and score <= self.tail.threshold:
            p = 1.0 / max(mean, self.shortest)
        self.peak, self.length = max(self.peak, score), self.length + 1
        is_over = not (len(self.tail.first) == FIRST and score > self.tail.threshold)
        if self.length >= self.shortest and is_over:
            self.tail.learn(self.peak)
            self.tail.keep()
            self.lengths.append(self.length)
            self.peak, self.length = 0.0, 0
        return p


class Stretch:
    """stretch.py for values with a clock that is no counter, each row in a bin of its own."""

    def __init__(self, step: float) -> None:
        self.of_day, self.rows, self.level, self.before = 86_400 / step, 0, 0.0, 0.0
        self.profile, self.bins, self.hours = {}, {}, {}  # type: ignore[var-annotated]
        self.week: dict[float, float] = {}
        self.near, self.slow, self.since = [0.0] * 3, [0.0] * 3, stretch.SLOW[-1]
        self.means, self.square, self.seen, self.scored, self.weekend = [0.0] * 4, 0.0, 0, 0, False
        self.off, self.spread = [0.0, 0.0], 0.0
        self.scores = [Score(shortest) for shortest in stretch.SHORTEST]
        self.begin = self.first = self.last = math.nan
        self.moves = 0.0

    def probability(self, value: float, time: float) -> float:
        """Of a row, which is then learned."""
        if not self.seen:
            self.begin, self.first = time, value
        else:
            self.moves += ((value != self.last) - self.moves) / min(self.seen, 2 * self.of_day)
        self.seen, y, self.last = self.seen + 1, value - self.first, value
        weekday, hour = int(time // 86_400 + 3) % 7, time % 86_400 / 3600
        weekend, slot = weekday >= 5, (weekday, int(hour * 2))
        k = weekend, round(hour * 3600 * self.of_day / 86_400) % self.of_day
        if k not in self.profile:
            self.profile[k], self.bins[k] = y - self.level, [0.0, 1]
            return 1.0
        weeks, days = (time - self.begin) // 604_800, 7 * self.of_day
        share = 1 / (1 + (self.off[1] / self.off[0]) ** 8) if weeks and self.off[0] else 0.0
        without, weekly = y - self.level - self.profile[k], self.week.get(slot, 0.0)
        r, spread = without - share * weekly, self.spread
        is_young = self.rows <= stretch.BOUNDED_FROM or spread <= 0
        at_hour = self._hour_spread(hour, spread)
        scale = max(at_hour, self._bin_spread(*k, stretch.NEAR_SHARE))
        bound, wide = (math.inf, math.inf) if is_young else (stretch.FAR * scale, stretch.FARTHEST_SPREAD * scale)
        if not is_young:
            if self.before > at_hour:
                calmer, slowest = at_hour / self.before, self.slow[2]
                self.slow = [slowest + (one - slowest) * calmer for one in self.slow[:2]] + [slowest]
            self.before = at_hour
        self.since, self.weekend = (0 if weekend != self.weekend else self.since + 1), weekend
        if self.since == 0 and not is_young:
            self.near, self.slow = [r] * 3, [r] * 3
        slow, p = self.slow[0], 1.0
        if not is_young:
            p = self._score(r, bound, scale, is_scored=time - self.begin >= 86_400)
        size = min(abs(r - slow), bound)
        self.rows += 1
        self.spread += (size - self.spread) / min(self.rows, stretch.MEMORY)
        of_hour = self.hours.setdefault(int(hour), [0.0, 0.0])
        of_hour[1] = min(of_hour[1] + 1, stretch.SPREAD_DAYS * self.of_day / 24)
        of_hour[0] += (size - of_hour[0]) / of_hour[1]
        self.bins[k][1] += 1
        first = 1 / self.bins[k][1]
        self.bins[k][0] += max(stretch.SPREAD_GAIN, first) * (min(abs(r - slow), wide) - self.bins[k][0])
        off = without - slow
        for which in range(2) if weeks else ():
            error = min(abs(off - which * weekly), bound)
            self.off[which] += (error - self.off[which]) / min(self.seen, days)
        gain = max(stretch.WEEK_GAIN, 1 / (weeks + 1)) / max(self.of_day / 48, 1)
        self.week[slot] = weekly + gain * bounded(off - weekly, bound)
        self.profile[k] += max(stretch.GAIN, first) * bounded(r - slow, bound)
        self.level += bounded(r, bound) / min(self.seen, days)
        return p

    def is_usual(self, value: float, time: float, deviation: float) -> bool:
        """Whether a deviation leads towards the profile, in a bin that differs from those around it."""
        weekday, hour = int(time // 86_400 + 3) % 7, time % 86_400 / 3600
        k = round(hour * 3600 * self.of_day / 86_400) % self.of_day
        if self.moves < stretch.LEAST_MOVES:
            return False
        spread, weeks = self._hour_spread(hour, self.spread), (time - self.begin) // 604_800
        share = 1 / (1 + (self.off[1] / self.off[0]) ** 8) if weeks and self.off[0] else 0.0
        y = value - self.first - self.level - self.slow[0] - share * self.week.get((weekday, int(hour * 2)), 0.0)
        least = stretch.DISTINCT * min(spread, stretch.MOST_SPREAD * self.spread)
        for weekend in (False, True):
            if self.bins.get((weekend, k), [0.0, 0])[1] < stretch.LEAST_VISITS:
                continue
            near = [(weekend, (k + offset) % self.of_day) for offset in (-1, 0, 1)]
            profile = [self.profile[one] for one in near if self.bins.get(one, [0.0, 0])[1] >= stretch.LEAST_VISITS]
            away = y - max(profile) if deviation > 0 else min(profile) - y
            of_bin = self._bin_spread(weekend, k, 1.0)
            is_distinct = max(of_bin, max(profile) - min(profile)) >= least
            if is_distinct and away <= stretch.WITHIN * max(of_bin, spread):
                return True
        return False

    def _bin_spread(self, weekend: bool, k: int, share: float) -> float:
        near = [self.bins.get((weekend, (k + offset) % self.of_day), [0.0])[0] for offset in (-1, 1)]
        return max(self.bins.get((weekend, k), [0.0])[0], share * max(near))

    def _hour_spread(self, hour: float, spread: float) -> float:
        low = math.floor(hour - 0.5) % 24
        two, share = [self.hours.get(one, [0.0, 0.0]) for one in (low, (low + 1) % 24)], (hour - 0.5) % 1
        if min(two[0][1], two[1][1]) <= 3:
            return spread
        return max((1 - share) * two[0][0] + share * two[1][0], stretch.LEAST_SPREAD * spread)

    def _score(self, r: float, bound: float, scale: float, *, is_scored: bool) -> float:
        u, least = bounded((r - self.slow[0]) / scale, stretch.FAR), 1.0
        above = bounded(r - self.slow[0], bound)
        self.square += (u * u - self.square) / min(stretch.SPREAD_ROWS, self.since + 1)
        for k, fast in enumerate([*stretch.FAST, None]):
            if fast is None:
                found, settled = self.square, stretch.SETTLED
            else:
                to = r if fast == 1 else self.slow[0] + above
                self.near[k] += (to - self.near[k]) / min(fast, self.since + 1)
                found, settled = (self.near[k] - self.slow[k]) / scale, stretch.SETTLING * fast
            away = found - self.means[k]
            if is_scored and self.since >= settled:
                least = min(least, stretch.SEVERAL * self.scores[k].probability(abs(away), self.scored))
            self.means[k] += bounded(away, stretch.FAR_FROM_MEAN) / min(self.seen, stretch.MEMORY)
        for k, rows in enumerate(stretch.SLOW):
            self.slow[k] += bounded(r - self.slow[k], bound) / min(self.since + 1, rows)
        self.scored += is_scored
        return least
