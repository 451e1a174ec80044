"""A linear SDE as the isotropic filter's heads: one head per conjugate pair of eigenvalues, one per real eigenvalue.

    dx = A x dt + dw,  E[dw dwᵀ] = Q dt          y = C x + b + e,  E[e eᵀ] = R
    A = V diag(l) V⁻¹,   z = V⁻¹ x               v = V⁻¹ C⁻¹ (y - b) = z + noise

Of a pair one coordinate is kept: the other is its conjugate, so x = sum over pairs 2 Re(V_k z_k) + sum over reals
V_k z_k. The heads are independent and isotropic, and `irkf_scan` on them is the exact filter (at nu = inf the Kalman
filter of the system), where C is invertible and

    V⁻¹ Q V⁻ᴴ      V⁻¹ C⁻¹ R C⁻ᵀ V⁻ᴴ      V⁻¹ P0 V⁻ᴴ

are diagonal; the entry of a coordinate and its conjugate, zero too, makes a pair's noise circular. Off-diagonal entries
count as zero up to TOLERANCE of the geometric mean of their diagonal ones. What is not so is refused with the reason:
`rfa.model.linear_filter` filters it with a dense covariance, as it does observations of which components are missing.

Robust weights are per head, so an outlier in one mode costs the others nothing; nu is that of the real components.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics
from rfa.model.recurrence.irkf import IRKFState
from rfa.runtime.filters.linear_config import LinearFilterConfig, stationary_covariance
from rfa.runtime.filters.spectrum import MAX_CONDITION, spectrum

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-6
INSTEAD = "LinearFilter takes it, with a dense covariance"


class EigenHeads:
    """The heads of a system.

    Args:
        config: of the system; `inner`, `contamination` and `reacquire` are not used.

    Attributes:
        dynamics: for `irkf_scan`, float64, one complex dim a head.

    Raises:
        ValueError: the system is not a set of independent isotropic modes, with the reason.
    """

    def __init__(self, config: LinearFilterConfig) -> None:
        drift = np.asarray(config.drift)
        n = len(drift)
        found = spectrum(drift)
        if found.terms > 1:
            raise ValueError(f"drift has no eigenbasis; {INSTEAD}")
        matrix = np.eye(n) if config.observation is None else np.asarray(config.observation)
        if matrix.shape != (n, n) or np.linalg.cond(matrix) > MAX_CONDITION:
            raise ValueError(f"observation must be [{n}, {n}] and invertible (condition {MAX_CONDITION:g}); {INSTEAD}")
        dual = found.dual
        sensed = dual @ np.linalg.inv(matrix)
        prior = config.initial_covariance
        covariance = stationary_covariance(config) if prior is None else np.asarray(prior)
        process = _diagonal("process_noise", dual, np.asarray(config.process_noise))
        measured = _diagonal("measurement_noise", sensed, np.asarray(config.measurement_noise))
        initial = _diagonal("initial_covariance", dual, covariance)

        # eig gives the two of a pair with opposite imaginary parts that are equal to the last bit.
        kept = np.flatnonzero(found.rates.imag >= 0)
        is_pair = found.rates.imag[kept] > 0
        mean = np.zeros(n) if config.initial_mean is None else np.asarray(config.initial_mean)
        start = (dual @ mean)[kept]
        nu = np.full(len(kept), np.inf) if config.nu is None else config.nu / (1.0 + is_pair)
        rates = found.rates[kept]
        columns = (-rates.real, rates.imag[:, None], process[kept], measured[kept], np.zeros(len(kept)), nu,
                   np.ones(len(kept)))  # fmt: skip
        self.dynamics = Dynamics(*(torch.tensor(np.maximum(column, 0.0)) for column in columns))
        self._prior = torch.tensor(np.stack([start.real, start.imag], -1)), torch.tensor(1 / initial[kept])
        self._offset = torch.tensor(np.zeros(n) if config.offset is None else np.asarray(config.offset))
        self._encode = torch.tensor(np.stack([sensed[kept].real, sensed[kept].imag], axis=1))  # [H, 2, n]
        share = np.where(is_pair, 2.0, 1.0)
        basis = found.basis[:, kept]
        self._decode = torch.tensor(np.stack([basis.real, -basis.imag], axis=-1) * share[:, None])  # [n, H, 2]
        # 2 Re(V z) of a circular z of variance s: covariance 2 s Re(V Vᴴ).
        self._spread = torch.tensor(np.einsum("jh,kh->hjk", basis, basis.conj()).real * share[:, None, None])

    def start(self, time: Tensor) -> IRKFState:
        """The state before the first observations, which come at `time` `[B]`."""
        mean, precision = self._prior
        batch = time.shape[0]
        return IRKFState(
            mean.expand(batch, -1, -1).clone(), precision.expand(batch, -1).clone(), time.to(torch.float64)
        )

    def encode(self, observation: Tensor) -> Tensor:
        """What `irkf_scan` takes, `[..., H, 2]`, of whole observations `[..., n]`."""
        return torch.einsum("hrj,...j->...hr", self._encode, observation.double() - self._offset)

    def decode(self, means: Tensor, precisions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `[..., n]` and covariance `[..., n, n]` of the state, from those of the heads."""
        mean = torch.einsum("jhr,...hr->...j", self._decode, means.double())
        return mean, torch.einsum("hjk,...h->...jk", self._spread, 1 / precisions.double())


def _diagonal(name: str, change: Array, matrix: Array) -> Array:
    """The diagonal of a covariance in the eigenbasis.

    Raises:
        ValueError: it has more than a diagonal.
    """
    inner = change @ matrix @ change.conj().T
    diagonal = np.maximum(np.diagonal(inner).real, 0.0)
    scale = np.sqrt(np.outer(diagonal, diagonal))
    off = np.abs(inner - np.diag(np.diagonal(inner)))
    if (off > TOLERANCE * np.maximum(scale, TOLERANCE * diagonal.max())).any():
        worst = float((off / np.maximum(scale, np.finfo(float).tiny)).max())
        raise ValueError(
            f"{name} correlates the modes of the drift: a coefficient of {min(worst, 1.0):.3g} in the eigenbasis, "
            f"where independent isotropic heads allow {TOLERANCE:g}; {INSTEAD}"
        )
    return diagonal


__all__ = ["EigenHeads"]
