"""A filter whose slots carry the mark of their owner: whoever finds another's mark has found a leak."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rfa.service.engine.filter.model import Row, Stepped
from rfa.service.runtime.filter import FilterRuntime
from rfa.service.runtime.filter_state import FilterState
from rfa.service.runtime.pool import Slot, StateField, StatePool

MARK = "owner"


class WatchedFilter:
    """A runtime between the engine and the real one.

    An owner's mark is written when it gets its slot, into a field that the runtime does not know, and looked at before
    and after every use of the slot. A slot that is handed out must hold nothing at all.

    Attributes:
        acquired: slots that were handed out.
        leaks: what was found that must not be, by kind.
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
        """The runtime's, and the mark."""
        return {**self.runtime.state_fields, MARK: StateField((), np.int64)}

    def put(self, pool: StatePool, slot: Slot, state: FilterState) -> None:
        """A new owner: the slot must be empty."""
        is_empty = not any(array[slot.row].any() for array in pool.arrays.values())
        with self._lock:
            self.pool = pool
            self.acquired += 1
            self.leaks["a slot was not empty"] += not is_empty
        self.runtime.put(pool, slot, state)
        pool.arrays[MARK][slot.row] = _mark(slot)

    def get(self, pool: StatePool, slot: Slot, seed: int) -> FilterState:
        """The state in a slot, which must be its owner's."""
        self._look(pool, [slot])
        return self.runtime.get(pool, slot, seed)

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """One observation of each row."""
        slots = [row.slot for row in rows]
        self._look(pool, slots)
        stepped = self.runtime.advance(pool, rows)
        self._look(pool, slots)
        return stepped

    def _look(self, pool: StatePool, slots: Sequence[Slot]) -> None:
        marks = pool.arrays[MARK][[slot.row for slot in slots]]
        strange = int(np.count_nonzero(marks != [_mark(slot) for slot in slots]))
        if strange:
            with self._lock:
                self.leaks["a slot had another owner's mark"] += strange


def _mark(slot: Slot) -> int:
    """A number of this owner alone; never zero, for generations in use are odd."""
    return (slot.row << 40) | slot.generation


def dirty_bytes(pool: StatePool) -> int:
    """Bytes other than zero in a pool."""
    return sum(int(np.count_nonzero(array.reshape(-1).view(np.uint8))) for array in pool.arrays.values())
