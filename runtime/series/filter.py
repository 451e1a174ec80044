"""The model of any series: a trained network that forecasts, and a robust filter.

Each column is a stream of the network (`rfa.model.series`). Its quantiles at the next row's cell are the prior of the
filter (`update_numba.py`). Forecasts are the network's quantiles: the mean is the median, and the widths above and
below it are each multiplied by the conformal factor of their horizon and level (`adaptive.py`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import NormalDist
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, check_golden
from rfa.runtime.choices import Mode
from rfa.runtime.compiling import CompileTask, disable_compilation
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import auto
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.steps import Batch, Traced, allocate_trace, streams_of
from rfa.runtime.handles import Handle
from rfa.runtime.kernel_calls import Entry
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.series import decoder_numba
from rfa.runtime.series import rows as row_kernels
from rfa.runtime.series.buffer_pool import MAX_BYTES, BufferPool
from rfa.runtime.series.chunk import TOKENS, finish, prepare
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.covariates import Regression
from rfa.runtime.series.decoder_numba import SeriesDecoder
from rfa.runtime.series.device import Call, SeriesDevice, run_on_device
from rfa.runtime.series.leads import FARTHEST
from rfa.runtime.series.mixture import StoredMixture, mixture_fields
from rfa.runtime.series.mixture_layout import EXPERTS
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
from rfa.runtime.series.session import NETWORK, SeriesSession
from rfa.runtime.series.stream_arrays import StoredStreams, stored_shapes, stored_streams
from rfa.runtime.series.stream_numba import LARGEST_VALUE, commit
from rfa.runtime.series.work import count_cells, row_work
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.input import MOST_COVARIATES
from rfa.runtime.uncertainty.interface import Piece, reply_rows
from rfa.runtime.uncertainty.scoring import scoring_entry
from rfa.runtime.uncertainty.step_outputs import Scorer, StepOutputs
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray
MAGIC: Final = b"RFAS\x04"
# The mixture of the network and simple experts, by name, and the first bytes of its states.
MIXTURE: Final = "default"
MIXED_MAGIC: Final = b"RFAM\x05"
MOST_COLUMNS: Final = 64
PREFIX: Final = "series."
CLOCK, MEANS, PRECISIONS = (f"{PREFIX}{name}" for name in ("clock", "means", "precisions"))
# Horizons whose errors are scored, in typical lags, and pending forecasts of each.
HORIZONS: Final = (1.0, 1.0, 4.0, 16.0, 64.0, 256.0)
MAX_PENDING: Final = 16
# How fast intervals follow a stream's errors. The network knows their widths: on synthetic series held out for
# validation, a quarter of the rate of other filters has a lower pinball loss, at the same coverage.
RATE: Final = 0.25
CALIBRATED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Rows of a piece: about 20 ms compiled. With the network on a device it has four times as many.
ROWS: Final = 256
# Tokens of a call of the network, over all streams and columns.
TOGETHER: Final = 64
# Of up to 90 kB each, for each number of columns.
KEPT_READOUTS: Final = 16


def calibration() -> dict[str, Any]:
    """The calibration of a new stream: the network's own quantiles."""
    quantiles = [NormalDist().inv_cdf((1 + level) / 2) for level in CALIBRATED]
    horizons = list(HORIZONS[1:])
    document = auto.calibration()
    return {
        **document,
        "levels": list(CALIBRATED),
        "state": {"variance_scale": 1.0, "multipliers": quantiles},
        "forecast": {
            "own_steps": True, "horizons": horizons, "multipliers": [quantiles] * len(horizons),
            "variance_scale": [1.0] * len(horizons),
        },
    }  # fmt: skip


class NetworkSteps:
    """Steps of the network for some columns; see `FilterSteps`.

    Args:
        device: where long pieces of a series go; None: nowhere.
        is_mixed: whether forecasts are those of the mixture (`mixture_numba.py`).
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
        self._weights = Handle(decoder.weights)
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
        # Views: of 64 columns the arrays would take 3 MB.
        self.initial: Mapping[str, Array] = {
            name: np.broadcast_to(first.get(name, np.zeros((), field.dtype)), field.shape)
            for name, field in self.fields.items()
        }

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """See `FilterSteps`."""
        count = len(batch.slots)
        begins = np.flatnonzero(np.diff(batch.slots, prepend=-1)) if count > 1 else np.zeros(count, np.int64)
        ends = _first_invalid(batch.values, begins, np.append(begins[1:], count))
        call = self._call(pool, batch, readout, traced=traced)
        if self.device is not None and len(begins) == 1 and self.size * int(ends[0]) >= self.device.least_tokens:
            if run_on_device(self.device, self, call, int(ends[0])):
                return call.outputs, call.trace
            call = self._call(pool, batch, readout, traced=traced)
        packed = batch.packed()
        most_streams = max(1, TOGETHER // self.size)
        for first in range(0, len(begins), most_streams):
            part = slice(first, first + most_streams)
            self._process(call, packed, begins[part].copy(), ends[part].copy())
        return call.outputs, call.trace

    def _call(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> Call:
        count, horizon = len(batch.slots), len(readout.horizon)
        outputs = StepOutputs.allocate(count, self.size, readout)
        trace = allocate_trace(count if traced else 0, self.size, self.size, 0, horizon)
        return Call(pool, batch, readout, outputs, trace)

    def _process(
        self, call: Call, packed: tuple[Array, ...], cursors: Array, ends: Array, *, with_outputs: bool = True
    ) -> None:
        """Process the rows of some streams from their cursors to their ends.

        Of a stream with an invalid row, those before it are processed and the others left out.
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
        """All that rows of so many streams need, in buffers for up to twice as many streams and rows."""
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
            entries = _entries(of_pool.arrays, readout, self.horizons, buffers)
            return buffers, _HandleCache(self._weights, Handle(buffers), entries)

        with self.buffers.borrow(shape, make) as (buffers, cache):
            handles, handle = cache.handle_of(of_pool.handle, options)
            yield _Borrowed(handles, handle, of_pool.arrays.stored, buffers.tokens)

    def disable_compilation(self) -> None:
        """See `FilterSteps`."""
        kernels = [process_rows, count_cells, *((prepare, finish) if self.device is not None else ())]
        for kernel in kernels:
            disable_compilation(kernel)


def _first_invalid(values: Array, begins: Array, ends: Array) -> Array:
    """For each stream, the first row with a number that is too large for the network, or its end."""
    is_beyond = np.abs(values) > LARGEST_VALUE
    if not is_beyond.any():
        return ends
    is_bad = is_beyond.any(axis=1)
    rows = [np.flatnonzero(is_bad[one:other]) for one, other in zip(begins, ends, strict=True)]
    return np.array([one + found[0] if len(found) else end for one, found, end in zip(begins, rows, ends, strict=True)])


def _entries(pool: PoolArrays, readout: Readout, horizons: Horizons, buffers: Buffers) -> tuple[Entry, Entry]:
    """The entries that score an observation and rows, compiled at the first call of the process."""
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
    return score, score_rows.entry(arguments, score, 0)


class _PoolHandle(NamedTuple):
    arrays: PoolArrays
    handle: Handle


class _HandleCache:
    """The handle of buffers with the last pool and options, of which it keeps only the addresses."""

    def __init__(self, weights: Handle, buffers: Handle, entries: tuple[Entry, Entry]) -> None:
        self._weights, self._buffers, self._entries = weights, buffers, entries
        self._last: tuple[int, ...] = ()
        self._handle: Handle | None = None

    def handle_of(self, pool: Handle, options: Handle) -> tuple[KernelHandles, Handle]:
        """All handles, which the caller keeps as long as the handle of them that comes second."""
        handles = KernelHandles(self._weights, pool, options, self._buffers, *self._entries)
        key = pool.address, options.address, id(pool.kind), id(options.kind)
        if self._handle is None or key != self._last:
            self._handle, self._last = Handle(handles, keeps=False), key
        return handles, self._handle


class _Borrowed(NamedTuple):
    """Handles for compiled code, and the arrays behind them that Python reads."""

    handles: KernelHandles
    handle: Handle
    stored: StoredStreams
    tokens: TokenBuffers


class SeriesRuntime(FilterRuntime):
    """A trained network for some columns, ready to run.

    Args:
        name, digest: of the bundle.
        decoder: the network.
        size: columns, at most MOST_COLUMNS.
        buffers: that the network works in; None for its own.
        device: where long pieces of a series are computed; None: on the CPU.
        known: number of columns that are known ahead.
        is_mixed: whether forecasts are those of the mixture of the network and simple experts.
    """

    has_own_steps = True
    suits_any = True
    farthest = FARTHEST

    def __init__(
        self, name: str, digest: str, decoder: SeriesDecoder, size: int = 1, buffers: BufferPool | None = None,
        device: SeriesDevice | None = None, *, is_mixed: bool = False, covariates: int = 0,
    ) -> None:  # fmt: skip
        self.digest, self.decoder, self._is_mixed = digest, decoder, is_mixed
        self.passes, self.experts = PassesRange(1, 1), EXPERTS if is_mixed else ()
        self._describe(name, "series", np.eye(size), np.zeros(size))
        horizons = Horizons.of(HORIZONS, in_steps=True, max_pending=MAX_PENDING, rate=RATE)
        self.buffers, self.device = buffers or BufferPool(), device
        steps = NetworkSteps(decoder, size, horizons, self.buffers, device, is_mixed=is_mixed)
        self.covariates, regression = covariates, Regression(size, covariates) if covariates else None
        calibrations: dict[Mode, Calibration] = {"recurrent": Calibration(calibration())}
        self._set_up(calibrations, steps, horizons, regression, sides=2, readouts=KEPT_READOUTS)
        # For other numbers of columns, as long as they are used.
        self._sized: WeakValueDictionary[tuple[int, int], SeriesRuntime] = WeakValueDictionary(
            {(size, covariates): self}
        )

    @property
    def own_bytes(self) -> int:
        """See `FilterRuntime`: a stream's state, which is large with many columns."""
        return self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """See `FilterRuntime`: buffers, which the mixture shares with its network."""
        return 0 if self._is_mixed else MAX_BYTES

    def weight(self, cost: int, t: float, state: Callable[[str], Array | None]) -> int:
        """See `FilterRuntime`."""
        clock = state(CLOCK)
        if clock is None:
            return cost * self.observation_size
        return math.ceil(row_work(clock, np.array([t]), cost, self.observation_size)[0])

    def cut(self, pool: StatePool, piece: Piece, most: int) -> Piece:
        """See `FilterRuntime`."""
        clock = pool.arrays[CLOCK][piece.slot.row]
        work = row_work(clock, piece.times, reply_rows(piece.readout), self.observation_size).cumsum()
        return piece.part(slice(max(1, int(np.searchsorted(work, most, side="right")))))

    def sized(self, size: int) -> SeriesRuntime:
        """The same model for another number of columns.

        Raises:
            InvalidInput: they are too many.
        """
        if size > MOST_COLUMNS:
            message = f"model {self.name!r} takes up to {MOST_COLUMNS} columns at a time, not {size}: send some of them"
            raise InvalidInput(message, param="observations", code="too_large")
        return self._variant(size, self.covariates)

    def with_covariates(self, count: int) -> SeriesRuntime:
        """See `FilterRuntime`."""
        if count > MOST_COVARIATES:
            message = f"at most {MOST_COVARIATES} columns that are known ahead are taken, not {count}"
            raise InvalidInput(message, param="known", code="too_large")
        return self._variant(self.observation_size, count)

    def _variant(self, size: int, covariates: int) -> SeriesRuntime:
        found = self._sized.get((size, covariates))
        if found is None:
            found = self._sized[size, covariates] = SeriesRuntime(
                self.name, self.digest, self.decoder, size, self.buffers, self.device, is_mixed=self._is_mixed,
                covariates=covariates,
            )  # fmt: skip
        return found

    def mixed(self) -> SeriesRuntime:
        """The model whose forecasts are mixtures of the network's and those of simple experts, for one column."""
        digest = hashlib.sha256(MIXED_MAGIC + self.digest.encode()).hexdigest()
        return SeriesRuntime(MIXTURE, digest, self.decoder, 1, self.buffers, self.device, is_mixed=True)


def open_series(bundle: Bundle, device: SeriesDevice | None = None) -> SeriesRuntime:
    """The model of a bundle of kind "series", for one column; its `compile_tasks` come before its first request."""
    return SeriesRuntime(bundle.name, bundle.digest, SeriesDecoder.of(bundle.weights()), device=device)


def hold_to_golden(bundle: Bundle, model: SeriesRuntime) -> int:
    """Compare the network to the bundle's golden outputs; returns the number of values.

    Raises:
        BundleError: a value differs.
    """
    return check_golden(bundle, {NETWORK: SeriesSession(model.decoder)})


def compile_tasks(
    bundle: Bundle, model: SeriesRuntime, report: Callable[[int], None]
) -> tuple[list[CompileTask], list[CompileTask]]:
    """Tasks that compile the network, and the task, after them and the scoring of observations, that compiles the rest.

    Args:
        report: called with the number of golden values that the network reproduced, on its device too.
    """
    network: CompileTask = decoder_numba, lambda: report(hold_to_golden(bundle, model))
    return [network], [(row_kernels, partial(_compile_all, model))]


def _compile_all(model: SeriesRuntime) -> None:
    if model.device is not None:
        model.device.hold_to_golden()
        _run(model, model.device.least_tokens)
    for one in (model, model.with_covariates(1)):
        _run(one, 2)
    model.steps.disable_compilation()


def _run(model: SeriesRuntime, rows: int) -> None:
    model.filter(list(map(float, range(rows))), [[float(row)] for row in range(rows)], horizon=(1.0,))
