"""Exact processing of late rows, with a window of recent rows and snapshots of the stream.

For a late row, the last state before it is restored, and the rows since then are filtered again. Afterwards, the
results are those of the rows in chronological order, bit for bit. Rows with equal times keep their order of arrival.

A packed window contains its version, followed by the compressed first state (see `FilterStates.pack`) and rows (JSON).
"""

from __future__ import annotations

import json
import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from rfa.runtime.errors import InvalidInput, invalid_state
from rfa.runtime.filters.state import FilterState, FilterStates
from rfa.runtime.outputs import FilterStep, LateStep
from rfa.runtime.pool import PoolSlot
from rfa.runtime.uncertainty.input import MOST_HORIZONS
from rfa.runtime.uncertainty.interface import Row, Stepped

# Maximum number of rows that a late row may go back.
MOST_BACK: Final = 512
# Maximum number of stored rows: those that a late row may go back, and those since the snapshot before them. If a
# stream continues from more than `REPLAYED` rows, they are filtered again to restore the snapshots in between.
MOST_KEPT: Final = 1_200
REPLAYED: Final = 640
MOST_SNAPSHOTS: Final = 10
# Number of rows between the newest snapshots, for rows that were filtered again and for rows in order. Older snapshots
# are further apart.
SNAPSHOT_ROWS: Final = 8
ORDERED_ROWS: Final = 64
_OWN_FIELDS: Final = frozenset({"slot", "readout", "seed"})  # fields of a stream, not of a row
_ROW_FIELDS: Final = tuple(name for name in Row._fields if name not in _OWN_FIELDS)
_NOWHERE: Final = PoolSlot(0, 0)
_MAGIC: Final = b"RFAL\x01"
# Bytes of a stored row, bytes of a number in it, and characters of a number in JSON.
_ROW_BYTES, _NUMBER_BYTES, _NUMBER_CHARACTERS = 700, 40, 26


class Snapshot(NamedTuple):
    """State of a stream between two rows.

    Attributes:
        place: Number of rows of the window before the snapshot.
        state: State of the filter.
        totals: Sums over the stream so far, such as its log-likelihood.
    """

    place: int
    state: FilterState
    totals: Any


class _KeptRow(NamedTuple):
    row: Row
    is_counted: bool  # whether the totals include it


class LateWindow:
    """A window with the rows of the last `length` units of time, and snapshots of the stream.

    After `add`, filter `next_row` and pass its result to `accept` as long as `is_behind` is true. Then `take_answer`
    returns the result.

    Args:
        length: Length of the window, in the unit of the times.
        first: Snapshot before the first row.
    """

    def __init__(self, length: float, first: Snapshot) -> None:
        self.length = length
        self._rows: list[_KeptRow] = []
        self._times: list[float] = []
        self._snapshots = [first]
        self._next = 0  # rows before this one are included in the state
        self._added = -1
        self._answer: FilterStep | InvalidInput | None = None
        self._recomputed = 0

    @property
    def is_behind(self) -> bool:
        """Whether rows must be filtered before the state includes all rows."""
        return self._next < len(self._rows)

    @property
    def count(self) -> int:
        """Number of observations of the stream."""
        return self._snapshots[0].state.count + len(self._rows)

    @property
    def first_state(self) -> FilterState:
        """State before the first row of the window."""
        return self._snapshots[0].state

    @property
    def newest(self) -> float:
        """Time of the last row. It is minus infinity before the first row."""
        state = self._snapshots[0].state
        return self._times[-1] if self._times else state.time if state.count else -math.inf

    @property
    def next_row(self) -> Row:
        """The row to filter next. The caller must set its pool slot, readout and seed."""
        return self._rows[self._next].row

    @property
    def is_next_new(self) -> bool:
        """Whether `next_row` is the added row, rather than a row that is filtered again."""
        return self._next == self._added

    @property
    def is_counted(self) -> bool:
        """Whether the totals include `next_row`. They exclude rows from before a restored state."""
        return self._rows[self._next].is_counted

    def add(self, row: Row, *, param: str = "t", is_counted: bool = True) -> Snapshot | None:
        """Insert a row into the window according to its time.

        Args:
            row: The row.
            param: Field that contains its time, for messages.
            is_counted: Whether the totals include the row.

        Returns:
            The snapshot to restore if the row is late. Otherwise, None.

        Raises:
            InvalidInput: If the row is older than the window (code `too_late`) or equals an earlier row (code
                `repeated`).
        """
        place = bisect_right(self._times, row.t)
        if row.t < self.newest:
            self._check_late(row.t, place, param)
        for kept in self._rows[bisect_left(self._times, row.t) : place]:
            if _inputs_of(kept.row) == _inputs_of(row):
                raise InvalidInput(
                    f"{param} and all values are equal to those of an earlier row; send each row only once",
                    param=param,
                    code="repeated",
                )
        is_late = place < len(self._rows)
        self._rows.insert(place, _KeptRow(row, is_counted))
        self._times.insert(place, row.t)
        self._added, self._recomputed = place, len(self._rows) - 1 - place
        if not is_late:
            return None
        while self._snapshots[-1].place > place:
            self._snapshots.pop()
        self._next = self._snapshots[-1].place
        return self._snapshots[-1]

    def append(self, row: Row, snapshot: Callable[[int], Snapshot]) -> None:
        """Append a row that the state and the totals already include. This is faster than `add` for rows in order.

        Args:
            row: The row.
            snapshot: Function that creates a snapshot. See `accept`.
        """
        self._rows.append(_KeptRow(row, True))
        self._times.append(row.t)
        self._next += 1
        if self._next - self._snapshots[-1].place >= ORDERED_ROWS:
            self._snapshots.append(snapshot(self._next))
            self._thin_out()
            self._forget()

    def _check_late(self, t: float, place: int, param: str) -> None:
        oldest, first = self._times[-1] - self.length if self._times else math.inf, self._snapshots[0].state
        if t >= oldest and len(self._times) - place <= MOST_BACK and not (first.count and t < first.time):
            return
        message = (
            f"{param} is before the window for late rows; a row may be at most {self.length:g} older than the newest "
            f"time, and at most {MOST_BACK} rows may follow it"
        )
        raise InvalidInput(message, param=param, code="too_late")

    def accept(self, stepped: Stepped | None, error: InvalidInput | None, snapshot: Callable[[int], Snapshot]) -> None:
        """Accept the result of `next_row`. A row with an error is removed from the window.

        Args:
            stepped: Result of the row. None if it has an error.
            error: Reason why the row is invalid. None if it is valid.
            snapshot: Function that creates a snapshot of the stream. Its argument is the number of rows before the
                snapshot.
        """
        is_new = self.is_next_new
        if is_new:
            self._answer = error if stepped is None else stepped.step
        if stepped is None:
            del self._rows[self._next], self._times[self._next]
            self._added = -1 if is_new else self._added - (self._next < self._added)
        else:
            self._next += 1
            if self._next - self._snapshots[-1].place >= SNAPSHOT_ROWS:
                self._snapshots.append(snapshot(self._next))
                self._thin_out()
        if not self.is_behind:
            self._forget()

    def take_answer(self) -> FilterStep | InvalidInput | None:
        """Return the step of the added row, or its error, after all rows have been filtered. Return None if there is no
        result."""
        answer, self._answer = self._answer, None
        if self._recomputed and isinstance(answer, FilterStep):
            return LateStep(**{"weights": None, **vars(answer)}, late=True, recomputed=self._recomputed)
        return answer

    def _thin_out(self) -> None:
        """Remove one snapshot if there are too many. It is the one whose removal adds the least work for late rows,
        relative to its distance from the newest row."""
        if len(self._snapshots) <= MOST_SNAPSHOTS:
            return
        index = [snapshot.place for snapshot in self._snapshots]

        def loss(k: int) -> float:
            gap = index[k + 1] - index[k - 1]
            return math.inf if gap > MOST_BACK else gap / (index[-1] - index[k + 1] + SNAPSHOT_ROWS)

        del self._snapshots[min(range(1, len(index) - 1), key=loss)]

    def _forget(self) -> None:
        """Remove rows and snapshots that no late row can need."""
        oldest = self._times[-1] - self.length if self._times else -math.inf
        keep = max(bisect_right(self._times, oldest), len(self._times) - MOST_BACK)
        dropped = 0
        while len(self._snapshots) > 1 and self._snapshots[1].place <= keep:
            self._snapshots.pop(0)
            dropped = self._snapshots[0].place
        if dropped:
            self._snapshots = [snapshot._replace(place=snapshot.place - dropped) for snapshot in self._snapshots]
            del self._rows[:dropped], self._times[:dropped]
            self._next -= dropped

    # Conversion to bytes.

    def pack(self, states: FilterStates) -> bytes:
        """Return the rows and the first snapshot as bytes. The other snapshots can be created again from them."""
        if not self.is_behind:
            self._forget()
        rows = [_inputs_of(kept.row) for kept in self._rows]
        content = states.pack(self._snapshots[0].state) + json.dumps(rows, default=_as_list).encode()
        return _MAGIC + zlib.compress(content, 1)

    @classmethod
    def unpack(cls, data: bytes, states: Any, length: float, totals: Any) -> LateWindow:
        """Create a window from packed bytes. Its totals do not include the rows of the window. If `is_behind` is true,
        these rows must be filtered again from `first_state`.

        Args:
            data: Packed bytes.
            states: States of the filter, a `FilterStates`.
            length: Length of the window, in the unit of the times.
            totals: Totals before the first row.

        Raises:
            InvalidInput: If the bytes are not a window of these states.
        """
        reader = zlib.decompressobj()
        try:
            content = reader.decompress(data[len(_MAGIC) :], states.state_bytes + row_characters(states))
            if not data.startswith(_MAGIC) or not reader.eof or reader.unused_data:
                raise ValueError
            first = states.unpack(content[: states.state_bytes])
            rows = [_row_of(fields, states.observation_size) for fields in json.loads(content[states.state_bytes :])]
        except (ValueError, TypeError, zlib.error):
            raise invalid_state() from None
        window = cls(length, Snapshot(0, first, totals))
        window._rows = [_KeptRow(row, False) for row in rows]
        window._times = [row.t for row in rows]
        window._next = 0 if len(rows) > REPLAYED else len(rows)
        if window._times != sorted(window._times) or len(rows) > MOST_KEPT:
            raise invalid_state()
        return window


def split_state(payload: bytes, states: FilterStates) -> tuple[bytes, bytes]:
    """Split a packed state into the state of the stream and the packed window. If the state has no window, the packed
    window is empty."""
    size = states.state_bytes
    return (payload[:size], payload[size:]) if payload[size:].startswith(_MAGIC) else (payload, b"")


def row_characters(model: Any) -> int:
    """Return an upper bound on the number of characters of the rows of a window in JSON."""
    return MOST_KEPT * _NUMBER_CHARACTERS * _numbers_per_row(model)


def _numbers_per_row(model: Any) -> int:
    known = model.covariates * (1 + MOST_HORIZONS)
    return 12 + 2 * (model.observation_size + model.state_size) + known


def packed_bytes(model: Any) -> int:
    """Return an upper bound on the size of a packed window in bytes."""
    content = model.state_bytes + row_characters(model)
    return len(_MAGIC) + content + content // 1000 + 64


def held_bytes(model: Any) -> int:
    """Return an upper bound on the memory of a window with its rows and snapshots, in bytes."""
    return (MOST_SNAPSHOTS + 1) * model.state_bytes + MOST_KEPT * (_ROW_BYTES + _NUMBER_BYTES * _numbers_per_row(model))


def _inputs_of(row: Row) -> list[Any]:
    """Return the fields of a row by which rows are compared. Unknown future values are None, so that rows with the same
    unknown values are equal."""
    known = row.input if row.input is None else [None if x is None or math.isnan(x) else x for x in _as_list(row.input)]
    return [known if name == "input" else getattr(row, name) for name in _ROW_FIELDS]


def _as_list(values: Any) -> Any:
    if isinstance(values, np.ndarray | np.generic):
        return values.tolist()
    if isinstance(values, list | tuple):
        return values
    raise TypeError


def _row_of(fields: Any, size: int) -> Row:
    row = Row(slot=_NOWHERE, readout=None, seed=0, **dict(zip(_ROW_FIELDS, fields, strict=True)))
    if not math.isfinite(row.t) or len(row.observation or [None] * size) != size:
        raise ValueError
    return row
