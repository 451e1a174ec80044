"""Pool slots for the model state of many streams. There is one array per field, whose rows are reused.

A slot is one row of every array. Its owner has a handle, (row, generation). The generation changes when a slot is
acquired or released, so a handle of a released slot raises an error and cannot read the state of another stream. Rows
are zeroed both times. Pages that were never written take no memory, and the pages of a large released slot are returned
to the system. Small slots are reused last in, first out.

`acquire` and `release` may be called from any thread. Rows are read and written without a lock, because each slot has
only one owner.
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
# Rows of at least this size return their pages to the system. The call takes some microseconds.
RETURN_PAGES_BYTES = 65_536
IS_LINUX = sys.platform == "linux"  # elsewhere the pages would not read as zeros
BOOKKEEPING_BYTES = 16  # per slot: its generation and its entry in the free list


class StateField(NamedTuple):
    """Shape and dtype of a field of a slot."""

    shape: tuple[int, ...]
    dtype: DTypeLike


class PoolSlot(NamedTuple):
    """Handle of an acquired pool slot. Slots in use have odd generations."""

    row: int
    generation: int


class PoolFull(RuntimeError):
    """Raised if all slots are in use."""


class StaleSlot(RuntimeError):
    """Raised if the slot of a handle has been released."""


class StatePool:
    """A pool of slots for the state of streams.

    Args:
        fields: Mapping from names to fields of a slot.
        capacity: Number of slots.
    """

    def __init__(self, fields: Mapping[str, StateField], capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self._fields = {name: _FieldRows(capacity, field) for name, field in fields.items()}
        self.arrays: dict[str, Array] = {name: rows.array for name, rows in self._fields.items()}
        # These arrays are in separate pages, because zeroing with NumPy would allocate memory for unused slots.
        self._generations, self._free = (_FieldRows(capacity, StateField((), np.int64)).array for _ in range(2))
        self._free_count = 0  # number of released slots, which form a stack
        self._untouched = 0  # first slot that was never acquired
        self._lock = threading.Lock()

    @property
    def in_use(self) -> int:
        """Number of slots in use."""
        return self._untouched - self._free_count

    @property
    def host_bytes_per_slot(self) -> int:
        """Main memory in bytes that a slot takes once it has been used."""
        return sum(array.nbytes for array in self.arrays.values()) // self.capacity + BOOKKEEPING_BYTES

    @property
    def touched_bytes(self) -> int:
        """Upper bound on the main memory of all slots that have been used, in bytes."""
        return self._untouched * self.host_bytes_per_slot

    def acquire(self) -> PoolSlot:
        """Reserve a slot, whose fields are zero, and return its handle.

        Raises:
            PoolFull: If all slots are in use.
        """
        with self._lock:
            if self._free_count:
                self._free_count -= 1
                row = int(self._free[self._free_count])
                self._clear(row)
            elif self._untouched < self.capacity:
                row = self._untouched
                self._untouched += 1
            else:
                raise PoolFull(f"all {self.capacity} pool slots are in use")
            self._generations[row] += 1
            return PoolSlot(row, int(self._generations[row]))

    def release(self, slot: PoolSlot) -> None:
        """Set a slot to zero and release it.

        Raises:
            StaleSlot: If the slot was already released.
        """
        with self._lock:
            self._check(slot)
            self._clear(slot.row)
            self._generations[slot.row] += 1
            self._free[self._free_count] = slot.row
            self._free_count += 1

    def rows(self, slots: Sequence[PoolSlot]) -> Array:
        """Return the row numbers of the given slots, which index `arrays`.

        Raises:
            StaleSlot: If a slot was released.
            ValueError: If a slot occurs twice. Its results would overwrite each other.
        """
        handles = np.fromiter(itertools.chain.from_iterable(slots), np.int64, 2 * len(slots)).reshape(-1, 2)
        rows = np.ascontiguousarray(handles[:, 0])
        is_current = self._generations[rows] == handles[:, 1]
        if not is_current.all():
            raise StaleSlot(f"slot {slots[int(np.argmin(is_current))]} was already released")
        if len(set(slots)) != len(slots):
            raise ValueError("a slot occurs twice in the same batch")
        return rows

    def are_current(self, rows: Array, generations: Array) -> Array:
        """Return whether each handle is valid. Handles are passed as arrays of rows and generations."""
        is_row = (rows >= 0) & (rows < self.capacity)
        found: Array = is_row & (self._generations[np.where(is_row, rows, 0)] == generations)
        return found

    def read(self, slot: PoolSlot) -> dict[str, Array]:
        """Return copies of the fields of a slot.

        Raises:
            StaleSlot: If the slot was released.
        """
        self._check(slot)
        return {name: array[slot.row].copy() for name, array in self.arrays.items()}

    def write(self, slot: PoolSlot, values: Mapping[str, Array | float]) -> None:
        """Set some fields of a slot. `values` maps the names of these fields to their values.

        Raises:
            StaleSlot: If the slot was released.
        """
        self._check(slot)
        for name, value in values.items():
            self.arrays[name][slot.row] = value

    def copy(self, source: PoolSlot, target: PoolSlot) -> None:
        """Copy the fields of a slot to another slot.

        Raises:
            StaleSlot: If a slot was released.
        """
        self._check(source)
        self._check(target)
        for array in self.arrays.values():
            array[target.row] = array[source.row]

    def _check(self, slot: PoolSlot) -> None:
        if self._generations[slot.row] != slot.generation:
            raise StaleSlot(f"slot {slot} was already released")

    def _clear(self, row: int) -> None:
        for rows in self._fields.values():
            rows.clear(row)


class _FieldRows:
    """The array of one field, in separate memory pages.

    Args:
        capacity: Number of rows.
        field: Shape and dtype of a row.
    """

    def __init__(self, capacity: int, field: StateField) -> None:
        dtype = np.dtype(field.dtype)
        size = capacity * math.prod(field.shape) * dtype.itemsize
        # The map is private, because pages of a shared map would not be released.
        self._pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = np.frombuffer(self._pages, dtype, size // dtype.itemsize).reshape(capacity, *field.shape)
        self._stride = self.array.strides[0] if capacity else 0

    def clear(self, row: int) -> None:
        """Set a row to zero. If the row is large, its memory pages are returned to the operating system."""
        begin, end = row * self._stride, (row + 1) * self._stride
        first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if not IS_LINUX or last - first < RETURN_PAGES_BYTES:
            self.array[row] = 0
            return
        self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)
        self._pages[begin:first] = bytes(first - begin)
        self._pages[last:end] = bytes(end - last)


class DoubleBufferedPool(StatePool):
    """A pool whose slots have two rows each. One row contains the state, and the next state is written to the other.

    Subclasses own the arrays. `swap` makes the next state the current one. A next state may be discarded, because it is
    not finite or its batch failed. In this case, it has not overwritten the state.

    Args:
        capacity: Number of slots. Slot i has the rows 2i and 2i + 1.
        fields: Fields of a slot, without the index of its current row.
    """

    def __init__(self, capacity: int, fields: Mapping[str, StateField] | None = None) -> None:
        super().__init__({"half": StateField((), np.int64), **(fields or {})}, capacity)

    def current_rows(self, slots: Sequence[PoolSlot]) -> Array:
        """Return the rows that contain the states of slots.

        Raises:
            StaleSlot: If a slot was released.
            ValueError: If a slot occurs twice.
        """
        rows = self.rows(slots)
        current: Array = 2 * rows + self.arrays["half"][rows]
        return current

    def next_rows(self, slots: Sequence[PoolSlot]) -> Array:
        """Return the rows to which the next states of slots are written. The errors are those of `current_rows`."""
        following: Array = self.current_rows(slots) ^ 1
        return following

    def swap(self, slot: PoolSlot) -> None:
        """Make the next state of a slot the current one.

        Raises:
            StaleSlot: If the slot was released.
        """
        self._check(slot)
        self.arrays["half"][slot.row] ^= 1
