"""Evidence of the last rows together: a level or a spread that has changed for a while.

A forecast of one row ahead follows a slow change within a few rows. So a value y at local time u is compared with what
such times brought before, and with the rows before it:

    r = y − ℓ − d(u) − q w(u)              S_k ← S_k + bounded(r − S_k) / SLOW[k]
    D_k = (F_k − S_k) / s(u)               F_k ← F_k + (S_0 + bounded(r − S_0) − F_k) / FAST[k],  F_0 = r

d is a profile of working days and one of weekends, w deviations of each weekday, q = E_d⁸ / (E_d⁸ + E_w⁸) with the
mean errors without and with w, as in `series/profile_numba.py`. ℓ is the level of a week, and s the mean of |r − S_0|
of the hour, of the bin, or a share NEAR_SHARE of that of the bins beside it, whichever is largest: the rows around a
job that runs early or late are expected to vary. S_k begin again with each weekend. Where values nearly always move in
one direction, as of a counter, y is their change. Without a clock d is a mean and s has one hour.

The scores are T_k = |D_k − its mean| for three k, and the same of the mean of squares V of (r − S_0) / s. So a random
walk, a trend or a counter is compared with its own past. Rows in a row have nearly the same T, and only peaks are
independent (declustering, Davison and Smith 1990): a stretch lasts for SHORTEST[k] rows and until T is below the
threshold u of the tail again. Its peak updates the tail (learned_tail.py, as in SPOT, Siffer et al. 2017), so a change
does not teach while it lasts. With the mean length L_k of a stretch, the tail probability of a row is P(peak ≥ T_k) /
L_k, at least 1 / (FARTHEST rows). After an alarm it has to fall by NEWS for another one in the same stretch.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.uncertainty import learned_tail
from rfa.runtime.uncertainty.learned_tail import learn_tail_probability

FAST, SLOW = np.array([1.0, 4.0, 16.0]), np.array([24.0, 96.0, 384.0])
LEVELS, SCORES = len(FAST), len(FAST) + 1
# Rows of the spread, and the shortest stretch of each score.
SPREAD_ROWS, SHORTEST = 16.0, np.array([4.0, 8.0, 16.0, 8.0])
# Rows of a day or weekend from which on a score counts, over FAST; of the spread SETTLED.
SETTLING, SETTLED = 4.0, 64.0
# Bins of a day, slots of a day in the week, hours; rows of a "day" without a clock, and rows before they are scored.
BINS, SLOTS, HOURS = 288, 48, 24
ROWS_OF_DAY, FIRST_ROWS = 500.0, 100.0
# Seconds; times that are moments, 1971 to 9998; and the largest share of a day between rows that has a profile.
DAY, WEEK, FIRST_WEEKDAY, WEEKEND = 86_400.0, 604_800.0, 3.0, 5
FIRST_MOMENT, LAST_MOMENT, LONGEST_STEP = 365 * DAY, 253_300_000_000.0, 0.25
# The change of the number of bins from which on the profile begins again.
UNLIKE_BINS = 0.25
# Shares by which a visit moves d, w and s, at least; how far an error counts, in s, and for the spread of a bin.
GAIN, WEEK_GAIN, SPREAD_GAIN, FAR, FARTHEST_SPREAD = 0.12, 0.25, 0.2, 4.0, 10.0
SHARPNESS = 8.0
# The share of s of the bins beside one.
NEAR_SHARE = 0.7
# A bin differs from the rows around it if its s or its step is so many s of the hour, or of so many times that of all.
# A deviation there is usual after so many visits of the bin, up to so many s beyond its profile.
# Where fewer rows than a share LEAST_MOVES differ from the one before, as of rare errors, no bin is known so well.
DISTINCT, MOST_SPREAD, LEAST_VISITS, WITHIN, LEAST_MOVES = 3.0, 1.5, 3.0, 3.0, 0.5
# Rows before errors are bounded, days that s of an hour is of, rows of means, and the least s of an hour over that of
# all rows.
BOUNDED_FROM, SPREAD_DAYS, MEMORY, LEAST_SPREAD = 40.0, 14.0, 2000.0, 0.25
# How far D counts for its mean.
FAR_FROM_MEAN = 10.0
# The share of moves in the rarer direction up to which a column is a counter, at first and later, and from which on it
# is none.
COUNTER, BECOMES_COUNTER, NO_COUNTER = 0.05, 0.02, 0.2
FARTHEST, NEWS = 40.0, 10.0
# Several scores make a small tail probability likelier by so much.
SEVERAL = 3.0
# Rows and bound of the typical deviation from the forecast.
LARGEST_SIZE, FIRST_SIZE = 3.0, 10.0
_TINY = 1e-150
_MEAN_SIZE = np.sqrt(2 / np.pi)

# Numbers of a column: rows with a deviation, and its typical size; the value before, shares of moves up and down,
# whether it is a counter, and whether that is decided.
ROWS, SIZE, BEFORE, UPS, DOWNS, IS_COUNTER, IS_DECIDED = range(7)
# Those that begin again: bins, when they began, rows, the first y, scored rows, ℓ, mean s and its rows, s of the row
# before, whether it was on a weekend, rows since that changed, E_d, E_w and V.
(
    OF_DAY, BEGAN, SEEN, FIRST, SCORED, LEVEL, SPREAD, SPREADS, SCALE, WAS_WEEKEND, SINCE, DAY_ERROR, WEEK_ERROR,
    SQUARE,
) = range(IS_DECIDED + 1, IS_DECIDED + 15)  # fmt: skip
# F and S; and of each score the mean, of its stretch the peak, rows and the last alarm's p, and of all stretches the
# mean length and the number.
NEAR, SLOWER = SQUARE + 1, SQUARE + 1 + LEVELS
MEAN, PEAK, LENGTH, RAISED, MEAN_LENGTH, STRETCHES = range(SLOWER + LEVELS, SLOWER + LEVELS + 6 * SCORES, SCORES)
NUMBERS = STRETCHES + SCORES
# The memory of a column: d, s and rows of each bin, s and rows of each hour, and w.
PROFILE, BIN_SPREAD, BIN_ROWS = 0, 2 * BINS, 4 * BINS
HOUR_SPREAD, HOUR_ROWS, WEEKDAYS = 6 * BINS, 6 * BINS + HOURS, 6 * BINS + 2 * HOURS
CELLS = WEEKDAYS + 7 * SLOTS


@inline_jit
def learn_size(numbers, deviation):
    """Update the typical size of deviations, in standard deviations of the filter."""
    most = LARGEST_SIZE * numbers[SIZE] / _MEAN_SIZE if numbers[SIZE] > 0 else FIRST_SIZE
    numbers[SIZE] += (min(abs(deviation), most) - numbers[SIZE]) / (min(numbers[ROWS], MEMORY) + 1)
    numbers[ROWS] += 1


@inline_jit
def _begin(numbers, memory, tails, time, bins):
    for k in range(OF_DAY, NUMBERS):
        numbers[k] = 0.0
    for k in range(CELLS):
        memory[k] = np.float32(0.0)
    for k in range(SCORES):
        for column in range(learned_tail.COLUMNS):
            tails[k, column] = 0.0
    numbers[OF_DAY], numbers[BEGAN], numbers[SINCE] = bins, time, SLOW[LEVELS - 1]


@inline_jit
def _follow_counter(numbers, memory, tails, value, time, rows_of_day, is_old):
    """Decide whether a column is a counter; a new decision begins again. Returns the change of the value."""
    change = value - numbers[BEFORE]
    numbers[BEFORE] = value
    if numbers[SEEN] > 0:
        rate = 1 / min(numbers[SEEN], 2 * rows_of_day)
        numbers[UPS] += ((1.0 if change > 0 else 0.0) - numbers[UPS]) * rate
        numbers[DOWNS] += ((1.0 if change < 0 else 0.0) - numbers[DOWNS]) * rate
    if is_old:
        rarer = min(numbers[UPS], numbers[DOWNS]) / max(numbers[UPS] + numbers[DOWNS], _TINY)
        most = NO_COUNTER if numbers[IS_COUNTER] > 0 else (BECOMES_COUNTER if numbers[IS_DECIDED] > 0 else COUNTER)
        is_counter = 1.0 if rarer < most else 0.0
        if is_counter != numbers[IS_COUNTER]:
            _begin(numbers, memory, tails, time, numbers[OF_DAY])
        numbers[IS_COUNTER], numbers[IS_DECIDED] = is_counter, 1.0
    return change


@inline_jit
def _hour_spread(numbers, memory, hour):
    """s of a moment between the middles of two hours; that of all rows before both have some."""
    low = np.int64(np.floor(hour - 0.5)) % HOURS
    high, share = (low + 1) % HOURS, hour - 0.5 - np.floor(hour - 0.5)
    if numbers[OF_DAY] == 1:
        low = high = 0
    if memory[HOUR_ROWS + low] <= 3 or memory[HOUR_ROWS + high] <= 3:
        return max(numbers[SPREAD], _TINY)
    spread = (1 - share) * memory[HOUR_SPREAD + low] + share * memory[HOUR_SPREAD + high]
    return max(spread, LEAST_SPREAD * numbers[SPREAD], _TINY)


@inline_jit
def _places(of_day, time):
    """The bin, the slot of the week, the hour, and whether it is a weekend; without a clock all are 0."""
    if not of_day > 1:
        return 0, 0, 0.0, 0.0
    of_day = min(of_day, BINS)  # from any bytes
    weekday, of_time = np.int64(np.floor(time / DAY) + FIRST_WEEKDAY) % 7, time % DAY / DAY
    k = np.int64(np.rint(of_time * of_day)) % np.int64(of_day) + (BINS if weekday >= WEEKEND else 0)
    slot = weekday * SLOTS + np.int64(of_time * min(of_day, SLOTS))
    return k, slot, of_time * HOURS, 1.0 if weekday >= WEEKEND else 0.0


@inline_jit
def _rows_of_bin(of_day, step):
    return max(DAY / step / of_day, 1.0) if of_day > 1 else ROWS_OF_DAY


@inline_jit
def _week_share(numbers, weeks):
    """q: how much of the deviations of weekdays counts."""
    if weeks < 1 or not numbers[DAY_ERROR] > 0:
        return 0.0
    return 1 / (1 + (numbers[WEEK_ERROR] / numbers[DAY_ERROR]) ** SHARPNESS)


@inline_jit
def _beside(of_day, k, offset):
    """The bin beside bin k of the same kind of day."""
    first = BINS if k >= BINS else 0
    return first + (k - first + offset) % np.int64(min(max(of_day, 1.0), BINS))


@inline_jit
def _bin_spread(of_day, memory, k, share):
    """s of a bin, or this share of that of those beside it."""
    if of_day <= 1:
        return np.float64(memory[BIN_SPREAD + k])
    near = max(memory[BIN_SPREAD + _beside(of_day, k, -1)], memory[BIN_SPREAD + _beside(of_day, k, 1)])
    return max(np.float64(memory[BIN_SPREAD + k]), share * near)


@inline_jit
def _is_usual_in(numbers, memory, k, y, deviation, spread, least_rows):
    """Whether a deviation leads towards the profile of a bin that differs from the rows around it, or is beside one."""
    if memory[BIN_ROWS + k] < least_rows:
        return False
    low = high = np.float64(memory[PROFILE + k])
    for offset in range(-1, 2, 2):
        near = _beside(numbers[OF_DAY], k, offset)
        if memory[BIN_ROWS + near] >= least_rows:
            low = min(low, np.float64(memory[PROFILE + near]))
            high = max(high, np.float64(memory[PROFILE + near]))
    bin_spread = _bin_spread(numbers[OF_DAY], memory, k, 1.0)
    if max(bin_spread, high - low) < DISTINCT * min(spread, MOST_SPREAD * numbers[SPREAD]):
        return False
    away = y - high if deviation > 0 else low - y
    return away <= WITHIN * max(bin_spread, spread)


@inline_jit
def is_usual(numbers, memory, value, time, deviation, step):
    """The same at a local time, by the profile of its own kind of day or the other."""
    k, slot, hour, _ = _places(numbers[OF_DAY], time)
    if numbers[OF_DAY] <= 1 or numbers[UPS] + numbers[DOWNS] < LEAST_MOVES:
        return False
    spread, share = _hour_spread(numbers, memory, hour), _week_share(numbers, np.floor((time - numbers[BEGAN]) / WEEK))
    y = (value - numbers[BEFORE] if numbers[IS_COUNTER] > 0 else value) - numbers[FIRST]
    y -= numbers[LEVEL] + numbers[SLOWER] + share * memory[WEEKDAYS + slot]
    least_rows, other = LEAST_VISITS * _rows_of_bin(numbers[OF_DAY], step), (k + BINS) % (2 * BINS)
    return _is_usual_in(numbers, memory, k, y, deviation, spread, least_rows) or _is_usual_in(
        numbers, memory, other, y, deviation, spread, least_rows
    )


@inline_jit
def _score(numbers, tail, k, score):
    """The tail probability of a score, whose stretch it belongs to."""
    length, threshold = max(numbers[MEAN_LENGTH + k], SHORTEST[k]), tail[learned_tail.THRESHOLD]
    is_begun, p = tail[learned_tail.SEEN] >= learned_tail.FIRST, 1.0
    if is_begun and score > numbers[PEAK + k]:
        p = learn_tail_probability(score, 1.0, False, tail) / length
        p = max(p, 1 / (FARTHEST * (numbers[SCORED] + 1)))
        if numbers[RAISED + k] > 0 and SEVERAL * p > numbers[RAISED + k] / NEWS:
            p = 1.0
    numbers[PEAK + k] = max(numbers[PEAK + k], score)
    numbers[LENGTH + k] += 1
    if numbers[LENGTH + k] >= SHORTEST[k] and not (is_begun and score > threshold):
        learn_tail_probability(numbers[PEAK + k], 1.0, True, tail)
        numbers[STRETCHES + k] += 1
        share = 1 / min(numbers[STRETCHES + k], MEMORY)
        numbers[MEAN_LENGTH + k] += share * (numbers[LENGTH + k] - numbers[MEAN_LENGTH + k])
        numbers[LENGTH + k] = numbers[PEAK + k] = numbers[RAISED + k] = 0.0
    return p


@inline_jit
def _score_row(numbers, tails, r, bound, scale, is_scored):
    """The tail probability of a row by all scores, which follow it."""
    since, rows, least = numbers[SINCE], numbers[SEEN], 1.0
    above = min(max(r - numbers[SLOWER], -bound), bound)
    u = min(max((r - numbers[SLOWER]) / scale, -FAR), FAR)
    numbers[SQUARE] += (u * u - numbers[SQUARE]) / min(SPREAD_ROWS, since + 1)
    for k in range(SCORES):
        if k == LEVELS:
            found, settled = numbers[SQUARE], SETTLED
        else:
            to = r if FAST[k] == 1 else numbers[SLOWER] + above
            numbers[NEAR + k] += (to - numbers[NEAR + k]) / min(FAST[k], since + 1)
            found, settled = (numbers[NEAR + k] - numbers[SLOWER + k]) / scale, SETTLING * FAST[k]
        away = found - numbers[MEAN + k]
        if is_scored and since >= settled:
            least = min(least, SEVERAL * _score(numbers, tails[k], k, abs(away)))
        numbers[MEAN + k] += min(max(away, -FAR_FROM_MEAN), FAR_FROM_MEAN) / min(rows, MEMORY)
    for k in range(LEVELS):
        step = min(max(r - numbers[SLOWER + k], -bound), bound)
        numbers[SLOWER + k] += step / min(since + 1, SLOW[k])
    numbers[SCORED] += 1 if is_scored else 0
    return least


@inline_jit
def stretch_tail(numbers, memory, tails, value, time, step):
    """The tail probability of the last rows; they update `numbers`, `memory` and `tails`.

    Args:
        time: local time.
        step: the typical lag.
    """
    is_timed = FIRST_MOMENT <= time <= LAST_MOMENT and 0 < step <= LONGEST_STEP * DAY
    rows_of_day = DAY / step if is_timed else ROWS_OF_DAY
    bins = max(min(np.rint(rows_of_day), BINS), 1.0) if is_timed else 1.0
    if abs(bins - numbers[OF_DAY]) > UNLIKE_BINS * bins or time < numbers[BEGAN]:
        _begin(numbers, memory, tails, time, bins)
        numbers[BEFORE], numbers[IS_COUNTER], numbers[IS_DECIDED] = value, 0.0, 0.0
        numbers[UPS] = numbers[DOWNS] = 0.0
    age = time - numbers[BEGAN]
    is_old = age >= DAY if is_timed else numbers[SEEN] >= FIRST_ROWS
    change = _follow_counter(numbers, memory, tails, value, time, rows_of_day, is_old)
    age = time - numbers[BEGAN]
    y = change if numbers[IS_COUNTER] > 0 else value
    if numbers[SEEN] == 0:
        numbers[FIRST] = y
    y -= numbers[FIRST]
    numbers[SEEN] += 1
    of_day = numbers[OF_DAY]
    k, slot, hour, is_weekend = _places(of_day, time)
    if memory[BIN_ROWS + k] == 0:
        memory[PROFILE + k], memory[BIN_ROWS + k] = np.float32(y - numbers[LEVEL]), np.float32(1.0)
        return 1.0
    weeks = np.floor(age / WEEK) if is_timed else 0.0
    share = _week_share(numbers, weeks)
    without = y - numbers[LEVEL] - np.float64(memory[PROFILE + k])
    r = without - share * memory[WEEKDAYS + slot]
    is_young = numbers[SPREADS] <= BOUNDED_FROM or numbers[SPREAD] <= 0
    hour_scale = _hour_spread(numbers, memory, hour)
    scale = max(hour_scale, _bin_spread(of_day, memory, k, NEAR_SHARE))
    bound, wide = (np.inf, np.inf) if is_young else (FAR * scale, FARTHEST_SPREAD * scale)
    if not is_young:
        if numbers[SCALE] > hour_scale:
            # Calmer hours come: what is away from the slowest level is so by as much less.
            for j in range(LEVELS - 1):
                slowest = numbers[SLOWER + LEVELS - 1]
                numbers[SLOWER + j] = slowest + (numbers[SLOWER + j] - slowest) * hour_scale / numbers[SCALE]
        numbers[SCALE] = hour_scale
    numbers[SINCE] = 0.0 if is_weekend != numbers[WAS_WEEKEND] else numbers[SINCE] + 1
    numbers[WAS_WEEKEND] = is_weekend
    if numbers[SINCE] == 0 and not is_young:
        for j in range(LEVELS):
            numbers[NEAR + j] = numbers[SLOWER + j] = r
    error, before, p = r - numbers[SLOWER], numbers[SLOWER], 1.0
    rows_of_bin = _rows_of_bin(of_day, step)
    least_rows = min(rows_of_bin, FIRST_ROWS)
    if not is_young:
        is_old = age >= DAY if is_timed else numbers[SEEN] >= FIRST_ROWS
        is_scored = is_old and memory[BIN_ROWS + k] >= least_rows
        p = _score_row(numbers, tails, r, bound, scale, is_scored)
    # Spreads.
    size, at_hour = min(abs(error), bound), np.int64(hour)
    numbers[SPREADS] += 1
    numbers[SPREAD] += (size - numbers[SPREAD]) / min(numbers[SPREADS], MEMORY)
    memory[HOUR_ROWS + at_hour] = min(memory[HOUR_ROWS + at_hour] + 1, SPREAD_DAYS * rows_of_day / HOURS)
    memory[HOUR_SPREAD + at_hour] += np.float32((size - memory[HOUR_SPREAD + at_hour]) / memory[HOUR_ROWS + at_hour])
    memory[BIN_ROWS + k] += np.float32(1.0)
    first = 1 / np.float64(memory[BIN_ROWS + k])
    wider = min(abs(error), wide) - np.float64(memory[BIN_SPREAD + k])
    memory[BIN_SPREAD + k] += np.float32(max(SPREAD_GAIN / rows_of_bin, first) * wider)
    # The profile and the level.
    off, weekly = without - before, np.float64(memory[WEEKDAYS + slot])
    if weeks > 0:
        rate = 1 / min(numbers[SEEN], 7 * rows_of_day)
        numbers[DAY_ERROR] += rate * (min(abs(off), bound) - numbers[DAY_ERROR])
        numbers[WEEK_ERROR] += rate * (min(abs(off - weekly), bound) - numbers[WEEK_ERROR])
    gain = max(WEEK_GAIN, 1 / (weeks + 1)) / max(of_day / SLOTS, 1.0)
    memory[WEEKDAYS + slot] += np.float32(gain * min(max(off - weekly, -bound), bound))
    memory[PROFILE + k] += np.float32(max(GAIN / rows_of_bin, first) * min(max(error, -bound), bound))
    numbers[LEVEL] += min(max(r, -bound), bound) / min(numbers[SEEN], 7 * rows_of_day)
    return p


@inline_jit
def least_stretch_tail(numbers, tail):
    """The least tail probability that a row can have; infinity before the first score has a threshold."""
    if tail[learned_tail.SEEN] < learned_tail.FIRST:
        return np.inf
    return SEVERAL / (FARTHEST * (numbers[SCORED] + 1))


@inline_jit
def note_alarm(numbers, p):
    """Another alarm in the stretches that last has to be rarer than this one, whose probability by its stretch is p."""
    for k in range(SCORES):
        numbers[RAISED + k] = p if numbers[RAISED + k] == 0 else min(numbers[RAISED + k], p)
