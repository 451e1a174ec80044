"""The normal of a stream: how noisy it is and how its surprises spread, learned while it is filtered.

The bundle's calibration tells how rare a surprise z is on the data that it was fitted on: F(z) up to the end of a
table, and behind it a tail (calibration.py). A stream may be noisier or calmer than these data. So two numbers follow
it, both 0 at first, where the share of smaller surprises is the bundle's to the bit:

    z = (e^(−λ/3) (nis / d)^(1/3) − c) / (e^σ s)        c = 1 − 2/(9d), s = √(2/(9d)): Wilson and Hilferty (1931)
    a = F(z)

λ is the log of the stream's innovation variance over the model's, σ the log of the spread of z. If they are right a is
uniform on [0, 1], and so is |2a − 1|. Hence, after each observation,

    λ ← λ + (6/√d) (a − ½) / (n + 20)                   6/√d and 3 are about one over the slopes of the means
    σ ← σ + 3 (|2a − 1| − ½) / (n + 20)
    n ← min(n + 1, 1000)

which are stochastic approximations (Robbins and Monro 1951) of M-estimates (Huber 1964): one observation moves λ by at
most 3/√d / (n + 20), however far out it is. The bundle counts for 20 observations. The mean of a − ½ over the last
dozen, the trend, tells a change from outliers: where it leaves ±CHANGE, up to a quarter of n and σ is forgotten with
every observation, so that λ moves at once and the spread is learned anew.

What is rarer than one in ten is not read from F but learned, of the sizes of one component at z, learned_tail.py.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import part
from rfa.runtime.pool import StateField
from rfa.runtime.uncertainty.learned_tail import COLUMNS as TAIL_COLUMNS
from rfa.runtime.uncertainty.learned_tail import FIELD as TAIL_FIELD

FIELD = "normal.learned"
# Its columns: λ, σ, what counts as observed, and the trend.
LEVEL, SPREAD, COUNT, TREND = range(4)
COLUMNS = 4
# Observations that are remembered, and for how many the bundle counts.
MEMORY, PRIOR = 1000.0, 20.0
LEVEL_GAIN, SPREAD_GAIN = 6.0, 3.0
# The trend's rate, the size from which it counts as a change, and what of n and σ goes at twice that size.
TREND_RATE, CHANGE, FORGOTTEN = 1 / 16, 0.15, 0.25
# Noise from a hundredth to 10¹² times what the model expects.
LOWEST = np.array([-9.2, -1.5, 0.0, -1.0])
HIGHEST = np.array([55.3, 1.5, MEMORY, 1.0])


def baseline_fields() -> dict[str, StateField]:
    """What a seat holds of what is normal and of what is rare."""
    return {FIELD: StateField((COLUMNS,), np.float32), TAIL_FIELD: StateField((TAIL_COLUMNS,), np.float32)}


@part
def interpolate(x, places, values):
    """As `numpy.interp`: constant beyond the ends."""
    last = len(places) - 1
    if x >= places[last]:
        return values[last]
    if x < places[0]:
        return values[0]
    low, high = 0, last  # of places that are equal the last, as there
    while high - low > 1:
        middle = (low + high) // 2
        if places[middle] <= x:
            low = middle
        else:
            high = middle
    slope = (values[high] - values[low]) / (places[high] - places[low])
    return slope * (x - places[low]) + values[low]


@part
def standard(root, size):
    """z of a third root of nis / d by the model alone."""
    return (root - (1 - 2 / (9 * size))) / np.sqrt(2 / (9 * size))


@part
def size_of_one(z):
    """How far out one component is at this z, in its deviations: so observations of any number of them compare."""
    return max(7 / 9 + z * np.sqrt(2 / 9), 0.0) ** 1.5


@part
def share_below(z, spread, table):
    """a: the share of smaller surprises."""
    place = z * np.exp(-spread)
    share = 0.0 if place < table.quantiles[0] else interpolate(place, table.quantiles, table.shares)
    return share - table.beyond * np.expm1(-interpolate(place, table.tail, table.folds))


@part
def learn(before, root, size, teaches, table, after):
    """Place an observation by what was normal before it, then learn from it.

    Args:
        before: what was learned, `[COLUMNS]`.
        root: (nis / d)^(1/3).
        size: d, at least 1.
        teaches: what does not leaves all as it is, to the bit.
        table: `calibration.TailModel`.
        after: what is learned then, `[COLUMNS]`; set here.

    Returns:
        z with λ alone, and a.
    """
    for k in range(COLUMNS):
        after[k] = before[k]  # from here on in float64
    level, spread, count, trend = after[LEVEL], after[SPREAD], after[COUNT], after[TREND]
    z = standard(root * np.exp(level / -3), size)
    share = share_below(z, spread, table)
    if teaches:
        off, pace = share - 0.5, 1 / (count + PRIOR)
        after[LEVEL] += LEVEL_GAIN / np.sqrt(size) * pace * off
        after[SPREAD] += SPREAD_GAIN * pace * (abs(2 * off) - 0.5)
        after[COUNT] += 1
        after[TREND] += TREND_RATE * (off - trend)
        for k in range(COLUMNS):
            after[k] = min(max(after[k], LOWEST[k]), HIGHEST[k])
        kept = 1 - FORGOTTEN * min(max(abs(after[TREND]) / CHANGE - 1, 0.0), 1.0)
        for k in range(SPREAD, TREND):
            after[k] *= kept
    return z, share
