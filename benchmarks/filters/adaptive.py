"""Forecast intervals that adapt: coverage and width on clean data, with outliers and under drift.

    python -m rfa.benchmarks.filters.adaptive [--tune]     writes results/filter-adaptive.json; --tune prints a grid
    instead

tracking   2-D constant velocity (the setting of Duran-Martin et al. 2024), a capped robust filter in NumPy, 100 streams
           of 4,000 observations; one-step forecasts, through the service's adaptive.py. Each component of each stream
           is followed on its own. Beside it: the bundle's way without adaptation, adaptive conformal inference with the
           quantile of the last 500 scores (Gibbs and Candès 2021), and quantile tracking (Angelopoulos et al. 2023).
served     the bundle `linear` in the service's runtime, 64 streams of the oscillator; forecasts at 1, 5 and 20 steps as
           they were served, and as they would have been without adaptation.

Scenarios: clean; one observation in twenty with ten times the noise; the noise variance × 4 from the middle on; both.
Constants were chosen on the seeds of `--tune`; the file is of others.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.filters import adaptive_rows
from rfa.export.filter_calibration import LEVELS, conformal
from rfa.measured import RESULTS, origin, write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import GAMMA
from rfa.runtime.uncertainty.interface import Row
from rfa.service.settings import BUNDLE_ROOT
from rfa.training.simulate import simulate_oscillator

Array = np.ndarray
OUT = RESULTS / "filter-adaptive.json"
SCENARIOS = {"clean": (0.0, 1.0), "outliers": (0.05, 1.0), "drift": (0.0, 4.0), "both": (0.05, 4.0)}
TUNE_SEED, CALIBRATION_SEED, REPORT_SEED = 1_000, 2_000, 3_000
STREAMS, STEPS, AFTER = 100, 4_000, 300
OUTLIER_SCALE, WINDOW = 10.0, 500
RATES = 1 - np.array(LEVELS)
NORMAL = [NormalDist().inv_cdf((1 + level) / 2) for level in LEVELS]
# The constant-velocity system.
DT, Q, R, NU, PASSES = 0.1, 0.1, 10.0, 4.0, 3


class Scored(NamedTuple):
    """One-step forecasts of series `[series, steps]`: |error| per model std, and the std."""

    score: Array
    std: Array


Method = Callable[[Array, Array], tuple[Array, Array]]


def track(scenario: str, seed: int, streams: int = STREAMS, *, is_robust: bool = True) -> Scored:
    """Simulate the system and filter it; without `is_robust` with a Kalman filter, the oracle of clean data."""
    outliers, change = SCENARIOS[scenario]
    rng = np.random.default_rng(seed)
    f = np.eye(4)
    f[0, 2] = f[1, 3] = DT
    state = np.tile([0.0, 0.0, 1.0, 1.0], (streams, 1))
    mean = state.copy()
    covariance = np.tile(np.eye(4), (streams, 1, 1))
    score, std = np.empty((2, streams, 2, STEPS))
    for t in range(STEPS):
        state = state @ f.T + math.sqrt(Q) * rng.standard_normal((streams, 4))
        scale = np.where(rng.random(streams) < outliers, OUTLIER_SCALE, 1.0) * math.sqrt(
            change if t >= STEPS // 2 else 1
        )
        y = state[:, :2] + math.sqrt(R) * scale[:, None] * rng.standard_normal((streams, 2))
        mean, covariance = mean @ f.T, f @ covariance @ f.T + Q * np.eye(4)
        signal = covariance[:, :2, :2]
        innovation = y - mean[:, :2]
        std[:, :, t] = np.sqrt(np.diagonal(signal, axis1=1, axis2=2) + R)
        score[:, :, t] = np.abs(innovation) / std[:, :, t]
        weight = _weights(innovation, signal) if is_robust else np.ones(streams)
        noise = R / weight[:, None, None] * np.eye(2)
        gain = covariance[:, :, :2] @ np.linalg.inv(signal + noise)
        mean = mean + (gain @ innovation[..., None])[..., 0]
        covariance = covariance - gain @ covariance[:, :2]
        covariance = (covariance + covariance.swapaxes(1, 2)) / 2
    return Scored(score.reshape(-1, STEPS), std.reshape(-1, STEPS))


def _weights(innovation: Array, signal: Array) -> Array:
    """The rule "capped" of docs/MATH.md §2."""
    nominal = np.linalg.inv(signal + R * np.eye(2))
    weight, residual = np.ones(len(signal)), innovation
    for i in range(PASSES):
        if i:
            noise = R / weight[:, None, None] * np.eye(2)
            residual = (noise @ np.linalg.inv(signal + noise) @ innovation[..., None])[..., 0]
        distance = np.einsum("bi,bij,bj->b", residual, nominal, residual)
        weight = np.minimum(1.0, (NU + 2) / (NU + distance))
    return weight


# Methods: scores `[series, steps]`, start multipliers `[levels]` → hits and half widths `[series, steps, levels]`.


def fixed(scores: Array, start: Array) -> tuple[Array, Array]:
    """The bundle's multipliers as they are."""
    widths = np.broadcast_to(start, (*scores.shape, len(start)))
    return scores[..., None] <= widths, widths


def served(scores: Array, start: Array) -> tuple[Array, Array]:
    """The service's adaptive.py."""
    series, steps = scores.shape
    shift = np.zeros((series, 1, 1, len(start)), np.float32)
    multipliers, is_scored = np.tile(start, (series, 1)), np.ones((series, 1), bool)
    widths = np.empty((series, steps, len(start)))
    for t in range(steps):
        widths[:, t] = adaptive_rows.score_step(shift, multipliers, scores[:, t, None], is_scored, RATES)[:, 0]
    return scores[..., None] <= widths, widths


def stretched(gamma: float, power: float) -> Method:
    """adaptive.py's recursion with other constants."""

    def method(scores: Array, start: Array) -> tuple[Array, Array]:
        return _follow(scores, start, gamma, lambda v: start * ((1 + v) / (1 - v)) ** power, (-0.5, 0.98))

    return method


def logarithmic(eta: float) -> Method:
    """Quantile tracking of the log of the multiplier: no bound, for nothing stops it."""
    return lambda scores, start: _follow(scores, start, eta, lambda v: start * np.exp(v), (-30.0, 30.0))


def tracking(eta: float) -> Method:
    """Quantile tracking of the multiplier itself."""
    return lambda scores, start: _follow(scores, start, eta, lambda v: start + v, (-30.0, 30.0))


def _follow(
    scores: Array, start: Array, step: float, width: Callable[[Array], Array], ends: tuple[float, float]
) -> tuple[Array, Array]:
    v = np.zeros((len(scores), len(start)))
    widths = np.empty((*scores.shape, len(start)))
    for t in range(scores.shape[1]):
        widths[:, t] = np.maximum.accumulate(width(np.clip(v, *ends)), axis=-1)
        v += step * ((scores[:, t, None] > widths[:, t]) - RATES)
    return scores[..., None] <= widths, widths


def windowed(gamma: float) -> Method:
    """Adaptive conformal inference; infinite widths are left as they are."""

    def method(scores: Array, start: Array) -> tuple[Array, Array]:
        series, steps = scores.shape
        alpha = np.tile(RATES, (series, 1))
        widths = np.empty((series, steps, len(start)))
        for t in range(steps):
            past = np.sort(scores[:, max(0, t - WINDOW) : t], axis=1)
            rank = np.ceil((1 - alpha) * (past.shape[1] + 1)).astype(int) - 1
            if t < 20:
                widths[:, t] = start
            else:
                found = np.take_along_axis(past, np.clip(rank, 0, past.shape[1] - 1), axis=1)
                widths[:, t] = np.where(rank >= past.shape[1], np.inf, np.where(rank < 0, 0.0, found))
            alpha += gamma * (RATES - (scores[:, t, None] > widths[:, t]))
        return scores[..., None] <= widths, widths

    return method


def describe(found: Scored, hits: Array, widths: Array, oracle: float) -> dict[str, Any]:
    """Coverage and width per level. `oracle` is the mean std of the forecasts of a filter that knows all."""
    half = found.score.shape[1] // 2
    table = {}
    for k, level in enumerate(LEVELS):
        hit, width = hits[..., k], np.where(np.isfinite(widths[..., k]), widths[..., k], np.nan)
        local = np.lib.stride_tricks.sliding_window_view(np.cumsum(hit, axis=1), 201, axis=1)
        window = (local[..., -1] - local[..., 0]) / 200
        table[f"{level:g}"] = {
            "coverage": float(hit.mean()),
            "after_the_middle": float(hit[:, half : half + AFTER].mean()),
            "second_half": float(hit[:, half:].mean()),
            "worst_series": float(np.abs(hit.mean(axis=1) - level).max()),
            "worst_window_of_200": float(np.abs(window - level).max()),
            "width_over_oracle": float(np.nanmean(width * found.std) / (NORMAL[k] * oracle)),
            "infinite": float(1 - np.isfinite(widths[..., k]).mean()),
        }
    return table


def start_multipliers() -> Array:
    """Split-conformal on clean streams of their own."""
    return np.array(conformal(track("clean", CALIBRATION_SEED, 20).score.ravel(), LEVELS))


def run_tracking(methods: dict[str, Method], seed: int) -> dict[str, Any]:
    """Every method in every scenario."""
    start = start_multipliers()
    oracle = float(track("clean", seed, is_robust=False).std.mean())
    rows: dict[str, Any] = {}
    for scenario in tqdm(SCENARIOS, unit="scenario", disable=None):
        found = track(scenario, seed)
        rows[scenario] = {
            name: describe(found, *method(found.score, start), oracle) for name, method in methods.items()
        }
    return rows


# The served filter.

HORIZONS = (0.1, 0.5, 2.0)
SERVED_STREAMS, SERVED_STEPS = 64, 2_000


def run_served(seed: int) -> dict[str, Any]:
    """Forecasts of the bundle `linear` as served, by scenario and lead."""
    runtime = FilterRuntime(open_bundle(BUNDLE_ROOT / "linear"))
    return {
        scenario: _run_served(runtime, scenario, seed) for scenario in tqdm(SCENARIOS, unit="scenario", disable=None)
    }


def _run_served(runtime: FilterRuntime, scenario: str, seed: int) -> dict[str, Any]:
    outliers, change = SCENARIOS[scenario]
    batch = simulate_oscillator(SERVED_STREAMS, SERVED_STEPS, settings=((0.3, 0.5),), seed=seed)
    rng = np.random.default_rng(seed + 1)
    shape = batch.observations.shape
    scale = np.where(rng.random((*shape[:2], 1)) < outliers, OUTLIER_SCALE, 1.0)
    scale[:, SERVED_STEPS // 2 :] *= math.sqrt(change)
    assert batch.truth is not None
    y = batch.truth + math.sqrt(0.5) * scale * rng.standard_normal(shape)
    pool = StatePool(runtime.state_fields, SERVED_STREAMS)
    seats = [pool.acquire() for _ in range(SERVED_STREAMS)]
    for seat in seats:
        runtime.put(pool, seat, runtime.start())
    readout = runtime.readout(LEVELS, HORIZONS, 0)
    mean, std = np.empty((2, len(HORIZONS), SERVED_STREAMS, SERVED_STEPS, 2))
    half = np.empty((len(HORIZONS), SERVED_STREAMS, SERVED_STEPS, 2, len(LEVELS)))
    confidence = np.empty((SERVED_STREAMS, SERVED_STEPS))
    for t in range(SERVED_STEPS):
        rows = [Row(seat, float(batch.times[i, t]), y[i, t].tolist(), 1.0, readout, 0) for i, seat in enumerate(seats)]
        for i, stepped in enumerate(runtime.advance(pool, rows)):
            assert stepped is not None
            confidence[i, t] = stepped.step.confidence
            for h, point in enumerate(stepped.step.forecast):
                mean[h, i, t], std[h, i, t] = point.mean, point.std
                for k, band in enumerate(point.interval.values()):
                    low, high = np.array(band).T
                    half[h, i, t, :, k] = (high - low) / 2
    calibration = runtime._calibration["recurrent"]
    static = calibration.forecast(LEVELS, HORIZONS) / calibration.forecast_scale(HORIZONS)[:, None]
    document: dict[str, Any] = {}
    for h, horizon in enumerate(HORIZONS):
        ahead = round(horizon / 0.1)
        error = np.abs(y[:, ahead:] - mean[h, :, :-ahead])[..., None]
        adapted, plain = half[h, :, :-ahead], std[h, :, :-ahead, :, None] * static[h]
        middle = SERVED_STEPS // 2 - ahead
        document[f"{ahead} steps"] = {
            f"{level:g}": {
                "coverage": float((error <= adapted)[..., k].mean()),
                "coverage_without": float((error <= plain)[..., k].mean()),
                "after_the_middle": float((error <= adapted)[:, middle : middle + AFTER, :, k].mean()),
                "after_the_middle_without": float((error <= plain)[:, middle : middle + AFTER, :, k].mean()),
                "second_half": float((error <= adapted)[:, middle:, :, k].mean()),
                "second_half_without": float((error <= plain)[:, middle:, :, k].mean()),
                "worst_series": float(np.abs((error <= adapted)[..., k].mean(axis=1) - level).max()),
                "width_over_static": float(adapted[..., k].mean() / plain[..., k].mean()),
            }
            for k, level in enumerate(LEVELS)
        }
        if ahead == 1:
            inside = (error <= adapted)[..., LEVELS.index(0.9)].mean(axis=-1)
            document["confidence"] = _reliability(confidence[:, :-1], inside)
    return document


def _reliability(confidence: Array, inside: Array) -> dict[str, float]:
    """Mean confidence, what came true, and the mean gap between the two over tenths of the confidences."""
    order = np.argsort(confidence, axis=None, kind="stable")
    groups = zip(np.array_split(confidence.ravel()[order], 10), np.array_split(inside.ravel()[order], 10), strict=True)
    gaps = [abs(float(said.mean() - came.mean())) for said, came in groups]
    return {
        "mean": float(confidence.mean()),
        "inside": float(inside.mean()),
        "expected_calibration_error": float(np.mean(gaps)),
    }


METHODS: dict[str, Method] = {
    "served": served,
    "fixed": fixed,
    "ACI, window 500, gamma 0.02": windowed(0.02),
    "quantile tracking, eta 0.2": tracking(0.2),
}


def tune() -> None:
    """Print what decided: the grid of constants on the tuning seed."""
    grid: dict[str, Method] = {
        f"gamma {gamma:g} power {power:g}": stretched(gamma, power)
        for power in (2, 3, 4)
        for gamma in (0.01, 0.015, 0.02, 0.025, 0.03, 0.04)
    }
    grid |= {f"log tracking eta {eta:g}": logarithmic(eta) for eta in (0.06, 0.1, 0.15)}
    grid |= {name: method for name, method in METHODS.items() if name != "served"}
    rows = run_tracking(grid, TUNE_SEED)
    for name in grid:
        cells = []
        for scenario in SCENARIOS:
            table = rows[scenario][name]
            gap = max(abs(cell["coverage"] - float(level)) for level, cell in table.items())
            after = max(abs(cell["after_the_middle"] - float(level)) for level, cell in table.items())
            width = max(cell["width_over_oracle"] for cell in table.values())
            worst = max(cell["worst_series"] for cell in table.values())
            window = max(cell["worst_window_of_200"] for cell in table.values())
            cells.append(f"{100 * gap:5.2f} {100 * after:5.2f} {100 * worst:5.2f} {100 * window:5.1f} {width:5.3f}")
        print(f"{name:30s} | {' | '.join(cells)}", flush=True)


def main() -> None:
    """Run, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="print the grid that the constants were chosen from")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.tune:
        tune()
        return
    document = {
        **origin("python -m rfa.benchmarks.filters.adaptive"),
        "gamma": GAMMA,
        "streams": STREAMS,
        "steps": STEPS,
        "after_the_middle_steps": AFTER,
        "bound_of_a_series": (1 + GAMMA) / (GAMMA * STEPS),
        "tracking": run_tracking(METHODS, REPORT_SEED),
        "served": run_served(REPORT_SEED),
    }
    write_result(given.out, document)


if __name__ == "__main__":
    main()
