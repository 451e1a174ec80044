"""The learned normal of service/engine/filter/learned_normal.py for many streams at once, in NumPy.

The equations and the names are those of its page. Tests hold what is served to it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from rfa.service.engine.filter.calibration import Rarity
from rfa.service.engine.filter.learned_normal import (
    CHANGE,
    COUNT,
    FORGOTTEN,
    HIGHEST,
    LEVEL,
    LEVEL_GAIN,
    LOWEST,
    PRIOR,
    SHARE,
    SPREAD,
    SPREAD_GAIN,
    TAIL,
    TAIL_GAIN,
    TREND,
    TREND_RATE,
)

Array = np.ndarray

_EXPONENTS = np.array([[-1 / 3], [-1.0], [-1.0]])


class Learned(NamedTuple):
    """z by the model alone `[rows]`, the anomaly score `[rows]`, and what is learned after it `[rows, COLUMNS]`."""

    surprise: Array
    anomaly: Array
    after: Array


def rarity(table: Rarity, surprise: Array) -> tuple[Array, Array]:
    """How many surprises are smaller, by the table, and by how many e-folds rarer they are behind its end."""
    share = np.interp(surprise, table.surprises, table.shares, left=0.0)
    return share, np.interp(surprise, table.tail, table.folds)


def learn(before: Array, nis: Array, seen: Array, components: int, teaches: Array, table: Rarity) -> Learned:
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
    share, folds = rarity(table, (root * stretch - centre) / width * narrow)
    w = -np.expm1(-folds * shorten)
    left = table.beyond
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
    after = np.minimum(np.maximum(state + push, LOWEST[:, None]), HIGHEST[:, None])
    change = np.minimum(np.maximum(np.abs(after[TREND]) / CHANGE - 1, 0.0), 1.0)
    after[SPREAD:TREND] *= 1 - FORGOTTEN * counted * change
    return Learned((root - centre) / width, anomaly, after.T)


@functools.cache
def _terms(components: int) -> Array:
    """d, c, s and the gain of λ by the components seen, `[4, components + 1]`; none is as one."""
    size = np.maximum(np.arange(components + 1), 1)
    return np.stack([size, 1 - 2 / (9 * size), np.sqrt(2 / (9 * size)), LEVEL_GAIN / np.sqrt(size)])
