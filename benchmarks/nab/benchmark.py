"""Anomalies on NAB's series by its public rules: `rfa bench nab --data NAB`.

Every series is posted to `/filter` with `alarm` at each of RATES, quiet for QUIET observations. `score` is at RATE,
chosen on the earlier 60 % of each series; `best` is at the best rate of the given files. The baselines are a
detector without alarms and NAB's windowed Gaussian. The result of a model other than `auto` is added to the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tqdm import tqdm

from rfa.benchmarks.command import post
from rfa.benchmarks.load.server import started
from rfa.benchmarks.nab.score import best_threshold, earlier, score
from rfa.data import load_series
from rfa.library.locate import find_bundle
from rfa.library.nab import PROFILES, Labelled, Profile, detect, labelled
from rfa.measured import origin, write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.auto import NAME

# Observations without a further alarm after an alarm, and the tested rates per observation.
QUIET = 100
RATES = (0.001, 0.002, 0.003, 0.005, 0.008, 0.012, 0.02)
RATE = 0.003
# Models of every server that are not bundles, and a bundle to serve beside them.
_SERVERS = {NAME: "linear", "default": "series"}
# Paths of the file of windows: in a copy beside the data, and in NAB's own repository.
WINDOW_FILES = ("windows.json", "labels/combined_windows.json")
# Fraction of every series from which settings are chosen.
CHOICE = 0.6
GAUSSIAN_WINDOW, GAUSSIAN_STEP = 6400, 100
GAUSSIAN_LEAST = 1e-6


@dataclass(frozen=True)
class NabSeries:
    """Times and values `[N]` of one file, with its windows."""

    name: str
    times: np.ndarray
    values: np.ndarray
    labelled: Labelled


def load_nab(folder: Path) -> list[NabSeries]:
    """Load the series of `folder`/data/*/*.csv that the window file names."""
    path = next((folder / name for name in WINDOW_FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has neither {' nor '.join(WINDOW_FILES)}: give the folder of NAB")
    found = []
    for name, windows in sorted(json.loads(path.read_text()).items()):
        file = folder / "data" / name
        if file.is_file():
            series = load_series(file)
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
    """Return the baseline of NAB: 1 minus the normal tail probability of a value, fitted to the last 6,400 values."""
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


def alarms(url: str, model: str, series: NabSeries, rate: float) -> np.ndarray:
    """Return 1 where the server raises an alarm and 0 elsewhere."""
    values = [None if math.isnan(value) else value for value in series.values.tolist()]
    body = {
        "model": model, "times": series.times.tolist(), "values": {"y": values}, "fields": ["alarm"],
        "alarm": {"rate": rate, "quiet": QUIET},
    }  # fmt: skip
    found = orjson.loads(post(f"{url}/filter", body))["columns"]["alarm"]
    return np.array([flag or 0.0 for flag in found])


def _by_rate(
    corpus: Sequence[Labelled], raised: Mapping[float, Sequence[np.ndarray]], profile: Profile
) -> dict[str, float]:
    """Return the scores at RATE and at the best rate."""
    scores = {rate: score(corpus, found, 1.0, profile) for rate, found in raised.items()}
    best = max(scores, key=scores.__getitem__)
    return {"score": scores[RATE], "best": scores[best], "best_rate": best}


def _by_threshold(corpus: Sequence[Labelled], found: Sequence[np.ndarray], profile: Profile) -> dict[str, float | None]:
    threshold, best = best_threshold(corpus, found, profile)
    return {"score": None, "best": best, "best_threshold": threshold if math.isfinite(threshold) else None}


def measure(
    series: Sequence[NabSeries],
    name: str,
    raised: Mapping[float, Sequence[np.ndarray]],
    baselines: Mapping[str, Sequence[np.ndarray]],
) -> dict[str, Any]:
    """Return scores by profile, over whole series and their earlier part, and detections in each file at RATE."""
    whole = [one.labelled for one in series]
    parts = {"whole": whole, "earlier": [earlier(one, CHOICE) for one in whole]}
    own = {
        part: {title: _by_rate(corpus, raised, profile) for title, profile in PROFILES.items()}
        for part, corpus in parts.items()
    }
    others = {
        other: {
            part: {title: _by_threshold(corpus, found, profile) for title, profile in PROFILES.items()}
            for part, corpus in parts.items()
        }
        for other, found in baselines.items()
    }
    return {
        "rate": RATE,
        "quiet": QUIET,
        "files": len(whole),
        "windows": sum(len(one.windows) for one in whole),
        "detectors": {name: own, **others},
        "series": {
            one.name: detect(one.labelled, found, 1.0, PROFILES["standard"])._asdict()
            for one, found in zip(series, raised[RATE], strict=True)
        },
    }


def write_nab(model: str, data: Path, out: Path) -> dict[str, Any]:
    """Score the alarms of `auto`, `default` or a bundle with one component on the files of `data`; write the result."""
    bundle = find_bundle(_SERVERS.get(model, model))
    name = model if model in _SERVERS else _checked_name(bundle)
    series = load_nab(data)
    with started([bundle], {"max_observations": max(len(one.values) for one in series)}) as target:
        raised = {
            rate: [alarms(target.url, name, one, rate) for one in series]
            for rate in tqdm(RATES, unit="rate", disable=None)
        }
    baselines = {
        "windowed Gaussian": [windowed_gaussian(one.values) for one in series],
        "null": [np.zeros(len(one.values)) for one in series],
    }
    found = {"bundle": name} | measure(series, name, raised, baselines)
    document = merged(json.loads(out.read_text()) if out.is_file() else {}, name, found)
    write_result(out, document)
    return document


def _checked_name(bundle: Path) -> str:
    opened = open_bundle(bundle)
    components = 1 if opened.kind == "series" else len(opened.weights()["initial.readout_matrix"])
    if components != 1:
        raise ValueError(f"bundle {opened.name!r} takes {components} components, NAB's series have 1")
    return opened.name


def merged(kept: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Add the findings for one model to the document of another."""
    if name == NAME:
        return {**origin("rfa bench nab --data NAB"), **found, "others": kept.get("others", {})}
    own = {"score": found["detectors"][name], "series": found["series"]}
    added = {**origin(f"rfa bench nab --data NAB --bundle {name}"), **own}
    return {**kept, "others": {**kept.get("others", {}), name: added}}
