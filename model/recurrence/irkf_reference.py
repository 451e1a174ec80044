"""Reference implementation of the IRKF, which is an isotropic robust Kalman filter per head, as a loop over tokens.

Source: Racioppo, Adaptive Filter Attention, B.4 and Alg. 4. The state of a head is a mean m ∈ C^D and a scalar
precision p (inverse variance per complex dimension). For a measurement v after a lag:

    predict   m⁻ = e^{(-mu + i omega) lag} m          1/p⁻ = e^{-2 mu lag} / p + sigma2 phi(lag)
    weight    d² = |v - m_k|² / (1/p⁻ + r),  r = eta2 + gamma2    w = min(1, (nu + D) / (nu + d²))    rule "capped"
    update    p = p⁻ + w / r                                      m_{k+1} = m⁻ + delta (w / r) / p (v - m⁻)

Rule "paper" whitens with the posterior precision p_k + 1/r and does not cap the weight. The result of each pass is the
prior of the next one, so a measurement is used K times in K passes. nu = inf gives w = 1; with delta = 1, this is the
Kalman filter of the isotropic model.

The precision form p⁻ = p / (E² + p sigma2 phi) also holds for p = 0 (before the first token), where m = v and
p = w / r for any delta. The mean is stored in the frame that rotates with omega, so transport multiplies by the real
factor E.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics, decay, phi, rotate, wrapped_phase

Rule = Literal["capped", "paper"]


class IRKFState(NamedTuple):
    """State of the IRKF after a token.

    Attributes:
        mean: Mean, `[B, H, 2D]`.
        precision: Precision, `[B, H]`, which is 0 before the first token.
        time: Time of the last token, `[B]` float64.
    """

    mean: Tensor
    precision: Tensor
    time: Tensor


def _reweighted(residual2: Tensor, inverse_variance: Tensor, nu: Tensor, complex_dims: int) -> Tensor:
    """Return the Student-t weight (nu + D) / (nu + d²). It is computed in a form that gives 1 for nu = inf."""
    return (1 + complex_dims / nu) / (1 + residual2 * inverse_variance / nu)


def _update_capped(
    v: Tensor, mean: Tensor, prior: Tensor, noise: Tensor, nu: Tensor, delta: Tensor, *, inner: int
) -> tuple[Tensor, Tensor]:
    """Return the mean and the precision after one measurement by the rule "capped". v and mean are `[B, H, 2D]`, and
    the prior precision is `[B, H]`."""
    innovation = v - mean
    innovation2 = innovation.square().sum(-1)
    inverse_variance = prior / (1 + prior * noise)
    damping = torch.where(prior > 0, delta, torch.ones_like(prior))
    gain = precision = torch.zeros_like(prior)
    for _ in range(inner):
        # The mean moves along the innovation, so its residual is (1 - gain) times the innovation.
        residual2 = (1 - gain).square() * innovation2
        weight = _reweighted(residual2, inverse_variance, nu, v.shape[-1] // 2).clamp(max=1)
        precision = prior + weight / noise
        gain = damping * (weight / noise) / precision
    return mean + gain[..., None] * innovation, precision


def _update_paper(
    v: Tensor, mean: Tensor, prior: Tensor, noise: Tensor, nu: Tensor, delta: Tensor, *, inner: int
) -> tuple[Tensor, Tensor]:
    """Return the mean and the precision after one measurement by the rule "paper", in which the result of each pass is
    the prior of the next one."""
    damping = torch.where(prior > 0, delta, torch.ones_like(prior))
    # In the paper, the mean before the first token is v.
    mean = torch.where((prior > 0)[..., None], mean, v)
    precision = prior
    for _ in range(inner):
        innovation = v - mean
        weight = _reweighted(innovation.square().sum(-1), precision + 1 / noise, nu, v.shape[-1] // 2)
        precision = precision + weight / noise
        mean = mean + (damping * (weight / noise) / precision)[..., None] * innovation
    return mean, precision


UPDATES = {"capped": _update_capped, "paper": _update_paper}


def irkf_loop(
    v: Tensor,
    elapsed: Tensor,
    mask: Tensor,
    mean: Tensor,
    precision: Tensor,
    dynamics: Dynamics,
    *,
    inner: int,
    rule: Rule,
    delta: Tensor,
) -> tuple[Tensor, Tensor]:
    """Filter a sequence from an initial state.

    Args:
        v: Measurements, `[B, N, H, 2D]`.
        elapsed: Time since the initial state, `[B, N]` float64, non-decreasing.
        mask: Presence of the measurements, `[B, N]` bool.
        mean, precision: Initial state, `[B, H, 2D]` and `[B, H]`.
        dynamics: Dynamics of the heads.
        inner: Number of reweighting passes K.
        rule: Weight rule.
        delta: Damping of the mean, broadcastable to `[H]`.

    Returns:
        means `[B, N, H, 2D]` and precisions `[B, N, H]`.
    """
    lag = torch.diff(elapsed, dim=1, prepend=torch.zeros_like(elapsed[:, :1])).to(v.dtype)
    keep = decay(dynamics.mu, lag)
    process = dynamics.sigma2[:, None, None] * phi(dynamics.mu, lag)
    phase = wrapped_phase(dynamics.omega, elapsed, v.dtype)
    turned = rotate(v, -phase)
    noise = dynamics.eta2 + dynamics.gamma2
    update = UPDATES[rule]
    limit = torch.finfo(v.dtype)
    means, precisions = [], []
    for i in range(v.shape[1]):
        predicted = keep[:, :, i].T[..., None] * mean
        spread = keep[:, :, i].T.square() + precision * process[:, :, i].T
        # Without process noise, the precision is unbounded after a long gap, so it is clamped such that products of two
        # precisions remain finite.
        prior = (precision / spread.clamp(min=limit.tiny)).clamp(max=limit.max**0.5)
        updated, posterior = update(turned[:, i], predicted, prior, noise, dynamics.nu, delta, inner=inner)
        seen = mask[:, i, None]
        mean = torch.where(seen[..., None], updated, predicted)
        precision = torch.where(seen, posterior, prior)
        means.append(mean)
        precisions.append(precision)
    return rotate(torch.stack(means, dim=1), phase), torch.stack(precisions, dim=1)
