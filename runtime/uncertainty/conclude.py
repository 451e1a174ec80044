"""What is told about an observation once the filter has taken it, and what its stream learned: one row at a time.

A row is an observation of one stream; its numbers depend on that stream alone, in whatever company it comes. The filter
gives mean, variances, innovation, weight, nis and likelihood, and moments of the forecasts; here they become
calibrated: an anomaly score, a confidence, intervals. A row with a number that is not finite changes nothing of its
stream.

Compiled where numba is installed, else plain Python: the same numbers, some hundred times slower.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import rfa.runtime.filters.student as students_t
from rfa.runtime.bundle.surprise import SURPRISE_CAP, SURPRISE_RATE
from rfa.runtime.compiling import kept_part, merged, part
from rfa.runtime.filters.student import stretched
from rfa.runtime.uncertainty import adaptive, forecast_checks, learned_normal, learned_tail
from rfa.runtime.uncertainty.adaptive import (
    INFINITE,
    Tracks,
    counted_radius,
    lead_of,
    place_of,
    radii,
    score_step,
    score_waiting,
    typical_step,
)
from rfa.runtime.uncertainty.alarms import Alarm
from rfa.runtime.uncertainty.calibration import SHORTEST, Tables
from rfa.runtime.uncertainty.forecast_checks import (
    ALARMS,
    ASKED,
    EXPECTED,
    OUTLIERS,
    columns,
    outlier_gate,
    tally,
    tally_leads,
)
from rfa.runtime.uncertainty.learned_normal import (
    COLUMNS,
    LEVEL,
    SPREAD,
    interpolate,
    learn,
    share_below,
    size_of_one,
    standard,
)
from rfa.runtime.uncertainty.learned_tail import (
    BODY,
    FIRST,
    GRID,
    HELD,
    LARGEST_SCORE,
    QUIET,
    SEEN,
    THRESHOLD,
    place_in_tail,
)
from rfa.runtime.uncertainty.learned_tail import COLUMNS as TAIL_COLUMNS

Array = np.ndarray[Any, Any]

PRECISION, WEIGHT, NIS, LOG_LIKELIHOOD = range(4)
# A variance that rounding took to zero or below.
LEAST_VARIANCE = 1e-300
# Before a stream has shown its own scores nothing is rarer than this share of one in so many as were seen: whatever the
# bundle says, it knows another stream, and a metric's scale is a guess at first.
EARLY = 0.1
# A forecast further ahead than so many times its calibrated lead would keep its place for too long.
FURTHEST = 2.0
# While it is quiet after an alarm, what has so many times its evidence is news.
NEWS = 1.1


class Streams(NamedTuple):
    """What the streams of a pool carry beside the filter's own state; an array each, by seat."""

    time: Array
    counts: Array
    surprise: Array
    step: Array
    normal: Array
    tail: Array
    tracks: Tracks


class Wanted(NamedTuple):
    """What a request wants to be told, `readout.py` has it made.

    Attributes:
        state_scale: calibrated std of the state per model std.
        state: half widths of its intervals per model std, `[levels]`.
        horizon: of the forecasts, `[H]`.
        multipliers: of the forecasts' intervals at the calibrated levels, `[H, calibrated]`.
        lead: that a horizon is followed as, `[H]`; found anew for each observation where leads are own steps.
        columns, weights: the intervals of the levels as sums of two calibrated ones, `[2 levels]`, `[H, 2 levels]`.
        squares: of the normal's quantiles at the levels, `[levels]`.
        scale: calibrated std of the forecasts per model std, `[H]`.
        alarm: when an observation is one.
    """

    state_scale: float
    state: Array
    horizon: Array
    multipliers: Array
    lead: Array
    columns: Array
    weights: Array
    squares: Array
    scale: Array
    alarm: Alarm


class Known(NamedTuple):
    """What the filter knows of an observation: mean and covariance of the state, innovation (0 where missing) and its
    covariance, `[P]` and `[P, P]`, and of the forecasts mean `[H, P]` and covariance `[H, P, P]`; all in units of the
    observation. scalars `[4]`: the model's precision, weight, nis, log-likelihood.

    few `[2, P]`, of innovation and state, and forecast_few `[H, P]` tell of how few numbers their deviations were
    learned, as of student.py: their intervals are Student's t, whose 68 % a deviation holds.

    sides `[H, P, 2 calibrated]` are half widths of the forecasts' intervals by the model, below their means and above;
    of no columns where a deviation tells them. is_foretold `[P]`: not where all that was told of a component was a
    guess; it is not scored, and forecasts made of it count as infinite."""

    mean: Array
    covariance: Array
    innovation: Array
    innovation_covariance: Array
    forecast_mean: Array
    forecast_covariance: Array
    scalars: Array
    few: Array
    forecast_few: Array
    sides: Array
    is_foretold: Array


class Told(NamedTuple):
    """What is told, a row an observation. A number that there is not, because nothing was observed, is NaN.

    moments `[R, H, 2, P]` are mean and std of the forecasts, bands `[R, H, levels, P, 2]` their intervals; position is
    that of the observation in its stream; alarm is 1 or 0, NaN where none is asked for; tally is of
    `forecast_checks.py`. is_good: all is finite; of other rows nothing is told.
    """

    is_good: Array
    position: Array
    mean: Array
    std: Array
    precision: Array
    confidence: Array
    weight: Array
    innovation: Array
    nis: Array
    anomaly: Array
    alarm: Array
    log_likelihood: Array
    interval: Array
    moments: Array
    bands: Array
    tally: Array


def room(rows: int, size: int, levels: int, horizon: int, calibrated: int) -> Told:
    """Room for rows of observations of `size` components."""
    wide, row = (rows, size), (rows,)
    return Told(
        np.zeros(rows, np.bool_), np.zeros(rows, np.int64), *map(np.empty, (wide, wide, row, row, row, wide, row, row,
        row, row, (rows, levels, size, 2), (rows, horizon, 2, size), (rows, horizon, levels, size, 2),
        (rows, columns(calibrated, horizon, size))))
    )  # fmt: skip


class Scratch(NamedTuple):
    """Room for what is known of a row until it is known to be finite.

    shift is v of one stream, and stays from row to row; loaded `[2]` tells of which, and how many forecasts wait there.
    """

    shift: Array
    loaded: Array
    change: Array
    arrived: Array
    normal: Array
    tail: Array
    radius: Array
    multipliers: Array
    side: Array
    widths: Array
    edges: Array
    scores: Array
    is_scored: Array
    is_above: Array
    lead: Array
    column: Array
    held: Array


# Assigning an array to a slice brings a second's worth of broadcasting and its error messages into each kernel.


@part
def copy3(source, target):
    """target = source, of three dimensions."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            for k in range(source.shape[2]):
                target[i, j, k] = source[i, j, k]


@part
def copy2(source, target):
    """target = source, of two dimensions."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@part
def copy1(source, target):
    """target = source, of one dimension."""
    for i in range(source.shape[0]):
        target[i] = source[i]


@part
def clear(target):
    """target = 0, of two dimensions."""
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] = 0.0


def scratch(streams: Streams, tables: Tables, wanted: Wanted) -> Scratch:
    """Room for one row after the other."""
    leads, size, levels = streams.tracks.shift.shape[1:]
    return Scratch(
        np.empty((leads, size, levels), np.float32), np.full(2, -1), np.empty((leads, size, levels)),
        np.empty(streams.tracks.due.shape[1], np.int8), np.empty(COLUMNS),
        np.empty(TAIL_COLUMNS), np.empty((len(wanted.horizon), size, streams.tracks.radius.shape[3])), np.empty(levels),
        np.empty(levels),
        np.empty((size, levels)),
        np.empty((size, len(tables.pit_columns) // 2)), np.empty(size), np.empty(size, np.bool_),
        np.empty(size, np.bool_), np.empty(len(wanted.horizon), np.int64), np.empty(leads, np.int64),
        np.empty((leads, 1 + levels)),
    )  # fmt: skip


@part
def _band(widths, columns, weights, level):
    """A level's half width as a sum of two calibrated ones."""
    other = level + len(columns) // 2
    return widths[columns[level]] * weights[level] + widths[columns[other]] * weights[other]


@merged
def _rareness(streams, tables, seat, teaches, seen, nis, room):
    """How probable so strange an observation is on its stream, z by the model alone, and how many columns of the tail
    are in `room`, with what is learned from it: most observations change the first ones only."""
    size = np.float64(max(seen, 1))
    root = (nis / size) ** (1 / 3)
    z, share = learn(streams.normal[seat], root, size, teaches, tables.rarity, room.normal)
    score = min(size_of_one(z), LARGEST_SCORE)
    tail = streams.tail[seat]
    is_early, threshold = tail[SEEN] < FIRST, np.float64(tail[THRESHOLD])
    count = TAIL_COLUMNS if is_early or score > threshold else GRID
    for k in range(count):
        room.tail[k] = tail[k]  # from here on in float64
    p = place_in_tail(score, np.exp(room.normal[LEVEL] / 2), teaches, room.tail)
    if is_early:
        p = max(1 - share, EARLY / (tail[SEEN] + 1))
    elif p > BODY:
        # Below the threshold, which a share 1 - BODY is, by the bundle's table.
        edge = share_below(standard(threshold ** (2 / 3), 1.0), streams.normal[seat][SPREAD], tables.rarity)
        p = 1 - (1 - BODY) * (share / edge if share < edge else 1.0)
    return p, standard(root, size), count


@part
def _alarm(alarm, lag, p, value, innovation, told, row, room):
    """Whether the observation is an alarm, and its place in the tally."""
    expected = min(alarm.rate + alarm.per_time * lag, 1.0)
    is_outside, is_there = False, False
    for a in range(len(value)):
        if value[a] == value[a]:
            is_outside = is_outside or value[a] < alarm.low or value[a] > alarm.high
            size = innovation[a] if alarm.direction >= 0 else -innovation[a]
            if alarm.direction == 0:
                size = abs(size)
            is_there = is_there or (size > 0 and size >= alarm.deviation)
    is_alarm, evidence = (p <= expected and is_there) or is_outside, -np.log(p)
    if room.tail[QUIET] > 0:
        is_alarm = is_alarm and evidence > NEWS * room.tail[HELD]
        room.tail[QUIET] -= 1
    if is_alarm:
        room.tail[QUIET], room.tail[HELD] = alarm.quiet, evidence
    told.alarm[row] = 1 if is_alarm else 0
    told.tally[row, ASKED], told.tally[row, EXPECTED] = 1, expected
    told.tally[row, ALARMS] = 1 if is_alarm else 0


@merged
def _score(streams, tables, seat, is_scored, seen, nis, told, row, room):
    """Anomaly score, and the running surprise after it."""
    teaches = False
    for a in range(len(is_scored)):
        teaches = teaches or is_scored[a]
    p, z, count = _rareness(streams, tables, seat, teaches, seen, nis, room)
    told.anomaly[row] = 1 - p
    surprise = streams.surprise[seat]
    if seen > 0:
        bounded = min(max(z, -SURPRISE_CAP), SURPRISE_CAP)
        surprise = (1 - SURPRISE_RATE) * surprise + SURPRISE_RATE * bounded
    told.confidence[row] = interpolate(surprise, tables.surprise, tables.inside)
    return surprise, p, count


@part
def _precision(tables, known, surprise):
    """One over the calibrated variance of the state: the model's, by what its gain and the running surprise say."""
    state, innovation = 0.0, 0.0
    for a in range(len(known.mean)):
        state += known.covariance[a, a]
        innovation += known.innovation_covariance[a, a]
    trust, gain = tables.trust, state / max(innovation, LEAST_VARIANCE)
    factor = interpolate(gain, trust.gain, trust.by_gain) * interpolate(surprise, trust.surprise, trust.by_surprise)
    return known.scalars[PRECISION] / factor


@part
def _follow_step(tables, lag, known, weighted_nis, told, row, room):
    """Hold the forecast of this observation against it."""
    position = np.log(max(lag, SHORTEST))
    line, last = 0, len(tables.log_horizons) - 1
    while line < last and tables.log_horizons[line + 1] <= position:
        line += 1
    share = 0.0
    if line < last and position > tables.log_horizons[0]:
        share = (position - tables.log_horizons[line]) / (tables.log_horizons[line + 1] - tables.log_horizons[line])
    for level in range(len(room.multipliers)):
        room.multipliers[level] = tables.lines[line, 0, level] + share * tables.lines[line, 1, level]
    for a in range(len(room.scores)):
        innovation = known.innovation[a]
        room.is_above[a] = innovation > 0
        room.scores[a] = abs(innovation) / np.sqrt(max(known.innovation_covariance[a, a], LEAST_VARIANCE))
        radii(room.multipliers, room.shift[0, a], room.widths[a])
        few = known.few[0, a]
        for edge in range(room.edges.shape[1]):
            band = _band(room.widths[a], tables.pit_columns, tables.pit_weights, edge)
            room.edges[a, edge] = band * stretched(tables.pit_squares[edge], few)
        for level in range(room.widths.shape[1]):
            room.widths[a, level] *= stretched(tables.squares[level], few)
        if room.is_scored[a]:
            score_step(room.shift[0, a], room.widths[a], room.scores[a], tables.miss_rates)
    tally(room.is_scored, weighted_nis, room.is_above, room.scores, room.edges, room.widths, told.tally[row])


@part
def _find_columns(wanted, leads, unit, room):
    """The lead of each column of the horizon, and the column that is followed as each lead, -1 for none: the first near
    it, unless that would wait for too long."""
    for lead in range(len(room.column)):
        room.column[lead] = -1
    for column in range(len(wanted.horizon)):
        lead = lead_of(leads.times, wanted.horizon[column], unit) if leads.are_own else wanted.lead[column]
        room.lead[column] = lead
        if room.column[lead] < 0 and wanted.horizon[column] <= FURTHEST * leads.times[lead] * unit:
            room.column[lead] = column


@part
def _forecast(wanted, tables, known, told, row, room):
    """Moments and intervals of the forecasts; whether all are finite."""
    total = 0.0
    for h in range(len(wanted.horizon)):
        for a in range(len(room.scores)):
            mean, variance = known.forecast_mean[h, a], known.forecast_covariance[h, a, a]
            deviation, few = np.sqrt(max(variance, 0.0)), known.forecast_few[h, a]
            told.moments[row, h, 0, a] = mean
            told.moments[row, h, 1, a] = deviation * wanted.scale[h]
            if known.sides.shape[2] > 0:
                total += _sided(wanted, known, told, row, room, h, a)
            else:
                radii(wanted.multipliers[h], room.shift[room.lead[h], a], room.radius[h, a])
                for level in range(told.bands.shape[2]):
                    half = deviation * _band(room.radius[h, a], wanted.columns, wanted.weights[h], level)
                    half *= stretched(wanted.squares[level], few)
                    told.bands[row, h, level, a, 0] = mean - half
                    told.bands[row, h, level, a, 1] = mean + half
                    total += half
                for level in range(room.radius.shape[2]):
                    room.radius[h, a, level] *= deviation * stretched(tables.squares[level], few)
            total += mean + variance
    return total


@part
def _sided(wanted, known, told, row, room, h, a):
    """Intervals of a forecast that are not as wide above as below."""
    mean, total = known.forecast_mean[h, a], 0.0
    calibrated = room.shift.shape[2]
    for side in range(2):
        for level in range(calibrated):
            room.multipliers[level] = known.sides[h, a, side * calibrated + level]
        radii(room.multipliers, room.shift[room.lead[h], a], room.side)
        for level in range(calibrated):
            room.radius[h, a, side * calibrated + level] = room.side[level]
        for level in range(told.bands.shape[2]):
            half = _band(room.side, wanted.columns, wanted.weights[h], level)
            told.bands[row, h, level, a, side] = mean + (half if side else -half)
            total += half
    return total


@part
def _load(tracks, seat, room):
    """Have v of a stream at hand."""
    copy3(tracks.shift[seat], room.shift)
    room.loaded[0], room.loaded[1] = seat, 0
    for place in range(tracks.radius.shape[1]):
        if tracks.radius[seat, place, 0, tracks.radius.shape[3] - 1] != 0:
            room.loaded[1] += 1


@part
def _leave(tracks, seat, room):
    """Forecasts whose time has come leave their places, and v is what they taught."""
    copy3(room.shift, tracks.shift[seat])
    for place in range(len(room.arrived)):
        if room.arrived[place]:
            clear(tracks.radius[seat, place])
            room.loaded[1] -= 1


@part
def _wait(leads, tracks, wanted, seat, now, unit, count, known, room):
    """Keep forecasts until their observation comes; where one waits in their place, they are not scored."""
    widths, levels = room.radius.shape[2], room.shift.shape[2]
    for lead in range(1, len(room.column)):
        column = room.column[lead]
        if column < 0:
            continue
        due = now + wanted.horizon[column]
        place = place_of(leads, lead, wanted.horizon[column], due, wanted.horizon[column] / unit, count)
        if place < 0:
            continue
        if tracks.radius[seat, place, 0, widths - 1] != 0:
            continue
        tracks.due[seat, place] = due
        room.loaded[1] += 1
        for a in range(len(room.scores)):
            tracks.mean[seat, place, a] = known.forecast_mean[column, a]
            for width in range(widths):
                shift = room.shift[lead, a, width % levels] if known.is_foretold[a] else INFINITE
                tracks.radius[seat, place, a, width] = counted_radius(room.radius[column, a, width], shift)


# Kept: it takes longer than the rest of most kernels.
@kept_part(adaptive, forecast_checks, learned_normal, learned_tail, students_t)
def conclude(streams, leads, tables, wanted, seat, now, value, known, is_finite, told, row, room):
    """Tell about an observation, and commit what its stream learned if all of it is finite.

    Args:
        seat: of the stream; `now` and `value` `[P]`, NaN where missing, are the observation.
        is_finite: whether the filter's own state is.
        told, row: where to.

    Returns:
        whether it was committed.
    """
    told.is_good[row] = False
    count = streams.counts[seat]
    lag = now - streams.time[seat] if count > 0 else 0.0
    step = typical_step(streams.step[seat], lag, count)
    unit = step / leads.step if leads.are_own and step > 0 else 1.0
    weight, nis, log_likelihood = known.scalars[WEIGHT], known.scalars[NIS], known.scalars[LOG_LIKELIHOOD]
    seen, total = 0, 0.0
    for a in range(len(value)):
        is_seen = value[a] == value[a]
        seen += 1 if is_seen else 0
        room.is_scored[a] = is_seen and count > 0 and known.is_foretold[a]
        told.mean[row, a] = known.mean[a]
        deviation = np.sqrt(max(known.covariance[a, a], 0.0))
        told.std[row, a] = deviation * wanted.state_scale
        told.innovation[row, a] = known.innovation[a] if is_seen else np.nan
        total += known.mean[a] + known.innovation[a]
        for b in range(len(value)):
            total += known.covariance[a, b] + known.innovation_covariance[a, b]
        for level in range(told.interval.shape[1]):
            half = deviation * wanted.state[level] * stretched(wanted.squares[level], known.few[1, a])
            told.interval[row, level, a, 0] = known.mean[a] - half
            told.interval[row, level, a, 1] = known.mean[a] + half
    surprise, p, columns_of_tail = _score(streams, tables, seat, room.is_scored, seen, max(nis, 0.0), told, row, room)
    precision = _precision(tables, known, surprise)
    tracks = streams.tracks
    if room.loaded[0] != seat:
        _load(tracks, seat, room)
    _find_columns(wanted, leads, unit, room)
    clear(room.held)
    arrived = 0
    if room.loaded[1] > 0:
        arrived = score_waiting(
            leads, tracks, seat, now, lag, unit, value, tables.miss_rates, room.shift, room.change, room.arrived,
            room.held,
        )  # fmt: skip
    _follow_step(tables, lag / unit, known, weight * max(nis, 0.0), told, row, room)
    if count > 0 and seen > 0:
        told.tally[row, OUTLIERS] = 1 if nis > outlier_gate(seen) else 0
        tally_leads(wanted.horizon, step, lag, room.column, room.held, told.tally[row])
    told.alarm[row] = np.nan
    if seen > 0 and (wanted.alarm.rate > 0 or wanted.alarm.per_time > 0):
        _alarm(wanted.alarm, lag, p, value, known.innovation, told, row, room)
    total += _forecast(wanted, tables, known, told, row, room)
    for k in range(COLUMNS):
        total += room.normal[k]
    total += surprise + told.anomaly[row] + precision + weight + nis + log_likelihood
    if not (is_finite and np.isfinite(total)):
        room.loaded[0] = -1
        return False
    told.position[row], told.precision[row], told.log_likelihood[row] = count, precision, log_likelihood
    told.weight[row], told.nis[row] = weight, nis
    if seen == 0:
        told.weight[row] = told.nis[row] = told.anomaly[row] = np.nan
    if arrived > 0:
        _leave(tracks, seat, room)
    copy2(room.shift[0], tracks.shift[seat, 0])
    if step > 0 or not leads.are_own:
        _wait(leads, tracks, wanted, seat, now, unit, count, known, room)
    for k in range(COLUMNS):
        streams.normal[seat, k] = room.normal[k]
    for k in range(columns_of_tail):
        streams.tail[seat, k] = room.tail[k]
    streams.surprise[seat], streams.time[seat], streams.counts[seat] = surprise, now, count + 1
    streams.step[seat] = step
    told.is_good[row] = True
    return True
