"""A request on its way through the engine: a worker advances it, an event loop reads what it gives."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rfa.service.errors import NAMED, ServiceError, as_service_error

if TYPE_CHECKING:
    from rfa.service.engine.scheduler import Scheduler


logger = logging.getLogger("rfa.engine")


class Stage(Protocol):
    """Something that advances jobs by one quantum."""

    max_rows: int  # rows of one quantum, unless a single job has more

    def run(self, jobs: Sequence[Any]) -> None:
        """Advance every job: emit, finish or fail it, or set its next stage.

        An exception must leave every job as it was: the scheduler then advances the jobs one by one to find the
        one at fault.
        """


class Turn(Protocol):
    """The time that a larger job gives to a part of it."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        ...


class Job:
    """One request on its way through the engine.

    A worker thread calls `emit`, `finish` and `fail`; the event loop calls `events`, `result` and `cancel`.
    """

    is_stream = False  # a live stream: it stays until its client leaves, and is idle most of the time

    def __init__(self, stage: Stage, *, deadline_seconds: float | None = None) -> None:
        self.stage = stage
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.deadline = math.inf if deadline_seconds is None else self.submitted + deadline_seconds
        self.cancelled = False
        self.done = False
        self.interrupted = False  # the server goes down: hand back what there is
        self.turn: Turn | None = None  # of a part of another job, which never enters the scheduler: whose turn it has
        self._patience: asyncio.TimerHandle | None = None
        self._backlog = 0
        self._outbox: list[Any] = []
        self._emitted = 0
        self._given = 0  # rows, on the scale of all live streams
        self._inbox: deque[Any] = deque()
        self._arrival = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._scheduler: Scheduler | None = None

    @property
    def rows(self) -> int:
        """Sequences that one quantum of this job advances."""
        return 1

    @property
    def event_rows(self) -> int:
        """What an event weighs in the reader's buffer."""
        return 1

    def weight(self, _: Any) -> int:
        """How many events an event counts for."""
        return 1

    @property
    def _lag(self) -> int:
        """What the reader has yet to take."""
        return self._backlog * self.event_rows

    @property
    def is_ahead(self) -> bool:
        """On a worker: whether what the reader has yet to take, with this quantum's events, is enough."""
        waiting = (self._backlog + self._emitted) * self.event_rows
        return self._scheduler is not None and waiting >= self._scheduler.stream_buffer

    @property
    def is_overdue(self) -> bool:
        """Whether the deadline has passed: the job ends with what it has."""
        return time.monotonic() > self.deadline

    @property
    def is_in_the_way(self) -> bool:
        """On a worker: whether a live stream waits for this quantum to end, or the turn that it is a part of has."""
        if self.turn is not None:
            return self.turn.is_over
        return self._scheduler is not None and self._scheduler.live_waiting > 0

    @property
    def is_quick(self) -> bool:
        """Whether a quantum of this job takes microseconds: it is not worth the way to another thread."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do until `Scheduler.wake`."""
        return False

    @property
    def keeps_place(self) -> bool:
        """Whether the next quantum of this job comes before other jobs of its stage, instead of in turn."""
        return False

    def release(self) -> None:
        """Give back what the job holds; called once, when it has left the scheduler, whatever the reason."""

    # On a worker thread.

    def emit(self, event: Any) -> None:
        """Send an event to the reader."""
        self._outbox.append(event)
        self._emitted += self.weight(event)

    def finish(self, result: Any) -> None:
        """Send the last event."""
        self.done = True
        self._outbox.append(_Finished(result))

    def fail(self, error: BaseException) -> None:
        """End with an error; one without a name is logged and told as an internal error."""
        self.done = True
        if not isinstance(error, NAMED):
            logger.error("request failed", exc_info=error)
        self._outbox.append(as_service_error(error))

    def outcome(self) -> tuple[list[Any], Any]:
        """Of a part that has ended: its events, and its result or ServiceError."""
        *events, end = self._outbox
        return events, end.result if isinstance(end, _Finished) else end

    # On the event loop.

    async def events(self) -> AsyncIterator[Any]:
        """Every emitted event, then the finish result as the last one.

        Leaving the iteration early cancels the job.

        Raises:
            ServiceError: when the job failed.
        """
        try:
            while True:
                while not self._inbox:
                    self._arrival.clear()
                    await self._arrival.wait()
                if isinstance(self._inbox[0], ServiceError):
                    raise self._inbox.popleft()  # without a name: a frame and its error would keep each other alive
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
        """The finish result of a job whose events nobody needs."""
        last = None
        async for event in self.events():
            last = event
        return last

    def cancel(self) -> None:
        """Stop working on this job; harmless when it is over."""
        if self._scheduler is not None:
            self._scheduler.cancel(self)

    def deliver(self, events: list[Any]) -> None:
        """Put events where the reader finds them."""
        self._inbox.extend(events)
        self._arrival.set()


class _Finished:
    def __init__(self, result: Any) -> None:
        self.result = result
