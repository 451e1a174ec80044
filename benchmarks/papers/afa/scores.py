"""What the pictures of the AFA experiment show, in numbers: learned eigenvalues, clouds, attention, intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rfa.benchmarks.papers.afa.layer import AFAFilter
from rfa.model.batch import Batch

# Lags, in measurements, over which the layer's transport is compared with one matrix exponential: about one turn.
# At lag 0 nothing is learned, for every prediction is of the next measurement.
TRANSPORT_LAGS = (1, 63)
# Frequencies within this of the true one count as having found it.
NEAR = 0.2
TRUE_OMEGA = 1.0
# Normal quantile of the two-sided 90 % interval.
Z90 = 1.6449


def learned_eigenvalues(model: AFAFilter, step: float) -> list[list[float]]:
    """[real, imaginary] of the eigenvalues of the A whose e^{A step} fits the layer's transport over the lags best."""
    first, last = TRANSPORT_LAGS
    lags = step * torch.arange(first, last + 1, dtype=torch.float64)
    maps = model.transport(lags).detach().double().numpy()
    before, after = np.concatenate(list(maps[:-1]), axis=1), np.concatenate(list(maps[1:]), axis=1)
    rates = np.log(np.linalg.eigvals(after @ np.linalg.pinv(before)).astype(complex)) / step
    return sorted([float(rate.real), float(rate.imag)] for rate in rates)


def frequencies(model: AFAFilter) -> dict[str, float]:
    """Mean |omega| of the channels by the power that passes through them, and the share of it near the true one."""
    omega, strength = (x.detach().double().numpy() for x in model.channel_strength())
    power = strength**2 / np.sum(strength**2)
    return {"mean_omega": float(power @ omega), "near_share": float(power[np.abs(omega - TRUE_OMEGA) < NEAR].sum())}


@torch.no_grad()
def clouds(model: AFAFilter, batch: Batch, rows: tuple[int, ...]) -> list[np.ndarray]:
    """Per row, every earlier measurement as the layer carries it to that row's time, `[B, row + 1, 2]`."""
    y, times = torch.from_numpy(batch.observations).float(), torch.from_numpy(batch.times[0])
    return [model.pulled_forward(y, times, row).numpy() for row in rows]


def ideal_clouds(batch: Batch, f: np.ndarray, rows: tuple[int, ...]) -> list[np.ndarray]:
    """The same with the true transition `f` of a step."""
    powers = [np.linalg.matrix_power(f, lag) for lag in range(max(rows) + 1)]
    return [np.stack([batch.observations[:, j] @ powers[row - j].T for j in range(row + 1)], axis=1) for row in rows]


def cloud_errors(points: list[np.ndarray], truth: np.ndarray, rows: tuple[int, ...]) -> dict[str, float]:
    """RMS distance per component of the points, and of the centres of the clouds, to the true states of their rows."""
    errors = [cloud - truth[:, row, None] for cloud, row in zip(points, rows, strict=True)]
    centres = np.stack([error.mean(axis=1) for error in errors])
    return {
        "points": float(np.sqrt(np.mean(np.concatenate([error.ravel() for error in errors]) ** 2))),
        "centres": float(np.sqrt(np.mean(centres**2))),
    }


def attention_by_lag(weights: np.ndarray, step: float) -> dict[str, Any]:
    """How far the lag alone explains the log weights `[B, N, N]` of the later half of the rows, and how far what it
    explains, beyond a parabola, is a wave of the true frequency (its share of that rest, and its amplitude)."""
    length = weights.shape[-1]
    rows, columns = np.tril_indices(length)
    late = (rows >= length // 2) & (rows - columns < length // 2)
    lag = (rows - columns)[late]
    logs = np.log(np.maximum(weights[:, rows[late], columns[late]], 1e-30))
    # Each row's own constant is the softmax's norm, which says nothing about its keys.
    for row in range(length // 2, length):
        own = rows[late] == row
        logs[:, own] -= logs[:, own].mean(axis=1, keepdims=True)
    profile = np.array([logs[:, lag == value].mean() for value in range(length // 2)])
    explained = 1 - np.mean((logs - profile[lag]) ** 2) / np.var(logs)
    times = step * np.arange(length // 2)
    trend = np.stack([np.ones_like(times), times, times**2], axis=1)
    wave = np.stack([np.cos(TRUE_OMEGA * times), np.sin(TRUE_OMEGA * times)], axis=1)

    def without(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.linalg.lstsq(columns, profile, rcond=None)[0]
        return profile - columns @ found, found

    rest, _ = without(trend)
    left, found = without(np.concatenate([trend, wave], axis=1))
    return {
        "explained_by_lag": float(explained),
        "wave_share": float(1 - np.sum(left**2) / np.sum(rest**2)),
        "wave_amplitude": float(math.hypot(*found[3:])),
    }


def spread_of_evidence(precision: np.ndarray, error2: np.ndarray) -> np.ndarray:
    """Non-negative a, b of the variance a / precision + b of a predicted measurement, by least squares.

    Args:
        precision: the evidence of every prediction `[M]`; error2: its mean squared error per component `[M]`.
    """
    from scipy.optimize import nnls

    columns = np.stack([1 / precision, np.ones_like(precision)], axis=1)
    found, _ = nnls(columns, error2)
    return found
