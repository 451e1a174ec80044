"""Slots of model state for many streams: one array per field, whose rows are reused.

A slot is a row of every array. Its owner has a handle, (row, generation). The generation changes on acquire and on
release, so a handle that outlives its slot raises an error and cannot read another stream's state. Rows are zeroed on
both occasions. Rows that were never used cost no memory, and the pages of a large slot go back to the system with it.
Small slots are reused last in, first out.

`acquire` and `release` may be called from any thread. Reading and writing rows takes no lock: a slot has one owner.
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
# From this size of a row on its pages are returned to the system; the call costs some microseconds.
RETURN_PAGES_BYTES = 65_536
IS_LINUX = sys.platform == "linux"  # elsewhere the pages would not read as zeros
BOOKKEEPING_BYTES = 16  # per slot: its generation and its entry in the free list


class StateField(NamedTuple):
    """Shape and dtype of a field of a slot."""

    shape: tuple[int, ...]
    dtype: DTypeLike


class PoolSlot(NamedTuple):
    """Handle of an acquired slot; odd generations are in use."""

    row: int
    generation: int


class PoolFull(RuntimeError):
    """Every slot has an owner."""


class StaleSlot(RuntimeError):
    """The slot of a handle was released."""


class StatePool:
    """Slots of state.

    Args:
        fields: of a slot.
        capacity: number of slots.
    """

    def __init__(self, fields: Mapping[str, StateField], capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._fields = {name: _FieldRows(capacity, field) for name, field in fields.items()}
        self.arrays: dict[str, Array] = {name: rows.array for name, rows in self._fields.items()}
        self._generations = np.zeros(capacity, np.int64)
        self._free = np.zeros(capacity, np.int64)  # a stack of released slots
        self._free_count = 0
        self._untouched = 0  # slots from here on never had an owner
        self._lock = threading.Lock()

    @property
    def in_use(self) -> int:
        """Slots that have an owner."""
        return self._untouched - self._free_count

    @property
    def host_bytes_per_slot(self) -> int:
        """Main memory of a used slot, exactly."""
        return sum(array.nbytes for array in self.arrays.values()) // self.capacity + BOOKKEEPING_BYTES

    @property
    def touched_bytes(self) -> int:
        """Upper bound of the main memory of slots that ever had an owner."""
        return self._untouched * self.host_bytes_per_slot

    def acquire(self) -> PoolSlot:
        """A zeroed slot.

        Raises:
            PoolFull: every slot has an owner.
        """
        with self._lock:
            if self._free_count:
                self._free_count -= 1
                row = int(self._free[self._free_count])
            elif self._untouched < self.capacity:
                row = self._untouched
                self._untouched += 1
            else:
                raise PoolFull(f"all {self.capacity} slots of state are in use")
            self._generations[row] += 1
            self._clear(row)
            return PoolSlot(row, int(self._generations[row]))

    def release(self, slot: PoolSlot) -> None:
        """Zero a slot and free it.

        Raises:
            StaleSlot: it was released before.
        """
        with self._lock:
            self._check(slot)
            self._clear(slot.row)
            self._generations[slot.row] += 1
            self._free[self._free_count] = slot.row
            self._free_count += 1

    def rows(self, slots: Sequence[PoolSlot]) -> Array:
        """Row numbers of these slots, to index `arrays` with.

        Raises:
            StaleSlot: one was released.
            ValueError: one occurs twice: its rows would overwrite each other.
        """
        handles = np.fromiter(itertools.chain.from_iterable(slots), np.int64, 2 * len(slots)).reshape(-1, 2)
        rows = np.ascontiguousarray(handles[:, 0])
        is_current = self._generations[rows] == handles[:, 1]
        if not is_current.all():
            raise StaleSlot(f"slot {slots[int(np.argmin(is_current))]} was released")
        if len(set(slots)) != len(slots):
            raise ValueError("a slot occurs twice in one batch")
        return rows

    def read(self, slot: PoolSlot) -> dict[str, Array]:
        """Copies of a slot's fields.

        Raises:
            StaleSlot: it was released.
        """
        self._check(slot)
        return {name: array[slot.row].copy() for name, array in self.arrays.items()}

    def write(self, slot: PoolSlot, values: Mapping[str, Array | float]) -> None:
        """Set some fields of a slot.

        Raises:
            StaleSlot: it was released.
        """
        self._check(slot)
        for name, value in values.items():
            self.arrays[name][slot.row] = value

    def copy(self, source: PoolSlot, target: PoolSlot) -> None:
        """Copy a slot to another.

        Raises:
            StaleSlot: one was released.
        """
        self._check(source)
        self._check(target)
        for array in self.arrays.values():
            array[target.row] = array[source.row]

    def _check(self, slot: PoolSlot) -> None:
        if self._generations[slot.row] != slot.generation:
            raise StaleSlot(f"slot {slot} was released")

    def _clear(self, row: int) -> None:
        for rows in self._fields.values():
            rows.clear(row)


class _FieldRows:
    """The array of a field, in its own pages.

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

    def clear(self, row: int) -> None:
        """Zero a row, and return its whole pages to the system where that is worth a call."""
        begin, end = row * self._stride, (row + 1) * self._stride
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if not IS_LINUX or last - first < RETURN_PAGES_BYTES:
            self.array[row] = 0
            return
        self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._pages[begin:first] = bytes(first - begin)
        self._pages[last:end] = bytes(end - last)


class DoubleBufferedPool(StatePool):
    """Slots of two rows each, in arrays of a subclass: one row holds the state, the next state is written to the other.

    `swap` makes the next state current. So a state that is dropped, because it is not finite or its batch failed, has
    overwritten nothing.

    Args:
        capacity: number of slots; slot i has the rows 2i and 2i + 1.
        fields: of a slot, without the one for the index of the current row.
    """

    def __init__(self, capacity: int, fields: Mapping[str, StateField] | None = None) -> None:
        super().__init__({"half": StateField((), np.int64), **(fields or {})}, capacity)

    def current_rows(self, slots: Sequence[PoolSlot]) -> Array:
        """Rows that hold the states of these slots; the errors are those of `rows`."""
        rows = self.rows(slots)
        current: Array = 2 * rows + self.arrays["half"][rows]
        return current

    def next_rows(self, slots: Sequence[PoolSlot]) -> Array:
        """Rows that the next states are written to; the errors are those of `rows`."""
        following: Array = self.current_rows(slots) ^ 1
        return following

    def swap(self, slot: PoolSlot) -> None:
        """Make the next state current.

        Raises:
            StaleSlot: the slot was released.
        """
        self._check(slot)
        self.arrays["half"][slot.row] ^= 1
