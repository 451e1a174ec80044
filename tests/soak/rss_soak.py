"""A million requests of every kind, and the memory that the server processes keep.

    python -m tests.soak.rss_soak --requests 1000000

Rounds of traffic (`tests.soak.rss_client`): observations, live streams, texts, states, mistakes, disconnects. After
each round, when nothing is under way, the resident memory of every server process is read. The first tenth of the
requests warms the server up; from there to the end the sum over the processes may grow by less than 2 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from rfa.benchmarks.load.server import started
from rfa.measured import RESULTS, origin, write_result
from rfa.runtime.bundle.locate import default_bundles

RESULT = RESULTS / "rss-soak.json"
ROUNDS = 20
WARM_UP_ROUNDS = 2
LARGEST_GROWTH = 0.02
SETTLE_SECONDS = 2.0
SETTINGS: dict[str, str | int] = {"processes": 2, "max_new_tokens": 64}


@dataclass(frozen=True)
class Memory:
    """After `requests` requests: bytes of each server process, by pid; `unique` are in no other process."""

    requests: int
    resident: dict[int, int]
    unique: dict[int, int]


def read_memory(pid: int, requests: int) -> Memory:
    """Memory of the server processes under a supervisor, or of the one process there is."""
    parent = psutil.Process(pid)
    members = parent.children(recursive=True) or [parent]
    infos = {member.pid: member.memory_full_info() for member in members}
    return Memory(
        requests, {pid: info.rss for pid, info in infos.items()}, {pid: info.uss for pid, info in infos.items()}
    )


def send_round(url: str, requests: int, clients: int, seed: int) -> Counter[str]:
    """One round of traffic from some client processes."""
    command = [sys.executable, "-m", "tests.soak.rss_client", url]
    shares = [requests // clients + (number < requests % clients) for number in range(clients)]
    running = [
        subprocess.Popen([*command, str(share), str(seed * clients + number)], stdout=subprocess.PIPE)
        for number, share in enumerate(shares)
    ]
    tally: Counter[str] = Counter()
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a client ended with {process.returncode}")
        tally.update(json.loads(output))
    return tally


def soak(
    url: str, pid: int, requests: int, clients: int, *, progress: bool = False
) -> tuple[list[Memory], Counter[str]]:
    """Memory after each round, and what was sent."""
    readings: list[Memory] = []
    tally: Counter[str] = Counter()
    with tqdm(total=requests, desc="requests", disable=not progress) as bar:
        for number in range(ROUNDS):
            share = requests * (number + 1) // ROUNDS - requests * number // ROUNDS
            tally += send_round(url, share, clients, number)
            time.sleep(SETTLE_SECONDS)
            bar.update(share)
            readings.append(read_memory(pid, requests * (number + 1) // ROUNDS))
    return readings, tally


def growth(readings: Sequence[Memory]) -> float:
    """Share by which resident memory has grown since the warm-up."""
    return sum(readings[-1].resident.values()) / sum(readings[WARM_UP_ROUNDS - 1].resident.values()) - 1


def slope(readings: Sequence[Memory]) -> float:
    """Bytes per request by which resident memory grows after the warm-up: least squares."""
    measured = readings[WARM_UP_ROUNDS - 1 :]
    line = statistics.linear_regression(
        [reading.requests for reading in measured], [sum(reading.resident.values()) for reading in measured]
    )
    return line.slope


def report(readings: Sequence[Memory], tally: Counter[str], seconds: float) -> dict[str, Any]:
    """The document that is stored."""
    failed = {kind: count for kind, count in tally.items() if kind.startswith("failed ")}
    sent = {kind: count for kind, count in tally.items() if kind not in failed}
    return {
        **origin("python -m tests.soak.rss_soak"),
        "settings": SETTINGS,
        "requests": sum(sent.values()),
        "requests_per_second": round(sum(sent.values()) / seconds, 1),
        "sent": sent,
        "failed": failed,
        "is_same_processes": len({tuple(reading.resident) for reading in readings}) == 1,
        "rss_growth": round(growth(readings), 5),
        "rss_bytes_per_request": round(slope(readings), 3),
        "readings": [
            {"requests": r.requests, "rss": list(r.resident.values()), "uss": list(r.unique.values())} for r in readings
        ],
    }


def is_met(document: dict[str, Any]) -> bool:
    """Whether memory stayed, no process was replaced, and every answer was as it must be."""
    return document["rss_growth"] < LARGEST_GROWTH and document["is_same_processes"] and not document["failed"]


def main() -> int:
    """Run the soak and store what was measured; 1 if memory grew, or an answer was wrong."""
    parser = argparse.ArgumentParser(description="Memory of the server over many requests of every kind.")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=2, help="client processes")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    begun = time.monotonic()
    with started(default_bundles(), SETTINGS) as target:
        assert target.pid is not None
        readings, tally = soak(target.url, target.pid, arguments.requests, arguments.clients, progress=True)
    document = report(readings, tally, time.monotonic() - begun)
    write_result(arguments.out, document)
    print(
        f"{document['requests']} requests, {sum(document['failed'].values())} failed, "
        f"memory {document['rss_growth']:+.2%}, {document['rss_bytes_per_request']:+.2f} bytes a request"
    )
    return 0 if is_met(document) else 1


if __name__ == "__main__":
    raise SystemExit(main())
