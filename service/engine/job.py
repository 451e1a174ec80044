"""Base class of the jobs of the engine. A worker thread advances a job, and an event loop reads its events."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rfa.service.errors import NAMED, ServiceError, as_service_error
from rfa.service.inbox import Inbox

if TYPE_CHECKING:
    from rfa.service.engine.scheduler import Scheduler


logger = logging.getLogger("rfa.engine")


class Stage(Protocol):
    """Interface of a stage. A stage advances jobs by one quantum."""

    max_rows: int  # maximum number of rows in a quantum; a single job may have more

    def run(self, jobs: Sequence[Any]) -> None:
        """Advance every job: emit its events, complete it, fail it, or set its next stage.

        If this raises an exception, no job may be changed, because the scheduler then advances the jobs one by one.
        """


class TimeSlice(Protocol):
    """Interface of the time slice of a job that is part of another job."""

    @property
    def is_over(self) -> bool:
        """Whether the time slice has ended."""
        ...


class Job:
    """A request that the engine processes.

    A worker thread calls `emit`, `finish` and `fail`. The event loop calls `events`, `result` and `cancel`.

    Args:
        stage: First stage of the job.
        deadline_seconds: Time after which the job ends with the results so far. None means no limit.
    """

    is_stream = False  # whether the job is a live stream, which is idle most of the time

    def __init__(self, stage: Stage, *, deadline_seconds: float | None = None) -> None:
        self.stage = stage
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.deadline = math.inf if deadline_seconds is None else self.submitted + deadline_seconds
        self.cancelled = False
        self.done = False
        self.interrupted = False  # whether the job should return the results so far, because the server shuts down
        self.time_slice: TimeSlice | None = None  # set if this is part of another job, outside of the scheduler
        self._queue_timer: asyncio.TimerHandle | None = None
        self._backlog = 0
        self._outbox: list[Any] = []
        self._emitted = 0
        self._start_tag = 0  # start tag for fair queueing, in rows
        self._inbox: Inbox[Any] = Inbox()
        self._loop = asyncio.get_running_loop()
        self._scheduler: Scheduler | None = None

    @property
    def rows(self) -> int:
        """Cost of the next quantum of the job in rows. One row is the cost of one sequence, or of one observation with
        default options."""
        return 1

    @property
    def event_rows(self) -> int:
        """Weight of an event in the buffer of the reader."""
        return 1

    def weight(self, _: Any) -> int:
        """Return the number by which this event increases the count of events in the buffer of the reader."""
        return 1

    @property
    def _unread(self) -> int:
        """Weight of the events that the reader has not read."""
        return self._backlog * self.event_rows

    @property
    def is_buffer_full(self) -> bool:
        """Whether the unread events and the events of this quantum fill the buffer of the reader. Call this on a worker
        thread."""
        waiting = (self._backlog + self._emitted) * self.event_rows
        return self._scheduler is not None and waiting >= self._scheduler.stream_buffer

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed. The job then ends with the results so far."""
        return time.monotonic() > self.deadline

    @property
    def should_yield(self) -> bool:
        """Whether a live stream is waiting for this quantum, or the time slice has ended. Call this on a worker
        thread."""
        if self.time_slice is not None:
            return self.time_slice.is_over
        return self._scheduler is not None and self._scheduler.live_waiting > 0

    @property
    def runs_on_loop(self) -> bool:
        """Whether a quantum runs on the event loop, because it takes less time than switching to another thread."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether the job has nothing to do until `Scheduler.resume` is called."""
        return False

    @property
    def runs_next(self) -> bool:
        """Whether the next quantum of this job is run before other jobs of its stage."""
        return False

    def release(self) -> None:
        """Release the resources of the job. The scheduler calls this once, after it has removed the job."""

    # The following methods run on a worker thread.

    def emit(self, event: Any) -> None:
        """Send an event to the reader."""
        self._outbox.append(event)
        self._emitted += self.weight(event)

    def finish(self, result: Any) -> None:
        """Complete the job, and send its result as the last event."""
        self.done = True
        self._outbox.append(_Finished(result))

    def fail(self, error: BaseException) -> None:
        """End the job with an error. Unexpected errors are logged, and the client receives an internal error."""
        self.done = True
        if not isinstance(error, NAMED):
            logger.error("a request failed with an unexpected error", exc_info=error)
        self._outbox.append(as_service_error(error))

    def outcome(self) -> tuple[list[Any], Any]:
        """Return the events of a completed job, and its result or the `ServiceError` with which it failed. This is used
        for jobs that are part of another job."""
        *events, end = self._outbox
        return events, end.result if isinstance(end, _Finished) else end

    # The following methods run on the event loop.

    async def events(self) -> AsyncIterator[Any]:
        """Yield all emitted events, and at the end the result that was passed to `finish`.

        Leaving the iteration early cancels the job.

        Raises:
            ServiceError: If the job failed.
        """
        try:
            while True:
                if not self._inbox:
                    await self._inbox.wait()
                if isinstance(self._inbox[0], ServiceError):
                    raise self._inbox.popleft()  # no variable, to avoid a reference cycle of frame and error
                event = self._inbox.popleft()
                if isinstance(event, _Finished):
                    yield event.result
                    return
                if self._scheduler is not None:
                    self._scheduler.consumed(self, self.weight(event))
                yield event
        finally:
            self.cancel()

    async def result(self) -> Any:
        """Discard the events, and return the result that was passed to `finish`."""
        last = None
        async for event in self.events():
            last = event
        return last

    def cancel(self) -> None:
        """Cancel the job. If the job has already ended, this does nothing."""
        if self._scheduler is not None:
            self._scheduler.cancel(self)

    def deliver(self, events: list[Any]) -> None:
        """Add events to the queue of the reader."""
        self._inbox.put(events)


class _Finished:
    def __init__(self, result: Any) -> None:
        self.result = result
