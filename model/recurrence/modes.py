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

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rfa.model.recurrence import dense
from rfa.model.recurrence.dense import Modes

Array = np.ndarray[Any, Any]

# Above this condition number a basis is not one to compute in; float32 keeps two digits at it.
MAX_CONDITION = 1e4
# Real parts of eigenvalues up to this count as zero.
STABILITY_TOLERANCE = 1e-9
# N^K counts as zero up to this share of |A| |N^(K-1)|: rounding, of A itself and of its Schur form.
ROUNDING = 1e-13
# Or, where the cluster decays at mu, up to this share of mu^K: e^{-mu t} |N^K| t^K / K! stays below it at every lag.
TOLERANCE = 1e-12
# Longest series; a chain of true integrators has one term per integrator.
MAX_TERMS = 8
# Gauss-Legendre points beyond the threshold on |z t|: with them the sum is exact to 1e-16 for every m (see the tests).
EXTRA_NODES = 10


class Spectrum(NamedTuple):
    """A = V (diag(rates) + nilpotent) V⁻¹ in complex numbers: rates `[n]`, equal within a cluster; member `[n, c]` is 1
    where a coordinate is in a cluster; nilpotent `[n, n]` has `terms` powers that count, the zeroth included."""

    rates: Array
    member: Array
    basis: Array
    dual: Array
    nilpotent: Array
    terms: int

    def powers(self) -> Array:
        """N^k / k! `[K, n, n]`."""
        found = [np.eye(len(self.rates), dtype=complex)]
        for k in range(1, self.terms):
            found.append(found[-1] @ self.nilpotent / k)
        return np.stack(found)

    def noises(self, process_noise: Array) -> Array:
        """C_m `[2K - 1, n, n]`."""
        powers = self.powers()
        noise = self.dual @ process_noise @ self.dual.conj().T
        found = np.zeros((2 * self.terms - 1, *noise.shape), complex)
        for a, left in enumerate(powers):
            for b, right in enumerate(powers):
                found[a + b] += left @ noise @ right.conj().T
        return found


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


def spectrum(drift: Array) -> Spectrum:
    """Block-diagonalise a drift `[n, n]`.

    Raises:
        ValueError: it is unstable, or neither diagonalisable nor defective within the tolerances.
    """
    rates, basis = np.linalg.eig(drift)
    if np.linalg.cond(basis) <= MAX_CONDITION:
        n = len(drift)
        found = Spectrum(rates, np.eye(n), basis, np.linalg.inv(basis), np.zeros((n, n)), 1)
    else:
        found = _clustered(drift, rates)
    if found.rates.real.max() > STABILITY_TOLERANCE:
        raise ValueError(f"drift is unstable: an eigenvalue has real part {found.rates.real.max():.3g}")
    if found.terms > MAX_TERMS:
        raise ValueError(
            f"drift is neither diagonalisable (condition of its eigenvectors above {MAX_CONDITION:g}) nor defective: "
            f"eigenvalues near {_nearest(rates):.3g} differ, by too little to be told apart (tolerance {ROUNDING:g}). "
            "Make them equal, or choose units of time and state in which they lie apart"
        )
    return found


def _nearest(rates: Array) -> complex:
    """One of the two eigenvalues that are nearest to each other."""
    distance = np.abs(rates[:, None] - rates) + np.diag(np.full(len(rates), np.inf))
    return complex(rates[distance.min(0).argmin()])


def _clustered(drift: Array, values: Array) -> Spectrum:
    """The finest clusters (single linkage) whose invariant subspaces make a basis of low condition."""
    n, scale = len(drift), float(np.linalg.norm(drift, 2))
    distance = np.abs(values[:, None] - values)
    floor = ROUNDING * scale
    for reach in np.unique(np.append(distance[distance > floor], floor)):
        linked = distance <= reach
        for _ in range(n):
            linked = linked @ linked
        labels = linked.argmax(axis=1)
        inside = [labels == label for label in np.unique(labels)]
        blocks = [_invariant(drift, values, own) for own in inside]
        found = [block for block in blocks if block is not None]
        if len(found) < len(blocks):
            continue
        basis = np.concatenate([unitary for unitary, _ in found], axis=1)
        if np.linalg.cond(basis) <= MAX_CONDITION:
            break
    nilpotent, member = np.zeros((n, n), complex), np.zeros((n, len(found)))
    terms, start = 1, 0
    for c, (own, (_, triangle)) in enumerate(zip(inside, found, strict=True)):
        # The mean is well conditioned, unlike the eigenvalues: those of a chain of two are off by sqrt(rounding).
        rate, stop = values[own].mean(), start + len(triangle)
        block = triangle - rate * np.eye(len(triangle))
        nilpotent[start:stop, start:stop] = block
        member[start:stop, c] = 1
        terms = max(terms, _terms(block, -rate.real, scale))
        start = stop
    rates = member @ np.array([values[own].mean() for own in inside])
    return Spectrum(rates, member, basis, np.linalg.inv(basis), nilpotent, terms)


def _invariant(drift: Array, values: Array, inside: Array) -> tuple[Array, Array] | None:
    """Orthonormal basis `[n, k]` of the invariant subspace of a cluster, and A on it, upper triangular."""
    import scipy.linalg

    own, other = values[inside], values[~inside]
    if not len(other):
        triangle, unitary = scipy.linalg.schur(drift, output="complex")
        return unitary, triangle

    def is_own(value: complex) -> bool:
        return bool(np.abs(value - own).min() < np.abs(value - other).min())

    try:
        triangle, unitary, count = scipy.linalg.schur(drift, output="complex", sort=is_own)
    except np.linalg.LinAlgError:
        return None
    return (unitary[:, :count], triangle[:count, :count]) if count == len(own) else None


def _terms(block: Array, decay: float, scale: float) -> int:
    """The smallest K for which N^K counts as zero; one more than MAX_TERMS if there is none."""
    power, before = np.eye(len(block)), 1.0
    for k in range(1, MAX_TERMS + 1):
        power = power @ block
        size = float(np.linalg.norm(power, 2))
        if size <= ROUNDING * scale * before or (decay > STABILITY_TOLERANCE and size <= TOLERANCE * decay**k):
            return k
        before = size
    return MAX_TERMS + 1


def stationary(found: Spectrum, process_noise: Array) -> Array:
    """P with A P + P Aᵀ + Q = 0, `[n, n]`, for a damped drift: the integrals I_m over all time, m! / (-z)^(m+1)."""
    noises = found.noises(process_noise) if found.terms > 1 else [found.dual @ process_noise @ found.dual.conj().T]
    minus_z = -(found.rates[:, None] + found.rates.conj()[None, :])
    power = minus_z
    inner = noises[0] / power
    for m, noise in enumerate(noises[1:], start=1):
        power = power * minus_z
        inner = inner + math.factorial(m) * noise / power
    return np.asarray((found.basis @ inner @ found.basis.conj().T).real)


def mode_arrays(found: Spectrum, process_noise: Array) -> dict[str, Array]:
    """The fields of `Modes`, or of `ChainModes` where the drift has no eigenbasis."""
    parts: dict[str, Array] = {"rate": found.rates, "basis": found.basis, "dual": found.dual}
    if found.terms == 1:
        parts["noise"] = found.dual @ process_noise @ found.dual.conj().T
        return _split(parts)
    top = 2 * found.terms - 1
    nodes, weights = np.polynomial.legendre.leggauss(int(_threshold(top)) + EXTRA_NODES)
    nodes, weights = (nodes + 1) / 2, weights / 2
    parts |= {
        "rate": found.rates[found.member.argmax(axis=0)],
        "power": found.powers(),
        "noise": found.noises(process_noise),
    }
    table = weights[:, None] * nodes[:, None] ** np.arange(top)
    return {**_split(parts), "member": found.member, "nodes": nodes, "node_weights": table}


def _split(parts: dict[str, Array]) -> dict[str, Array]:
    return {f"{name}_{end}": part for name, a in parts.items() for end, part in (("re", a.real), ("im", a.imag))}


def _threshold(count: int) -> float:
    """|z t| up to which the first `count` integrals are sums over nodes."""
    return float(max(4, count - 1))


def transition(modes: AnyModes, lag: Tensor) -> tuple[Tensor, Tensor]:
    """F(lag) and Q(lag), `[..., n, n]` for a lag `[...]` >= 0."""
    if isinstance(modes, Modes):
        return dense.transition(modes, lag)
    return _chain_propagator(modes, lag), _chain_noise(modes, lag)


def backward(modes: AnyModes, lag: Tensor) -> Tensor:
    """F(lag)⁻¹ = F(-lag), `[..., n, n]`."""
    if isinstance(modes, ChainModes):
        return _chain_propagator(modes, -lag)
    growth = torch.exp(-modes.rate_re * lag[..., None])
    turn = -modes.rate_im * lag[..., None]
    e_re, e_im = (growth * torch.cos(turn))[..., None, :], (growth * torch.sin(turn))[..., None, :]
    f = (modes.basis_re * e_re - modes.basis_im * e_im) @ modes.dual_re
    return f - (modes.basis_re * e_im + modes.basis_im * e_re) @ modes.dual_im


def seen_from_now(modes: AnyModes, matrix: Tensor, lag: Tensor) -> tuple[Tensor, Tensor]:
    """How an observation of `lag` `[...]` ago sees the state now: M = C F(lag)⁻¹ `[..., P, n]`, and the process noise
    in it, M Q(lag) Mᵀ `[..., P, P]`, for C `[P, n]`.

    In the eigenbasis n² operations a lag; F and Q themselves are n³, and attention has a lag for every pair.
    """
    if isinstance(modes, ChainModes):
        seen = matrix @ backward(modes, lag)
        return seen, seen @ transition(modes, lag)[1] @ seen.mT
    c_re, c_im = matrix @ modes.basis_re, matrix @ modes.basis_im
    growth = torch.exp(-modes.rate_re * lag[..., None])
    turn = -modes.rate_im * lag[..., None]
    e_re, e_im = (growth * torch.cos(turn))[..., None, :], (growth * torch.sin(turn))[..., None, :]
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
    x_re = modes.basis_re @ g_re - modes.basis_im @ g_im
    x_im = modes.basis_re @ g_im + modes.basis_im @ g_re
    q = x_re @ modes.basis_re.mT + x_im @ modes.basis_im.mT
    return (q + q.mT) / 2


def _integrals(modes: ChainModes, lag: Tensor) -> tuple[Tensor, Tensor]:
    """I_m(z, lag), `[..., 2K - 1, c, c]`, for z = l_i + l_j* of every pair of clusters."""
    z_re = modes.rate_re[:, None] + modes.rate_re[None, :]
    z_im = modes.rate_im[:, None] - modes.rate_im[None, :]
    count = modes.node_weights.shape[-1]
    span = lag[..., None, None]
    x_re, x_im = z_re * span, z_im * span
    is_near = x_re.square() + x_im.square() <= _threshold(count) ** 2

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


__all__ = [
    "AnyModes", "ChainModes", "Spectrum", "backward", "mode_arrays", "seen_from_now", "spectrum", "stationary",
    "transition",
]  # fmt: skip
