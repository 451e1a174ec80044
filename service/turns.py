"""Turns of the event loop for long work, of bodies and of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Turns:
    """Long work on the event loop, a piece at a time: between two of them everybody else goes on.

    `asyncio.sleep(0)` lets others go on as well, but everyone who does that has a turn in each round of the loop: of
    sixty large bodies or replies at once, a piece each was worked on before the loop looked at its sockets.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, work: Callable[[], Result], *, is_long: bool) -> Result:
        """Do a piece of work, in turn if it is a long one."""
        if not is_long:
            return work()
        async with self._lock:
            try:
                return work()
            finally:
                await asyncio.sleep(0)

    async def next(self) -> None:
        """Wait for a turn: the caller's next piece, up to where it waits again."""
        async with self._lock:
            await asyncio.sleep(0)
