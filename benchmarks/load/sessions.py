"""Memory of idle states: open many in one process and compare its growth with the expected size.

pool     live streams, as arrays: a state and a generation each
store    named sessions in memory: the bytes that the store reports
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from rfa.benchmarks.load.scenario import Scenario
from rfa.runtime.bundle.bundle import Bundle, open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.state.names import Opened, SessionName, StateScope
from rfa.service.state.memory_sessions import MemorySessions
from rfa.service.state.sessions import SessionAddress

# The generation of a seat in use. Its entry in the free list is allocated when it is released.
GENERATION_BYTES = 8
# Opened and closed before the measurement, to exclude the memory of the first call.
REHEARSAL = 64
DAY_SECONDS = 86_400


def run_sessions(scenario: Scenario, bundles: Sequence[Path]) -> dict[str, Any]:
    """Measure each place with states of `live.model` in a fresh process."""
    path = next(path for path in bundles if open_bundle(path).name == scenario.live.model)
    places = {place: _in_fresh_process(path, scenario.sessions, place) for place in PLACES}
    return {
        "sessions": scenario.sessions,
        **places,
        "memory_error": max(place["memory_error"] for place in places.values()),
    }


def _in_fresh_process(path: Path, count: int, place: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "rfa.benchmarks.load.sessions", str(path), str(count), place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ValueError(f"{count} states in the {place} failed: {reason}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def fields_of(bundle: Bundle) -> dict[str, StateField]:
    """Return the fields of the state of a live stream."""
    return FilterRuntime(bundle).state_fields


def bytes_of(fields: Mapping[str, StateField]) -> int:
    """Return the size in bytes of one state."""
    return sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in fields.values())


def measure(
    fields: Mapping[str, StateField], count: int, open_states: Callable[..., tuple[Any, int]]
) -> dict[str, Any]:
    """Return the expected bytes of `count` states, the growth of the process, and the relative difference."""
    process = psutil.Process()
    open_states(fields, REHEARSAL)
    before = process.memory_info().rss
    keep, computed = open_states(fields, count)
    grown = process.memory_info().rss - before
    del keep
    return {
        "state_bytes": bytes_of(fields),
        "computed_bytes": computed,
        "measured_bytes": grown,
        "memory_error": round(abs(grown / computed - 1), 4),
    }


def fill_pool(fields: Mapping[str, StateField], count: int) -> tuple[StatePool, int]:
    """Fill all slots of a pool. Return the pool and its expected bytes."""
    pool = StatePool(fields, count)
    rng = np.random.default_rng(0)
    for _ in range(count):
        slot = pool.acquire()
        for array in pool.arrays.values():
            array[slot.row] = rng.standard_normal()
    return pool, count * (bytes_of(fields) + GENERATION_BYTES)


def fill_store(fields: Mapping[str, StateField], count: int) -> tuple[MemorySessions, int]:
    """Open named sessions in memory. Return the store and the bytes that it reports."""
    return asyncio.run(_fill_store(bytes_of(fields), count))


async def _fill_store(size: int, count: int) -> tuple[MemorySessions, int]:
    store = MemorySessions(DAY_SECONDS, 2 * count, sys.maxsize)
    scope = StateScope("0" * 64, "filter", "")
    rng = np.random.default_rng(0)
    for number in range(count):
        await store.create(SessionAddress(scope, SessionName(f"session-{number}")), Opened(rng.bytes(size), number))
    return store, store.bytes_held


PLACES: Mapping[str, Callable[..., tuple[Any, int]]] = {"pool": fill_pool, "store": fill_store}

if __name__ == "__main__":
    bundle_path, stream_count, place_name = sys.argv[1:]
    result = measure(fields_of(open_bundle(Path(bundle_path))), int(stream_count), PLACES[place_name])
    sys.stdout.write(json.dumps(result))
