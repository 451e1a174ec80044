"""F and Q of a lag for any stable or undamped drift A, defective ones (constant velocity, say) included.

A diagonalisable A needs its eigenpairs only (`dense.py`). Of another one, eigenvalues that cannot be told apart are put
in clusters, and A is block-diagonalised over them (Bavely and Stewart, SIAM J. Numer. Anal. 16, 1979): V⁻¹ A V =
diag(l) + N with one l for a cluster and N^K = 0, so that

    F(t) = V [ e^{l t} sum_{k<K} N^k t^k / k! ] V⁻¹
    Q(t) = V [ sum_{m<=2K-2} C_m,ij I_m(l_i + l_j*, t) ] Vᴴ,    C_m = sum_{a+b=m} N^a Q̃ (N^b)ᴴ / (a! b!)
    I_m(z, t) = integral of s^m e^{zs} over 0 <= s <= t         Q̃ = V⁻¹ Q V⁻ᴴ

I_m is a Gauss-Legendre sum where |z t| is small (no term cancels), and else I_m = (t^m e^{zt} - m I_{m-1}) / z, which
loses no more than a bit where |z t| >= m. Complex numbers are two real tensors and sizes are fixed, so that the same
lines run in an ONNX graph. Units: rates in 1/time, lags in time.

What is refused: growth; and eigenvalues too near to be told apart and too far to be one, i.e. a remainder N^K above the
tolerances below.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.recurrence import dense
from rfa.model.recurrence.dense import Modes
from rfa.model.recurrence.spectrum import threshold


class ChainModes(NamedTuple):
    """The blocks of a drift that has no eigenbasis, real and imaginary parts.

    rate `[c]` of each cluster; member `[n, c]`; basis V, dual V⁻¹ `[n, n]`; power N^k / k! `[K, n, n]`; noise C_m
    `[2K - 1, n, n]`; nodes `[G]` and node_weights `[G, 2K - 1]` of the Gauss-Legendre sums.
    """

    rate_re: Tensor
    rate_im: Tensor
    member: Tensor
    basis_re: Tensor
    basis_im: Tensor
    dual_re: Tensor
    dual_im: Tensor
    power_re: Tensor
    power_im: Tensor
    noise_re: Tensor
    noise_im: Tensor
    nodes: Tensor
    node_weights: Tensor


AnyModes = Modes | ChainModes


def transition(modes: AnyModes, lag: Tensor) -> tuple[Tensor, Tensor]:
    """F(lag) and Q(lag), `[..., n, n]` for a lag `[...]` >= 0."""
    if isinstance(modes, Modes):
        return dense.transition(modes, lag)
    return _chain_propagator(modes, lag), _chain_noise(modes, lag)


def backward(modes: AnyModes, lag: Tensor) -> Tensor:
    """F(lag)⁻¹ = F(-lag), `[..., n, n]`."""
    if isinstance(modes, ChainModes):
        return _chain_propagator(modes, -lag)
    return dense.propagator(modes, -modes.rate_re, -modes.rate_im, lag)


def seen_from_now(modes: AnyModes, matrix: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """How an observation of `lag` `[...]` ago sees the state now: M = C F(lag)⁻¹ `[..., P, n]`, and the process noise
    in it, M Q(lag) Mᵀ `[..., P, P]`, for C `[P, n]`.

    In the eigenbasis n² operations a lag; F and Q themselves are n³, and attention has a lag for every pair.
    """
    if isinstance(modes, ChainModes):
        seen = matrix @ backward(modes, lag)
        return seen, seen @ transition(modes, lag)[1] @ seen.mT
    c_re, c_im = matrix @ modes.basis_re, matrix @ modes.basis_im
    e_re, e_im = dense.exponentials(-modes.rate_re, -modes.rate_im, lag)
    w_re, w_im = c_re * e_re - c_im * e_im, c_re * e_im + c_im * e_re
    g_re, g_im = dense.modal_noise(modes, lag)
    x_re, x_im = w_re @ g_re - w_im @ g_im, w_re @ g_im + w_im @ g_re
    return w_re @ modes.dual_re - w_im @ modes.dual_im, x_re @ w_re.mT + x_im @ w_im.mT


def _decayed_power(rate: Tensor, lag: Tensor, k: int) -> Tensor:
    """t^k e^{rate t}. As a power of t e^{rate t / k}, which neither overflows nor vanishes before the product does."""
    return torch.exp(rate * lag) if k == 0 else (lag * torch.exp(rate * lag / k)) ** k


def _chain_propagator(modes: ChainModes, lag: Tensor) -> Tensor:
    span = lag[..., None]
    growth = torch.stack([_decayed_power(modes.rate_re, span, k) for k in range(modes.power_re.shape[0])], dim=-2)
    turn = (modes.rate_im * span)[..., None, :]
    # [..., K, 1, n]: a factor for every column of every power of N.
    e_re = ((growth * torch.cos(turn)) @ modes.member.mT)[..., None, :]
    e_im = ((growth * torch.sin(turn)) @ modes.member.mT)[..., None, :]
    g_re = (modes.power_re * e_re - modes.power_im * e_im).sum(-3)
    g_im = (modes.power_re * e_im + modes.power_im * e_re).sum(-3)
    x_re = modes.basis_re @ g_re - modes.basis_im @ g_im
    x_im = modes.basis_re @ g_im + modes.basis_im @ g_re
    return x_re @ modes.dual_re - x_im @ modes.dual_im


def _chain_noise(modes: ChainModes, lag: Tensor) -> Tensor:
    i_re, i_im = _integrals(modes, lag)
    i_re, i_im = (modes.member @ part @ modes.member.mT for part in (i_re, i_im))
    g_re = (modes.noise_re * i_re - modes.noise_im * i_im).sum(-3)
    g_im = (modes.noise_re * i_im + modes.noise_im * i_re).sum(-3)
    return dense.from_basis(modes.basis_re, modes.basis_im, g_re, g_im)


def _integrals(modes: ChainModes, lag: Tensor) -> tuple[Tensor, Tensor]:
    """I_m(z, lag), `[..., 2K - 1, c, c]`, for z = l_i + l_j* of every pair of clusters."""
    z_re = modes.rate_re[:, None] + modes.rate_re[None, :]
    z_im = modes.rate_im[:, None] - modes.rate_im[None, :]
    count = modes.node_weights.shape[-1]
    span = lag[..., None, None]
    x_re, x_im = z_re * span, z_im * span
    is_near = x_re.square() + x_im.square() <= threshold(count) ** 2

    growth = torch.exp(x_re[..., None] * modes.nodes)
    turn = x_im[..., None] * modes.nodes
    near_re, near_im = (growth * torch.cos(turn)) @ modes.node_weights, (growth * torch.sin(turn)) @ modes.node_weights

    size2 = z_re.square() + z_im.square()
    inverse = 1 / torch.where(size2 > 0, size2, torch.ones_like(size2))
    cos, sin = torch.cos(x_im), torch.sin(x_im)
    far_re, far_im = torch.ones_like(x_re), torch.zeros_like(x_re)
    found_re, found_im = [], []
    for m in range(count):
        scaled = _decayed_power(z_re, span, m)
        factor = max(m, 1)
        top_re, top_im = scaled * cos - factor * far_re, scaled * sin - factor * far_im
        far_re, far_im = (top_re * z_re + top_im * z_im) * inverse, (top_im * z_re - top_re * z_im) * inverse
        power = span ** (m + 1)
        found_re.append(torch.where(is_near, power * near_re[..., m], far_re))
        found_im.append(torch.where(is_near, power * near_im[..., m], far_im))
    return torch.stack(found_re, dim=-3), torch.stack(found_im, dim=-3)


__all__ = ["AnyModes", "ChainModes", "backward", "seen_from_now", "transition"]
