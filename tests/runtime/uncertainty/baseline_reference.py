"""The baseline of runtime/uncertainty/baseline.py, one observation of one stream at a time, by its page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rfa.runtime.uncertainty.calibration import TailModel


class Learned(NamedTuple):
    """z by the model alone and with λ, the share of smaller ones, and the state after it: (λ, σ, n, trend)."""

    surprise: float
    scaled: float
    share: float
    after: list[float]


def share_below(table: TailModel, z: float) -> float:
    """How many surprises are smaller, by the table and the tail behind its end."""
    share = np.interp(z, table.quantiles, table.shares, left=0.0)
    return float(share + table.beyond * -np.expm1(-np.interp(z, table.tail, table.folds)))


def learn(
    state: Sequence[float], nis: float, d: int, share_below: Callable[[float], float], *, learns: bool = True
) -> Learned:
    """Place an observation of `d` components, then learn from it."""
    level, spread, count, trend = map(float, state)
    c, s = 1 - 2 / (9 * d), math.sqrt(2 / (9 * d))
    root = (nis / d) ** (1 / 3)
    scaled = (root * math.exp(-level / 3) - c) / s
    share = share_below(scaled / math.exp(spread))
    if learns:
        level += 6 / math.sqrt(d) * (share - 0.5) / (count + 20)
        spread += 3 * (abs(2 * share - 1) - 0.5) / (count + 20)
        trend += (share - 0.5 - trend) / 16
        keep = 1 - 0.25 * min(max(abs(trend) / 0.15 - 1, 0), 1)
        level, spread = min(max(level, -9.2), 55.3), min(max(spread, -1.5), 1.5) * keep
        count = min(count + 1, 1000) * keep
    return Learned((root - c) / s, scaled, share, [level, spread, count, trend])
