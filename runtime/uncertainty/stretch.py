"""Evidence of the last rows together: a level or a spread that has changed for a while.

Deviations in units of their typical size, u, bounded so that one row is no stretch, are averaged over FAST and SLOW
rows; so are their squares. In units of the deviation that each average of independent rows has,

    T = max(|m_fast| √(2 FAST - 1), |m_slow| √(2 SLOW - 1), v_fast √((2 FAST - 1) / 2))

Its tail probability is learned from every FAST-th row (learned_tail.py), as neighbours are nearly the same.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.uncertainty.learned_tail import learn_tail_probability

FAST, SLOW = 16.0, 60.0
# Largest deviation, and the rows over which its typical size, its mean and its square are learned.
LARGEST, MEMORY = 3.0, 2000.0
# Largest deviation that the typical size begins with, in standard deviations of the filter.
FIRST_SIZE = 10.0
# Mean size of a normal deviation over its standard deviation.
_MEAN_SIZE = np.sqrt(2 / np.pi)
# Numbers of a column: rows, typical size, mean and square of u, and the averages.
ROWS, SIZE, MEAN, SQUARE, LEVEL_FAST, LEVEL_SLOW, SPREAD = range(7)
NUMBERS = 7


@inline_jit
def stretch_tail(numbers, tail, deviation):
    """The tail probability of the last rows; they update `numbers` and `tail`.

    Args:
        deviation: of the row, in standard deviations of the filter; its size relative to earlier ones counts.
    """
    most = LARGEST * numbers[SIZE] / _MEAN_SIZE if numbers[SIZE] > 0 else FIRST_SIZE
    rate = 1 / (min(numbers[ROWS], MEMORY) + 1)
    numbers[SIZE] += rate * (min(abs(deviation), most) - numbers[SIZE])
    numbers[ROWS] += 1
    if numbers[SIZE] <= 0:
        return 1.0
    u = min(max(deviation * _MEAN_SIZE / numbers[SIZE], -LARGEST), LARGEST)
    numbers[MEAN] += rate * (u - numbers[MEAN])
    numbers[SQUARE] += rate * (u * u - numbers[SQUARE])
    above = u - numbers[MEAN]
    numbers[LEVEL_FAST] += (above - numbers[LEVEL_FAST]) / FAST
    numbers[LEVEL_SLOW] += (above - numbers[LEVEL_SLOW]) / SLOW
    numbers[SPREAD] += (u * u - numbers[SQUARE] - numbers[SPREAD]) / FAST
    score = max(
        abs(numbers[LEVEL_FAST]) * np.sqrt(2 * FAST - 1), abs(numbers[LEVEL_SLOW]) * np.sqrt(2 * SLOW - 1),
        abs(numbers[SPREAD]) * np.sqrt((2 * FAST - 1) / 2),
    )  # fmt: skip
    return learn_tail_probability(score, 1.0, numbers[ROWS] % FAST == 0, tail)
