"""Baseline of a stream: its noise and the spread of its scores, which are learned while it is filtered.

The bundle's calibration provides F(z), the fraction of scores below z in the data that it was fitted to, as a table and
a tail (calibration.py). A stream may have more or less noise. Two numbers adapt F to the stream. If both are 0, their
initial value, F is exactly that of the bundle's calibration:

    z = (e^(−λ/3) (nis / d)^(1/3) − c) / (e^σ s)        c = 1 − 2/(9d), s = √(2/(9d)): Wilson and Hilferty (1931)
    a = F(z)

λ is the log of the ratio of the stream's innovation variance and the model's, and σ is the log of the spread of z. If
both are correct, a is uniform on [0, 1], and so is |2a − 1|. After each observation,

    λ ← λ + (6/√d) (a − ½) / (n + 20)                   6/√d and 3 are about the inverse derivatives of the means
    σ ← σ + 3 (|2a − 1| − ½) / (n + 20)
    n ← min(n + 1, 1000)

These are stochastic approximations (Robbins and Monro 1951) of M-estimates (Huber 1964), so one observation changes λ
by at most 3/√d / (n + 20). The bundle has the weight of 20 observations. The trend, a mean of a − ½ over about a dozen
observations, distinguishes a change from outliers. Beyond ±CHANGE, every observation reduces n and σ by up to a
quarter, so that λ changes quickly and the spread is learned again.

Tail probabilities below 0.1 are not read from F but learned (learned_tail.py).
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.pool import StateField
from rfa.runtime.uncertainty.learned_tail import COLUMNS as TAIL_COLUMNS
from rfa.runtime.uncertainty.learned_tail import FIELD as TAIL_FIELD

FIELD = "normal.learned"
# Columns: λ, σ, n and the trend.
LEVEL, SPREAD, COUNT, TREND = range(4)
COLUMNS = 4
# Largest n, and number of observations whose weight the bundle has.
MEMORY, PRIOR = 1000.0, 20.0
LEVEL_GAIN, SPREAD_GAIN = 6.0, 3.0
# Rate of the trend, its size from which there is a change, and the fraction by which n and σ are reduced at twice that
# size.
TREND_RATE, CHANGE, FORGOTTEN = 1 / 16, 0.15, 0.25
# Bounds of the columns. The noise is from a hundredth to 10¹² times the noise that the model expects.
LOWEST = np.array([-9.2, -1.5, 0.0, -1.0])
HIGHEST = np.array([55.3, 1.5, MEMORY, 1.0])


def baseline_fields() -> dict[str, StateField]:
    """Return the state fields of a stream that contain its baseline and its tail."""
    return {FIELD: StateField((COLUMNS,), np.float32), TAIL_FIELD: StateField((TAIL_COLUMNS,), np.float32)}


@inline_jit
def interpolate(x, grid, values):
    """Interpolate linearly as `numpy.interp` does. The result is constant beyond the ends."""
    last = len(grid) - 1
    if x >= grid[last]:
        return values[last]
    if x < grid[0]:
        return values[0]
    low, high = 0, last  # among equal points the last one, as in NumPy
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle
    slope = (values[high] - values[low]) / (grid[high] - grid[low])
    return slope * (x - grid[low]) + values[low]


@inline_jit
def standard(root, size):
    """Return z under the model alone.

    Args:
        root: The cube root (nis / d)^(1/3).
        size: Number d of observed components.
    """
    return (root - (1 - 2 / (9 * size))) / np.sqrt(2 / (9 * size))


@inline_jit
def size_of_one(z):
    """Return the distance in standard deviations at which a single component has the given z. It is comparable between
    observations with different numbers of components."""
    return max(7 / 9 + z * np.sqrt(2 / 9), 0.0) ** 1.5


@inline_jit
def share_below(z, spread, table):
    """Return a, the fraction of the scores in the calibration data that are below z."""
    z = z * np.exp(-spread)
    share = 0.0 if z < table.quantiles[0] else interpolate(z, table.quantiles, table.shares)
    return share - table.beyond * np.expm1(-interpolate(z, table.tail, table.folds))


@inline_jit
def learn(before, root, size, learns, table, after):
    """Score an observation with the baseline before it, and then update the baseline.

    Args:
        before: Baseline, `[COLUMNS]`.
        root: The cube root (nis / d)^(1/3).
        size: Number d of observed components, at least 1.
        learns: Whether to update the baseline. Otherwise, its bits do not change.
        table: Distribution of the scores, a `calibration.TailModel`.
        after: Output: the new baseline, `[COLUMNS]`.

    Returns:
        The novelty z, computed with λ but without σ, and the fraction a of scores below it.
    """
    for k in range(COLUMNS):
        after[k] = before[k]  # in float64 from here on
    level, spread, count, trend = after[LEVEL], after[SPREAD], after[COUNT], after[TREND]
    z = standard(root * np.exp(level / -3), size)
    share = share_below(z, spread, table)
    if learns:
        error, rate = share - 0.5, 1 / (count + PRIOR)
        after[LEVEL] += LEVEL_GAIN / np.sqrt(size) * rate * error
        after[SPREAD] += SPREAD_GAIN * rate * (abs(2 * error) - 0.5)
        after[COUNT] += 1
        after[TREND] += TREND_RATE * (error - trend)
        for k in range(COLUMNS):
            after[k] = min(max(after[k], LOWEST[k]), HIGHEST[k])
        kept = 1 - FORGOTTEN * min(max(abs(after[TREND]) / CHANGE - 1, 0.0), 1.0)
        for k in range(SPREAD, TREND):
            after[k] *= kept
    return z, share
