"""Well-behaved clients in a process, for use beside an attack or fault. They record answers and latencies.

Live streams get observations at fixed times (an open loop: latency is measured from the time an observation is due).
Every answer is compared with results computed before the run. A one-shot client repeatedly opens new connections, as
the probe of an orchestrator does.

The process reads lines of JSON, `{"open": URL}` and `{"close": true}`, and answers each with one line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np

from rfa.benchmarks.load.check import SeriesTruth
from rfa.benchmarks.load.live import LiveStream, open_streams
from rfa.benchmarks.load.pacing import Pacer, periodic
from rfa.benchmarks.load.scenario import LiveLoad
from rfa.benchmarks.load.tally import Tally, Window
from rfa.benchmarks.load.truth import FilterQuestion, open_models, series_truths
from tests.soak.faults.cast import FILTERS, ROOT

VISIT_SECONDS = 0.5
# The usual timeout of a probe.
VISIT_PATIENCE = 1.0
CLOSE_SECONDS = 40.0


@dataclass(frozen=True)
class Span:
    """An interval of the monotonic clock."""

    begin: float
    end: float

    def holds(self, at: float) -> bool:
        """Return whether a time is in the interval."""
        return self.begin <= at < self.end


@dataclass(frozen=True)
class Latencies:
    """Latencies of observations due in an interval, in milliseconds. None if there were none."""

    count: int
    p50: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, samples: Sequence[tuple[float, float]], window: Span) -> Latencies:
        """Compute the latencies of (due, seconds) pairs due in an interval."""
        inside = [1000 * seconds for due, seconds in samples if window.holds(due)]
        if not inside:
            return cls(0, None, None, None)
        p50, p99 = np.percentile(inside, (50, 99))
        return cls(len(inside), round(float(p50), 2), round(float(p99), 2), round(max(inside), 2))


@dataclass(frozen=True)
class Seen:
    """Records of the well-behaved clients.

    Attributes:
        samples: (due, seconds) of every answered observation. lateness: Lateness of the client itself.
        absent: Observations without an answer. wrong: Wrong answers by kind. errors: Ends of streams by kind.
        visits: (start, seconds) of answered one-shot requests. missed: (start, reason) of the others.
    """

    samples: list[tuple[float, float]]
    lateness: list[tuple[float, float]]
    absent: int
    wrong: dict[str, int]
    errors: dict[str, int]
    examples: list[str]
    visits: list[tuple[float, float]]
    missed: list[tuple[float, str]]

    def p99_ms(self, begin: float, end: float) -> float:
        """Return the 99th percentile of latencies due between two times, in milliseconds.

        Raises:
            ValueError: There were none.
        """
        p99 = Latencies.of(self.samples, Span(begin, end)).p99
        if p99 is None:
            raise ValueError("the good clients were idle")
        return p99


class Live:
    """Handle of the process.

    Args:
        seconds: Longest time for which streams stay open; it sets the number of expected answers.
        streams, rate: Number of streams, and observations per second on each.
        filters: Bundles used in turn.
    """

    def __init__(self, seconds: float, streams: int, rate: float, filters: Sequence[str] = FILTERS) -> None:
        self._process = Popen(
            [sys.executable, "-m", "tests.soak.live", str(seconds), str(streams), str(rate), *filters],
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the process that started this one, and ends it
        )

    def wait_until_prepared(self) -> None:
        """Wait until the expected answers are computed.

        Raises:
            RuntimeError: The process ended.
        """
        self._read()

    def open(self, url: str) -> int:
        """Open the streams and begin. Return the number of opened streams."""
        opened: int = self._ask({"open": url})
        return opened

    def close(self) -> Seen:
        """End the streams. Return the records since `open`."""
        return Seen(**self._ask({"close": True}))

    def _ask(self, document: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(document) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the good clients ended")
        return json.loads(line)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class Samples(Tally):
    """A tally that keeps every latency with its due time and counts the whole run."""

    def __init__(self) -> None:
        super().__init__(Window(0.0, 0.0, 1.0))
        self.kept: dict[str, list[tuple[float, float]]] = {"observation": [], "lateness": []}

    def latency(self, metric: str, due: float, seconds: float) -> None:
        """Record a latency."""
        self.kept[metric].append((round(due, 4), round(seconds, 5)))

    def count(self, name: str, due: float, amount: int = 1) -> None:
        """Count, independent of the due time."""
        self.counts[name] += amount


class Visitor:
    """Requests /health on a new connection twice per second."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = host, int(port)
        self.visits: list[tuple[float, float]] = []
        self.missed: list[tuple[float, str]] = []

    async def run(self) -> None:
        """Run until cancelled. Visits may overlap."""
        visits: set[asyncio.Task[None]] = set()
        try:
            while True:
                visit = asyncio.create_task(self._visit(time.monotonic()))
                visits.add(visit)
                visit.add_done_callback(visits.discard)
                await asyncio.sleep(VISIT_SECONDS)
        finally:
            await asyncio.gather(*visits)

    async def _visit(self, begun: float) -> None:
        try:
            async with asyncio.timeout(VISIT_PATIENCE):
                status = await self._ask()
        except (OSError, TimeoutError) as error:
            self.missed.append((begun, type(error).__name__))
            return
        if status == 200:
            self.visits.append((begun, time.monotonic() - begun))
        else:
            self.missed.append((begun, f"status {status}"))

    async def _ask(self) -> int:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            first = await reader.readline()
            await reader.read()
            return int(first[9:12]) if first.startswith(b"HTTP/1.1 ") else 0
        finally:
            writer.close()


class Session:
    """Streams and visits from `open` to `close`."""

    def __init__(self, url: str, load: LiveLoad, truths: Mapping[str, SeriesTruth]) -> None:
        self._tally = Samples()
        self._visitor = Visitor(url)
        self._url = url
        self._truths = truths
        self._load = load
        names = list(truths)
        self._streams = [
            LiveStream(number, truths[model], replace(load, model=model), self._tally, None)
            for number in range(load.streams)
            for model in [names[number % len(names)]]
        ]

    async def open(self) -> int:
        """Connect and begin."""
        await open_streams(self._url, {}, self._streams)
        length = min(map(len, self._truths.values()))
        start = time.monotonic()
        rate = self._load.rate
        pacer = Pacer(start + (length - 1) / rate)
        for number, stream in enumerate(self._streams):
            pacer.add(periodic(rate, start, np.random.default_rng(number)), stream.observe)
        self._running = [asyncio.create_task(pacer.run()), asyncio.create_task(self._visitor.run())]
        return self._load.streams - sum(self._tally.errors.values())

    async def close(self) -> Seen:
        """End, and wait for the last answers."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.gather(*(stream.close(CLOSE_SECONDS) for stream in self._streams))
        counts = self._tally.counts
        return Seen(
            self._tally.kept["observation"],
            self._tally.kept["lateness"],
            counts["observation.unanswered"] + counts["observation.unsent"],
            dict(self._tally.wrong),
            dict(self._tally.errors),
            self._tally.examples,
            self._visitor.visits,
            self._visitor.missed,
        )


def _come_first() -> None:
    """Get priority over the server and the attacker if the system allows it, as if on another machine.

    This needs another scheduler: with autogroup, niceness counts only within a session, and these clients waited for up
    to half a second.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


async def _serve(seconds: float, load: LiveLoad, filters: Sequence[str]) -> None:
    _come_first()
    length = int(load.rate * seconds) + 1
    runtimes = open_models([Path(ROOT / "bundles" / name) for name in filters]).filters
    truths = {
        name: series_truths(runtimes[name], FilterQuestion(load.levels), [0], length, lambda done: None)[0]
        for name in filters
    }
    _write("prepared")
    session: Session | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "open" in order:
            session = Session(order["open"], load, truths)
            _write(await session.open())
        elif session is not None:
            _write(vars(await session.close()))


def _write(document: Any) -> None:
    print(json.dumps(document), flush=True)


if __name__ == "__main__":
    seconds, streams, rate, *filters = sys.argv[1:]
    asyncio.run(_serve(float(seconds), LiveLoad(int(streams), float(rate)), filters))
