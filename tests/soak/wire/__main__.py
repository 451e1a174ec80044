"""Fuzz the wire of a real server, direct or through nginx, and report violations.

    python -m tests.soak.wire --connections 1000000
    python -m tests.soak.wire --connections 1000000 --through nginx
    python -m tests.soak.wire --replay failures.jsonl

The exit code is 1 after a wrong answer, the loss of a process, or resources that are not released at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rfa.measured import RESULTS, origin, write_result
from tests.soak.wire.application import Truth, compute_truth
from tests.soak.wire.case import Case
from tests.soak.wire.client import SILENCE_SECONDS, play
from tests.soak.wire.generator import Report, Task, generate
from tests.soak.wire.judge import judge, read_case
from tests.soak.wire.make_case import make_case
from tests.soak.wire.nginx import THROUGH, Through, proxied
from tests.soak.wire.served import SETTINGS, Served, serving
from tests.soak.wire.verdict import Verdict

RESULT = RESULTS / "wire.json"
WARM_UP_SHARE = 0.1
LARGEST_GROWTH = 0.10
MOST_RESIDENT = 700 * 10**6


def main() -> int:
    """Run the command line. Return 1 if something was wrong."""
    arguments = _arguments()
    truth = compute_truth()
    with serving() as served, proxied(arguments.through, served.port) as port:
        if arguments.replay:
            return _replay(arguments.replay, port, truth, is_proxied=port != served.port)
        document, failures = fuzz(served, port, truth, arguments)
    if arguments.out:
        arguments.out.write_text("".join(json.dumps(line) + "\n" for line in failures))
    _store(arguments.result, arguments.through, document)
    print(json.dumps({name: document[name] for name in SHOWN}, indent=2))
    return 0 if document["is_met"] else 1


SHOWN = ("connections", "connections_per_second", "failing_connections", "problems", "served_baits", "victims",
         "gauges_at_the_end", "is_same_processes", "rss", "is_met")  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Streams of bytes with framing lies, judged by a reference parse.")
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--through", choices=THROUGH, default="direct")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no case begins after so long")
    parser.add_argument("--processes", type=int, default=2, help="that generate")
    parser.add_argument("--out", type=Path, help="failing cases, a line of JSON each")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--replay", type=Path, help="play the failing cases of this file once more, and nothing else")
    return parser.parse_args()


def fuzz(
    served: Served, port: int, truth: Truth, arguments: argparse.Namespace
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the cases, and return the document to store and the failing cases."""
    is_proxied = port != served.port
    begun = time.monotonic()
    first_rss = served.resident()
    total, readings = Report(), [(0, sum(first_rss), max(first_rss))]
    with (
        _generators(served, port, truth, arguments) as pipes,
        tqdm(total=arguments.connections, unit=" connections", mininterval=1) as bar,
    ):
        for report in _reports(pipes):
            total.add(report)
            bar.update(report.done)
            bar.set_postfix(failing=total.failing, refresh=False)
            resident = served.resident()
            readings.append((total.done, sum(resident), max(resident, default=0)))
    seconds = time.monotonic() - begun
    gauges = served.settled()
    resident = served.resident()
    baits = _served_baits(served, truth, arguments.seed, is_proxied=is_proxied)
    warm = next((rss for done, rss, _ in readings if done >= WARM_UP_SHARE * total.done), readings[-1][1])
    document = {
        **origin("python -m tests.soak.wire"),
        "settings": SETTINGS,
        "seed": arguments.seed,
        "connections": total.done,
        "connections_per_second": round(total.done / seconds, 1),
        "cases": dict(total.cases.most_common()),
        "outcomes": dict(total.outcomes),
        **dict(total.counts),
        "failing_connections": total.failing,
        "problems": dict(total.problems.most_common()),
        "served_baits": baits,
        "victims": dict(total.victims),
        "log": {**served.watch.levels, "examples": served.watch.examples[:3]},
        "gauges_at_the_end": gauges,
        "is_same_processes": sorted(served.children()) == served.pids,
        "rss": {
            "start": sum(first_rss),
            "warm": warm,
            "end": sum(resident),
            "largest_process": max(most for _, _, most in readings),
            "growth": round(sum(resident) / warm - 1, 4),
        },
    }
    document["is_met"] = is_met(document)
    return document, total.failures


def is_met(document: dict[str, Any]) -> bool:
    """Return whether every answer is right, no process died, no resource is held, and the log is as expected."""
    return (
        not document["problems"]
        and not document["served_baits"]
        and not any(document["gauges_at_the_end"].values())
        and document["is_same_processes"]
        and not document["log"]["ERROR"]
        and document["rss"]["growth"] <= LARGEST_GROWTH
        and document["rss"]["largest_process"] <= MOST_RESIDENT
    )


@contextmanager
def _generators(served: Served, port: int, truth: Truth, arguments: argparse.Namespace) -> Iterator[list[Connection]]:
    """Start the generating processes, and yield one end of a pipe to each."""
    context = multiprocessing.get_context("spawn")
    ends_at = time.monotonic() + arguments.seconds
    processes, pipes = [], []
    for number in range(arguments.processes):
        task = Task(
            arguments.seed, arguments.connections, port, served.port, (number, arguments.processes), ends_at, truth,
            port != served.port,
        )  # fmt: skip
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=generate, args=(task, theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    try:
        yield pipes
    finally:
        for process in processes:
            process.join(SILENCE_SECONDS)
            process.kill()


def _reports(pipes: list[Connection]) -> Iterator[Report]:
    left = list(pipes)
    while left:
        for pipe in wait(left):
            assert isinstance(pipe, Connection)
            try:
                report = pipe.recv()
            except EOFError:
                raise RuntimeError("a generating process died") from None
            if report is None:
                left.remove(pipe)
            else:
                yield report


def _served_baits(served: Served, truth: Truth, seed: int, *, is_proxied: bool) -> int:
    """Return the cases whose log shows a request from within a body, although no reading contains it."""
    count = 0
    for index in list(served.watch.baits):
        found = read_case(make_case(seed, index, truth, is_proxied=is_proxied))
        if is_proxied and any(reading.why for reading in found):
            continue  # a proxy accepts and forwards much that it should reject
        due = [request for reading in found for request in (*reading.requests, reading.unfinished) if request]
        count += not any(b"-b-" in value for request in due for value in request.values(b"x-request-id"))
    return count


async def replay(case: Case, port: int, truth: Truth, *, is_proxied: bool) -> Verdict:
    """Run a case again and judge it."""
    found = read_case(case)
    seen = await play(case, port, SILENCE_SECONDS)
    return judge(case, seen, truth, found, is_proxied=is_proxied)


def _replay(path: Path, port: int, truth: Truth, *, is_proxied: bool) -> int:
    """Run stored cases again."""
    worst = 0
    for number, text in enumerate(path.read_text().splitlines()):
        line = json.loads(text)
        if "steps" not in line:
            continue
        case = Case.from_json(line)
        verdict = asyncio.run(replay(case, port, truth, is_proxied=is_proxied))
        worst |= bool(verdict.problems)
        reported = [f"{problem.kind}: {problem.detail}" for problem in verdict.problems] or ["as it must be"]
        print(
            f"{number} {case.kind} {case.data[:2_000]!r}\n    reading: {verdict.reading}\n    "
            + "\n    ".join(reported)
        )
    return worst


def _store(path: Path, through: Through, document: dict[str, Any]) -> None:
    """Store a result beside those of other settings."""
    stored = json.loads(path.read_text()) if path.is_file() else {}
    stored[through] = document
    write_result(path, stored)


if __name__ == "__main__":
    raise SystemExit(main())
