"""A Gaussian field with its own decay along rows and columns, filtered exactly from incomplete noisy pixels.

Source: Racioppo, Attention as an Adaptive Filter, B.6, for the field whose transitions it names:

    Cov(x_ij, x_kl) = power · e^{-a |i - k|} cos(w_a (i - k)) · e^{-b |j - l|} cos(w_b (j - l)),     z_ij = x_ij + e_ij

Each factor is a linear SDE along its axis, so a whole row is one state: x_{i+1} = F x_i + noise, with the covariance of
a row as stationary covariance. A Kalman filter over rows and the Rauch-Tung-Striebel smoother back give the posterior
mean and variance of each pixel, exactly, in O(rows columns³).

The paper calls the variance a product of the accumulations along the axes. It is then 0 between pixels of one row, and
is not that of this field, whose variance between pixels is power (1 - correlation²): see `neighbours`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Field(NamedTuple):
    """power: variance of a pixel. decay, frequency: (down the rows, along a row), per pixel; decays > 0."""

    power: float
    decay: tuple[float, float]
    frequency: tuple[float, float] = (0.0, 0.0)


def axis_correlation(field: Field, axis: int, lag: np.ndarray) -> np.ndarray:
    """Return the correlation of pixels `lag` apart along an axis."""
    found: np.ndarray = np.exp(-field.decay[axis] * np.abs(lag)) * np.cos(field.frequency[axis] * lag)
    return found


def smooth(field: Field, pixels: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior means and variances `[M, N]` of a field of mean 0.

    Args:
        pixels: `[M, N]`; NaN where one is missing.
        noise: Variance of each pixel's measurement, broadcastable to `[M, N]`, > 0.
    """
    rows, columns = pixels.shape
    index = np.arange(columns)
    row = field.power * axis_correlation(field, 1, index[:, None] - index)
    # Along the rows e^{-(a + iw)}: a complex state, whose real part is the field, where a frequency turns it.
    turn = np.exp(complex(-field.decay[0], field.frequency[0]))
    halves = 2 if field.frequency[0] else 1
    move = np.array([[turn.real, -turn.imag], [turn.imag, turn.real]])[:halves, :halves]
    spread, kept = np.kron(np.eye(halves), row), abs(turn) ** 2
    means, covariances = np.empty((rows, halves * columns)), np.empty((rows, halves * columns, halves * columns))
    mean, covariance = np.zeros(halves * columns), spread
    precision = np.where(np.isnan(pixels), 0.0, 1 / np.broadcast_to(noise, pixels.shape))
    values = np.where(np.isnan(pixels), 0.0, pixels)
    for i in range(rows):
        if i:
            mean, covariance = _moved(move, mean), _moved_both(move, covariance) + (1 - kept) * spread
        seen = np.flatnonzero(precision[i])
        if len(seen):
            innovation = covariance[np.ix_(seen, seen)] + np.diag(1 / precision[i, seen])
            gain = np.linalg.solve(innovation, covariance[seen]).T
            mean = mean + gain @ (values[i, seen] - mean[seen])
            covariance = covariance - gain @ covariance[seen]
        means[i], covariances[i] = mean, covariance
    for i in range(rows - 2, -1, -1):
        ahead = _moved_both(move, covariances[i]) + (1 - kept) * spread
        back = np.linalg.solve(ahead, _moved(move, covariances[i])).T
        means[i] += back @ (means[i + 1] - _moved(move, means[i]))
        covariances[i] += back @ (covariances[i + 1] - ahead) @ back.T
    return means[:, :columns], np.stack([np.diag(c)[:columns] for c in covariances])


def _moved(move: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Apply F ⊗ I to a vector or to the rows of a matrix."""
    parts = x.reshape(len(move), -1, *x.shape[1:])
    moved: np.ndarray = np.einsum("ij,j...->i...", move, parts).reshape(x.shape)
    return moved


def _moved_both(move: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    return _moved(move, _moved(move, covariance).T).T
