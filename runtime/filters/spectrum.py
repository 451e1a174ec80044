"""Spectrum of a drift matrix A. It consists of eigenpairs, or of clusters of eigenvalues if A has no eigenbasis.

`modes.py` and `transition_numba.py` compute F and Q of a lag from it. The equations and limits are in `modes.py`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

# Maximum condition number of a basis, at which float32 retains two digits.
MAX_CONDITION = 1e4
# Real parts of eigenvalues up to this value are treated as zero.
STABILITY_TOLERANCE = 1e-9
# N^K is treated as zero up to this fraction of |A| |N^(K-1)|, the rounding of A and of its triangular form.
ROUNDING = 1e-13
# If the cluster decays at mu, N^K is also treated as zero up to this fraction of mu^K. Then e^{-mu t} |N^K| t^K / K! is
# smaller at every lag.
TOLERANCE = 1e-12
# Maximum length of a series. A chain of true integrators has one term per integrator.
MAX_TERMS = 8
# Number of Gauss-Legendre points beyond the threshold on |z t|. With them, the sum is exact to 1e-16 for every m.
EXTRA_NODES = 10


class Spectrum(NamedTuple):
    """Decomposition A = V (diag(rates) + nilpotent) V⁻¹ in complex numbers.

    Attributes:
        rates: Eigenvalues, `[n]`. They are equal within a cluster.
        member: 1 if a coordinate is in a cluster and 0 otherwise, `[n, c]`.
        basis, dual: V and its inverse, `[n, n]`.
        nilpotent: Nilpotent part N, `[n, n]`. It has `terms` nonzero powers, including the zeroth.
        terms: Number of nonzero powers of N.
    """

    rates: Array
    member: Array
    basis: Array
    dual: Array
    nilpotent: Array
    terms: int

    def powers(self) -> Array:
        """Return N^k / k! for all k < K, `[K, n, n]`."""
        found = [np.eye(len(self.rates), dtype=complex)]
        for k in range(1, self.terms):
            found.append(found[-1] @ self.nilpotent / k)
        return np.stack(found)

    def noises(self, process_noise: Array) -> Array:
        """Return C_m = sum over a + b = m of N^a Q̃ (N^b)ᴴ / (a! b!) with Q̃ = V⁻¹ Q V⁻ᴴ, for m = 0 … 2K - 2,
        `[2K - 1, n, n]`.
        """
        powers = self.powers()
        noise = self.dual @ process_noise @ self.dual.conj().T
        found = np.zeros((2 * self.terms - 1, *noise.shape), complex)
        for a, left in enumerate(powers):
            for b, right in enumerate(powers):
                found[a + b] += left @ noise @ right.conj().T
        return found


def spectrum(drift: Array) -> Spectrum:
    """Return the spectrum of a drift matrix `[n, n]`.

    Raises:
        ValueError: If the drift is unstable, or neither diagonalisable nor defective within the tolerances.
    """
    rates, basis = np.linalg.eig(drift)
    if np.linalg.cond(basis) <= MAX_CONDITION:
        n = len(drift)
        found = Spectrum(rates, np.eye(n), basis, np.linalg.inv(basis), np.zeros((n, n)), 1)
    else:
        found = _clustered(drift, rates)
    if found.rates.real.max() > STABILITY_TOLERANCE:
        raise ValueError(
            f"drift is unstable: an eigenvalue has real part {found.rates.real.max():.3g}, but all must be <= 0"
        )
    if found.terms > MAX_TERMS:
        raise ValueError(
            f"drift has nearly equal eigenvalues near {_nearest(rates):.3g}, so that its eigenvectors are "
            f"ill-conditioned (condition above {MAX_CONDITION:g}, tolerance {ROUNDING:g}). Make these eigenvalues "
            "equal, or choose units of time and state in which they are further apart"
        )
    return found


def _nearest(rates: Array) -> complex:
    """Return one of the two eigenvalues that are closest to each other."""
    distance = np.abs(rates[:, None] - rates) + np.diag(np.full(len(rates), np.inf))
    return complex(rates[distance.min(0).argmin()])


def _clustered(drift: Array, values: Array) -> Spectrum:
    """Return the finest clusters (by single linkage) for which the invariant subspaces form a well-conditioned
    basis."""
    n, scale = len(drift), float(np.linalg.norm(drift, 2))
    distance = np.abs(values[:, None] - values)
    floor = ROUNDING * scale
    before = None
    invariant = functools.cache(lambda own: _invariant(drift, values, np.frombuffer(own, bool)))
    for reach in np.unique(np.append(distance[distance > floor], floor)):
        linked = (distance <= reach).astype(np.float32)
        for _ in range(n.bit_length()):
            linked = ((linked @ linked) > 0).astype(np.float32)
        labels = linked.argmax(axis=1)
        if before is not None and (labels == before).all():
            continue  # only n - 1 of the n² distances join clusters
        before = labels
        inside = [labels == label for label in np.unique(labels)]
        found = []
        for own in inside:
            if (block := invariant(own.tobytes())) is None:
                break
            found.append(block)
        if len(found) < len(inside):
            continue
        basis = np.concatenate([unitary for unitary, _ in found], axis=1)
        if np.linalg.cond(basis) <= MAX_CONDITION:
            break
    nilpotent, member = np.zeros((n, n), complex), np.zeros((n, len(found)))
    terms, start = 1, 0
    for c, (own, (_, triangle)) in enumerate(zip(inside, found, strict=True)):
        # The mean is well-conditioned, whereas the eigenvalues of a chain of two have errors of sqrt(rounding).
        rate, stop = values[own].mean(), start + len(triangle)
        block = triangle - rate * np.eye(len(triangle))
        nilpotent[start:stop, start:stop] = block
        member[start:stop, c] = 1
        terms = max(terms, _terms(block, -rate.real, scale))
        start = stop
    rates = member @ np.array([values[own].mean() for own in inside])
    return Spectrum(rates, member, basis, np.linalg.inv(basis), nilpotent, terms)


def _invariant(drift: Array, values: Array, inside: Array) -> tuple[Array, Array] | None:
    """Return an orthonormal basis `[n, k]` of the invariant subspace of a cluster, and the upper triangular form of A
    in this basis. Return None if rounding errors prevent this.

    Eigenvectors are separated one by one with a unitary change of the rest. Each step therefore has the rounding error
    of A, even if its eigenvalues are ill-conditioned.
    """
    own, other = values[inside], values[~inside]
    unitary = np.eye(len(drift), dtype=complex)
    triangle = drift.astype(complex)
    for k in range(len(own)):
        rest = triangle[k:, k:]
        found = np.linalg.eigvals(rest)
        near = np.abs(found[:, None] - own).min(axis=1)
        if len(other) and (near < np.abs(found[:, None] - other).min(axis=1)).sum() != len(own) - k:
            return None  # because of rounding, the eigenvalues of the cluster cannot be identified
        vector = np.linalg.svd(rest - found[near.argmin()] * np.eye(len(rest)))[2][-1].conj()
        change = np.linalg.qr(np.column_stack([vector, np.eye(len(rest))]))[0]
        unitary[:, k:] = unitary[:, k:] @ change
        triangle[:, k:] = triangle[:, k:] @ change
        triangle[k:, :] = change.conj().T @ triangle[k:, :]
        triangle[k + 1 :, k] = 0
    return unitary[:, : len(own)], triangle[: len(own), : len(own)]


def _terms(block: Array, decay: float, scale: float) -> int:
    """Return the smallest K for which N^K is treated as zero. Return MAX_TERMS + 1 if there is none."""
    power, before = np.eye(len(block)), 1.0
    for k in range(1, MAX_TERMS + 1):
        power = power @ block
        size = float(np.linalg.norm(power, 2))
        if size <= ROUNDING * scale * before or (decay > STABILITY_TOLERANCE and size <= TOLERANCE * decay**k):
            return k
        before = size
    return MAX_TERMS + 1


def stationary(found: Spectrum, process_noise: Array) -> Array:
    """Return the covariance P `[n, n]` with A P + P Aᵀ + Q = 0. The drift must be damped."""
    noises = found.noises(process_noise) if found.terms > 1 else [found.dual @ process_noise @ found.dual.conj().T]
    minus_z = -(found.rates[:, None] + found.rates.conj()[None, :])
    power = minus_z
    inner = noises[0] / power
    for m, noise in enumerate(noises[1:], start=1):
        power = power * minus_z
        inner = inner + math.factorial(m) * noise / power
    return np.asarray((found.basis @ inner @ found.basis.conj().T).real)


def mode_arrays(found: Spectrum, process_noise: Array) -> dict[str, Array]:
    """Return the fields of `Eigenpairs`. If the drift has no eigenbasis, return those of `Chains`."""
    parts: dict[str, Array] = {"rate": found.rates, "basis": found.basis, "dual": found.dual}
    if found.terms == 1:
        parts["noise"] = found.dual @ process_noise @ found.dual.conj().T
        return _split(parts)
    top = 2 * found.terms - 1
    nodes, weights = np.polynomial.legendre.leggauss(int(threshold(top)) + EXTRA_NODES)
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


def threshold(count: int) -> float:
    """Return the largest |z t| for which the first `count` integrals are computed as sums over nodes."""
    return float(max(4, count - 1))
