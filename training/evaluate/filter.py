"""Score the one-step forecasts of a filter bundle on test data by error, likelihood and coverage.

The filter runs as in the server. Its forecast error is compared with the error of repeating the last value. For
simulated data, the error of the state is also computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rfa.model.batch import Batch
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.training.recorded import load_recorded
from rfa.training.series import split
from rfa.training.simulate import Disturbance, simulate_oscillator

SIMULATED = "simulate:oscillator"
SIMULATED_STREAMS, SIMULATED_LENGTH, SIMULATED_SEED = 60, 100, 80_000
SIMULATED_OUTLIERS = 0.05


def load_test_data(source: str) -> Batch:
    """Return the last part of a CSV file as one stream, or simulated streams with 5 % outliers.

    Raises:
        ValueError: If the simulation is unknown.
    """
    if source == SIMULATED:
        disturbance = Disturbance(outliers=SIMULATED_OUTLIERS)
        return simulate_oscillator(SIMULATED_STREAMS, SIMULATED_LENGTH, disturbance=disturbance, seed=SIMULATED_SEED)
    if source.startswith("simulate:"):
        raise ValueError(f"unknown simulation {source!r}; the only one is {SIMULATED!r}")
    test = split(load_recorded(source))[2]
    return Batch(test.times[None], test.values[None])


@dataclass
class _Sums:
    levels: tuple[float, ...]
    forecast2: list[float] = field(default_factory=list)
    naive2: list[float] = field(default_factory=list)
    state2: list[float] = field(default_factory=list)
    inside: dict[str, list[bool]] = field(default_factory=dict)
    log_likelihood: float = 0.0
    components: int = 0

    def root(self, squares: list[float]) -> float | None:
        return math.sqrt(sum(squares) / len(squares)) if squares else None


def _score_stream(
    runtime: FilterRuntime, times: np.ndarray, values: np.ndarray, truth: np.ndarray | None, sums: _Sums
) -> None:
    state, forecast, last = runtime.start(), None, np.full(values.shape[1], np.nan)
    for i, row in enumerate(values):
        seen = np.isfinite(row)
        if forecast is not None:
            for k in np.flatnonzero(seen):
                sums.forecast2.append((forecast.mean[k] - row[k]) ** 2)
                if np.isfinite(last[k]):
                    sums.naive2.append((last[k] - row[k]) ** 2)
                for level, bands in forecast.interval.items():
                    low, high = bands[k]
                    sums.inside.setdefault(level, []).append(bool(low <= row[k] <= high))
        ahead = [float(times[i + 1] - times[i])] if i + 1 < len(times) and times[i + 1] > times[i] else []
        observation = [float(value) if is_observed else None for value, is_observed in zip(row, seen, strict=True)]
        result = runtime.filter([float(times[i])], [observation], levels=sums.levels, horizon=ahead, state=state)
        step, state = result.steps[0], result.state
        forecast = step.forecast[0] if step.forecast else None
        sums.log_likelihood += result.log_likelihood
        sums.components += int(seen.sum())
        if truth is not None:
            sums.state2 += list((np.array(step.mean) - truth[i]) ** 2)
        last = np.where(seen, row, last)


def score_filter(path: Path, source: str) -> dict[str, Any]:
    """Score the forecasts of a filter bundle on the last part of a CSV file or on simulated streams, and return the
    scores.

    Raises:
        ValueError: If the number of columns in the data differs from that of the filter, or the data have no values.
    """
    runtime = FilterRuntime(open_bundle(path))
    batch = load_test_data(source)
    if batch.observations.shape[-1] != runtime.observation_size:
        raise ValueError(
            f"the data have {batch.observations.shape[-1]} columns, but bundle {runtime.name!r} expects "
            f"{runtime.observation_size}"
        )
    sums = _Sums(runtime.levels)
    for i in tqdm(range(len(batch.times)), unit="stream", disable=None):
        truth = None if batch.truth is None else batch.truth[i]
        _score_stream(runtime, batch.times[i], batch.observations[i], truth, sums)
    if not sums.components:
        raise ValueError("the data to score have no values")
    return {
        "bundle": runtime.name,
        "data": Path(source).name,
        "observed": sums.components,
        "forecast_rmse": sums.root(sums.forecast2),
        "naive_rmse": sums.root(sums.naive2),
        "state_rmse": sums.root(sums.state2),
        "log_likelihood_per_value": sums.log_likelihood / sums.components,
        "coverage": {level: sum(hits) / len(hits) for level, hits in sums.inside.items()},
    }
