"""Forecasts by GIFT-Eval's protocol (Aksu et al. 2024): `rfa bench series --data DATA`.

DATA holds m4/{Hourly,Weekly}-{train,test}.csv.gz and ett/ETTh1.csv. M4 is forecast on the last window of each series,
ETTh1 column by column in windows of 48, 480 and 720 hours, at most 20.

    MASE    mean over windows of mean |y - q_.5| / mean |y_t - y_{t-s}| before the window, s the season of the task
    WQL     mean over nine quantiles of 2 Σ ρ_q(y - q) / Σ |y|, sums over all windows
    inside  share of the values inside the intervals of COVERED

Models are called by `rfa.forecast`; "series, as trained" is the network without adaptation. AutoETS, AutoTheta and
AutoARIMA (statsforecast) get the last LONGEST rows; AutoARIMA runs on every n-th window, ARIMA_MOST in all, and is
compared with the naive forecast of the same windows. Finished rows of the file are kept.
"""

from __future__ import annotations

import functools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
from tqdm import tqdm

import rfa
from rfa.benchmarks.series.files import read_ett, read_m4
from rfa.measured import origin, write_result

Array = np.ndarray
QUANTILES: Final = np.arange(1, 10) / 10
COVERED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Intervals bounded by quantiles other than the median.
LEVELS: Final = (0.2, 0.4, 0.6, 0.8)
TEST_SHARE, MOST_WINDOWS = 0.1, 20
MONDAY: Final = np.datetime64("2024-01-01T00:00:00")
# The rows seen by methods that are fitted to each window, as in GIFT-Eval.
LONGEST: Final = 1_000
ARIMA_MOST: Final = 16
# Published results of the same tasks in the archive of GIFT-Eval: MASE and WQL of m4_hourly, m4_weekly and
# ett1/H/short.
PUBLISHED: Final = {
    "TiRex, 35 M": [0.72, 0.020, 1.99, 0.037, 0.82, 0.176],
    "FlowState r1.1, 2.6 to 9 M": [0.73, 0.024, 2.00, 0.036, 0.82, 0.182],
    "Chronos-2, synthetic alone, 120 M": [0.85, 0.026, 2.08, 0.037, 0.82, 0.179],
    "TempoPFN, synthetic alone, 38 M": [0.81, 0.032, 2.49, 0.043, 0.84, 0.183],
    "Toto-2.0, 4 M": [1.06, 0.027, 2.15, 0.040, 0.85, 0.187],
    "Chronos-Bolt small, 48 M": [0.87, 0.020, 2.11, 0.038, 0.83, 0.189],
    "AutoARIMA": [1.03, 0.034, 2.36, 0.050, 0.99, 0.223],
    "AutoETS": [1.61, 0.070, 2.55, 0.052, 1.94, 0.440],
    "AutoTheta": [2.46, 0.041, 2.66, 0.053, 1.28, 0.668],
}
NAIVE: Final = "seasonal naive"
ARIMA: Final = "AutoARIMA, run here"
COMMAND: Final = "rfa bench series --data DATA"
ETT_HORIZONS: Final = {"short": 48, "medium": 480, "long": 720}


class Window(NamedTuple):
    """Known times `[N]` and values `[N]` of a series, and the values to forecast, `[h]`."""

    series: str
    times: Array
    history: Array
    came: Array


class Task(NamedTuple):
    """Windows of one task, and the season in rows that scales its errors."""

    name: str
    season: int
    windows: list[Window]


class Quantiles(NamedTuple):
    """quantiles `[h, 9]` and the intervals `[h, 5, 2]` of COVERED."""

    quantiles: Array
    intervals: Array


class Score(NamedTuple):
    mase: float
    wql: float
    inside: Array


def tasks(data: Path) -> Iterator[Task]:
    """Return the tasks whose files exist."""
    for often, season, step in (("Hourly", 24, 3_600), ("Weekly", 1, 604_800)):
        parts = [data / "m4" / f"{often}-{part}.csv.gz" for part in ("train", "test")]
        if all(part.is_file() for part in parts):
            history, came = map(read_m4, parts)
            windows = [
                Window(name, MONDAY + np.timedelta64(step, "s") * np.arange(len(before)), before, after)
                for (name, before), after in zip(history.items(), came.values(), strict=True)
            ]
            yield Task(f"m4_{often.lower()}", season, windows)
    times, columns = read_ett(data)
    if columns:
        for term, horizon in ETT_HORIZONS.items():
            yield Task(f"ett1/H/{term}", 24, ett_windows(times, columns, horizon))


def ett_windows(times: Array, columns: Mapping[str, Array], horizon: int) -> list[Window]:
    """Return the last windows of each column, all `[N]`."""
    count = min(max(1, math.ceil(TEST_SHARE * len(times) / horizon)), MOST_WINDOWS)
    begins = [len(times) - horizon * (count - k) for k in range(count)]
    return [
        Window(name, times[:begin], column[:begin], column[begin : begin + horizon])
        for begin in begins
        for name, column in columns.items()
    ]


def naive(window: Window, season: int) -> Quantiles:
    """Repeat the last season, with intervals of width zero."""
    horizon = len(window.came)
    points = np.tile(window.history[-season:], horizon // season + 1)[:horizon]
    return Quantiles(np.repeat(points[:, None], 9, axis=1), np.repeat(points[:, None, None], 10, 1).reshape(-1, 5, 2))


def naive_normal(window: Window, season: int) -> Quantiles:
    """Repeat the last season, with the normal intervals of GIFT-Eval.

    The variance is that of a seasonal random walk: it grows by the variance of the seasonal errors with each season.
    """
    horizon = len(window.came)
    points = np.tile(window.history[-season:], horizon // season + 1)[:horizon]
    error = np.sqrt(np.mean((window.history[season:] - window.history[:-season]) ** 2))
    spread = error * np.sqrt(np.arange(horizon) // season + 1)
    normal = NormalDist()
    z = np.array([normal.inv_cdf(q) for q in QUANTILES])
    half = np.array([normal.inv_cdf((1 + level) / 2) for level in COVERED])
    ends = spread[:, None] * half
    return Quantiles(
        points[:, None] + spread[:, None] * z,
        np.stack([points[:, None] - ends, points[:, None] + ends], axis=2),
    )


def served(window: Window, season: int, *, model: str) -> Quantiles:
    """Return the forecast of a served model, which is not told the season."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        levels = sorted({*LEVELS, *COVERED})
        reply = rfa.forecast(window.history, len(window.came), time=window.times, levels=levels, model=model)

    def ends(level: float) -> list[Array]:
        return [np.asarray(reply[f"y_{end}{100 * level:.12g}"], float) for end in ("low", "high")]

    return quantiles_of(np.asarray(reply["y_mean"], float), ends)


def quantiles_of(middle: Array, ends: Callable[[float], list[Array]]) -> Quantiles:
    """Return the quantiles of the median `[h]` and of the ends of intervals, `[h]` each, by level."""
    pairs = [ends(level) for level in LEVELS]
    lower, upper = [low for low, _ in pairs[::-1]], [high for _, high in pairs]
    intervals = np.stack([np.stack(ends(level), axis=1) for level in COVERED], axis=1)
    return Quantiles(np.stack([*lower, middle, *upper], axis=1), intervals)


def trained(window: Window, season: int) -> Quantiles:
    """Return the forecast of the network in its recurrent mode, without adaptation."""
    from rfa.benchmarks.series.network_forecast import forecast

    return Quantiles(*forecast(window.history, len(window.came)))


def fitted(window: Window, season: int, *, name: str) -> Quantiles:
    """Return the forecast of a statsforecast method."""
    import statsforecast.models as methods

    levels = [round(100 * level) for level in (*LEVELS, *COVERED)]
    options = {"approximation": True} if name == "AutoARIMA" and season > 1 else {}
    made = getattr(methods, name)(season_length=season, **options)
    with warnings.catch_warnings():  # hundreds of warnings of searches without convergence
        warnings.simplefilter("ignore", UserWarning)
        reply = made.forecast(y=window.history[-LONGEST:], h=len(window.came), level=sorted(set(levels)))

    def ends(level: float) -> list[Array]:
        return [reply[f"{end}-{round(100 * level)}"] for end in ("lo", "hi")]

    return quantiles_of(reply["mean"], ends)


MODELS: Final[dict[str, Callable[[Window, int], Quantiles]]] = {
    NAIVE: naive_normal,
    "its points alone": naive,
    "series": functools.partial(served, model="series"),
    "series, as trained": trained,
    "auto": functools.partial(served, model="auto"),
    "AutoETS, run here": functools.partial(fitted, name="AutoETS"),
    "AutoTheta, run here": functools.partial(fitted, name="AutoTheta"),
    ARIMA: functools.partial(fitted, name="AutoARIMA"),
}


def asked_of(task: Task, name: str) -> Task:
    """Return the task with the windows for a model: all of them, unless its search would take hours."""
    every = math.ceil(len(task.windows) / ARIMA_MOST) if name == ARIMA and task.season > 1 else 1
    return task._replace(windows=task.windows[::every])


def score(task: Task, forecasts: list[Quantiles]) -> Score:
    """Score all windows of a task."""
    scaled, loss, size, inside = [], np.zeros(9), 0.0, []
    for window, forecast in zip(task.windows, forecasts, strict=True):
        y = window.came[:, None]
        usual = np.abs(window.history[task.season :] - window.history[: -task.season]).mean()
        scaled.append(np.abs(window.came - forecast.quantiles[:, 4]).mean() / usual if usual > 0 else np.nan)
        off = y - forecast.quantiles
        loss += 2 * np.maximum(QUANTILES * off, (QUANTILES - 1) * off).sum(axis=0)
        size += float(np.abs(y).sum())
        inside.append((forecast.intervals[..., 0] <= y) & (y <= forecast.intervals[..., 1]))
    return Score(float(np.nanmean(scaled)), float(loss.mean() / size), np.concatenate(inside).mean(axis=0))


def write_gift(data: Path, out: Path, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure the results that the file lacks, and write it after each task and model. `only`: names in MODELS."""
    if unknown := sorted(set(only) - set(MODELS)):
        raise ValueError(f"no model {unknown[0]!r}; known are {', '.join(MODELS)}")
    document: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {"tasks": {}}
    found = list(tasks(data))
    if not found:
        raise ValueError(f"{data} has none of the tasks: m4/Hourly-train.csv.gz … and ett/ETTh1.csv")
    here = origin(COMMAND)  # once, before a file of the checkout changes
    for task in found:
        kept = document["tasks"].setdefault(task.name, {})
        for name in only or MODELS:
            if name in kept:
                continue
            evaluated = asked_of(task, name)
            bar = tqdm(evaluated.windows, desc=f"{task.name}, {name}", disable=None, leave=False)
            started = time.process_time()
            result = score(evaluated, [MODELS[name](window, task.season) for window in bar])
            seconds = (time.process_time() - started) / len(evaluated.windows)
            row = {
                "mase": round(result.mase, 4), "wql": round(result.wql, 5),
                "inside": [round(float(share), 4) for share in result.inside],
                "seconds": round(seconds, 4), "windows": len(evaluated.windows),
            }  # fmt: skip
            if len(evaluated.windows) < len(task.windows):
                same = score(evaluated, [naive_normal(window, task.season) for window in evaluated.windows])
                row["naive"] = {"mase": round(same.mase, 4), "wql": round(same.wql, 5)}
            document = {"commit": here["commit"], "hardware": here["hardware"], **document}
            if here["commit"] != document["commit"]:
                row |= {"commit": here["commit"], "hardware": here["hardware"]}
            kept[name] = row
            document |= {"command": COMMAND, "published": PUBLISHED}
            write_result(out, document)
    return document
