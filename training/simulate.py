"""Simulate linear systems with outliers, missing values and irregular times.

The oscillator is the 2-D system of Adaptive Filter Attention §4.3. Its eigenvalues are -0.1 ± i, with the eigenvectors
S = [[1-i, 1+i], [1, 1]], which are not orthogonal. Its noise settings are pairs (sigma², eta²), and every tenth step of
0.01 time units is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rfa.model.batch import Batch

# A = S diag(-0.1 - i, -0.1 + i) S⁻¹.
OSCILLATOR_DRIFT = np.array([[0.9, -2.0], [1.0, -1.1]])
NOISE_SETTINGS = ((0.0, 1.0), (0.3, 0.5), (0.5, 2.0))
STEP = 0.01
STEPS_PER_MEASUREMENT = 10
# Variance of each component of the random initial state, which has mean zero.
INITIAL_VARIANCE = 4.0
OUTLIER_SCALE = 10.0


@dataclass(frozen=True)
class Disturbance:
    """Disturbance of the measurements by outliers, missing rows and irregular times.

    Attributes:
        outliers: Fraction of outliers.
        missing: Fraction of missing rows.
        is_irregular: Whether time steps are exponentially distributed instead of equal.
        outlier_scale: Scale of outliers.
    """

    outliers: float = 0.0
    missing: float = 0.0
    is_irregular: bool = False
    outlier_scale: float = OUTLIER_SCALE


def discretise(drift: np.ndarray, lag: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the transition matrix e^{A lag} of a system with drift matrix A, and the covariance that unit white noise
    adds over the lag."""
    rates, basis = np.linalg.eig(drift)
    dual = np.linalg.inv(basis)
    transition = (basis * np.exp(rates * lag)) @ dual
    sums = rates[:, None] + rates.conj()[None, :]
    noise = (dual @ dual.conj().T) * np.expm1(sums * lag) / sums
    return transition.real, (basis @ noise @ basis.conj().T).real


def _paths(lags: np.ndarray, sigma2: np.ndarray, rng: np.random.Generator, steps: str) -> np.ndarray:
    """Return the states `[B, N, 2]` after each of the lags `[N]`, starting with the initial state."""
    batch, length = len(sigma2), len(lags)
    state = np.sqrt(INITIAL_VARIANCE) * rng.standard_normal((batch, 2))
    truth = np.empty((batch, length, 2))
    spread = np.sqrt(sigma2)[:, None]
    for i in range(length):
        if i and steps == "euler":
            for _ in range(STEPS_PER_MEASUREMENT):
                noise = np.sqrt(STEP) * spread * rng.standard_normal((batch, 2))
                state = state + STEP * state @ OSCILLATOR_DRIFT.T + noise
        elif i:
            f, q = discretise(OSCILLATOR_DRIFT, lags[i])
            state = state @ f.T + spread * (rng.standard_normal((batch, 2)) @ np.linalg.cholesky(q).T)
        truth[:, i] = state
    return truth


def simulate_oscillator(
    batch: int,
    length: int,
    *,
    settings: tuple[tuple[float, float], ...] = NOISE_SETTINGS,
    disturbance: Disturbance | None = None,
    seed: int = 0,
    steps: Literal["exact", "euler"] = "exact",
) -> Batch:
    """Simulate sequences of the oscillator, and return them as a batch. Sequence b has the noise
    `settings[b % len(settings)]`.

    Args:
        batch: Number of sequences.
        length: Number of measurements per sequence.
        settings: Pairs (sigma², eta²).
        disturbance: Outliers, missing rows and irregular times. None adds no disturbance.
        seed: Seed of the random numbers.
        steps: "exact" for exact transitions, or "euler" for the Euler steps of the paper, which require regular times.
    """
    changes = disturbance or Disturbance()
    if steps == "euler" and changes.is_irregular:
        raise ValueError("steps='euler' requires regular times; irregular times require steps='exact'")
    rng = np.random.default_rng(seed)
    chosen = np.array([settings[b % len(settings)] for b in range(batch)])
    regular = STEP * STEPS_PER_MEASUREMENT
    # All sequences of the batch have the same times and transitions.
    lags = rng.exponential(regular, length) if changes.is_irregular else np.full(length, regular)
    truth = _paths(lags, chosen[:, 0], rng, steps)
    scale = np.where(rng.random((batch, length, 1)) < changes.outliers, changes.outlier_scale, 1.0)
    noise = np.sqrt(chosen[:, 1])[:, None, None] * scale * rng.standard_normal((batch, length, 2))
    observations = truth + noise
    observations[rng.random((batch, length)) < changes.missing] = np.nan
    times = np.cumsum(lags) - lags[0]
    return Batch(np.broadcast_to(times, (batch, length)).copy(), observations, truth)
