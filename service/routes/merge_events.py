"""Merge the events of several jobs into one sequence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from rfa.service.engine.job import Job
from rfa.service.errors import ServiceError, as_service_error

_END: Final = object()


async def merge_events(jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Any], None]:
    """Yield pairs of the index of a job and an event, in the order in which the events arrive, until all jobs have
    ended.

    If a job fails, its `ServiceError` is yielded, and the iteration ends. At the end of the iteration, all jobs are
    cancelled. At most one event per job is read ahead, so jobs wait for a slow reader.
    """
    arrivals: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(maxsize=1)
    order = asyncio.Lock()  # without this lock, one job could always be the first to use a free place in the queue

    async def put(position: int, event: Any) -> None:
        async with order:
            await arrivals.put((position, event))

    async def forward(position: int, job: Job) -> None:
        try:
            async for event in job.events():
                await put(position, event)
        except Exception as error:
            await put(position, as_service_error(error))
        else:
            await put(position, _END)

    # A TaskGroup must not be open across a yield, because the reader may continue in another task.
    tasks = [asyncio.create_task(forward(position, job)) for position, job in enumerate(jobs)]
    try:
        unfinished = len(jobs)
        while unfinished:
            position, event = await arrivals.get()
            if event is _END:
                unfinished -= 1
                continue
            yield position, event
            if isinstance(event, ServiceError):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in jobs:
            job.cancel()
