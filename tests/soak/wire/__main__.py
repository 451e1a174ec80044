"""Fuzz the wire of a real server, direct or through nginx, and report violations.

    python -m tests.soak.wire --connections 1000000
    python -m tests.soak.wire --connections 1000000 --through nginx
    python -m tests.soak.wire --seed 7 --only 123

The exit code is 1 after a wrong answer, the loss of a process, or resources that are not released at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from tqdm import tqdm

from rfa.measured import RESULTS, origin, write_result
from tests.soak.faults.server import Server
from tests.soak.wire.cases import BUNDLE, KEY, Truth
from tests.soak.wire.client import play
from tests.soak.wire.judge import NONCE, Verdict, judge
from tests.soak.wire.nginx import THROUGH, proxied
from tests.soak.wire.streams import make_case
from tests.waiting import TooLate, wait_until

RESULT = RESULTS / "wire.json"
SERIES = 512
AT_ONCE = 96
VICTIMS = 4
THINK_SECONDS = 0.06
SETTINGS = {"processes": 2, "header_timeout_seconds": 10, "body_timeout_seconds": 10, "log_format": "json"}
GAUGES = ("open_connections", "num_streams", "num_requests_running", "num_requests_waiting", "state_slots_used")
WARM_UP_SHARE = 0.1
LARGEST_GROWTH = 0.10
MOST_RESIDENT = 700 * 10**6
LOG_PIECE = 1 << 20
MAX_EXAMPLES = 20


def main() -> int:
    """Run the command line. Return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.wire", description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--through", choices=THROUGH, default="direct")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no case begins after so long")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--only", type=int, metavar="CASE", help="play one case, print it, and store nothing")
    arguments = parser.parse_args()
    truth = Truth.compute(SERIES)
    with _serving() as (server, log), proxied(arguments.through, server.port) as port:
        fuzzer = Fuzzer(port, truth, arguments.seed, is_proxied=port != server.port)
        if arguments.only is not None:
            verdict = asyncio.run(fuzzer.play(arguments.only))
            print(make_case(arguments.seed, arguments.only, truth), *verdict.problems, sep="\n")
            return int(bool(verdict.problems))
        document = run(fuzzer, server, log, arguments)
    stored = json.loads(arguments.result.read_text()) if arguments.result.is_file() else {}
    write_result(arguments.result, {**stored, arguments.through: document})
    print(json.dumps(document, indent=2), *fuzzer.examples, sep="\n")
    return int(not document["is_met"])


class Fuzzer:
    """Plays cases beside well-behaved clients, and counts."""

    def __init__(self, port: int, truth: Truth, seed: int, *, is_proxied: bool) -> None:
        self.seed = seed
        self.is_proxied = is_proxied
        self.truth = truth
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.victims: Counter[str] = Counter()
        self.examples: list[str] = []
        self._port = port

    async def play(self, index: int) -> Verdict:
        """Play a case, and judge it."""
        case = make_case(self.seed, index, self.truth)
        seen = await play(case, self._port)
        verdict = judge(case, seen, is_proxied=self.is_proxied)
        self.kinds[case.kind] += 1
        self.outcomes[seen.outcome] += 1
        self.counts.update(
            connections=1, answers=verdict.answers, refusals=verdict.refusals, bytes=len(case.data),
            failing_connections=bool(verdict.problems),
        )  # fmt: skip
        for kind, detail in verdict.problems:
            self._blame(kind, f"{index} {case.kind}: {detail}")
        return verdict

    async def run(self, count: int, end: float, bar: tqdm) -> None:
        """Play so many cases, or until a monotonic time."""
        indices = iter(range(count))

        async def work() -> None:
            for index in indices:
                if time.monotonic() > end:
                    return
                await self.play(index)
                bar.update()

        victims = [asyncio.create_task(self._victim(number)) for number in range(VICTIMS)]
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        for victim in victims:
            victim.cancel()
        await asyncio.gather(*victims, return_exceptions=True)

    async def _victim(self, number: int) -> None:
        """Send valid requests, which must get their own numbers."""
        rng = random.Random(number)
        headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", headers=headers, timeout=30) as client:
            while True:
                await asyncio.sleep(THINK_SECONDS * 2 * rng.random())
                series = rng.randrange(SERIES)
                try:
                    reply = await client.post("/filter", content=self.truth.body(series, 2))
                except httpx.HTTPError as error:
                    self._blame("victim: unanswered", repr(error))
                    continue
                self.victims[str(reply.status_code)] += 1
                if reply.status_code != 200 or reply.json()["steps"] != self.truth.steps[series]:
                    self._blame("victim: wrong answer", reply.text[:200])

    def _blame(self, kind: str, detail: str) -> None:
        self.problems[kind] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{kind}: {detail}")


class LogWatch:
    """Reads the log while it is written: counts errors, and the cases whose bait was served."""

    def __init__(self, pipe: Path) -> None:
        self.baits: set[int] = set()
        self.levels: Counter[str] = Counter()
        self._pipe = pipe
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        rest, end = b"", os.open(self._pipe, os.O_RDONLY)
        while piece := os.read(end, LOG_PIECE):
            text, _, rest = (rest + piece).rpartition(b"\n")
            for level in (b"WARNING", b"ERROR", b"CRITICAL"):
                self.levels[level.decode()] += text.count(b'"' + level + b'"')
            self.baits.update(int(match[2], 16) for match in NONCE.finditer(text.decode()) if match[1] == "b")


@contextmanager
def _serving() -> Iterator[tuple[Server, LogWatch]]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        pipe = Path(name) / "log"
        os.mkfifo(pipe)
        watch = LogWatch(pipe)
        settings: dict[str, Any] = {**SETTINGS, "bundles": BUNDLE, "key": KEY, "log": pipe}
        with Server(Path(name), environment={"OMP_NUM_THREADS": "1"}, **settings) as server:
            yield server, watch
            server.end()


def run(fuzzer: Fuzzer, server: Server, log: LogWatch, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the cases. Return the document to store."""
    processes, begun = sorted(server.children()), time.monotonic()
    sizes = [_resident(server)]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(1.0):
            sizes.append(_resident(server))

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    with tqdm(total=arguments.connections, unit=" connections", mininterval=1) as bar:
        asyncio.run(fuzzer.run(arguments.connections, begun + arguments.seconds, bar))
    seconds = time.monotonic() - begun
    is_over.set()
    watching.join()
    with suppress(TooLate):
        wait_until(lambda: not any(_held(server).values()))
    sizes.append(_resident(server))
    warm, end = sum(sizes[int(WARM_UP_SHARE * len(sizes))]), sum(sizes[-1])
    document = {
        **origin("python -m tests.soak.wire"),
        "settings": SETTINGS,
        "seed": fuzzer.seed,
        **fuzzer.counts,
        "connections_per_second": round(fuzzer.counts["connections"] / seconds, 1),
        "cases": dict(fuzzer.kinds.most_common()),
        "outcomes": dict(fuzzer.outcomes),
        "problems": dict(fuzzer.problems.most_common()),
        "served_baits": _served_baits(fuzzer, log),
        "victims": dict(fuzzer.victims),
        "log": dict(log.levels),
        "gauges_at_the_end": _held(server),
        "is_same_processes": sorted(server.children()) == processes,
        "rss": {"warm": warm, "end": end, "largest_process": max(map(max, sizes)), "growth": round(end / warm - 1, 4)},
    }
    document["is_met"] = is_met(document)
    return document


def is_met(document: dict[str, Any]) -> bool:
    """Return whether every answer is right, no process died, no resource is held, and the log is as expected."""
    return (
        not document["problems"]
        and not document["served_baits"]
        and not any(document["gauges_at_the_end"].values())
        and document["is_same_processes"]
        and not document["log"].get("ERROR")
        and document["rss"]["growth"] <= LARGEST_GROWTH
        and document["rss"]["largest_process"] <= MOST_RESIDENT
    )


def _served_baits(fuzzer: Fuzzer, log: LogWatch) -> int:
    """Count served baits. A proxy drops some bad lines, after which what follows may be a request to it."""
    cases = (make_case(fuzzer.seed, index, fuzzer.truth) for index in log.baits)
    return sum(not fuzzer.is_proxied or all(part.outcome == "answered" for part in case.parts) for case in cases)


def _resident(server: Server) -> list[int]:
    sizes = [0]
    for pid in server.children():
        with suppress(psutil.NoSuchProcess):
            sizes.append(psutil.Process(pid).memory_info().rss)
    return sizes


def _held(server: Server) -> dict[str, float]:
    """Return the held resources, summed over the processes, without the connection of the request."""
    totals = {f"rfa_{name}": sum(server.gauge(name).values()) for name in GAUGES}
    totals["rfa_open_connections"] -= 1
    return totals


if __name__ == "__main__":
    raise SystemExit(main())
