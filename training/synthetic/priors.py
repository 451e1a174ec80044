"""Sample parameters, with one value per series, and evaluate periodic functions of many series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Bound on a heavy-tailed innovation, in standard deviations.
LARGEST = 30.0


def log_uniform(rng: np.random.Generator, low: float, high: float, count: int | tuple[int, ...]) -> np.ndarray:
    """Sample a log-uniform distribution between two positive numbers. `count` is the shape of the result."""
    return np.exp(rng.uniform(np.log(low), np.log(high), count))


def chance(rng: np.random.Generator, probability: float, count: int) -> np.ndarray:
    """Return an array `[B, 1]` with one value per series, which is 1 with the given probability and otherwise 0."""
    return (rng.random((count, 1)) < probability).astype(np.float64)


def choose(rng: np.random.Generator, weights: Mapping[Any, float], count: int) -> np.ndarray:
    """Sample a key of `weights` for each series with probabilities proportional to the weights, `[B]`."""
    chances = np.cumsum(list(weights.values()))
    return np.array(list(weights))[np.searchsorted(chances, rng.random(count) * chances[-1], side="right")]


def heavy(rng: np.random.Generator, freedom: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Sample a Student's t distribution with unit variance, bounded by LARGEST, `[B, N]`. `freedom` contains the
    degrees of freedom, which are above 2, `[B]`."""
    values = rng.standard_t(freedom[:, None], shape) * np.sqrt(1 - 2 / freedom)[:, None]
    return np.clip(values, -LARGEST, LARGEST)


def innovations(rng: np.random.Generator, shape: tuple[int, int], heavy_share: float = 0.25) -> np.ndarray:
    """Sample innovations with unit variance, `[B, N]`. They are normal or, in the fraction `heavy_share` of the series,
    Student's t with 2.5 to 8 degrees of freedom."""
    values = rng.standard_normal(shape)
    rows = np.flatnonzero(rng.random(shape[0]) < heavy_share)
    if len(rows):
        values[rows] = heavy(rng, rng.uniform(2.5, 8, len(rows)), (len(rows), shape[1]))
    return values


def cosine(cycles: np.ndarray) -> np.ndarray:
    """Return cos 2π x for x in cycles, with an error of 3e-7. The argument is reduced to one cycle in float64. The
    cosine is computed in float32, which is twenty times as fast.
    """
    reduced = (cycles - np.floor(cycles)).astype(np.float32)
    reduced *= np.float32(2 * np.pi)
    return np.cos(reduced, out=reduced).astype(np.float64)


def read(table: np.ndarray, cycles: np.ndarray, is_held: np.ndarray | None = None) -> np.ndarray:
    """Interpolate periodic functions at phases.

    Args:
        table: M points of one cycle, `[B, M]`.
        cycles: Phases in cycles, `[B, N]`.
        is_held: Whether to return the previous point instead of interpolating linearly, `[B]`. By default, all series
            are interpolated.

    Returns:
        The values, `[B, N]`.
    """
    points = table.shape[1]
    position = (cycles - np.floor(cycles)) * points
    index = np.minimum(position.astype(np.int64), points - 1)
    fraction = position - index
    if is_held is not None:
        fraction *= ~is_held[:, None]
    closed = np.concatenate([table, table[:, :1]], axis=1)
    before = np.take_along_axis(closed, index, axis=1)
    return before + fraction * (np.take_along_axis(closed, index + 1, axis=1) - before)
