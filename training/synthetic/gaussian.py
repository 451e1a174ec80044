"""Generators of Gaussian processes. They use random features of kernels, and of products and sums of kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ive

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import choose, cosine, log_uniform

FEATURES = 48
KERNELS = {"rbf": 25, "matern_3": 15, "matern_5": 15, "rational_quadratic": 15, "periodic": 30}
# Number of harmonics of a periodic kernel.
HARMONICS = 24
# Number of base kernels per kernel, and probability that two of them are multiplied instead of added.
PARTS = {1: 40, 2: 40, 3: 20}
MULTIPLIED = 0.5


def gaussian(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Sample zero-mean Gaussian processes, `[B, N]`.

    Each kernel combines one to three base kernels by addition or multiplication. The base kernels are the same as in
    KernelSynth (Ansari et al., Chronos, 2024): RBF, Matérn 3/2 and 5/2, rational quadratic, periodic. By Bochner's
    theorem, a stationary kernel corresponds to a distribution of frequencies (Rahimi and Recht, 2007). For a product of
    kernels, frequencies sampled for each factor are added. For a sum, each frequency is sampled for one of the terms.
    Length scales range from 3 steps to the length of the series, and periods are those of seasons.
    """
    count = clock.count
    frequency = _part(rng, clock)
    parts = choose(rng, PARTS, count)
    for k in (2, 3):
        rows = np.flatnonzero(parts >= k)
        other = _part(rng, clock[rows])
        is_product = rng.random((len(rows), 1)) < MULTIPLIED
        is_kept = rng.random((len(rows), FEATURES)) < rng.uniform(0.2, 0.8, (len(rows), 1))
        one = frequency[rows]
        frequency[rows] = np.where(is_product, one + other, np.where(is_kept, one, other))
    return features(rng, clock.steps, frequency)


def features(rng: np.random.Generator, steps: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Return x(t) = Σ_d a_d cos 2π (f_d t + φ_d), where a_d² is exponential with mean 2/D, `[B, N]`.

    Its autocovariance is E[x(t) x(s)] = E[cos 2π f (t - s)].

    Args:
        rng: Random generator.
        steps: Times t, `[B, N]`.
        frequency: Frequencies f in cycles per step, `[B, D]`.
    """
    size = np.sqrt(2 / frequency.shape[1] * rng.standard_exponential(frequency.shape))
    phase = rng.random(frequency.shape)
    out = np.zeros_like(steps)
    for d in range(frequency.shape[1]):
        out += size[:, d, None] * cosine(frequency[:, d, None] * steps + phase[:, d, None])
    return out


def _part(rng: np.random.Generator, clock: Clock) -> np.ndarray:
    """Sample the frequencies of one base kernel for each series, `[B, D]`."""
    count = clock.count
    kind, scale = choose(rng, KERNELS, count), log_uniform(rng, 3, clock.length, count)
    period, narrow = clock.periods(rng), log_uniform(rng, 0.4, 3, count)
    out = np.empty((count, FEATURES))
    for name in KERNELS:
        rows = np.flatnonzero(kind == name)
        if len(rows) and name == "periodic":
            out[rows] = periodic_frequencies(rng, period[rows], narrow[rows], FEATURES)
        elif len(rows):
            out[rows] = SMOOTH[name](rng, scale[rows], FEATURES)
    return out


def rbf_frequencies(rng: np.random.Generator, scale: np.ndarray, count: int) -> np.ndarray:
    """Sample `count` frequencies of the kernel k(τ) = e^(-τ²/2ℓ²), `[B, D]`. `scale` contains ℓ in steps, `[B]`."""
    return rng.standard_normal((len(scale), count)) / (2 * np.pi * scale[:, None])


def matern_frequencies(freedom: int) -> Callable[[np.random.Generator, np.ndarray, int], np.ndarray]:
    """Return a function that samples frequencies of the Matérn kernel with ν = freedom/2. They have a Student's t
    distribution with 2ν degrees of freedom."""

    def drawn(rng: np.random.Generator, scale: np.ndarray, count: int) -> np.ndarray:
        return rng.standard_t(freedom, (len(scale), count)) / (2 * np.pi * scale[:, None])

    return drawn


def rational_quadratic_frequencies(rng: np.random.Generator, scale: np.ndarray, count: int) -> np.ndarray:
    """Sample frequencies of k(τ) = 1/(1 + τ²/2ℓ²), `[B, D]`. This kernel is a mixture of RBF kernels whose inverse
    squared scales are exponential."""
    return rbf_frequencies(rng, scale, count) * np.sqrt(rng.standard_exponential((len(scale), count)))


def periodic_frequencies(rng: np.random.Generator, period: np.ndarray, narrow: np.ndarray, count: int) -> np.ndarray:
    """Sample frequencies of k(τ) = e^(-2 sin²(π τ/p)/ℓ²), `[B, D]`. Harmonic h has weight 2 e^(-1/ℓ²) I_h(1/ℓ²).
    `period` is p and `narrow` is ℓ, `[B]` each."""
    harmonics = np.arange(HARMONICS)
    weights = ive(harmonics, 1 / narrow[:, None] ** 2) * np.where(harmonics > 0, 2, 1)
    chances = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    drawn = (rng.random((len(period), count))[:, :, None] >= chances[:, None]).sum(axis=2)
    return drawn / period[:, None]


SMOOTH = {
    "rbf": rbf_frequencies,
    "matern_3": matern_frequencies(3),
    "matern_5": matern_frequencies(5),
    "rational_quadratic": rational_quadratic_frequencies,
}
