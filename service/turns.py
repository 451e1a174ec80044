"""Turns of the event loop for long work, of bodies and of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

# How often a piece asks whether it may go on, and how often at most.
LOOK_SECONDS: Final = 0.001
LONGEST_LOOKS: Final = 20
Result = TypeVar("Result")


class Turns:
    """Long work on the event loop, a piece at a time: between two of them everybody else goes on.

    `asyncio.sleep(0)` lets others go on as well, but everyone who does that has a turn in each round of the loop: of
    sixty large bodies or replies at once, a piece each was worked on before the loop looked at its sockets.

    While somebody waits for an answer of a live stream, the pieces wait, too: the interpreter has one thread at work at
    a time, and a step beside them takes twice as long. They do not wait for ever: then the live streams take all that
    there is.

    Args:
        is_awaited: whether somebody waits for what other threads work on.
    """

    def __init__(self, is_awaited: Callable[[], bool] = lambda: False) -> None:
        self._lock = asyncio.Lock()
        self._is_awaited = is_awaited

    async def take(self, work: Callable[[], Result], *, is_long: bool) -> Result:
        """Do a piece of work, in turn if it is a long one."""
        if not is_long:
            return work()
        async with self._lock:
            await self._stand_back()
            try:
                return work()
            finally:
                await asyncio.sleep(0)

    async def next(self) -> None:
        """Wait for a turn: the caller's next piece, up to where it waits again."""
        async with self._lock:
            await asyncio.sleep(0)
            await self._stand_back()

    async def _stand_back(self) -> None:
        for _ in range(LONGEST_LOOKS):
            if not self._is_awaited():
                return
            await asyncio.sleep(LOOK_SECONDS)
