"""Uncertainty of isotropic filter states: evidence, predictions, latent samples, smoothing and trajectories.

Source: Racioppo, Robust Filter Attention, C.4 to C.7; docs/MATH.md §3. Everything is diagonal in the eigenbasis, so a
step costs O(D).
Layout: means `[..., 2D]`, real half first; precisions are inverse variances per complex dim, half of it in each real
part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics, decay, phi, rotate, wrapped_phase


def calibrated_evidence(precision: Tensor, nu: Tensor) -> Tensor:
    """Evidence times (nu - 2) / nu, the inverse of a t-distribution's variance. `nu` broadcasts against `precision`."""
    return precision * (1 - 2 / nu)


def _lag(lag: Tensor | float, precision: Tensor) -> Tensor:
    return torch.as_tensor(lag, dtype=precision.dtype, device=precision.device)


def predict(mean: Tensor, precision: Tensor, dynamics: Dynamics, lag: Tensor | float) -> tuple[Tensor, Tensor]:
    """State after `lag` `[]`, from mean `[..., H, 2D]` and precision `[..., H]`: its mean and variance `[..., H]`."""
    span = _lag(lag, precision)
    keep = decay(dynamics.mu, span)
    turned = rotate(mean, wrapped_phase(dynamics.omega, span, mean.dtype))
    return keep[..., None] * turned, keep.square() / precision + dynamics.sigma2 * phi(dynamics.mu, span)


def predictive_variance(precision: Tensor, dynamics: Dynamics, lag: Tensor | float) -> Tensor:
    """Variance of the measurement after `lag`: e^{-2 mu lag} / p + sigma2 phi(lag) + eta2, `[..., H]`."""
    span = _lag(lag, precision)
    transported = decay(dynamics.mu, span).square() / precision
    return transported + dynamics.sigma2 * phi(dynamics.mu, span) + dynamics.eta2


def latent_sample(mean: Tensor, precision: Tensor, gamma2: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """mean + CN(0, 1/p + gamma2): each real part has half of the variance."""
    spread = torch.sqrt((1 / precision + gamma2) / 2)
    return mean + spread[..., None] * torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)


def _backward_terms(precision: Tensor, dynamics: Dynamics, lag: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decay, smoother gain and variance left of x_t given x_{t+1}, each `[..., H]`, for one lag `[]`."""
    keep = decay(dynamics.mu, lag)
    added = dynamics.sigma2 * phi(dynamics.mu, lag)
    predicted = keep.square() / precision + added
    return keep, keep / precision / predicted, added / precision / predicted


def rts_smoother(means: Tensor, precisions: Tensor, dynamics: Dynamics, times: Tensor) -> tuple[Tensor, Tensor]:
    """Rauch-Tung-Striebel pass over filtered means `[B, N, H, 2D]`, precisions `[B, N, H]` at `times` `[N]`.

    Returns:
        smoothed means and variances `[B, N, H]`.
    """
    lags = torch.diff(times)
    mean, variance = means[:, -1], 1 / precisions[:, -1]
    smoothed, variances = [mean], [variance]
    for i in range(means.shape[1] - 2, -1, -1):
        lag = lags[i].to(means.dtype)
        keep, gain, left = _backward_terms(precisions[:, i], dynamics, lag)
        phase = wrapped_phase(dynamics.omega, lags[i], means.dtype)
        # The gain turns back: G = (1/p) (e^{lambda lag})* / predicted.
        mean = means[:, i] + gain[..., None] * (rotate(mean, -phase) - keep[..., None] * means[:, i])
        variance = left + gain.square() * variance
        smoothed.append(mean)
        variances.append(variance)
    return torch.stack(smoothed[::-1], dim=1), torch.stack(variances[::-1], dim=1)


def sample_trajectories(
    means: Tensor, precisions: Tensor, dynamics: Dynamics, times: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """One trajectory `[B, N, H, 2D]` per row, consistent in time: forward filtered, backward sampled."""

    def noise(variance: Tensor) -> Tensor:
        spread = torch.sqrt(variance / 2)[..., None]
        return spread * torch.randn(means[:, 0].shape, generator=generator, dtype=means.dtype, device=means.device)

    lags = torch.diff(times)
    sample = means[:, -1] + noise(1 / precisions[:, -1])
    samples = [sample]
    for i in range(means.shape[1] - 2, -1, -1):
        keep, gain, left = _backward_terms(precisions[:, i], dynamics, lags[i].to(means.dtype))
        phase = wrapped_phase(dynamics.omega, lags[i], means.dtype)
        sample = means[:, i] + gain[..., None] * (rotate(sample, -phase) - keep[..., None] * means[:, i]) + noise(left)
        samples.append(sample)
    return torch.stack(samples[::-1], dim=1)
