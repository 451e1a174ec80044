"""Memory of idle states: open many in one process, compare what the process grew by with what they should take."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from bench.load.scenario import Scenario
from export.bundle import Bundle, open_bundle
from service.engine.pool import StateField, StatePool

# Of the pool, per slot in use: its generation. Its place in the free list takes memory once it was released.
BOOKKEEPING_BYTES = 8


def run_sessions(scenario: Scenario, bundles: Sequence[Path]) -> dict[str, Any]:
    """Measure in a fresh process, whose memory nothing else has touched.

    Raises:
        ValueError: no bundle is a filter.
    """
    filters = [bundle for bundle in map(open_bundle, bundles) if bundle.kind == "filter"]
    if not filters:
        raise ValueError("idle sessions need a filter bundle")
    wanted = scenario.live.model or filters[0].name
    path = next(path for path in bundles if open_bundle(path).name == wanted)
    command = [sys.executable, "-m", "bench.load.sessions", str(path), str(scenario.sessions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"opening {scenario.sessions} sessions failed: {done.stderr.strip().splitlines()[-1:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def fields_of(bundle: Bundle) -> dict[str, StateField]:
    """What a live stream of a filter keeps: the graph's state, time, count and surprise."""
    weights = bundle.weights()
    tensors = {
        spec.name: StateField(tuple(weights[f"initial.{spec.name}"].shape), np.float32)
        for spec in bundle.manifest.state
    }
    return {
        **tensors,
        "time": StateField((), np.float64),
        "count": StateField((), np.int64),
        "surprise": StateField((), np.float64),
    }


def measure(fields: Mapping[str, StateField], count: int) -> dict[str, Any]:
    """Bytes that `count` states should take, bytes that the process grew by, and the relative difference."""
    process = psutil.Process()
    rng = np.random.default_rng(0)
    _fill(StatePool(fields, 64), np.zeros((64, 2), np.int64), rng)  # what the first use of the code takes
    handles = np.ones((count, 2), np.int64)
    before = process.memory_info().rss
    pool = StatePool(fields, count)
    _fill(pool, handles, rng)
    grown = process.memory_info().rss - before
    per_state = sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in fields.values())
    computed = count * (per_state + BOOKKEEPING_BYTES)
    return {
        "sessions": count,
        "in_use": pool.in_use,
        "bytes_per_state": per_state,
        "bytes": {"computed": computed, "measured": grown},
        "memory_error": round(abs(grown / computed - 1), 4),
    }


def _fill(pool: StatePool, handles: np.ndarray, rng: np.random.Generator) -> None:
    for number in range(len(handles)):
        slot = pool.acquire()
        handles[number] = slot
        for array in pool.arrays.values():
            array[slot.row] = rng.standard_normal()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(fields_of(open_bundle(Path(sys.argv[1]))), int(sys.argv[2]))))
