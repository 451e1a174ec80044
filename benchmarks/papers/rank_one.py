"""Noise with a preferred direction: covariances of radial-tangential systems.

Source: Racioppo, Attention as an Adaptive Filter, 5.2 and B.7. For dx = (-mu + Omega) x dt + noise, Omega skew, with
noises sigma2 (I + a p p^T) and eta2 (I + b p p^T) whose unit direction p moves with the flow:

    V(lag) = (sigma2 phi + eta2 E²) I + (a sigma2 phi + b eta2 E²) p p^T       p at the later time, E and phi as in RFA

With p the direction of the state, sigma2 = s_t, a = s_r / s_t - 1 and the same for eta, it is the radial-tangential
covariance; the paper's B.7.1 prints s_r - eta_t where its 5.2 has s_r - s_t.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class DirectedNoise(NamedTuple):
    """Process and measurement noise, and the relative excess a, b of each along the direction (> -1)."""

    sigma2: float
    eta2: float
    process_excess: float
    measurement_excess: float


def covariance(noise: DirectedNoise, mu: float, lag: float, direction: Array) -> Array:
    """Return V(lag) `[D, D]` of a measurement carried over `lag`, for the unit direction `[D]` at its end."""
    kept2 = float(np.exp(-2 * mu * lag))
    grown = lag if mu == 0 else -np.expm1(-2 * mu * lag) / (2 * mu)
    process, measurement = noise.sigma2 * grown, noise.eta2 * kept2
    along = noise.process_excess * process + noise.measurement_excess * measurement
    result: Array = (process + measurement) * np.eye(len(direction)) + along * np.outer(direction, direction)
    return result


def precision(noise: DirectedNoise, mu: float, lag: float, direction: Array) -> Array:
    """Return the inverse of `covariance` in closed form: one number along the direction and one across it."""
    axis = np.eye(len(direction))[0]
    diagonal = np.diag(covariance(noise, mu, lag, axis))
    outer = np.outer(direction, direction)
    result: Array = outer / diagonal[0] + (np.eye(len(direction)) - outer) / diagonal[-1]
    return result


def heads_of(target: Array) -> tuple[Array, Array, Array]:
    """Return the heads of Proposition 2: directions `[H, D]`, radial and tangential variances `[H]`, H = D.

    Σ_h (tangential I + (radial - tangential) u u^T) is the symmetric positive definite `target`.
    """
    values, vectors = np.linalg.eigh(target)
    tangential = np.full(len(values), values[0] / len(values))
    return vectors.T, values - values[0] + tangential, tangential
