"""A filter that marks each slot with its user, and reports a mark of another user as a leak."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.state import FilterState
from rfa.runtime.pool import PoolSlot, StateField, StatePool
from rfa.runtime.uncertainty.interface import Piece, Row, Stepped
from rfa.runtime.uncertainty.steps import Steps

MARK = "owner"


class WatchedFilter:
    """A runtime that wraps the real one.

    The mark of a user is written when it gets its slot, into a field that the runtime does not know. It is checked
    before and after every use of the slot. An acquired slot must be empty.

    Attributes:
        acquired: Number of acquired slots.
        leaks: Leaks by kind.
    """

    def __init__(self, runtime: FilterRuntime) -> None:
        self.runtime = runtime
        self.pool: StatePool | None = None
        self.acquired = 0
        self.leaks: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    @property
    def state_fields(self) -> Mapping[str, StateField]:
        """Return the fields of the runtime and the mark."""
        return {**self.runtime.state_fields, MARK: StateField((), np.int64)}

    def put(self, pool: StatePool, pool_slot: PoolSlot, state: FilterState) -> None:
        """Store a new user. The slot must be empty."""
        is_empty = not any(array[pool_slot.row].any() for array in pool.arrays.values())
        with self._lock:
            self.pool = pool
            self.acquired += 1
            self.leaks["a slot was not empty"] += not is_empty
        self.runtime.put(pool, pool_slot, state)
        pool.arrays[MARK][pool_slot.row] = _mark(pool_slot)

    def get(self, pool: StatePool, pool_slot: PoolSlot, seed: int) -> FilterState:
        """Return the state in a slot, which must be its user's."""
        self._look(pool, [pool_slot])
        return self.runtime.get(pool, pool_slot, seed)

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """Process one observation of each row."""
        pool_slots = [row.slot for row in rows]
        self._look(pool, pool_slots)
        stepped = self.runtime.advance(pool, rows)
        self._look(pool, pool_slots)
        return stepped

    def follow(self, pool: StatePool, piece: Piece) -> Steps:
        """Process some observations of one stream."""
        self._look(pool, [piece.slot])
        steps = self.runtime.follow(pool, piece)
        self._look(pool, [piece.slot])
        return steps

    def _look(self, pool: StatePool, pool_slots: Sequence[PoolSlot]) -> None:
        marks = pool.arrays[MARK][[pool_slot.row for pool_slot in pool_slots]]
        strange = int(np.count_nonzero(marks != [_mark(pool_slot) for pool_slot in pool_slots]))
        if strange:
            with self._lock:
                self.leaks["a slot had another owner's mark"] += strange


def _mark(pool_slot: PoolSlot) -> int:
    """Return a number unique to this user. It is never zero, because generations in use are odd."""
    return (pool_slot.row << 40) | pool_slot.generation


def dirty_bytes(pool: StatePool) -> int:
    """Return the number of nonzero bytes in a pool."""
    return sum(int(np.count_nonzero(array.reshape(-1).view(np.uint8))) for array in pool.arrays.values())
