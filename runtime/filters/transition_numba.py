"""Compiled computation of F and Q over a lag, from the modes of the drift (`spectrum.py`).

The equations are in `rfa.model.recurrence.modes`, computed here in float64.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numba
import numpy as np

# Terms of the series of I_m below this value are negligible, because the sum is at least 1e-7 (x >= -MAX_TERMS * 2).
SMALLEST_TERM = 1e-19
# These functions allocate arrays, so `_nrt` must be set, because numba compiles a callee with the options of its first
# caller.
COMPILER_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "fastmath": {"contract", "nsz"},
    "error_model": "numpy",
    "_nrt": True,
}
_compiled = numba.njit(**COMPILER_OPTIONS)


@_compiled
def _decayed_power(rate, t, k):
    """Return t^k e^{rate t}. It is computed as a product that does not overflow before it decays."""
    if k == 0:
        return np.exp(rate * t)
    root = t * np.exp(rate * t / k)
    power = root
    for _ in range(k - 1):
        power *= root
    return power


@_compiled
def _integrals(z, t, found):
    """Compute I_m(z, t) for m < len(found). See `modes.py`. The series is accurate enough in float64."""
    x = z * t
    if abs(x) <= max(len(found) - 1, 1):
        for m in range(len(found)):
            term, total, k = 1.0 + 0.0j, 0.0j, 0
            while abs(term) > SMALLEST_TERM:
                total += term / (m + k + 1)
                k += 1
                term *= x / k
            found[m] = t ** (m + 1) * total
        return
    found[0] = (np.exp(x) - 1) / z
    for m in range(1, len(found)):
        found[m] = (_decayed_power(z, t, m) - m * found[m - 1]) / z


@_compiled
def _multiply(a, b, out):
    """Compute the matrix product of a and b, `[n, n]`, in `out`."""
    n = len(a)
    for i in range(n):
        for j in range(n):
            total = 0.0j
            for k in range(n):
                total += a[i, k] * b[k, j]
            out[i, j] = total


@_compiled
def transition(lag, modes, f, q):
    """Compute F and Q `[n, n]` over a lag.

    Args:
        lag: Lag in the unit of the times.
        modes: Rates, basis, dual, powers and noises of the `Spectrum`.
        f, q: Output arrays.
    """
    rates, basis, dual, powers, noises = modes
    n = len(rates)
    inner, left = np.zeros((n, n), np.complex128), np.zeros((n, n), np.complex128)
    for j in range(n):
        for k in range(len(powers)):
            factor = _decayed_power(rates[j], lag, k)
            for i in range(n):
                inner[i, j] += powers[k, i, j] * factor
    _multiply(basis, inner, left)
    for i in range(n):
        for j in range(n):
            total = 0.0j
            for k in range(n):
                total += left[i, k] * dual[k, j]
            f[i, j] = total.real
    integrals = np.empty(len(noises), np.complex128)
    for i in range(n):
        for j in range(i, n):
            _integrals(rates[i] + np.conj(rates[j]), lag, integrals)
            total = 0.0j
            for m in range(len(noises)):
                total += noises[m, i, j] * integrals[m]
            inner[i, j] = total
            inner[j, i] = np.conj(total)
    _multiply(basis, inner, left)
    for i in range(n):
        for j in range(i, n):
            total = 0.0
            for k in range(n):
                total += (left[i, k] * np.conj(basis[j, k])).real
            q[i, j] = total
            q[j, i] = total


@_compiled
def transitions(lags, modes):
    """Return F and Q over every lag, `[U, 2, n, n]`."""
    n = len(modes[0])
    moves = np.empty((len(lags), 2, n, n))
    for i in range(len(lags)):
        transition(lags[i], modes, moves[i, 0], moves[i, 1])
    return moves
