"""Room that the series network works in, of any number of columns: lent to one call at a time.

Large arrays that are new cost page faults, which take longer than a row: so rooms are kept for the next call, those
used last. All of them together, kept and lent, come to `MOST_BYTES`, unless more than that is lent at the same time: to
a thread each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

MOST_BYTES: Final = 32 << 20
Key = tuple[int, ...]


class PooledBuffer(NamedTuple):
    """A room, and what it takes of memory."""

    key: Key
    content: Any
    size: int


class Rooms:
    """Rooms by what they are for; for use from any thread."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._idle: list[PooledBuffer] = []  # those used last at the end
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def idle(self) -> int:
        """Rooms that are kept."""
        return len(self._idle)

    @property
    def held_bytes(self) -> int:
        """Of all rooms, lent ones included."""
        return self._bytes

    @contextmanager
    def lent(self, key: Key, make: Callable[[], Any]) -> Iterator[Any]:
        """What was made for this key, which nobody else has, and in which anything may be left of a call before."""
        room = self._found(key) or self._made(key, make())
        try:
            yield room.content
        finally:
            with self._lock:
                self._idle.append(room)
                self._trim()

    def _found(self, key: Key) -> PooledBuffer | None:
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place].key == key:
                    return self._idle.pop(place)
        return None

    def _made(self, key: Key, content: Any) -> PooledBuffer:
        room = PooledBuffer(key, content, _bytes_of(content))
        with self._lock:
            self._bytes += room.size
            self._trim()
        return room

    def _trim(self) -> None:
        """With the lock: give up those not used for longest until what is left is within bounds."""
        while self._bytes > self._most_bytes and self._idle:
            self._bytes -= self._idle.pop(0).size


def _bytes_of(content: Any) -> int:
    if isinstance(content, np.ndarray):
        return content.nbytes
    return sum(map(_bytes_of, content)) if isinstance(content, tuple) else 0
