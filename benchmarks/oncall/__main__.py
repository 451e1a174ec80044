"""Alarms on labelled series: incidents found, and alarms elsewhere.

    python -m rfa.benchmarks.oncall [--set second]

`rfa.detect` runs with its default model and a rate of one alarm per day.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

import rfa
from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.oncall import second
from rfa.benchmarks.oncall.incidents import INCIDENTS, NUMBERS
from rfa.benchmarks.oncall.judge import judge_clean, judge_incident, judge_job
from rfa.benchmarks.oncall.ordinary import CLEAN, JOBS, ZONES, clock_change, with_job
from rfa.benchmarks.oncall.parts import Array, Series
from rfa.measured import origin

COMMAND = "python -m rfa.benchmarks.oncall"
RATE = "1/day"
VERDICTS = ("found", "late", "missed")
JUDGES = {"job": judge_job, "clean": judge_clean, "clock": judge_clean}


def second_set() -> list[Callable[[], Series]]:
    """Return the series of `second.py`."""
    incidents = (partial(second.incident, kind, k) for k in NUMBERS for kind in (*second.KINDS, *second.SLOW))
    jobs, clean = (partial(second.with_job, name) for name in second.JOBS), (partial(second.clean, k) for k in NUMBERS)
    return [*incidents, *jobs, *clean]


def first_set() -> list[Callable[[], Series]]:
    """Return the series of `incidents.py` and `ordinary.py`."""
    incidents = (partial(make, number) for number in NUMBERS for make in INCIDENTS)
    jobs, clocks = (partial(with_job, name) for name in JOBS), (partial(clock_change, zone) for zone in ZONES)
    return [*incidents, *jobs, *CLEAN, *clocks]


SETS = {"first": first_set, "second": second_set}


def alarms_of(series: Series) -> Array:
    """Return the times of the alarms."""
    table = pa.table({"time": series.times, "value": pa.array(series.values, from_pandas=True)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = rfa.detect(table, rate=RATE, tz=series.zone)
    times: Array = found.rows["time"].to_numpy().astype(np.int64)
    return times


def measure(name: str) -> dict[str, Any]:
    """Return the results of a set by kind, and their sums."""
    kinds: dict[str, dict[str, Any]] = {}
    for make in tqdm(SETS[name](), unit="series", disable=None):
        series = make()
        judge = JUDGES.get(series.kind, judge_incident)
        kinds.setdefault(series.kind, {})[series.name] = judge(series, alarms_of(series))
    return summarise(kinds)


def summarise(kinds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the results of the series of each kind as a document."""
    incidents = {kind: _summarise_kind(of) for kind, of in kinds.items() if kind not in JUDGES}
    every = [one for of in kinds.values() for one in of.values()]
    elsewhere, expected = (sum(one[name] for one in every) for name in ("elsewhere", "expected"))
    return {
        **{verdict: sum(row[verdict] for row in incidents.values()) for verdict in VERDICTS},
        "incidents": sum(len(row["delays"]) for row in incidents.values()),
        "elsewhere_over_expected": elsewhere / expected,
        "kinds": incidents,
        **{f"{kind}_series": kinds.get(kind, {}) for kind in JUDGES},
    }


def _summarise_kind(of: dict[str, Any]) -> dict[str, Any]:
    results = list(of.values())
    return {
        **{verdict: sum(one["found"] == verdict for one in results) for verdict in VERDICTS},
        "delays": [one["delay"] for one in results],
        **{name: sum(one[name] for one in results) for name in ("elsewhere", "expected")},
    }


def main() -> None:
    """Measure, print and write the file."""
    options = parser(__doc__, "oncall")
    options.add_argument("--set", choices=list(SETS), default="first")
    given = options.parse_args()
    name, command = ("oncall", COMMAND) if given.set == "first" else ("oncall-second", f"{COMMAND} --set second")
    document = measure(given.set)
    if given.set == "second":
        for which, kinds in (("sharp", second.KINDS), ("slow", second.SLOW)):
            document[f"{which}_found"] = sum(document["kinds"][kind]["found"] for kind in kinds)
    finish(name, given.out.with_stem(given.out.stem.replace("oncall", name)), {**origin(command), **document})


if __name__ == "__main__":
    main()
