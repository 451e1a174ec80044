"""Response of a linear system to an input that is constant over each lag.

    dx = (A x + u) dt + dw

The responses to noise and input add up: x = z + s, where z is the system without an input and

    s(t + lag) = F s(t) + G u          F = e^{A lag},   G = integral of e^{A r} over 0 <= r <= lag

Therefore, a filter of z, given y - C s, is a filter of x whose estimates of z are shifted by s. In the modes
A = V (diag(l) + N) V⁻¹ of `rfa.runtime.filters.spectrum`,

    F = V [ sum_k N^k / k! t^k e^{l t} ] V⁻¹         G = V [ sum_k N^k / k! I_k(l, t) ] V⁻¹

where I_k is the integral of r^k e^{l r} up to t. For small |l t|, it is computed by Gauss-Legendre quadrature, and
otherwise as (t^k e^{l t} - k I_{k-1}) / l, as in `rfa.model.recurrence.modes`. This includes undamped and defective A,
such as constant velocity.
"""

from __future__ import annotations

import functools

import numpy as np

from rfa.runtime.filters.spectrum import Spectrum, spectrum

Array = np.ndarray
# The sum is exact up to rounding if |l t| is at most the number of terms of a chain.
NODES, WEIGHTS = (np.polynomial.legendre.leggauss(32)[i] / 2 for i in (0, 1))
KEPT_LAGS = 4096


class HeldInput:
    """Computes the matrices F and G of a drift matrix A for inputs that are constant over a lag.

    Args:
        drift: Drift matrix A, `[n, n]`.
        kept: Number of lags to cache.

    Raises:
        ValueError: If the modes of A cannot be computed. See `spectrum`.
    """

    def __init__(self, drift: Array, kept: int = KEPT_LAGS) -> None:
        found = spectrum(np.asarray(drift, np.float64))
        # Lags are processed one at a time, so that results do not depend on the other lags.
        self.moves = functools.lru_cache(kept)(functools.partial(_moves, found, found.powers()))


def _moves(found: Spectrum, powers: Array, lag: float) -> tuple[Array, Array]:
    """Return F and G for a lag, `[n, n]` each."""
    growth = np.stack([_decayed_power(found.rates.astype(complex), lag, k) for k in range(len(powers))])
    return _from_modes(found, powers, growth), _from_modes(found, powers, _integrals(found, growth, lag))


def _integrals(found: Spectrum, growth: Array, lag: float) -> Array:
    """Return I_k for every mode, `[K, n]`."""
    terms, x = len(growth), found.rates.astype(complex) * lag
    share = NODES + 0.5
    sums = [(WEIGHTS * share**k * np.exp(x[:, None] * share)).sum(1) for k in range(terms)]
    near = np.stack([lag ** (k + 1) * total for k, total in enumerate(sums)])
    is_near = np.abs(x) <= max(terms - 1, 1)
    rates = np.where(is_near, 1.0, found.rates.astype(complex))
    far = [(growth[0] - 1) / rates]
    for k in range(1, terms):
        far.append((growth[k] - k * far[-1]) / rates)
    return np.where(is_near, near, np.stack(far))


def _from_modes(found: Spectrum, powers: Array, modes: Array) -> Array:
    inner = (powers * modes[:, None, :]).sum(0)
    whole: Array = (found.basis @ inner @ found.dual).real
    return np.ascontiguousarray(whole)


def _decayed_power(rates: Array, t: float, k: int) -> Array:
    """Return t^k e^{l t}, computed as a product that does not overflow before it decays."""
    found: Array = np.exp(rates * t) if k == 0 else (t * np.exp(rates * t / k)) ** k
    return found
