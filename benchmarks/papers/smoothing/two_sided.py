"""Attention in both directions: the covariance of a key before or after the query, and weights equal to a smoother.

Source: Racioppo, Attention as an Adaptive Filter, A.3 (the two-sided covariance). With lag = t_i - t_j of any sign,

    E(lag) = exp(-mu lag)
    V(lag) = sign(lag) sigma2 (1 - exp(-2 mu lag)) / (2 mu) + eta2 exp(-2 mu lag) + gamma2

so that a later key is carried back against the decay, and its noise grows. `bidirectional_attention` weighs pairs by
this covariance as RFA does. It takes the process noises of keys as independent, which is exact for sigma2 = 0 only.
`smoother_weights` takes their shared part into account: per key j, a causal and an anticausal recursion over the rows i

    A_i = (1 - K_i) E A_{i-1} + K_i 1_i,   K_i = precision of z_i / total precision

whose precision-weighted sum is the Rauch-Tung-Striebel smoother of the system, for any sigma2.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult
from rfa.model.dynamics import Dynamics, phi, rotate, wrapped_phase

Kernel = Literal["student_t", "precision"]


def bidirectional_attention(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, times: Tensor, kernel: Kernel = "student_t"
) -> AttentionResult:
    """Attend to all of q, k, v `[B, N, H, 2D]` at `times` `[N]`; "precision" weighs by P alone.

    For later keys R² and V are divided by E² > 1, so that nothing overflows.
    """
    phase = wrapped_phase(dynamics.omega, times, q.dtype)
    q, k, turned = (rotate(x, -phase).transpose(1, 2) for x in (q, k, v))
    lag = times[:, None] - times
    span = lag.abs()
    names = ("mu", "sigma2", "eta2", "gamma2", "nu", "kappa", "tau")
    mu, sigma2, eta2, gamma2, nu, kappa, tau = (getattr(dynamics, name)[:, None, None] for name in names)
    kept = torch.exp(-mu * span)
    of_query, of_key = torch.where(lag < 0, kept, 1.0), torch.where(lag < 0, 1.0, kept)
    spread = sigma2 * phi(dynamics.mu, span) + eta2 * of_key**2 + gamma2 * of_query**2
    residual2 = of_query**2 * q.square().sum(-1)[..., None] + of_key**2 * k.square().sum(-1)[..., None, :]
    residual2 = (residual2 - 2 * kept * (q @ k.transpose(-1, -2))).clamp_min(0)
    log_precision = 2 * torch.log(of_query) - torch.log(spread)
    excess = residual2 / (nu * spread)
    fit = kappa * torch.log1p(excess) if kernel == "student_t" else torch.zeros_like(excess)
    logits = tau * (log_precision - fit)
    log_norm = torch.logsumexp(logits, dim=-1)
    weights = torch.exp(logits - log_norm[..., None] - mu * lag)
    weight = 1 / (1 + excess) if kernel == "student_t" else torch.ones_like(excess)
    precision = (weight * torch.exp(log_precision)).sum(-1)
    return AttentionResult(
        rotate((weights @ turned).transpose(1, 2), phase), log_norm.transpose(1, 2), precision.transpose(1, 2)
    )


def smoother_weights(
    mu: float, sigma2: float, precisions: np.ndarray, times: np.ndarray, prior: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights `[N, N]` and precisions `[N]` of the smoother of one head, in the rotating frame.

    Args:
        precisions: Of the measurements `[N]`; 0 where one is missing.
        prior: Precision of the state before the first measurement, with mean 0.
    """
    length = len(times)

    def half(order: np.ndarray, rate: float, start: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights and precisions just before each measurement, along an order."""
        rows, before = np.zeros((length, length)), np.zeros(length)
        row, precision, last = np.zeros(length), start, order[0]
        for i in order:
            lag = abs(times[i] - times[last])
            kept = math.exp(-rate * lag)
            spread = sigma2 * (lag if rate == 0 else -math.expm1(-2 * rate * lag) / (2 * rate))
            row, precision, last = kept * row, precision / (kept * kept + spread * precision), i
            rows[i], before[i] = row, precision
            precision += precisions[i]
            row = row * (before[i] / precision if precision > 0 else 1.0)
            row[i] = precisions[i] / precision if precision > 0 else 0.0
        return rows, before

    past, behind = half(np.arange(length), mu, prior)
    future, ahead = half(np.arange(length)[::-1], -mu, 0.0)
    total = behind + ahead + precisions
    weights = behind[:, None] * past + ahead[:, None] * future + np.diag(precisions)
    return weights / total[:, None], total


def smooth(z: np.ndarray, dynamics: Dynamics, times: np.ndarray, *, passes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Smooth complex measurements `[N, D]` of one head with noise eta2, robustly after `passes` of Student-t weights.

    Returns:
        Means `[N, D]` and precisions `[N]`: without passes those of the Rauch-Tung-Striebel smoother, prior flat.
    """
    mu, sigma2, eta2, nu = (float(x[0]) for x in (dynamics.mu, dynamics.sigma2, dynamics.eta2, dynamics.nu))
    turns = np.exp(1j * np.multiply.outer(times, dynamics.omega[0].numpy()))
    weight = np.ones(len(times))
    for i in range(passes + 1):
        weights, precision = smoother_weights(mu, sigma2, weight / eta2, times)
        means = turns * (weights @ (z / turns))
        if i < passes:
            distance2 = np.sum(np.abs(z - means) ** 2, axis=-1) / eta2
            weight = np.minimum(1.0, (nu + z.shape[1]) / (nu + distance2))
    return means, precision
