"""The bank of `auto`: the forecasts of its filters, their combination by past errors, and the error of the combination.

The equations are in `auto_numba.py`, and the memory layout is in `auto_layout.py`.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters import auto_layout as at

_LOG_LEADS = np.log(at.LEADS)
# Number of forecasts over which the errors of a filter and of the mixture are averaged.
FILTER_MEMORY, MIXTURE_MEMORY = 100.0, 200.0
# Limit on an error as a multiple of the mean error, and the minimum of this mean as a fraction of the column's
# deviation.
LARGEST_ERROR, LEAST_SHARE = 8.0, 0.01
# In a constant column, each further equal value multiplies the error by this number.
TIED = 0.1
# Errors below this fraction of the deviation are treated as equal, because profiles have seven digits.
SAME = 1e-6
# Ratio of the squared errors at zero time ahead and at one typical lag.
LEAST_GROWTH = 0.05
# Number of errors from which a horizon uses only its own errors, and the weight of errors of overlapping forecasts.
ENOUGH, OVERLAP = 3.0, np.minimum(1.5 * at.STRIDES / at.LEADS, 1.0)
# Prior errors of a walk, and the variance of a slope times n³, half of that of a least-squares line.
WALKS, LINES = 1.0, 6.0
# Exponent of the ratio of errors in the weights.
POWER = 12
# Error of a filter without a forecast, and the smallest ratio of errors, for weights close to 0.
NO_BOUND, LEAST_RATIO = 1e300, 1e-20


@inline_jit
def set_profile(state, start, j, value):
    """Write a value of profile j to the lanes of all its filters."""
    for i in range(at.KINDS):
        state[start + j * at.KINDS + i] = value


@inline_jit
def sum_kinds(state, start):
    """Return the sum of a value over the eight kinds of filters."""
    return ((state[start] + state[start + 1]) + (state[start + 2] + state[start + 3])) + (
        (state[start + 4] + state[start + 5]) + (state[start + 6] + state[start + 7])
    )


@inline_jit
def slot_of(state, j, ahead):
    """Return the slot of profile j that belongs to the time `ahead` after the last observation."""
    slots, turns = int(state[at.USED + j]), (state[at.ELAPSED] + ahead) / state[at.PERIOD + j]
    # Even steps are in the middle of slots, so that rounding does not move them.
    return int((turns - np.floor(turns)) * slots + 0.5) % slots


@inline_jit
def set_reach(state, steps):
    """Compute, for each filter with a trend, the change of the level over `steps` typical lags for a slope of 1."""
    for trend in range(at.TRENDS):
        reach = (1 - np.exp(at.LOG_DAMPING[trend] * steps)) / (1 - at.DAMPING[trend])
        for j in range(at.PROFILES):
            state[at.REACH + j * at.KINDS + at.LEVELS + trend] = reach


@inline_jit
def forecast_bank(state, memory, ahead):
    """Compute the forecasts at the time `ahead`. If a profile has no season at this time, its season is ABSENT."""
    for j in range(at.PROFILES):
        season = 0.0
        if j > 0:
            season = at.ABSENT
            if state[at.IS_COMPLETE + j] > 0:
                slot, slots = slot_of(state, j, ahead), int(state[at.USED + j])
                if memory[at.PROFILE[j] + slots + slot] != 0:
                    season = np.float64(memory[at.PROFILE[j] + slot])
        state[at.SEASON + j] = season
        set_profile(state, at.ADDED, j, season if season != at.ABSENT else 0.0)
    for e in range(at.BANK):
        state[at.FORECASTS + e] = state[at.ADDED + e] + state[at.BASE + e] + state[at.SLOPE + e] * state[at.REACH + e]


@inline_jit
def lead_below(steps):
    """Return the index of the last horizon that is not larger than `steps`, and the position of `steps` between it and
    the next horizon in log time."""
    low = 0
    while low < at.LEAD_COUNT - 1 and at.LEADS[low + 1] <= steps:
        low += 1
    if low == at.LEAD_COUNT - 1 or steps <= at.LEADS[low]:
        return low, 0.0
    return low, (np.log(steps) - _LOG_LEADS[low]) / (_LOG_LEADS[low + 1] - _LOG_LEADS[low])


@inline_jit
def mix(state, low, share):
    """Compute the weights of the forecasts from their errors, which are interpolated between two horizons. Return the
    mean of the forecasts and the sum of the weights."""
    floor = SAME * state[at.DEVIATION] + at.TINY
    after = min(low + 1, at.LEAD_COUNT - 1)
    for j in range(at.PROFILES):
        is_there = state[at.SEASON + j] != at.ABSENT
        of_first, of_low, of_next = 0.0, 0.0, 0.0
        if is_there:
            has_next = share > 0 and state[at.SCORED + after * at.PROFILES + j] >= 3
            of_next = share if has_next else 0.0
            if state[at.SCORED + low * at.PROFILES + j] >= 3:
                of_low = 1 - of_next
            else:
                of_first = (1 - of_next) * np.sqrt(at.LEADS[low])
        set_profile(state, at.ONE, j, of_first)
        set_profile(state, at.TWO, j, of_low)
        set_profile(state, at.THREE, j, of_next)
        set_profile(state, at.FOUR, j, floor if is_there else NO_BOUND)
    one, other = at.ERROR + low * at.BANK, at.ERROR + after * at.BANK
    for e in range(at.BANK):
        state[at.WEIGHTS + e] = (
            state[at.ONE + e] * state[at.ERROR + e]
            + state[at.TWO + e] * state[one + e]
            + state[at.THREE + e] * state[other + e]
            + state[at.FOUR + e]
        )
    for i in range(at.KINDS):
        least = state[at.WEIGHTS + i]
        for j in range(1, at.PROFILES):
            least = min(least, state[at.WEIGHTS + j * at.KINDS + i])
        state[at.SUM + i] = least
    least = state[at.SUM]
    for i in range(1, at.KINDS):
        least = min(least, state[at.SUM + i])
    for e in range(at.BANK):
        ratio = max(least / state[at.WEIGHTS + e], LEAST_RATIO)
        cube = ratio * ratio * ratio
        state[at.WEIGHTS + e] = (cube * cube) * (cube * cube)
    if state[at.COUNT] <= POWER:
        # With few errors, w ∝ E^(-n).
        for e in range(at.BANK):
            state[at.WEIGHTS + e] **= (state[at.COUNT] - 1) / POWER if state[at.COUNT] > 1 else 0.0
    for i in range(at.KINDS):
        total, mean = 0.0, 0.0
        for j in range(at.PROFILES):
            weight = state[at.WEIGHTS + j * at.KINDS + i]
            total += weight
            mean += weight * state[at.FORECASTS + j * at.KINDS + i]
        state[at.SUM + i], state[at.SUM + at.KINDS + i] = total, mean
    total = sum_kinds(state, at.SUM)
    return sum_kinds(state, at.SUM + at.KINDS) / total, total


@inline_jit
def spread_of_forecasts(state, mean, total):
    """Return the mean squared distance of the forecasts from their mean."""
    for i in range(at.KINDS):
        square = 0.0
        for j in range(at.PROFILES):
            off = state[at.FORECASTS + j * at.KINDS + i] - mean
            square += state[at.WEIGHTS + j * at.KINDS + i] * off * off
        state[at.SUM + i] = square
    return sum_kinds(state, at.SUM) / total


@inline_jit
def _independent_errors(state, lead):
    """Return the effective number of errors at a horizon. It is smaller than their number, because overlapping
    forecasts have similar errors."""
    return state[at.MIXED + lead] * OVERLAP[lead]


@inline_jit
def _error_growth(steps, walk, line):
    """Return the ratio of the squared error `steps` ahead to that one step ahead. It is the sum of the contributions of
    a level, a random walk and a line."""
    return max(1 + (steps - 1) * walk + max(steps * steps - 1, 0.0) * line, LEAST_GROWTH)


@inline_jit
def mixture_error(state, steps, low, share):
    """Return the error of the mixture `steps` ahead, between the horizons `low` and `low + 1`.

    Returns:
        The mean absolute error, the inverse of the number of errors from which it is computed, and the fraction of it
        that had to be extrapolated.
    """
    count = max(state[at.COUNT] - 1, 1.0)
    walk = (count * state[at.GAIN] * state[at.GAIN] + WALKS) / (count + WALKS)
    line = LINES / (count + 2) ** 3
    lead = low
    while lead > 0 and _independent_errors(state, lead) < ENOUGH:
        lead -= 1
    error, reach, errors, lacking = state[at.MIXTURE + lead], at.LEADS[lead], count, 0.0
    if lead > 0:
        errors = _independent_errors(state, lead)
    while lead < low:
        lead += 1
        there = _independent_errors(state, lead) / ENOUGH
        grown = _error_growth(at.LEADS[lead], walk, line) / _error_growth(reach, walk, line)
        error = np.sqrt((1 - there) * error * error * grown + there * state[at.MIXTURE + lead] ** 2)
        reach, errors, lacking = at.LEADS[lead], min(errors, ENOUGH), 1 - there
    if steps != reach:
        there = min(_independent_errors(state, low + 1) / ENOUGH, 1.0) if share > 0 else 0.0
        between = error + share * (state[at.MIXTURE + low + 1] - error) if there > 0 else 0.0
        grown = _error_growth(steps, walk, line) / _error_growth(reach, walk, line)
        error = np.sqrt((1 - there) * error * error * grown + there * between * between)
        if steps > reach:
            lacking = max(lacking, 1 - there)
            errors = min(errors, max(_independent_errors(state, low + 1), ENOUGH) if there > 0 else ENOUGH)
    return max(error, at.RESOLUTION * state[at.LARGEST] + at.TINY), 1 / errors, lacking


@inline_jit
def score_bank(state, lead, value, forecasts):
    """Update the errors of the filters with a value. Their forecasts of it begin at the index `forecasts`."""
    for j in range(at.PROFILES):
        rate, slack = 0.0, 0.0
        if state[forecasts + j * at.KINDS] < at.ABSENT / 2:
            entry = at.SCORED + lead * at.PROFILES + j
            state[entry] = min(state[entry] + 1, FILTER_MEMORY)
            rate, slack = 1 / state[entry], 0.0 if state[entry] > at.YOUNG else NO_BOUND
        set_profile(state, at.ONE, j, rate)
        set_profile(state, at.TWO, j, slack)
    floor, errors = LEAST_SHARE * state[at.DEVIATION], at.ERROR + lead * at.BANK
    for e in range(at.BANK):
        mean = state[errors + e]
        error = min(abs(value - state[forecasts + e]), LARGEST_ERROR * max(mean, floor) + state[at.TWO + e])
        state[errors + e] = mean + (error - mean) * state[at.ONE + e]


@inline_jit
def score_mixture(state, lead, error, stands):
    """Update the error of the mixture. `stands` is true if the column is constant. An error of 0 then only reflects the
    resolution of the column."""
    count = min(state[at.MIXED + lead] + 1, MIXTURE_MEMORY)
    mean, floor = state[at.MIXTURE + lead], LEAST_SHARE * state[at.DEVIATION]
    bounded = min(error, LARGEST_ERROR * max(mean, floor)) if count > at.YOUNG else error
    after = TIED * mean if stands else mean + (bounded - mean) / count
    state[at.MIXED + lead], state[at.MIXTURE + lead] = count, after
