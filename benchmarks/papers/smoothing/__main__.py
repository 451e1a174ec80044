"""Continuous measurements, and smoothing by attention: `python -m rfa.benchmarks.papers.smoothing`.

Writes results/papers-smoothing.json and docs/figures/paper-smoothing.png.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.figures import panels, save
from rfa.benchmarks.papers.smoothing.continuous import ContinuousSystem, filter_signal, stationary, variance
from rfa.benchmarks.papers.smoothing.two_sided import bidirectional_attention, smooth, smoother_weights
from rfa.measured import origin
from rfa.model.dynamics import Dynamics

# The oscillator of AFA 4.3, observed without gaps.
OSCILLATOR = ContinuousSystem(np.array([-0.1 + 1j]), np.array([0.3]), np.array([1.0 + 0j]), np.array([0.05]))
STEP, SAMPLES = 0.01, 8_000
WINDOWS = (1, 10, 50, 100)
# Smoothing: one head with four dimensions and measurements of variance 1.
LENGTH, SERIES, DIMS, MU = 60, 40, 4, 0.05
PROCESS = (0.0, 0.01, 0.1, 1.0)
OUTLIERS, OUTLIER_SCALE = 0.05, 10.0


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return complex normal numbers of variance 1."""
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)) / np.sqrt(2)


def walk(rng: np.random.Generator, start: np.ndarray, rate: np.ndarray, process: float, step: float, n: int) -> Any:
    """Return a path `[n, *start.shape]` of dx = rate x dt + dw from a start."""
    spread = process * np.where(rate.real == 0, step, np.expm1(2 * rate.real * step) / (2 * rate.real))
    path = [start]
    for _ in range(n - 1):
        path.append(np.exp(rate * step) * path[-1] + np.sqrt(spread) * normal(rng, start.shape))
    return np.stack(path)


def point_kalman(signal: np.ndarray, step: float) -> np.ndarray:
    """Filter with a discrete Kalman filter that takes each value as a measurement at the end of its step."""
    rate, process, noise = OSCILLATOR.rate[0], OSCILLATOR.process[0], OSCILLATOR.measurement[0] / step
    kept, move = np.exp(2 * rate.real * step), np.exp(rate * step)
    mean, spread = 0j, process / (-2 * rate.real)
    found = np.empty(len(signal), complex)
    for i, value in enumerate(signal):
        mean, spread = move * mean, kept * spread + process * (kept - 1) / (2 * rate.real)
        share = spread / (spread + noise)
        mean, spread = mean + share * (value - mean), (1 - share) * spread
        found[i] = mean
    return found


def continuous_rows(rng: np.random.Generator) -> list[dict[str, float]]:
    """Filter one signal in steps of more and more samples; errors are at the ends of the longest steps."""
    start = normal(rng, (1,)) * np.sqrt(OSCILLATOR.process / 0.2)
    truth = walk(rng, start, OSCILLATOR.rate, OSCILLATOR.process[0], STEP, SAMPLES)[:, 0]
    signal = truth + np.sqrt(OSCILLATOR.measurement[0] / STEP) * normal(rng, (SAMPLES,))
    longest, rows = max(WINDOWS), []
    for window in WINDOWS:
        means = signal.reshape(-1, window).mean(1)
        began = time.perf_counter()
        estimate = filter_signal(OSCILLATOR, means[:, None], STEP * window, OSCILLATOR.process / 0.2)[0][:, 0]
        seconds = time.perf_counter() - began
        every = longest // window
        errors = {"continuous": estimate, "points": point_kalman(means, STEP * window)}
        at = truth[longest - 1 :: longest]
        rows.append(
            {
                "samples": window,
                "microseconds_per_sample": 1e6 * seconds / SAMPLES,
                **{
                    name: float(np.sqrt(np.mean(np.abs(x[every - 1 :: every] - at) ** 2))) for name, x in errors.items()
                },
            }
        )
    return rows


def head(sigma2: float) -> Dynamics:
    """Return the head of the smoothing experiment."""
    one = torch.ones(1, dtype=torch.float64)
    omega = torch.tensor([[0.5, -0.5, 0.1, -0.1]], dtype=torch.float64)
    return Dynamics(MU * one, omega, sigma2 * one, one, 0 * one, 4 * DIMS * one, one)


def by_pairs(z: np.ndarray, dynamics: Dynamics, times: np.ndarray) -> np.ndarray:
    """Smooth by attention that takes pairs as independent (AFA A.3)."""
    x = torch.from_numpy(np.concatenate([z.real, z.imag], -1))[None, :, None]
    out = bidirectional_attention(x, x, x, dynamics, torch.from_numpy(times), "precision").out[0, :, 0].numpy()
    return out[:, :DIMS] + 1j * out[:, DIMS:]


def causal(z: np.ndarray, dynamics: Dynamics, times: np.ndarray) -> np.ndarray:
    """Filter forwards: each row is the last of the smoother of its past."""
    return np.stack([smooth(z[: i + 1], dynamics, times[: i + 1])[0][-1] for i in range(len(z))])


SMOOTHERS: dict[str, Callable[[np.ndarray, Dynamics, np.ndarray], np.ndarray]] = {
    "filter": causal,
    "pairs": by_pairs,
    "smoother": lambda z, dynamics, times: smooth(z, dynamics, times)[0],
    "robust smoother": lambda z, dynamics, times: smooth(z, dynamics, times, passes=4)[0],
}


def smoothing_rows(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return RMSEs by process noise, on clean measurements and with outliers."""
    rows, times = [], np.arange(LENGTH, dtype=float)
    for sigma2 in PROCESS:
        dynamics = head(sigma2)
        rate = -MU + 1j * dynamics.omega[0].numpy()
        errors: dict[str, dict[str, list[float]]] = {
            data: {name: [] for name in SMOOTHERS} for data in ("clean", "outliers")
        }
        for _ in range(SERIES):
            truth = walk(rng, 3 * normal(rng, (DIMS,)), rate, sigma2, 1.0, LENGTH)
            noise = normal(rng, truth.shape)
            far = np.where(rng.random(LENGTH) < OUTLIERS, OUTLIER_SCALE, 1.0)[:, None]
            for data, z in (("clean", truth + noise), ("outliers", truth + far * noise)):
                for name, run in SMOOTHERS.items():
                    errors[data][name].append(float(np.mean(np.abs(run(z, dynamics, times) - truth) ** 2)))
        rows += [
            {"sigma2": sigma2, "data": data, "rmse": {name: float(np.sqrt(np.mean(x))) for name, x in found.items()}}
            for data, found in errors.items()
        ]
    return rows


def draw(path: Path) -> None:
    """Draw the variance under continuous and sampled measurement, and the weights of one row by key."""
    figure, ((left, *rest),) = panels(1, 3, (10, 2.8))
    instants = np.linspace(0, 3, 300)
    for start, colour in ((0.0, "C0"), (1.5, "C1")):
        curve = [variance(OSCILLATOR, np.array([start]), t)[0] for t in instants]
        left.plot(instants, curve, color=colour, linewidth=1.2, label=f"v(0) = {start:g}")
    left.axhline(stationary(OSCILLATOR)[0], color="0.6", linewidth=0.8, linestyle=":")
    left.set(title="variance while measuring", xlabel="time", ylabel="v")
    left.legend(fontsize=6, frameon=False)
    times, row = np.arange(41.0), 20
    for axes, sigma2 in zip(rest, (0.01, 0.3), strict=True):
        exact, _ = smoother_weights(MU, sigma2, np.ones(41), times)
        forwards, _ = smoother_weights(MU, sigma2, np.ones(row + 1), times[: row + 1])
        lag = times[row] - times
        growth = np.exp(2 * MU * np.maximum(-lag, 0)) * -np.expm1(-2 * MU * np.abs(lag)) / (2 * MU)
        p = 1 / (sigma2 * growth + np.exp(-2 * MU * lag))
        axes.plot(times - row, exact[row], color="C0", label="smoother")
        axes.plot(times - row, p / p.sum() * np.exp(-MU * lag), color="C1", label="pairs, both directions")
        axes.plot(times[: row + 1] - row, forwards[-1], color="0.5", linestyle="--", label="filter")
        axes.set(title=f"weights of a row, σ² = {sigma2:g}", xlabel="key − query", yscale="log", ylim=(1e-4, 1))
    rest[0].legend(fontsize=6, frameon=False)
    save(figure, path)


def main() -> None:
    given = parser(__doc__, "papers-smoothing", has_figures=True).parse_args()
    rng = np.random.default_rng(0)
    rows = {"continuous": continuous_rows(rng), "smoothing": smoothing_rows(rng)}
    draw(given.figures / "paper-smoothing.png")
    finish("papers-smoothing", given.out, {**origin("python -m rfa.benchmarks.papers.smoothing"), **rows})


if __name__ == "__main__":
    main()
