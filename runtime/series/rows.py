"""What rows of the network of any series tell, in compiled loops: its quantiles are the prior of the robust filter.

With m and σ the middle and the width of what was foretold of a row,

    e = y - m        z = Φ⁻¹(F(y)), F the quantiles' distribution        nis = z²        w = min(1, (ν + 1) / (ν + z²))
    P⁻ = k c σ²      R = (1 - k) c σ²      mean = m + K e, K = w P⁻ / (w P⁻ + R)        P = P⁻ R / (w P⁻ + R)

k is the stream's own gain: by how much of an innovation its forecasts move, Σ (moved · e) / Σ e² over the rows so far,
and at least what noise does not explain,

    k >= 1 - V / S        V: a bound on the variance of the noise, `tokens_numba.py`; S: (π / 2) (mean |e|)²

for a forecast that is off, and does not know it, moves too little: where noise makes less of the innovations than the
forecasts believe, the rest is their own error. c is what the innovations are to the widths foretold of them, squared:
S over their mean.
Of a row that is a stream's first, second or third the network knows nothing: it is foretold as the last value, by
Student's t of the moves so far. Before there is a move it is told by the size of the value, which is a guess: nothing
is scored by it, and nothing learned, so that no later row depends on the level of a stream.

Of the first rows w is 1: so few do not tell an outlier from a move. What lies further off than was foretold may be
either, and by as much as it does not fit the state is told as one of the two, with K for the chance of a move:

    P ← w P + (1 - w) max(P, K (1 - K) e²)                      w by the z² of a normal, e² / (P⁻ + R)
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np

import rfa.runtime.filters.observed as told_of_one
from rfa.runtime import handles
from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.filters import steps as filter_steps
from rfa.runtime.filters.observed import (
    LOG_LIKELIHOOD,
    NIS,
    PRECISION,
    WEIGHT,
    Observed,
    observed,
    predictive_log_density,
)
from rfa.runtime.filters.steps import keep_trace, room_of_known
from rfa.runtime.filters.student import normal_square, stretched, stretching, widening
from rfa.runtime.handles import Handle, opened
from rfa.runtime.series import config, decoder_numba, stream_numba
from rfa.runtime.series.config import LEVELS as QUANTILES
from rfa.runtime.series.config import MEDIAN
from rfa.runtime.series.decoder_numba import ASKED, SeriesDecoder, ask, forward
from rfa.runtime.series.stream_numba import (
    FILTERED,
    FORESEEN,
    MISSED,
    MISSES,
    MOVED,
    SQUARED,
    VARIANCE,
    gather,
    keep,
    wave,
)
from rfa.runtime.series.tokens_numba import CAP, KEEP, RESOLUTION
from rfa.runtime.uncertainty import adaptive, calibration, scoring
from rfa.runtime.uncertainty.copy_arrays import copy1, copy2
from rfa.runtime.uncertainty.step_outputs import (
    FilterOutput,
    Observation,
    OutputSpec,
    Scorer,
    StreamStates,
    Workspace,
)
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray
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
# What the bound on noise makes of it at most: of a gain of 1 no outlier would weigh less.
MOST_BY_NOISE = 0.9
# The mean size of an innovation over its foretold deviation, .8 where they are normal and it is right, is bounded.
LEAST_MISS, LARGEST_MISS = 0.4, 3.2
# Deviations that a move and an innovation count for in the gain, and that an innovation counts for at most.
BOUND, FURTHEST_OFF = 4.0, 1e3
# Of the value: the deviation before there is a move, a guess; the least of all.
FIRST_GUESS, TINY = 0.25, 1e-150
# Values before which that is all there is to foretell by.
GUESSED = 2
UNKNOWN_VARIANCE = 1e12
OUTLIERS = (0.02, 10.0)
# Files that kernels of this one are made of, beside it.
SOURCES = (
    config, filter_steps, handles, stream_numba, told_of_one, decoder_numba, *scoring.SOURCES, *decoder_numba.SOURCES,
    *stream_numba.SOURCES,
)  # fmt: skip


class Wave(NamedTuple):
    """Room for the tokens of some streams.

    begins: where they were before the wave; is_kept: those whose rows are all taken. states: of the tokens, and of the
    columns before them.
    """

    begins: Array
    is_kept: Array
    was: Array
    work: stream_numba.Work
    jobs: stream_numba.Jobs
    asks: stream_numba.Asks
    rows: stream_numba.Rows
    last: Array
    states: Array
    quantiles: Array
    means: Array
    precisions: Array

    @classmethod
    def of(cls, decoder: SeriesDecoder, size: int, streams: int, most: int, horizon: int) -> Wave:
        """For so many columns of so many streams, `most` rows of each."""
        shape = decoder.initial_means.shape
        tokens, asked = streams * size * (most + 1), streams * size * most * (3 + 2 * horizon)
        return cls(
            np.empty(streams, np.int64),
            np.empty(streams, np.bool_),
            np.empty(stream_numba.CLOCK),
            stream_numba.work_for(streams, size),
            stream_numba.jobs_for(tokens),
            stream_numba.asks_for(asked, ASKED),
            stream_numba.rows_for(streams * most, size, horizon),
            np.empty((streams, size), np.int64),
            np.empty((tokens + streams * size, decoder.width), np.float32),
            np.empty((asked, len(QUANTILES)), np.float32),
            np.empty((tokens, *shape), np.float32),
            np.empty((tokens, *shape[:3]), np.float32),
        )


class RowRoom(NamedTuple):
    """Room for what is known of a row, and for the quantiles of one of its forecasts."""

    out: Observed
    known: FilterOutput
    foretold: Array
    scratch: Workspace

    @classmethod
    def of(cls, size: int, streams: StreamStates, readout: Readout) -> RowRoom:
        out = observed(size, size)
        np.fill_diagonal(out.transition, 1.0)
        known = room_of_known(out, len(readout.horizon), 2 * len(ENDS))
        return cls(out, known, np.empty(len(QUANTILES)), Workspace.allocate(streams.conformal, readout))


# What `take` works with but the rows, by what it changes with.


class Streamed(NamedTuple):
    """What the streams of a pool keep, of the network and of all that is told."""

    kept: stream_numba.Kept
    told: StreamStates


class Followed(NamedTuple):
    """What is wanted of them, see `Scorer`."""

    leads: adaptive.Horizons
    tables: calibration.Tables
    wanted: OutputSpec


class Room(NamedTuple):
    """Room for a wave, and for one of its rows."""

    wave: Wave
    row: RowRoom


class Taken(NamedTuple):
    """Handles of all of these, and of the network's `Weights`."""

    weights: Handle
    streams: Handle
    wanted: Handle
    room: Handle


@inline_jit
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


@inline_jit
def _least(y, scale):
    """The least deviation that is told of numbers of this size."""
    return RESOLUTION * max(abs(y), scale) + TINY


@inline_jit
def _least_gain(numbers, noise):
    """The share of the innovations that noise of this variance does not explain."""
    if numbers[MISSES] < YOUNG:
        return 0.0
    missed = numbers[MISSED] / numbers[MISSES]
    explained = noise / (0.5 * np.pi * missed * missed) if missed > 0 else 1.0
    return min(1 - explained, MOST_BY_NOISE)


@inline_jit
def _true_to_told(numbers):
    """The variance of the innovations over what was foretold of it."""
    if numbers[MISSES] < YOUNG or not numbers[FORESEEN] > 0:
        return 1.0
    return 0.5 * np.pi * min(max(numbers[MISSED] / numbers[FORESEEN], LEAST_MISS), LARGEST_MISS) ** 2


@inline_jit
def _weight(square):
    """How far an innovation fits what was foretold: Student's t, of math.md."""
    return min(1.0, (NU + 1) / (NU + square))


@inline_jit
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
        # Before a stream's first value nothing is known, for those that look back as well.
        out.mean[a], out.predicted_mean[a], out.predicted_covariance[a, a] = mean, 0.0, UNKNOWN_VARIANCE
        out.covariance[a, a] = out.innovation_covariance[a, a] = deviation * deviation
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
        deviation = FIRST_GUESS * abs(c) if seen < GUESSED else 1.25 * s
        deviation = max(deviation, _least(middle, 0.0)) * widening(1.0, few[0, a])
    gain = (FIRST_GAIN * FIRST_INNOVATIONS + numbers[MOVED]) / (FIRST_INNOVATIONS + numbers[SQUARED])
    gain = min(max(gain, _least_gain(numbers, rows.noise[row, a]), 0.01), 1.0)
    innovation = value - middle if is_seen else 0.0
    spread = deviation * deviation
    total = spread * (gain + (1 - gain) * noise * noise)
    total = max(total, (innovation / FURTHEST_OFF) ** 2)
    spread *= _true_to_told(numbers)
    prior, left = gain * spread, (1 - gain) * spread * noise * noise
    out.innovation[a], out.innovation_covariance[a, a] = innovation, total
    mean, after, square, weight = middle, prior, 0.0, 1.0
    if is_seen:
        if is_asked and noise == 1:
            z = _score_of(value, quantiles[ask], c, s)
            square = z * z
        else:
            square = innovation * innovation / total
        if seen > YOUNG:
            weight = _weight(square)
        kept = weight * prior / (weight * prior + left) if left > 0 else 1.0
        mean = middle + kept * innovation
        after = prior * left / (weight * prior + left) if left > 0 else 0.0
        after = max(after, 1e-6 * spread) + weight * (1 - weight) * (kept * innovation) ** 2
        if seen <= YOUNG:
            odd = 1 - _weight(innovation * innovation / total)
            after += odd * max(kept * (1 - kept) * innovation * innovation - after, 0.0)
        if is_asked and rows.after[row, a] >= 0:
            # What the forecast of the next cell has become, by this value.
            now = rows.scales[row, a, 2] + rows.scales[row, a, 3] * quantiles[rows.after[row, a], MEDIAN]
            moved = (now - (c + s * quantiles[ask + 1, MEDIAN])) / deviation
            off = innovation / deviation
            moved, off = min(max(moved, -BOUND), BOUND), min(max(off, -BOUND), BOUND)
            numbers[MOVED] = KEPT_GAIN * numbers[MOVED] + moved * off
            numbers[SQUARED] = KEPT_GAIN * numbers[SQUARED] + off * off
            numbers[MISSES] = KEEP * numbers[MISSES] + 1
            numbers[MISSED] = KEEP * numbers[MISSED] + min(abs(innovation), CAP * deviation)
            numbers[FORESEEN] = KEEP * numbers[FORESEEN] + deviation
    out.mean[a], out.covariance[a, a] = mean, after
    # As uncertain as the row before at least: what looks back from it takes it for a walk.
    out.predicted_mean[a], out.predicted_covariance[a, a] = middle, max(prior, after, numbers[VARIANCE])
    numbers[FILTERED], numbers[VARIANCE] = mean, after
    return (
        normal_square(square, few[0, a]),
        weight,
        np.log(total * stretching(square, few[0, a])),
        is_seen and seen >= GUESSED,
    )


@inline_jit
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


@inline_jit
def _foretell(rows, row, quantiles, leads, unit, known, foretold, a):
    """Forecasts of a column at the leads."""
    levels = len(ENDS)
    if rows.after[row, a] < 0:
        for h in range(len(leads)):
            known.forecast_mean[h, a], known.forecast_covariance[h, a, a] = 0.0, UNKNOWN_VARIANCE
            for k in range(2 * levels):
                known.half_widths[h, a, k] = np.sqrt(UNKNOWN_VARIANCE) * SCORES[len(SCORES) - 1]
        return
    c, s = rows.scales[row, a, 2], rows.scales[row, a, 3]
    seen = rows.seen[row, a] + 1
    for h in range(len(leads)):
        first, second, share = rows.ahead[row, a, h, 0], rows.ahead[row, a, h, 1], rows.share[row, a, h]
        if seen < UNASKED:
            few = 1.0 / max(seen - 1, 1)
            deviation = max(FIRST_GUESS * abs(c) if seen < GUESSED else 1.25 * s, _least(c, 0.0))
            steps = leads[h] / unit if unit > 0 else 1.0
            deviation *= np.sqrt(max(steps, 1.0)) * widening(1.0, few)
            known.forecast_mean[h, a], known.forecast_covariance[h, a, a] = c, deviation * deviation
            for level in range(levels):
                z = SCORES[len(SCORES) - 1 - ENDS[level, 0]]
                if level == 0:
                    z = -0.5 * (SCORES[ENDS[0, 0]] + SCORES[ENDS[0, 1]])
                half = deviation * abs(z) * stretched(z * z, few)
                known.half_widths[h, a, level] = known.half_widths[h, a, levels + level] = half
            continue
        for q in range(len(SCORES)):
            foretold[q] = c + s * ((1 - share) * quantiles[first, q] + share * quantiles[second, q])
        middle = foretold[MEDIAN]
        least = _least(middle, 0.0)
        for level in range(levels):
            one, other, last = ENDS[level, 0], ENDS[level, 1], len(SCORES) - 1
            below, above = foretold[one] + foretold[other], foretold[last - one] + foretold[last - other]
            known.half_widths[h, a, level] = max(middle - 0.5 * below, least)
            known.half_widths[h, a, levels + level] = max(0.5 * above - middle, least)
        # As wide as the middle 80 % are.
        deviation = (known.half_widths[h, a, 1] + known.half_widths[h, a, levels + 1]) / _WIDTH
        known.forecast_mean[h, a], known.forecast_covariance[h, a, a] = middle, deviation * deviation


@kernel_jit(*SOURCES)
def tell(out, work, rows, count, quantiles, foretold, scorer, batch, told, trace, known):
    """Tell of the rows of a wave; those of a stream after one that was not taken are not taken either."""
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
            known.has_forecast[a] = rows.seen[row, a] >= GUESSED
            if rows.is_look[row]:
                one, trust, log_size, is_scored = _look(work.numbers[stream, a], rows, row, out, known.inverse_dof, a)
            else:
                one, trust, log_size, is_scored = _take_column(
                    work.numbers[stream, a], rows, row, quantiles, values[at, a], noise[at], out, known.inverse_dof, a
                )
            precision += out.covariance[a, a]
            if is_scored:
                nis, weight, log_det, scored = nis + one, weight + trust, log_det + log_size, scored + 1
            _foretell(rows, row, quantiles, scorer.spec.horizon, unit, known, foretold, a)
        out.scalars[PRECISION] = size / precision
        out.scalars[NIS], out.scalars[WEIGHT] = nis, weight / scored if scored > 0 else 1.0
        out.scalars[LOG_LIKELIHOOD] = predictive_log_density(nis, log_det, np.float64(scored), OUTLIERS)
        observation = Observation(seats[at], times[at], values[at])
        if not scoring.score_observation(scorer, observation, known, True, told, at):
            lost = stream
            continue
        if len(trace.state) > 0:
            keep_trace(out, known, trace, at)
            copy1(out.mean, trace.mean[at])
            copy2(out.covariance, trace.state_covariance[at])


@kernel_jit(*SOURCES, allocates=True)
def take(handle, batch, told, trace, seats, cursors, ends, gone, most, is_told):
    """Take the rows of some streams through the network, wave after wave.

    Args:
        handle: of a `Taken`.
        batch: seats, times, values and noise of all rows, `filter_steps.Batch`.
        told, trace: what is told of them.
        seats, cursors, ends: of each stream its seat and its rows that are still to come, `[W]`; cursors move on.
        gone: `[W]` empty cells before the next row that are behind it already; 0 at first.
        most: rows of a stream in a wave.
        is_told: whether anything is to be told.

    Returns:
        how many tokens and rows there were in a wave with a row that was not taken: it is not kept; none where all
        were.
    """
    taken: Any = opened(handle)
    weights, streams = opened(taken.weights), opened(taken.streams)
    wanted, at_hand = opened(taken.wanted), opened(taken.room)
    kept, room, known = streams.kept, at_hand.wave, at_hand.row
    scorer = Scorer(streams.told, wanted.leads, wanted.tables, wanted.wanted, known.scratch)
    # Room that is used again knows nothing of the streams of a call before.
    for k in range(len(known.scratch.loaded)):
        known.scratch.loaded[k] = -1
    while True:
        is_left = False
        for stream in range(len(seats)):
            room.begins[stream] = cursors[stream]
            room.is_kept[stream] = cursors[stream] < ends[stream]
            is_left = is_left or room.is_kept[stream]
        if not is_left:
            return 0, 0
        tokens, asked, rows = wave(
            kept, batch[0], batch[1], batch[2], wanted.wanted.horizon, cursors, ends, gone, most,
            room.work, room.jobs, room.asks, room.rows, room.last, room.was,
        )  # fmt: skip
        means, precisions = room.means[:tokens], room.precisions[:tokens]
        gather(kept, seats, room.jobs, tokens, means, precisions)
        states = room.states[:tokens]
        jobs = room.jobs
        forward(jobs.tokens[:tokens], jobs.ends[:tokens], jobs.lags[:tokens], weights, means, precisions, states)
        if is_told and rows > 0:
            # A column's token before this call is asked by the state that it has left.
            columns = kept.hidden.shape[1]
            for stream in range(len(seats)):
                for a in range(columns):
                    copy1(kept.hidden[seats[stream], a], room.states[tokens + stream * columns + a])
            of = room.asks.of
            for k in range(asked):
                if of[k] < 0:
                    of[k] = tokens - 1 - of[k]
            count = tokens + len(seats) * columns
            ask(room.states[:count], of, room.asks.numbers[:asked], weights.head, room.quantiles)
            tell(
                known.out, room.work, room.rows, rows, room.quantiles, known.foretold, scorer, batch, told,
                trace, known.known,
            )  # fmt: skip
            for k in range(rows):
                if not told.is_good[room.rows.at[k]]:
                    return tokens, rows
        keep(kept, seats, room.is_kept, room.work, jobs, tokens, room.last, states, means, precisions)
