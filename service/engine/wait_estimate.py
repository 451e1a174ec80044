"""Expected time in the queue, from the rate at which requests leave."""

from __future__ import annotations

import math
import time

LONGEST_RETRY_SECONDS = 60
SMOOTHING = 0.1


class WaitEstimate:
    """An exponential average of the time between two requests that leave while others wait."""

    def __init__(self) -> None:
        self._interval = 0.0
        self._last = time.monotonic()

    def restart(self) -> None:
        """The queue was empty until now."""
        self._last = time.monotonic()

    def count_removal(self) -> None:
        """A request has left while others wait."""
        now = time.monotonic()
        interval = min(now - self._last, LONGEST_RETRY_SECONDS)
        self._last = now
        weight = SMOOTHING if self._interval else 1.0
        self._interval += weight * (interval - self._interval)

    def seconds(self, waiting: int) -> float:
        """Return the estimated wait for a new request behind `waiting` others."""
        return (waiting + 1) * self._interval

    def retry_after(self, waiting: int) -> int:
        """Return the estimated wait for a new request as a value for the `Retry-After` header.

        Whole seconds, from 1 to LONGEST_RETRY_SECONDS.
        """
        return max(1, min(LONGEST_RETRY_SECONDS, math.ceil(self.seconds(waiting))))
