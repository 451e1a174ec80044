"""Baseline of a stream: its noise and the spread of its scores, learned while it is filtered.

The bundle's calibration has F(z), the share of scores below z on the data that it was fitted on: a table and a tail
(calibration.py). A stream may be noisier or calmer. Two numbers adapt F to it; at 0, where they start, F is the
bundle's to the bit:

    z = (e^(−λ/3) (nis / d)^(1/3) − c) / (e^σ s)        c = 1 − 2/(9d), s = √(2/(9d)): Wilson and Hilferty (1931)
    a = F(z)

λ is the log of the stream's innovation variance over the model's, σ the log of the spread of z. If both are correct, a
is uniform on [0, 1], and so is |2a − 1|. After each observation

    λ ← λ + (6/√d) (a − ½) / (n + 20)                   6/√d and 3 are about one over the slopes of the means
    σ ← σ + 3 (|2a − 1| − ½) / (n + 20)
    n ← min(n + 1, 1000)

These are stochastic approximations (Robbins and Monro 1951) of M-estimates (Huber 1964): one observation moves λ by at
most 3/√d / (n + 20). The bundle counts as 20 observations. The trend, a mean of a − ½ over about a dozen observations,
separates a change from outliers: beyond ±CHANGE, every observation forgets up to a quarter of n and σ, so that λ moves
at once and the spread is learned again.

Tail probabilities below one in ten are not read from F but learned, see learned_tail.py.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.pool import StateField
from rfa.runtime.uncertainty.learned_tail import COLUMNS as TAIL_COLUMNS
from rfa.runtime.uncertainty.learned_tail import FIELD as TAIL_FIELD

FIELD = "normal.learned"
# Its columns: λ, σ, n and the trend.
LEVEL, SPREAD, COUNT, TREND = range(4)
COLUMNS = 4
# Largest n, and how many observations the bundle counts as.
MEMORY, PRIOR = 1000.0, 20.0
LEVEL_GAIN, SPREAD_GAIN = 6.0, 3.0
# The trend's rate, its size at a change, and the share of n and σ that is forgotten at twice that size.
TREND_RATE, CHANGE, FORGOTTEN = 1 / 16, 0.15, 0.25
# Noise from a hundredth to 10¹² times what the model expects.
LOWEST = np.array([-9.2, -1.5, 0.0, -1.0])
HIGHEST = np.array([55.3, 1.5, MEMORY, 1.0])


def baseline_fields() -> dict[str, StateField]:
    """State fields of a stream: its baseline and its tail."""
    return {FIELD: StateField((COLUMNS,), np.float32), TAIL_FIELD: StateField((TAIL_COLUMNS,), np.float32)}


@inline_jit
def interpolate(x, grid, values):
    """As `numpy.interp`: constant beyond the ends."""
    last = len(grid) - 1
    if x >= grid[last]:
        return values[last]
    if x < grid[0]:
        return values[0]
    low, high = 0, last  # of equal points the last, as in numpy
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
    """z by the model alone, from (nis / d)^(1/3)."""
    return (root - (1 - 2 / (9 * size))) / np.sqrt(2 / (9 * size))


@inline_jit
def size_of_one(z):
    """Distance in standard deviations of one component at this z: comparable for any number of components."""
    return max(7 / 9 + z * np.sqrt(2 / 9), 0.0) ** 1.5


@inline_jit
def share_below(z, spread, table):
    """a: the share of scores below z."""
    z = z * np.exp(-spread)
    share = 0.0 if z < table.quantiles[0] else interpolate(z, table.quantiles, table.shares)
    return share - table.beyond * np.expm1(-interpolate(z, table.tail, table.folds))


@inline_jit
def learn(before, root, size, learns, table, after):
    """Score an observation by the baseline before it, then update the baseline.

    Args:
        before: the baseline, `[COLUMNS]`.
        root: (nis / d)^(1/3).
        size: d, at least 1.
        learns: otherwise the baseline stays as it is, to the bit.
        table: `calibration.TailModel`.
        after: set to the new baseline, `[COLUMNS]`.

    Returns:
        z with λ alone, and a.
    """
    for k in range(COLUMNS):
        after[k] = before[k]  # from here on in float64
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
