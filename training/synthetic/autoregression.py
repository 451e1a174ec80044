"""Generators of autoregressions and long-memory processes on a grid of time steps."""

from __future__ import annotations

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import chance, innovations, log_uniform
from rfa.training.synthetic.recursions import autoregress

ORDER, MOVING = 5, 2
# Number of initial steps that are dropped.
BURN_IN = 256


def autoregression(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return samples of ARMA processes φ(B) Φ(B^s) y = θ(B) e, `[B, N]`. The orders are p ≤ 5 and q ≤ 2, and a third of
    the series are seasonal.

    Partial autocorrelations are sampled instead of coefficients (Barndorff-Nielsen and Schou, 1973), so every series is
    stationary. The first one is from -0.9 to 0.999 and mostly near 1. The range of the others decreases with their
    order. The seasonal coefficient is from 0.3 to 0.98. Innovations are normal or Student's t.
    """
    count = clock.count
    shape = (count, clock.grid_length + BURN_IN)
    noise = innovations(rng, shape)
    rows = np.flatnonzero(rng.random(count) < 0.3)
    moving = rng.uniform(-0.9, 0.9, (len(rows), MOVING)) * [1.0, 0.4]
    noise[rows, MOVING:] += sum(moving[:, [q]] * noise[rows, MOVING - q - 1 : -q - 1] for q in range(MOVING))
    season = np.rint(clock.periods(rng)).astype(np.int64)
    rows = np.flatnonzero(rng.random(count) < 1 / 3)
    noise[rows] = autoregress(noise[rows], rng.uniform(0.3, 0.98, (len(rows), 1)), season[rows])
    values = autoregress(noise, stationary(_partial(rng, count)), np.ones(count, np.int64))
    return clock.from_grid(values[:, BURN_IN:])


def _partial(rng: np.random.Generator, count: int) -> np.ndarray:
    """Sample partial autocorrelations, `[B, P]`."""
    partial = rng.uniform(-0.6, 0.6, (count, ORDER)) / np.arange(1, ORDER + 1)
    first = 1 - log_uniform(rng, 0.001, 1, count)
    partial[:, 0] = np.where(rng.random(count) < 0.85, first, rng.uniform(-0.9, 0.5, count))
    order = np.minimum(rng.geometric(0.5, (count, 1)), ORDER)
    return partial * (np.arange(ORDER) < order)


def stationary(partial: np.ndarray) -> np.ndarray:
    """Return the autoregressive coefficients `[B, P]` with the partial autocorrelations `partial` `[B, P]`, by the
    recursion of Durbin and Levinson."""
    out = np.zeros_like(partial)
    for p in range(partial.shape[1]):
        last = partial[:, p, None]
        out[:, :p] -= last * out[:, :p][:, ::-1].copy()
        out[:, p] = partial[:, p]
    return out


def long_memory(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return fractional Gaussian noise with Hurst exponent H, `[B, N]`. In three of ten series, the noise is summed
    over time.

    The spectrum is f^(1-2H) at low frequencies. H is from 0.55 to 0.98 and, in a tenth of the series, from 0.1 to 0.45.
    The samples are exact, by circulant embedding of the autocovariance (Davies and Harte, 1987).
    """
    count = clock.count
    hurst = np.where(rng.random(count) < 0.9, rng.uniform(0.55, 0.98, count), rng.uniform(0.1, 0.45, count))
    values = fractional_noise(rng, hurst, clock.grid_length)
    is_summed = chance(rng, 0.3, count) > 0
    return clock.from_grid(np.where(is_summed, np.cumsum(values, axis=1), values))


def fractional_noise(rng: np.random.Generator, hurst: np.ndarray, length: int) -> np.ndarray:
    """Return Gaussian noise with unit variance and autocovariance (|k+1|^2H - 2 |k|^2H + |k-1|^2H) / 2 at lag k, `[B,
    N]`.

    Args:
        rng: Random generator.
        hurst: Hurst exponents H, `[B]`.
        length: Number of values N.
    """
    half = next_fast_len(length)
    power = np.abs(np.arange(-1, half + 2)) ** (2 * hurst[:, None])
    covariance = (power[:, 2:] - 2 * power[:, 1:-1] + power[:, :-2]) / 2  # lags 0 to half
    circle = np.concatenate([covariance, covariance[:, -2:0:-1]], axis=1)
    spectrum = np.maximum(rfft(circle, axis=1).real, 0)
    noise = rfft(rng.standard_normal(circle.shape), axis=1)
    return irfft(np.sqrt(spectrum) * noise, n=circle.shape[1], axis=1)[:, :length]
