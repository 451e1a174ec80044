"""Times of requests, drawn before the run and independent of the replies (an open loop).

The generator wakes at most once per millisecond and sends everything due; the actual delay is recorded.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

TICK_SECONDS = 0.001
CHUNK = 1024
Action = Callable[[float], None]


def poisson(rate: float, start: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield the times of a Poisson process with `rate` events per second from `start` on, without end."""
    now = start
    while True:
        for gap in rng.exponential(1 / rate, CHUNK).tolist():
            now += gap
            yield now


def periodic(rate: float, start: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield `rate` equally spaced times per second with a random phase, without end."""
    phase = float(rng.random())
    return (start + (k + phase) / rate for k in itertools.count())


class Pacer:
    """Calls actions at the times of their schedules until the end."""

    def __init__(self, end: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._end = end
        self._clock = clock
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Action, Iterator[float]]] = []

    def add(self, schedule: Iterator[float], action: Action) -> None:
        """Call `action(due)` at every time of the schedule before the end."""
        self._push(schedule, action)

    def _push(self, schedule: Iterator[float], action: Action) -> None:
        due = next(schedule, self._end)
        if due < self._end:
            heapq.heappush(self._heap, (due, next(self._order), action, schedule))

    async def run(self) -> None:
        """Run until every schedule has reached the end."""
        while self._heap:
            delay = self._heap[0][0] - self._clock()
            if delay > 0:
                await asyncio.sleep(max(delay, TICK_SECONDS))
            self._send_due()
            await asyncio.sleep(0)  # read answers between two batches, even when late
        await asyncio.sleep(max(0.0, self._end - self._clock()))

    def _send_due(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, _, action, schedule = heapq.heappop(self._heap)
            action(due)
            self._push(schedule, action)
