"""CRPS in closed form, coverage and width of intervals.

    CRPS(F, y) = E|X - y| - ½ E|X - X'|,  X, X' ~ F independent         (Gneiting and Raftery 2007)

For a normal with z = (y - μ)/σ: σ [z (2Φ(z) - 1) + 2φ(z) - 1/√π].
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr


def crps_normal(y: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the CRPS of normal forecasts, elementwise."""
    z = (y - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return deviation * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def crps_points(z: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the CRPS at outcomes `z` of the forecast with equally likely `points`."""
    x = np.sort(points)
    m = len(x)
    below = np.searchsorted(x, z)
    sums = np.concatenate([[0.0], np.cumsum(x)])
    apart = (z * below - sums[below] + (sums[m] - sums[below]) - z * (m - below)) / m
    # ½ E|X - X'| of sorted points.
    own = float(((2 * np.arange(1, m + 1) - m - 1) * x).sum()) / m**2
    return apart - own


def interval(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """Return the fraction of outcomes inside the intervals, and the mean width."""
    return float(((y >= low) & (y <= high)).mean()), float((high - low).mean())


def block_error(difference: np.ndarray, block: int) -> float:
    """Return the standard error of the mean of a series correlated over less than `block` values, from block means."""
    count = len(difference) // block
    means = difference[: count * block].reshape(count, block).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(count))


__all__ = ["block_error", "crps_normal", "crps_points", "interval"]
