"""Anomalies on the Numenta Anomaly Benchmark: the alarms of the server, beside two baselines.

    rfa bench nab --data NAB          writes results/filter-nab.json and prints a table

A server is started with the bundle, and every series posted to `/filter` with `alarm` at each of RATES, quiet for QUIET
observations after an alarm: the same for all files. `score` is at RATE, which was chosen on the earlier 60 % of the
series; `best` is at the rate that is best over the files given, as NAB's public rules choose a threshold. The baselines
are no detection at all and NAB's windowed Gaussian, both through the scorer of experiments/nab/score.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rfa.experiments.nab.score import PROFILES, Labelled, best_threshold, detect, earlier, labelled, score
from rfa.export.bundle import open_bundle
from rfa.export.normal import THRESHOLD, anomalies
from rfa.measured import origin, write_result
from rfa.service.runtime.filter import FilterRuntime
from rfa.training.series import load_csv

# Where the windows are: in a copy beside the data, and in NAB's own repository.
WINDOW_FILES = ("windows.json", "labels/combined_windows.json")
# Share of every series by which settings are chosen.
CHOICE = 0.6
GAUSSIAN_WINDOW, GAUSSIAN_STEP = 6400, 100
GAUSSIAN_LEAST = 1e-6


@dataclass(frozen=True)
class NabSeries:
    """times and values `[N]` of one file, with its windows."""

    name: str
    times: np.ndarray
    values: np.ndarray
    labelled: Labelled


def load_nab(folder: Path) -> list[NabSeries]:
    """The series of `folder`/data/*/*.csv that its window file names.

    Raises:
        FileNotFoundError: no window file, or none of its series.
    """
    path = next((folder / name for name in WINDOW_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has neither {' nor '.join(WINDOW_FILES)}: give the folder of NAB")
    found = []
    for name, windows in sorted(json.loads(path.read_text()).items()):
        file = folder / "data" / name
        if file.is_file():
            series = load_csv(file)
            times = series.times
            edges = [[datetime.fromisoformat(edge).timestamp() for edge in window] for window in windows]
            rows = [
                (int(np.searchsorted(times, a)), int(np.searchsorted(times, b, side="right")) - 1) for a, b in edges
            ]
            found.append(NabSeries(name, times, series.values[:, 0], labelled(name, len(times), rows)))
    if not found:
        raise FileNotFoundError(f"{folder / 'data'} has none of the series of {path.name}")
    return found


def windowed_gaussian(values: np.ndarray) -> np.ndarray:
    """NAB's baseline: 1 - the normal tail probability of a value, by mean and deviation of the last 6,400 values."""
    window: list[float] = []
    waiting: list[float] = []
    mean, deviation = 0.0, 1.0
    scores = np.zeros(len(values))
    for i, value in enumerate(values.tolist()):
        if window:
            scores[i] = 1 - 0.5 * math.erfc(abs(value - mean) / deviation / math.sqrt(2))
        if len(window) < GAUSSIAN_WINDOW:
            window.append(value)
        else:
            waiting.append(value)
            if len(waiting) < GAUSSIAN_STEP:
                continue
            window, waiting = window[GAUSSIAN_STEP:] + waiting, []
        mean, deviation = float(np.mean(window)), float(np.std(window)) or GAUSSIAN_LEAST
    return scores


def filtered(runtime: FilterRuntime, series: NabSeries) -> np.ndarray:
    """Anomaly scores of a one-dimensional filter, as `rfa filter --anomalies` gives them."""
    observations = [[None if math.isnan(value) else value] for value in series.values.tolist()]
    result = runtime.filter(series.times.tolist(), observations, levels=(0.9,))
    return anomalies([step.nis for step in result.steps], series.values[:, None])


def _profiles(
    corpus: Sequence[Labelled], scores: Sequence[np.ndarray], threshold: float | None
) -> dict[str, dict[str, float | None]]:
    rows: dict[str, dict[str, float | None]] = {}
    for name, profile in PROFILES.items():
        at, best = best_threshold(corpus, scores, profile)
        fixed = None if threshold is None else score(corpus, scores, threshold, profile)
        rows[name] = {"score": fixed, "best": best, "best_threshold": at if math.isfinite(at) else None}
    return rows


def measure(series: Sequence[NabSeries], detected: dict[str, list[np.ndarray]], own: str) -> dict[str, Any]:
    """Scores of every detector by profile, over the whole series and over their earlier part, and what the filter
    `own` finds in each file at its default threshold."""
    corpus = [one.labelled for one in series]
    first = [earlier(one, CHOICE) for one in corpus]
    files = {}
    for one, anomaly in zip(series, detected[own], strict=True):
        found = detect(one.labelled, anomaly, THRESHOLD, PROFILES["standard"])
        files[one.name] = found._asdict()
    return {
        "threshold": THRESHOLD,
        "files": len(corpus),
        "windows": sum(len(one.windows) for one in corpus),
        "detectors": {
            name: {
                "whole": _profiles(corpus, scores, THRESHOLD if name == own else None),
                "earlier": _profiles(first, scores, THRESHOLD if name == own else None),
            }
            for name, scores in detected.items()
        },
        "series": files,
    }


def markdown(document: dict[str, Any]) -> str:
    """Scores over the files given, at the default threshold and at the best one."""
    lines = ["| detector | " + " | ".join(PROFILES) + " |", "|---|" + "---|" * len(PROFILES)]
    for name, parts in document["detectors"].items():
        rows = parts["whole"]
        for key, title in (("score", "default threshold"), ("best", "best threshold")):
            if rows["standard"][key] is not None:
                lines.append(f"| {name}, {title} | " + " | ".join(f"{rows[p][key]:.1f}" for p in PROFILES) + " |")
    return "\n".join(lines)


def write_nab(bundle: Path, data: Path, out: Path) -> dict[str, Any]:
    """Score a one-dimensional filter bundle on the files of `data` and write the result as JSON.

    Raises:
        ValueError: the bundle takes more than one component.
    """
    runtime = FilterRuntime(open_bundle(bundle))
    if runtime.observation_size != 1:
        raise ValueError(f"bundle {runtime.name!r} takes {runtime.observation_size} components, NAB's series have 1")
    series = load_nab(data)
    detected = {
        runtime.name: [filtered(runtime, one) for one in tqdm(series, unit="file", disable=None)],
        "windowed Gaussian": [windowed_gaussian(one.values) for one in series],
        "null": [np.zeros(len(one.values)) for one in series],
    }
    document = {**origin("rfa bench nab"), "bundle": runtime.name} | measure(series, detected, runtime.name)
    write_result(out, document)
    return document
