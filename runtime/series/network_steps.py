"""Process rows of many streams with the series network, in compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from rfa.runtime.compiling import disable_compilation
from rfa.runtime.filters.step_call import StepCall
from rfa.runtime.filters.steps import Batch, Traced, allocate_trace, streams_of
from rfa.runtime.handles import Handle
from rfa.runtime.kernel_calls import Entry, entry_of
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.series.buffer_pool import BufferPool
from rfa.runtime.series.chunk import TOKENS, finish, prepare
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.decoder_numba import SeriesDecoder, compute_quantiles, compute_states
from rfa.runtime.series.device import SeriesDevice, run_on_device
from rfa.runtime.series.mixture import StoredMixture, mixture_fields
from rfa.runtime.series.row_buffers import (
    Buffers,
    KernelHandles,
    PoolArrays,
    RequestOptions,
    RowBuffers,
    Shape,
    TokenBuffers,
)
from rfa.runtime.series.rows import process_rows, score_rows
from rfa.runtime.series.stream_arrays import StoredStreams, stored_shapes, stored_streams
from rfa.runtime.series.stream_numba import LARGEST_VALUE, commit, next_tokens
from rfa.runtime.series.work import count_cells
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.scoring import scoring_entry
from rfa.runtime.uncertainty.step_outputs import Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray
MAGIC: Final = b"RFAS\x07"
# First bytes of states with a mixture.
MIXED_MAGIC: Final = b"RFAM\x0b"
PREFIX: Final = "series."
MEANS, PRECISIONS = (f"{PREFIX}{name}" for name in ("means", "precisions"))
# Number of rows of a piece. They take about 20 ms in compiled code. If a device runs the network, a piece has four
# times as many rows.
ROWS: Final = 256
# Maximum number of tokens per call of the network, over all streams and columns.
TOGETHER: Final = 64


class NetworkSteps:
    """Processes observations of some columns with the network. See `FilterSteps`.

    Args:
        decoder: The network.
        size: Number of columns.
        horizons: Horizons of the forecasts whose intervals adapt.
        buffers: Pool from which calls borrow their buffers.
        device: Device for long pieces of a series. If None, the CPU is used.
        is_mixed: Whether forecasts are those of the mixture (`mixture_numba.py`).
    """

    runtime = "compiled"

    def __init__(
        self, decoder: SeriesDecoder, size: int, horizons: Horizons, buffers: BufferPool, device: SeriesDevice | None,
        *, is_mixed: bool,
    ) -> None:  # fmt: skip
        self.magic = MIXED_MAGIC if is_mixed else MAGIC
        self.size, self.horizons, self.decoder = size, horizons, decoder
        self.buffers, self.device = buffers, device
        self.rows = ROWS if device is None else TOKENS
        self._pools: WeakKeyDictionary[StatePool, _PoolHandle] = WeakKeyDictionary()
        self._options: WeakKeyDictionary[Readout, Handle] = WeakKeyDictionary()
        slots, precisions = decoder.initial_means, decoder.initial_precisions
        self.fields: Mapping[str, StateField] = {
            f"{PREFIX}{name}": StateField(*field)
            for name, field in stored_shapes(size, decoder.width, slots.shape).items()
        }
        if is_mixed:
            self.fields = {**self.fields, **mixture_fields(size)}
        first = {MEANS: slots, PRECISIONS: precisions}
        # These are views, because the arrays of 64 columns would take 3 MB.
        self.initial: Mapping[str, Array] = {
            name: np.broadcast_to(first.get(name, np.zeros((), field.dtype)), field.shape)
            for name, field in self.fields.items()
        }

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        count = len(batch.slots)
        begins = np.flatnonzero(np.diff(batch.slots, prepend=-1)) if count > 1 else np.zeros(count, np.int64)
        ends = _first_invalid(batch.values, begins, np.append(begins[1:], count))
        call = StepCall.allocate(pool, batch, readout, (self.size, self.size), traced=traced)
        if self.device is not None and len(begins) == 1 and self.size * int(ends[0]) >= self.device.least_tokens:
            if run_on_device(self.device, self, call, int(ends[0])):
                return call.outputs, call.trace
            call = StepCall.allocate(pool, batch, readout, (self.size, self.size), traced=traced)
        packed = batch.packed()
        most_streams = max(1, TOGETHER // self.size)
        for first in range(0, len(begins), most_streams):
            part = slice(first, first + most_streams)
            self._process(call, packed, begins[part].copy(), ends[part].copy())
        return call.outputs, call.trace

    def _process(
        self, call: StepCall, packed: tuple[Array, ...], cursors: Array, ends: Array, *, with_outputs: bool = True
    ) -> None:
        """Process the rows of a batch of streams from their cursors to their ends.

        If a stream has an invalid row, only the rows before it are processed.
        """
        outputs, size = call.outputs, self.size
        max_rows = max(1, min(PATCH, TOGETHER // (len(cursors) * size), int((ends - cursors).max())))
        pool_rows = packed[0][np.minimum(cursors, len(packed[0]) - 1)]
        passed = np.zeros(len(cursors), np.int64)
        with self.borrow(call.pool, call.readout, len(cursors), max_rows) as borrowed:
            while True:
                tokens, rows = process_rows(
                    borrowed.handle, packed, outputs, call.trace, pool_rows, cursors, ends, passed, max_rows,
                    with_outputs,
                )  # fmt: skip
                if not rows:
                    return
                buffers = borrowed.tokens
                index, of_stream = buffers.rows.batch_row[:rows], buffers.rows.stream[:rows]
                is_bad = ~outputs.is_good[index]
                begins = buffers.begins.copy()
                lost = {
                    stream: int(index[(of_stream == stream) & is_bad].min())
                    for stream in set(of_stream[is_bad].tolist())
                }
                for stream in lost:
                    cursors[stream], buffers.is_committed[stream] = ends[stream], False
                commit(
                    borrowed.stored, pool_rows, buffers.is_committed, buffers.work, buffers.tokens, tokens,
                    buffers.last_token, buffers.states[:tokens], buffers.means[:tokens], buffers.precisions[:tokens],
                )  # fmt: skip
                for stream, bad in lost.items():
                    begin = begins[stream : stream + 1]
                    self._process(call, packed, begin, np.array([bad]), with_outputs=False)

    @contextmanager
    def borrow(self, pool: StatePool, readout: Readout, streams: int, max_rows: int) -> Iterator[_Borrowed]:
        """Provide buffers for the rows of a batch of streams during a context.

        Args:
            pool: States of the streams.
            readout: Options of the outputs.
            streams, max_rows: Numbers of streams and of rows per stream. The buffers may be sized for up to twice as
                many.
        """
        of_pool, options = self._pools.get(pool), self._options.get(readout)
        if of_pool is None:
            mixture = StoredMixture.of(pool.arrays, self.size)
            arrays = PoolArrays(stored_streams(pool.arrays, PREFIX), streams_of(pool), mixture)
            of_pool = self._pools[pool] = _PoolHandle(arrays, Handle(arrays))
        if options is None:
            content = RequestOptions(self.horizons, readout.calibration.tables, readout.spec)
            options = self._options[readout] = Handle(content)
        streams, max_rows = 1 << (streams - 1).bit_length(), 1 << (max_rows - 1).bit_length()
        shape = Shape(self.size, streams, max_rows, len(readout.horizon))

        def make() -> tuple[Buffers, _HandleCache]:
            buffers = Buffers(
                TokenBuffers.allocate(self.decoder, shape),
                RowBuffers.allocate(self.size, of_pool.arrays.scored, readout),
            )
            entries = _entries(self.decoder.handle, of_pool.arrays, readout, self.horizons, buffers)
            return buffers, _HandleCache(self.decoder.handle, Handle(buffers), entries)

        with self.buffers.borrow(shape, make) as (buffers, cache):
            handles, handle = cache.handle_of(of_pool.handle, options)
            yield _Borrowed(handles, handle, of_pool.arrays.stored, buffers.tokens)

    def disable_compilation(self) -> None:
        kernels = [process_rows, count_cells, *((prepare, finish) if self.device is not None else ())]
        for kernel in kernels:
            disable_compilation(kernel)


def _first_invalid(values: Array, begins: Array, ends: Array) -> Array:
    """Return, for each stream, the first row that contains a number too large for the network. If there is none, return
    the end of its rows."""
    is_beyond = np.abs(values) > LARGEST_VALUE
    if not is_beyond.any():
        return ends
    is_bad = is_beyond.any(axis=1)
    rows = [np.flatnonzero(is_bad[one:other]) for one, other in zip(begins, ends, strict=True)]
    return np.array([one + found[0] if len(found) else end for one, found, end in zip(begins, rows, ends, strict=True)])


def _entries(
    weights: Handle, pool: PoolArrays, readout: Readout, horizons: Horizons, buffers: Buffers
) -> tuple[Entry, ...]:
    """Return the entries of `KernelHandles`. They are compiled by the first call in the process."""
    tokens, row = buffers
    size, horizon = len(row.posterior.mean), len(readout.horizon)
    scorer = Scorer(pool.scored, horizons, readout.calibration.tables, readout.spec, row.workspace)
    batch = Batch(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, size)), np.zeros(0)).packed()
    outputs, trace = StepOutputs.allocate(0, size, readout), allocate_trace(0, size, size, 0, horizon)
    score = scoring_entry(scorer, row.posterior, outputs)
    arguments = (
        row.out, tokens.work, tokens.rows, tokens.quantiles, row.forecast, scorer, batch, outputs, trace, row.posterior,
        pool.mixture, row.mixture,
    )  # fmt: skip
    return (
        score,
        score_rows.entry(arguments, score, 0),
        entry_of(
            next_tokens, pool.stored, *batch[:3], readout.spec, tokens.begins, tokens.begins, tokens.begins, 0,
            tokens.work, tokens.tokens, tokens.queries, tokens.rows, tokens.last_token, tokens.saved_clock,
        ),
        entry_of(
            compute_states, tokens.tokens.features, tokens.tokens.ends, tokens.tokens.lags, weights, tokens.means,
            tokens.precisions, tokens.states,
        ),
        entry_of(
            compute_quantiles, tokens.states, tokens.queries.source, tokens.queries.features, weights,
            tokens.quantiles,
        ),
    )  # fmt: skip


class _PoolHandle(NamedTuple):
    arrays: PoolArrays
    handle: Handle


class _HandleCache:
    """Caches the handle of the network, its buffers, and the last pool and options. Of the last two, only the addresses
    are stored."""

    def __init__(self, weights: Handle, buffers: Handle, entries: tuple[Entry, ...]) -> None:
        self._weights, self._buffers, self._entries = weights, buffers, entries
        self._last: tuple[int, ...] = ()
        self._handle: Handle | None = None

    def handle_of(self, pool: Handle, options: Handle) -> tuple[KernelHandles, Handle]:
        """Return all handles, and one handle that refers to all of them. The caller must keep the first value alive
        while the second one is in use."""
        handles = KernelHandles(self._weights, pool, options, self._buffers, *self._entries)
        key = pool.address, options.address, id(pool.kind), id(options.kind)
        if self._handle is None or key != self._last:
            self._handle, self._last = Handle(handles, keeps=False), key
        return handles, self._handle


class _Borrowed(NamedTuple):
    """Handles for compiled code, and the arrays behind them that Python code reads."""

    handles: KernelHandles
    handle: Handle
    stored: StoredStreams
    tokens: TokenBuffers
