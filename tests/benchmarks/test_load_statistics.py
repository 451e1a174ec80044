"""Percentiles, time slices, sums over processes, schedules, and what becomes of them in a report."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest

from rfa.benchmarks.load.controller import Run
from rfa.benchmarks.load.histogram import PERCENTILES, RESOLUTION, Histogram
from rfa.benchmarks.load.overload import run_overload
from rfa.benchmarks.load.pacing import Pacer, poisson
from rfa.benchmarks.load.report import describe, judge
from rfa.benchmarks.load.scenario import LiveLoad, Scenario, TextLoad
from rfa.benchmarks.load.server import ServerError
from rfa.benchmarks.load.tally import Tally, Window

LIVE = Scenario("live", seconds=10.0, warmup_seconds=2.0, live=LiveLoad(streams=1))
WINDOW = Window(100.0, 2.0, 10.0)


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0])
def test_percentiles_are_those_of_numpy_to_the_resolution(spread):
    values = np.exp(np.random.default_rng(0).normal(math.log(5e-3), spread, 20_000))
    histogram = Histogram(1, 1.0)
    for value in values.tolist():
        histogram.record(0.0, value)
    for percent in PERCENTILES.values():
        exact = np.percentile(values, percent, method="inverted_cdf")
        assert exact <= histogram.percentile(percent) <= exact * (1 + RESOLUTION) ** 1.001
    assert histogram.percentile(100) == histogram.largest == values.max()
    assert histogram.total == 20_000


def test_histograms_of_processes_add_up():
    rng = np.random.default_rng(1)
    parts, whole = [Histogram(4, 1.0) for _ in range(3)], Histogram(4, 1.0)
    for index, (due, seconds) in enumerate(zip(rng.uniform(0, 4, 900), rng.exponential(0.01, 900), strict=True)):
        for histogram in (parts[index % 3], whole):
            histogram.record(float(due), float(seconds))
    merged = Histogram.from_documents(json.loads(json.dumps(part.to_document())) for part in parts)
    assert (merged.counts == whole.counts).all()
    assert merged.largest == whole.largest
    with pytest.raises(ValueError, match="time slices"):
        Histogram.from_documents([whole.to_document(), Histogram(5, 1.0).to_document()])


def test_warm_up_is_not_measured_but_its_mistakes_count():
    tally = Tally(WINDOW)
    for due in (100.0, 101.9, 102.0, 111.9, 112.0):
        tally.latency("ttft", due, 0.01)
        tally.count("text.sent", due)
    tally.mistake("numbers", "in the warm-up")
    assert tally.histograms["ttft"].total == tally.counts["text.sent"] == 2
    merged = Tally.from_documents(WINDOW, [tally.to_document(), tally.to_document(), Tally(WINDOW).to_document()])
    assert merged.histograms["ttft"].total == merged.counts["text.sent"] == 4
    assert merged.wrong == {"numbers": 2}
    assert len(merged.examples) == 2


def test_the_pacer_sends_everything_that_is_due_in_order_and_never_early():
    sent: list[tuple[float, float]] = []

    async def run() -> None:
        start = time.monotonic()
        pacer = Pacer(start + 0.2)
        for seed in range(5):
            schedule = poisson(200.0, start, np.random.default_rng(seed))
            pacer.add(schedule, lambda due: sent.append((due, time.monotonic())))
        pacer.add(iter([start + 0.1]), lambda due: time.sleep(0.05))  # a generator that falls behind loses nothing
        await pacer.run()
        expected = sum(
            due < start + 0.2
            for seed in range(5)
            for due in islice(poisson(200.0, start, np.random.default_rng(seed)), 500)
        )
        assert len(sent) == expected

    asyncio.run(run())
    assert all(due <= at for due, at in sent)
    assert all(earlier[0] <= later[0] for earlier, later in pairwise(sent))
    assert max(at - due for due, at in sent) >= 0.02  # what was due while it slept is late, and is seen to be


def run_with(scenario=LIVE, server=None, **counts):
    tally = Tally(WINDOW)
    for _ in range(99):
        tally.latency("observation", 105.0, 0.010)
    tally.latency("observation", 105.0, 0.500)
    tally.counts.update({name.replace("_", "."): value for name, value in counts.items()})
    return Run(scenario, tally, [0.1], server)


def test_every_budget_is_judged():
    budget = {
        "observation_p50_ms": 11,
        "observation_max_ms": 499,
        "ttft_p99_ms": 1000,
        "max_errors": 1,
        "min_goodput": 0.8,
        "max_rss_growth": 0.1,
    }
    run = run_with(server={"rss_growth": 0.05}, observation_sent=4, observation_good=3, observation_unanswered=1)
    run.tally.error("close 1011")
    verdicts = {verdict.name: verdict for verdict in judge(replace(LIVE, budget=budget), describe(run))}
    assert {name for name, verdict in verdicts.items() if verdict.met} == {
        "observation_p50_ms",
        "max_rss_growth",
        "max_wrong",
    }
    assert verdicts["max_errors"].actual == 2  # one close, one observation without an answer
    assert verdicts["ttft_p99_ms"].actual is None  # never measured, so never met
    run.tally.mistake("numbers", "x")
    assert not judge(LIVE, describe(run))[-1].met


class Answering:
    """Generators that answer `capacity` requests a second in `seconds`, twice as slowly where more is offered."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.offered: list[TextLoad] = []

    async def run(self, scenario: Scenario, title: str) -> Run:
        self.offered.append(scenario.text)
        tally = Tally(Window(0.0, 0.0, scenario.seconds))
        rate = scenario.text.rate or self.capacity
        answered = int(min(rate, self.capacity) * scenario.seconds)
        for _ in range(answered):
            tally.latency("text", 0.0, 0.2 if rate > self.capacity else 0.1)
        tally.counts.update(
            {
                "text.answered": answered,
                "text.sent": int(rate * scenario.seconds),
                "text.rejected": int(rate * scenario.seconds) - answered,
            }
        )
        return Run(scenario, tally, [], None)


def test_overload_offers_multiples_of_the_measured_capacity():
    scenario = replace(LIVE, kind="overload", live=LiveLoad(), seconds=10.0)
    generators = Answering(20.0)
    run, measured = asyncio.run(run_overload(scenario, generators))  # type: ignore[arg-type]
    assert [load.rate for load in generators.offered] == [0.0, 16.0, 100.0]
    assert [load.streams for load in generators.offered] == [scenario.overload.streams, 0, 0]
    assert run.scenario.text.rate == 100.0
    assert measured["capacity_requests_per_second"] == 20.0
    assert measured["admitted_slowdown"] == pytest.approx(2.0, rel=2 * RESOLUTION)
    assert measured["rejected_share"] == 0.8
    with pytest.raises(ServerError, match="no request was answered"):
        asyncio.run(run_overload(scenario, Answering(0.0)))  # type: ignore[arg-type]
