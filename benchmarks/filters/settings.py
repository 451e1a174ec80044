"""Simulated systems on which filters are compared, in NumPy.

tracking    WoLF (Duran-Martin et al. 2024, arXiv 2405.05646): position and velocity in a plane, F = constant
            velocity over 0.1, Q = 0.1 I, R = 10 I, from (0, 0, 1, 1) with P = I; clean, or 5 % of the noises ×10
            or ×20, Student-t noise (nu = 2.01), 5 % doubled positions ("mixture"), 30 % missing components
level_shift the same, clean, with a jump of both positions
rotation    the model of RFA: two damped rotating planes, all observed, at irregular times
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

OUTLIERS = 0.05
MISSING = 0.3
STUDENT_DEGREES = 2.01
# Scenario → (factor on the outliers' standard deviation, fraction of missing components).
TRACKING = {
    "clean": (1.0, 0.0),
    "5 % x10": (10.0, 0.0),
    "5 % x20": (20.0, 0.0),
    "Student-t": (1.0, 0.0),
    "mixture": (1.0, 0.0),
    "30 % missing": (1.0, MISSING),
    "30 % missing, 5 % x10": (10.0, MISSING),
}
ROTATION = {
    "clean": (1.0, 0.0),
    "5 % x10": (10.0, 0.0),
    "5 % x20": (20.0, 0.0),
    "30 % missing, 5 % x10": (10.0, MISSING),
}
SHIFT_AT = 200
DAMPING, FREQUENCIES, MEAN_LAG = 0.1, (0.5, 2.0), 0.5


@dataclass(frozen=True)
class Streams:
    """Streams of one system.

    Args:
        transition, process: F and Q of the step before each observation, `[T, B or 1, n, n]`.
        matrix, noise: C `[P, n]` and R `[P, P]`.
        mean, covariance: Before the first step, `[n]` and `[n, n]`.
        truth, observations: `[B, T, n]` and `[B, T, P]` (NaN: missing), with factors of each observation on R and C
        `[B, T]`.
        times: `[B, T]` in continuous time.
        scored: Components of the error.
    """

    transition: np.ndarray
    process: np.ndarray
    matrix: np.ndarray
    noise: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    truth: np.ndarray
    observations: np.ndarray
    noise_factor: np.ndarray
    matrix_factor: np.ndarray
    scored: int
    times: np.ndarray | None = None


def _same_every_step(matrix: np.ndarray, steps: int) -> np.ndarray:
    return np.broadcast_to(matrix, (steps, 1, *matrix.shape))


def _drop(observations: np.ndarray, share: float, rng: np.random.Generator, *, whole: bool) -> np.ndarray:
    """Drop each component, or each whole observation, with the given probability."""
    shape = (*observations.shape[:2], 1) if whole else observations.shape
    return np.where(rng.random(shape) < share, np.nan, observations)


def tracking(scenario: str, trials: int, steps: int, seed: int, *, jump: float = 0.0) -> Streams:
    """Simulate the plane of WoLF. jump: shift of both positions before observation `SHIFT_AT`."""
    scale, missing = TRACKING[scenario]
    rng = np.random.default_rng(seed)
    f, q, r = np.eye(4), 0.1 * np.eye(4), 10.0 * np.eye(2)
    f[0, 2] = f[1, 3] = 0.1
    start = np.array([0.0, 0.0, 1.0, 1.0])
    shift = np.array([jump, jump, 0.0, 0.0])
    state, truth = np.tile(start, (trials, 1)), np.empty((trials, steps, 4))
    for i in range(steps):
        state = state @ f.T + np.sqrt(0.1) * rng.standard_normal((trials, 4)) + (shift if i == SHIFT_AT else 0.0)
        truth[:, i] = state
    is_outlier = rng.random((trials, steps)) < OUTLIERS
    noise_factor, matrix_factor = np.where(is_outlier, scale**2, 1.0), np.ones((trials, steps))
    if scenario == "Student-t":
        half = STUDENT_DEGREES / 2
        noise_factor = half / rng.gamma(half, 1.0, (trials, steps))
    if scenario == "mixture":
        matrix_factor = np.where(is_outlier, 2.0, 1.0)
    noise = np.sqrt(10.0 * noise_factor)[..., None] * rng.standard_normal((trials, steps, 2))
    observations = _drop(matrix_factor[..., None] * truth[..., :2] + noise, missing, rng, whole=False)
    return Streams(
        _same_every_step(f, steps), _same_every_step(q, steps), np.eye(4)[:2], r, start, np.eye(4), truth, observations,
        noise_factor, matrix_factor, scored=2,
    )  # fmt: skip


def rotation_drift() -> np.ndarray:
    """Return A of `rotation`."""
    a = -DAMPING * np.eye(4)
    for k, omega in enumerate(FREQUENCIES):
        a[2 * k, 2 * k + 1], a[2 * k + 1, 2 * k] = -omega, omega
    return a


def rotation(scenario: str, trials: int, steps: int, seed: int) -> Streams:
    """Simulate two damped rotating planes, unit noises, exponential lags, starting from the stationary distribution."""
    scale, missing = ROTATION[scenario]
    rng = np.random.default_rng(seed)
    lags = rng.exponential(MEAN_LAG, (steps, trials))
    lags[0] = 0.0
    fade = np.exp(-DAMPING * lags)
    f = np.zeros((steps, trials, 4, 4))
    for k, omega in enumerate(FREQUENCIES):
        cosine, sine = fade * np.cos(omega * lags), fade * np.sin(omega * lags)
        f[..., 2 * k, 2 * k] = f[..., 2 * k + 1, 2 * k + 1] = cosine
        f[..., 2 * k, 2 * k + 1], f[..., 2 * k + 1, 2 * k] = -sine, sine
    spread = -np.expm1(-2 * DAMPING * lags) / (2 * DAMPING)
    stationary = np.eye(4) / (2 * DAMPING)
    state, truth = rng.standard_normal((trials, 4)) / np.sqrt(2 * DAMPING), np.empty((trials, steps, 4))
    for i in range(steps):
        state = (f[i] @ state[..., None])[..., 0] + np.sqrt(spread[i])[:, None] * rng.standard_normal((trials, 4))
        truth[:, i] = state
    noise_factor = np.where(rng.random((trials, steps)) < OUTLIERS, scale**2, 1.0)
    observations = truth + np.sqrt(noise_factor)[..., None] * rng.standard_normal(truth.shape)
    return Streams(
        f, spread[..., None, None] * np.eye(4), np.eye(4), np.eye(4), np.zeros(4), stationary, truth,
        _drop(observations, missing, rng, whole=True), noise_factor, np.ones((trials, steps)), scored=4,
        times=np.cumsum(lags, axis=0).T.copy(),
    )  # fmt: skip
