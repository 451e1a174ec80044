"""A process that offers load: `python -m rfa.benchmarks.load.generator`, driven by lines of JSON.

in   {"scenario": …, "url", "bundles", "index", "of"}    compute the expected results of this share
out  {"progress": 1} …  {"prepared": true}
in   {"run": scenario}                                   open the connections
out  {"connected": true}
in   {"start": time on the monotonic clock}              offer the load
out  {"result": …}                                       the next run may follow
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from rfa.benchmarks.load.check import SeriesTruth, TextTruth
from rfa.benchmarks.load.live import LiveStream, open_streams
from rfa.benchmarks.load.pacing import Pacer, periodic, poisson
from rfa.benchmarks.load.requests import BatchRequests, TextRequests, open_session
from rfa.benchmarks.load.scenario import LiveLoad, Scenario, scenario_from
from rfa.benchmarks.load.tally import Tally, Window
from rfa.benchmarks.load.truth import FilterQuestion, Progress, open_models, series_truths, text_truths

DRAIN_SECONDS = 60.0
BATCH_LEVELS = (0.9,)
_SCHEDULE_SEED = 20_260


def authorization() -> dict[str, str]:
    """Return the header with the API key in `RFA_API_KEY`, or no headers if it is not set."""
    key = os.environ.get("RFA_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True)
class Share:
    """Part of the load that this process sends: every `of`-th stream, and 1 / `of` of every rate."""

    index: int = 0
    of: int = 1

    def numbers(self, count: int) -> range:
        """Return the streams, series or cases of this process."""
        return range(self.index, count, self.of)


@dataclass(frozen=True)
class Truths:
    """The expected replies to this process."""

    text: Sequence[TextTruth]
    live: Sequence[SeriesTruth]
    batch: Sequence[SeriesTruth]


def longest_live(scenario: Scenario) -> int:
    """Return the maximum number of observations of a live stream: its rate plus six deviations of a Poisson count."""
    expected = scenario.live.rate * (scenario.warmup_seconds + scenario.seconds)
    return math.ceil(expected + 6 * math.sqrt(expected)) + 10


def truth_count(scenario: Scenario, share: Share) -> int:
    """Return the number of results that `prepare` computes, for its progress bar."""
    return sum(len(part) for part in _indices(scenario, share))


def _indices(scenario: Scenario, share: Share) -> tuple[range, range, range]:
    text, live, batch = scenario.text, scenario.live, scenario.batch
    has_text = text.streams or text.rate or scenario.kind == "overload"
    return (
        share.numbers(max(text.cases, share.of) if has_text else 0),
        share.numbers(max(min(live.series, live.streams), share.of) if live.streams else 0),
        share.numbers(max(batch.series, share.of) if batch.rate else 0),
    )


def prepare(scenario: Scenario, bundles: Sequence[Path], share: Share, progress: Progress) -> Truths:
    """Compute the expected results of a share."""
    models = open_models(bundles)
    text, live, batch = _indices(scenario, share)

    def of_filter(name: str | None, question: FilterQuestion, indices: range, length: int) -> list[SeriesTruth]:
        if not indices:
            return []
        runtime = models.filters[name] if name is not None else next(iter(models.filters.values()))
        return series_truths(runtime, question, indices, length, progress)

    ask = scenario.live
    return Truths(
        text_truths(models, scenario.text, text, progress) if text else [],
        of_filter(ask.model, FilterQuestion(ask.levels, ask.horizon, ask.samples), live, longest_live(scenario)),
        of_filter(
            scenario.batch.model,
            FilterQuestion(BATCH_LEVELS, (), scenario.batch.samples),
            batch,
            scenario.batch.length,
        ),
    )


class Generator:
    """One run of one share: connect, offer the load from a common start, then wait for pending requests."""

    def __init__(self, scenario: Scenario, url: str, share: Share, truths: Truths) -> None:
        self._scenario = scenario
        self._url = url
        self._share = share
        self._truths = truths
        # Connections are opened before the start is known, and are not measured.
        self._tally = Tally(Window(math.inf, scenario.warmup_seconds, scenario.seconds))
        self._streams: list[LiveStream] = []

    async def connect(self) -> None:
        """Open the live streams."""
        live, goodput = self._scenario.live, self._scenario.goodput
        self._streams = [
            LiveStream(
                number,
                self._truths.live[position % len(self._truths.live)],
                live,
                self._tally,
                goodput.get("observation_ms"),
            )
            for position, number in enumerate(self._share.numbers(live.streams))
        ]
        await open_streams(self._url, authorization(), self._streams)

    async def run(self, start: float) -> dict[str, Any]:
        """Offer the load from `start` on, and return the tally and the cost of this process as a document."""
        scenario, tally = self._scenario, self._tally
        tally.window = Window(start, scenario.warmup_seconds, scenario.seconds)
        gc.collect()
        gc.freeze()  # the garbage collector need not traverse the expected results
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        cpu = time.process_time()
        async with open_session(self._url, authorization()) as session:
            goodput = {str(name): limit for name, limit in scenario.goodput.items()}
            text = TextRequests(session, tally, goodput, self._truths.text)
            batch = BatchRequests(session, tally, goodput, self._truths.batch, scenario.batch, BATCH_LEVELS)
            loops = [asyncio.ensure_future(text.keep_sending(first)) for first in self._staggered(start)]
            await self._pacer(text, batch).run()
            cpu = time.process_time() - cpu
            await asyncio.gather(*(stream.close(DRAIN_SECONDS) for stream in self._streams))
            await text.finish(DRAIN_SECONDS)
            await batch.finish(DRAIN_SECONDS)
            await _end_loops(loops, tally)
        return {"tally": tally.to_document(), "cpu_share": cpu / (tally.window.end - start)}

    def _staggered(self, start: float) -> list[float]:
        """Spread the first sends of the closed loops over the warm-up, to avoid a burst of prompts."""
        count = self._scenario.text.streams
        gap = self._scenario.warmup_seconds / max(count, 1)
        return [start + gap * number for number in self._share.numbers(count)]

    def _pacer(self, text: TextRequests, batch: BatchRequests) -> Pacer:
        scenario, share, window = self._scenario, self._share, self._tally.window
        pacer = Pacer(window.end)
        rng = np.random.default_rng([_SCHEDULE_SEED, share.index])
        if scenario.text.rate:
            pacer.add(poisson(scenario.text.rate / share.of, window.start, rng), text.send)
        if scenario.batch.rate:
            pacer.add(poisson(scenario.batch.rate / share.of, window.start, rng), batch.send)
        for stream in self._streams:
            pacer.add(_arrivals(scenario.live, window.start, rng), stream.observe)
        return pacer


def _arrivals(live: LiveLoad, start: float, rng: np.random.Generator) -> Any:
    draw = periodic if live.arrivals == "periodic" else poisson
    # Each Poisson stream has its own random generator, so its times do not depend on other streams.
    return draw(live.rate, start, np.random.default_rng(rng.integers(2**63)))


async def _end_loops(loops: Sequence[asyncio.Task[None]], tally: Tally) -> None:
    if not loops:
        return
    _, pending = await asyncio.wait(loops, timeout=DRAIN_SECONDS)
    for task in pending:
        tally.error("text not answered")
        task.cancel()
    results = await asyncio.gather(*loops, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def _say(document: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def _serve(order: dict[str, Any], share: Share, truths: Truths) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        scenario = scenario_from(order["name"], json.loads(line)["run"])
        generator = Generator(scenario, order["url"], share, truths)
        await generator.connect()
        _say({"connected": True})
        start = json.loads(await asyncio.to_thread(sys.stdin.readline))["start"]
        _say({"result": await generator.run(start)})


def main() -> None:
    """Answer the lines of standard input until it ends."""
    order = json.loads(sys.stdin.readline())
    share = Share(order["index"], order["of"])
    scenario = scenario_from(order["name"], order["scenario"])
    bundles = [Path(bundle) for bundle in order["bundles"]]
    truths = prepare(scenario, bundles, share, lambda done: _say({"progress": done}))
    _say({"prepared": True})
    uvloop.run(_serve(order, share, truths))


if __name__ == "__main__":
    main()
