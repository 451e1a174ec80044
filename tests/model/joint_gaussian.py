"""The posterior of a whole path by conditioning one big Gaussian: nothing is filtered, smoothed or diagonalised.

dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y_i = C x(t_i) + b + e_i,  E[e_i e_iᵀ] = R_i
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg


class System(NamedTuple):
    """A, Q, C, b, R, and mean and covariance of the state at the first time."""

    drift: np.ndarray
    process_noise: np.ndarray
    sensor: np.ndarray
    offset: np.ndarray
    noise: np.ndarray
    initial_mean: np.ndarray
    initial_covariance: np.ndarray


def van_loan(drift: np.ndarray, noise: np.ndarray, lag: float) -> tuple[np.ndarray, np.ndarray]:
    """F and Q of a lag: the block exponential over a piece of at most 1, doubled."""
    n, doublings = len(drift), max(0, int(np.ceil(np.log2(max(lag, 1e-9)))))
    block = scipy.linalg.expm(np.block([[-drift, noise], [np.zeros((n, n)), drift.T]]) * lag / 2**doublings)
    f = block[n:, n:].T
    q = f @ block[:n, n:]
    for _ in range(doublings):
        f, q = f @ f, q + f @ q @ f.T
    return f, q


def path_prior(system: System, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean `[N n]` and covariance `[N n, N n]` of the states at all times, before any observation."""
    n, count = len(system.drift), len(times)
    mean = [system.initial_mean]
    covariance = np.zeros((count, count, n, n))
    covariance[0, 0] = system.initial_covariance
    for i in range(1, count):
        f, q = van_loan(system.drift, system.process_noise, times[i] - times[i - 1])
        mean.append(f @ mean[-1])
        covariance[i, i] = f @ covariance[i - 1, i - 1] @ f.T + q
        for j in range(i):
            covariance[i, j] = f @ covariance[i - 1, j]
            covariance[j, i] = covariance[i, j].T
    return np.concatenate(mean), covariance.transpose(0, 2, 1, 3).reshape(count * n, count * n)


def path_posterior(
    system: System, times: np.ndarray, y: np.ndarray, seen: np.ndarray, variance_factor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean `[N n]` and covariance `[N n, N n]` given the components of y `[N, P]` that were seen; R_i is R times the
    i-th factor."""
    mean, covariance = path_prior(system, times)
    count = len(times)
    sensors = np.kron(np.eye(count), system.sensor)
    noise = scipy.linalg.block_diag(*(factor * system.noise for factor in variance_factor))
    rows = np.flatnonzero(seen.ravel())
    c, r = sensors[rows], noise[np.ix_(rows, rows)]
    rest = (y - system.offset).ravel()[rows] - c @ mean
    gain = np.linalg.solve(c @ covariance @ c.T + r, c @ covariance).T
    return mean + gain @ rest, covariance - gain @ c @ covariance


__all__ = ["System", "path_posterior", "path_prior", "van_loan"]
