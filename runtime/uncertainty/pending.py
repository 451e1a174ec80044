"""Forecasts that are pending until an observation arrives at their time. The rules are in adaptive.py."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.uncertainty.adaptive import EDGE, EMPTY, INFINITE, JITTER
from rfa.runtime.uncertainty.copy_arrays import clear, copy3

# Largest half-width, which represents infinity, and smallest half-width. It is not 0, which means that nothing is
# pending.
_LARGEST, _LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
# A forecast further ahead than this multiple of its calibrated horizon would be pending for too long.
FURTHEST = 2.0


@inline_jit
def _nearest_horizon(times, horizon, unit):
    """Return the index of the horizon in `times`, in units of `unit`, that is nearest to `horizon` in log time. The
    first horizon is skipped, because it represents the next observation at any time."""
    index = 1
    while index + 1 < len(times) and horizon * horizon > unit * unit * times[index] * times[index + 1]:
        index += 1
    return index


@inline_jit
def match_horizons(spec, horizons, unit, work):
    """Match requested and calibrated horizons.

    `work.horizon_index` is set to the calibrated horizon of each requested one. `work.column` is set to the requested
    horizon whose forecasts are scored as those of each calibrated one. This is the first requested one that matches. It
    is -1 if there is none or its forecasts would be pending for too long.
    """
    for index in range(len(work.column)):
        work.column[index] = -1
    for column in range(len(spec.horizon)):
        requested = spec.horizon[column]
        in_steps = horizons.in_steps
        index = _nearest_horizon(horizons.times, requested, unit) if in_steps else spec.horizon_index[column]
        work.horizon_index[column] = index
        if work.column[index] < 0 and requested <= FURTHEST * horizons.times[index] * unit:
            work.column[index] = column


@inline_jit
def load_shift(state, stream, work):
    """Copy the adaptive shifts v of a stream to `work.shift`, and count its pending forecasts."""
    copy3(state.shift[stream], work.shift)
    work.loaded[0], work.loaded[1] = stream, 0
    for k in range(state.radius.shape[1]):
        if state.radius[stream, k, 0, state.radius.shape[3] - 1] != 0:
            work.loaded[1] += 1


@inline_jit
def score_pending(scorer, observation, lag, unit):
    """Score the pending forecasts of the stream that are due.

    `work.shift` is updated, and `work.arrived` is set to 1 for forecasts that end. `work.scored` contains, by horizon,
    the number of scored components and, by level, the number of those inside the interval. An observation may match
    several forecasts of a horizon. All of them start from the previous v.

    Returns:
        The number of forecasts that end.
    """
    horizons, state, rates, work = scorer.horizons, scorer.streams.conformal, scorer.tables.miss_rates, scorer.work
    stream, value = observation.stream, observation.value
    size, levels = work.shift.shape[1], work.shift.shape[2]
    count = 0
    for index in range(1, len(horizons.gamma)):
        for a in range(size):
            for level in range(levels):
                work.change[index, a, level] = 0.0
    for k in range(len(horizons.pending_horizon)):
        work.arrived[k] = 0
        if state.radius[stream, k, 0, levels - 1] == 0:
            continue
        ahead = state.due[stream, k] - observation.time
        tolerance = min(horizons.tolerance[k] * unit, lag / 2)
        if ahead > tolerance:
            continue
        work.arrived[k] = 1
        count += 1
        if ahead >= -tolerance:
            _score_one(scorer, stream, value, k, rates)
    for index in range(1, len(horizons.gamma)):
        for a in range(size):
            for level in range(levels):
                work.shift[index, a, level] += work.change[index, a, level]
    return count


@inline_jit
def _score_one(scorer, stream, value, k, rates):
    horizons, state, work = scorer.horizons, scorer.streams.conformal, scorer.work
    levels = work.shift.shape[2]
    index = horizons.pending_horizon[k]
    for a in range(len(value)):
        if value[a] == value[a]:
            error = value[a] - state.mean[stream, k, a]
            side = levels if error > 0 and state.radius.shape[3] > levels else 0
            error = abs(error)
            work.scored[index, 0] += 1
            for level in range(levels):
                radius = state.radius[stream, k, a, side + level]
                missed = 1.0 if error > radius else 0.0
                work.change[index, a, level] += horizons.gamma[index] * (missed - rates[level])
                work.scored[index, 1 + level] += 1 if error <= abs(radius) else 0


@inline_jit
def remove_arrived(state, stream, work):
    """Remove the forecasts that `score_pending` has ended, and store the updated shifts v."""
    copy3(work.shift, state.shift[stream])
    for k in range(len(work.arrived)):
        if work.arrived[k]:
            clear(state.radius[stream, k])
            work.loaded[1] -= 1


@inline_jit
def _pending_index(horizons, index, requested, due, steps, row):
    """Return the index of a pending forecast, or -1 if it is not scored.

    Args:
        index: Calibrated horizon as which the forecast is scored.
        requested: Requested horizon.
        due: Time that the forecast is for.
        steps: Requested horizon in steps of the stream.
        row: Position of the observation in its stream.
    """
    count, begin = horizons.pending_count[index - 1], horizons.pending_begin[index - 1]
    if horizons.in_steps:
        # Count rows, because a time in steps would move with every change of the typical lag.
        stride = max(np.int64(np.ceil(steps / count - JITTER)), 1)
        return begin + (row // stride) % count if row % stride == 0 else -1
    step = max(horizons.step, requested / count)
    # The remainder is exact and never infinite.
    number = np.int64(np.floor(np.fmod(due, count * step) / step + EDGE))
    return begin + number % count


@inline_jit
def _pending_half_width(width, shift):
    """Return the half-width with which a forecast is scored. It is negative if the interval is treated as empty."""
    if shift >= INFINITE:
        return _LARGEST
    sent = max(min(width, _LARGEST), _LEAST)
    return -sent if shift <= EMPTY else sent


@inline_jit
def add_pending(scorer, observation, unit, count, posterior):
    """Store the forecasts of an observation if nothing is pending at their index."""
    horizons, state, work = scorer.horizons, scorer.streams.conformal, scorer.work
    stream, widths, levels = observation.stream, work.radius.shape[2], work.shift.shape[2]
    for index in range(1, len(work.column)):
        column = work.column[index]
        if column < 0:
            continue
        requested = scorer.spec.horizon[column]
        due = observation.time + requested
        k = _pending_index(horizons, index, requested, due, requested / unit, count)
        if k < 0:
            continue
        if state.radius[stream, k, 0, widths - 1] != 0:
            continue
        state.due[stream, k] = due
        work.loaded[1] += 1
        for a in range(len(work.scores)):
            state.mean[stream, k, a] = posterior.forecast_mean[column, a]
            for width in range(widths):
                shift = work.shift[index, a, width % levels] if posterior.has_forecast[a] else INFINITE
                state.radius[stream, k, a, width] = _pending_half_width(work.radius[column, a, width], shift)
