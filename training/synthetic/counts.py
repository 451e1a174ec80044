"""Convert a latent signal to counts or intermittent demand."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.priors import chance, log_uniform

# Upper bound on the rates.
LARGEST_RATE = 1e6
RARE, BURSTS = 0.3, 8


def counted(rng: np.random.Generator, latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and their rate, `[B, N]` each, from a latent signal with mean 0 and variance 1.

    log λ = m + s latent, with e^m log-uniform from 0.1 to 300 and s log-uniform from 0.2 to 1.2. Half of the series are
    Poisson, the others negative binomial: λ is multiplied by Gamma(k) with mean 1 and k log-uniform from 0.5 to 50.
    Three of ten series resemble rare errors of a service: e^m is from 0.003 to 0.5, and up to eight bursts temporarily
    add a rate of 1 to 50.
    """
    count = len(latent)
    rate = log_uniform(rng, 0.1, 300, (count, 1)) * np.exp(log_uniform(rng, 0.2, 1.2, (count, 1)) * latent)
    is_rare = rng.random(count) < RARE
    rate[is_rare] *= log_uniform(rng, 0.003, 0.5, (int(is_rare.sum()), 1)) / rate[is_rare].mean(axis=1, keepdims=True)
    length = latent.shape[1]
    for row in np.flatnonzero(is_rare):
        for begin in rng.integers(0, length, rng.integers(0, BURSTS + 1)):
            rate[row, begin : begin + int(log_uniform(rng, 1, 40, ()))] += log_uniform(rng, 1, 50, ())
    rate = np.minimum(rate, LARGEST_RATE)
    drawn = rate.copy()
    rows = np.flatnonzero(rng.random(count) < 0.5)
    shape = log_uniform(rng, 0.5, 50, (len(rows), 1))
    drawn[rows] *= rng.standard_gamma(np.broadcast_to(shape, drawn[rows].shape)) / shape
    return rng.poisson(drawn).astype(np.float64), rate


def intermittent(rng: np.random.Generator, latent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return intermittent demand and its mean, `[B, N]` each, from a latent signal with mean 0 and variance 1.

    The probability of a demand is 1/(1 + e^-(l + s latent)), where l is the logit of a fraction that is log-uniform
    from 0.01 to 0.5. s is 0 in two of five series, otherwise up to 1.5. The size is 1 plus a geometric number, or
    lognormal (Croston, 1972; Syntetos and Boylan, 2005).
    """
    count = len(latent)
    share = log_uniform(rng, 0.01, 0.5, (count, 1))
    follows = chance(rng, 0.6, count) * rng.uniform(0.2, 1.5, (count, 1))
    probability = 1 / (1 + (1 - share) / share * np.exp(-follows * latent))
    is_whole = chance(rng, 0.6, count) > 0
    more = log_uniform(rng, 0.05, 20, (count, 1))
    spread = rng.uniform(0.1, 1, (count, 1))
    shape = latent.shape
    # A geometric number with mean `more`, computed from an exponential one.
    whole = 1 + np.floor(rng.standard_exponential(shape) / np.log1p(1 / more))
    sizes = np.where(is_whole, whole, np.exp(spread * rng.standard_normal(shape)))
    mean = np.where(is_whole, 1 + more, np.exp(spread**2 / 2))
    return np.where(rng.random(shape) < probability, sizes, 0.0), probability * mean
