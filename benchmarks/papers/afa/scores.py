"""Learned properties of an AFA layer: eigenvalues, frequencies, and the variance of its predictions."""

from __future__ import annotations

import numpy as np
import torch

from rfa.benchmarks.papers.afa.layer import AFAFilter

# Lags, in measurements, over which the layer's transport is fitted by one matrix exponential: about one turn. Lag 0 is
# not trained, because every prediction is of the next measurement.
TRANSPORT_LAGS = (1, 63)
# Frequencies within this distance of the true one are counted.
NEAR = 0.2
TRUE_OMEGA = 1.0
# Normal quantile of the two-sided 90 % interval.
Z90 = 1.6449


def learned_eigenvalues(model: AFAFilter, step: float) -> list[list[float]]:
    """Return [real, imaginary] of the eigenvalues of the A whose e^{A step} best fits the layer's transport."""
    first, last = TRANSPORT_LAGS
    lags = step * torch.arange(first, last + 1, dtype=torch.float64)
    maps = model.transport(lags).detach().double().numpy()
    before, after = np.concatenate(list(maps[:-1]), axis=1), np.concatenate(list(maps[1:]), axis=1)
    rates = np.log(np.linalg.eigvals(after @ np.linalg.pinv(before)).astype(complex)) / step
    return sorted([float(rate.real), float(rate.imag)] for rate in rates)


def frequencies(model: AFAFilter) -> dict[str, float]:
    """Return the mean |omega| of the channels, weighted by power, and the fraction of the power near the true one."""
    omega, strength = (x.detach().double().numpy() for x in model.channel_strength())
    power = strength**2 / np.sum(strength**2)
    return {"mean_omega": float(power @ omega), "near_share": float(power[np.abs(omega - TRUE_OMEGA) < NEAR].sum())}


def spread_of_evidence(precision: np.ndarray, error2: np.ndarray) -> np.ndarray:
    """Fit non-negative a, b of the variance a / precision + b of predictions by least squares; inputs are `[M]`."""
    from scipy.optimize import nnls

    columns = np.stack([1 / precision, np.ones_like(precision)], axis=1)
    found, _ = nnls(columns, error2)
    return found
