"""Generators of physical systems that are linear stochastic differential equations, sampled exactly at any times."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import choose, log_uniform
from rfa.training.synthetic.recursions import relax, rotate

PARTS = {1: 50, 2: 30, 3: 20}
# Weights of an Ornstein-Uhlenbeck process, a damped oscillator, and a body whose velocity is an Ornstein-Uhlenbeck
# process.
SYSTEMS = {"relaxing": 35, "oscillator": 45, "body": 20}


def linear_sde(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return sums of one to three processes, `[B, N]`: Ornstein-Uhlenbeck processes, damped oscillators, and integrated
    Ornstein-Uhlenbeck processes (the position of a body whose velocity is an Ornstein-Uhlenbeck process).

        dz = (-μ + iω) z dt + sqrt(2μ) dW,  x = Re z        E[x(t) x(s)] = e^(-μ|t-s|) cos ω(t - s)
        dv = -v/τ dt + sqrt(2/τ) dW,  dx = v dt

    For an Ornstein-Uhlenbeck process (ω = 0), 1/μ is between 2 steps and three times the length of the series. τ has
    the same range. An oscillator has a seasonal period, and is correlated over 0.3 to 100 cycles, so it can represent a
    changing season.
    """
    count = clock.count
    out = np.zeros_like(clock.steps)
    parts = choose(rng, PARTS, count)
    for k in PARTS:
        kind = choose(rng, SYSTEMS, count)
        size = log_uniform(rng, 0.3, 1, (count, 1))
        lasting = log_uniform(rng, 2, 3 * clock.length, count)
        rows = np.flatnonzero((parts >= k) & (kind != "body"))
        turning = kind[rows] == "oscillator"
        period = np.where(turning, clock.periods(rng)[rows], np.inf)
        forgets = np.where(turning, period * log_uniform(rng, 0.3, 100, len(rows)), lasting[rows])
        out[rows] += size[rows] * oscillators(rng, clock.lags[rows], forgets, period)
        rows = np.flatnonzero((parts >= k) & (kind == "body"))
        track = bodies(rng, clock.lags[rows], lasting[rows])
        out[rows] += size[rows] * track / (track.std(axis=1, keepdims=True) + 1e-9)
    return out


def oscillators(rng: np.random.Generator, lags: np.ndarray, forgets: np.ndarray, period: np.ndarray) -> np.ndarray:
    """Return samples of oscillators with variance 1, `[B, N]`.

    Args:
        rng: Random generator.
        lags: Time since the previous value in steps, `[B, N]`.
        forgets: 1/μ in steps, `[B]`.
        period: 2π/ω in steps, `[B]`. An infinite period gives an Ornstein-Uhlenbeck process.
    """
    decay = np.exp(-lags / forgets[:, None])
    spread = np.sqrt(1 - decay**2)
    spread[:, 0] = 1.0
    angle = 2 * np.pi * lags / period[:, None]
    real, imaginary = spread * rng.standard_normal(lags.shape), spread * rng.standard_normal(lags.shape)
    return rotate(decay, np.cos(angle), np.sin(angle), real, imaginary)


def bodies(rng: np.random.Generator, lags: np.ndarray, lasting: np.ndarray) -> np.ndarray:
    """Return samples of integrated Ornstein-Uhlenbeck processes, computed exactly, `[B, N]`. They start at 0.

    Args:
        rng: Random generator.
        lags: Time since the previous value in steps, `[B, N]`.
        lasting: Correlation time τ of the velocity in steps, `[B]`. The velocity has unit variance.
    """
    tau = lasting[:, None]
    h = lags / tau
    decay = np.exp(-h)
    one, two = rng.standard_normal(lags.shape), rng.standard_normal(lags.shape)
    spread = np.sqrt(1 - decay**2)
    # The position's noise over a lag has a part that is proportional to the noise of the velocity, and a remaining
    # variance.
    shared = tau * (1 - decay) ** 2 / np.where(spread > 0, spread, 1)
    left = np.maximum(tau**2 * (2 * h - 3 + 4 * decay - decay**2) - shared**2, 0)
    drive = spread * one
    drive[:, 0] = one[:, 0]
    velocity = relax(decay, drive)
    before = np.concatenate([np.zeros((len(lags), 1)), velocity[:, :-1]], axis=1)
    return np.cumsum(tau * (1 - decay) * before + shared * one + np.sqrt(left) * two, axis=1)
