"""The alarm rule `stretch`: tail probability of a level or a spread that has changed for several rows.

The one-step forecast adapts to a slow change within a few rows, so its errors do not show the change. A value y at
local time t is therefore compared with earlier values at the same time of day, and with the rows before it:

    r = y − ℓ − d(t)                       S_k ← S_k + bounded(r − S_k) / SLOW[k]
    D_k = (F_k − S_k) / s(t)               F_k ← F_k + (S_0 + bounded(r − S_0) − F_k) / FAST[k]

d is the mean of y − ℓ at this time of day, with separate profiles for working days and weekends; ℓ is the mean of y
over a week; and s is the mean of |r − S_0| at this time of day on such days. F and S are reset at the beginning and at
the end of each weekend. If values nearly always change in one direction, as those of a counter do, y is their change.
If times are not dates, d and s are means over all rows.

The scores are |D_k − its mean| for three k, and the same for the root of the mean square of (r − S_0) / s, and for the
mean of |innovation| / s, which shows cycles of another shape. A random walk, a trend or a counter is therefore compared
with its own past. T is the largest score in units of its mean. Rows that are attributed to a recurring deviation, such
as those of a nightly job, do not change F, S and the means. Successive rows have nearly the same T, and only peaks are
independent (declustering, Davison and Smith 1990). A stretch lasts for SHORTEST rows and until T is below the threshold
of the tail again. Its peak updates the tail (learned_tail.py, as in SPOT, Siffer et al. 2017), so a change is not
learned from while it lasts. With the mean length L of a stretch, the tail probability of a row is P(peak ≥ T) / L, at
least 1 / (FARTHEST rows). After an alarm, it must fall by the factor NEWS for another alarm in the same stretch.

d and s are 16-bit integers, 624 bytes in total. The bins of s are those of working days; weekends have only the hours.
They are rounded up or down in turn, so that changes that are smaller than their unit accumulate.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.uncertainty import learned_tail
from rfa.runtime.uncertainty.learned_tail import begin_tail, has_begun, learn_tail_probability

# Rows of the means F and S. F covers a spike, an hour and half a day of five-minute rows; S covers some days.
FAST, SLOW = np.array([1.0, 4.0, 16.0]), np.array([24.0, 96.0, 384.0])
LEVELS, SCORES = len(FAST), len(FAST) + 2
OF_SPREAD, OF_ERRORS = LEVELS, LEVELS + 1
# Rows of the spread and of the errors of forecasts, and of the shortest stretch.
SPREAD_ROWS, SHORTEST = 16.0, 8.0
# Number of rows of a day or weekend before a score is used, as a multiple of the rows of its mean.
SETTLING = 4.0
# Bins of a day, and parts of a day for the s around a bin. More of them do not find more incidents.
BINS, HOURS = 96, 12
# Number of rows of a "day" if times are not dates.
ROWS_OF_DAY = 500.0
# Seconds per day, the weekday of the first day of 1970, and the number of working days; the range of times that are
# treated as dates, from 1971 to 9998; and the largest lag, as a fraction of a day, for which there is a profile.
DAY, FIRST_WEEKDAY, WORKDAYS = 86_400.0, 3.0, 5
FIRST_MOMENT, LAST_MOMENT, LONGEST_STEP = 365 * DAY, 253_300_000_000.0, 0.25
# Relative change of the number of bins above which the profile starts again.
UNLIKE_BINS = 0.25
# Minimum fraction by which a day changes d and s; the limit on an error in units of s; and the limit for the s of a
# bin.
GAIN, FAR, FARTHEST_SPREAD = 0.12, 4.0, 10.0
# A bin is distinct if its s, or the step of the profile there, is at least DISTINCT times the s of the hour. After
# LEAST_VISITS days, a deviation to a value within WITHIN s of the profile in such a bin is usual. This requires that at
# least the fraction LEAST_MOVES of rows differ from the previous row, unlike counts of rare errors.
DISTINCT, LEAST_VISITS, WITHIN, LEAST_MOVES = 3.0, 3.0, 3.0, 0.5
# Number of rows before there is a profile and before its rows count, of days in the s of an hour, and of rows in means;
# and the smallest s of an hour relative to that of all rows.
FIRST_ROWS, SPREAD_DAYS, MEMORY, LEAST_SPREAD = 40.0, 14.0, 2000.0, 0.25
# Limits on a score as a multiple of its mean, and on the error of a forecast as a multiple of the mean error.
FAR_FROM_MEAN, LARGEST_ERROR = 10.0, 8.0
# Fraction of changes in the rarer direction below which a column becomes a counter, and above which it is not a
# counter.
COUNTER, NO_COUNTER = 0.05, 0.2
# Number of stretches after which the tail begins if they cover at least this number of days, so that there are peaks of
# all times of the week. Otherwise, it begins after learned_tail.FIRST stretches.
FEWEST_STRETCHES, FEWEST_DAYS = 24.0, 7.0
# Factor by which a tail is extrapolated beyond all peaks, and factor by which another alarm in the same stretch must be
# rarer.
FARTHEST, NEWS = 40.0, 10.0
# Limit on a deviation as a multiple of the typical size, and for the first rows in standard deviations of the filter.
LARGEST_SIZE, FIRST_SIZE = 3.0, 10.0
# Units of a mean spread, their largest integer, rows between changes of the unit, and an empty cell.
PARTS, LARGEST_CELL, UNIT_ROWS, UNSEEN = 64.0, 32_000.0, 256.0, np.int16(-32_768)
# Golden ratio minus 1. The fractional parts of its multiples are evenly distributed.
GOLDEN = 0.618033988749895
_TINY = 1e-150
_MEAN_SIZE = np.sqrt(2 / np.pi)

# Numbers of a column: number of rows with a deviation, and its typical size; fractions of changes up and down, and
# whether it is a counter.
ROWS, SIZE, UPS, DOWNS, IS_COUNTER = range(5)
# Numbers that `_begin` resets: number of bins, time of the reset, number of rows, the first y, number of scored rows,
# ℓ, mean s, the unit of cells, whether the previous row was on a weekend, rows since that changed, and the mean square.
OF_DAY, BEGAN, SEEN, FIRST, SCORED, LEVEL, SPREAD, UNIT, WAS_WEEKEND, SINCE, SQUARE = range(
    IS_COUNTER + 1, IS_COUNTER + 12
)
# F and S; means of the scores, and mean distances from these; peak, rows and p of the last alarm of the current
# stretch; mean length and number of all stretches; and the mean error of the last forecasts.
NEAR, SLOWER, MEAN = SQUARE + 1, SQUARE + 1 + LEVELS, SQUARE + 1 + 2 * LEVELS
TYPICAL = MEAN + SCORES
PEAK, LENGTH, RAISED, MEAN_LENGTH, STRETCHES, ERROR = range(TYPICAL + SCORES, TYPICAL + SCORES + 6)
NUMBERS = ERROR + 1
# Cells of a column: d for both kinds of day, s for the bins of working days, and s for the hours of both.
PROFILE, BIN_SPREAD, HOUR_SPREAD = 0, 2 * BINS, 3 * BINS
CELLS = HOUR_SPREAD + 2 * HOURS


@inline_jit
def learn_size(numbers, deviation):
    """Update the typical size of deviations, in standard deviations of the filter."""
    most = LARGEST_SIZE * numbers[SIZE] / _MEAN_SIZE if numbers[SIZE] > 0 else FIRST_SIZE
    numbers[SIZE] += (min(abs(deviation), most) - numbers[SIZE]) / (min(numbers[ROWS], MEMORY) + 1)
    numbers[ROWS] += 1


@inline_jit
def _begin(numbers, cells, tail, time, bins):
    """Reset the statistics, the profile and the tail of a column. The numbers ROWS to IS_COUNTER are not reset."""
    for k in range(OF_DAY, NUMBERS):
        numbers[k] = 0.0
    for k in range(CELLS):
        cells[k] = UNSEEN if k < BIN_SPREAD else np.int16(0)
    for column in range(len(tail)):
        tail[column] = 0.0
    numbers[OF_DAY], numbers[BEGAN], numbers[SINCE] = bins, time, SLOW[LEVELS - 1]


@inline_jit
def _read(numbers, cells, k):
    return cells[k] * numbers[UNIT]


@inline_jit
def _write(numbers, cells, k, number):
    """Write a number. It is rounded up or down in turn, so that changes below a unit accumulate."""
    units = np.floor(number / numbers[UNIT] + numbers[SEEN] * GOLDEN % 1.0)
    if not np.isnan(units):
        cells[k] = np.int16(min(max(units, -LARGEST_CELL), LARGEST_CELL))


@inline_jit
def _choose_unit(numbers, cells):
    """Halve or double the unit if the spread or the profile requires it."""
    largest, fitting = 0.0, max(numbers[SPREAD] / PARTS, _TINY)
    for k in range(CELLS):
        largest = max(largest, abs(np.float64(cells[k])) if cells[k] != UNSEEN else 0.0)
    factor = 1.0
    if not numbers[UNIT] > 0 or largest == 0:
        numbers[UNIT] = fitting
    elif largest > LARGEST_CELL / 2 or 2 * numbers[UNIT] < fitting:
        factor = 0.5
    elif largest < LARGEST_CELL / 8 and numbers[UNIT] > 2 * fitting:
        factor = 2.0
    if factor != 1:
        numbers[UNIT] /= factor
        for k in range(CELLS):
            if cells[k] != UNSEEN:
                cells[k] = np.int16(np.rint(cells[k] * factor))


@inline_jit
def _follow_counter(numbers, cells, tail, change, time, rows_of_day, is_old):
    """Determine whether a column is a counter. If the result changes, reset its statistics."""
    if numbers[SEEN] > 0:
        rate = 1 / min(numbers[SEEN], 2 * rows_of_day)
        numbers[UPS] += ((1.0 if change > 0 else 0.0) - numbers[UPS]) * rate
        numbers[DOWNS] += ((1.0 if change < 0 else 0.0) - numbers[DOWNS]) * rate
    if is_old:
        rarer = min(numbers[UPS], numbers[DOWNS]) / max(numbers[UPS] + numbers[DOWNS], _TINY)
        is_counter = 1.0 if rarer < (NO_COUNTER if numbers[IS_COUNTER] > 0 else COUNTER) else 0.0
        if is_counter != numbers[IS_COUNTER]:
            _begin(numbers, cells, tail, time, numbers[OF_DAY])
        numbers[IS_COUNTER] = is_counter


@inline_jit
def _weekends(day):
    """Return the number of weekend days before a day. The weekday is the remainder of `day` by 7."""
    return 2 * np.floor(day / 7) + max(day % 7 - WORKDAYS, 0.0)


@inline_jit
def _places(numbers, time, step):
    """Return the bin, the hour, and the number of earlier days of the same kind. If the times are not dates, the first
    two are 0."""
    if not numbers[OF_DAY] > 1:
        return 0, 0.0, numbers[SEEN] / ROWS_OF_DAY
    time += step / 2  # a row just before its time is in the bin of its time
    day, first = np.floor(time / DAY) + FIRST_WEEKDAY, np.floor(numbers[BEGAN] / DAY) + FIRST_WEEKDAY
    of_day, of_time = np.int64(min(numbers[OF_DAY], BINS)), time % DAY / DAY
    weekends = _weekends(day) - _weekends(first)
    k = np.int64(of_time * of_day) % of_day
    if day % 7 >= WORKDAYS:
        return k + BINS, of_time * HOURS, weekends
    return k, of_time * HOURS, day - first - weekends


@inline_jit
def _hour_spread(numbers, cells, k, hour):
    """Return the spread s at the given time of day on days of the kind of bin k, interpolated between the middles of
    two hours. Before both hours have values, return the spread of all rows."""
    first, low = HOURS * (k // BINS), np.int64(np.floor(hour - 0.5)) % HOURS
    low, high, share = first + low, first + (low + 1) % HOURS, hour - 0.5 - np.floor(hour - 0.5)
    if cells[HOUR_SPREAD + low] == 0 or cells[HOUR_SPREAD + high] == 0:
        return max(numbers[SPREAD], _TINY)
    spread = (1 - share) * _read(numbers, cells, HOUR_SPREAD + low) + share * _read(numbers, cells, HOUR_SPREAD + high)
    return max(spread, LEAST_SPREAD * numbers[SPREAD], _TINY)


@inline_jit
def _bin_spread(numbers, cells, k):
    """Return the spread s of bin k, or 0 for weekends."""
    return _read(numbers, cells, BIN_SPREAD + k) if k < BINS else 0.0


@inline_jit
def _beside(numbers, k, offset):
    """Return the bin that is `offset` bins after bin k, on the same kind of day."""
    first = BINS if k >= BINS else 0
    return first + (k - first + offset) % np.int64(min(max(numbers[OF_DAY], 1.0), BINS))


@inline_jit
def _is_usual_in(numbers, cells, k, y, deviation, spread):
    """Return whether a value with the given deviation is within the range of the profile in bin k and, if bins are
    short, its neighbours, up to a tolerance. Return False if the profile is flat or unknown there."""
    if cells[PROFILE + k] == UNSEEN:
        return False
    low, high, reach = np.inf, -np.inf, 1 if numbers[OF_DAY] >= BINS else 0
    for offset in range(-reach, reach + 1):
        near = PROFILE + _beside(numbers, k, offset)
        if cells[near] != UNSEEN:
            low, high = min(low, _read(numbers, cells, near)), max(high, _read(numbers, cells, near))
    bin_spread = _bin_spread(numbers, cells, k)
    if max(bin_spread, high - low) < DISTINCT * spread:
        return False
    away = y - high if deviation > 0 else low - y
    return away <= WITHIN * max(bin_spread, spread)


@inline_jit
def is_usual(numbers, cells, value, change, time, deviation, step):
    """Return whether a value with the given deviation is usual at its time of day, on working days or on weekends."""
    k, hour, _ = _places(numbers, time, step)
    is_old = time - numbers[BEGAN] >= LEAST_VISITS * DAY
    if not (numbers[OF_DAY] > 1 and is_old and numbers[UPS] + numbers[DOWNS] >= LEAST_MOVES):
        return False
    y = (change if numbers[IS_COUNTER] > 0 else value) - numbers[FIRST] - numbers[LEVEL] - numbers[SLOWER]
    spread, other = _hour_spread(numbers, cells, k, hour), (k + BINS) % (2 * BINS)
    return _is_usual_in(numbers, cells, k, y, deviation, spread) or _is_usual_in(
        numbers, cells, other, y, deviation, spread
    )


@inline_jit
def _peak_tail(numbers, tail, score, covers_week):
    """Return the tail probability of a score, given the other scores of its stretch."""
    length, threshold = max(numbers[MEAN_LENGTH], SHORTEST), tail[learned_tail.THRESHOLD]
    is_begun, p = has_begun(tail), 1.0
    if is_begun and score > numbers[PEAK]:
        p = learn_tail_probability(score, 1.0, False, tail) / length
        p = max(p, 1 / (FARTHEST * max(numbers[SCORED], 1.0)))
        if numbers[RAISED] > 0 and p > numbers[RAISED] / NEWS:
            p = 1.0
    numbers[PEAK] = max(numbers[PEAK], score)
    numbers[LENGTH] += 1
    if numbers[LENGTH] >= SHORTEST and not (is_begun and score > threshold):
        learn_tail_probability(numbers[PEAK], 1.0, True, tail)
        if covers_week and tail[learned_tail.SEEN] >= FEWEST_STRETCHES and not has_begun(tail):
            begin_tail(1.0, tail)
        numbers[STRETCHES] += 1
        numbers[MEAN_LENGTH] += (numbers[LENGTH] - numbers[MEAN_LENGTH]) / min(numbers[STRETCHES], MEMORY)
        numbers[LENGTH] = numbers[PEAK] = numbers[RAISED] = 0.0
    return p


@inline_jit
def _update_error(numbers, error):
    """Update the mean error of the last forecasts, in units of the spread s."""
    usual = numbers[MEAN + OF_ERRORS]
    error = min(error, LARGEST_ERROR * usual if usual > 0 else FAR)
    numbers[ERROR] += (error - numbers[ERROR]) / min(numbers[SCORED], SPREAD_ROWS)


@inline_jit
def _largest_score(numbers, r, bound, scale, innovation):
    """Return the largest score T of a row, and update the running means F and S and the means of the scores."""
    since, largest = numbers[SINCE], 0.0
    numbers[SCORED] += 1
    rate = 1 / min(numbers[SCORED], MEMORY)
    _update_error(numbers, abs(innovation) / scale)
    above = min(max(r - numbers[SLOWER], -bound), bound)
    u = above / scale
    numbers[SQUARE] += (u * u - numbers[SQUARE]) / min(SPREAD_ROWS, since + 1)
    for k in range(SCORES):
        settled = since
        if k == OF_SPREAD:
            found, rows = np.sqrt(numbers[SQUARE]), SPREAD_ROWS
        elif k == OF_ERRORS:
            found, rows, settled = numbers[ERROR], SPREAD_ROWS, numbers[SCORED]
        else:
            rows = FAST[k]
            numbers[NEAR + k] += (numbers[SLOWER] + above - numbers[NEAR + k]) / min(rows, since + 1)
            found = (numbers[NEAR + k] - numbers[SLOWER + k]) / scale
        away = found - numbers[MEAN + k]
        if settled >= SETTLING * rows and numbers[TYPICAL + k] > 0:
            largest = max(largest, abs(away) / numbers[TYPICAL + k])
        away = min(max(away, -FAR_FROM_MEAN), FAR_FROM_MEAN)
        numbers[MEAN + k] += away * rate
        numbers[TYPICAL + k] += (abs(away) - numbers[TYPICAL + k]) * rate
    for k in range(LEVELS):
        step = min(max(r - numbers[SLOWER + k], -bound), bound)
        numbers[SLOWER + k] += step / min(since + 1, SLOW[k])
    return largest


@inline_jit
def _begin_days(numbers, r, is_weekend):
    """Reset the running means F and S on the first row of a weekend, and on the first row after it."""
    numbers[SINCE] = 0.0 if is_weekend != numbers[WAS_WEEKEND] else numbers[SINCE] + 1
    numbers[WAS_WEEKEND] = is_weekend
    if numbers[SINCE] == 0:
        for k in range(LEVELS):
            numbers[NEAR + k] = numbers[SLOWER + k] = r


@inline_jit
def _learn_first(numbers, y):
    """Learn the level and the spread from the first rows."""
    r = y - numbers[LEVEL]
    numbers[SPREAD] += (abs(r - numbers[SLOWER]) - numbers[SPREAD]) / numbers[SEEN]
    for k in range(LEVELS):
        numbers[SLOWER + k] += (r - numbers[SLOWER + k]) / min(numbers[SEEN], SLOW[k])
        numbers[NEAR + k] = numbers[SLOWER + k]


@inline_jit
def _learn_profile(numbers, cells, r, error, scale, rows_of_day, place):
    """Update the spread s, the profile d and the level ℓ with a row."""
    k, hour, days = place
    bound, rows_of_bin = FAR * scale, rows_of_day / max(numbers[OF_DAY], 1.0)
    size, wide = min(abs(error), bound), min(abs(error), FARTHEST_SPREAD * scale)
    numbers[SPREAD] += (size - numbers[SPREAD]) / min(numbers[SEEN], MEMORY)
    at = HOUR_SPREAD + HOURS * (k // BINS) + np.int64(hour) % HOURS
    spread = _read(numbers, cells, at) if cells[at] > 0 else numbers[SPREAD]
    spread += (size - spread) / (min(days + 1, SPREAD_DAYS) * max(rows_of_day / HOURS, 1.0))
    _write(numbers, cells, at, max(spread, numbers[UNIT]))
    gain, profile = max(GAIN, 1 / (days + 1)) / rows_of_bin, _read(numbers, cells, PROFILE + k)
    if k < BINS:
        spread = _read(numbers, cells, BIN_SPREAD + k)
        _write(numbers, cells, BIN_SPREAD + k, spread + gain * (wide - spread))
    _write(numbers, cells, PROFILE + k, profile + gain * min(max(error, -bound), bound))
    numbers[LEVEL] += min(max(r, -bound), bound) / min(numbers[SEEN], 7 * rows_of_day)


@inline_jit
def stretch_tail(numbers, cells, tail, value, change, innovation, is_following, time, step):
    """Return the tail probability of the last rows, and update `numbers`, `cells` and `tail`.

    Args:
        value, change: Value of the row, and its change since the previous row.
        innovation: Error of the forecast of the value.
        is_following: Whether the row is attributed to a recurring deviation.
        time, step: Local time, and the typical lag.
    """
    is_timed = FIRST_MOMENT <= time <= LAST_MOMENT and 0 < step <= LONGEST_STEP * DAY
    rows_of_day = DAY / step if is_timed else ROWS_OF_DAY
    bins = min(np.rint(rows_of_day), BINS) if is_timed else 1.0
    if not abs(bins - numbers[OF_DAY]) <= UNLIKE_BINS * bins or not time >= numbers[BEGAN]:
        _begin(numbers, cells, tail, time, bins)
        numbers[IS_COUNTER] = numbers[UPS] = numbers[DOWNS] = 0.0
    is_old = time - numbers[BEGAN] >= DAY if is_timed else numbers[SEEN] >= 2 * FIRST_ROWS
    _follow_counter(numbers, cells, tail, change, time, rows_of_day, is_old)
    y = change if numbers[IS_COUNTER] > 0 else value
    if numbers[SEEN] == 0:
        numbers[FIRST] = y
    y -= numbers[FIRST]
    numbers[SEEN] += 1
    if numbers[SEEN] <= FIRST_ROWS or not numbers[SPREAD] > 0:
        _learn_first(numbers, y)
        return 1.0
    if numbers[SEEN] % UNIT_ROWS == 0 or not numbers[UNIT] > 0:
        _choose_unit(numbers, cells)
    place = _places(numbers, time, step)
    k, hour, days = place
    if cells[PROFILE + k] == UNSEEN:
        _write(numbers, cells, PROFILE + k, y - numbers[LEVEL])
        return 1.0
    r = y - numbers[LEVEL] - _read(numbers, cells, PROFILE + k)
    scale = max(_hour_spread(numbers, cells, k, hour), _bin_spread(numbers, cells, k))
    _begin_days(numbers, r, 1.0 if k >= BINS else 0.0)
    error, p = r - numbers[SLOWER], 1.0
    if not is_following:
        score = _largest_score(numbers, r, FAR * scale, scale, innovation)
        if numbers[SCORED] > FIRST_ROWS and (days >= 1 or not is_timed):
            p = _peak_tail(numbers, tail, score, is_timed and time - numbers[BEGAN] >= FEWEST_DAYS * DAY)
    _learn_profile(numbers, cells, r, error, scale, rows_of_day, place)
    return p


@inline_jit
def least_stretch_tail(numbers, tail):
    """Return the smallest tail probability that this rule can assign to a row, or infinity if there is not yet enough
    data to fit the tail."""
    if not has_begun(tail):
        return np.inf
    return 1 / (FARTHEST * max(numbers[SCORED], 1.0))


@inline_jit
def note_alarm(numbers, p):
    """Store the probability p of an alarm in its stretch. While the stretch lasts, another alarm must be rarer."""
    numbers[RAISED] = p if numbers[RAISED] == 0 else min(numbers[RAISED], p)
