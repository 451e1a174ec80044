"""A request of many series at work: one place and one turn, a few threads, seats and memory that come back."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.auto import AutoRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.interface import FilterOptions
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter import many as many_series
from rfa.service.engine.filter import stages as filtering
from rfa.service.engine.filter.filter_job import Filtered, FilterJob
from rfa.service.engine.filter.many import ManyJob, SeriesEnd
from rfa.service.engine.filter.stages import FilterStage
from rfa.service.engine.filter.stream import Observed
from rfa.service.engine.reply_size import StepShape, series_bytes
from rfa.service.errors import InvalidRequest
from rfa.service.memory import MemoryBudget
from rfa.service.metrics import Metrics
from rfa.service.routes import filter_many
from rfa.service.schemas.filter_replies import FilterTimings
from tests.service.live import serving
from tests.service.models import FakeFilter
from tests.service.test_filter_stage import (
    LIVE,
    Diary,
    has_stopped_at,
    number,
    options,
    running,
    slots_are_free,
    stream_options,
)
from tests.service.test_reply_size import taken
from tests.waiting import until


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


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("seconds", [0.0, 0.0005, 3600.0])
@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_whole_sequences_and_graphs_are_parts_as_well(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on its graphs, one observation at a time, and looked at as a whole: the numbers that each has alone."""
    from tests.runtime.loading import load_filter

    turns(monkeypatch, 0.001)
    model = load_filter(open_bundle(bundles / "oscillator"))
    async with running(model, series_threads=3) as (engine, _):
        kinds: list[dict[str, Any]] = [{}, {"smooth": True, "samples": 2}, {"mode": "attention"}]
        for kind in kinds:
            alone = []
            for count in (5, 40, 12):
                *steps, end = [event async for event in engine.filter(None, options(count, **kind)).events()]
                alone.append((reported(steps), end.log_likelihood, end.calibration, end.smoothed))
            found = await ended(request(engine, (5, 40, 12), **kind))
            for place, (steps, *rest) in enumerate(alone):
                end = found[place].end
                assert isinstance(end, Filtered)
                assert reported(found[place].outputs) == steps
                assert [end.log_likelihood, end.calibration, end.smoothed] == rest


def reported(events: Sequence[Any]) -> list[Any]:
    """Steps as lists of numbers."""
    steps = [step for event in events for step in (event.replies() if hasattr(event, "replies") else [event])]
    return [(step.index, step.mean, step.std, step.anomaly, np.asarray(step.samples).tolist()) for step in steps]


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_requests_share_the_worker_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short request that comes behind one of a thousand series waits for one turn of it."""
    async with one_worker(monkeypatch, 0.0) as (engine, model, gate):
        many = request(engine, [3] * 1_000)
        await until(lambda: model.steps)
        short = engine.filter(None, replace(options(5), observations=np.full((5, 2), LIVE)))
        gate.release(3_100)
        await short.result()
        own = [i for i, step in enumerate(model.steps) if step == [LIVE]]
        assert len(own) == 5 and own[-1] - own[0] <= 10
        assert len(await ended(many)) == 1_000


@pytest.mark.anyio
async def test_a_request_holds_a_slot_for_each_series_at_work_and_gives_it_back() -> None:
    gate = threading.Semaphore(0)
    async with running(FakeFilter(gate=gate), series_threads=3, max_running=1, max_streams=1) as (engine, _):
        many = request(engine, [4] * 50)
        await until(lambda: engine.pool_slots_in_use == 3)
        gate.release(2)
        many.cancel()
        gate.release(1_000)
        await slots_are_free(engine)
        assert engine._scheduler.running == 0


@pytest.mark.anyio
async def test_series_wait_for_a_reader_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_series, "EVENT_BYTES", 1 << 40)  # each is one event
    async with running(stream_buffer=8, series_threads=1) as (engine, _):
        many = request(engine, [2] * 50)
        assert await has_stopped_at(many._inbox, 8)
        assert len(await ended(many)) == 50


@pytest.mark.anyio
async def test_large_series_weigh_more_in_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(stream_buffer=8, series_threads=1) as (engine, _):
        large = [engine.filter_part(None, options(4_000), place) for place in range(3)]
        assert all(part.weight > 8 for part in large)
        many = engine.filter_many(large, None)
        assert await has_stopped_at(many._inbox, 1)
        assert len(await ended(many)) == 3


@pytest.mark.anyio
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
        count = 2_000
        given = replace(options(count, **reported), observations=np.random.default_rng(0).normal(size=(count, size)))
        shape = StepShape(size, len(levels), len(horizon), 0)

        def run(stage: FilterStage = stage, given: FilterOptions = given) -> list[Any]:
            job = FilterJob(stage, given)
            while not job.done:
                stage.run([job])
            job.release()
            return job.outcome()[0]

        assert asyncio.run(measured(run)) <= series_bytes(shape, count)


async def measured(run: Callable[[], Any]) -> int:
    return taken(run)[0]


@pytest.mark.anyio
async def test_a_series_that_waits_takes_no_more_than_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its request and all that the route keeps for it."""
    found, prepare = [], filter_many.SeriesBatch.of

    async def of(*arguments: Any) -> Any:
        gc.collect()
        tracemalloc.start()
        try:
            many = await prepare(*arguments)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        found.append((held, sum(one.part.waiting_bytes for one in many.running.values())))
        return many

    monkeypatch.setattr(filter_many.SeriesBatch, "of", of)
    async with serving() as client:
        for count, rows in ((500, 1), (20, 1_000)):
            one = {"times": list(range(rows)), "values": {"y": [1.0] * rows}, "noise": [1.0] * rows}
            body = {"series": {str(k): one for k in range(count)}, "levels": [0.9], "alarm": {"rate": 0.1}}
            assert (await client.post("/filter", json=body)).status_code == 200
    assert all(held <= kept for held, kept in found) and len(found) == 2
