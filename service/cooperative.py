"""Schedule long work on the event loop, such as parsing request bodies and encoding replies, in short parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

# Interval at which waiting work checks whether a live stream still waits, and the maximum number of checks.
POLL_SECONDS: Final = 0.001
MAX_POLLS: Final = 20
Result = TypeVar("Result")


class CooperativeWork:
    """Runs the parts of long tasks one at a time. Other tasks of the event loop run between two parts.

    With only `asyncio.sleep(0)`, every long task would run one part in each iteration of the event loop. With sixty
    large bodies, the sockets would then wait for sixty parts.

    While a live stream waits for its reply, parts wait for a limited time. Only one thread runs Python code at a time,
    and a step of the engine takes twice as long while a part runs.

    Args:
        is_awaited: Function that returns whether a live stream is waiting for the engine.
    """

    def __init__(self, is_awaited: Callable[[], bool] = lambda: False) -> None:
        self._lock = asyncio.Lock()
        self._is_awaited = is_awaited

    async def run(self, work: Callable[[], Result], *, is_long: bool) -> Result:
        """Run one part of a task, and return its result.

        Args:
            is_long: Whether the task is long. If so, the part waits for its turn; otherwise, it runs immediately.
        """
        if not is_long:
            return work()
        async with self._lock:
            await self._yield_to_live_streams()
            try:
                return work()
            finally:
                await asyncio.sleep(0)

    async def pause(self) -> None:
        """Wait until the caller may run its next part, which ends with the next `await` of the caller."""
        async with self._lock:
            await asyncio.sleep(0)
            await self._yield_to_live_streams()

    async def _yield_to_live_streams(self) -> None:
        for _ in range(MAX_POLLS):
            if not self._is_awaited():
                return
            await asyncio.sleep(POLL_SECONDS)
