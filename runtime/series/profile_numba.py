"""The profile of a column over the local day and week, or over the year for daily rows, in constant memory.

    p(u) = d(u) + q w(u)        forecasts at local time u: p(u) + ℓ, and the last value + p(u) − p(now)

d has a bin for each row of a day, at most DAY_BINS, and w has deviations of each weekday, at most SLOTS. Daily rows
have a bin for each day of the year, and d is the mean of the bins near a day. After a value y, with e = y − p − ℓ
bounded by FAR s, and s the mean of |e|,

    d ← d + max(GAIN, 1 / (n + 1)) e        n: cycles so far
    w ← w + max(WEEK_GAIN, 1 / (weeks + 1)) (e + (q − 1) w) / (values per slot)
    ℓ ← ℓ + e / N        N: the number of values in a week; 90 for daily rows. s is over N values, too.

If e is beyond FAR s on the same side as at the previous visit of the bin, d moves by the smaller of the two errors, and
so does w if that holds for the slot of the weekday. Deviations that recur are therefore learned the second time, and
unique ones change d and w only slightly. With the mean errors of a weekday over WEEKDAY_CYCLES days, E_d without its
deviations and E_w with them, q = E_d⁸ / (E_d⁸ + E_w⁸). In the first week, q is 0.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series import leads as series_leads
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.leads import DAY, WEEK, YEAR

# Other modules whose functions this module calls.
SOURCES = (series_leads,)
# Range of times that are treated as seconds since 1970: the years 1971 to 9998. Smaller numbers may be row counts.
FIRST_MOMENT, LAST_MOMENT = 365 * DAY, 253_300_000_000.0
# Minimum number of bins of a day, maximum distance of the lag of daily rows from a day, and number of bins on each side
# of a day of the year that are averaged.
LEAST_BINS, DAILY, AROUND = 4, 0.1, 7
# Relative change of the number of bins above which the profile starts again.
UNLIKE_BINS = 0.25
GAIN, WEEK_GAIN, FAR, SHARPNESS = 0.12, 0.25, 4.0, 8.0
# Minimum number of errors before they are bounded (also at least a day), number of daily rows that ℓ covers, and number
# of days that the mean errors of a weekday cover.
FAR_FROM, LEVEL_ROWS, WEEKDAY_CYCLES = 20.0, 90.0, 2.0
# Value of a bin without values.
UNSEEN = np.float32(1e30)
# Monday is day 0, and 1970 began on a Thursday.
FIRST_WEEKDAY = 3.0


@inline_jit
def _cycle(unit, moment):
    """Return the length in seconds of the cycle (day or year) of rows that are `unit` seconds apart. Return 0 if there
    is none."""
    if not (FIRST_MOMENT <= moment <= LAST_MOMENT and unit > 0):
        return 0.0
    if abs(unit - DAY) <= DAILY * DAY:
        return YEAR
    return DAY if LEAST_BINS * unit <= DAY else 0.0


@inline_jit
def _bins(cycle, unit):
    return min(np.rint(cycle / max(unit, 1.0)), at.DAY_BINS) if cycle == DAY else 366.0


@inline_jit
def _bin(numbers, moment):
    """Return the profile bin of a local time. Bins of a daily profile are centred on multiples of the bin width. Bins
    of a yearly profile begin there."""
    bins = np.int64(min(max(numbers[at.PROFILE_BINS], 1.0), at.DAY_BINS))
    if numbers[at.PROFILE_CYCLE] == DAY:
        return np.int64(np.rint(moment % DAY * bins / DAY)) % bins
    return np.int64(np.floor(moment / DAY) * DAY % YEAR * bins / YEAR) % bins


@inline_jit
def _weekday(moment):
    return np.int64(np.floor(moment / DAY) + FIRST_WEEKDAY) % 7


@inline_jit
def _slot(numbers, moment):
    """Return the index of the slot of a weekday."""
    slots = np.int64(min(max(numbers[at.PROFILE_BINS], 1.0), at.SLOTS)) if numbers[at.PROFILE_CYCLE] == DAY else 1
    return _weekday(moment) * at.SLOTS + np.int64(moment % DAY * slots / DAY) % slots


@inline_jit
def _day_profile(numbers, memory, moment):
    """Return the value of the daily profile d at a local time, or NaN if there were no values at that time of day."""
    k = _bin(numbers, moment)
    if numbers[at.PROFILE_CYCLE] == DAY:
        return np.float64(memory[at.DAY_PROFILE + k]) if memory[at.DAY_LAST + k] != UNSEEN else np.nan
    bins, total, count = np.int64(min(max(numbers[at.PROFILE_BINS], 1.0), at.DAY_BINS)), 0.0, 0
    for i in range(k - AROUND, k + AROUND + 1):
        if memory[at.DAY_LAST + i % bins] != UNSEEN:
            total += np.float64(memory[at.DAY_PROFILE + i % bins])
            count += 1
    return total / count if count > 0 else np.nan


@inline_jit
def _week_share(numbers, moment):
    """Return q, the factor by which the deviations of a weekday are multiplied."""
    weekday = _weekday(moment)
    without, with_weekday = numbers[at.DAY_ERROR + weekday], numbers[at.WEEK_ERROR + weekday]
    if moment - numbers[at.PROFILE_BEGAN] < WEEK or not without > 0:
        return 0.0
    return 1 / (1 + (with_weekday / without) ** SHARPNESS)


@inline_jit
def _level_rows(numbers):
    """Return N, the number of values over which ℓ and s are averaged."""
    return 7 * numbers[at.PROFILE_BINS] if numbers[at.PROFILE_CYCLE] == DAY else LEVEL_ROWS


@inline_jit
def expected(numbers, memory, moment):
    """Return the profile p at a local time, relative to the first value of the column. Return NaN if there are no
    values."""
    if numbers[at.PROFILE_CYCLE] == 0:
        return np.nan
    share = _week_share(numbers, moment)
    return _day_profile(numbers, memory, moment) + share * memory[at.WEEK_PROFILE + _slot(numbers, moment)]


@inline_jit
def forget_profile(numbers):
    """Disable the profile until the next value."""
    numbers[at.PROFILE_CYCLE] = 0.0
    numbers[at.PROFILE_NOW] = UNSEEN


@inline_jit
def _begin_profile(numbers, memory, moment, cycle, bins):
    for k in range(at.PROFILE_CYCLE, at.PROFILE_END):
        numbers[k] = 0.0
    numbers[at.PROFILE_CYCLE], numbers[at.PROFILE_BINS], numbers[at.PROFILE_BEGAN] = cycle, bins, moment
    numbers[at.LAST_BIN], numbers[at.LAST_SLOT], numbers[at.PROFILE_NOW] = -1.0, -1.0, UNSEEN
    for k in range(at.DAY_BINS):
        memory[at.DAY_LAST + k] = UNSEEN
    for k in range(7 * at.SLOTS):
        memory[at.WEEK_PROFILE + k] = memory[at.WEEK_LAST + k] = np.float32(0.0)


@inline_jit
def update_profile(numbers, memory, moment, unit, value, is_odd):
    """Add a value at a local time. Of several successive values in one bin, only the first is added."""
    cycle = _cycle(unit, moment)
    bins = _bins(cycle, unit)
    is_like = abs(bins - numbers[at.PROFILE_BINS]) <= UNLIKE_BINS * bins
    if cycle == 0:
        forget_profile(numbers)
        return
    if cycle != numbers[at.PROFILE_CYCLE] or not is_like or moment < numbers[at.PROFILE_BEGAN]:
        _begin_profile(numbers, memory, moment, cycle, bins)
    value -= numbers[at.FIRST]
    if _bin(numbers, moment) != numbers[at.LAST_BIN]:
        numbers[at.LAST_BIN] = _bin(numbers, moment)
        # An outlier may recur, but must not be the first value of a bin.
        if not is_odd or memory[at.DAY_LAST + _bin(numbers, moment)] != UNSEEN:
            _learn(numbers, memory, moment, value)
    if not is_odd:
        now = expected(numbers, memory, moment)
        numbers[at.PROFILE_NOW] = now if now == now else UNSEEN


@inline_jit
def _bound(numbers):
    """Return the bound on errors, FAR s. It is infinite on the first day, and while all errors are zero, which they are
    for hours where nights are zero."""
    least = max(numbers[at.PROFILE_BINS], FAR_FROM) if numbers[at.PROFILE_CYCLE] == DAY else FAR_FROM
    is_known = numbers[at.PROFILE_ERRORS] >= least and numbers[at.PROFILE_ERROR] > 0
    return FAR * numbers[at.PROFILE_ERROR] if is_known else np.inf


@inline_jit
def _learn(numbers, memory, moment, value):
    k, rows, bound = _bin(numbers, moment), _level_rows(numbers), _bound(numbers)
    share = _week_share(numbers, moment)
    weekday = np.float64(memory[at.WEEK_PROFILE + _slot(numbers, moment)])
    day = _day_profile(numbers, memory, moment)
    level = numbers[at.PROFILE_LEVEL]
    # Use the value of the bin itself, because d may be the mean of several bins.
    own = value - level - share * weekday
    if memory[at.DAY_LAST + k] == UNSEEN:
        memory[at.DAY_PROFILE + k], memory[at.DAY_LAST + k] = np.float32(own), np.float32(0.0)
    else:
        error, last = own - np.float64(memory[at.DAY_PROFILE + k]), np.float64(memory[at.DAY_LAST + k])
        if abs(error) > bound and abs(last) > bound and error * last > 0:
            move = error if abs(error) < abs(last) else last
        else:
            cycles = np.floor((moment - numbers[at.PROFILE_BEGAN]) / numbers[at.PROFILE_CYCLE])
            move = max(GAIN, 1 / (cycles + 1)) * min(max(error, -bound), bound)
        memory[at.DAY_PROFILE + k] += np.float32(move)
        memory[at.DAY_LAST + k] = np.float32(error - move)
    if day == day:
        without = value - level - day
        _learn_week(numbers, memory, moment, without, bound)
        error = min(max(without - share * weekday, -bound), bound)
        numbers[at.PROFILE_ERRORS] += 1
        size = abs(error) - numbers[at.PROFILE_ERROR]
        numbers[at.PROFILE_ERROR] += size / min(numbers[at.PROFILE_ERRORS], rows)
        numbers[at.PROFILE_LEVEL] += error / rows


@inline_jit
def _learn_week(numbers, memory, moment, error, bound):
    """Update the deviations of the weekday with an error, and update the mean errors with and without them."""
    slot, day = _slot(numbers, moment), _weekday(moment)
    weekday = np.float64(memory[at.WEEK_PROFILE + slot])
    bins = numbers[at.PROFILE_BINS] if numbers[at.PROFILE_CYCLE] == DAY else 1.0
    weeks = np.floor((moment - numbers[at.PROFILE_BEGAN]) / WEEK)
    if weeks > 0:
        numbers[at.WEEKDAY_ERRORS + day] += 1
        rows = min(numbers[at.WEEKDAY_ERRORS + day], WEEKDAY_CYCLES * _level_rows(numbers) / 7)
        for which, mean in ((0.0, at.DAY_ERROR + day), (1.0, at.WEEK_ERROR + day)):
            numbers[mean] += (min(abs(error - which * weekday), bound) - numbers[mean]) / rows
    error -= weekday
    _compare_with_last_week(numbers, memory, slot, error, bound)
    if numbers[at.RECURRING] != 0:
        gain, bound = 1.0, abs(numbers[at.RECURRING])
    else:
        gain = max(WEEK_GAIN, 1 / (weeks + 1))
    memory[at.WEEK_PROFILE + slot] += np.float32(gain * min(max(error, -bound), bound) / max(bins / at.SLOTS, 1.0))


@inline_jit
def _compare_with_last_week(numbers, memory, slot, error, bound):
    """Set RECURRING at the first value of a visit of a slot."""
    if slot == numbers[at.LAST_SLOT]:
        return
    last = np.float64(memory[at.WEEK_LAST + slot])
    recurs = abs(error) > bound and abs(last) > bound and error * last > 0
    numbers[at.LAST_SLOT], numbers[at.RECURRING] = slot, last if recurs else 0.0
    memory[at.WEEK_LAST + slot] = np.float32(error)
