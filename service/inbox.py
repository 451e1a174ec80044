"""A queue of events for one reader on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

Event = TypeVar("Event")


class Inbox(deque[Event]):
    """Events in their order of arrival.

    Attributes:
        is_awaited: Whether the reader waits for an event.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__(events)
        self.is_awaited = False
        self._arrival = asyncio.Event()

    async def wait(self) -> None:
        """Wait until there is an event."""
        while not self:
            self._arrival.clear()
            self.is_awaited = True
            try:
                await self._arrival.wait()
            finally:
                self.is_awaited = False

    def put(self, events: Iterable[Event]) -> None:
        """Add events, and wake the reader."""
        self.extend(events)
        self.is_awaited = False
        self._arrival.set()
