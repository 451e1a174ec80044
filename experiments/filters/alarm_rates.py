"""Alarms at a stated rate: how often they come on recorded series without anomalies, over how often they should.

    python -m rfa.experiments.filters.alarm_rates --data DATA      writes results/alarm-rates.json and prints a table

DATA holds nab/ (NAB's data and windows), ett/ETTh1.csv and ucr/*.npz (series of the UCR Anomaly Archive by their names,
whose prefix of TRAIN values has no anomaly). Of NAB what lies in its windows is left out. The bundle `metrics` filters
every series; one score is the root of its nis with the tail of `rare.py`, the other `anomaly` as it is served today.
Constants of `rare.py` were chosen on `simulated`, `nab` and `ett`; `ucr` was seen meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.experiments.filters.rare import tail_probabilities
from rfa.experiments.nab.benchmark import load_nab
from rfa.export.bundle import open_bundle
from rfa.measured import RESULTS, origin, write_result
from rfa.service.engine.filter.model import Row
from rfa.service.runtime.filter import FilterRuntime
from rfa.service.runtime.pool import StatePool
from rfa.service.settings import BUNDLE_ROOT

Array = np.ndarray
OUT = RESULTS / "alarm-rates.json"
RATES = (1e-2, 1e-3, 1e-4)
# Observations of a stream that are not counted, and the shortest series.
BURN_IN, SHORTEST = 200, 2_000
HOUR = 3600.0
SIMULATED, LENGTH, SEED = 12, 8_000, 5


class Series(NamedTuple):
    """times and values `[N]`, and which of them are without anomaly."""

    times: Array
    values: Array
    is_clean: Array


class Rates(NamedTuple):
    """Of a series: how probable so strange an observation is, by the tail of `rare.py` and as served, `[N]`."""

    learned: Array
    served: Array


def simulated_series(rng: np.random.Generator) -> Iterator[Array]:
    """Independent numbers with tails from none to heavy, a slow autoregression and a noisy wave, `LENGTH` each."""
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
    """The series of each set that is there."""
    rng = np.random.default_rng(SEED)
    found = {"simulated": [_regular(values) for values in simulated_series(rng)]}
    if (data / "nab").is_dir():
        found["nab"] = [
            Series(one.times, one.values, _outside(len(one.times), one.labelled.windows))
            for one in load_nab(data / "nab")
        ]
    if (data / "ett" / "ETTh1.csv").is_file():
        with (data / "ett" / "ETTh1.csv").open(newline="") as file:
            rows = np.array([[float(cell) for cell in row[1:]] for row in list(csv.reader(file))[1:]])
        found["ett"] = [_regular(column, HOUR) for column in rows.T]
    archive: dict[str, Array] = {}
    for path in sorted((data / "ucr").glob("*.npz")):
        archive |= dict(np.load(path))
    if archive:
        clean = (values[: int(name.split("_")[-3])].astype(float) for name, values in sorted(archive.items()))
        found["ucr"] = [_regular(values) for values in clean if len(values) >= SHORTEST]
    return found


def _regular(values: Array, step: float = 1.0) -> Series:
    return Series(step * np.arange(len(values)), values, np.ones(len(values), bool))


def _outside(length: int, windows: Sequence[tuple[int, int]]) -> Array:
    is_clean = np.ones(length, bool)
    for first, last in windows:
        is_clean[first : last + 1] = False
    return is_clean


def scored(runtime: FilterRuntime, series: Sequence[Series]) -> list[Rates]:
    """All series side by side, as live streams are."""
    pool = StatePool(runtime.state_fields, len(series))
    seats = [pool.acquire() for _ in series]
    for seat in seats:
        runtime.put(pool, seat, runtime.start())
    readout = runtime.readout((0.9,), (), 0)
    roots = [np.full(len(one.times), np.nan) for one in series]
    served = [np.full(len(one.times), np.nan) for one in series]
    for t in tqdm(range(max(len(one.times) for one in series)), unit="step", disable=None):
        members = [k for k, one in enumerate(series) if t < len(one.times)]
        rows = [
            Row(seats[k], float(series[k].times[t]), [_given(series[k].values[t])], 1.0, readout, 0) for k in members
        ]
        for k, stepped in zip(members, runtime.advance(pool, rows), strict=True):
            if stepped is not None and stepped.step.nis is not None:
                roots[k][t] = math.sqrt(max(stepped.step.nis, 0.0))
                served[k][t] = 1 - (stepped.step.anomaly or 0.0)
    learned = [
        tail_probabilities(np.where(one.is_clean, root, np.nan)) for one, root in zip(series, roots, strict=True)
    ]
    return [Rates(*pair) for pair in zip(learned, served, strict=True)]


def _given(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def over_nominal(series: Sequence[Series], probabilities: Sequence[Array]) -> dict[str, float]:
    """Observed over nominal, pooled, by rate."""
    counted = [
        found[BURN_IN:][one.is_clean[BURN_IN:] & ~np.isnan(found[BURN_IN:])]
        for one, found in zip(series, probabilities, strict=True)
    ]
    pooled = np.concatenate(counted)
    return {f"{rate:g}": float((pooled <= rate).mean() / rate) for rate in RATES}


def measure(data: Path) -> dict[str, Any]:
    """The rows of every set."""
    runtime = FilterRuntime(open_bundle(BUNDLE_ROOT / "metrics"))
    rows = {}
    for name, series in load_sets(data).items():
        found = scored(runtime, series)
        rows[name] = {
            "series": len(series),
            "observations": sum(len(one.times) for one in series),
            "learned": over_nominal(series, [one.learned for one in found]),
            "served": over_nominal(series, [one.served for one in found]),
        }
    return rows


def markdown(rows: dict[str, Any]) -> str:
    """Learned / as served today."""
    lines = [
        "| series | observations | " + " | ".join(f"at {rate:g}" for rate in RATES) + " |",
        "|---|" + "---|" * (1 + len(RATES)),
    ]
    for name, row in rows.items():
        cells = [f"{row['learned'][f'{rate:g}']:.2f} / {row['served'][f'{rate:g}']:.3g}" for rate in RATES]
        lines.append(f"| {name} | {row['observations']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    rows = measure(given.data)
    command = "python -m rfa.experiments.filters.alarm_rates --data DATA"
    write_result(given.out, {**origin(command), "burn_in": BURN_IN, "rows": rows})
    sys.stdout.write(markdown(rows) + "\n")


if __name__ == "__main__":
    main()
