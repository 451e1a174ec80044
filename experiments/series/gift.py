"""Forecasts by GIFT-Eval's protocol, on those of its tasks whose data are there.

    python -m rfa.experiments.series.gift --data DATA     prints a table

DATA holds m4/{Hourly,Weekly}-{train,test}.csv.gz and ett/ETTh1.csv. Tasks are those of Aksu et al. 2024: of M4 the last
window of each series; of ETTh1 each column by itself, horizons of 48 (short), 480 (medium) and 720 (long) hours in
windows that do not overlap, a tenth of the series, 20 at most. A forecast sees all that is before its window.

    MASE    mean over windows of mean |y - q_.5| / mean |y_t - y_{t-s}| before the window, s the season of the task
    WQL     mean over nine quantiles of 2 Σ ρ_q(y - q) / Σ |y|, sums over all windows
    inside  share of the values inside the intervals of COVERED

`auto` is asked as users ask it, `rfa.forecast(values, horizon, time=times)`. M4's files name their frequency and no
dates: rows are an hour or a week apart, from any Monday on. Nothing is trained or chosen by these data.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from tqdm import tqdm

import rfa

Array = np.ndarray
QUANTILES: Final = np.arange(1, 10) / 10
COVERED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Intervals whose ends are the quantiles, but for the median.
LEVELS: Final = (0.2, 0.4, 0.6, 0.8)
TEST_SHARE, MOST_WINDOWS = 0.1, 20
MONDAY: Final = np.datetime64("2024-01-01T00:00:00")
ETT_HORIZONS: Final = {"short": 48, "medium": 480, "long": 720}


class Window(NamedTuple):
    """What is known, times `[N]` and values `[N]`, and what came, `[h]`."""

    times: Array
    known: Array
    came: Array


class Task(NamedTuple):
    """Windows of one name, and the season that errors are measured by, in rows."""

    name: str
    season: int
    windows: list[Window]


class Quantiles(NamedTuple):
    """quantiles `[h, 9]` and intervals `[h, 5, 2]`, those of COVERED."""

    quantiles: Array
    intervals: Array


class Score(NamedTuple):
    mase: float
    wql: float
    inside: Array


def tasks(data: Path) -> Iterator[Task]:
    """Those whose files are there."""
    for name, season, step in (("Hourly", 24, 3_600), ("Weekly", 1, 604_800)):
        parts = [data / "m4" / f"{name}-{part}.csv.gz" for part in ("train", "test")]
        if all(part.is_file() for part in parts):
            known, came = map(_rows, parts)
            windows = [
                Window(MONDAY + np.timedelta64(step, "s") * np.arange(len(before)), before, after)
                for before, after in zip(known, came, strict=True)
            ]
            yield Task(f"m4_{name.lower()}", season, windows)
    path = data / "ett" / "ETTh1.csv"
    if path.is_file():
        with path.open(newline="") as file:
            table = list(csv.reader(file))[1:]
        times = np.array([row[0] for row in table], "datetime64[s]")
        columns = np.array([row[1:] for row in table], float).T
        for term, horizon in ETT_HORIZONS.items():
            yield Task(f"ett1/H/{term}", 24, ett_windows(times, columns, horizon))


def _rows(path: Path) -> list[Array]:
    """M4's files have a series a row, under its name."""
    with gzip.open(path, "rt", newline="") as file:
        return [np.array([float(cell) for cell in row[1:] if cell]) for row in list(csv.reader(file))[1:]]


def ett_windows(times: Array, columns: Array, horizon: int) -> list[Window]:
    """The last windows of each of the columns `[C, N]`."""
    count = min(max(1, math.ceil(TEST_SHARE * len(times) / horizon)), MOST_WINDOWS)
    begins = [len(times) - horizon * (count - k) for k in range(count)]
    return [
        Window(times[:begin], column[:begin], column[begin : begin + horizon]) for begin in begins for column in columns
    ]


def naive(window: Window, season: int) -> Quantiles:
    """The last season again; its intervals are its points."""
    horizon = len(window.came)
    points = np.tile(window.known[-season:], horizon // season + 1)[:horizon]
    return Quantiles(np.repeat(points[:, None], 9, axis=1), np.repeat(points[:, None, None], 10, 1).reshape(-1, 5, 2))


def naive_normal(window: Window, season: int) -> Quantiles:
    """The same with a normal's intervals, as GIFT-Eval has it: the variance of a seasonal walk, which grows by that of
    its errors with each season."""
    horizon = len(window.came)
    points = np.tile(window.known[-season:], horizon // season + 1)[:horizon]
    error = np.sqrt(np.mean((window.known[season:] - window.known[:-season]) ** 2))
    spread = error * np.sqrt(np.arange(horizon) // season + 1)
    normal = NormalDist()
    z = np.array([normal.inv_cdf(q) for q in QUANTILES])
    half = np.array([normal.inv_cdf((1 + level) / 2) for level in COVERED])
    ends = spread[:, None] * half
    return Quantiles(
        points[:, None] + spread[:, None] * z,
        np.stack([points[:, None] - ends, points[:, None] + ends], axis=2),
    )


def auto(window: Window, season: int) -> Quantiles:
    """What a user gets who names no model; it is not told the season."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        told = rfa.forecast(window.known, len(window.came), time=window.times, levels=sorted({*LEVELS, *COVERED}))

    def ends(level: float) -> tuple[Array, Array]:
        return tuple(np.asarray(told[f"y_{end}{100 * level:.12g}"], float) for end in ("low", "high"))  # type: ignore[return-value]

    pairs = [ends(level) for level in LEVELS]
    lower, upper = [low for low, _ in pairs[::-1]], [high for _, high in pairs]
    quantiles = np.stack([*lower, np.asarray(told["y_mean"], float), *upper], axis=1)
    return Quantiles(quantiles, np.stack([np.stack(ends(level), axis=1) for level in COVERED], axis=1))


MODELS: Final[dict[str, Callable[[Window, int], Quantiles]]] = {
    "seasonal naive": naive_normal, "its points alone": naive, "auto": auto
}  # fmt: skip


def score(task: Task, forecasts: list[Quantiles]) -> Score:
    """Of all windows of a task."""
    scaled, loss, size, inside = [], np.zeros(9), 0.0, []
    for window, forecast in zip(task.windows, forecasts, strict=True):
        y = window.came[:, None]
        usual = np.abs(window.known[task.season :] - window.known[: -task.season]).mean()
        scaled.append(np.abs(window.came - forecast.quantiles[:, 4]).mean() / usual if usual > 0 else np.nan)
        off = y - forecast.quantiles
        loss += 2 * np.maximum(QUANTILES * off, (QUANTILES - 1) * off).sum(axis=0)
        size += float(np.abs(y).sum())
        inside.append((forecast.intervals[..., 0] <= y) & (y <= forecast.intervals[..., 1]))
    return Score(float(np.nanmean(scaled)), float(loss.mean() / size), np.concatenate(inside).mean(axis=0))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded series")
    heads = "".join(f"{level:8.0%}" for level in COVERED)
    lines = [f"{'task':16}{'model':18}{'MASE':>8}{'WQL':>8}{heads}"]
    for task in tasks(parser.parse_args().data):
        for name, model in MODELS.items():
            bar = tqdm(task.windows, desc=f"{task.name}, {name}", disable=None, leave=False)
            found = score(task, [model(window, task.season) for window in bar])
            inside = "".join(f"{share:8.3f}" for share in found.inside)
            lines.append(f"{task.name:16}{name:18}{found.mase:8.3f}{found.wql:8.4f}{inside}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
