"""Seats of model state for many streams: one array per field, reused without a trace of the former owner.

A seat is a row of every array. Whoever holds it has a handle, (row, generation); the generation moves on acquire and
on release, so a handle that outlived its seat is refused instead of reading a stranger's state. Rows are zeroed on
both occasions. Pages that no seat ever touched cost no memory, and those of a large seat are given back to the system
with it, which reads them as zeros afterwards. Small seats are reused last in, first out.

`acquire` and `release` may be called from any thread. Reading and writing rows takes no lock: a seat has one owner.
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

Array = np.ndarray
# Of a seat's part of an array, from which on its pages are given back; the call costs some microseconds.
WORTH_GIVING_BACK_BYTES = 65_536
IS_LINUX = sys.platform == "linux"  # elsewhere the pages would not read as zeros
BOOKKEEPING_BYTES = 16  # per seat: its generation and its place in the free list


class StateField(NamedTuple):
    """What one seat holds under a name."""

    shape: tuple[int, ...]
    dtype: DTypeLike


class Seat(NamedTuple):
    """Handle of an acquired seat; odd generations are in use."""

    row: int
    generation: int


class PoolFull(RuntimeError):
    """Every seat has an owner."""


class StaleSeat(RuntimeError):
    """A handle whose seat was released."""


class StatePool:
    """Seats of state.

    Args:
        fields: what a seat holds.
        capacity: number of seats.
    """

    def __init__(self, fields: Mapping[str, StateField], capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._fields = {name: _FieldRows(capacity, field) for name, field in fields.items()}
        self.arrays: dict[str, Array] = {name: rows.array for name, rows in self._fields.items()}
        self._generations = np.zeros(capacity, np.int64)
        self._free = np.zeros(capacity, np.int64)  # a stack of released seats
        self._free_count = 0
        self._untouched = 0  # seats from here on never had an owner
        self._lock = threading.Lock()

    @property
    def in_use(self) -> int:
        """Seats that have an owner."""
        return self._untouched - self._free_count

    @property
    def host_bytes_per_seat(self) -> int:
        """Main memory of a touched seat, exactly."""
        return sum(array.nbytes for array in self.arrays.values()) // self.capacity + BOOKKEEPING_BYTES

    @property
    def touched_bytes(self) -> int:
        """Main memory of the seats that ever had an owner, at most."""
        return self._untouched * self.host_bytes_per_seat

    def acquire(self) -> Seat:
        """A zeroed seat.

        Raises:
            PoolFull: when every seat has an owner.
        """
        with self._lock:
            if self._free_count:
                self._free_count -= 1
                index = int(self._free[self._free_count])
            elif self._untouched < self.capacity:
                index = self._untouched
                self._untouched += 1
            else:
                raise PoolFull(f"all {self.capacity} seats of state are in use")
            self._generations[index] += 1
            self._clear(index)
            return Seat(index, int(self._generations[index]))

    def release(self, seat: Seat) -> None:
        """Zero a seat and give it back.

        Raises:
            StaleSeat: when it was given back before.
        """
        with self._lock:
            self._check(seat)
            self._clear(seat.row)
            self._generations[seat.row] += 1
            self._free[self._free_count] = seat.row
            self._free_count += 1

    def rows(self, seats: Sequence[Seat]) -> Array:
        """Row numbers of these seats, to index `arrays` with.

        Raises:
            StaleSeat: when one was released.
            ValueError: when one is named twice: its rows would overwrite each other.
        """
        handles = np.fromiter(itertools.chain.from_iterable(seats), np.int64, 2 * len(seats)).reshape(-1, 2)
        index = np.ascontiguousarray(handles[:, 0])
        current = self._generations[index] == handles[:, 1]
        if not current.all():
            raise StaleSeat(f"seat {seats[int(np.argmin(current))]} was released")
        if len(set(seats)) != len(seats):
            raise ValueError("a seat occurs twice in one batch")
        return index

    def read(self, seat: Seat) -> dict[str, Array]:
        """Copies of a seat's fields.

        Raises:
            StaleSeat: when it was released.
        """
        self._check(seat)
        return {name: array[seat.row].copy() for name, array in self.arrays.items()}

    def write(self, seat: Seat, values: Mapping[str, Array | float]) -> None:
        """Set some fields of a seat.

        Raises:
            StaleSeat: when it was released.
        """
        self._check(seat)
        for name, value in values.items():
            self.arrays[name][seat.row] = value

    def copy(self, source: Seat, target: Seat) -> None:
        """Make a seat the same as another.

        Raises:
            StaleSeat: when one was released.
        """
        self._check(source)
        self._check(target)
        for array in self.arrays.values():
            array[target.row] = array[source.row]

    def _check(self, seat: Seat) -> None:
        if self._generations[seat.row] != seat.generation:
            raise StaleSeat(f"seat {seat} was released")

    def _clear(self, index: int) -> None:
        for rows in self._fields.values():
            rows.clear(index)


class _FieldRows:
    """The array of a field, in pages of its own.

    Args:
        capacity: number of rows.
    """

    def __init__(self, capacity: int, field: StateField) -> None:
        dtype = np.dtype(field.dtype)
        size = capacity * math.prod(field.shape) * dtype.itemsize
        # Private: pages of a shared map would not be gone.
        self._pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(self._pages, dtype, size // dtype.itemsize).reshape(capacity, *field.shape)
        self._stride = self.array.strides[0] if capacity else 0

    def clear(self, index: int) -> None:
        """Zero a row, and give its whole pages back where that is worth a call."""
        begin, end = index * self._stride, (index + 1) * self._stride
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if not IS_LINUX or last - first < WORTH_GIVING_BACK_BYTES:
            self.array[index] = 0
            return
        self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._pages[begin:first] = bytes(first - begin)
        self._pages[last:end] = bytes(end - last)


class TurningPool(StatePool):
    """Seats of two rows each, which a subclass keeps: one row holds the state, the next is written to the other.

    A state takes effect by a turn, so that one that is not wanted (it is not finite, or its batch failed) has
    overwritten nothing.

    Args:
        capacity: number of seats; seat i has the rows 2i and 2i + 1.
        fields: what a seat holds beside which of its rows is which.
    """

    def __init__(self, capacity: int, fields: Mapping[str, StateField] | None = None) -> None:
        super().__init__({"half": StateField((), np.int64), **(fields or {})}, capacity)

    def current(self, seats: Sequence[Seat]) -> Array:
        """Rows that hold the states of these seats; the errors are those of `rows`."""
        rows = self.rows(seats)
        current: Array = 2 * rows + self.arrays["half"][rows]
        return current

    def spare(self, seats: Sequence[Seat]) -> Array:
        """Rows that their next states are written to; the errors are those of `rows`."""
        rows = self.rows(seats)
        spare: Array = 2 * rows + 1 - self.arrays["half"][rows]
        return spare

    def turn(self, seat: Seat) -> None:
        """What was written to the spare row is the state from now on.

        Raises:
            StaleSeat: when the seat was released.
        """
        self._check(seat)
        self.arrays["half"][seat.row] ^= 1
