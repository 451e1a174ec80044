"""A process that runs its share of the cases beside well-behaved clients, and judges the answers."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from tests.soak.wire.application import LAST_FRAME, Truth
from tests.soak.wire.case import Case, Step
from tests.soak.wire.client import play
from tests.soak.wire.judge import judge, read_case
from tests.soak.wire.make_case import make_case
from tests.soak.wire.readings import Reading
from tests.soak.wire.rfc6455 import read_frames
from tests.soak.wire.verdict import Problem, Seen, Verdict
from tests.soak.wire.victims import Victim

AT_ONCE = 96
TELL_SECONDS = 1.0
KEPT_OF_A_KIND = 5
VICTIMS = 4


@dataclass(frozen=True)
class Task:
    """The work of one process.

    Attributes:
        port: Port of the cases. Well-behaved clients use it and `direct_port`.
        share: Number of this process, and number of processes: it runs every n-th case.
        ends_at: Monotonic time after which no case begins.
    """

    seed: int
    connections: int
    port: int
    direct_port: int
    share: tuple[int, int]
    ends_at: float
    truth: Truth
    is_proxied: bool


@dataclass
class Report:
    """Figures since the last report.

    Attributes:
        problems: Count of each problem.
        cases: Number of cases of each kind.
        failures: Documents of the first cases of each kind of problem.
    """

    done: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    failing: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    victims: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Add the figures of another report."""
        self.done += other.done
        self.failing += other.failing
        for name in ("counts", "problems", "cases", "outcomes", "victims"):
            getattr(self, name).update(getattr(other, name))
        self.failures += other.failures


def generate(task: Task, pipe: Connection) -> None:
    """Run a share of the cases. Reports are sent through the pipe, and None at the end."""
    uvloop.run(_Generator(task, pipe).run())
    pipe.send(None)
    pipe.close()


class _Generator:
    def __init__(self, task: Task, pipe: Connection) -> None:
        self._task = task
        self._pipe = pipe
        self._report = Report()
        self._kept: Counter[str] = Counter()
        number, count = task.share
        self._indices: Iterator[int] = iter(range(number, task.connections, count))

    async def run(self) -> None:
        victims = [
            Victim(str(10 * self._task.share[0] + number), port, self._task.truth, self._task.seed, self._blame_victim)
            for number, port in enumerate(itertools.islice(itertools.cycle(self._ports()), VICTIMS))
        ]
        beside = [asyncio.create_task(victim.live()) for victim in victims]
        beside.append(asyncio.create_task(self._tell()))
        try:
            await asyncio.gather(*(self._work() for _ in range(AT_ONCE)))
        finally:
            for task in beside:
                task.cancel()
            ended = await asyncio.gather(*beside, return_exceptions=True)
        for victim in victims:
            self._report.victims.update(victim.tally)
        self._send()
        for error in ended:
            if isinstance(error, Exception):
                raise error

    def _ports(self) -> list[int]:
        return list(dict.fromkeys((self._task.port, self._task.direct_port)))

    async def _work(self) -> None:
        task = self._task
        for index in self._indices:
            if time.monotonic() > task.ends_at:
                return
            case = make_case(task.seed, index, task.truth, is_proxied=task.is_proxied)
            await self._play(case)

    async def _play(self, case: Case) -> None:
        found = read_case(case)
        case = unhurried_few(case, found)
        seen = await play(case, self._task.port)
        verdict = judge(case, seen, self._task.truth, found, is_proxied=self._task.is_proxied)
        self._count(case, seen, verdict)

    def _count(self, case: Case, seen: Seen, verdict: Verdict) -> None:
        report = self._report
        report.done += 1
        report.cases[case.kind] += 1
        report.outcomes[seen.outcome] += 1
        report.counts["answers"] += verdict.answers
        report.counts["refusals"] += verdict.refusals
        report.counts["overloads"] += verdict.overloads
        report.counts["bytes"] += len(case.data)
        report.failing += bool(verdict.problems)
        for kind in dict.fromkeys(problem.kind for problem in verdict.problems):
            report.problems[kind] += 1
            key = f"{kind} / {case.kind}"
            self._kept[key] += 1
            if self._kept[key] <= KEPT_OF_A_KIND:
                report.failures.append(failure(case, seen, verdict))

    def _blame_victim(self, problem: Problem) -> None:
        kind = f"victim: {problem.kind}"
        self._report.problems[kind] += 1
        self._kept[kind] += 1
        if self._kept[kind] <= KEPT_OF_A_KIND:
            self._report.failures.append({"problems": [[kind, problem.detail]]})

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            self._send()

    def _send(self) -> None:
        self._pipe.send(self._report)
        self._report = Report()


def unhurried_few(case: Case, found: Sequence[Reading]) -> Case:
    """Let all but one in twenty cases that would wait for a timeout of the server leave earlier."""
    is_waiting = all(_is_open(case, reading) for reading in found)
    if not is_waiting or case.is_cut_short or case.half_closes or case.index % 20 == 0:
        return case
    return case.with_steps([*case.steps, Step("half-close") if case.index % 2 else Step("leave")])


def _is_open(case: Case, reading: Reading) -> bool:
    """Return whether a server would wait for more."""
    if reading.ending != "switched":
        return reading.ending in ("in head", "in body", "boundary")
    sent = read_frames(case.data[reading.at :], "client")
    is_ended = sent.close is not None or LAST_FRAME in sent.messages
    return not is_ended and (sent.is_inside or not sent.faults)


def failure(case: Case, seen: Seen, verdict: Verdict) -> dict[str, Any]:
    """Return a failing case as a line for `--replay`."""
    return {
        **case.to_json(),
        "problems": [[problem.kind, problem.detail] for problem in verdict.problems],
        "reading": verdict.reading,
        "outcome": seen.outcome,
        "received": base64.b64encode(seen.received[:4_000]).decode(),
    }
