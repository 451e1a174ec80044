"""The normal of a stream: an anomaly score that is as rare as it says on this stream, learned while it is filtered.

The bundle's calibration tells how rare a surprise z is on the data that it was fitted on: F(z) up to the end of a
table, beyond which a share p is left, and behind it a tail T(z) from 1 to 0 (calibration.py). A stream may be noisier
or calmer than these data, or have other tails. So four numbers follow it, all 0 at first, where the score is the
bundle's to the bit:

    z = (e^(−λ/3) (nis / d)^(1/3) − c) / (e^σ s)        c = 1 − 2/(9d), s = √(2/(9d)): Wilson and Hilferty (1931)
    a = F(z) (1 − p − β) / (1 − p)                      within the table
    a = 1 − (p + β) T(z)^(1/e^τ)                        behind its end

λ is the log of the stream's innovation variance over the model's, σ the log of the spread of z, β what more is behind
the end, τ the log of how much longer the tail is. With a right score a is uniform on [0, 1], so is |2a − 1|, a share
p + β is behind the end, and there w = 1 − T^(1/e^τ) is uniform. Hence, after scoring,

    λ ← λ + (6/√d) (a − ½) / (n + 20)                   6/√d, 3 and 4 are about one over the slopes of the means
    σ ← σ + 3 (|2a − 1| − ½) / (n + 20)
    β ← β + (behind − p − β) / (n + 20/p)               behind = 1 where z is, else 0
    τ ← τ + 4 behind (w − ½) / (p n + 20)
    n ← min(n + 1, 1000)

which are stochastic approximations (Robbins and Monro 1951) of M-estimates (Huber 1964): one observation moves λ by at
most 3/√d / (n + 20), however far out it is. The bundle counts for 20 observations, and for 20 behind the end. The mean
of a − ½ over the last dozen, the trend, tells a change from outliers: where it leaves ±CHANGE, up to a quarter of n, σ,
β and τ is forgotten with every observation, so that λ moves at once and the shape is learned anew.

Everything is elementwise; with padded rows (runtime/filter.py) a stream's numbers do not depend on its neighbours.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.model.compiling import part
from rfa.service.runtime.pool import StateField

FIELD = "normal.learned"
# Its columns: λ, σ, τ and β, what counts as observed, and the trend.
LEVEL, SPREAD, TAIL, SHARE, COUNT, TREND = range(6)
COLUMNS = 6
# Observations that are remembered, and for how many the bundle counts: of all, and of those behind the table's end.
MEMORY, PRIOR = 1000.0, 20.0
LEVEL_GAIN, SPREAD_GAIN, TAIL_GAIN = 6.0, 3.0, 4.0
# The trend's rate, the size from which it counts as a change, and what of n, σ, β and τ goes at twice that size.
TREND_RATE, CHANGE, FORGOTTEN = 1 / 16, 0.15, 0.25
# Noise from a hundredth to 10¹² times what the model expects; the tail at most 5 times as long.
LOWEST = np.array([-9.2, -1.5, -1.0, -1.0, 0.0, -1.0])
HIGHEST = np.array([55.3, 1.5, 1.6, 1.0, MEMORY, 1.0])


def normal_fields() -> dict[str, StateField]:
    """What a seat holds."""
    return {FIELD: StateField((COLUMNS,), np.float32)}


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
def rarity(table, surprise):
    """How many surprises are smaller, by the table, and by how many e-folds rarer it is behind the table's end."""
    share = 0.0 if surprise < table.surprises[0] else interpolate(surprise, table.surprises, table.shares)
    return share, interpolate(surprise, table.tail, table.folds)


@part
def learn(before, nis, seen, teaches, table, after):
    """Score an observation by what was normal before it, then learn from it.

    Args:
        before: what was learned, `[COLUMNS]`.
        nis: not negative.
        seen: how many components were observed; none is as one.
        teaches: what does not leaves all as it is, to the bit.
        table: `calibration.Rarity`.
        after: what is learned then, `[COLUMNS]`; set here.

    Returns:
        z by the model alone, and the anomaly score.
    """
    for k in range(COLUMNS):
        after[k] = before[k]  # from here on in float64
    level, spread, tail, share_behind, count, trend = after[0], after[1], after[2], after[3], after[4], after[5]
    size = np.float64(max(seen, 1))
    centre, width = 1 - 2 / (9 * size), np.sqrt(2 / (9 * size))
    root = (nis / size) ** (1 / 3)
    left = table.beyond
    surprise = (root * np.exp(level / -3) - centre) / width * np.exp(-spread)
    share, folds = rarity(table, surprise)
    w = -np.expm1(-folds * np.exp(-tail))
    behind = left + share_behind
    anomaly = min(share * ((1 - behind) / (1 - left)) + behind * w, 1.0)
    if teaches:
        off, hit = anomaly - 0.5, 1.0 if folds > 0 else 0.0
        pace, rare_pace = 1 / (count + PRIOR), 1 / (left * count + PRIOR)
        after[LEVEL] += LEVEL_GAIN / np.sqrt(size) * pace * off
        after[SPREAD] += SPREAD_GAIN * pace * (abs(2 * off) - 0.5)
        after[TAIL] += TAIL_GAIN * rare_pace * hit * (w - 0.5)
        after[SHARE] += left * rare_pace * (hit - behind)
        after[COUNT] += 1
        after[TREND] += TREND_RATE * (off - trend)
        for k in range(COLUMNS):
            after[k] = min(max(after[k], LOWEST[k]), HIGHEST[k])
        kept = 1 - FORGOTTEN * min(max(abs(after[TREND]) / CHANGE - 1, 0.0), 1.0)
        for k in range(SPREAD, TREND):
            after[k] *= kept
    return (root - centre) / width, anomaly
