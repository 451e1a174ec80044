"""The rules of runtime/uncertainty/rules.py for one column of one stream, in plain Python.

The equations are those of recurrence.py, lengths.py and stretch.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
from rfa.runtime.uncertainty.stretch import FAST, FIRST_SIZE, LARGEST, MEMORY, SLOW
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


class Stretch:
    """Averages of the last deviations, and the learned tail of their score."""

    def __init__(self) -> None:
        self.rows, self.size, self.mean, self.square = 0, 0.0, 0.0, 0.0
        self.fast = self.slow = self.spread = 0.0
        self.tail = RareTail()

    def probability(self, deviation: float) -> float:
        """Of a row, which is then learned."""
        mean_size = math.sqrt(2 / math.pi)
        rate = 1 / (min(self.rows, MEMORY) + 1)
        size = min(abs(deviation), LARGEST * self.size / mean_size if self.size else FIRST_SIZE)
        self.size, self.rows = self.size + rate * (size - self.size), self.rows + 1
        u = max(-LARGEST, min(LARGEST, deviation * mean_size / self.size))
        self.mean += rate * (u - self.mean)
        self.square += rate * (u * u - self.square)
        self.fast += (u - self.mean - self.fast) / FAST
        self.slow += (u - self.mean - self.slow) / SLOW
        self.spread += (u * u - self.square - self.spread) / FAST
        score = max(
            abs(self.fast) * math.sqrt(2 * FAST - 1),
            abs(self.slow) * math.sqrt(2 * SLOW - 1),
            abs(self.spread) * math.sqrt((2 * FAST - 1) / 2),
        )
        p = self.tail.probability(score)
        if self.rows % FAST == 0:
            self.tail.learn(score)
            self.tail.keep()
        return 1.0 if p is None else p
