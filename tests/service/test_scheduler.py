"""The scheduler and its life at the edges: full queues, leaving clients, slow readers, stalls, shutdown."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from rfa.service.engine.delivery import send_events
from rfa.service.engine.job import Job
from rfa.service.engine.run_queue import LIVE_IN_A_ROW
from rfa.service.engine.scheduler import Scheduler
from rfa.service.errors import NotReady, Overloaded
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


class Counting:
    """Emits 1, 2, … up to the job's goal, one number per quantum, when its gate lets it."""

    def __init__(self, max_rows: int = 8, gate: threading.Semaphore | None = None) -> None:
        self.max_rows = max_rows
        self.gate = gate
        self.batches: list[list[str]] = []

    def run(self, jobs: Sequence[Any]) -> None:
        if self.gate is not None:
            self.gate.acquire()
        self.batches.append([job.name for job in jobs])
        for job in jobs:
            job.count += 1
            if job.count == job.goal:
                job.finish(job.count)
            else:
                job.emit(job.count)


class Count(Job):
    def __init__(self, stage: Any, goal: int, name: str = "") -> None:
        super().__init__(stage)
        self.count, self.goal, self.name = 0, goal, name


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Scheduler]]:
    made: list[Scheduler] = []

    def build(**options: Any) -> Scheduler:
        made.append(Scheduler(**{"workers": 1, "max_running": 8, "max_waiting": 8, "stream_buffer": 100, **options}))
        return made[-1]

    yield build
    for scheduler in made:
        await asyncio.to_thread(scheduler.close)


def submitted(scheduler: Scheduler, job: Count) -> Count:
    scheduler.submit(job)
    return job


async def collect(job: Job) -> list[int]:
    return [event async for event in job.events()]


async def test_several_workers_lose_and_reorder_no_event(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make(workers=4, stream_buffer=10_000)

    def send_late(jobs: list[Job], *own: Any) -> Any:
        time.sleep(0.0005)  # time for another worker to take the job
        return send_events(jobs, *own)

    monkeypatch.setattr("rfa.service.engine.scheduler.send_events", send_late)
    stage = Counting(max_rows=1)
    jobs = [submitted(scheduler, Count(stage, 100)) for _ in range(4)]
    for events in await asyncio.gather(*(collect(job) for job in jobs)):
        assert events == list(range(1, 101))


async def test_jobs_at_one_stage_advance_together_and_others_in_turn(make: Any) -> None:
    gate = threading.Semaphore(0)
    first, second = Counting(max_rows=2, gate=gate), Counting(gate=gate)
    scheduler = make()
    blocker = submitted(scheduler, Count(second, 1, "blocker"))
    await until(lambda: blocker.started is not None)
    jobs = [submitted(scheduler, Count(first, 2, name)) for name in "abc"] + [
        submitted(scheduler, Count(second, 2, "x"))
    ]
    gate.release(100)
    await asyncio.gather(*(job.result() for job in [blocker, *jobs]))
    assert first.batches == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert second.batches == [["blocker"], ["x"], ["x"]]


async def test_a_job_that_keeps_its_place_ends_before_the_next_begins(make: Any) -> None:
    class Kept(Count):
        runs_next = True

    gate = threading.Semaphore(0)
    first, second = Counting(max_rows=1, gate=gate), Counting(max_rows=1, gate=gate)
    scheduler = make()
    jobs = [submitted(scheduler, Kept(first, 2, name)) for name in "abc"]
    jobs += [submitted(scheduler, Count(second, 2, name)) for name in "xy"]
    gate.release(100)
    await asyncio.gather(*(job.result() for job in jobs))
    assert first.batches == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]
    assert second.batches == [["x"], ["y"], ["x"], ["y"]]


async def test_a_full_queue_refuses_and_drains(make: Any) -> None:
    gate = threading.Semaphore(0)
    scheduler = make(max_running=1, max_waiting=2)
    stage = Counting(gate=gate)
    jobs = [submitted(scheduler, Count(stage, 2)) for _ in range(3)]
    assert (scheduler.running, scheduler.waiting) == (1, 2)
    with pytest.raises(Overloaded) as refusal:
        scheduler.submit(Count(stage, 2))
    assert 1 <= int(refusal.value.headers()["Retry-After"]) <= 60
    gate.release(100)
    assert await asyncio.gather(*(job.result() for job in jobs)) == [2, 2, 2]
    assert await submitted(scheduler, Count(stage, 2)).result() == 2


async def test_a_slow_reader_pauses_its_own_job_only(make: Any) -> None:
    scheduler = make(stream_buffer=4)
    slow, quick = submitted(scheduler, Count(Counting(), 50)), submitted(scheduler, Count(Counting(), 50))
    assert await quick.result() == 50
    await until(lambda: slow in scheduler._parked)
    assert slow.count == 4 and scheduler.stalled_for() == 0
    assert await collect(slow) == list(range(1, 51))


async def test_a_stall_is_seen_and_idleness_is_none(make: Any) -> None:
    gate = threading.Semaphore(0)
    scheduler = make()
    assert scheduler.stalled_for() == 0
    await asyncio.sleep(0.05)
    # The time of idleness does not count, however long this thread has to wait for a core.
    submission = time.monotonic()
    job = submitted(scheduler, Count(Counting(gate=gate), 1))
    assert scheduler.stalled_for() <= time.monotonic() - submission
    await until(lambda: scheduler.stalled_for() > 0.05)
    gate.release()
    await job.result()
    await until(lambda: scheduler.stalled_for() == 0)


async def test_closing_fails_what_is_left(make: Any) -> None:
    scheduler = make(max_running=1, stream_buffer=1)
    stage = Counting()
    parked, waiting = (submitted(scheduler, Count(stage, 10)) for _ in range(2))
    await until(lambda: parked.count == 1)
    await asyncio.to_thread(scheduler.close)
    for job in (parked, waiting):
        with pytest.raises(NotReady):
            await collect(job)
    with pytest.raises(NotReady):
        scheduler.submit(Count(stage, 1))


class Echo:
    """Answers what a live stream was sent, all of it in one quantum."""

    max_rows = 8

    def run(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            while job.inbox:
                job.emit(job.inbox.popleft())
            if job.interrupted:
                job.finish("interrupted")


class Live(Job):
    is_stream = True

    def __init__(self, stage: Any) -> None:
        super().__init__(stage)
        self.inbox: deque[int] = deque()
        self.released = 0

    @property
    def is_idle(self) -> bool:
        return not self.inbox

    def release(self) -> None:
        self.released += 1


class Recording(Echo):
    """Says who was in which quantum, when its gate lets it."""

    max_rows = 1

    def __init__(self, gate: threading.Semaphore, log: list[str]) -> None:
        self.gate = gate
        self.log = log

    def run(self, jobs: Sequence[Any]) -> None:
        self.gate.acquire()
        self.log.append("".join(job.name for job in jobs))
        for job in jobs:
            job.emit(job.inbox.popleft())


class Wide(Live):
    """A stream whose every answer weighs so much, and that asks for so many at once."""

    def __init__(self, stage: Any, name: str, rows: int, count: int) -> None:
        super().__init__(stage)
        self.name = name
        self._weight = rows
        self.inbox.extend(range(count))

    @property
    def rows(self) -> int:
        return self._weight


async def test_live_streams_go_before_requests_but_not_for_ever(make: Any) -> None:
    """Whoever does not share their quanta has every ninth."""
    gate = threading.Semaphore(0)
    log: list[str] = []
    scheduler = make(max_streams=1)
    blocked = Counting(max_rows=2, gate=gate)
    first = submitted(scheduler, Count(blocked, 1, "first"))
    await until(lambda: first.started is not None)
    scheduler.submit(Wide(Recording(gate, log), "l", 1, 2 * LIVE_IN_A_ROW + 1))
    requests = [submitted(scheduler, Count(blocked, 1, name)) for name in "abc"]
    gate.release(1 + LIVE_IN_A_ROW)
    await until(lambda: len(log) == LIVE_IN_A_ROW)
    assert blocked.batches == [["first"]]
    gate.release(1 + LIVE_IN_A_ROW)
    await until(lambda: len(log) == 2 * LIVE_IN_A_ROW)
    assert blocked.batches == [["first"], ["a", "b"]]
    gate.release(1)
    await until(lambda: len(blocked.batches) == 3)
    assert len(log) == 2 * LIVE_IN_A_ROW
    gate.release(1)
    await asyncio.gather(*(request.result() for request in requests))
    await until(lambda: len(log) == 2 * LIVE_IN_A_ROW + 1)


async def test_a_stream_that_asks_for_much_waits_for_the_others(make: Any) -> None:
    """Two whose answers weigh four times as much as those of the third have a quantum each for its four."""
    gate = threading.Semaphore(0)
    log: list[str] = []
    stages = [Recording(gate, log), Recording(gate, log)]
    scheduler = make(max_streams=3)
    scheduler.submit(Wide(stages[0], "x", 4, 4))
    await until(lambda: scheduler.live_waiting == 0)
    scheduler.submit(Wide(stages[1], "y", 4, 3))
    scheduler.submit(Wide(stages[0], "m", 1, 12))
    gate.release(19)
    await until(lambda: len(log) == 19)
    assert "".join(log) == "xymmmmxymmmmxymmmmx"


async def test_a_request_that_waits_too_long_is_refused(make: Any) -> None:
    gate = threading.Semaphore(0)
    refusals: list[str] = []
    scheduler = make(max_running=1, queue_seconds=0.05, count_refusal=refusals.append)
    first, second = (submitted(scheduler, Count(Counting(gate=gate), 1)) for _ in range(2))
    with pytest.raises(Overloaded) as refusal:
        await second.result()
    assert int(refusal.value.headers()["Retry-After"]) >= 1
    assert (scheduler.waiting, refusals, second.started) == (0, ["queue_timeout"], None)
    gate.release()
    assert await first.result() == 1


async def test_a_request_that_would_wait_too_long_is_refused_at_once(make: Any) -> None:
    class Slow(Counting):
        def run(self, jobs: Sequence[Any]) -> None:
            time.sleep(0.02)
            super().run(jobs)

    refusals: list[str] = []
    scheduler = make(max_running=1, max_waiting=9000, queue_seconds=PATIENCE, count_refusal=refusals.append)
    stage = Slow(max_rows=1)
    waiting = [submitted(scheduler, Count(stage, 1)) for _ in range(4)]
    await asyncio.gather(*(job.result() for job in waiting))
    # Each takes at least a fiftieth of a second: so many that wait, and one more, would wait longer.
    admitted: list[Count] = []
    with pytest.raises(Overloaded) as refusal:
        for _ in range(9000):
            admitted.append(submitted(scheduler, Count(stage, 1)))
    assert len(admitted) <= 50 * PATIENCE + 1 and refusals == ["queue_slow"]
    assert int(refusal.value.headers()["Retry-After"]) >= 1
    for job in admitted:
        job.cancel()


async def test_an_idle_hour_says_nothing_about_the_queue(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make(max_running=1, max_waiting=1000, queue_seconds=PATIENCE)
    assert await submitted(scheduler, Count(Counting(), 1)).result() == 1
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 3600)
    jobs = [submitted(scheduler, Count(Counting(), 1)) for _ in range(20)]
    assert await asyncio.gather(*(job.result() for job in jobs)) == [1] * 20


async def test_a_job_is_released_once_however_it_ends(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    released: list[str] = []

    class Holding(Count):
        def release(self) -> None:
            released.append(self.name)
            if self.name == "done":
                raise RuntimeError("it does not let go")

    class Failing(Counting):
        def run(self, jobs: Sequence[Any]) -> None:
            raise NotReady("broken")

    scheduler = make(stream_buffer=2)
    done, failed = Holding(Counting(), 2, "done"), Holding(Failing(), 2, "failed")
    parked, left = Holding(Counting(), 9, "parked"), Holding(Counting(), 10**9, "left")
    for job in (done, failed, parked, left):
        scheduler.submit(job)
    await done.result()
    with pytest.raises(NotReady):
        await failed.result()
    await until(lambda: parked.count == 2)
    parked.cancel()
    left.cancel()
    await until(lambda: scheduler.running == 0)
    assert sorted(released) == ["done", "failed", "left", "parked"]
    assert "it does not let go" in caplog.text


async def test_draining_ends_streams_at_once_and_requests_in_time(make: Any) -> None:
    gate = threading.Semaphore(0)
    scheduler = make(max_running=1, max_streams=4)
    stream = Live(Echo())
    scheduler.submit(stream)
    running = submitted(scheduler, Count(Counting(gate=gate), 2))
    await until(lambda: running.started is not None)
    draining = asyncio.ensure_future(asyncio.to_thread(scheduler.drain, 60))
    await until(lambda: stream.interrupted)
    with pytest.raises(NotReady):
        scheduler.submit(Count(Counting(), 1))
    gate.release(2)
    assert [event async for event in stream.events()] == ["interrupted"]
    assert await running.result() == 2
    await draining


async def test_a_quantum_is_bounded_in_rows(make: Any) -> None:
    class Wide(Count):
        rows = 3

    gate = threading.Semaphore(0)
    stage = Counting(max_rows=8, gate=gate)
    scheduler = make()
    jobs = [submitted(scheduler, Wide(stage, 1, name)) for name in "abcde"]
    gate.release(100)
    await asyncio.gather(*(job.result() for job in jobs))
    assert all(len(batch) <= 2 for batch in stage.batches)
    assert max(len(batch) for batch in stage.batches) == 2
