"""Generators of noise with several distributions."""

from __future__ import annotations

import numpy as np

from rfa.training.synthetic.clock import Clock
from rfa.training.synthetic.priors import choose, heavy, log_uniform
from rfa.training.synthetic.recursions import relax
from rfa.training.synthetic.trends import volatility

KINDS = {"normal": 60, "heavy": 16, "skewed": 6, "lasting": 12, "clustered": 6}
FOLLOWS_SIGNAL = 0.25


def noise(rng: np.random.Generator, clock: Clock, signal: np.ndarray) -> np.ndarray:
    """Return noise `[B, N]` for a standardised signal `[B, N]`. Its mean is zero, and its scale is one unless it
    depends on the signal.

    The noise is normal, Student's t with 2.5 to 8 degrees of freedom, a centred Gamma variable of either sign, an
    Ornstein-Uhlenbeck process with a correlation time of 0.3 to 30 steps, or normal with stochastic volatility. In a
    quarter of the series, the noise is multiplied by e^(k signal), with k from -0.4 to 0.8.
    """
    count = clock.count
    out = rng.standard_normal(signal.shape)
    kind = choose(rng, KINDS, count)
    rows = np.flatnonzero(kind == "heavy")
    out[rows] = heavy(rng, rng.uniform(2.5, 8, len(rows)), out[rows].shape)
    rows = np.flatnonzero(kind == "skewed")
    shape = log_uniform(rng, 0.5, 5, (len(rows), 1))
    skewed = (rng.standard_gamma(np.broadcast_to(shape, out[rows].shape)) - shape) / np.sqrt(shape)
    out[rows] = skewed * rng.choice([-1.0, 1.0, 1.0], (len(rows), 1))
    rows = np.flatnonzero(kind == "lasting")
    decay = np.exp(-clock.lags[rows] / log_uniform(rng, 0.3, 30, (len(rows), 1)))
    out[rows] = relax(decay, np.where(decay < 1, np.sqrt(1 - decay**2), 1.0) * out[rows])
    rows = np.flatnonzero(kind == "clustered")
    out[rows] *= volatility(rng, clock[rows])
    rows = np.flatnonzero(rng.random(count) < FOLLOWS_SIGNAL)
    out[rows] *= np.exp(rng.uniform(-0.4, 0.8, (len(rows), 1)) * np.clip(signal[rows], -4, 4))
    return out
