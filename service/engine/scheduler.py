"""Many requests on a few threads: cooperative, fair, bounded.

A request is a `Job`. A job is at a `Stage`; a worker thread takes the job at the head of the run queue together with
others at the same stage, lets the stage advance them by one quantum (one decode step, one piece of a prompt, some
observations) and puts the unfinished ones back at the tail. So no request waits for another to end, streams of one
model share a step, and a request can be cancelled, or fail, between quanta without touching its neighbours.

    submit → waiting (bounded) → runnable ⇄ in a worker → finished
                                     ⇅
                                  parked: its reader lags behind

Jobs report to the event loop that submitted them; a worker wakes that loop once per quantum, not once per job.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from service.errors import NotReady, Overloaded, ServiceError, as_service_error

logger = logging.getLogger("rfa.engine")

LONGEST_RETRY_SECONDS = 60
LONGEST_QUANTUM_SECONDS = 10
SMOOTHING = 0.1


class Stage(Protocol):
    """Something that advances jobs by one quantum."""

    max_jobs: int

    def run(self, jobs: Sequence[Any]) -> None:
        """Advance every job: emit, finish or fail it, or set its next stage.

        An exception must leave every job as it was: the scheduler then advances the jobs one by one to find the
        one at fault.
        """


class Job:
    """One request on its way through the engine.

    A worker thread calls `emit`, `finish` and `fail`; the event loop calls `events`, `result` and `cancel`.
    """

    def __init__(self, stage: Stage, *, deadline_seconds: float | None = None) -> None:
        self.stage = stage
        self.submitted = time.monotonic()
        self.started: float | None = None
        self.deadline = math.inf if deadline_seconds is None else self.submitted + deadline_seconds
        self.cancelled = False
        self.done = False
        self._backlog = 0
        self._outbox: list[Any] = []
        self._inbox: deque[Any] = deque()
        self._arrival = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._scheduler: Scheduler | None = None

    # On a worker thread.

    def emit(self, event: Any) -> None:
        """Send an event to the reader."""
        self._outbox.append(event)

    def finish(self, result: Any) -> None:
        """Send the last event."""
        self.done = True
        self._outbox.append(_Finished(result))

    def fail(self, error: BaseException) -> None:
        """End with an error; one without a name is logged and told as an internal error."""
        self.done = True
        if not isinstance(error, ServiceError):
            logger.error("request failed", exc_info=error)
        self._outbox.append(as_service_error(error))

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
                event = self._inbox.popleft()
                if isinstance(event, ServiceError):
                    raise event
                if isinstance(event, _Finished):
                    yield event.result
                    return
                if self._scheduler is not None:
                    self._scheduler.consumed(self)
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


class Scheduler:
    """Worker threads over a run queue.

    Args:
        workers: threads.
        max_running: jobs that may hold model state at the same time.
        max_waiting: jobs beyond that before `submit` refuses.
        stream_buffer: undelivered events at which a job is parked until its reader catches up.
    """

    def __init__(self, *, workers: int, max_running: int, max_waiting: int, stream_buffer: int) -> None:
        self._workers = workers
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._stream_buffer = stream_buffer
        self._lock = threading.Lock()
        self._work_arrived = threading.Condition(self._lock)
        self._waiting: deque[Job] = deque()
        self._runnable: deque[Job] = deque()
        self._parked: set[Job] = set()
        self._running = 0
        self._busy = 0
        self._closing = False
        self._progress = time.monotonic()
        self._departure_interval = 0.0
        self._last_departure = time.monotonic()
        self._threads = [
            threading.Thread(target=self._serve, name=f"rfa-worker-{index}", daemon=True) for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> int:
        """Jobs that hold model state."""
        return self._running

    @property
    def waiting(self) -> int:
        """Jobs that wait for a place."""
        return len(self._waiting)

    def stalled_for(self) -> float:
        """Seconds since the last progress while there is work to do, else 0."""
        with self._lock:
            has_work = bool(self._busy or self._runnable or self._waiting)
            return time.monotonic() - self._progress if has_work else 0.0

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            Overloaded: when the queue is full.
            NotReady: when the scheduler is closing.
        """
        with self._lock:
            if self._closing:
                raise NotReady("The server is shutting down.")
            if self._running >= self._max_running and len(self._waiting) >= self._max_waiting:
                raise Overloaded(
                    f"The server works on {self._running} requests and {len(self._waiting)} wait; try again later.",
                    retry_after_seconds=self._retry_after(),
                )
            if not (self._busy or self._runnable or self._waiting):
                self._progress = time.monotonic()
            job._scheduler = self
            self._waiting.append(job)
            self._admit()

    def consumed(self, job: Job) -> None:
        """The reader took one event; a parked job may go on once half of its buffer is free."""
        with self._lock:
            job._backlog -= 1
            if job in self._parked and job._backlog <= self._stream_buffer // 2:
                self._parked.remove(job)
                self._runnable.append(job)
                self._work_arrived.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job: at once where it waits, after the quantum where a worker has it."""
        with self._lock:
            if job.cancelled or job.done:
                return
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
            elif job in self._parked:
                self._parked.remove(job)
                self._depart()

    def close(self) -> None:
        """Stop the workers after their current quantum and fail what is left."""
        with self._lock:
            self._closing = True
            self._work_arrived.notify_all()
        for thread in self._threads:
            thread.join(LONGEST_QUANTUM_SECONDS)  # a thread that hangs in a model must not keep the process alive
        for job in (*self._waiting, *self._runnable, *self._parked):
            job.fail(NotReady("The server is shutting down."))
            self._deliver([job])

    def _serve(self) -> None:
        while (jobs := self._take()) is not None:
            self._advance(jobs)
            self._return(jobs)

    def _take(self) -> list[Job] | None:
        """The next jobs to advance together; None when closing. Work is shared evenly among the workers."""
        with self._lock:
            while not self._runnable:
                if self._closing:
                    return None
                self._work_arrived.wait()
            if self._closing:
                return None
            stage = self._runnable[0].stage
            share = math.ceil((len(self._runnable) + self._busy) / self._workers)
            jobs: list[Job] = []
            others: list[Job] = []
            while self._runnable and len(jobs) < min(share, stage.max_jobs):
                job = self._runnable.popleft()
                (jobs if job.stage is stage else others).append(job)
            self._runnable.extendleft(reversed(others))
            self._busy += len(jobs)
            now = time.monotonic()
            for job in jobs:
                job.started = job.started or now
            return jobs

    def _advance(self, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if not job.cancelled]
        if not jobs:
            return
        try:
            jobs[0].stage.run(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].fail(error)
                return
            for job in jobs:
                self._advance([job])

    def _return(self, jobs: list[Job]) -> None:
        """Hand the quantum's events over, then queue, park or dismiss every job."""
        with self._lock:
            self._progress = time.monotonic()
            self._busy -= len(jobs)
            for job in jobs:
                job._backlog += len(job._outbox)
                if job.done or job.cancelled:
                    self._depart()
                elif job._backlog >= self._stream_buffer:
                    self._parked.add(job)
                else:
                    self._runnable.append(job)
                    self._work_arrived.notify()
        self._deliver(jobs)

    def _deliver(self, jobs: list[Job]) -> None:
        """Wake every event loop concerned, once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, list[Any]]]] = {}
        for job in jobs:
            if job._outbox:
                by_loop.setdefault(job._loop, []).append((job, job._outbox))
                job._outbox = []
        for loop, deliveries in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver_all, deliveries)
            except RuntimeError:
                logger.debug("the event loop of %d requests is closed", len(deliveries))

    def _admit(self) -> None:
        while self._waiting and self._running < self._max_running:
            self._running += 1
            self._runnable.append(self._waiting.popleft())
            self._work_arrived.notify()

    def _depart(self) -> None:
        now = time.monotonic()
        interval = now - self._last_departure
        self._departure_interval += SMOOTHING * (min(interval, LONGEST_RETRY_SECONDS) - self._departure_interval)
        self._last_departure = now
        self._running -= 1
        self._admit()

    def _retry_after(self) -> int:
        """Seconds until the queue has drained at the rate at which jobs left lately."""
        seconds = (len(self._waiting) + 1) * self._departure_interval
        return max(1, min(LONGEST_RETRY_SECONDS, math.ceil(seconds)))


def _deliver_all(deliveries: list[tuple[Job, list[Any]]]) -> None:
    for job, events in deliveries:
        job.deliver(events)
