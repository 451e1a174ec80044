"""The model of any series: a trained network that predicts, and the robust filter that takes what comes.

Each column is a stream of the network (`rfa.model.series`). What it foretells of the next row, quantiles at the cell
that the row comes in, is the filter's prior: `compiled_series_rows.py` has the equations, and all that is compiled.
Forecasts are the network's at their leads: the mean is the median, and what is above and below it has its own width,
each multiplied by the conformal factor of its lead and level (`adaptive.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from rfa.runtime.bundle.bundle import Bundle, check_golden
from rfa.runtime.compiling import disable_compilation
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters import auto
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.state import FilterStates
from rfa.runtime.filters.steps import Batch, Traced, streams_of, trace_room
from rfa.runtime.handles import Handle
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.series import stream_numba
from rfa.runtime.series.chunk import TOKENS, lay_out
from rfa.runtime.series.chunk import conclude as conclude_chunk
from rfa.runtime.series.config import PATCH
from rfa.runtime.series.decoder_numba import SeriesDecoder
from rfa.runtime.series.device import SeriesDevice, follow_on
from rfa.runtime.series.leads import FARTHEST
from rfa.runtime.series.rooms import MOST_BYTES, Rooms
from rfa.runtime.series.rows import Followed, Room, RowRoom, Streamed, Taken, Wave, take
from rfa.runtime.series.session import NETWORK, SeriesSession
from rfa.runtime.series.stream_numba import LARGEST_VALUE, keep, kept_of, kept_shapes
from rfa.runtime.series.work import count_cells, row_work
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.baseline import baseline_fields
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.interface import Piece, reply_rows
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout

if TYPE_CHECKING:
    pass

Array = np.ndarray
MAGIC: Final = b"RFAS\x02"
MOST_COLUMNS: Final = 64
PREFIX: Final = "series."
# What takes longest to compile: one process does it, and the others wait.
MADE_OF: Final = stream_numba
CLOCK, MEANS, PRECISIONS = (f"{PREFIX}{name}" for name in ("clock", "means", "precisions"))
# Leads that errors are followed at, in typical lags, and forecasts of one that wait.
FOLLOWED: Final = (1.0, 1.0, 4.0, 16.0, 64.0, 256.0)
MOST_PLACES: Final = 16
# How fast their intervals follow a stream's errors: the network knows their widths, and on synthetic series that are
# kept for validation a quarter of what other filters have tells less wrong than more of it (pinball loss), at the same
# coverage.
PACE: Final = 0.25
CALIBRATED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Of a piece: compiled, they take about 20 ms; with the network on a device four times as many do.
ROWS: Final = 256
# Tokens of a wave, over all streams and columns.
TOGETHER: Final = 64
# Of up to 90 kB, for each number of columns.
KEPT_READOUTS: Final = 16


def calibration() -> dict[str, Any]:
    """What is told before a stream has taught anything: the network's own quantiles."""
    quantiles = [NormalDist().inv_cdf((1 + level) / 2) for level in CALIBRATED]
    leads = list(FOLLOWED[1:])
    document = auto.calibration()
    return {
        **document,
        "levels": list(CALIBRATED),
        "state": {"variance_scale": 1.0, "multipliers": quantiles},
        "forecast": {
            "own_steps": True, "horizons": leads, "multipliers": [quantiles] * len(leads),
            "variance_scale": [1.0] * len(leads),
        },
    }  # fmt: skip


class NetworkSteps:
    """Steps of the network for some columns; see `FilterSteps`.

    Args:
        device: where long pieces of a series go; None: nowhere.
    """

    runtime = "compiled"
    magic = MAGIC

    def __init__(
        self, decoder: SeriesDecoder, size: int, leads: Horizons, rooms: Rooms, device: SeriesDevice | None
    ) -> None:
        self.size, self.leads, self.decoder = size, leads, decoder
        self.rooms, self.device = rooms, device
        self.rows = ROWS if device is None else TOKENS
        self._weights = Handle(decoder.weights)
        # Of what others own, for as long as they do.
        self._streams: WeakKeyDictionary[StatePool, _Opened] = WeakKeyDictionary()
        self._wanted: WeakKeyDictionary[Readout, Handle] = WeakKeyDictionary()
        slots, precisions = decoder.initial_means, decoder.initial_precisions
        self.fields: Mapping[str, StateField] = {
            f"{PREFIX}{name}": StateField(*field)
            for name, field in kept_shapes(size, decoder.width, slots.shape).items()
        }
        begun = {MEANS: slots, PRECISIONS: precisions}
        # Views: of 64 columns the arrays would take 3 MB.
        self.initial: Mapping[str, Array] = {
            name: np.broadcast_to(begun.get(name, np.zeros((), field.dtype)), field.shape)
            for name, field in self.fields.items()
        }

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """See `FilterSteps`."""
        count = len(batch.seats)
        begins = np.flatnonzero(np.diff(batch.seats, prepend=-1)) if count > 1 else np.zeros(count, np.int64)
        ends = _first_bad(batch.values, begins, np.append(begins[1:], count))
        told, trace = self._room_for(count, readout, traced=traced)
        if self.device is not None and len(begins) == 1 and self.size * int(ends[0]) >= self.device.least_tokens:
            if follow_on(self.device, self, pool, batch, readout, told, trace, int(ends[0])):
                return told, trace
            told, trace = self._room_for(count, readout, traced=traced)
        call = _Call(self, pool, batch, readout, told, trace)
        together = max(1, TOGETHER // self.size)
        for first in range(0, len(begins), together):
            part = slice(first, first + together)
            call.run(begins[part].copy(), ends[part].copy())
        return told, trace

    def _room_for(self, count: int, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        told = StepOutputs.allocate(count, self.size, readout)
        return told, trace_room(count if traced else 0, self.size, self.size, 0, len(readout.horizon))

    @contextmanager
    def taken(self, pool: StatePool, readout: Readout, streams: int, most: int) -> Iterator[_Taken]:
        """All that rows of so many streams need, in a room for up to twice as many streams and rows."""
        of, wanted = self._streams.get(pool), self._wanted.get(readout)
        if of is None:
            content = Streamed(kept_of(pool.arrays, PREFIX), streams_of(pool))
            of = self._streams[pool] = _Opened(content, Handle(content))
        if wanted is None:
            wanted = self._wanted[readout] = Handle(Followed(self.leads, readout.calibration.tables, readout.spec))
        streams, most = 1 << (streams - 1).bit_length(), 1 << (most - 1).bit_length()
        key = self.size, streams, most, len(readout.horizon)

        def make() -> tuple[Room, _Gathered]:
            room = Room(
                Wave.of(self.decoder, *key),
                RowRoom.of(self.size, of.content.told, readout),
            )
            return room, _Gathered(self._weights, Handle(room))

        with self.rooms.lent(key, make) as (room, gathered):
            handles, handle = gathered.beside(of.handle, wanted)
            yield _Taken(handles, handle, of.content.kept, room.wave)

    def disable_compilation(self) -> None:
        """See `FilterSteps`."""
        disable_compilation(take)
        disable_compilation(count_cells)
        if self.device is not None:
            disable_compilation(lay_out)
            disable_compilation(conclude_chunk)


def _first_bad(values: Array, begins: Array, ends: Array) -> Array:
    """Of each stream the first row with a number that the network has no room for, or its end."""
    is_beyond = np.abs(values) > LARGEST_VALUE
    if not is_beyond.any():
        return ends
    is_bad = is_beyond.any(axis=1)
    rows = [np.flatnonzero(is_bad[one:other]) for one, other in zip(begins, ends, strict=True)]
    return np.array([one + found[0] if len(found) else end for one, found, end in zip(begins, rows, ends, strict=True)])


class _Call:
    """One batch on its way through the network."""

    def __init__(
        self, steps: NetworkSteps, pool: StatePool, batch: Batch, readout: Readout, told: StepOutputs, trace: Traced
    ) -> None:
        self._steps, self._pool, self._told, self._trace = steps, pool, told, trace
        self._readout = readout
        self._batch = batch.packed()

    def run(self, cursors: Array, ends: Array, *, is_told: bool = True) -> None:
        """Take the rows of some streams, from their cursors to their ends."""
        batch, size = self._batch, self._steps.size
        most = max(1, min(PATCH, TOGETHER // (len(cursors) * size), int((ends - cursors).max())))
        seats = batch[0][np.minimum(cursors, len(batch[0]) - 1)]
        gone = np.zeros(len(cursors), np.int64)
        with self._steps.taken(self._pool, self._readout, len(cursors), most) as taken:
            while True:
                tokens, rows = take(
                    taken.handle, batch, self._told, self._trace, seats, cursors, ends, gone, most, is_told
                )  # fmt: skip
                if not rows:
                    return
                self._give_up(taken, tokens, rows, seats, cursors, ends)

    def _give_up(self, taken: _Taken, tokens: int, rows: int, seats: Array, cursors: Array, ends: Array) -> None:
        """Of a stream with a row that was not taken keep what came before it, and leave the rest."""
        room = taken.wave
        begins, index, of = room.begins.copy(), room.rows.at[:rows], room.rows.stream[:rows]
        is_bad = ~self._told.is_good[index]
        lost = [(stream, int(index[(of == stream) & is_bad].min())) for stream in np.unique(of[is_bad]).tolist()]
        for stream, _ in lost:
            cursors[stream], room.is_kept[stream] = ends[stream], False
        keep(
            taken.kept, seats, room.is_kept, room.work, room.jobs, tokens, room.last, room.states[:tokens],
            room.means[:tokens], room.precisions[:tokens],
        )  # fmt: skip
        for stream, bad in lost:
            self.run(begins[stream : stream + 1], np.array([bad]), is_told=False)


class _Opened(NamedTuple):
    content: Streamed
    handle: Handle


class _Gathered:
    """Handles of a room and of those who are in it; of those who were last it keeps no more than where they lay."""

    def __init__(self, weights: Handle, room: Handle) -> None:
        self._weights, self._room = weights, room
        self._last: tuple[int, ...] = ()
        self._handle: Handle | None = None

    def beside(self, streams: Handle, wanted: Handle) -> tuple[Taken, Handle]:
        """All of them, which the caller keeps for as long as he has the handle, and the handle: it consists of
        addresses, and stays right where these are the same again."""
        handles = Taken(self._weights, streams, wanted, self._room)
        at = streams.address, wanted.address, id(streams.kind), id(wanted.kind)
        if self._handle is None or at != self._last:
            self._handle, self._last = Handle(handles, keeps=False), at
        return handles, self._handle


class _Taken(NamedTuple):
    """What is taken with, for compiled code a handle, and of it what Python looks at."""

    of: Taken
    handle: Handle
    kept: stream_numba.Kept
    wave: Wave


class SeriesRuntime(FilterRuntime):
    """A trained network for some columns, ready to run.

    Args:
        name, digest: of the bundle.
        decoder: the network.
        size: columns, at most MOST_COLUMNS.
        rooms: that the network works in; None for its own.
        device: where it computes long pieces of a series; None: where all else.
    """

    def __init__(
        self, name: str, digest: str, decoder: SeriesDecoder, size: int = 1, rooms: Rooms | None = None,
        device: SeriesDevice | None = None,
    ) -> None:  # fmt: skip
        self.name, self._family, self.digest, self.decoder = name, "series", digest, decoder
        self.readout_matrix, self.readout_offset = np.eye(size), np.zeros(size)
        self.observation_size = self.state_size = size
        self._calibration = {"recurrent": Calibration(calibration())}
        self.levels = self._calibration["recurrent"].levels
        leads = Horizons.of(FOLLOWED, in_steps=True, max_pending=MOST_PLACES, rate=PACE)
        self.rooms, self.device = rooms or Rooms(), device
        self.steps = NetworkSteps(decoder, size, leads, self.rooms, device)
        self._driven = None
        self.passes = PassesRange(1, 1)
        fields = {**leads.fields(size, len(self.levels), sides=2), **baseline_fields()}
        FilterStates.__init__(self, MAGIC, self.steps.initial, self.steps.fields, fields)
        self._readouts = self._kept_readouts(KEPT_READOUTS)
        # Of other numbers of columns, for as long as somebody has work for them.
        self._sized: WeakValueDictionary[int, SeriesRuntime] = WeakValueDictionary({size: self})

    @property
    def has_own_steps(self) -> bool:
        return True

    @property
    def suits_any(self) -> bool:
        return True

    @property
    def farthest(self) -> float:
        return FARTHEST

    @property
    def own_bytes(self) -> int:
        """See `FilterRuntime`: a seat, which many columns make large."""
        return self.state_bytes

    @property
    def kept_bytes(self) -> int:
        """See `FilterRuntime`: rooms."""
        return MOST_BYTES

    def weight(self, told: int, t: float, kept: Callable[[str], Array | None]) -> int:
        """See `FilterRuntime`."""
        clock = kept(CLOCK)
        if clock is None:
            return told * self.observation_size
        return math.ceil(row_work(clock, np.array([t]), told, self.observation_size)[0])

    def cut(self, pool: StatePool, piece: Piece, most: int) -> Piece:
        """See `FilterRuntime`."""
        clock, told = pool.arrays[CLOCK][piece.slot.row], reply_rows(piece.readout)
        work = row_work(clock, piece.times, told, self.observation_size).cumsum()
        return piece.part(slice(max(1, int(np.searchsorted(work, most, side="right")))))

    def sized(self, size: int) -> SeriesRuntime:
        """The same model for so many columns.

        Raises:
            InvalidInput: they are too many.
        """
        if size > MOST_COLUMNS:
            message = f"model {self.name!r} takes up to {MOST_COLUMNS} columns at a time, not {size}: send some of them"
            raise InvalidInput(message, param="observations", code="too_large")
        found = self._sized.get(size)
        if found is None:
            found = self._sized[size] = SeriesRuntime(
                self.name, self.digest, self.decoder, size, self.rooms, self.device
            )
        return found


def open_series(bundle: Bundle, device: SeriesDevice | None = None) -> SeriesRuntime:
    """What a bundle of kind "series" holds, for one column; it is ready to run after `make_ready`."""
    return SeriesRuntime(bundle.name, bundle.digest, SeriesDecoder.of(bundle.weights()), device=device)


def hold_to_golden(bundle: Bundle, model: SeriesRuntime) -> int:
    """Hold the network to the bundle's golden outputs; how many values it gave.

    Raises:
        BundleError: it gave others.
    """
    return check_golden(bundle, {NETWORK: SeriesSession(model.decoder)})


def make_ready(bundle: Bundle, model: SeriesRuntime) -> int:
    """Compile the kernels, and hold the network to the bundle's golden outputs, on its device too; how many values it
    gave.

    Raises:
        BundleError: it gave others.
    """
    count = hold_to_golden(bundle, model)
    if model.device is not None:
        model.device.hold_to_golden()
        _run(model, model.device.least_tokens)
    _run(model, 2)
    model.steps.disable_compilation()
    return count


def _run(model: SeriesRuntime, rows: int) -> None:
    model.filter(list(map(float, range(rows))), [[float(row)] for row in range(rows)], horizon=(1.0,))
