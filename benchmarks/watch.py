"""Processor time and memory of `rfa watch` per observation, through remote write as a Prometheus agent sends it.

    python -m rfa.benchmarks.watch

A process of `rfa watch` with `/metrics` and a store gets requests of 2,000 series each over one connection. The first
round creates the series and is not measured. The fraction of a core is that needed to process one observation of every
series each 15 seconds. Compressed states are measured in process: after a few rows, and after a week with a value per
minute.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.library.models import find_model
from rfa.library.watch.config import Query
from rfa.library.watch.filters import QueryFilter, Samples
from rfa.library.watch.selectors import Labels
from rfa.library.watch.wire import HEADERS, write_request
from rfa.measured import origin

PER_REQUEST, STEP, ROUNDS_AT_REST = 2_000, 15.0, 10
# Of the start and of a reply, which may wait for kernels.
START_SECONDS = REPLY_SECONDS = 900.0
# Series by model, as a fraction of --series; and at rest.
SHARES = {"auto": (1.0, 200), "default": (0.01, 10)}
CONFIG = """
step = "15s"
[source.remote_write]
listen = "127.0.0.1:0"
[sink.metrics]
listen = "127.0.0.1:0"
[state]
file = "{folder}/state"
[[query]]
name = "load"
expr = "load"
model = "{model}"
series_limit = {series}
"""


def bodies(series: int, t: float) -> list[bytes]:
    """Return the bodies of remote-write requests that contain one value of each of `series` series at time `t`."""
    values = np.random.default_rng(int(t)).normal(100.0, 5.0, series).round(3).tolist()
    labels = {"__name__": "load", "job": "benchmark", "region": "eu-central-1", "service": "checkout"}
    return [
        write_request(
            ({**labels, "instance": f"10.{k // 65_536}.{k // 256 % 256}.{k % 256}:9100"}, t, values[k])
            for k in range(first, min(series, first + PER_REQUEST))
        )
        for first in range(0, series, PER_REQUEST)
    ]


def started(folder: Path, model: str, series: int) -> tuple[subprocess.Popen[bytes], str]:
    """Start a watch. Return its process and the address of its receiver."""
    (folder / "watch.toml").write_text(CONFIG.format(folder=folder, model=model, series=series))
    log = folder / "log"
    with log.open("wb") as messages:
        process = subprocess.Popen([sys.executable, "-m", "rfa", "watch", folder / "watch.toml"], stderr=messages)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            if "/api/v1/write" in line:
                return process, line.rpartition("http://")[2]
        time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"the watch did not start: {log.read_text()}")


def measure(model: str, series: int, rounds: int) -> dict[str, Any]:
    """Return the results of a model."""
    with tempfile.TemporaryDirectory() as name:
        process, address = started(Path(name), model, series)
        try:
            connection = http.client.HTTPConnection(address, timeout=REPLY_SECONDS)
            seen = psutil.Process(process.pid)
            processor, wall, before = 0.0, 0.0, seen.memory_info().rss
            for k in tqdm(range(rounds + 1), desc=model, disable=None):
                requests = bodies(series, 1_700_000_010 + STEP * k)
                used, begin = sum(seen.cpu_times()[:2]), time.monotonic()
                for body in requests:
                    connection.request("POST", "/api/v1/write", body, HEADERS)
                    reply = connection.getresponse()
                    if reply.status != 204:
                        raise RuntimeError(f"status {reply.status}: {reply.read()[:200]!r}")
                    reply.read()
                if k > 0:
                    processor += sum(seen.cpu_times()[:2]) - used
                    wall += time.monotonic() - begin
            memory = seen.memory_info().rss - before
        finally:
            process.kill()
            process.wait()
    count = series * rounds
    return {
        "series": series,
        "observations": count,
        "observations_per_second": round(count / wall),
        "processor_us": round(1e6 * processor / count, 2),
        "share_of_a_core": round(processor / count * series / STEP, 4),
        "memory_bytes_per_series": round(memory / series),
        "unpacked_state_bytes": find_model(model, 1).runtime.state_bytes,
    }


def at_rest(model: str, rows: int, series: int) -> dict[str, Any]:
    """Return the bytes of a state after so many rows of a daily wave with noise, and the processor time of the next
    rows.
    """
    query = Query(name="load", expr="load", model=model, series_limit=series)  # type: ignore[arg-type]
    one, draw, minute = QueryFilter(query, 60.0, is_counter=False), np.random.default_rng(1), 60.0
    labels = [(("instance", str(k)),) for k in range(series)]

    def apply(first: int, last: int, chosen: Iterable[Labels]) -> None:
        times = 1_700_000_010 + minute * np.arange(first, last)
        wave = 50 + 20 * np.sin(2 * np.pi * times / 86_400)
        samples = [Samples(each, times, (wave + draw.normal(0, 2, len(times))).round(2)) for each in chosen]
        for _ in one.apply(one.admit(samples)):
            pass

    for each in tqdm(labels, desc=f"{model}, {rows} rows", disable=None):
        apply(0, rows, [each])
    used = time.process_time()
    for k in range(ROUNDS_AT_REST):
        apply(rows + k, rows + k + 1, labels)
    used = time.process_time() - used
    return {
        "rows": rows + ROUNDS_AT_REST,
        "state_bytes_per_series": round(one.state_bytes / series),
        "step_us": round(1e6 * used / ROUNDS_AT_REST / series, 2),
    }


def bar(name: str, actual: float, most: float) -> dict[str, Any]:
    """Return a figure, its limit, and whether it is at most this limit."""
    return {"name": name, "actual": round(actual, 3), "bar": most, "met": actual <= most}


def main() -> None:
    """Measure, print and write the file."""
    options = parser(__doc__, "watch")
    options.add_argument("--series", type=int, default=100_000, help="with auto; default has a hundredth")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--models", nargs="+", choices=list(SHARES), default=list(SHARES))
    given = options.parse_args()
    rows = {}
    for model in given.models:
        share, count = SHARES[model]
        rows[model] = measure(model, max(1, round(share * given.series)), given.rounds)
        rows[model]["at_rest"] = [at_rest(model, number, count) for number in (10, 1_440, 10_080)]
    rate = given.series / STEP
    bars = [
        bar(f"share of two cores at {rate:,.0f} observations per second, {model}", row["share_of_a_core"] / 2, 0.4)
        for model, row in rows.items()
        if model == "auto"
    ]
    bars += [
        bar(f"bytes of state per series after {one['rows']:,} rows, auto", one["state_bytes_per_series"], 2_000)
        for one in rows.get("auto", {}).get("at_rest", ())
    ]
    finish("watch", given.out, {**origin("python -m rfa.benchmarks.watch"), "models": rows, "bars": bars})


if __name__ == "__main__":
    main()
