"""Several jobs for one request: their events as one sequence, and one end for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from rfa.service.engine.job import Job
from rfa.service.errors import ServiceError, as_service_error

_END: Final = object()


async def events_together(jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Any], None]:
    """Events of all jobs as they come, each with the position of its job; ends when every job has.

    A job that fails gives its `ServiceError` as the last pair of all. Leaving the iteration, by that or early, cancels
    every job. A slow reader holds the jobs back as it does one job: at most one event per job is taken ahead.
    """
    arrivals: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(maxsize=1)
    turn = asyncio.Lock()  # first come, first served, which a full queue is not: a busy job could overtake for ever

    async def put(position: int, event: Any) -> None:
        async with turn:
            await arrivals.put((position, event))

    async def forward(position: int, job: Job) -> None:
        try:
            async for event in job.events():
                await put(position, event)
        except Exception as error:
            await put(position, as_service_error(error))
        else:
            await put(position, _END)

    # Not a TaskGroup: one may not be held open across a yield, where the reader may go on in another task.
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
