"""Good clients, in a process of their own: live streams at a fixed rate, every answer timed and checked.

What a scenario does in its own process, such as closing thousands of sockets, then cannot pass for the server's
slowness. Both processes read the same monotonic clock.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from rfa.benchmarks.load.live import LiveStream, open_streams
from rfa.benchmarks.load.pacing import Pacer, periodic
from rfa.benchmarks.load.scenario import LiveLoad
from rfa.benchmarks.load.tally import Tally, Window
from rfa.benchmarks.load.truth import FilterQuestion, open_models, series_truths
from tests.soak.faults.cast import FILTERS, ROOT
from tests.waiting import PATIENCE

SERIES = 2
BUNDLE = ROOT / "bundles" / FILTERS[0]


class Samples(Tally):
    """A tally that keeps every latency with the time that it was due."""

    def __init__(self) -> None:
        super().__init__(Window(0.0, 0.0, 1.0))
        self.samples: list[tuple[float, float]] = []

    def latency(self, metric: str, due: float, seconds: float) -> None:
        """Note a latency of an observation."""
        if metric == "observation":
            self.samples.append((due, seconds))


@dataclass(frozen=True)
class GoodClients:
    """What good clients saw: (due, seconds) of every answer, failures, and wrong answers."""

    samples: Sequence[tuple[float, float]]
    errors: dict[str, int]
    wrong: dict[str, int]

    def p99_ms(self, begin: float, end: float) -> float:
        """99th percentile of what was due between two times, milliseconds.

        Raises:
            ValueError: nothing was.
        """
        inside = [seconds for due, seconds in self.samples if begin <= due < end]
        if not inside:
            raise ValueError("the good clients were idle")
        return round(1000 * float(np.percentile(inside, 99)), 3)


class Probe:
    """Good clients from here to `stop`.

    Args:
        url: of the server.
        streams, rate: how many, and observations a second on each.
        seconds: the longest that they will be needed.
    """

    def __init__(self, url: str, streams: int, rate: float, seconds: float) -> None:
        command = [sys.executable, "-m", "tests.soak.faults.probe", url, str(streams), str(rate), str(seconds)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Probe:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._process.kill()
            raise RuntimeError("the good clients cannot begin")
        return self

    def stop(self) -> GoodClients:
        """End the streams; what the clients saw."""
        out, _ = self._process.communicate(timeout=2 * PATIENCE)
        return GoodClients(**json.loads(out))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


async def _serve(url: str, streams: int, rate: float, seconds: float) -> dict[str, Any]:
    tally = Samples()
    load = LiveLoad(streams=streams, rate=rate, model=FILTERS[0])
    runtime = open_models([BUNDLE]).filters[FILTERS[0]]
    length = int(rate * seconds) + 1
    truths = series_truths(runtime, FilterQuestion(load.levels), range(SERIES), length, lambda done: None)
    clients = [LiveStream(number, truths[number % SERIES], load, tally, None) for number in range(streams)]
    await open_streams(url, {}, clients)
    start = time.monotonic()
    pacer = Pacer(start + seconds)
    for number, client in enumerate(clients):
        pacer.add(periodic(rate, start, np.random.default_rng(number)), client.observe)
    pacing = asyncio.create_task(pacer.run())
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    pacing.cancel()
    await asyncio.gather(*(client.close(PATIENCE) for client in clients))
    return {"samples": tally.samples, "errors": dict(tally.errors), "wrong": dict(tally.wrong)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])))))
