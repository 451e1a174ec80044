"""Merge the events of several jobs of a request into one sequence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from rfa.service.engine.job import Job
from rfa.service.errors import ServiceError, as_service_error

_END: Final = object()


async def merge_events(jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Any], None]:
    """Yield the events of all jobs as they occur, each with the index of its job, until all jobs have ended.

    If a job fails, its `ServiceError` is its last event. Ending the iteration cancels every job. At most one event per
    job is read ahead, so a slow reader slows the jobs down.
    """
    arrivals: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(maxsize=1)
    order = asyncio.Lock()  # fair: with a full queue, a busy job could otherwise always be first

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
