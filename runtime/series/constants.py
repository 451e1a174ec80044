"""Constants that the compiled series network computes from its weights, without torch.

The formulas are those of `rfa.model.dynamics` and `rfa.model.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rfa.runtime.series.config import PATCH
from rfa.runtime.text.config import GATE_RANGE, POSITIVE_FLOOR, PROCESS_GATE_SCALE

Array = np.ndarray
NORM_EPS = 1e-6
SLOWEST = 1e4


def _positive(raw: Array) -> Array:
    return np.logaddexp(0.0, raw) + POSITIVE_FLOOR


def series_constants(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return a mapping from names to constants.

    They are constants of the heads `[L, H]`; `decay` and `own_process` `[L, PATCH, H, S]`, for 1 to PATCH cells since
    the last complete patch; the frequencies `omega` `[H, D]`; the initial memory slots; and scalars.

    Args:
        weights: Weights of the network by parameter name.
    """
    layers = sum(name.endswith(".slot_log_mu") for name in weights)

    def stacked(name: str) -> Array:
        return np.stack([weights[f"blocks.{index}.mixer.{name}"] for index in range(layers)]).astype(np.float64)

    means = stacked("initial_means")
    heads, complex_dims = means.shape[1], means.shape[3] // 4
    nu = 2 + complex_dims * _positive(stacked("dynamics.nu_raw"))
    kappa = (nu + complex_dims) / complex_dims
    gamma2, eta2 = (_positive(stacked(f"dynamics.{name}_raw")) for name in ("gamma2", "eta2"))
    lags = (np.arange(1, PATCH + 1) / PATCH)[:, None, None]
    rates = np.exp(stacked("slot_log_mu"))[:, None]
    steady = _positive(stacked("dynamics.process_raw"))[:, None, :, None]
    half = heads * complex_dims // 2
    bands = (SLOWEST ** (-np.arange(half) / half))[::-1].reshape(heads, complex_dims // 2)
    return {
        "nu": nu,
        "kappa": kappa,
        "weight_exponent": kappa * _positive(stacked("weight_scale_raw")),
        "residual_noise": gamma2 + eta2,
        "gamma2": gamma2,
        "tau": _positive(stacked("dynamics.tau_raw")),
        "delta": _positive(stacked("delta_raw")),
        "eta2": eta2,
        "decay": np.exp(-lags * rates),
        "own_process": -steady * np.expm1(-2 * lags * rates),
        "omega": np.stack([bands, -bands], axis=-1).reshape(heads, complex_dims),
        "initial_means": means,
        "initial_precisions": _positive(stacked("initial_precision_raw")),
        "gate_lowest": np.array(GATE_RANGE[0]),
        "gate_highest": np.array(GATE_RANGE[1]),
        "process_gate_scale": np.array(PROCESS_GATE_SCALE),
        "norm_eps": np.array(NORM_EPS),
    }
