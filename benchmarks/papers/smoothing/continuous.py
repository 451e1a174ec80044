"""A filter of continuous measurements in the eigenbasis: the Kalman-Bucy filter in closed form.

Source: Racioppo, Attention as an Adaptive Filter, A.3 (differential Riccati equation). Per mode, with rate
lambda = alpha + i omega,

    dx = lambda x dt + dw,   E|dw|² = q dt          dy = c x dt + de,   E|de|² = r dt
    v' = 2 alpha v + q - |c|²/r v²
    v(t) = r/|c|² (alpha + beta tanh(beta t + theta)),     beta² = alpha² + q |c|²/r
    tanh(theta) = (v(0) |c|²/r - alpha) / beta

The paper prints tanh(beta/2 (t - gamma)), gamma = log((beta - alpha) / (beta + alpha)) / beta, which is not 0 at t = 0:
the argument is beta t + gamma beta / 2. Where v(0) is above the stationary variance, tanh becomes coth; the quotient of
exponentials D below is both. The mean under a constant signal y' = u follows from it:

    D = p e^{beta t} + n e^{-beta t}
    m(t) = e^{i omega t} D(0)/D(t) m(0) + u/c ∫ e^{i omega (t - s)} (alpha D(s) + D'(s)) / D(t) ds

Units: rates 1/time, q variance/time, r variance x time. Variances are per complex dimension.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ContinuousSystem(NamedTuple):
    """Modes `[D]`: rate lambda (complex), process noise q >= 0, gain c (complex, not 0), measurement noise r > 0."""

    rate: np.ndarray
    process: np.ndarray
    gain: np.ndarray
    measurement: np.ndarray


def _beta(system: ContinuousSystem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return alpha, beta, and |c|²/r."""
    information = np.abs(system.gain) ** 2 / system.measurement
    alpha = system.rate.real
    beta = np.sqrt(alpha**2 + system.process * information)
    if not (beta > 0).all():
        raise ValueError("each mode needs a real part of its rate, or process noise")
    return alpha, beta, information


def _shares(alpha: np.ndarray, beta: np.ndarray, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return p, n of D for a start with v |c|²/r = `scaled`; p + n = 1, or 0 for an infinite variance."""
    start = (np.where(np.isinf(scaled), 0.0, scaled) - alpha) / beta
    return np.where(np.isinf(scaled), 0.5, (1 + start) / 2), np.where(np.isinf(scaled), -0.5, (1 - start) / 2)


def variance(system: ContinuousSystem, start: np.ndarray, time: float) -> np.ndarray:
    """Return v `[D]` after `time` from v(0) = `start` `[D]`, which may be inf."""
    alpha, beta, information = _beta(system)
    p, n = _shares(alpha, beta, start * information)
    gone = np.exp(-2 * beta * time)
    return (alpha + beta * (p - n * gone) / (p + n * gone)) / information


def stationary(system: ContinuousSystem) -> np.ndarray:
    """Return the variance `[D]` after long measurement."""
    alpha, beta, information = _beta(system)
    return (alpha + beta) / information


def update(
    system: ContinuousSystem, mean: np.ndarray, start: np.ndarray, signal: np.ndarray, time: float
) -> tuple[np.ndarray, np.ndarray]:
    """Filter a signal with the mean `signal` `[..., D]` over `time`, and return the mean and variance at its end.

    It is exact for a signal that is constant over `time`.
    """
    alpha, beta, information = _beta(system)
    omega = system.rate.imag
    p, n = _shares(alpha, beta, start * information)
    gone, turned = np.exp(-2 * beta * time), np.exp((1j * omega - beta) * time)
    rising = p * (alpha + beta) * (1 - turned) / (beta - 1j * omega)
    falling = n * (alpha - beta) * (gone - turned) / (beta + 1j * omega)
    share = p + n * gone
    following = (turned * (p + n) * mean + (rising - falling) * signal / system.gain) / share
    return following, variance(system, start, time)


def filter_signal(
    system: ContinuousSystem, signal: np.ndarray, time: float, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Filter a signal `[N, D]` of means over steps of `time`, from mean 0 and variance `start` `[D]`.

    Returns:
        Means `[N, D]` and variances `[N, D]` at the ends of the steps.
    """
    mean, spread = np.zeros(len(system.rate), complex), np.asarray(start, float)
    means, variances = np.empty(signal.shape, complex), np.empty(signal.shape)
    for i, value in enumerate(signal):
        mean, spread = update(system, mean, spread, value, time)
        means[i], variances[i] = mean, spread
    return means, variances
