"""Filter jobs at work, alone and many series in one: shared steps, fair quanta, memory as it was leased."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.auto import AutoRuntime
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.forecast_checks import summarise
from rfa.runtime.uncertainty.input import as_array
from rfa.runtime.uncertainty.interface import FilterOptions, Row, Stepped
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter import many as many_series
from rfa.service.engine.filter import stages as filtering
from rfa.service.engine.filter.filter_job import Filtered, FilterJob
from rfa.service.engine.filter.many import ManyJob, SeriesEnd
from rfa.service.engine.filter.stages import FilterStage
from rfa.service.engine.filter.stream import FilterStreamOptions, Observed, StreamStep
from rfa.service.engine.reply_size import StepShape, series_bytes
from rfa.service.errors import InvalidRequest
from rfa.service.memory import MemoryBudget
from rfa.service.metrics import Metrics
from rfa.service.schemas.filter_replies import FilterTimings
from rfa.service.settings import Settings
from tests.service.models import FakeFilter, fake_models
from tests.service.test_reply_size import taken
from tests.soak.courses import as_sent
from tests.soak.visits import steps_of
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


def options(count: int, **change: Any) -> FilterOptions:
    given: dict[str, Any] = {
        "times": np.arange(float(count)),
        "observations": np.array([[float(i), 0.0] for i in range(count)]),
        "noise": np.ones(count), "levels": (0.5,), "horizon": (), "samples": 0, "seed": 1, "mode": "recurrent",
        "smooth": False, "is_streamed": False,
    }  # fmt: skip
    merged = {**given, **change}
    if isinstance(merged["observations"], list):
        merged["observations"] = as_array(merged["observations"], 2, "fake")
        merged["times"] = np.array(merged["times"], np.float64)
        merged["noise"] = np.ones(len(merged["times"]))
    return FilterOptions(**merged)


def stream_options(**change: Any) -> FilterStreamOptions:
    return FilterStreamOptions(**{"levels": (), "horizon": (), "samples": 0, "seed": 1, **change})


@asynccontextmanager
async def running(model: Any = None, **settings: Any) -> AsyncIterator[tuple[Engine, Metrics]]:
    metrics = Metrics()
    engine = Engine(
        fake_models(filter=model or FakeFilter()), Settings(**{"bundles": (), "workers": 1, **settings}), metrics
    )
    try:
        yield engine, metrics
    finally:
        await asyncio.to_thread(engine.close)


async def slots_are_free(engine: Engine) -> None:
    await until(lambda: not engine.pool_slots_in_use)


def number(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, {"model_name": "mean", **labels}) or 0.0


class Diary(FakeFilter):
    """Writes down the first component of every observation, step by step."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.steps: list[list[float]] = []

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        self.steps.append([row.observation[0] or 0.0 for row in rows if row.observation])
        return super().advance(pool, rows)


LIVE = 1e6


async def test_live_streams_have_their_answers_before_a_series_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A series shares one step with them, and the rest of its turn is its own."""
    monkeypatch.setattr(filtering, "QUANTUM_SECONDS", 3600.0)
    gate = threading.Semaphore(0)
    model = Diary(gate=gate)
    async with running(model) as (engine, _), asyncio.timeout(PATIENCE):
        first, second = (engine.filter_stream(None, stream_options()) for _ in range(2))
        first.push(Observed(0.0, [LIVE, 0.0], 1.0))
        await until(lambda: model.steps)  # the worker is at a step of the first stream alone, and the others come
        series = engine.filter(None, options(20))
        second.push(Observed(0.0, [LIVE, 0.0], 1.0))
        first.push(Observed(1.0, [LIVE, 0.0], 1.0))
        gate.release(1 + 3)
        for stream, count in ((first, 2), (second, 1)):
            answers: list[StreamStep] = []
            while len(answers) < count:
                replies = await stream.replies()
                assert isinstance(replies, list)
                answers += replies
            assert [reply.step.index for reply in answers] == list(range(count))
        first.push(Observed(2.0, [LIVE, 0.0], 1.0))
        assert not series.done and series.position <= 1
        gate.release(1000)
        await series.result()
        await first.replies()
    assert [sorted(step) for step in model.steps[:2]] == [[LIVE], [0.0, LIVE, LIVE]]
    # At its second step of its own the series learns that it is waited for, and shares the next one, too.
    assert [sorted(step) for step in model.steps[2:]] == [[1.0], [2.0, LIVE], *([float(i)] for i in range(3, 20))]


async def test_a_series_that_is_cancelled_or_interrupted_ends_within_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "QUANTUM_SECONDS", 3600.0)
    for name in ("cancelled", "interrupted"):
        gate = threading.Semaphore(0)
        model: Any = FakeFilter(gate=gate)
        stage = FilterStage(model, StatePool(model.state_fields, 8), Metrics())
        jobs = [FilterJob(stage, options(100)) for _ in range(2)]
        turn = asyncio.create_task(asyncio.to_thread(stage.run, jobs))
        gate.release(20)
        await until(lambda batches=model.batches: batches.count(2) >= 11)  # type: ignore[misc]
        setattr(jobs[0], name, True)
        gate.release(1000)
        await turn
        # Ten steps are done and one is under way.
        assert (jobs[0].position, jobs[1].position) == (11, 100), name


async def test_a_series_has_the_numbers_of_its_own_whatever_shares_its_turns(
    linear_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, beside live streams and other series, however long the turns are."""
    runtime = FilterRuntime(open_bundle(linear_bundle))
    rng = np.random.default_rng(5)
    outputs: dict[str, Any] = {"levels": (0.5, 0.9), "horizon": (0.5,), "samples": 2, "seed": 3}
    series = []
    for length in (200, 140, 155):  # in company in more pieces than alone
        values: list[Any] = [[float(x) for x in row] for row in rng.normal(size=(length, 2))]
        values[7], values[9] = None, [None, values[9][1]]
        series.append((np.cumsum(rng.exponential(0.2, length)).tolist(), values))
    found = [runtime.filter(times, values, **outputs) for times, values in series]
    alone = [as_sent(one.steps) for one in found]
    sums = [(one.log_likelihood, summarise(one.tally, runtime.levels, 2, (0.5,), is_fresh=True)) for one in found]
    for seconds in (0.0, 0.0005, 10.0):
        monkeypatch.setattr(filtering, "QUANTUM_SECONDS", seconds)
        async with running(runtime) as (engine, _):
            streams = [engine.filter_stream(None, stream_options()) for _ in range(3)]
            for i in range(30):
                for stream in streams:
                    stream.push(Observed(float(i), [float(i), None], 1.0))
            jobs = [
                engine.filter(None, options(0, times=times, observations=values, **outputs)) for times, values in series
            ]
            results = await asyncio.gather(*map(steps_of, jobs))
        assert [as_sent(steps) for steps in results] == alone
        assert [(job.log_likelihood, job.checks()) for job in jobs if isinstance(job, FilterJob)] == sums


# Many series in a request.


def request(engine: Engine, lengths: Sequence[int], deadline: float | None = None, **change: Any) -> ManyJob:
    """A request of series of so many observations; deadlines are its own."""
    given = [options(count, **change) for count in lengths]
    return engine.filter_many([engine.filter_part(None, one, k) for k, one in enumerate(given)], deadline)


async def ended(job: ManyJob) -> dict[int, SeriesEnd]:
    """Every series by its place; the last event is the request's own."""
    *series, timings = [event async for event in job.events()]
    assert isinstance(timings, FilterTimings)
    return {event.part.index: event for event in series}


def turns(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in (filtering, many_series):
        monkeypatch.setattr(module, "QUANTUM_SECONDS", seconds)


@asynccontextmanager
async def one_worker(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> AsyncIterator[tuple[Engine, Diary, threading.Semaphore]]:
    """An engine with one worker, its model, and the gate that lets the model make a step."""
    turns(monkeypatch, seconds)
    model = Diary(gate=(gate := threading.Semaphore(0)))
    async with running(model, series_threads=1) as (engine, _):
        yield engine, model, gate


@pytest.mark.parametrize(("threads", "seconds"), [(1, 0.0), (2, 0.0005), (5, 3600.0)])
async def test_every_series_ends_whole_whatever_the_turns_are(
    monkeypatch: pytest.MonkeyPatch, threads: int, seconds: float
) -> None:
    turns(monkeypatch, seconds)
    lengths = [1, 30, 2, 17, 60, 1, 1, 8]
    async with running(series_threads=threads) as (engine, metrics):
        found = await ended(request(engine, lengths, wants_state=True))
        await slots_are_free(engine)
    assert sorted(found) == list(range(len(lengths)))
    for place, series in found.items():
        assert [step.index for step in series.outputs] == list(range(lengths[place]))
        assert isinstance(series.end, Filtered)
        assert series.end.state is not None and series.end.state.count == lengths[place]
    assert number(metrics, "rfa_filter_observations_total") == sum(lengths)
    # One request, however many series.
    assert number(metrics, "rfa_e2e_request_latency_seconds_count") == 1


async def test_whole_sequences_and_graphs_are_parts_as_well(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on its graphs, one observation at a time, and looked at as a whole: the numbers that each has alone."""
    from tests.runtime.loading import load_filter

    turns(monkeypatch, 0.001)
    model = load_filter(open_bundle(bundles / "oscillator"))
    async with running(model, series_threads=3) as (engine, _):
        kinds: list[dict[str, Any]] = [{}, {"smooth": True, "samples": 2}, {"mode": "attention"}]
        for kind in kinds:
            alone = []
            for count in (3, 12, 5):
                *steps, end = [event async for event in engine.filter(None, options(count, **kind)).events()]
                alone.append((reported(steps), end.log_likelihood, end.calibration, end.smoothed))
            found = await ended(request(engine, (3, 12, 5), **kind))
            for place, (steps, *rest) in enumerate(alone):
                end = found[place].end
                assert isinstance(end, Filtered)
                assert reported(found[place].outputs) == steps
                assert [end.log_likelihood, end.calibration, end.smoothed] == rest


def reported(events: Sequence[Any]) -> list[Any]:
    """Steps as lists of numbers."""
    steps = [step for event in events for step in (event.replies() if hasattr(event, "replies") else [event])]
    return [(step.index, step.mean, step.std, step.anomaly, np.asarray(step.samples).tolist()) for step in steps]


async def test_a_live_stream_has_a_turn_after_each_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand series no two go on between a live stream's observation and its answer but those in their turn."""
    async with one_worker(monkeypatch, 3600.0) as (engine, model, gate):
        stream = engine.filter_stream(None, stream_options())
        many = request(engine, [3] * 1_000)
        gate.release(30)
        for i in range(4):
            await until(lambda: gate._value == 0)  # the request is at a step, and waits
            before = len(model.steps)
            stream.push(Observed(float(i), [LIVE, 0.0], 1.0))
            gate.release(10)
            await stream.replies()
            between = model.steps[before:]
            # The step under way, and the one after which the series looks whether somebody waits.
            assert between.index([LIVE]) <= 2
        assert not many.done
        many.cancel()
        stream.leave()
        gate.release(10_000)
        await slots_are_free(engine)


async def test_a_request_leases_what_its_series_take_at_the_same_time() -> None:
    async with running(series_threads=2, max_series_numbers=5_000) as (engine, _):
        budget = MemoryBudget(64 << 20)
        with budget.take(0) as lease:
            parts = [engine.filter_part(None, options(100), place) for place in range(3)]
            many = engine.filter_many(parts, None, lease)
            assert lease.size >= sum(part.waiting_bytes + part.ended_bytes for part in parts)
            await ended(many)
        assert budget.leased_bytes == 0
        with pytest.raises(InvalidRequest, match="series: the reply would contain"):
            engine.filter_many([engine.filter_part(None, options(100), place) for place in range(20)], None)
        small = MemoryBudget(100_000)
        with small.take(0) as lease, pytest.raises(InvalidRequest, match="bytes of memory"):
            engine.filter_many(parts, None, lease)


def test_a_series_takes_no_more_than_its_estimate() -> None:
    """From its end until it is encoded, of one column and of several, with little and with much told."""
    for size, levels, horizon in ((1, (0.9,), ()), (1, (0.5, 0.8, 0.9, 0.95), (1.0, 5.0)), (7, (0.9,), (3.0,))):
        model = AutoRuntime.of(size)
        reported = {"levels": levels, "horizon": horizon}
        stage = FilterStage(model, StatePool(model.state_fields, 1), Metrics())
        count = 800
        given = replace(options(count, **reported), observations=np.random.default_rng(0).normal(size=(count, size)))
        shape = StepShape(size, len(levels), len(horizon), 0)

        def run(stage: FilterStage = stage, given: FilterOptions = given) -> list[Any]:
            job = FilterJob(stage, given)
            while not job.done:
                stage.run([job])
            job.release()
            return job.outcome()[0]

        async def measured(run: Callable[[], Any] = run) -> int:
            return taken(run)[0]

        assert asyncio.run(measured()) <= series_bytes(shape, count)
