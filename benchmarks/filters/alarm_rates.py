"""Rate of alarms on series without anomalies, and coverage of one-step forecasts, over HTTP.

    python -m rfa.benchmarks.filters.alarm_rates --data DATA [--model series]

DATA has nab/ (data and windows), ett/ETTh1.csv and ucr/*.npz (whose training prefixes have no anomaly). The result of a
model other than `auto` is added to the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser, post
from rfa.benchmarks.load.server import started
from rfa.benchmarks.nab.benchmark import load_nab
from rfa.benchmarks.series.files import read_archives, read_ett
from rfa.measured import origin
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.filters import auto

Array = np.ndarray
USUAL = auto.NAME
RATES = (1e-2, 1e-3, 1e-4)
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
# Initial observations of a stream that are not counted, and the shortest series.
BURN_IN, SHORTEST = 200, 2_000
HOUR = 3600.0
SIMULATED, LENGTH, SEED = 12, 8_000, 5


class Series(NamedTuple):
    """Times and values `[N]`, and which of them have no anomaly."""

    times: Array
    values: Array
    is_clean: Array


def simulated_series(rng: np.random.Generator) -> Iterator[Array]:
    """Return independent numbers from light to heavy tails, a slow autoregression and a noisy wave, `LENGTH` each."""
    for _ in range(SIMULATED):
        yield rng.standard_normal(LENGTH)
        yield rng.standard_t(3, LENGTH)
        yield rng.exponential(size=LENGTH)
        yield rng.random(LENGTH)
        noise, state = 0.3 * rng.standard_normal(LENGTH), 0.0
        path = np.empty(LENGTH)
        for t in range(LENGTH):
            state = 0.95 * state + noise[t]
            path[t] = state
        yield path
        yield np.sin(0.07 * np.arange(LENGTH)) * (2 + 0.1 * rng.standard_normal(LENGTH))


def load_sets(data: Path) -> dict[str, list[Series]]:
    """Return the series of each available set."""
    rng = np.random.default_rng(SEED)
    found = {"simulated": [_regular(values) for values in simulated_series(rng)]}
    if (data / "nab").is_dir():
        found["nab"] = [
            Series(one.times, one.values, _outside(len(one.times), one.labelled.windows))
            for one in load_nab(data / "nab")
        ]
    if columns := read_ett(data)[1]:
        found["ett"] = [_regular(column, HOUR) for column in columns.values()]
    if archive := read_archives(data / "ucr"):
        clean = (values[: int(name.split("_")[-3])].astype(float) for name, values in archive.items())
        found["ucr"] = [_regular(values) for values in clean if len(values) >= SHORTEST]
    return found


def _regular(values: Array, step: float = 1.0) -> Series:
    return Series(step * np.arange(len(values)), values, np.ones(len(values), bool))


def _outside(length: int, windows: Sequence[tuple[int, int]]) -> Array:
    is_clean = np.ones(length, bool)
    for first, last in windows:
        is_clean[first : last + 1] = False
    return is_clean


def ask(url: str, body: dict[str, Any]) -> dict[str, Array]:
    """Return the columns of the `/filter` reply for a series."""
    columns = orjson.loads(post(f"{url}/filter", body))["columns"]
    return {name: np.array(values, np.float64) for name, values in columns.items()}


class Counts(NamedTuple):
    """Counts over scored observations of a series: their number, alarms by rate, and hits of intervals by level."""

    observations: int
    alarms: Array
    forecast: int
    inside: Array


def count(url: str, model: str, series: Series) -> Counts:
    """Post a series once for each rate."""
    given = [None if math.isnan(value) else float(value) for value in series.values]
    body = {"model": model, "times": series.times.tolist(), "values": {"y": given}}
    alarms, is_counted = [], series.is_clean & ~np.isnan(series.values) & (np.arange(len(given)) >= BURN_IN)
    for rate in RATES:
        columns = ask(url, {**body, "fields": ["alarm"], "alarm": {"rate": rate}})
        alarms.append(float(columns["alarm"][is_counted].sum()))
    step = float(np.median(np.diff(series.times)))
    columns = ask(url, {**body, "fields": ["forecast"], "horizon": [step], "levels": LEVELS})
    # A forecast applies to the next observation if it arrives in time.
    is_next = is_counted[1:] & (np.abs(np.diff(series.times) - step) < 1e-6 * step)
    inside = []
    for level in LEVELS:
        low, high = (columns[f"forecast.{step!r}.{side}.{level!r}.y"][:-1] for side in ("lower", "upper"))
        inside.append(float(((low <= series.values[1:]) & (series.values[1:] <= high))[is_next].sum()))
    return Counts(int(is_counted.sum()), np.array(alarms), int(is_next.sum()), np.array(inside))


def measure(data: Path, model: str) -> dict[str, Any]:
    """Return the rows of every set, pooled over its series."""
    rows = {}
    sets = load_sets(data)
    longest = max(len(one.times) for series in sets.values() for one in series)
    with (
        started([BUNDLE_ROOT / ("linear" if model in auto.NAMES else model)], {"max_observations": longest}) as target,
        tqdm(total=sum(map(len, sets.values())), unit="series", disable=None) as bar,
    ):
        for name, series in sets.items():
            found = []
            for one in series:
                found.append(count(target.url, model, one))
                bar.update()
            observations = sum(counts.observations for counts in found)
            forecast = sum(counts.forecast for counts in found)
            alarms: Array = np.sum([counts.alarms for counts in found], axis=0)
            inside: Array = np.sum([counts.inside for counts in found], axis=0)
            rows[name] = {
                "series": len(series),
                "observations": observations,
                "over_nominal": {
                    f"{rate:g}": share / observations / rate for rate, share in zip(RATES, alarms, strict=True)
                },
                "coverage": {f"{level:g}": share / forecast for level, share in zip(LEVELS, inside, strict=True)},
            }
    return rows


def with_rates(out: Path, model: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the default model with other models of the file, or the file with another added."""
    kept: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    command = "python -m rfa.benchmarks.filters.alarm_rates --data DATA"
    if model == USUAL:
        return {**origin(command), "model": model, "burn_in": BURN_IN, "rows": rows, "others": kept.get("others", {})}
    added = {**origin(f"{command} --model {model}"), "rows": rows}
    return {**kept, "others": {**kept.get("others", {}), model: added}}


def main() -> None:
    """Run, print and write the file."""
    options = parser(__doc__, "alarm-rates", needs_data=True)
    options.add_argument("--model", default=USUAL)
    given = options.parse_args()
    finish("alarm-rates", given.out, with_rates(given.out, given.model, measure(given.data, given.model)))


if __name__ == "__main__":
    main()
