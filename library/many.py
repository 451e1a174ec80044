"""Filter many series whose states are stored in one pool, with `rfa.Streams`. Compiled code processes one batch of rows
at a time.

A batch may contain rows of any series in any order, as long as the rows of each series are sorted by time. The results
of each series equal those of `rfa.filter` for this series alone, bit for bit, however its rows are split into batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from rfa.library.models import find_model, notify_on_compile
from rfa.library.options import LEVELS, AlarmRule, OutputOptions
from rfa.library.spans import Span
from rfa.library.state_bytes import describe, split_description
from rfa.runtime.filters.late import split_state
from rfa.runtime.filters.state import FilterState
from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import PoolSlot, StaleSlot, StatePool
from rfa.runtime.uncertainty.input import LARGEST_OBSERVATION, LARGEST_TIME
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import limit_outputs

Array = np.ndarray
LIMIT: Final = 100_000
# Rows per call of a kernel, so that their outputs stay in the cache.
BLOCK_ROWS: Final = 2048
# A handle is the generation of its slot, followed by the row of the pool in the lower bits.
_ROW_BITS: Final = 32
_ROW_MASK: Final = (1 << _ROW_BITS) - 1


class StreamsFull(RuntimeError):
    """Raised when a new series would exceed the maximum number of series."""


class Streams:
    """Filters many series. Each call processes a batch of observations and returns arrays of estimates.

    An object must be used from one thread at a time.

    Args:
        columns, model, levels, horizon, alarm, minimum, maximum, tz: See `rfa.Stream`. They apply to all series.
        limit: Maximum number of series.
        threads: Number of threads among which a batch is divided.

    Attributes:
        request: Outputs that each step returns.

    Raises:
        ValueError: If an argument is invalid. The message names it.
        FileNotFoundError: If the bundle does not exist.
    """

    def __init__(
        self,
        columns: int | None = None,
        *,
        model: str | Path | None = None,
        levels: Sequence[float] = LEVELS,
        horizon: Sequence[float | Span] = (),
        alarm: AlarmRule | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
        tz: str = "UTC",
        limit: int = LIMIT,
        threads: int = 1,
    ) -> None:
        if not 1 <= limit <= _ROW_MASK or threads < 1:
            raise ValueError(f"limit and threads must be at least 1, got {limit} and {threads}")
        self.request = OutputOptions.of(levels, horizon, alarm, limits=(minimum, maximum), tz=tz)
        self._model = find_model(model, columns)
        runtime = self._runtime = self._model.runtime
        self._readout = runtime.readout(self.request.levels, self.request.horizon, 0, self.request.readout)
        try:
            self._pool = StatePool(runtime.state_fields, limit)
        except OSError as error:
            raise ValueError(f"cannot allocate {limit} series of {runtime.state_bytes} bytes each: {error}") from None
        self._slots: dict[Hashable, PoolSlot] = {}
        self._seeds: dict[int, int] = {}
        # Zeros need not be written, and unused pages of the pool take no memory.
        self._initial = {name: part for name, part in runtime.start().tensors.items() if part.any()}
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads - 1, "rfa-streams") if threads > 1 else None
        self._has_run = False

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    @property
    def columns(self) -> int:
        """Number of columns of each observation."""
        return self._runtime.observation_size

    @property
    def state_bytes(self) -> int:
        """Maximum memory per series in bytes."""
        return self._pool.host_bytes_per_slot

    def handles(self, keys: Sequence[Hashable] | Array) -> Array:
        """Return an integer handle for each key, `[R]`, which `step` accepts instead of the key. For a new key, a
        series is started.

        Raises:
            StreamsFull: If there are too many series. The keys before the first one that exceeded the limit have been
                added.
        """
        slots = self._slots
        found = [slots.get(key) or self._begin(key) for key in keys]
        pairs = np.array(found, np.int64).reshape(-1, 2)
        handles: Array = pairs[:, 1] << _ROW_BITS | pairs[:, 0]
        return handles

    def step(self, keys: Sequence[Hashable] | Array, times: Any, values: Any) -> StepOutputs:
        """Filter a batch of observations. Rejected rows change no state.

        Args:
            keys: Key of the series of each row, `[R]`: any hashable values, or an integer array returned by `handles`.
            times: Time of each row, `[R]`: numbers, or `datetime64`, which is converted to seconds since 1970. Times
                must be in order within each series.
            values: Observations `[R, P]`, or `[R]` for one column. NaN marks a missing value.

        Returns:
            Arrays with one row per observation: `mean` and `std` `[R, P]`, `interval` `[R, levels, P, 2]`, `innovation`
            `[R, P]`, and `anomaly`, `confidence`, `weight`, `nis` and `alarm` (1, 0 or NaN) `[R]`. If forecasts were
            requested, they also contain `moments` (mean, std, median) `[R, H, 3, P]` and `bands` (intervals)
            `[R, H, levels, P, 2]`. `position` counts the rows of each series. `is_good` is False for a rejected row,
            whose results are NaN. A row is rejected if its time is before the last time of its series, or if a number
            is not finite or too large.

        Raises:
            ValueError: If the shapes do not match.
            StreamsFull: If there are too many series. No row was filtered.
            StaleSlot: If a handle belongs to a series that was removed.
        """
        moments, observations = _seconds(times), self._observations(values)
        rows = self._rows(keys)
        if not len(rows) == len(moments) == len(observations):
            raise ValueError(
                f"got {len(rows)} keys, {len(moments)} times and {len(observations)} values; pass one of each for "
                "every row"
            )
        if self._has_run or not len(rows):
            return self._step(rows, moments, observations)
        with notify_on_compile():
            outputs = self._step(rows, moments, observations)
        self._has_run = True
        return outputs

    def state(self, key: Hashable) -> bytes:
        """Return the state of a series as bytes, like `rfa.Stream.state`. Use `rfa.Stream.resume` or `restore` to
        continue from it.

        Raises:
            KeyError: If there is no such series.
        """
        slot = self._slots[key]
        state = self._runtime.get(self._pool, slot, self._seeds.get(slot.row, 0))
        return describe(self._model, self.request) + self._runtime.pack(state)

    def restore(self, key: Hashable, state: bytes) -> None:
        """Continue a series from a state. An existing series with the same key is replaced.

        Raises:
            ValueError: If the bytes are not a state of this model for the same number of columns, or contain a window
                for late rows.
            StreamsFull: If there are too many series.
        """
        found = self._unpacked(state)
        slot = self._slots.get(key) or self._begin(key)
        self._runtime.put(self._pool, slot, found)
        self._seeds[slot.row] = found.seed

    def remove(self, keys: Sequence[Hashable]) -> None:
        """Remove series to free their memory for others.

        Raises:
            KeyError: If there is no such series.
        """
        for key in keys:
            slot = self._slots.pop(key)
            self._seeds.pop(slot.row, None)
            self._pool.release(slot)

    def count(self, key: Hashable) -> int:
        """Return the number of observations of a series so far.

        Raises:
            KeyError: If there is no such series.
        """
        return int(self._pool.arrays["clock.count"][self._slots[key].row])

    def _begin(self, key: Hashable) -> PoolSlot:
        if len(self._slots) == self._pool.capacity:
            raise StreamsFull(
                f"there are already {self._pool.capacity} series, which is the limit; remove some series, or increase "
                "limit"
            )
        slot = self._slots[key] = self._pool.acquire()
        self._pool.write(slot, self._initial)
        return slot

    def _unpacked(self, state: bytes) -> FilterState:
        description, payload = split_description(state)
        expected = self._model.name, self._model.digest, self.columns
        of = description if isinstance(description, Mapping) else {}
        if (of.get("model"), of.get("digest"), of.get("columns")) != expected or of.get("known"):
            raise ValueError(
                f"the state does not belong to model {expected[0]!r} with {self.columns} columns; add the series "
                "without a state"
            )
        packed, window = split_state(payload, self._runtime)
        if window:
            raise ValueError(
                "the state contains a window for late rows, which rfa.Streams does not support; continue it with "
                "rfa.Stream"
            )
        return self._runtime.unpack(packed)

    def _rows(self, keys: Sequence[Hashable] | Array) -> Array:
        """Return the pool slot of each key or handle."""
        if not (isinstance(keys, np.ndarray) and keys.dtype.kind == "i"):
            return self.handles(keys) & _ROW_MASK
        handles = keys.astype(np.int64, copy=False)
        rows = handles & _ROW_MASK
        is_current = self._pool.are_current(rows, handles >> _ROW_BITS)
        if not is_current.all():
            raise StaleSlot(
                f"keys[{int(is_current.argmin())}] is not the handle of a series; use the handles that `handles` "
                "returns"
            )
        return rows

    def _observations(self, values: Any) -> Array:
        found = np.asarray(values, np.float64)
        if found.ndim == 1 and self.columns == 1:
            found = found[:, None]
        if found.ndim != 2 or found.shape[1] != self.columns:
            raise ValueError(f"values must have {self.columns} columns, got shape {found.shape}")
        return found

    def _step(self, rows: Array, times: Array, values: Array) -> StepOutputs:
        with np.errstate(invalid="ignore"):
            is_valid = (np.abs(times) <= LARGEST_TIME) & ~(np.abs(values) > LARGEST_OBSERVATION).any(axis=1)
        outputs = StepOutputs.allocate(len(rows), self.columns, self._readout)
        outputs = outputs._replace(tally=np.empty((len(rows), 0)))
        order = None
        if not is_valid.all() or (rows[1:] < rows[:-1]).any():
            order = np.flatnonzero(is_valid)
            order = order[np.argsort(rows[order], kind="stable")]
            rows, times, values = rows[order], times[order], values[order]
        work = _Work(rows, times, values, order, outputs)
        first, *others = self._parts(rows)
        futures = [self._executor.submit(self._filter, work, part) for part in others] if self._executor else []
        try:
            self._filter(work, first)
        finally:
            for future in futures:
                future.result()
        _clear_refused(outputs)
        limit_outputs(outputs, self._readout.options.range)
        return outputs

    def _parts(self, rows: Array) -> list[slice]:
        """Split sorted rows into one part per thread. Each part contains whole series."""
        cuts = [len(rows) * k // self._threads for k in range(1, self._threads)]
        bounds = [0, *(int(np.searchsorted(rows, rows[cut])) if len(rows) else 0 for cut in cuts), len(rows)]
        return [slice(begin, end) for begin, end in itertools.pairwise(bounds)]

    def _filter(self, work: _Work, part: slice) -> None:
        """Filter sorted rows in blocks. A row whose results are not finite is rejected, and the later rows of its
        series are filtered again."""
        for first in range(part.start, part.stop, BLOCK_ROWS):
            index = np.arange(first, min(first + BLOCK_ROWS, part.stop))
            while len(index):
                index = index[self._in_order(work.rows[index], work.times[index])]
                index = self._filter_block(work, index)

    def _filter_block(self, work: _Work, index: Array) -> Array:
        """Filter one block of rows. Return the rows that must be filtered again."""
        rows = work.rows[index]
        batch = Batch(rows, work.times[index], work.values[index], np.ones(len(index)))
        found, _ = self._runtime.step(self._pool, batch, self._readout, traced=False)
        target = index if work.order is None else work.order[index]
        for name, column in found._asdict().items():
            if name != "tally":
                getattr(work.outputs, name)[target] = column
        bad = np.flatnonzero(~found.is_good)
        if not len(bad):
            return bad
        series, firsts = np.unique(rows[bad], return_index=True)
        again = np.concatenate(
            [index[bad[first] + 1 :][rows[bad[first] + 1 :] == one] for one, first in zip(series, firsts, strict=True)]
        )
        return again

    def _in_order(self, rows: Array, times: Array) -> Array:
        """Return whether the time of each row is not before the times of the accepted rows of its series."""
        counts, last = self._pool.arrays["clock.count"], self._pool.arrays["clock.time"]
        before = np.empty(len(rows))
        before[1:] = times[:-1]
        begins = np.flatnonzero(np.diff(rows, prepend=-1))
        of_series = rows[begins]
        before[begins] = np.where(counts[of_series] > 0, last[of_series], -np.inf)
        is_taken: Array = times >= before
        if not is_taken.all():
            for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True):
                reach = np.maximum.accumulate(np.append(before[begin], times[begin:end]))
                is_taken[begin:end] = times[begin:end] >= reach[:-1]
        return is_taken


class _Work:
    """Valid rows of a batch, sorted by series. `order` contains their positions in the batch, or is None if the batch
    was already sorted."""

    def __init__(self, rows: Array, times: Array, values: Array, order: Array | None, outputs: StepOutputs) -> None:
        self.rows, self.times, self.values, self.order, self.outputs = rows, times, values, order, outputs


def _seconds(times: Any) -> Array:
    """Convert times to numbers. Dates become seconds since 1970, and missing times become NaN."""
    found = np.asarray(times)
    if found.dtype.kind == "M":
        seconds: Array = (found - np.datetime64(0, "s")) / np.timedelta64(1, "s")
        return seconds
    try:
        return found.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise ValueError(f"times must be numbers or dates, got {found.dtype}") from None


def _clear_refused(outputs: StepOutputs) -> None:
    """Set the results of rejected rows to NaN, and their position to -1."""
    refused = np.flatnonzero(~outputs.is_good)
    if len(refused):
        for name, column in outputs._asdict().items():
            if name != "is_good":
                column[refused] = -1 if name == "position" else np.nan
