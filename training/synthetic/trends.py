"""Trends, breaks and smooth curves."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clocks import Array, Clocks
from rfa.training.synthetic.paths import random_walk, scaled

MOST_KINKS, MOST_BREAKS, FEATURES = 4, 6, 24


def trend(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Sums of a line, kinks Σ b_k max(x - c_k, 0), a walk, an integrated walk, and what saturates, e^{-r x}; x goes
    from 0 to 1. Each is there or not. `[B, N]`."""
    count, length = clocks.shape
    x = clocks.share

    def some(chance: float) -> Array:
        return (rng.random((count, 1)) < chance) * rng.standard_normal((count, 1))

    y = 2 * some(0.5) * x
    for _ in range(MOST_KINKS):
        y += 2 * some(0.15) * np.maximum(x - rng.random((count, 1)), 0)
    walk = random_walk(rng, count, length)
    y += 1.5 * some(0.4) * walk
    y += 3 * some(0.15) * walk.cumsum(axis=1) / length
    y += 2 * some(0.15) * np.exp(-x * rng.uniform(1, 8, (count, 1)))
    return y


def breaks(rng: np.random.Generator, clocks: Clocks) -> Array:
    """A level that jumps, a slope that breaks, noise whose spread changes, each at up to MOST_BREAKS places, `[B, N]`.

    y = Σ_k b_k [x > c_k] + Σ_k s_k max(x - d_k, 0) + e · exp(Σ_k v_k [x > c_k])
    """
    count, length = clocks.shape
    x = clocks.share
    level, slope, spread = (np.zeros((count, length)) for _ in range(3))
    many = rng.integers(1, MOST_BREAKS + 1, (count, 1))
    kinds = rng.random((3, count, 1)) < np.array([0.8, 0.4, 0.4])[:, None, None]
    for k in range(MOST_BREAKS):
        is_there = k < many
        place = rng.random((count, 1))
        is_after = is_there & (x > place)
        size = rng.standard_normal((3, count, 1))
        level += kinds[0] * size[0] * is_after
        slope += kinds[1] * 3 * size[1] * np.where(is_after, x - place, 0)
        spread += kinds[2] * 0.7 * size[2] * is_after
    noise = np.exp(rng.uniform(np.log(0.03), np.log(0.7), (count, 1)))
    return level + slope + noise * np.exp(spread) * rng.standard_normal((count, length))


def smooth(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Gaussian processes by random features (Rahimi and Recht 2007), `[B, N]`.

    y = √(2 / F) Σ_f a_f cos(ω_f t + φ_f),    a ~ N(0, 1), ω ~ the kernel's spectrum

    with lengths log-uniform from 3 to 400 steps, of the squared exponential (ω normal) and of Matérn's 3/2 (ω Student's
    t of 3 degrees of freedom).
    """
    count, length = clocks.shape
    reach = np.exp(rng.uniform(np.log(3), np.log(400), (count, 1)))
    normal = rng.standard_normal((count, FEATURES))
    student = normal / np.sqrt(rng.chisquare(3, (count, FEATURES)) / 3)
    rate = np.where(rng.random((count, 1)) < 0.5, normal, student) / reach
    rows = clocks.rows
    phase = rng.uniform(0, 2 * np.pi, (count, FEATURES))
    size = rng.standard_normal((count, FEATURES)) * np.sqrt(2 / FEATURES)
    y = np.zeros((count, length), np.float32)
    for f in range(FEATURES):
        turns = rate[:, f, None] * rows + phase[:, f, None]
        turns -= 2 * np.pi * np.floor(turns / (2 * np.pi))
        y += size[:, f, None].astype(np.float32) * np.cos(turns.astype(np.float32))
    return y.astype(np.float64)


def volatility(rng: np.random.Generator, clocks: Clocks) -> Array:
    """Prices, `[B, N]`: a walk whose log variance is an autoregression of its own (Taylor 1986); half of them are
    exponentials of it."""
    count, length = clocks.shape
    slow = scaled(random_walk(rng, count, length)) * rng.uniform(0.1, 0.8, (count, 1))
    walk = (np.exp(slow) * rng.standard_normal((count, length))).cumsum(axis=1) / np.sqrt(length)
    walk += rng.normal(0, 0.5, (count, 1)) * clocks.share
    return np.where(rng.random((count, 1)) < 0.5, walk, np.exp(np.clip(walk, -5, 5)))
