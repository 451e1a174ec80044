"""Compressed states of all series, and a pool for the few that are decompressed while their rows are filtered.

Large parts of a state are zero for a long time, such as profiles of seasons that have not occurred, and forecasts that
were not requested. LZ4 takes 30 µs to compress a state and 6 µs to decompress it, which is less than one step of the
filter.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool

Array = np.ndarray[Any, Any]
# Maximum number of series that are decompressed at a time, and number of series that are copied at a time, so that the
# copies fit into the cache of a processor.
MOST_UNPACKED: Final = 256
_COPIED: Final = 32
_CODEC: Final = pa.Codec("lz4_raw")
# All filters of a model share the pools below.
_LOCK: Final = threading.Lock()


@functools.lru_cache(4)
def _pool(runtime: FilterRuntime) -> StatePool:
    return StatePool(runtime.state_fields, MOST_UNPACKED)


class PackedStates:
    """Compressed states of the series of a model.

    Args:
        runtime: The model.

    Attributes:
        packed: Compressed state of each series, by the number of the series.
        bytes: Total size of the compressed states in bytes.
    """

    def __init__(self, runtime: FilterRuntime) -> None:
        self._pool = _pool(runtime)
        ends = np.cumsum([array[:1].nbytes for array in self._pool.arrays.values()]).tolist()
        self._size = ends[-1]
        self._columns = {
            name: slice(end - array[:1].nbytes, end)
            for end, (name, array) in zip(ends, self._pool.arrays.items(), strict=True)
        }
        row = np.zeros((1, self._size), np.uint8)
        for name, part in runtime.start().tensors.items():
            row[:, self._columns[name]] = np.asarray(part, self._pool.arrays[name].dtype).reshape(1, -1).view(np.uint8)
        self._initial: bytes = _CODEC.compress(row, asbytes=True)
        self.packed: dict[int, bytes] = {}
        self.bytes = 0

    def begin(self, number: int) -> None:
        """Add a series with an initial state."""
        self._set(number, self._initial)

    def remove(self, number: int) -> None:
        """Remove a series."""
        self.bytes -= len(self.packed.pop(number))

    def restore(self, packed: Mapping[int, bytes]) -> None:
        """Replace the states of all series."""
        self.packed = dict(packed)
        self.bytes = sum(map(len, packed.values()))

    @contextmanager
    def unpacked(self, numbers: Array) -> Iterator[StatePool]:
        """Decompress the states of the series `numbers`, and yield a pool that contains them in its first rows. They
        are compressed again at the end of the block, unless there is an error."""
        with _LOCK:
            for first in range(0, len(numbers), _COPIED):
                self._unpack(numbers[first : first + _COPIED].tolist(), first)
            yield self._pool
            for first in range(0, len(numbers), _COPIED):
                self._pack(numbers[first : first + _COPIED].tolist(), first)

    def _unpack(self, numbers: list[int], first: int) -> None:
        rows = np.empty((len(numbers), self._size), np.uint8)
        for k, number in enumerate(numbers):
            rows[k] = np.frombuffer(_CODEC.decompress(self.packed[number], self._size), np.uint8)
        for name, array in self._pool.arrays.items():
            part = array[first : first + len(numbers)]
            part[...] = rows[:, self._columns[name]].view(part.dtype).reshape(part.shape)

    def _pack(self, numbers: list[int], first: int) -> None:
        rows = np.empty((len(numbers), self._size), np.uint8)
        for name, array in self._pool.arrays.items():
            part = array[first : first + len(numbers)]
            rows[:, self._columns[name]] = part.reshape(len(part), math.prod(part.shape[1:])).view(np.uint8)
        for number, row in zip(numbers, rows, strict=True):
            self._set(number, _CODEC.compress(row, asbytes=True))

    def _set(self, number: int, packed: bytes) -> None:
        self.bytes += len(packed) - len(self.packed.get(number, b""))
        self.packed[number] = packed
