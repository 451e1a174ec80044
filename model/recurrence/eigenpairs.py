"""Discretise a diagonalisable linear SDE exactly from its eigenpairs.

    A = V diag(l) V⁻¹                 F(lag) = V e^{l lag} V⁻¹
    Q(lag) = V [ Q̃_jk (e^{(l_j + l_k*) lag} - 1) / (l_j + l_k*) ] Vᴴ,    Q̃ = V⁻¹ Q V⁻ᴴ

Complex numbers are pairs of real tensors, because ONNX does not support complex numbers. Units: rates in 1/time, lags
in time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# If |l_j + l_k*| is below this, the integral over the lag is replaced by the lag.
RESONANCE = 1e-9


class Eigenpairs(NamedTuple):
    """Eigenpairs of A, and the process noise in their coordinates, each as real and imaginary parts.

    Attributes:
        rate_re, rate_im: Eigenvalues, `[n]`.
        basis_re, basis_im: Eigenvectors V, `[n, n]`.
        dual_re, dual_im: V⁻¹, `[n, n]`.
        noise_re, noise_im: V⁻¹ Q V⁻ᴴ, `[n, n]`.
    """

    rate_re: Tensor
    rate_im: Tensor
    basis_re: Tensor
    basis_im: Tensor
    dual_re: Tensor
    dual_im: Tensor
    noise_re: Tensor
    noise_im: Tensor


def transition(drift: Eigenpairs, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return F(lag) and Q(lag), each `[..., n, n]`, for nonnegative lags `[...]`."""
    f = propagator(drift, drift.rate_re, drift.rate_im, lag)
    return f, from_basis(drift.basis_re, drift.basis_im, *modal_noise(drift, lag))


def propagator(drift: Eigenpairs, rate_re: Tensor, rate_im: Tensor, lag: Tensor) -> Tensor:
    """Return V e^{rate lag} V⁻¹, `[..., n, n]`. `rate_re` and `rate_im` are the rates of the drift, or their negatives
    for the inverse."""
    e_re, e_im = exponentials(rate_re, rate_im, lag)
    f = (drift.basis_re * e_re - drift.basis_im * e_im) @ drift.dual_re
    return f - (drift.basis_re * e_im + drift.basis_im * e_re) @ drift.dual_im


def exponentials(rate_re: Tensor, rate_im: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary parts of e^{rate lag}, `[..., 1, n]`, with one factor for each column."""
    growth = torch.exp(rate_re * lag[..., None])
    turn = rate_im * lag[..., None]
    return (growth * torch.cos(turn))[..., None, :], (growth * torch.sin(turn))[..., None, :]


def from_basis(basis_re: Tensor, basis_im: Tensor, g_re: Tensor, g_im: Tensor) -> Tensor:
    """Return V G Vᴴ for a Hermitian G, `[..., n, n]`. The result is exactly symmetric."""
    x_re = basis_re @ g_re - basis_im @ g_im
    x_im = basis_re @ g_im + basis_im @ g_re
    q = x_re @ basis_re.mT + x_im @ basis_im.mT
    return (q + q.mT) / 2


def modal_noise(drift: Eigenpairs, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary part of V⁻¹ Q(lag) V⁻ᴴ, `[..., n, n]`."""
    sum_re = drift.rate_re[:, None] + drift.rate_re[None, :]
    sum_im = drift.rate_im[:, None] - drift.rate_im[None, :]
    size2 = sum_re.square() + sum_im.square()
    span = lag[..., None, None]
    half = torch.sin(sum_im * span / 2)
    # The real and imaginary parts of e^z - 1, computed without cancellation, are expm1(a) cos b - 2 sin²(b/2) and
    # e^a sin b.
    top_re = torch.expm1(sum_re * span) * torch.cos(sum_im * span) - 2 * half.square()
    top_im = torch.exp(sum_re * span) * torch.sin(sum_im * span)
    is_resonant = size2 < RESONANCE**2
    safe = torch.where(is_resonant, torch.ones_like(size2), size2)
    phi_re = torch.where(is_resonant, span, (top_re * sum_re + top_im * sum_im) / safe)
    phi_im = torch.where(is_resonant, torch.zeros_like(span), (top_im * sum_re - top_re * sum_im) / safe)

    return (
        drift.noise_re * phi_re - drift.noise_im * phi_im,
        drift.noise_re * phi_im + drift.noise_im * phi_re,
    )
