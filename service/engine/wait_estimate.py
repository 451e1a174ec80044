"""Estimate the time in the queue from the rate at which requests leave the queue."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

LONGEST_RETRY_SECONDS: Final = 60
# Number of intervals in the mean. Requests of a batch leave at the same time, so the window must span several batches.
WINDOW: Final = 128
# Factor by which waits are extended, because other clients may take a free place first.
MARGIN: Final = 1.5
MOST_RETURNS: Final = 4_096


class WaitEstimate:
    """Estimates the time in the queue. It records when requests leave the queue, and when rejected clients may try
    again.

    Args:
        clock: Function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._intervals: deque[float] = deque(maxlen=WINDOW)
        self._last = clock()
        self._returns: deque[float] = deque(maxlen=MOST_RETURNS)

    def restart(self) -> None:
        """Start a new interval. Call this when a request enters an empty queue."""
        self._last = self._clock()

    def count_removal(self) -> None:
        """Record that a request has left the queue while others are waiting."""
        now = self._clock()
        self._intervals.append(min(now - self._last, LONGEST_RETRY_SECONDS))
        self._last = now

    def seconds(self, waiting: int) -> float:
        """Return the estimated time in the queue of a new request behind `waiting` others, in seconds."""
        return (waiting + 1) * sum(self._intervals) / len(self._intervals) if self._intervals else 0.0

    def retry_after(self) -> int:
        """Return the value of the `Retry-After` header in seconds, from 1 to LONGEST_RETRY_SECONDS.

        It is the estimated time until the queue has a free place for this client and for all clients that were rejected
        before.
        """
        now = self._clock()
        while self._returns and self._returns[0] <= now:
            self._returns.popleft()
        since = now - self._last
        mean = (sum(self._intervals) + since) / (len(self._intervals) + 1)
        until_next = max(0.0, max(self._intervals, default=0.0) - since)
        seconds = math.ceil(until_next + MARGIN * (len(self._returns) + 1) * mean)
        seconds = max(1, min(LONGEST_RETRY_SECONDS, seconds))
        self._returns.append(now + seconds)
        return seconds
