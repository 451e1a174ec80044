"""Filters with which the linear filter is compared: Kalman filter, oracle, and two robust filters.

One textbook recursion in NumPy. For each observation it uses

    Kalman filter   R as given
    oracle          R and C with the true factors of the observation
    gate            R / w with w = 0 where e'S⁻¹e > c                           (chi-square gate)
    Student-t EM    R / w with w = (nu + d) / (nu + r'R⁻¹r), r the posterior residual, three passes

e is the innovation, S its nominal covariance, d the number of observed components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rfa.benchmarks.filters.settings import Streams

# R of an observation that a gate rejects is divided by this.
REJECTED = 1e-9
PASSES = 3


@dataclass(frozen=True)
class Estimate:
    """mean `[B, T, n]` and covariance `[B, T, n, n]` of the state after every observation."""

    mean: np.ndarray
    covariance: np.ndarray


class Innovation(NamedTuple):
    """error e `[B, P]`, signal C P Cᵀ and noise R `[B, P, P]`, components: number of observed components d, `[B]`."""

    error: np.ndarray
    signal: np.ndarray
    noise: np.ndarray
    components: np.ndarray


Weigh = Callable[[Innovation], np.ndarray]


def _quadratic(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return x' matrix⁻¹ x, `[B]`."""
    return np.einsum("bi,bi->b", x, np.linalg.solve(matrix, x[..., None])[..., 0])


def gate(bound: float) -> Weigh:
    """Reject observations further than `bound` from their prediction."""

    def weigh(seen: Innovation) -> np.ndarray:
        return np.where(_quadratic(seen.signal + seen.noise, seen.error) > bound, REJECTED, 1.0)

    return weigh


def student(nu: float) -> Weigh:
    """Estimate the measurement noise by expectation-maximisation for Student-t noise."""

    def weigh(seen: Innovation) -> np.ndarray:
        weight = np.ones(len(seen.error))
        for _ in range(PASSES):
            noise = seen.noise / weight[:, None, None]
            residual = (noise @ np.linalg.solve(seen.signal + noise, seen.error[..., None]))[..., 0]
            weight = (nu + seen.components) / (nu + _quadratic(seen.noise, residual))
        return weight

    return weigh


# The survey's best rivals for outliers of unknown size, and the settings it tried.
RIVALS: dict[str, tuple[Callable[[float], Weigh], tuple[float, ...]]] = {
    "gate": (gate, (5.99, 9.21, 11.8, 13.8, 16.0, 20.0, 25.0)),
    "Student-t EM": (student, (1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)),
}


def run_kalman(case: Streams, *, knows_noise: bool = False, weigh: Weigh | None = None) -> Estimate:
    """Run the textbook filter with missing components. The oracle knows the noise of every observation."""
    trials, steps, n = case.truth.shape
    mean, covariance = np.tile(case.mean, (trials, 1)), np.tile(case.covariance, (trials, 1, 1))
    means, covariances = np.empty((trials, steps, n)), np.empty((trials, steps, n, n))
    eye = np.eye(case.matrix.shape[0])
    for i in range(steps):
        f, q = case.transition[i], case.process[i]
        mean, covariance = np.einsum("bij,bj->bi", np.broadcast_to(f, (trials, n, n)), mean), f @ covariance @ f.mT + q
        seen = np.isfinite(case.observations[:, i])
        # A missing component has a zero row of C, a zero innovation, and any variance.
        c, r = (
            np.where(seen[:, :, None], case.matrix, 0.0),
            np.where(seen[:, :, None] & seen[:, None, :], case.noise, 0.0),
        )
        if knows_noise:
            c, r = c * case.matrix_factor[:, i, None, None], r * case.noise_factor[:, i, None, None]
        r = r + np.where(seen, 0.0, 1.0)[:, :, None] * eye
        error = np.where(seen, case.observations[:, i], 0.0) - np.einsum("bij,bj->bi", c, mean)
        signal = c @ covariance @ c.mT
        if weigh is not None:
            r = r / weigh(Innovation(error, signal, r, seen.sum(-1)))[:, None, None]
        gain = covariance @ c.mT @ np.linalg.inv(signal + r)
        mean, covariance = mean + np.einsum("bij,bj->bi", gain, error), covariance - gain @ c @ covariance
        covariance = (covariance + covariance.mT) / 2
        means[:, i], covariances[:, i] = mean, covariance
    return Estimate(means, covariances)
