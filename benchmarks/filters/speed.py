"""`rfa bench filter-speed`: the linear filter compared with public Kalman filters, on one core.

A constant-velocity model in a plane, float64: `online` calls once per observation, `batch` filters 1,000 streams of
1,000 steps in one call. Every result must agree with a textbook filter before it is timed. Figures are medians of
processor time. Slow filters run fewer streams or steps.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rfa.benchmarks.filters.speed_job import Job, make_job, reference
from rfa.benchmarks.filters.speed_rivals import ROWS, NotRun, Row
from rfa.measured import origin, write_result

# Allowed difference of final means from the reference: float64 in another order, through ten thousand steps.
AGREEMENT = 1e-7
STREAMS, STEPS, ONLINE_STEPS, RUNS = 1000, 1000, 10_000, 7


@contextmanager
def one_core() -> Iterator[None]:
    """Pin the process, and threads that it will start, to one core."""
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("this measurement needs a system that can hold a process to one core")
    import torch

    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(before)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def measure(row: Row, job: Job, runs: int) -> dict[str, Any]:
    """Check a row, then time it."""
    versions = {}
    for package in row.packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise NotRun(f"{package} is not installed") from None
    own = job.cut(row.streams or len(job.y), row.steps or job.y.shape[1])
    call = row.prepare(own)
    means = call()
    error = float(np.abs(means - reference(own, row.rule)[:, : means.shape[1]]).max())
    if not error <= AGREEMENT:
        raise AssertionError(f"{row.name} ({row.job}) is off the reference by {error:.1e}")
    times = []
    for _ in range(runs):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    streams, steps = own.y.shape[:2]
    low, middle, high = (float(x) * 1e6 / (streams * steps) for x in np.quantile(times, (0.2, 0.5, 0.8)))
    return {
        "us_per_step": _rounded(middle),
        "p20_us": _rounded(low),
        "p80_us": _rounded(high),
        "steps_per_second": round(1e6 / middle),
        "streams": streams,
        "steps": steps,
        "largest_error": error,
        "versions": versions,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def run_speed(
    *, streams: int = STREAMS, steps: int = STEPS, online_steps: int = ONLINE_STEPS, runs: int = RUNS
) -> dict[str, Any]:
    """Run both jobs and return the document that `write_speed` stores."""
    # Read when jax starts. The affinity pins its pool to one core; this keeps it from splitting the work.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    jobs = {"online": make_job(1, online_steps), "batch": make_job(streams, steps)}
    rows: list[dict[str, Any]] = []
    with one_core():
        for row in ROWS:
            found: dict[str, Any] = {"name": row.name, "job": row.job, "rule": row.rule}
            try:
                found |= measure(row, jobs[row.job], runs)
            except NotRun as reason:
                found["not_run"] = str(reason)
            rows.append(found)
    return {
        **origin("rfa bench filter-speed"),
        "cores_used": 1,
        "runs": runs,
        "clock": "process_time, median",
        "rows": rows,
        "ratios": ratios(rows),
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, per job and own row, the fastest peer of the same job and how many times slower it is."""
    found = {}
    timed = [row for row in rows if "us_per_step" in row]
    for own in (row for row in timed if row["name"].startswith("rfa ")):
        peers = [row for row in timed if row["job"] == own["job"] and not row["name"].startswith("rfa ")]
        if peers:
            best = min(peers, key=lambda row: row["us_per_step"])
            times = _rounded(best["us_per_step"] / own["us_per_step"])
            found[f"{own['job']}: {own['name']}"] = {"fastest_peer": best["name"], "times_slower": times}
    return found


def write_speed(out: Path, **sizes: int) -> dict[str, Any]:
    """Write `run_speed` to a JSON file."""
    document = run_speed(**sizes)
    write_result(out, document)
    return document
