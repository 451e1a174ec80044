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

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from rfa.service.engine.filter.calibration import Calibration
from rfa.service.runtime.pool import StateField

Array = np.ndarray

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
LOWEST = np.array([[-9.2], [-1.5], [-1.0], [-1.0], [0.0], [-1.0]])
HIGHEST = np.array([[55.3], [1.5], [1.6], [1.0], [MEMORY], [1.0]])
_EXPONENTS = np.array([[-1 / 3], [-1.0], [-1.0]])


class Learned(NamedTuple):
    """z by the model alone `[rows]`, the anomaly score `[rows]`, and what is learned after it `[rows, COLUMNS]`."""

    surprise: Array
    anomaly: Array
    after: Array


def normal_fields() -> dict[str, StateField]:
    """What a seat holds."""
    return {FIELD: StateField((COLUMNS,), np.float32)}


def learn(before: Array, nis: Array, seen: Array, components: int, teaches: Array, calibration: Calibration) -> Learned:
    """Score one observation of every row by what was normal before it, then learn from it.

    Args:
        before: what was learned, `[rows, COLUMNS]`.
        nis: `[rows]`, not negative.
        seen: how many of the `components` were observed, `[rows]`.
        teaches: rows that learn: others stay as they are, to the bit.
    """
    size, centre, width, gain = _terms(components).take(seen, axis=1)
    root = (nis / size) ** (1 / 3)
    state = np.ascontiguousarray(before.T, np.float64)
    stretch, narrow, shorten = np.exp(state[:SHARE] * _EXPONENTS)
    share, folds = calibration.rarity((root * stretch - centre) / width * narrow)
    w = -np.expm1(-folds * shorten)
    left = calibration.beyond_table
    behind = left + state[SHARE]
    anomaly = np.minimum(share * ((1 - behind) / (1 - left)) + behind * w, 1.0)

    counted, hit = teaches.astype(np.float64), folds > 0
    off = anomaly - 0.5
    pace, rare_pace = counted / (state[COUNT] + PRIOR), counted / (left * state[COUNT] + PRIOR)
    push = np.empty_like(state)
    push[LEVEL] = gain * pace * off
    push[SPREAD] = SPREAD_GAIN * pace * (np.abs(2 * off) - 0.5)
    push[TAIL] = TAIL_GAIN * rare_pace * hit * (w - 0.5)
    push[SHARE] = left * rare_pace * (hit - behind)
    push[COUNT] = counted
    push[TREND] = TREND_RATE * counted * (off - state[TREND])
    after = np.minimum(np.maximum(state + push, LOWEST), HIGHEST)
    change = np.minimum(np.maximum(np.abs(after[TREND]) / CHANGE - 1, 0.0), 1.0)
    after[SPREAD:TREND] *= 1 - FORGOTTEN * counted * change
    return Learned((root - centre) / width, anomaly, after.T)


@functools.cache
def _terms(components: int) -> Array:
    """d, c, s and the gain of λ by the components seen, `[4, components + 1]`; none is as one."""
    size = np.maximum(np.arange(components + 1), 1)
    return np.stack([size, 1 - 2 / (9 * size), np.sqrt(2 / (9 * size)), LEVEL_GAIN / np.sqrt(size)])
