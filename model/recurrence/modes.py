"""Compute F and Q of a lag for any drift A without growing modes, including defective ones such as constant velocity.

If A is diagonalisable, its eigenpairs are sufficient (`eigenpairs.py`). Otherwise, eigenvalues that are too close to
separate form clusters, and A is block-diagonalised over them (Bavely and Stewart, SIAM J. Numer. Anal. 16, 1979):
V⁻¹ A V = diag(l) + N with one l per cluster and N^K = 0, so that

    F(t) = V [ e^{l t} sum_{k<K} N^k t^k / k! ] V⁻¹
    Q(t) = V [ sum_{m<=2K-2} C_m,ij I_m(l_i + l_j*, t) ] Vᴴ,    C_m = sum_{a+b=m} N^a Q̃ (N^b)ᴴ / (a! b!)
    I_m(z, t) = integral of s^m e^{zs} over 0 <= s <= t         Q̃ = V⁻¹ Q V⁻ᴴ

For small |z t|, I_m is computed by Gauss-Legendre quadrature, without cancellation. Otherwise,
I_m = (t^m e^{zt} - m I_{m-1}) / z, which loses at most one bit if |z t| >= m. Complex numbers are pairs of real tensors
and sizes are fixed, so that the code can be exported to ONNX. Units: rates in 1/time, lags in time.

Growing modes are rejected. A is also rejected if eigenvalues are too close to separate but too far apart for one
cluster, which is the case if the remainder N^K exceeds the tolerances of `rfa.runtime.filters.spectrum`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rfa.model.recurrence import eigenpairs
from rfa.model.recurrence.eigenpairs import Eigenpairs
from rfa.runtime.filters.spectrum import threshold


class Chains(NamedTuple):
    """Blocks of a drift matrix without an eigenbasis, with c clusters, as real and imaginary parts.

    Attributes:
        rate_re, rate_im: Rate l of each cluster, `[c]`.
        member: Membership of the n coordinates in the clusters, `[n, c]`.
        basis_re, basis_im: Basis V, `[n, n]`.
        dual_re, dual_im: V⁻¹, `[n, n]`.
        power_re, power_im: N^k / k!, `[K, n, n]`.
        noise_re, noise_im: C_m, `[2K - 1, n, n]`.
        nodes, node_weights: Nodes `[G]` and weights `[G, 2K - 1]` of the Gauss-Legendre quadrature.
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


Drift = Eigenpairs | Chains
# If the total size of the matrices is at least this, the matrices of equal lags are computed only once.
WORTH_SORTING = 1 << 12


def transition(drift: Drift, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return F(lag) and Q(lag), each `[..., n, n]`, for nonnegative lags `[...]`."""

    def at(lag: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(drift, Eigenpairs):
            return eigenpairs.transition(drift, lag)
        return _chain_propagator(drift, lag), _chain_noise(drift, lag)

    return _for_distinct(at, drift, lag)


def _for_distinct(at: Callable[[Tensor], tuple[Tensor, Tensor]], drift: Drift, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return `at(lag)`. The function `at` is called only with the distinct lags, because a regular time grid has few of
    them."""
    is_plain = lag.device.type == "cpu" and not lag.requires_grad and not torch.compiler.is_compiling()
    if not is_plain or lag.numel() * drift.basis_re.numel() < WORTH_SORTING:
        return at(lag)
    distinct, place = torch.unique(lag, return_inverse=True)
    first, second = at(distinct)
    return first[place], second[place]


def backward(drift: Drift, lag: Tensor) -> Tensor:
    """Return F(lag)⁻¹ = F(-lag), `[..., n, n]`."""
    if isinstance(drift, Chains):
        return _chain_propagator(drift, -lag)
    return eigenpairs.propagator(drift, -drift.rate_re, -drift.rate_im, lag)


def seen_from_now(drift: Drift, matrix: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrix that maps the present state to an earlier observation, and its process noise.

    These are M = C F(lag)⁻¹, `[..., P, n]`, and M Q(lag) Mᵀ, `[..., P, P]`. They are computed in the eigenbasis, which
    takes n² rather than n³ operations per lag, because attention has a lag for every pair.

    Args:
        drift: Drift of the SDE.
        matrix: Observation matrix C, `[P, n]`.
        lag: Time since the observation, `[...]`.
    """

    def at(lag: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(drift, Chains):
            seen = matrix @ backward(drift, lag)
            return seen, seen @ transition(drift, lag)[1] @ seen.mT
        c_re, c_im = matrix @ drift.basis_re, matrix @ drift.basis_im
        e_re, e_im = eigenpairs.exponentials(-drift.rate_re, -drift.rate_im, lag)
        w_re, w_im = c_re * e_re - c_im * e_im, c_re * e_im + c_im * e_re
        g_re, g_im = eigenpairs.modal_noise(drift, lag)
        x_re, x_im = w_re @ g_re - w_im @ g_im, w_re @ g_im + w_im @ g_re
        return w_re @ drift.dual_re - w_im @ drift.dual_im, x_re @ w_re.mT + x_im @ w_im.mT

    return _for_distinct(at, drift, lag)


def _decayed_power(rate: Tensor, lag: Tensor, k: int) -> Tensor:
    """Return t^k e^{rate t}, computed as a power of t e^{rate t / k} to avoid intermediate overflow and underflow."""
    return torch.exp(rate * lag) if k == 0 else (lag * torch.exp(rate * lag / k)) ** k


def _chain_propagator(drift: Chains, lag: Tensor) -> Tensor:
    span = lag[..., None]
    growth = torch.stack([_decayed_power(drift.rate_re, span, k) for k in range(drift.power_re.shape[0])], dim=-2)
    turn = (drift.rate_im * span)[..., None, :]
    # The factors of the columns of each power of N are [..., K, 1, n].
    e_re = ((growth * torch.cos(turn)) @ drift.member.mT)[..., None, :]
    e_im = ((growth * torch.sin(turn)) @ drift.member.mT)[..., None, :]
    g_re = (drift.power_re * e_re - drift.power_im * e_im).sum(-3)
    g_im = (drift.power_re * e_im + drift.power_im * e_re).sum(-3)
    x_re = drift.basis_re @ g_re - drift.basis_im @ g_im
    x_im = drift.basis_re @ g_im + drift.basis_im @ g_re
    return x_re @ drift.dual_re - x_im @ drift.dual_im


def _chain_noise(drift: Chains, lag: Tensor) -> Tensor:
    i_re, i_im = _integrals(drift, lag)
    i_re, i_im = (drift.member @ part @ drift.member.mT for part in (i_re, i_im))
    g_re = (drift.noise_re * i_re - drift.noise_im * i_im).sum(-3)
    g_im = (drift.noise_re * i_im + drift.noise_im * i_re).sum(-3)
    return eigenpairs.from_basis(drift.basis_re, drift.basis_im, g_re, g_im)


def _integrals(drift: Chains, lag: Tensor) -> tuple[Tensor, Tensor]:
    """Return I_m(z, lag), `[..., 2K - 1, c, c]`, for z = l_i + l_j* of every pair of clusters."""
    z_re = drift.rate_re[:, None] + drift.rate_re[None, :]
    z_im = drift.rate_im[:, None] - drift.rate_im[None, :]
    count = drift.node_weights.shape[-1]
    span = lag[..., None, None]
    x_re, x_im = z_re * span, z_im * span
    is_near = x_re.square() + x_im.square() <= threshold(count) ** 2

    growth = torch.exp(x_re[..., None] * drift.nodes)
    turn = x_im[..., None] * drift.nodes
    near_re, near_im = (growth * torch.cos(turn)) @ drift.node_weights, (growth * torch.sin(turn)) @ drift.node_weights

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
