"""Retry-After: clients that obey it find a place, in a simulated server that shares its time among its requests."""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
import pytest

from rfa.service.engine.wait_estimate import LONGEST_RETRY_SECONDS, WaitEstimate

RUNNING, WAITING, RATE = 16, 32, 2000.0


class Server:
    """Runs up to RUNNING requests at RATE tokens a second together."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self._draw = np.random.default_rng(seed)
        self._running: list[float] = []
        self._waiting: deque[float] = deque()
        self.estimate = WaitEstimate(lambda: self.now)

    def admit(self) -> bool:
        tokens = self._draw.lognormal(4.8, 1)
        if len(self._running) < RUNNING and not self._waiting:
            self._running.append(tokens)
        elif len(self._waiting) < WAITING:
            if not self._waiting:
                self.estimate.restart()
            self._waiting.append(tokens)
        else:
            return False
        return True

    def run_until(self, time: float) -> None:
        while self._running and (end := self.now + min(self._running) * len(self._running) / RATE) <= time:
            least = min(self._running)
            self._running.remove(least)
            self._running = [left - least for left in self._running]
            self.now = end
            if self._waiting:
                self.estimate.count_removal()
                self._running.append(self._waiting.popleft())
        share = (time - self.now) * RATE / max(1, len(self._running))
        self._running = [left - share for left in self._running]
        self.now = time


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_obey_find_a_place_at_their_first_retry(seed: int) -> None:
    server = Server(seed)
    events = [(20 * burst + 0.001 * client, burst == 0, 0) for burst in range(4) for client in range(150)]
    heapq.heapify(events)
    found, longest = [], 0
    while events:
        time, is_warm_up, tries = heapq.heappop(events)
        server.run_until(time)
        admitted = server.admit()
        if tries == 1 and not is_warm_up:
            found.append(admitted)
        if not admitted:
            seconds = server.estimate.retry_after()
            longest = max(longest, seconds)
            heapq.heappush(events, (time + seconds, is_warm_up, tries + 1))
    assert len(found) > 200 and np.mean(found) >= 0.9
    assert longest < LONGEST_RETRY_SECONDS


def test_a_refused_client_comes_after_those_refused_before() -> None:
    now = 0.0
    estimate = WaitEstimate(lambda: now)
    for _ in range(50):
        now += 2.0
        estimate.count_removal()
    first = [estimate.retry_after() for _ in range(10)]
    assert first == sorted(first) and first[0] <= 5 and 25 <= first[-1] <= 35
    assert estimate.seconds(4) == pytest.approx(10.0)
    now += 100
    assert estimate.retry_after() <= 10  # all of them have come
    assert WaitEstimate(lambda: now).retry_after() == 1
