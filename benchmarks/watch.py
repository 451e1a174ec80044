"""Processor time and memory of `rfa watch` per observation, through remote write as a Prometheus agent sends it.

    python -m rfa.benchmarks.watch

A process of `rfa watch` with `/metrics` and a store gets requests of 2,000 series each over one connection. The
first round creates the series and is not measured. The share of a core is that of all series every 15 seconds.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.measured import origin
from rfa.watch.wire import HEADERS, write_request

PER_REQUEST, STEP, START_SECONDS = 2_000, 15.0, 120.0
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
    """The requests of a round: a value of each series."""
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
    """A watch, and the address of its receiver."""
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
    """The figures of a model."""
    with tempfile.TemporaryDirectory() as name:
        process, address = started(Path(name), model, series)
        try:
            connection = http.client.HTTPConnection(address, timeout=START_SECONDS)
            seen = psutil.Process(process.pid)
            processor, wall, first, before = 0.0, 0.0, 0, seen.memory_info().rss
            for k in tqdm(range(rounds + 1), desc=model, disable=None):
                requests = bodies(series, 1_700_000_010 + STEP * k)
                used, begin = sum(seen.cpu_times()[:2]), time.monotonic()
                for body in requests:
                    connection.request("POST", "/api/v1/write", body, HEADERS)
                    reply = connection.getresponse()
                    if reply.status != 204:
                        raise RuntimeError(f"status {reply.status}: {reply.read()[:200]!r}")
                    reply.read()
                if k == 0:
                    first = Path(name, "state.journal").stat().st_size
                else:
                    processor += sum(seen.cpu_times()[:2]) - used
                    wall += time.monotonic() - begin
            memory = seen.memory_info().rss - before
        finally:
            process.kill()
            process.wait()
        journal = Path(name, "state.journal").stat().st_size - first
    count = series * rounds
    return {
        "series": series,
        "observations": count,
        "observations_per_second": round(count / wall),
        "processor_us": round(1e6 * processor / count, 2),
        "share_of_a_core": round(processor / count * series / STEP, 4),
        "memory_bytes_per_series": round(memory / series),
        "state_bytes_per_series": state_bytes(model),
        "journal_bytes_per_observation": round(journal / count, 1),
    }


def state_bytes(model: str) -> int:
    """Size of a series' state."""
    from rfa.library.models import find_model

    return find_model(model, 1).runtime.state_bytes


def main() -> None:
    """Measure, print and write the file."""
    options = parser(__doc__, "watch")
    options.add_argument("--series", type=int, default=100_000, help="with auto; default has a hundredth")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    rows = {
        "auto": measure("auto", given.series, given.rounds),
        "default": measure("default", max(1, given.series // 100), given.rounds),
    }
    rate = given.series / STEP
    bars = [
        {
            "name": f"share of two cores at {rate:,.0f} observations per second, auto",
            "actual": round(rows["auto"]["share_of_a_core"] / 2, 3),
            "bar": 0.4,
            "met": rows["auto"]["share_of_a_core"] / 2 <= 0.4,
        },
        {
            "name": "bytes of state per series, auto",
            "actual": rows["auto"]["state_bytes_per_series"],
            "bar": 2_000,
            "met": rows["auto"]["state_bytes_per_series"] <= 2_000,
        },
    ]
    finish("watch", given.out, {**origin("python -m rfa.benchmarks.watch"), "models": rows, "bars": bars})


if __name__ == "__main__":
    main()
