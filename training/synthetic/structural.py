"""Generators of structural series with evolving level, slope and season, which are added or multiplied, and of smooth
growth."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import chance, log_uniform
from rfa.training.synthetic.recursions import autoregress, relax
from rfa.training.synthetic.seasons import POINTS, profiles

MULTIPLICATIVE = 0.45


def structural(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return samples of the model of exponential smoothing, y = l + s + e or y = l e^(s + e), `[B, N]`.

        l' = l + b' + q_l ε      b' = φ b + q_b η      s' = s one season before + q_s ω      e ~ N(0, σ²)

    φ is 1, or from 0.8 to 0.995. Each of q_l, q_b and q_s is 0 in some of the series. A quarter of the series have no
    season. Multiplicative series have a positive level, whose minimum is a tenth to three times its range.
    """
    count, length = clock.count, clock.grid_length
    shape = (count, length)
    damped = np.where(chance(rng, 0.35, count) > 0, rng.uniform(0.8, 0.995, (count, 1)), 1.0)
    bends = chance(rng, 0.6, count) * log_uniform(rng, 1e-4, 0.05, (count, 1))
    drive = bends * rng.standard_normal(shape)
    first = chance(rng, 0.8, count) * log_uniform(rng, 0.003, 0.5, (count, 1))
    drive[:, :1] = first * rng.choice([-1.0, 1.0, 1.0], (count, 1))
    slope = relax(np.broadcast_to(damped, shape), drive)
    moves = chance(rng, 0.7, count) * log_uniform(rng, 0.01, 1, (count, 1)) * rng.standard_normal(shape)
    level = np.cumsum(slope + moves, axis=1)
    noise = log_uniform(rng, 0.02, 1, (count, 1)) * rng.standard_normal(shape)
    size = chance(rng, 0.75, count) * log_uniform(rng, 0.3, 30, (count, 1))
    season = size * evolving(rng, np.maximum(np.rint(clock.periods(rng)).astype(np.int64), 2), length)
    out = level + season + noise
    rows = np.flatnonzero(rng.random(count) < MULTIPLICATIVE)
    level = level[rows] - level[rows].min(axis=1, keepdims=True)
    span = level.max(axis=1, keepdims=True) + 1e-9
    level += span * log_uniform(rng, 0.1, 3, (len(rows), 1))
    relative = season[rows] + noise[rows]
    relative /= relative.std(axis=1, keepdims=True) + 1e-9
    out[rows] = level * np.exp(np.clip(log_uniform(rng, 0.01, 0.6, (len(rows), 1)) * relative, -6, 6))
    return clock.from_grid(out)


def evolving(rng: np.random.Generator, period: np.ndarray, length: int) -> np.ndarray:
    """Return a season with a variance of about 1, `[B, N]`. The value at each phase follows a random walk from cycle to
    cycle. `period` contains the periods in steps, `[B]`."""
    count = len(period)
    cycle = profiles(rng, count)
    changes = chance(rng, 0.6, count) * log_uniform(rng, 1e-3, 0.15, (count, 1))
    drive = changes * rng.standard_normal((count, length))
    for row, steps in enumerate(period.tolist()):
        most = min(steps, length)
        index = (np.arange(most) * POINTS) // steps
        # Short seasons are sampled per step, because a few steps cannot resolve a profile of 96 points.
        drive[row, :most] = rng.standard_normal(most) if steps <= 12 else cycle[row, index]
    return autoregress(drive, np.ones((count, 1)), period)


def growth(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return smooth growth such as that of prices, populations or emissions, x' = g or (log x)' = g, `[B, N]`.

    g is a constant plus an Ornstein-Uhlenbeck process, whose correlation time is from a twentieth of the series to the
    complete series. In half of the series, the process is smoothed.
    """
    count, length = clock.count, clock.length
    decay = np.exp(-clock.lags / log_uniform(rng, length / 20, length, (count, 1)))
    rate = relax(decay, np.sqrt(np.maximum(1 - decay**2, 1e-12)) * rng.standard_normal(decay.shape))
    smooth = np.flatnonzero(rng.random(count) < 0.5)
    slow = np.exp(-clock.lags[smooth] / log_uniform(rng, 2, length / 20, (len(smooth), 1)))
    rate[smooth] = relax(slow, (1 - slow) * rate[smooth])
    out = np.cumsum(
        (rng.normal(0.7, 1, (count, 1)) + log_uniform(rng, 0.05, 2, (count, 1)) * rate) * clock.lags, axis=1
    )
    rows = np.flatnonzero(rng.random(count) < 0.35)
    span = np.ptp(out[rows], axis=1, keepdims=True) + 1e-9
    out[rows] = np.exp(log_uniform(rng, 0.3, 3, (len(rows), 1)) * out[rows] / span)
    return out
