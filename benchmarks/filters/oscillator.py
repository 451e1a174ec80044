"""`rfa bench filter`: the filters on the oscillator of Adaptive Filter Attention §4.3.

RMSE of the state at each noise setting, clean and with 5 % of the noises ×10, and coverage of intervals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.filters.transformer import EPSILON, WINDOW, transformer_filter
from rfa.export.filter_calibration import LEVELS, Evaluation, calibrate, evaluate, modes_of
from rfa.measured import origin, write_result
from rfa.model.linear_filter import LinearFilter
from rfa.model.loading import load_model
from rfa.model.state_filter import StateFilter
from rfa.runtime.filters.linear_config import LinearFilterConfig
from rfa.training.simulate import (
    INITIAL_VARIANCE,
    NOISE_SETTINGS,
    OSCILLATOR_DRIFT,
    OUTLIER_SCALE,
    STEP,
    STEPS_PER_MEASUREMENT,
    Batch,
    Disturbance,
    discretise,
    simulate_oscillator,
)

TEST_SEED = 90_000
OUTLIERS = 0.05
# Streams that calibrate the linear filter of each setting, clean and with outliers.
FIT_STREAMS = 300
CONTAMINATIONS = {"clean": 0.0, "5 % outliers": OUTLIERS}


def linear_filter(sigma2: float, eta2: float) -> LinearFilter:
    """Return the bundle `linear` with the matrices of a noise setting."""
    eye = ((1.0, 0.0), (0.0, 1.0))

    def scaled(value: float) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(value * x for x in row) for row in eye)

    config = LinearFilterConfig(
        drift=tuple(tuple(float(x) for x in row) for row in OSCILLATOR_DRIFT),
        process_noise=scaled(sigma2),
        measurement_noise=scaled(eta2),
        initial_covariance=scaled(INITIAL_VARIANCE),
        nu=4.0,
        contamination=0.02,
    )
    return LinearFilter(config).eval()


def kalman(observations: np.ndarray, f: np.ndarray, q: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Run a textbook Kalman filter in float64 and return means `[B, N, 2]`.

    Args: transition and process noise of a step, and the variance of every measurement `[B, N]`.
    """
    size, length = observations.shape[:2]
    mean, covariance = np.zeros((size, 2)), np.broadcast_to(np.eye(2) * INITIAL_VARIANCE, (size, 2, 2)).copy()
    means = np.empty((size, length, 2))
    for i in range(length):
        if i:
            mean, covariance = mean @ f.T, f @ covariance @ f.T + q
        gain = covariance @ np.linalg.inv(covariance + variances[:, i, None, None] * np.eye(2))
        mean = mean + (gain @ (observations[:, i] - mean)[..., None])[..., 0]
        covariance = covariance - gain @ covariance
        means[:, i] = mean
    return means


def rmse(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((estimate - truth) ** 2)))


def coverage(found: Evaluation, batch: Batch, calibration: dict[str, Any]) -> dict[str, Any]:
    """Return the coverage of state intervals, and of forecast intervals per horizon, by level."""
    error = np.abs(batch.truth - found.mean) / found.deviation
    state = {
        f"{level:g}": float(np.mean(error <= multiplier))
        for level, multiplier in zip(LEVELS, calibration["state"]["multipliers"], strict=True)
    }
    forecast = {}
    for k, lead in enumerate(found.leads):
        ahead = np.abs(batch.observations - found.forecast_mean[k]) / found.forecast_deviation[k]
        finite = ahead[np.isfinite(ahead)]
        multipliers = calibration["forecast"]["multipliers"][k]
        forecast[str(lead)] = {
            f"{level:g}": float(np.mean(finite <= m)) for level, m in zip(LEVELS, multipliers, strict=True)
        }
    return {"state": state, "forecast": forecast}


def likelier_variances(error2: np.ndarray, eta2: float, share: float) -> np.ndarray:
    """Return the likelier of the two noise sizes of each measurement `[B, N]`, given its true squared error."""
    ratio = np.log(max(share, 1e-300) / (1 - share)) - 2 * np.log(OUTLIER_SCALE)
    is_outlier = ratio + error2 / eta2 / 2 * (1 - OUTLIER_SCALE**-2) > 0
    return np.where(is_outlier, eta2 * OUTLIER_SCALE**2, eta2)


def run_setting(
    index: int, deep: StateFilter, documents: dict[str, dict[str, Any]], streams: int, length: int
) -> list[dict[str, Any]]:
    """Return rows of one noise setting, clean and with outliers."""
    sigma2, eta2 = NOISE_SETTINGS[index]
    linear = linear_filter(sigma2, eta2)
    f, q = discretise(OSCILLATOR_DRIFT, STEP * STEPS_PER_MEASUREMENT)
    fit = [
        simulate_oscillator(
            FIT_STREAMS, 96, settings=((sigma2, eta2),), disturbance=Disturbance(outliers=o), seed=70_000 + index
        )
        for o in (0.0, OUTLIERS)
    ]
    merged = Batch(
        *(np.concatenate([getattr(part, key) for part in fit]) for key in ("times", "observations", "truth"))
    )
    calibrations = {"linear": calibrate(linear, merged), "oscillator": documents["oscillator"]}
    rows = []
    for name, share in CONTAMINATIONS.items():
        seed = TEST_SEED + 10 * index + (1 if share else 0)
        batch = simulate_oscillator(
            streams, length, settings=((sigma2, eta2),), disturbance=Disturbance(outliers=share), seed=seed
        )
        truth = np.asarray(batch.truth)
        error2 = np.sum((batch.observations - truth) ** 2, -1)
        row: dict[str, Any] = {"sigma2": sigma2, "eta2": eta2, "data": name, "rmse": {}, "coverage": {}}
        nominal = np.full(batch.times.shape, eta2)
        row["rmse"]["raw"] = rmse(batch.observations, truth)
        row["rmse"]["kalman"] = rmse(kalman(batch.observations, f, sigma2 * q, nominal), truth)
        variances = likelier_variances(error2, eta2, share)
        row["rmse"]["oracle"] = rmse(kalman(batch.observations, f, sigma2 * q, variances), truth)
        eye = np.eye(2)
        rival = transformer_filter(batch.observations, f, sigma2 * q, eta2 * eye, INITIAL_VARIANCE * eye)
        row["rmse"]["transformer"] = rmse(rival.means, truth)
        row["transformer"] = {
            "window": WINDOW,
            "epsilon": EPSILON,
            "beta": rival.beta,
            "gain": rival.gain.tolist(),
            "largest_distance": float(np.linalg.norm(rival.means - rival.linear, axis=-1).max()),
        }
        for label, model in (("linear", linear), ("oscillator", deep)):
            for mode in modes_of(model):
                found = evaluate(model, batch, mode)
                key = f"{label} {mode}"
                row["rmse"][key] = rmse(found.mean, truth)
                row["coverage"][key] = coverage(found, batch, calibrations[label][mode])
        rows.append(row)
    return rows


def write_filter(bundle: Path, out: Path, *, streams: int = 400, length: int = 100) -> dict[str, Any]:
    """Measure the deep bundle, and the linear filter of every setting, and write the rows to a JSON file."""
    deep: StateFilter = load_model(bundle)
    documents = {"oscillator": json.loads((bundle / "calibration.json").read_text())}
    settings = tqdm(range(len(NOISE_SETTINGS)), unit="setting", disable=None)
    rows = [row for index in settings for row in run_setting(index, deep, documents, streams, length)]
    document = {**origin("rfa bench filter"), "streams": streams, "length": length, "rows": rows}
    write_result(out, document)
    return document
