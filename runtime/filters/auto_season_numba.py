"""The seasons of `auto`: profiles of a period, and the search for a period.

The equations are in `auto_numba.py`, and the memory layout is in `auto_layout.py`.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters import auto_layout as at
from rfa.runtime.filters.auto_bank_numba import slot_of

# Periods within this relative distance are treated as equal.
SAME_PERIOD = 0.02
PROFILE_GAIN = 0.15
# Observations with a smaller weight than this are outliers.
ODD = 0.5


@inline_jit
def add_to_profiles(state, memory, rest, unit):
    """Update the seasonal profiles with an observed value."""
    for j in range(1, at.PROFILES):
        slots = int(state[at.USED + j])
        if slots == 0:
            continue
        if state[at.ELAPSED] > state[at.PERIOD + j] + at.SET_UP * unit:
            state[at.IS_COMPLETE + j] = 1.0
        slot = slot_of(state, j, 0.0)
        # A slot with many observations per period forgets a whole period as slowly as a slot with one observation.
        least = PROFILE_GAIN * min(slots * unit / state[at.PERIOD + j], 1.0)
        entry, visits = at.PROFILE[j] + slot, at.PROFILE[j] + slots + slot
        above = rest - state[at.LEVEL_BEFORE + j]
        if memory[visits] == 0:
            memory[entry] = above
            memory[visits] = 1
            continue
        count, is_odd = abs(memory[visits]), state[at.FIT] < ODD
        # An outlier has full weight only if the previous observation in its slot was also an outlier.
        weight = 1.0 if is_odd and memory[visits] < 0 else state[at.FIT]
        memory[entry] += weight * max(1 / (count + 1), least) * (above - memory[entry])
        count = min(count + 1, 1 / least)
        memory[visits] = -count if is_odd else count


@inline_jit
def search_period(state, memory, unit, count):
    """Search the last observations for a period, and set up a profile for a new period."""
    first = int(state[at.ROWS]) - count
    for k in range(count):
        state[at.SEARCHED + k] = memory[at.LAST + (first + k) % at.RING]
    steps = dominant_period(state[at.SEARCHED :], count)
    if steps < at.FEWEST_SLOTS:
        return
    period = steps * unit
    for j in range(1, at.PROFILES):
        if state[at.USED + j] > 0 and abs(period / state[at.PERIOD + j] - 1) < SAME_PERIOD:
            return
    slots = min(int(steps), at.SLOTS[at.FOUND])
    state[at.PERIOD + at.FOUND], state[at.USED + at.FOUND], state[at.IS_COMPLETE + at.FOUND] = period, slots, 1.0
    start = at.PROFILE[at.FOUND]
    for k in range(2 * slots):
        memory[start + k] = 0.0
    for k in range(count):
        slot = slot_of(state, at.FOUND, -(count - 1 - k) * unit + np.ceil(count / steps) * period)
        visits, value = memory[start + slots + slot], memory[at.LAST + (first + k) % at.RING]
        memory[start + slot] += max(1 / (visits + 1), PROFILE_GAIN) * (value - memory[start + slot])
        memory[start + slots + slot] = min(visits + 1, 1 / PROFILE_GAIN)
    above = memory[at.LAST + (first + count - 1) % at.RING] - memory[start + slot_of(state, at.FOUND, 0.0)]
    for i in range(at.KINDS):
        lane = at.FOUND * at.KINDS + i
        state[at.BASE + lane], state[at.SLOPE + lane] = above if i >= at.GROUND else 0.0, 0.0
    for lead in range(at.LEAD_COUNT):
        state[at.SCORED + lead * at.PROFILES + at.FOUND] = 0.0
        for e in range(at.FOUND * at.KINDS, at.BANK):
            # Until the filter has errors, it gets the largest error of the filters without a season.
            state[at.ERROR + lead * at.BANK + e] = _worst_error(state, lead)
            if lead > 0:
                for entry in range(at.MOST_PENDING):
                    memory[at.PENDING + ((lead - 1) * at.MOST_PENDING + entry) * (at.BANK + 1) + e] = at.ABSENT


@inline_jit
def _worst_error(state, lead):
    worst = 0.0
    for e in range(at.KINDS):
        worst = max(worst, state[at.ERROR + lead * at.BANK + e])
    return worst


@inline_jit
def dominant_period(rest, count):
    """Return the lag at which the residuals of a regression line have the highest autocorrelation. Return 0 if there is
    no peak.

    Args:
        rest: `count` values, and space for LAGS_AT_ONCE more. It is overwritten with the bounded residuals of the line,
            and zeros.
        count: Number of values.
    """
    middle, mean, slope, square = (count - 1) / 2, 0.0, 0.0, 0.0
    for k in range(count):
        mean += rest[k] / count
        slope += (k - middle) * rest[k]
        square += (k - middle) ** 2
    slope /= square
    power = 0.0
    for k in range(count):
        rest[k] -= mean + slope * (k - middle)
        power += rest[k] * rest[k] / count
    bound, total = 4 * np.sqrt(power), 0.0
    for k in range(count):
        rest[k] = min(max(rest[k], -bound), bound)
        total += rest[k] * rest[k]
    for k in range(count, count + at.LAGS_AT_ONCE):
        rest[k] = 0.0
    if total <= (at.RESOLUTION * (abs(mean) + bound)) ** 2 * count:
        return 0.0
    found, best, lowest = 0.0, 0.0, 1.0
    before, last = 1.0, 1.0
    for first in range(1, count // 3 + 2, at.LAGS_AT_ONCE):
        products = _products(rest, first, count)
        for k in range(at.LAGS_AT_ONCE):
            lag = first + k
            if lag >= count // 3 + 2:
                break
            like = products[k] / total * count / (count - lag)
            if (
                lag > 2 and last >= before and last >= like and last > 0.2 and last - lowest > 0.25
                and last > 1.08 * best
            ):  # fmt: skip
                found, best = lag - 1.0, last
            lowest = min(lowest, last)
            before, last = last, like
    return found


@inline_jit
def _products(rest, lag, count):
    """Return the sums of products of values that are `lag` apart, and of those at the next LAGS_AT_ONCE - 1 lags. Zeros
    must follow the values."""
    a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(count - lag):
        one, start = rest[k], k + lag
        a += one * rest[start]
        b += one * rest[start + 1]
        c += one * rest[start + 2]
        d += one * rest[start + 3]
        e += one * rest[start + 4]
        f += one * rest[start + 5]
        g += one * rest[start + 6]
        h += one * rest[start + 7]
    return a, b, c, d, e, f, g, h
