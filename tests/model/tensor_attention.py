"""Tensor RFA: noise and decay per channel. The anisotropic reference, and the oracle of the isotropic case.

Source: Racioppo, Robust Filter Attention, B.1. For every complex channel c with its own mu, sigma2, eta2, gamma2:

    P[c,i,j] = 1 / V_c(t_i - t_j)
    L[c,i,j] = tau (log P[c,i,j] - kappa log(1 + (1/nu) Σ_c' P[c',i,j] |q_i - e^{(-mu + i omega) lag} k_j|²_c'))
    out[c,i] = Σ_j softmax_j(L[c,i,:])_j e^{(-mu_c + i omega_c) lag} v_j

The robust term is shared by the channels of a head; the softmax is per channel. Memory is O(N² D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics, decay, rotate, variance, wrapped_phase


def tensor_attention(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, *, times: Tensor | None = None) -> Tensor:
    """Anisotropic RFA of one layer.

    Args:
        q, k, v: `[B, N, H, 2D]`.
        dynamics: mu, sigma2, eta2, gamma2 and omega are `[H, D]`; nu and tau are `[H]`.
        times: `[N]`, default 0, 1, 2, …

    Returns:
        `[B, N, H, 2D]`.
    """
    heads, dims = dynamics.omega.shape
    stamps = torch.arange(q.shape[1], device=q.device) if times is None else times
    phase = wrapped_phase(dynamics.omega, stamps, q.dtype)
    # [B, H, D, N, 2]: each channel is a plane.
    q, k, v = (rotate(x, -phase).reshape(*x.shape[:3], 2, dims).permute(0, 2, 4, 1, 3) for x in (q, k, v))
    gap = stamps[:, None] - stamps
    lag = gap.clamp_min(0).to(q.dtype)
    transport = decay(dynamics.mu, lag)  # [H, D, N, N]
    precision = 1 / variance(dynamics, lag)
    residual = q[..., :, None, :] - transport[..., None] * k[..., None, :, :]
    nu, tau, kappa = (x.reshape(heads, 1, 1, 1) for x in (dynamics.nu, dynamics.tau, dynamics.kappa))
    mahalanobis = (precision * residual.square().sum(-1)).sum(2, keepdim=True)  # over the channels of a head
    logits = tau * (torch.log(precision) - kappa * torch.log1p(mahalanobis / nu))
    index = torch.arange(q.shape[3], device=q.device)
    weights = torch.softmax(torch.where(index[:, None] >= index, logits, float("-inf")), dim=-1)
    out = (weights * transport) @ v  # [B, H, D, N, 2]
    return rotate(out.permute(0, 3, 1, 4, 2).flatten(-2), phase)
