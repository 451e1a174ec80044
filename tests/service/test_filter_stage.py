"""Filter jobs at work: shared steps, fair quanta, a bad row alone, seats that come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.forecast_checks import summarise
from rfa.runtime.uncertainty.input import as_array
from rfa.runtime.uncertainty.interface import FilterOptions, Row, Stepped
from rfa.service.engine.engine import Engine
from rfa.service.engine.filter import stages as filtering
from rfa.service.engine.filter.filter_job import FilterJob
from rfa.service.engine.filter.stages import FilterStage
from rfa.service.engine.filter.stream import FilterStreamOptions, Observed, StreamEnd, StreamJob, StreamStep
from rfa.service.errors import InternalError, NotReady, Overloaded
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings
from tests.service.models import FakeFilter, fake_models
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


async def drained(job: StreamJob) -> tuple[list[StreamStep], StreamEnd]:
    steps: list[StreamStep] = []
    while not isinstance(replies := await job.replies(), StreamEnd):
        steps += replies
    return steps, replies


async def has_stopped_at(inbox: Sequence[object], count: int) -> bool:
    """Whether that many answers come, and then no more; what is wrong here might take longer, never what is right."""
    await until(lambda: len(inbox) >= count)
    await asyncio.sleep(0.05)
    return len(inbox) == count


async def slots_are_free(engine: Engine) -> None:
    await until(lambda: not engine.pool_slots_in_use)


def number(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, {"model_name": "mean", **labels}) or 0.0


async def test_a_quantum_gives_what_is_watched_one_observation_and_series_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a long request cannot keep a live stream waiting, and needs few turns."""
    model: Any = FakeFilter()
    stage = FilterStage(model, StatePool(model.state_fields, 8), Metrics())
    long, streamed = FilterJob(stage, options(50)), FilterJob(stage, options(50, is_streamed=True))
    stream = StreamJob(stage, stream_options(), limit=10)
    for i in range(2):
        stream.push(Observed(float(i), [5.0, 5.0], 1.0))
    jobs = [long, streamed, stream]
    monkeypatch.setattr(filtering, "QUANTUM_SECONDS", 0.0)
    stage.run(jobs)
    assert (model.batches, long.position, streamed.position, len(stream._outbox)) == ([3], 1, 1, 1)
    monkeypatch.setattr(filtering, "QUANTUM_SECONDS", 3600.0)
    stage.run(jobs)
    assert (model.batches[1:], long.done, streamed.position, len(stream._outbox)) == ([3, *[1] * 48], True, 2, 2)


async def test_a_quantum_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "QUANTUM_SECONDS", 0.0)
    model: Any = FakeFilter()
    stage = FilterStage(model, StatePool(model.state_fields, 8), Metrics())
    jobs = [FilterJob(stage, options(100)) for _ in range(3)]
    for _ in range(5):
        stage.run(jobs)
    assert [job.position for job in jobs] == [5, 5, 5]
    assert model.batches == [3] * 5


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


async def test_live_streams_wait_for_no_more_than_a_turn_of_the_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtering, "QUANTUM_SECONDS", 0.0)
    gate = threading.Semaphore(0)
    model = Diary(gate=gate)
    async with running(model) as (engine, _):
        streams = [engine.filter_stream(None, stream_options()) for _ in range(2)]
        for i in range(10):
            for stream in streams:
                stream.push(Observed(float(i), [LIVE, 0.0], 1.0))
        series = engine.filter(None, options(200))
        gate.release(10_000)
        await series.result()
    live = [i for i, step in enumerate(model.steps) if LIVE in step]
    assert live == list(range(len(live))) and len(live) <= 11


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


async def test_a_step_that_fails_in_a_turn_leaves_the_observations_before_it_counted() -> None:
    async with running(FakeFilter(bomb=13.0)) as (engine, metrics):
        with pytest.raises(InternalError):
            await engine.filter(None, options(40)).result()
        await slots_are_free(engine)
    assert number(metrics, "rfa_filter_observations_total") == 13


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


async def test_costly_answers_count_as_more_rows() -> None:
    model: Any = FakeFilter()
    stage = FilterStage(model, StatePool(model.state_fields, 8), Metrics())
    plain, costly = (
        FilterJob(stage, options(1, **extra)) for extra in ({}, {"horizon": (1.0,) * 256, "samples": 1024})
    )
    assert plain.rows == 1 and costly.rows > stage.max_rows


async def test_streams_have_their_own_bound_and_rest_between_observations() -> None:
    async with running(max_streams=3, max_running=1) as (engine, _):
        streams = [engine.filter_stream(None, stream_options()) for _ in range(3)]
        with pytest.raises(Overloaded, match="live streams"):
            engine.filter_stream(None, stream_options())
        assert len(await steps_of(engine.filter(None, options(5)))) == 5
        assert engine.pool_slots_in_use <= 1
        for step in range(4):
            for stream in streams:
                stream.push(Observed(float(step), [float(step), 0.0], 1.0))
            for stream in streams:
                replies = await stream.replies()
                assert isinstance(replies, list)
                (reply,) = replies
                assert (reply.step.index, reply.step.mean) == (step, [step / 2, 0.0])
        assert engine.pool_slots_in_use == 3
        for stream in streams:
            stream.close()
            steps, end = await drained(stream)
            assert (steps, end.steps, end.log_likelihood, end.reason, end.state) == ([], 4, 4.0, "close", None)
        await slots_are_free(engine)
        engine.filter_stream(None, stream_options())


async def test_a_stream_that_is_not_read_is_full_and_goes_on_when_it_is_read() -> None:
    async with running(stream_buffer=8) as (engine, _):
        stream = engine.filter_stream(None, stream_options())
        for i in range(20):
            stream.push(Observed(float(i), [1.0, 1.0], 1.0))
        assert await has_stopped_at(stream._inbox, 8) and stream.is_full
        stream.close()
        steps, _ = await drained(stream)
    assert [reply.step.index for reply in steps] == list(range(20))
    assert not stream.is_full


async def test_fewer_costly_answers_are_kept_for_a_client_that_does_not_read() -> None:
    async with running(stream_buffer=20) as (engine, _):
        live = engine.filter_stream(None, stream_options(samples=128))  # 5 rows an answer
        for i in range(8):
            assert live.is_full == (i >= 4)
            live.push(Observed(float(i), [1.0, 1.0], 1.0))
        reply = engine.filter(None, options(50, samples=128, is_streamed=True))
        assert await has_stopped_at(live._inbox, 4) and await has_stopped_at(reply._inbox, 4)
        live.close()
        steps, _ = await drained(live)
        assert [reply.step.index for reply in steps] == list(range(8))
        assert len([event async for event in reply.events()]) == 51


async def test_draining_hands_streams_their_state_and_refuses_what_cannot_end() -> None:
    async with running(max_observations=60_000, max_reply_numbers=10**9) as (engine, _):
        streams = [engine.filter_stream(None, stream_options(wants_state=True)) for _ in range(3)]
        streams[0].push(Observed(0.0, [1.0, 1.0], 1.0))
        await streams[0].replies()
        kinds: list[dict[str, Any]] = [{}, {"smooth": True}]
        endless = [engine.filter(None, options(60_000, **kind)) for kind in kinds]
        await asyncio.to_thread(engine.drain, 0.05)
        for count, stream in zip((1, 0, 0), streams, strict=True):
            _, end = await drained(stream)
            assert end.state is not None
            assert (end.reason, end.steps, end.state.count) == ("drain", count, count)
        for job in endless:
            with pytest.raises(NotReady):
                await job.result()
        with pytest.raises(NotReady):
            engine.filter_stream(None, stream_options())
        await slots_are_free(engine)


async def test_calibration_can_be_watched() -> None:
    """Anomaly scores are counted by level; the fake gives none, the stage counts what there is."""
    model: Any = FakeFilter()
    metrics = Metrics()
    stage = FilterStage(model, StatePool(model.state_fields, 1), metrics)
    (stepped,) = model.advance(stage.pool, [FilterJob(stage, options(1)).next_row()])
    assert stepped is not None
    done = filtering._QuantumCounts(stepped.tally, 6, [np.array([0.2, 0.5]), np.array([0.7, 0.95, 0.995])])
    stage._observe(done, 0.01)
    assert number(metrics, "rfa_filter_scored_observations_total") == 5
    assert number(metrics, "rfa_filter_inside_observations_total", level="0.5") == 2
    assert number(metrics, "rfa_filter_inside_observations_total", level="0.9") == 3
    assert number(metrics, "rfa_filter_inside_observations_total", level="0.99") == 4
    assert number(metrics, "rfa_filter_inside_observations_total", level="0.999") == 5
