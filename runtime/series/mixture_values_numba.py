"""The season of a column's mixture, and the values that it ignores.

The season is determined by the typical lag (a year of months, a day of hours, …), unless a search of the last values
finds another one. A single value far beyond all others is ignored, as are the first values if they are far from the
others.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters import auto_season_numba
from rfa.runtime.filters.auto_season_numba import dominant_period
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series import profile_numba
from rfa.runtime.series.leads import DAY, HOUR, WEEK, YEAR
from rfa.runtime.series.profile_numba import forget_profile
from rfa.runtime.series.smoothing_numba import replay

# After YOUNG values, first values that are more than FAR median deviations away are ignored.
YOUNG, FAR = 16, 50.0
# From ODD_FROM values on, a value that is more than ODD mean changes away is an outlier.
ODD_FROM, ODD = 12, 20.0
# Searches for a season: the first one, the growth factor to the next, and the minimum and maximum number of cells in
# between.
FIRST_SEARCH, SEARCH_GROWTH, SEARCH_LEAST, SEARCH_LONGEST = 24, 1.5, 3, 512
# Seasons are treated as equal if their relative difference is smaller than SAME_SEASON. The usual season must be an
# integer up to the relative difference WHOLE.
SAME_SEASON, WHOLE = 0.02, 0.03
# Other modules whose functions this module calls.
SOURCES = (auto_season_numba, profile_numba, *profile_numba.SOURCES)


@inline_jit
def clock_season(unit):
    """Return the usual season in cells of rows that are `unit` seconds apart, or 1 if there is none."""
    if unit < 60:
        return 1
    for cycle, shortest in ((DAY, 4.0), (HOUR, 4.0), (WEEK, 4.0), (YEAR, 3.0)):
        cells = cycle / unit
        near = np.rint(cells)
        if shortest <= cells <= at.LONGEST and abs(cells - near) <= WHOLE * near:
            if cycle == HOUR and DAY / unit <= at.LONGEST:
                continue
            return np.int64(near)
    return 1


@inline_jit
def _search_season(numbers, memory, unit, scratch):
    """Set the season that a search of the last values finds, or otherwise the usual one. If the season is new, the
    values are processed again."""
    cells = np.int64(numbers[at.CELLS])
    count = at.RING if cells > at.RING else cells
    for k in range(count):
        scratch[k] = numbers[at.VALUES + (cells - count + 1 + k) % at.RING]
    season, found = np.int64(numbers[at.SEASON]), dominant_period(scratch, count)
    new = season
    clock = clock_season(unit)
    if SEARCH_LEAST <= found <= at.LONGEST:
        numbers[at.IS_FOUND] = 1.0
        new = clock if clock % np.int64(found) == 0 else np.int64(found)
    elif numbers[at.IS_FOUND] == 0:
        new = clock
    if abs(new - season) > SAME_SEASON * season:
        numbers[at.SEASON] = new
        replay(numbers, memory)


@inline_jit
def set_season(numbers, memory, cell, unit, scratch):
    """Set the usual season. From FIRST_SEARCH cells on, search for a season when a search is due."""
    if cell < FIRST_SEARCH:  # the season of the clock
        numbers[at.SEASON], numbers[at.NEXT_SEARCH] = clock_season(unit), FIRST_SEARCH
        return
    numbers[at.NEXT_SEARCH] = min(np.ceil(SEARCH_GROWTH * cell), cell + SEARCH_LONGEST)
    _search_season(numbers, memory, unit, scratch)


@inline_jit
def without_oddity(numbers, value):
    """Return the value, or NaN if it is beyond all earlier values and far from the last one. In this case, the next
    value is accepted."""
    is_beyond = value > numbers[at.LARGEST_OF_ALL] or value < numbers[at.LEAST_OF_ALL]
    is_far = abs(value - numbers[at.LATEST]) > ODD * numbers[at.CHANGE]
    is_odd = is_beyond and is_far and numbers[at.SEEN] >= ODD_FROM and numbers[at.WAS_ODD] == 0
    numbers[at.WAS_ODD] = 1.0 if is_odd else 0.0
    if value >= numbers[at.LARGEST_OF_ALL]:
        numbers[at.TOUCHES] = numbers[at.TOUCHES] + 1 if value == numbers[at.LARGEST_OF_ALL] else 1.0
    numbers[at.LEAST_OF_ALL] = min(numbers[at.LEAST_OF_ALL], value)
    numbers[at.LARGEST_OF_ALL] = max(numbers[at.LARGEST_OF_ALL], value)
    if is_odd:
        return np.nan
    if value <= 0:
        numbers[at.IS_POSITIVE] = 0.0
    if value != np.rint(value):
        numbers[at.IS_WHOLE] = 0.0
    return value


@inline_jit
def _median(numbers, count):
    """Return the lower median of the first numbers, which are sorted."""
    for k in range(1, count):
        number, i = numbers[k], k
        while i > 0 and numbers[i - 1] > number:
            numbers[i] = numbers[i - 1]
            i -= 1
        numbers[i] = number
    return numbers[(count - 1) // 2]


@inline_jit
def leave_out_first(numbers, memory, scratch):
    """Replace the first values that were far from all others by the median, and process the values again."""
    count = np.int64(numbers[at.CELLS])
    if count > at.RING:
        return
    for k in range(count):
        scratch[k] = numbers[at.VALUES + (k + 1) % at.RING]
    middle = _median(scratch, count)
    for k in range(count):
        scratch[k] = abs(numbers[at.VALUES + (k + 1) % at.RING] - middle)
    usual, is_odd = _median(scratch, count), False
    for k in range(count):
        value = at.VALUES + (k + 1) % at.RING
        if usual > 0 and abs(numbers[value] - middle) > FAR * usual:
            numbers[value], is_odd = middle, True
    if is_odd:
        _begin_again(numbers, memory, count)


@inline_jit
def _begin_again(numbers, memory, count):
    """Process the first cells again, with the current values of the ring buffer."""
    first = numbers[at.VALUES + 1]
    numbers[at.FIRST] = numbers[at.LEAST] = numbers[at.LARGEST] = first
    numbers[at.LATEST] = numbers[at.VALUES + count % at.RING]
    numbers[at.CHANGE], numbers[at.CHANGE + 1] = 0.0, 0.0
    for k in range(2, count + 1):
        value, before = numbers[at.VALUES + k % at.RING], numbers[at.VALUES + (k - 1) % at.RING]
        numbers[at.LEAST], numbers[at.LARGEST] = min(numbers[at.LEAST], value), max(numbers[at.LARGEST], value)
        numbers[at.CHANGE] += abs(value - before) / (count - 1)
    numbers[at.IS_POSITIVE] = 1.0 if numbers[at.LEAST] > 0 else 0.0
    if numbers[at.IS_POSITIVE] > 0:
        for k in range(1, count + 1):
            log = np.log(numbers[at.VALUES + k % at.RING] / first)
            memory[at.LOGS + k % at.RING] = np.float32(log)
            if k > 1:
                numbers[at.CHANGE + 1] += abs(log - memory[at.LOGS + (k - 1) % at.RING]) / (count - 1)
    for k in range(at.LOSS, at.VALUES):
        numbers[k] = 0.0
    forget_profile(numbers)
    replay(numbers, memory)
