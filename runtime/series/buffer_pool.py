"""Buffers of the series network. Each is used by one call at a time.

New large arrays cause page faults, which take longer than a row. The most recently used buffers are therefore retained
for later calls, up to `MAX_BYTES` in total. This total is exceeded only while more buffers are in use at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

MAX_BYTES: Final = 32 << 20
Key = tuple[int, ...]


class PooledBuffer(NamedTuple):
    """A buffer and its size in bytes."""

    key: Key
    content: Any
    size: int


class BufferPool:
    """A pool of buffers by key. It may be used from any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._idle: list[PooledBuffer] = []  # the most recently used one is last
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def idle(self) -> int:
        """Number of buffers that are not borrowed."""
        return len(self._idle)

    @property
    def allocated_bytes(self) -> int:
        """Total size of all buffers in bytes, including borrowed ones."""
        return self._bytes

    @contextmanager
    def borrow(self, key: Key, make: Callable[[], Any]) -> Iterator[Any]:
        """Provide a buffer for a key during a context. If no buffer is idle, `make` creates one. An idle buffer may
        contain values of an earlier call."""
        buffer = self._pop_idle(key) or self._add(key, make())
        try:
            yield buffer.content
        finally:
            with self._lock:
                self._idle.append(buffer)
                self._trim()

    def _pop_idle(self, key: Key) -> PooledBuffer | None:
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index].key == key:
                    return self._idle.pop(index)
        return None

    def _add(self, key: Key, content: Any) -> PooledBuffer:
        buffer = PooledBuffer(key, content, _size(content))
        with self._lock:
            self._bytes += buffer.size
            self._trim()
        return buffer

    def _trim(self) -> None:
        """Drop the least recently used buffers until the total size is allowed. The caller must hold the lock."""
        while self._bytes > self._max_bytes and self._idle:
            self._bytes -= self._idle.pop(0).size


def _size(content: Any) -> int:
    if isinstance(content, np.ndarray):
        return content.nbytes
    return sum(map(_size, content)) if isinstance(content, tuple) else 0
