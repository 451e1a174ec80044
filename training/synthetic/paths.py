"""Walks and noises that families are made of."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def random_walk(rng: np.random.Generator, count: int, length: int) -> Array:
    """`[count, length]`, of variance 1 at the end."""
    return rng.standard_normal((count, length)).cumsum(axis=1) / np.sqrt(length)


def heavy(rng: np.random.Generator, count: int, length: int) -> Array:
    """Student's t of 2.1 to 8 degrees of freedom, `[count, length]`, in units of its scale, at most 30: a normal over
    the root of a gamma."""
    nu = rng.uniform(2.1, 8, (count, 1))
    scale = np.sqrt(rng.standard_gamma(np.broadcast_to(nu / 2, (count, length))) / (nu / 2))
    return np.clip(rng.standard_normal((count, length)) / np.maximum(scale, 1e-3), -30, 30)


def scaled(y: Array) -> Array:
    """Series of mean 0 and variance 1, `[B, N]`; what is constant is 0."""
    y = y - y.mean(axis=1, keepdims=True)
    spread = y.std(axis=1, keepdims=True)
    return np.where(spread > 1e-9, y / np.where(spread > 1e-9, spread, 1.0), 0.0)
