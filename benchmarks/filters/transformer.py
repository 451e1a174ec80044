"""The Transformer filter (`transformer_model`) with the matrices of each setting, for the comparison of filters.

Its constant gain minimises the expected error over a series, because the stationary gain is zero without process noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from rfa.benchmarks.filters.transformer_model import TransformerFilter, sufficient_beta

WINDOW = 4
# Largest distance to its Kalman filter, in the unit of the state.
EPSILON = 0.1


class Rival(NamedTuple):
    """means `[B, N, n]`; means of the Kalman filter with the same gain, which bound them; gain `[n, n]` and beta."""

    means: np.ndarray
    linear: np.ndarray
    gain: np.ndarray
    beta: float


def constant_gain(f: np.ndarray, q: np.ndarray, noise: np.ndarray, start: np.ndarray, steps: int) -> np.ndarray:
    """Return the gain `[n, n]` with the least mean expected squared error over all `steps`.

    The state is observed with covariance `noise`. f, q: one step; start: covariance before the first step.
    """
    from scipy.optimize import minimize

    eye = np.eye(len(f))

    def error(flat: np.ndarray) -> float:
        gain = flat.reshape(f.shape)
        covariance, total = start, 0.0
        for _ in range(steps):
            covariance = (eye - gain) @ (f @ covariance @ f.T + q) @ (eye - gain).T + gain @ noise @ gain.T
            total += float(np.trace(covariance))
        return total / steps

    found = minimize(error, 0.3 * eye.ravel(), method="BFGS")
    return found.x.reshape(f.shape)


def transformer_filter(
    observations: np.ndarray, f: np.ndarray, q: np.ndarray, noise: np.ndarray, prior: np.ndarray
) -> Rival:
    """Return estimates of the state from noisy observations `[B, N, n]`. `prior` is its initial covariance."""
    first = prior @ np.linalg.inv(prior + noise)
    start, length = observations[:, 0] @ first.T, observations.shape[1]
    gain = constant_gain(f, q, noise, prior - first @ prior, length - 1)
    closed_loop = (np.eye(len(f)) - gain) @ f
    beta = sufficient_beta(torch.from_numpy(closed_loop), window=WINDOW, epsilon=EPSILON)
    model = TransformerFilter(torch.from_numpy(closed_loop), torch.from_numpy(gain), window=WINDOW, beta=beta)
    found = model(torch.from_numpy(observations[:, 1:]), torch.from_numpy(start))
    linear = [start]
    for i in range(1, length):
        linear.append(linear[-1] @ closed_loop.T + observations[:, i] @ gain.T)
    means = np.concatenate([start[:, None], found.numpy()], axis=1)
    return Rival(means, np.stack(linear, axis=1), gain, beta)
