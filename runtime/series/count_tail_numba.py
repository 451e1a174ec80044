"""Tail probability of a count in a stream of counts that are nearly always zero.

The quantiles of such a stream are arbitrarily close together, so a score under its distribution cannot distinguish 1
from 8. The probability of a count y after n others is the fraction of counts that were at least as large. Beyond the
largest count M so far, it is a conservative estimate:

    p = (1 + #{earlier counts >= y}) / (n + 1)            p = (M + 1) / ((n + 1) y),  y > M

It never increases with y. Counts of at least 32 are compared in bins of a quarter of an octave.

If forecasts of the stream have small errors, as for a shop that is closed at night, zero is not always likely, and the
forecast's distribution is used instead.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series import mixture_layout as at

# Number of counts before which there is no result, the minimum fraction of zeros, and the mean absolute error of
# forecasts, as a fraction of the mean absolute value, below which counts are predictable.
FEWEST, MOSTLY, PREDICTABLE = 50, 0.5, 0.5
# Counts below this number have separate bins. Above it, an octave has this number of bins.
SINGLE, PER_OCTAVE = 32, 4


@inline_jit
def _bin(count):
    if count < SINGLE:
        return np.int64(count)
    return np.int64(min(SINGLE + PER_OCTAVE * np.log2(count / SINGLE), at.COUNT_BINS - 1))


@inline_jit
def count_tail(numbers, value):
    """Return the tail probability of a value, given the values before it. Return NaN if these are not counts that are
    mostly zero, or if they are predictable."""
    counted = numbers[at.COUNTED]
    is_count = numbers[at.IS_WHOLE] > 0 and numbers[at.LEAST_OF_ALL] >= 0 and value >= 0 and value == np.rint(value)
    is_predictable = numbers[at.MIXTURE_ERROR] < PREDICTABLE * numbers[at.MEAN_SIZE]
    if not is_count or counted < FEWEST or numbers[at.COUNT] < MOSTLY * counted or is_predictable:
        return np.nan
    largest = numbers[at.LARGEST_OF_ALL]
    if value > largest:
        return (largest + 1) / ((counted + 1) * value)
    beyond = 0.0
    for k in range(_bin(value), at.COUNT_BINS):
        beyond += numbers[at.COUNT + k]
    return (1 + beyond) / (counted + 1)


@inline_jit
def add_count(numbers, value):
    """Add a value to the histogram if it is a valid count."""
    if value >= 0 and value == np.rint(value):
        numbers[at.COUNT + _bin(value)] += 1
        numbers[at.COUNTED] += 1
