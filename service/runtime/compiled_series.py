"""The model of any series: a trained network that predicts, and the robust filter that takes what comes.

Each column is a stream of the network (`rfa.model.series`). What it foretells of the next row, quantiles at the cell
that the row comes in, is the filter's prior: with m and σ their middle and their width,

    e = y - m        z = Φ⁻¹(F(y)), F the quantiles' distribution        nis = z²        w = min(1, (ν + 1) / (ν + z²))
    P⁻ = k σ²        R = (1 - k) σ²        mean = m + K e, K = w P⁻ / (w P⁻ + R)        P = P⁻ R / (w P⁻ + R)

k is the stream's own gain: by how much of an innovation its forecasts move, Σ (moved · e) / Σ e² over the rows so far.
Forecasts are the network's at their leads: the mean is the median, and what is above and below it has its own width,
each multiplied by the conformal factor of its lead and level (`adaptive.py`).

Of a row that is a stream's first, second or third the network knows nothing: it is foretold as the last value, by
Student's t of the moves so far.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

import rfa.model.recurrence.observed as told_of_one
from rfa.export.bundle import Bundle, check_golden
from rfa.model import student
from rfa.model.compiling import kernel, settle
from rfa.model.recurrence.observed import (
    LOG_LIKELIHOOD,
    NIS,
    PRECISION,
    WEIGHT,
    Observed,
    observed,
    predictive_log_density,
)
from rfa.model.series import stream_numba
from rfa.model.series.config import LEVELS as QUANTILES
from rfa.model.series.config import MEDIAN, PATCH
from rfa.model.series.decoder_numba import ASKED, SeriesDecoder
from rfa.model.series.session import NETWORK, SeriesSession
from rfa.model.series.stream_numba import (
    FILTERED,
    LARGEST_VALUE,
    MOVED,
    SQUARED,
    VARIANCE,
    kept_of,
    kept_shapes,
    slot_kernels,
    wave,
)
from rfa.model.student import normal_square, stretched, stretching, widening
from rfa.service.engine.filter import adaptive, conclude, forecast_checks, learned_normal, learned_tail
from rfa.service.engine.filter.adaptive import Leads
from rfa.service.engine.filter.calibration import Calibration
from rfa.service.engine.filter.conclude import Known, Told, copy1, copy2
from rfa.service.engine.filter.learned_normal import normal_fields
from rfa.service.engine.filter.steps import Readout
from rfa.service.errors import InvalidRequest
from rfa.service.runtime import auto, filter_steps
from rfa.service.runtime.filter import KEPT_READOUTS, FilterRuntime
from rfa.service.runtime.filter_state import FilterStates
from rfa.service.runtime.filter_steps import Batch, Traced, keep_trace, room_of_known, streams_of, trace_room
from rfa.service.runtime.passes import PassesRange
from rfa.service.runtime.pool import StateField, StatePool

if TYPE_CHECKING:
    from rfa.service.runtime.graph_steps import GraphSteps

Array = np.ndarray
MAGIC: Final = b"RFAS\x01"
MOST_COLUMNS: Final = 64
PREFIX: Final = "series."
# What takes longest to compile: one process does it, and the others wait.
MADE_OF: Final = stream_numba
MEANS, PRECISIONS = (f"{PREFIX}{name}" for name in ("means", "precisions"))
# Leads that errors are followed at, in typical lags, and forecasts of one that wait.
FOLLOWED: Final = (1.0, 1.0, 4.0, 16.0, 64.0, 256.0)
MOST_PLACES: Final = 16
# How fast their intervals follow a stream's errors: the network knows their widths, and on synthetic series that are
# kept for validation a quarter of what other filters have tells less wrong than more of it (pinball loss), at the same
# coverage.
PACE: Final = 0.25
CALIBRATED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Tokens of a wave, over all streams and columns.
TOGETHER: Final = 64
KEPT_ROOMS: Final = 4
_NORMAL = NormalDist()
# Normal scores of the quantiles, and the quantiles at the ends of the calibrated intervals: for the first, between two.
SCORES = np.array([_NORMAL.inv_cdf(level) for level in QUANTILES])
_TENTH, _NINTH = QUANTILES.index(0.1), QUANTILES.index(0.9)
ENDS = np.array(
    [[QUANTILES.index(0.2), QUANTILES.index(0.3)]] + [[QUANTILES.index(q)] * 2 for q in (0.1, 0.05, 0.025, 0.005)]
)
_WIDTH = SCORES[_NINTH] - SCORES[_TENTH]
NU: Final = 4.0
# Rows before the network is asked, and before outliers weigh less.
UNASKED, YOUNG = 4, 20
# What the gain is before a stream has shown its own, and of how many innovations; what is kept of it.
FIRST_GAIN, FIRST_INNOVATIONS, KEPT_GAIN = 0.5, 4.0, 0.995
# Deviations that a move and an innovation count for in the gain, and that an innovation counts for at most.
BOUND, FURTHEST_OFF = 4.0, 1e3
# Of the value: the deviation before a second one; and the least of all, of the value and of the largest variance.
FIRST_GUESS, RESOLUTION, TINY = 0.25, 1e-12, 1e-150
UNKNOWN_VARIANCE = 1e12
OUTLIERS = (0.02, 10.0)
_MADE_OF = (
    adaptive, conclude, filter_steps, forecast_checks, learned_normal, learned_tail, stream_numba, student,
    told_of_one,
)  # fmt: skip


def calibration() -> dict[str, Any]:
    """What is told before a stream has taught anything: the network's own quantiles."""
    quantiles = [_NORMAL.inv_cdf((1 + level) / 2) for level in CALIBRATED]
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


@filter_steps.part
def _score_of(y, quantiles, centre, scale):
    """The normal score of y by the quantiles' distribution, straight between them, and beyond them as at their ends."""
    last = len(SCORES) - 1
    low, at_low = 0, centre + scale * quantiles[0]
    at_high = centre + scale * quantiles[1]
    while low < last - 1 and y > at_high:
        low += 1
        at_low, at_high = at_high, centre + scale * quantiles[low + 1]
    width = max(at_high - at_low, TINY)
    score = SCORES[low] + (y - at_low) / width * (SCORES[low + 1] - SCORES[low])
    return min(max(score, -FURTHEST_OFF), FURTHEST_OFF)


@filter_steps.part
def _least(y, scale):
    """The least deviation that is told of numbers of this size."""
    return RESOLUTION * max(abs(y), scale) + TINY


@filter_steps.part
def _take_column(numbers, rows, row, quantiles, value, noise, out, few, a):
    """Condition a column on a value, NaN where missing; nis, weight, log-determinant, and whether it is scored."""
    is_seen, ask = not np.isnan(value), rows.before[row, a]
    c, s = rows.scales[row, a, 0], rows.scales[row, a, 1]
    seen = rows.seen[row, a]
    few[0, a] = few[1, a] = 0.0
    if ask < 0:
        out.innovation[a] = 0.0
        deviation = FIRST_GUESS * abs(value) + _least(value, 0.0) if is_seen else np.sqrt(UNKNOWN_VARIANCE)
        mean = value if is_seen else 0.0
        out.mean[a], out.predicted_mean[a] = mean, mean
        out.covariance[a, a] = out.predicted_covariance[a, a] = out.innovation_covariance[a, a] = deviation * deviation
        few[0, a] = few[1, a] = 1.0
        numbers[FILTERED], numbers[VARIANCE] = mean, deviation * deviation
        return 0.0, 1.0, 0.0, False
    is_asked = seen >= UNASKED
    middle = c + s * quantiles[ask, MEDIAN] if is_asked else c
    if is_asked:
        width = s * (np.float64(quantiles[ask, _NINTH]) - quantiles[ask, _TENTH])
        deviation = max(width / _WIDTH, _least(middle, 0.0))
    else:
        # The moves so far: of one value none, of two or three their mean size.
        few[0, a] = few[1, a] = 1.0 / max(seen - 1, 1)
        deviation = FIRST_GUESS * abs(c) if seen < 2 else 1.25 * s
        deviation = max(deviation, _least(middle, 0.0)) * widening(1.0, few[0, a])
    gain = (FIRST_GAIN * FIRST_INNOVATIONS + numbers[MOVED]) / (FIRST_INNOVATIONS + numbers[SQUARED])
    gain = min(max(gain, 0.01), 1.0)
    innovation = value - middle if is_seen else 0.0
    spread = deviation * deviation
    prior, left = gain * spread, (1 - gain) * spread * noise * noise
    total = max(prior + left, (innovation / FURTHEST_OFF) ** 2)
    out.innovation[a], out.innovation_covariance[a, a] = innovation, total
    mean, after, square, weight = middle, prior, 0.0, 1.0
    if is_seen:
        if is_asked and noise == 1:
            z = _score_of(value, quantiles[ask], c, s)
            square = z * z
        else:
            square = innovation * innovation / total
        if seen > YOUNG:
            weight = min(1.0, (NU + 1) / (NU + square))
        kept = weight * prior / (weight * prior + left) if left > 0 else 1.0
        mean = middle + kept * innovation
        after = prior * left / (weight * prior + left) if left > 0 else 0.0
        after = max(after, 1e-6 * spread) + weight * (1 - weight) * (kept * innovation) ** 2
        if is_asked and rows.after[row, a] >= 0:
            # What the forecast of the next cell has become, by this value.
            now = rows.scales[row, a, 2] + rows.scales[row, a, 3] * quantiles[rows.after[row, a], MEDIAN]
            moved = (now - (c + s * quantiles[ask + 1, MEDIAN])) / deviation
            off = innovation / deviation
            moved, off = min(max(moved, -BOUND), BOUND), min(max(off, -BOUND), BOUND)
            numbers[MOVED] = KEPT_GAIN * numbers[MOVED] + moved * off
            numbers[SQUARED] = KEPT_GAIN * numbers[SQUARED] + off * off
    out.mean[a], out.covariance[a, a] = mean, after
    numbers[FILTERED], numbers[VARIANCE] = mean, after
    out.predicted_mean[a], out.predicted_covariance[a, a] = middle, max(prior, after)
    return (
        normal_square(square, few[0, a]),
        weight,
        np.log(total * stretching(square, few[0, a])),
        is_seen,
    )


@filter_steps.part
def _look(numbers, rows, row, out, few, a):
    """What is known of a column as it is."""
    out.innovation[a] = 0.0
    out.mean[a], variance = numbers[FILTERED], max(numbers[VARIANCE], 0.0)
    if rows.after[row, a] < 0:
        variance = UNKNOWN_VARIANCE
    few[0, a] = few[1, a] = 1.0 / max(rows.seen[row, a], 1) if rows.seen[row, a] < UNASKED else 0.0
    out.predicted_mean[a] = out.mean[a]
    out.covariance[a, a] = out.predicted_covariance[a, a] = out.innovation_covariance[a, a] = variance
    return 0.0, 1.0, 0.0, False


@filter_steps.part
def _foretell(rows, row, quantiles, leads, unit, known, foretold, a):
    """Forecasts of a column at the leads."""
    levels = len(ENDS)
    if rows.after[row, a] < 0:
        for h in range(len(leads)):
            known.forecast_mean[h, a], known.forecast_covariance[h, a, a] = 0.0, UNKNOWN_VARIANCE
            for k in range(2 * levels):
                known.sides[h, a, k] = np.sqrt(UNKNOWN_VARIANCE) * SCORES[len(SCORES) - 1]
        return
    c, s = rows.scales[row, a, 2], rows.scales[row, a, 3]
    seen = rows.seen[row, a] + 1
    for h in range(len(leads)):
        first, second, share = rows.ahead[row, a, h, 0], rows.ahead[row, a, h, 1], rows.share[row, a, h]
        if seen < UNASKED:
            few = 1.0 / max(seen - 1, 1)
            deviation = max(FIRST_GUESS * abs(c) if seen < 2 else 1.25 * s, _least(c, 0.0))
            steps = leads[h] / unit if unit > 0 else 1.0
            deviation *= np.sqrt(max(steps, 1.0)) * widening(1.0, few)
            known.forecast_mean[h, a], known.forecast_covariance[h, a, a] = c, deviation * deviation
            for level in range(levels):
                z = SCORES[len(SCORES) - 1 - ENDS[level, 0]]
                if level == 0:
                    z = -0.5 * (SCORES[ENDS[0, 0]] + SCORES[ENDS[0, 1]])
                half = deviation * abs(z) * stretched(z * z, few)
                known.sides[h, a, level] = known.sides[h, a, levels + level] = half
            continue
        for q in range(len(SCORES)):
            foretold[q] = c + s * ((1 - share) * quantiles[first, q] + share * quantiles[second, q])
        middle = foretold[MEDIAN]
        least = _least(middle, 0.0)
        for level in range(levels):
            one, other, last = ENDS[level, 0], ENDS[level, 1], len(SCORES) - 1
            below, above = foretold[one] + foretold[other], foretold[last - one] + foretold[last - other]
            known.sides[h, a, level] = max(middle - 0.5 * below, least)
            known.sides[h, a, levels + level] = max(0.5 * above - middle, least)
        # As wide as the middle 80 % are.
        deviation = (known.sides[h, a, 1] + known.sides[h, a, levels + 1]) / _WIDTH
        known.forecast_mean[h, a], known.forecast_covariance[h, a, a] = middle, deviation * deviation


def _tell(out, work, rows, count, quantiles, foretold, followed, batch, told, trace, known, room):
    """Tell of the rows of a wave; those of a stream after one that was not taken are not taken either."""
    streams, leads, tables, wanted = followed
    seats, times, values, noise = batch
    size = values.shape[1]
    lost = -1
    for row in range(count):
        at, stream = rows.at[row], rows.stream[row]
        if stream == lost:
            told.is_good[at] = False
            continue
        nis, weight, log_det, scored, precision = 0.0, 0.0, 0.0, 0, 0.0
        unit = rows.unit[row]
        for a in range(size):
            if rows.is_look[row]:
                one, trust, log_size, is_scored = _look(work.numbers[stream, a], rows, row, out, known.few, a)
            else:
                one, trust, log_size, is_scored = _take_column(
                    work.numbers[stream, a], rows, row, quantiles, values[at, a], noise[at], out, known.few, a
                )
            precision += out.covariance[a, a]
            if is_scored:
                nis, weight, log_det, scored = nis + one, weight + trust, log_det + log_size, scored + 1
            _foretell(rows, row, quantiles, wanted.horizon, unit, known, foretold, a)
        out.scalars[PRECISION] = size / precision
        out.scalars[NIS], out.scalars[WEIGHT] = nis, weight / scored if scored > 0 else 1.0
        out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, log_det, np.float64(scored), OUTLIERS)
        if not conclude.conclude(
            streams, leads, tables, wanted, seats[at], times[at], values[at], known, True, told, at, room
        ):
            lost = stream
            continue
        if len(trace.state) > 0:
            keep_trace(out, known, trace, at)
            copy1(out.mean, trace.mean[at])
            copy2(out.covariance, trace.state_covariance[at])


@functools.cache
def _kernel() -> Any:
    return kernel(*_MADE_OF)(_tell)


class NetworkSteps:
    """Steps of the network for some columns; see `FilterSteps`."""

    runtime = "compiled"
    rows = 512
    magic = MAGIC

    def __init__(self, decoder: SeriesDecoder, size: int, leads: Leads) -> None:
        self.size, self.leads, self.decoder = size, leads, decoder
        self._rooms = threading.local()
        slots, precisions = decoder.initial_means, decoder.initial_precisions
        self.fields: Mapping[str, StateField] = {
            f"{PREFIX}{name}": StateField(*field)
            for name, field in kept_shapes(size, decoder.width, slots.shape).items()
        }
        begun = {MEANS: slots, PRECISIONS: precisions}
        self.initial: Mapping[str, Array] = {
            name: np.repeat(begun[name][None], size, 0) if name in begun else np.zeros(*field)
            for name, field in self.fields.items()
        }

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[Told, Traced]:
        """See `FilterSteps`."""
        count, horizon, levels = len(batch.seats), len(readout.horizon), len(readout.calibration.levels)
        told = conclude.room(count, self.size, len(readout.names), horizon, levels)
        trace = trace_room(count if traced else 0, self.size, self.size, 0, horizon)
        call = _Call(self, pool, batch, readout, told, trace)
        is_first = np.ones(count, np.bool_)
        is_first[1:] = batch.seats[1:] != batch.seats[:-1]
        begins = np.flatnonzero(is_first)
        ends = np.append(begins[1:], count)
        together = max(1, TOGETHER // self.size)
        for first in range(0, len(begins), together):
            part = slice(first, first + together)
            call.run(begins[part].copy(), np.minimum(ends[part], call.first_bad(begins[part], ends[part])))
        return told, trace

    def room(self, kind: Callable[..., Any], *key: int) -> Any:
        """What `kind` makes for these sizes. Of large arrays every one that is new costs page faults, which take longer
        than a row: each thread keeps the last few."""
        rooms: dict[Any, Any] = self._rooms.__dict__
        name = f"{kind.__qualname__}{key}"
        if name not in rooms:
            if len(rooms) >= KEPT_ROOMS:
                del rooms[next(iter(rooms))]
            rooms[name] = kind(self, *key)
        return rooms[name]

    def adopt(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """See `FilterSteps`."""
        return dict(tensors)

    def parts(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """See `FilterSteps`."""
        return dict(tensors)

    def settle(self) -> None:
        """See `FilterSteps`."""
        settle(_kernel())


class _Call:
    """One batch on its way through the network, wave after wave."""

    def __init__(
        self, steps: NetworkSteps, pool: StatePool, batch: Batch, readout: Readout, told: Told, trace: Traced
    ) -> None:
        self._steps, self._pool, self._told, self._trace = steps, pool, told, trace
        self._batch = Batch(*batch.packed())
        self._wanted = readout.wanted
        streams, tables = streams_of(pool), readout.calibration.tables
        self._followed = streams, steps.leads, tables, readout.wanted
        self._kept = kept_of(pool.arrays, PREFIX)
        self._out, self._known = steps.room(_known, len(readout.horizon))
        self._room = conclude.scratch(streams, tables, readout.wanted)

    def first_bad(self, begins: Array, ends: Array) -> Array:
        """Of each stream the first row with a number that the network has no room for, or its end."""
        is_beyond = np.abs(self._batch.values) > LARGEST_VALUE
        if not is_beyond.any():
            return ends
        is_bad = is_beyond.any(axis=1)
        rows = [np.flatnonzero(is_bad[one:other]) for one, other in zip(begins, ends, strict=True)]
        return np.array(
            [one + found[0] if len(found) else end for one, found, end in zip(begins, rows, ends, strict=True)]
        )

    def run(self, cursors: Array, ends: Array, *, is_told: bool = True) -> None:
        """Take the rows of some streams, from their cursors to their ends."""
        most = max(1, min(PATCH, TOGETHER // (len(cursors) * self._steps.size), int((ends - cursors).max())))
        room = self._steps.room(_Wave.of, len(cursors), most, len(self._wanted.horizon))
        gone = np.zeros(len(cursors), np.int64)
        seats = self._batch.seats[np.minimum(cursors, len(self._batch.seats) - 1)]
        while (cursors < ends).any():
            begins = cursors.copy()
            counts = wave(
                self._kept, self._batch.seats, self._batch.times, self._batch.values, self._wanted.horizon, cursors,
                ends, gone, room.most, room.work, room.jobs, room.asks, room.rows, room.last,
            )  # fmt: skip
            self._take(room, counts, seats, begins, cursors, ends, is_told=is_told)

    def _take(
        self, room: _Wave, counts: tuple[int, int, int], seats: Array, begins: Array, cursors: Array, ends: Array, *,
        is_told: bool,
    ) -> None:  # fmt: skip
        """A wave through the network, its rows told and its streams kept."""
        tokens, asked, rows = counts
        jobs, decoder, is_kept = room.jobs, self._steps.decoder, begins < ends
        means, precisions = room.means[:tokens], room.precisions[:tokens]
        gather, keep = slot_kernels()
        gather(self._kept, seats, jobs, tokens, means, precisions)
        states = decoder.forward(jobs.tokens[:tokens], jobs.ends[:tokens], jobs.lags[:tokens], means, precisions)
        if is_told and rows:
            # A column's token before this call is asked by the state that it has left.
            states_of_all = np.concatenate([states, self._kept.hidden[seats].reshape(-1, decoder.width)])
            of = room.asks.of[:asked]
            of[of < 0] = tokens - 1 - of[of < 0]
            quantiles = decoder.ask(states_of_all, of, room.asks.numbers[:asked])
            _kernel()(
                self._out, room.work, room.rows, rows, quantiles, room.foretold, self._followed, self._batch,
                self._told, self._trace, self._known, self._room,
            )  # fmt: skip
            is_good = self._told.is_good[room.rows.at[:rows]]
            if not is_good.all():
                self._give_up(room, rows, is_good, begins, cursors, ends, is_kept)
        keep(self._kept, seats, is_kept, room.work, jobs, tokens, room.last, states, means, precisions)

    def _give_up(
        self, room: _Wave, rows: int, is_good: Array, begins: Array, cursors: Array, ends: Array, is_kept: Array
    ) -> None:
        """Of a stream with a row that was not taken keep what came before it, and leave the rest."""
        index, of = room.rows.at[:rows], room.rows.stream[:rows]
        for stream in np.unique(of[~is_good]).tolist():
            bad = int(index[(of == stream) & ~is_good].min())
            cursors[stream], is_kept[stream] = ends[stream], False
            self.run(begins[stream : stream + 1].copy(), np.array([bad]), is_told=False)


class _Wave(NamedTuple):
    """Room for the tokens of some streams.

    most: rows of a stream.
    """

    most: int
    work: stream_numba.Work
    jobs: stream_numba.Jobs
    asks: stream_numba.Asks
    rows: stream_numba.Rows
    last: Array
    foretold: Array
    means: Array
    precisions: Array

    @classmethod
    def of(cls, steps: NetworkSteps, streams: int, most: int, horizon: int) -> _Wave:
        size, shape = steps.size, steps.decoder.initial_means.shape
        tokens = streams * size * (most + 1)
        return cls(
            most,
            stream_numba.work_for(streams, size),
            stream_numba.jobs_for(tokens),
            stream_numba.asks_for(streams * size * most * (3 + 2 * horizon), ASKED),
            stream_numba.rows_for(streams * most, size, horizon),
            np.empty((streams, size), np.int64),
            np.empty(len(QUANTILES)),
            np.empty((tokens, *shape), np.float32),
            np.empty((tokens, *shape[:3]), np.float32),
        )


def _known(steps: NetworkSteps, horizon: int) -> tuple[Observed, Known]:
    """Room for what is known of a row."""
    out = observed(steps.size, steps.size)
    np.fill_diagonal(out.transition, 1.0)
    return out, room_of_known(out, horizon, 2 * len(CALIBRATED))


class SeriesRuntime(FilterRuntime):
    """A trained network for some columns, ready to run.

    Args:
        name, digest: of the bundle.
        decoder: the network.
        size: columns, at most MOST_COLUMNS.
    """

    def __init__(self, name: str, digest: str, decoder: SeriesDecoder, size: int = 1) -> None:
        self.name, self._family, self.digest, self.decoder = name, "series", digest, decoder
        self.readout_matrix, self.readout_offset = np.eye(size), np.zeros(size)
        self.observation_size = self.state_size = size
        self._calibration = {"recurrent": Calibration(calibration())}
        self.levels = self._calibration["recurrent"].levels
        leads = Leads.of(FOLLOWED, are_own=True, most_places=MOST_PLACES, pace=PACE)
        self.graphs = cast("GraphSteps", None)  # for attention mode alone, which is refused
        self.steps = NetworkSteps(decoder, size, leads)
        self._driven = None
        self.passes = PassesRange(1, 1)
        fields = {**leads.fields(size, len(self.levels), sides=2), **normal_fields()}
        FilterStates.__init__(self, MAGIC, self.steps.initial, self.steps.fields, fields)
        self.attention_states = self
        self._readouts = self._kept_readouts(KEPT_READOUTS)
        self._sized: dict[int, SeriesRuntime] = {size: self}

    @property
    def has_own_steps(self) -> bool:
        return True

    @property
    def own_bytes(self) -> int:
        """See `FilterRuntime`: a seat, which many columns make large."""
        return self.state_bytes

    def sized(self, size: int) -> SeriesRuntime:
        """The same model for so many columns.

        Raises:
            InvalidRequest: they are too many.
        """
        if size > MOST_COLUMNS:
            message = f"model {self.name!r} takes up to {MOST_COLUMNS} columns at a time, not {size}: send some of them"
            raise InvalidRequest(message, param="observations", code="too_large")
        if size not in self._sized:
            self._sized[size] = SeriesRuntime(self.name, self.digest, self.decoder, size)
        return self._sized[size]


def open_series(bundle: Bundle) -> SeriesRuntime:
    """What a bundle of kind "series" holds, for one column; it is ready to run after `make_ready`."""
    return SeriesRuntime(bundle.name, bundle.digest, SeriesDecoder.of(bundle.weights()))


def make_ready(bundle: Bundle, model: SeriesRuntime) -> int:
    """Compile the kernels, and hold the network to the bundle's golden outputs; how many values it gave.

    Raises:
        BundleError: it gave others.
    """
    count = check_golden(bundle, {NETWORK: SeriesSession(model.decoder)})
    model.filter([0.0, 1.0], [[0.0], [1.0]], horizon=(1.0,))
    model.steps.settle()
    return count
