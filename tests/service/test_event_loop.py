"""Connections and streamed replies share one event loop: fairly, in time, and with nothing for clients that left."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from rfa.service.cooperative import CooperativeWork
from rfa.service.deadline import Deadline
from rfa.service.errors import EngineFailure
from rfa.service.http import connection
from rfa.service.http.connection import ConnectionManager
from rfa.service.routes.common import NDJSON, event_stream
from rfa.service.routes.merge_events import merge_events

pytestmark = pytest.mark.anyio


NOTHING: Any = None


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> ConnectionManager:
    """One call uses up the time of an iteration."""
    monkeypatch.setattr(connection, "ITERATION_SECONDS", 1e-9)
    return ConnectionManager(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_busy_connections_alternate(manager: ConnectionManager) -> None:
    log: list[str] = []

    def busy(name: str) -> Callable[[], None]:
        def work() -> None:
            log.append(name)
            manager.run_later(work)

        return work

    for name in "abc":
        manager.run_later(busy(name))
    await iterations(30)
    assert len(log) >= 9 and "".join(log) == ("abc" * len(log))[: len(log)]
    assert not manager.run_now(lambda: log.append("first"))


async def test_an_exception_does_not_stop_the_queue(manager: ConnectionManager) -> None:
    log: list[str] = []
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    manager.run_later(lambda: log.append("a"))
    manager.run_later(lambda: log.remove("nothing"))
    manager.run_later(lambda: log.append("b"))
    await iterations(20)
    assert log == ["a", "b"]
    assert [type(error) for error in errors] == [ValueError]


async def _within(deadline: Deadline, seconds: float) -> str:
    try:
        with deadline:
            await asyncio.sleep(seconds)
    except TimeoutError:
        return "late"
    return "in time"


async def test_late_work_is_cut_and_the_task_goes_on() -> None:
    deadline = Deadline(0.05)
    assert await _within(deadline, 60) == "late"
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    assert [await _within(deadline, 0) for _ in range(3)] == ["in time"] * 3
    assert await _within(deadline, 60) == "late"


async def test_a_task_that_someone_cancels_is_cancelled() -> None:
    deadline = Deadline(60)
    task = asyncio.create_task(_within(deadline, 60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_one_leaves_no_timer_behind() -> None:
    """A timer holds what the task that set it held."""

    class Held:
        pass

    async def work() -> weakref.ref[Held]:
        held = Held()
        variable.set(held)
        with deadline:
            await asyncio.sleep(0)
        deadline.close()
        return weakref.ref(held)

    variable: ContextVar[Held] = ContextVar("held")
    deadline = Deadline(3600)
    gone = await asyncio.create_task(work())
    await asyncio.sleep(0)
    assert gone() is None


BACKLOG = 1_000
LEAVES_AFTER = 10


async def test_the_backlog_of_a_client_that_left_is_dropped() -> None:
    """The server's `send` returns at once then, so that nothing but the stream itself lets others have a turn."""
    left = asyncio.Event()
    sent = 0

    async def documents() -> AsyncIterator[int]:
        for number in range(BACKLOG):
            yield number

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == LEAVES_AFTER:
            left.set()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    limits = SimpleNamespace(send_timeout_seconds=60)
    state = SimpleNamespace(cooperative=CooperativeWork(), settings=SimpleNamespace(limits=limits))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    stream = event_stream(request, None, documents(), NDJSON)
    await stream({}, receive, send)
    assert sent < LEAVES_AFTER + 10


class Script:
    """Says its lines, as a job does, and counts what was taken; an exception among the lines is raised."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines
        self.filtered = 0
        self.cancelled = False

    async def events(self) -> AsyncIterator[Any]:
        for line in self.lines:
            if isinstance(line, Exception):
                raise line
            await asyncio.sleep(0)
            self.filtered += 1
            yield line

    def cancel(self) -> None:
        self.cancelled = True


async def test_a_slow_reader_holds_every_job_back() -> None:
    jobs = [Script(*range(100)) for _ in range(3)]
    async with aclosing(merge_events(jobs)) as events:  # type: ignore[arg-type]
        for read in range(1, 20):
            await anext(events)
            for _ in range(50):
                await asyncio.sleep(0)
            # One event waits in every job's hand, and one between them and the reader.
            assert sum(job.filtered for job in jobs) <= read + len(jobs) + 1
    assert all(job.cancelled for job in jobs)


async def test_a_failure_is_the_last_event_of_all() -> None:
    failure = EngineFailure("broken")
    jobs = [Script(*range(1000)), Script("a", failure)]
    heard = [pair async for pair in merge_events(jobs)]  # type: ignore[arg-type]
    assert heard[-1] == (1, failure)
    assert [event for position, event in heard if position == 1] == ["a", failure]
    assert all(job.cancelled for job in jobs) and jobs[0].filtered < 1000
