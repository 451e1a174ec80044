"""Events of several jobs as one sequence: order, restraint towards a slow reader, and one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from rfa.service.errors import EngineFailure, InternalError
from rfa.service.routes.merge_events import merge_events

pytestmark = pytest.mark.anyio


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


async def test_each_job_is_heard_in_order_and_to_its_end() -> None:
    jobs = [Script(*range(5)), Script(), Script("a", "b")]
    heard: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    async for position, event in merge_events(jobs):  # type: ignore[arg-type]
        heard[position].append(event)
    assert heard == {0: [0, 1, 2, 3, 4], 1: [], 2: ["a", "b"]}


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


async def test_a_failure_without_a_name_is_reported_as_one() -> None:
    ((position, error),) = [pair async for pair in merge_events([Script(KeyError("x"))])]  # type: ignore[list-item]
    assert position == 0 and isinstance(error, InternalError)


async def test_a_reader_that_is_cancelled_cancels_every_job() -> None:
    jobs = [Script(*range(10_000)) for _ in range(2)]

    async def read() -> None:
        async with aclosing(merge_events(jobs)) as events:  # type: ignore[arg-type]
            async for _ in events:
                pass

    reader = asyncio.create_task(read())
    while not all(job.filtered > 3 for job in jobs):
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    taken = [job.filtered for job in jobs]
    await asyncio.sleep(0)
    assert all(job.cancelled for job in jobs) and taken == [job.filtered for job in jobs]
