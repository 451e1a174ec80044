"""Convert a sampled system, which is defined by F and Q over a lag, to continuous time.

    F = e^{A lag}        Q(lag) = integral of e^{A s} Q e^{Aᵀ s} over 0 <= s <= lag

A is the principal logarithm of F divided by the lag. It is computed by square roots (the product form of the
Denman-Beavers iteration) until F is near 1, and then by the Gauss-Legendre form of its Padé approximant (Cheng, Higham,
Kenney and Laub, SIAM J. Matrix Anal. Appl. 22, 2001). Q is computed in the modes of A (`spectrum.py`), where Q(lag) is

    sum over a, b of I_{a+b}(z, lag) ∘ N^a Q̃ (N^b)ᴴ / (a! b!)

If the sum contains only I_0, it is inverted by a division. The powers of N add terms further up in each chain, so as
many iterations as the longest chain has steps give Q̃ exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rfa.runtime.filters.spectrum import EXTRA_NODES, Spectrum, spectrum, threshold

Array = np.ndarray[Any, Any]
# Norm of F - 1 up to which the approximant with NODES nodes is exact to 1e-16.
NEAR_ONE, NODES = 0.25, 8
MOST_ROOTS, MOST_ROUNDS = 60, 50
# Relative tolerance when F and Q are recomputed from the result.
TOLERANCE = 1e-9


def drift_of(transition: Array, lag: float) -> Array:
    """Return the drift A `[n, n]` of a transition F `[n, n]` over a lag > 0.

    Raises:
        ValueError: If there is no real A, or none that reproduces F. The message is the reason, without the name of a
            field.
    """
    values = np.linalg.eigvals(transition)
    size = np.abs(values)
    if size.min() <= 1e-14 * size.max():
        raise ValueError("is singular, but the transition matrix of a system in continuous time is invertible")
    negative = (values.real < 0) & (np.abs(values.imag) <= 1e-10 * size)
    if negative.any():
        raise ValueError(
            f"has the negative eigenvalue {values.real[negative][0]:.3g}; a component that changes its sign at every "
            "step cannot be described in continuous time"
        )
    root, squarings = np.asarray(transition, np.float64), 0
    while np.linalg.norm(root - np.eye(len(root)), 1) > NEAR_ONE:
        if squarings == MOST_ROOTS:
            raise ValueError("has no real logarithm that can be computed, so it is not e^(A dt) of a matrix A")
        root, squarings = _square_root(root), squarings + 1
    drift: Array = _logarithm(root) * (2.0**squarings / lag)
    back = moved(spectrum(drift), lag)
    if not np.abs(back - transition).max() <= TOLERANCE * np.abs(transition).max():
        raise ValueError("is too close to a matrix without a logarithm; e^(A dt) does not reproduce it")
    return drift


def noise_rate(found: Spectrum, noise: Array, lag: float) -> Array:
    """Return the spectral density Q `[n, n]` of the process noise whose covariance over the lag is `noise`. Q is
    symmetric, but may have negative eigenvalues.

    Raises:
        ValueError: If the result does not reproduce the covariance over the lag.
    """
    integrals = _integrals(found, lag)
    target = found.dual @ noise @ found.dual.conj().T
    with np.errstate(all="ignore"):  # the check below rejects non-finite values
        rate = target / integrals[0]
    longest = int(found.member.sum(axis=0).max())
    for _ in range(2 * (longest - 1) if found.terms > 1 else 0):
        rate = rate + (target - _spread(found, rate, integrals)) / integrals[0]
    rate = (found.basis @ rate @ found.basis.conj().T).real
    rate = (rate + rate.T) / 2
    if not np.abs(gathered(found, rate, lag) - noise).max() <= TOLERANCE * np.abs(noise).max():
        raise ValueError(
            "cannot be the process noise covariance of a continuous-time system with this F; check F, Q and dt"
        )
    return np.asarray(rate)


def moved(found: Spectrum, lag: float) -> Array:
    """Return F over a lag, `[n, n]`."""
    growth = np.exp(found.rates * lag)
    inner = sum(power * lag**k * growth for k, power in enumerate(found.powers()))
    return np.asarray((found.basis @ inner @ found.dual).real)


def gathered(found: Spectrum, rate: Array, lag: float) -> Array:
    """Return the covariance of the process noise over a lag, `[n, n]`, given its spectral density `rate`."""
    inner = _spread(found, found.dual @ rate @ found.dual.conj().T, _integrals(found, lag))
    return np.asarray((found.basis @ inner @ found.basis.conj().T).real)


def _spread(found: Spectrum, rate: Array, integrals: Array) -> Array:
    powers = found.powers()
    total = np.zeros_like(rate, dtype=complex)
    for a, left in enumerate(powers):
        for b, right in enumerate(powers):
            total += integrals[a + b] * (left @ rate @ right.conj().T)
    return total


def _integrals(found: Spectrum, lag: float) -> Array:
    """Return I_m for every pair of modes, `[2 terms - 1, n, n]`."""
    count = 2 * found.terms - 1
    z = found.rates[:, None] + found.rates.conj()[None, :]
    x = z * lag
    nodes, weights = np.polynomial.legendre.leggauss(int(threshold(count)) + EXTRA_NODES)
    nodes, weights = (nodes + 1) / 2, weights / 2
    growth = np.exp(x[..., None] * nodes)
    is_near = np.abs(x) <= threshold(count)
    rates = np.where(is_near, 1.0, z)
    found_integrals, far = [], np.zeros_like(x)
    for m in range(count):
        near = lag ** (m + 1) * (growth * (weights * nodes**m)).sum(axis=-1)
        far = (lag**m * np.exp(x) - (m * far if m else 1.0)) / rates
        found_integrals.append(np.where(is_near, near, far))
    return np.stack(found_integrals)


def _square_root(matrix: Array) -> Array:
    one = np.eye(len(matrix))
    root, rest = matrix, matrix
    for _ in range(MOST_ROUNDS):
        inverse = np.linalg.inv(rest)
        root = root @ (one + inverse) / 2
        before, rest = rest, (one + (rest + inverse) / 2) / 2
        # The iteration converges quadratically, to within rounding error.
        if np.linalg.norm(rest - before, 1) <= 1e-15 * len(matrix) * np.linalg.norm(rest, 1):
            break
    return root


def _logarithm(matrix: Array) -> Array:
    """Return the logarithm of a matrix near 1."""
    one = np.eye(len(matrix))
    rest = matrix - one
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    parts = zip((nodes + 1) / 2, weights / 2, strict=True)
    return np.asarray(sum(weight * np.linalg.solve(one + node * rest, rest) for node, weight in parts))
