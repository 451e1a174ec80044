"""Speed of the series network on one core.

    python -m rfa.benchmarks.series.network_speed

`rfa.Stream(model="series")` with 64 forecasts per observation; `rfa.filter` of a long series; many streams in one call.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.update(OMP_NUM_THREADS="1")

import numpy as np

import rfa
from rfa.benchmarks.command import finish, parser
from rfa.measured import origin
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import StatePool
from rfa.runtime.series.filter import open_series

MODEL, HORIZON, REPEATS = "series", tuple(float(lead) for lead in range(1, 65)), 5
LIVE, SERIES, STREAMS, TOGETHER = 2_000, 50_000, 64, 512
SEEN = (1_000, 100_000, 1_000_000)


def season(rows: int) -> np.ndarray:
    """Return a cycle of 24 rows with noise."""
    return 20 + 5 * np.sin(2 * np.pi * np.arange(rows) / 24) + np.random.default_rng(0).standard_normal(rows)


def median(work: Callable[[], Any], count: int) -> float:
    """Return the median microseconds per item of a call for `count` items."""
    work()
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        found.append(1e6 * (time.perf_counter() - started) / count)
    return round(statistics.median(found), 2)


def live(seen: Sequence[int], rows: int) -> dict[str, dict[str, float]]:
    """Return median and 99th percentile of the microseconds of `rows` rows of one stream after each of `seen` rows."""
    stream = rfa.Stream(model=MODEL, horizon=HORIZON)
    coming, count, result = iter(enumerate(season(seen[-1] + rows).tolist())), 0, {}
    for begin in seen:
        for observation in itertools.islice(coming, begin - count):
            stream.update(*observation)
        found = []
        for observation in itertools.islice(coming, rows):
            started = time.perf_counter()
            stream.update(*observation)
            found.append(1e6 * (time.perf_counter() - started))
        count = begin + rows
        result[f"live after {begin:,}"] = {
            "median": round(statistics.median(found), 1), "p99": round(float(np.quantile(found, 0.99)), 1),
        }  # fmt: skip
    return result


def together() -> float:
    """Time one row of each of many streams in a call, without forecasts."""
    model = open_series(open_bundle(BUNDLE_ROOT / MODEL))
    pool = StatePool(model.state_fields, STREAMS)
    slots = [pool.acquire() for _ in range(STREAMS)]
    for slot in slots:
        model.put(pool, slot, model.start())
    rows, readout, values = pool.rows(slots), model.readout((0.9,), (), 0), season(TOGETHER)
    clock = iter(range(10**9))

    def work() -> None:
        for value in values:
            batch = Batch(rows, np.full(STREAMS, float(next(clock))), np.full((STREAMS, 1), value), np.ones(STREAMS))
            model.steps.advance(pool, batch, readout, traced=False)

    return median(work, STREAMS * TOGETHER)


def measure() -> dict[str, Any]:
    """Return all figures in microseconds."""
    values = season(SERIES)
    return {
        **live(SEEN, LIVE),
        "a row of a series": median(lambda: rfa.filter(values, model=MODEL), SERIES),
        "a row of 64 streams": together(),
    }


def main() -> None:
    """Measure and write the figures."""
    given = parser(__doc__, "series-speed").parse_args()
    load = round(os.getloadavg()[0], 1)
    document = {
        **origin("python -m rfa.benchmarks.series.network_speed"), "load": load, "microseconds": measure(),
    }  # fmt: skip
    finish("series-speed", given.out, document)


if __name__ == "__main__":
    main()
