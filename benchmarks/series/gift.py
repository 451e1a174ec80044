"""Forecasts by GIFT-Eval's protocol (Aksu et al. 2024): `rfa bench series --data DATA`.

`python -m rfa.benchmarks.series.gift_sources` brings the files to DATA, and `gift_data.py` has the rules of the tasks.

    MASE    mean over values of |y - q_.5| / mean |y_t - y_{t-s}| before the window, s the season of the task
    WQL     mean over nine quantiles of 2 Σ ρ_q(y - q) / Σ |y|, sums over all windows
    inside  fraction of the values inside the intervals of COVERED

"series, as trained" is the network without adaptation. AutoETS, AutoTheta and AutoARIMA (statsforecast) get the last
LONGEST rows, on tasks with a season of at most 24 rows and at most FITTED_MOST windows; AutoARIMA runs on every n-th
window, ARIMA_MOST in all, and is compared with the naive forecast of the same windows. Finished rows of the file are
kept unless `--again` is given.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.series.gift_data import Task, is_seen, tasks
from rfa.benchmarks.series.gift_models import (
    ARIMA,
    COVERED,
    FITTED,
    MODELS,
    QUANTILES,
    Quantiles,
    each,
    naive_normal,
)
from rfa.benchmarks.series.gift_sources import published
from rfa.measured import origin, write_result

Array = np.ndarray
ARIMA_MOST: Final = 16
FITTED_MOST, FITTED_SEASON = 500, 24
COMMAND: Final = "rfa bench series --data DATA"


class Score(NamedTuple):
    mase: float
    wql: float
    inside: Array


def windows_for(task: Task, name: str) -> Task:
    """Return the task with the windows for a model: all of them, some, or none if its search would take hours."""
    if name not in FITTED:
        return task
    if len(task.windows) > FITTED_MOST or task.season > FITTED_SEASON:
        return task._replace(windows=[])
    every = math.ceil(len(task.windows) / ARIMA_MOST) if name == ARIMA and task.season > 1 else 1
    return task._replace(windows=task.windows[::every])


def seasonal_error(history: Array, season: int) -> float:
    """Return the mean absolute difference of known values a season apart, or a row apart in shorter histories."""
    apart = season if season <= len(history) else 1
    found = np.abs(history[apart:] - history[:-apart])
    return float(np.nanmean(found)) if not np.isnan(found).all() else math.nan


def score(task: Task, forecasts: list[Quantiles]) -> Score:
    """Score all windows of a task. Missing values do not count, nor does the MASE of a constant history."""
    scaled, loss, size = [], np.zeros(9), 0.0
    inside = np.zeros(len(COVERED))
    count = 0
    for window, forecast in zip(task.windows, forecasts, strict=True):
        is_known = ~np.isnan(window.came)
        y, quantiles, ends = window.came[is_known, None], forecast.quantiles[is_known], forecast.intervals[is_known]
        if (usual := seasonal_error(window.history, task.season)) > 0:
            scaled.append(np.abs(y[:, 0] - quantiles[:, 4]) / usual)
        off = y - quantiles
        loss += 2 * np.maximum(QUANTILES * off, (QUANTILES - 1) * off).sum(axis=0)
        size += float(np.abs(y).sum())
        inside += ((ends[..., 0] <= y) & (y <= ends[..., 1])).sum(axis=0)
        count += len(y)
    return Score(float(np.concatenate(scaled).mean()), float(loss.mean() / size), inside / count)


def measure(task: Task, name: str) -> dict[str, Any]:
    """Return the row of a model on a task."""
    bar = tqdm(MODELS[name](task), total=len(task.windows), desc=f"{task.name}, {name}", disable=None, leave=False)
    started = time.process_time()
    result = score(task, list(bar))
    seconds = (time.process_time() - started) / len(task.windows)
    return {
        "mase": round(result.mase, 4), "wql": round(result.wql, 5),
        "inside": [round(float(share), 4) for share in result.inside],
        "seconds": round(seconds, 4), "windows": len(task.windows),
    }  # fmt: skip


def write_gift(
    data: Path, out: Path, only: tuple[str, ...] = (), chosen: tuple[str, ...] = (), *, again: bool = False
) -> dict[str, Any]:
    """Measure the results that the file lacks, and write it after each task and model.

    Args:
        only: Names in MODELS. The default is all.
        chosen: Beginnings of the names of tasks. The default is all.
        again: Whether to measure rows again that the file already contains.

    Raises:
        ValueError: If a model is unknown, or no task is found.
    """
    if unknown := sorted(set(only) - set(MODELS)):
        raise ValueError(f"no model {unknown[0]!r}; known are {', '.join(MODELS)}")
    document: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {"tasks": {}}
    here = origin(COMMAND)  # once, before a file of the checkout changes
    is_found = False
    for task in tasks(data):
        if chosen and not task.name.startswith(chosen):
            continue
        is_found = True
        kept = document["tasks"].setdefault(task.name, {})
        for name in only or MODELS:
            evaluated = windows_for(task, name)
            if not evaluated.windows or (name in kept and not again):
                continue
            row = measure(evaluated, name)
            if len(evaluated.windows) < len(task.windows):
                same = score(evaluated, list(each(naive_normal)(evaluated)))
                row["naive"] = {"mase": round(same.mase, 4), "wql": round(same.wql, 5)}
            document = {"commit": here["commit"], "hardware": here["hardware"], **document}
            if here["commit"] != document["commit"]:
                row |= {"commit": here["commit"], "hardware": here["hardware"]}
            kept[name] = row
            names = list(document["tasks"])
            document |= {"command": COMMAND, "seen": [one for one in names if is_seen(one)]}
            document |= {"published": published(data, names) or document.get("published", {})}
            write_result(out, document)
    if not is_found:
        raise ValueError(f"{data} has none of the tasks; bring the files with rfa.benchmarks.series.gift_sources")
    return document
