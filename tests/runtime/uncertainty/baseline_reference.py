"""The learned normal of runtime/uncertainty/baseline.py for many streams at once, in NumPy.

The equations and the names are those of its page. Tests hold what is served to it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from rfa.runtime.uncertainty.baseline import (
    CHANGE,
    COUNT,
    FORGOTTEN,
    HIGHEST,
    LEVEL,
    LEVEL_GAIN,
    LOWEST,
    PRIOR,
    SPREAD,
    SPREAD_GAIN,
    TREND,
    TREND_RATE,
)
from rfa.runtime.uncertainty.calibration import TailModel

Array = np.ndarray

_EXPONENTS = np.array([[-1 / 3], [-1.0]])


class Learned(NamedTuple):
    """z by the model alone and with λ, the share of smaller surprises, all `[rows]`, and what is learned after it
    `[rows, COLUMNS]`."""

    surprise: Array
    scaled: Array
    share: Array
    after: Array


def shares_below(table: TailModel, place: Array) -> Array:
    """How many surprises are smaller, by the table and the tail behind its end."""
    share = np.interp(place, table.quantiles, table.shares, left=0.0)
    return share + table.beyond * -np.expm1(-np.interp(place, table.tail, table.folds))


def learn(before: Array, nis: Array, seen: Array, components: int, teaches: Array, table: TailModel) -> Learned:
    """Place one observation of every row by what was normal before it, then learn from it.

    Args:
        before: what was learned, `[rows, COLUMNS]`.
        nis: `[rows]`, not negative.
        seen: how many of the `components` were observed, `[rows]`.
        teaches: rows that learn: others stay as they are, to the bit.
    """
    size, centre, width, gain = _terms(components).take(seen, axis=1)
    root = (nis / size) ** (1 / 3)
    state = np.ascontiguousarray(before.T, np.float64)
    stretch, narrow = np.exp(state[:COUNT] * _EXPONENTS)
    scaled = (root * stretch - centre) / width
    share = shares_below(table, scaled * narrow)
    off, counted = share - 0.5, teaches.astype(np.float64)
    pace = counted / (state[COUNT] + PRIOR)
    push = np.empty_like(state)
    push[LEVEL] = gain * pace * off
    push[SPREAD] = SPREAD_GAIN * pace * (np.abs(2 * off) - 0.5)
    push[COUNT] = counted
    push[TREND] = TREND_RATE * counted * (off - state[TREND])
    after = np.minimum(np.maximum(state + push, LOWEST[:, None]), HIGHEST[:, None])
    change = np.minimum(np.maximum(np.abs(after[TREND]) / CHANGE - 1, 0.0), 1.0)
    after[SPREAD:TREND] *= 1 - FORGOTTEN * counted * change
    return Learned((root - centre) / width, scaled, share, after.T)


@functools.cache
def _terms(components: int) -> Array:
    """d, c, s and the gain of λ by the components seen, `[4, components + 1]`; none is as one."""
    size = np.maximum(np.arange(components + 1), 1)
    return np.stack([size, 1 - 2 / (9 * size), np.sqrt(2 / (9 * size)), LEVEL_GAIN / np.sqrt(size)])
