"""What the series network takes on one core, through the doors of Python.

    python -m rfa.experiments.series.network_speed     writes results/series-speed.json and prints it

Live: `rfa.Stream(model="series", horizon=range(1, 65)).update`, state, intervals and 64 forecasts of every observation,
at the beginning of a stream and after so many observations more. A series: `rfa.filter` of 50,000 rows. Many: 64
streams, a row of each at a time, without forecasts. Medians, one process on one core.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.update(OMP_NUM_THREADS="1")

import numpy as np

import rfa
from rfa.export.bundle import open_bundle
from rfa.measured import RESULTS, origin, write_result
from rfa.service.runtime.compiled_series import open_series
from rfa.service.runtime.filter_steps import Batch
from rfa.service.runtime.pool import StatePool
from rfa.service.settings import BUNDLE_ROOT

OUT = RESULTS / "series-speed.json"
MODEL, HORIZON, REPEATS = "series", tuple(float(lead) for lead in range(1, 65)), 5
LIVE, SERIES, STREAMS, TOGETHER = 2_000, 50_000, 64, 512
LATE = 100_000


def season(rows: int) -> np.ndarray:
    """A day of 24 rows with noise."""
    return 20 + 5 * np.sin(2 * np.pi * np.arange(rows) / 24) + np.random.default_rng(0).standard_normal(rows)


def median(work: Callable[[], Any], count: int) -> float:
    """Microseconds for each of `count` that a call does."""
    work()
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        found.append(1e6 * (time.perf_counter() - started) / count)
    return round(statistics.median(found), 2)


def live(begin: int) -> tuple[float, float]:
    """Median and 99th percentile of an update, microseconds, of a stream that has seen `begin` rows."""
    stream = rfa.Stream(model=MODEL, horizon=HORIZON)
    values = season(LIVE + 100).tolist()
    for k, value in enumerate(season(begin).tolist()):
        stream.update(k, value)
    found = []
    for k, value in enumerate(values):
        started = time.perf_counter()
        stream.update(begin + k, value)
        found.append(1e6 * (time.perf_counter() - started))
    return round(statistics.median(found[100:]), 1), round(float(np.quantile(found[100:], 0.99)), 1)


def together() -> float:
    """Rows of many streams, one of each at a time, without forecasts."""
    model = open_series(open_bundle(BUNDLE_ROOT / MODEL))
    pool = StatePool(model.state_fields, STREAMS)
    seats = [pool.acquire() for _ in range(STREAMS)]
    for seat in seats:
        model.put(pool, seat, model.start())
    rows, readout, values = pool.rows(seats), model.readout((0.9,), (), 0), season(TOGETHER)
    clock = iter(range(10**9))

    def work() -> None:
        for value in values:
            batch = Batch(rows, np.full(STREAMS, float(next(clock))), np.full((STREAMS, 1), value), np.ones(STREAMS))
            model.steps.advance(pool, batch, readout, traced=False)

    return median(work, STREAMS * TOGETHER)


def measure() -> dict[str, Any]:
    """All figures, in microseconds."""
    values = season(SERIES)
    first, late = live(0), live(LATE)
    return {
        "live": {"median": first[0], "p99": first[1]},
        "live after 100,000": {"median": late[0], "p99": late[1]},
        "a row of a series": median(lambda: rfa.filter(values, model=MODEL), SERIES),
        "a row of 64 streams": together(),
    }


def main() -> None:
    """Measure and write."""
    document = {**origin("python -m rfa.experiments.series.network_speed"), "microseconds": measure()}
    write_result(OUT, document)
    for name, value in document["microseconds"].items():
        sys.stdout.write(f"{name:24} {value}\n")


if __name__ == "__main__":
    main()
