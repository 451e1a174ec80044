"""Generators of levels: trends, structural breaks and random walks."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import chance, innovations, log_uniform
from rfa.training.synthetic.recursions import relax

KINKS, BREAKS = 4, 6


def trend(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return the sum of a line with up to four kinks, exponential growth and a saturating step, as functions of x = t /
    T, `[B, N]`.

        y = s x + Σ_k s_k max(0, x - c_k) + a (e^(g x) - 1) / (e^|g| - 1) + b / (1 + e^-((x - c)/w))

    s, s_k, a and b are N(0, 1), g is ±U(1, 6), and w is from 0.01 to 0.3. Half of the series have kinks, a quarter have
    the exponential term, and a quarter have the step. A third of the series with such a term have no line.
    """
    count = clock.count
    x = clock.steps / clock.steps[:, -1:]
    growing, saturating = chance(rng, 0.25, count), chance(rng, 0.25, count)
    has_line = 1 - np.maximum(growing, saturating) * chance(rng, 1 / 3, count)
    out = has_line * rng.standard_normal((count, 1)) * x
    has_kinks = chance(rng, 0.5, count)
    for k in range(KINKS):
        size = has_kinks * chance(rng, 1.0 if k == 0 else 0.4, count) * rng.normal(0, 2, (count, 1))
        out += size * np.maximum(x - rng.random((count, 1)), 0)
    rate = rng.choice([-1.0, 1.0], (count, 1)) * rng.uniform(1, 6, (count, 1))
    out += growing * rng.standard_normal((count, 1)) * np.expm1(rate * x) / np.expm1(np.abs(rate))
    away = (x - rng.random((count, 1))) / log_uniform(rng, 0.01, 0.3, (count, 1))
    out += saturating * rng.standard_normal((count, 1)) / (1 + np.exp(-np.clip(away, -50, 50)))
    return out


def breaks(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return one to six breaks at random times, `[B, N]`. A break is a step, a ramp, a temporary shift, or a change of
    slope.

        y = Σ_k h_k r((t - c_k) / d_k)

    In half of the breaks, r is a step. In the others, it is a ramp over the duration d of up to a tenth of the series,
    a step that ends after d, or the slope 2 max(0, t - c)/T. h is Student's t with 4 degrees of freedom.
    """
    count = clock.count
    steps, span = clock.steps, clock.steps[:, -1:]
    out = np.zeros_like(steps)
    most = np.minimum(rng.geometric(0.4, count), BREAKS)
    for k in range(BREAKS):
        rows = np.flatnonzero(most > k)
        shape = (len(rows), 1)
        since = steps[rows] - rng.random(shape) * span[rows]
        duration = log_uniform(rng, 0.002, 0.1, shape) * span[rows]
        kind = rng.random(shape)
        ramp = np.clip(since / duration, 0, 1)
        is_after = since >= 0
        shape_of = np.where(kind < 0.5, is_after, ramp)
        shape_of = np.where(kind > 0.7, is_after & (since < duration), shape_of)
        shape_of = np.where(kind > 0.85, 2 * np.maximum(since, 0) / span[rows], shape_of)
        out[rows] += rng.standard_t(4, shape) * shape_of
    return out


def walk(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return random walks such as those of prices, stocks and levels, dy = (b - κ y) dt + σ(t) dW + jumps, `[B, N]`.

    Increments over a lag have variance σ² lag and are normal or Student's t. Half of the series have a normal drift b
    with standard deviation 2 σ / √T. κ is 0 in four of five series; in the others, 1/κ is a third of the length to
    three times the length. log σ is a slow process in two of five series (stochastic volatility). A tenth of the series
    have rare jumps, and an eighth are integrated again, which gives a local linear trend.
    """
    count, length = clock.count, clock.length
    lags = clock.lags
    moved = innovations(rng, (count, length), heavy_share=0.35)
    rows = np.flatnonzero(rng.random(count) < 0.4)
    moved[rows] *= volatility(rng, clock[rows])
    rows = np.flatnonzero(rng.random(count) < 0.1)
    moved[rows] += (rng.random((len(rows), length)) < 3 / length) * rng.normal(0, 8, (len(rows), length))
    drift = chance(rng, 0.5, count) * rng.normal(0, 2, (count, 1)) / np.sqrt(length)
    moved = np.sqrt(lags) * moved + drift * lags
    reverting = chance(rng, 0.2, count) / (log_uniform(rng, 0.3, 3, (count, 1)) * length)
    out = relax(np.exp(-reverting * lags), moved)
    rows = np.flatnonzero(rng.random(count) < 0.125)
    out[rows] = np.cumsum(out[rows] * lags[rows], axis=1)
    return out


def volatility(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Return volatilities e^v with median 1, `[B, N]`. v is an Ornstein-Uhlenbeck process with a standard deviation of
    0.3 to 1 and a correlation time of 10 to N steps."""
    count = clock.count
    decay = np.exp(-clock.lags / log_uniform(rng, 10, clock.length, (count, 1)))
    drive = np.sqrt(1 - decay**2) * rng.standard_normal(decay.shape)
    drive[:, 0] = rng.standard_normal(count)
    return np.exp(rng.uniform(0.3, 1, (count, 1)) * relax(decay, drive))
