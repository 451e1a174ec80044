"""Run many requests on a few threads. Scheduling is cooperative and fair, and the queue has a maximum length.

A request is a `Job`, and each job has a `Stage`. A worker takes the first job of the run queue and others of the same
stage. The stage advances them by one quantum (a decoding step, a piece of a prompt, or some observations). Unfinished
jobs then go to the end of the queue. Therefore, streams of one model share a step. Live streams come first. A job can
be cancelled or fail between quanta without affecting others.

    submit → waiting (bounded) → runnable ⇄ in a worker → finished
                                     ⇅
                                  parked: waits until its reader has read events
                                  idle:   a live stream without observations to filter

The events of a job are delivered to the event loop that submitted it. A worker wakes that loop once per quantum, or
when a stage calls `deliver_early`. Quanta that take microseconds run on the event loop. Live streams of a compiled
filter that were resumed in the same iteration of the loop share a step at its end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from rfa.service.engine.delivery import deliver_all, send_events
from rfa.service.engine.job import Job, Stage
from rfa.service.engine.run_queue import RunQueue
from rfa.service.engine.wait_estimate import WaitEstimate
from rfa.service.errors import NotReady, Overloaded

logger = logging.getLogger("rfa.engine")

LONGEST_QUANTUM_SECONDS = 10
# Maximum number of rows that run in one iteration of an event loop. They take half a millisecond.
QUICK_ROWS = 64


class Scheduler:
    """Runs jobs on worker threads.

    Args:
        workers: Number of threads.
        max_running: Maximum number of requests that are processed at the same time.
        max_waiting: Maximum number of requests in the queue. `submit` rejects further requests.
        max_streams: Maximum number of live streams, including idle ones. Live streams do not wait in the queue.
        stream_buffer: Number of unread events at which a job is parked.
        queue_seconds: Maximum time in the queue. Requests with a longer expected wait are rejected at once.
        count_refusal: Function that is called for each rejected job. Its argument is queue_full, queue_slow,
            queue_timeout or streams_full.

    Attributes:
        running: Number of requests that are being processed.
        streams: Number of live streams, including idle ones.
    """

    def __init__(
        self,
        *,
        workers: int,
        max_running: int,
        max_waiting: int,
        stream_buffer: int,
        max_streams: int = 0,
        queue_seconds: float = math.inf,
        count_refusal: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._workers = workers
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_streams = max_streams
        self.stream_buffer = stream_buffer
        self._queue_seconds = queue_seconds
        self._count_refusal = count_refusal
        self._lock = threading.Lock()
        self._work_arrived = threading.Condition(self._lock)
        self._removed = threading.Condition(self._lock)
        self._jobs: set[Job] = set()
        self._waiting: dict[Job, None] = {}
        self._runnable = RunQueue()
        self._parked: set[Job] = set()
        self._idle: set[Job] = set()
        self._quick: dict[asyncio.AbstractEventLoop, deque[Job]] = {}
        self.running = 0
        self.streams = 0
        self._busy = 0
        self._live_busy = 0
        self._draining = False
        self._closing = False
        self._progress = time.monotonic()
        self._wait = WaitEstimate()
        self._threads = [
            threading.Thread(target=self._serve, name=f"rfa-worker-{index}", daemon=True) for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._waiting)

    @property
    def live_waiting(self) -> int:
        """Number of live streams that wait for a quantum."""
        return self._runnable.live_waiting

    @property
    def has_live_work(self) -> bool:
        """Whether live streams are waiting for a quantum or are being advanced."""
        return self.live_waiting + self._live_busy > 0

    def stalled_for(self) -> float:
        """Return the seconds since the last quantum ended, or 0 if there is no work to do."""
        with self._lock:
            return time.monotonic() - self._progress if self._has_work() else 0.0

    def submit(self, job: Job) -> None:
        """Add a job to the queue. Call this on the event loop of the job.

        Raises:
            Overloaded: If the queue is full or the expected wait is too long, or if there are too many live streams.
            NotReady: If the scheduler is draining or closing.
        """
        with self._lock:
            if self._draining or self._closing:
                raise NotReady("The server is shutting down; try again later.")
            self._start_clock()
            if job.is_stream:
                self._admit_stream(job)
                return
            if self.running >= self._max_running and len(self._waiting) >= self._max_waiting:
                message = (
                    f"The queue is full: {self.running} requests are running, and {len(self._waiting)} are waiting; "
                    "try again later."
                )
                raise self._refusal("queue_full", message)
            if self.running >= self._max_running and self._wait.seconds(len(self._waiting)) > self._queue_seconds:
                raise self._refusal(
                    "queue_slow", "The expected waiting time exceeds the limit of this server; try again later."
                )
            job._scheduler = self
            self._jobs.add(job)
            if not self._waiting:
                self._wait.restart()
            self._waiting[job] = None
            self._admit()
            patience = min(self._queue_seconds, job.deadline - job.submitted)
            if job in self._waiting and patience < math.inf:
                job._queue_timer = job._loop.call_later(patience, self._time_out, job)

    def consumed(self, job: Job, events: int = 1) -> None:
        """Record that the reader of a job has read events. A parked job continues when half of its buffer is free."""
        with self._lock:
            job._backlog -= events
            if job in self._parked and job._unread <= self.stream_buffer // 2:
                self._parked.remove(job)
                self._queue(job)

    def resume(self, job: Job) -> None:
        """Add an idle job to the run queue. For other jobs, this does nothing."""
        with self._lock:
            if job in self._idle:
                self._start_clock()
                self._idle.remove(job)
                if job.runs_on_loop:
                    self._queue_quick(job)
                else:
                    self._queue(job)

    def cancel(self, job: Job) -> None:
        """Remove a job. If the job is being advanced, it is removed at the end of its quantum."""
        with self._lock:
            if job.cancelled or job.done:
                return
            job.cancelled = True
            if not self._dequeue(job) and self._unpark(job):
                self._remove(job)

    def drain(self, seconds: float) -> None:
        """Reject new jobs, end live streams, and interrupt requests that take longer than `seconds`.

        This blocks until every job has ended, for at most `LONGEST_QUANTUM_SECONDS` more. Interrupted jobs return the
        results so far, and a state from which they can be continued.
        """
        with self._lock:
            self._draining = True
            self._interrupt([job for job in self._jobs if job.is_stream])
            self._removed.wait_for(lambda: not self._jobs, seconds)
            self._interrupt(list(self._jobs))
            self._removed.wait_for(lambda: not self._jobs, LONGEST_QUANTUM_SECONDS)

    def close(self) -> None:
        """Stop the workers after their quantum. Jobs that are not complete fail."""
        with self._lock:
            self._closing = True
            self._work_arrived.notify_all()
        for thread in self._threads:
            thread.join(LONGEST_QUANTUM_SECONDS)  # with a limit, so that the process exits even if a model hangs
        with self._lock:
            unfinished = list(self._jobs)
        for job in unfinished:
            job.fail(NotReady("The server is shutting down; try again later."))
            send_events([job])

    def _serve(self) -> None:
        while (jobs := self._take()) is not None:
            self._advance(jobs)
            self._return(jobs)
            del jobs  # jobs must not stay alive while this thread waits

    def _take(self) -> list[Job] | None:
        """Wait for jobs, and return the jobs of the next quantum (see `RunQueue.take`). Return None when the scheduler
        is closing."""
        with self._lock:
            while not self._runnable and not self._closing:
                self._work_arrived.wait()
            if self._closing:
                return None
            jobs = self._runnable.take(self._busy, self._workers)
            self._live_busy += sum(job.is_stream for job in jobs)
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
            logger.warning("a step of %d requests failed; each of them is now retried alone", len(jobs), exc_info=error)
            for job in jobs:
                self._advance([job])

    def _run_quick(self, loop: asyncio.AbstractEventLoop) -> None:
        """Advance the jobs that were resumed on an event loop by one quantum. This method runs on the event loop."""
        queue = self._quick[loop]
        stages: dict[Stage, list[Job]] = {}
        for _ in range(min(QUICK_ROWS, len(queue))):
            job = queue.popleft()
            stages.setdefault(job.stage, []).append(job)
        for jobs in stages.values():
            self._advance(jobs)
            self._return(jobs, loop)
        if queue:
            loop.call_soon(self._run_quick, loop)
        else:
            del self._quick[loop]

    def _return(self, jobs: list[Job], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Deliver the events of a quantum. Then queue, park or remove each job.

        Args:
            loop: Event loop of the caller. None on a worker thread.
        """
        with self._lock:
            self._progress = time.monotonic()
            self._busy -= len(jobs)
            self._live_busy -= sum(job.is_stream for job in jobs)
            # Send the events before a job is queued. Otherwise, another worker could add or send further events.
            own = send_events(jobs, loop)
            # Jobs are put at the front one by one, so the last of them comes first.
            front = [job for job in reversed(jobs) if job.runs_next]
            for job in [*(job for job in jobs if not job.runs_next), *front]:
                if job.done or job.cancelled:
                    self._remove(job)
                elif job._unread >= self.stream_buffer and not job.interrupted:
                    self._parked.add(job)
                elif job.is_idle and not job.interrupted:
                    self._idle.add(job)
                elif loop is not None and not job.interrupted:
                    self._queue_quick(job)
                else:
                    self._queue(job, first=job.runs_next)
        deliver_all(own)  # without the lock, because readers may call `consumed`

    # The following methods require the lock.

    def _start_clock(self) -> None:
        if not self._has_work():
            self._progress = time.monotonic()

    def _has_work(self) -> bool:
        return bool(self._busy or self._runnable or self._waiting)

    def _queue(self, job: Job, first: bool = False) -> None:
        self._runnable.push(job, first=first)
        self._work_arrived.notify()

    def _queue_quick(self, job: Job) -> None:
        self._busy += 1
        self._live_busy += 1
        queue = self._quick.get(job._loop)
        if queue is None:
            queue = self._quick[job._loop] = deque()
            job._loop.call_soon(self._run_quick, job._loop)
        queue.append(job)

    def _admit(self) -> None:
        while self._waiting and self.running < self._max_running:
            job = next(iter(self._waiting))
            del self._waiting[job]
            if job._queue_timer is not None:
                job._loop.call_soon_threadsafe(job._queue_timer.cancel)
            self.running += 1
            self._queue(job)

    def _admit_stream(self, job: Job) -> None:
        if self.streams >= self._max_streams:
            message = f"The server already has the maximum number of {self.streams} live streams; try again later."
            raise self._refusal("streams_full", message)
        job._scheduler = self
        self._jobs.add(job)
        self.streams += 1
        if job.is_idle:
            self._idle.add(job)
        else:
            self._queue(job)

    def _remove(self, job: Job) -> None:
        self._jobs.discard(job)
        try:
            job.release()
        except Exception:  # so that the other requests of this thread are not affected
            logger.exception("the resources of a request could not be released")
        if job.is_stream:
            self.streams -= 1
        else:
            if self._waiting:
                self._wait.count_removal()
            self.running -= 1
            self._admit()
        if not self._jobs:
            self._removed.notify_all()

    def _dequeue(self, job: Job) -> bool:
        """Remove a job from the queue. Return whether it was waiting."""
        if job not in self._waiting:
            return False
        del self._waiting[job]
        self._jobs.discard(job)
        return True

    def _unpark(self, job: Job) -> bool:
        """Remove a job from the parked and idle jobs. Return whether it was one of them."""
        was_parked = job in self._parked or job in self._idle
        self._parked.discard(job)
        self._idle.discard(job)
        return was_parked

    def _interrupt(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.interrupted = True
            if self._dequeue(job):
                job.fail(NotReady("The server is shutting down; try again later."))
                send_events([job])
            elif self._unpark(job):
                self._queue(job)

    def _time_out(self, job: Job) -> None:
        """Reject a job that has waited too long. This runs on the event loop."""
        with self._lock:
            if not self._dequeue(job):
                return
            refusal = self._refusal("queue_timeout", "The request waited too long in the queue; try again later.")
        job.fail(refusal)
        send_events([job])

    def _refusal(self, reason: str, message: str) -> Overloaded:
        self._count_refusal(reason)
        return Overloaded(message, retry_after_seconds=self._wait.retry_after())


def deliver_early(jobs: Sequence[Job]) -> None:
    """Deliver the events of jobs before the end of their quantum. Call this on the worker thread of the jobs."""
    scheduler = jobs[0]._scheduler if jobs else None
    if scheduler is not None:
        with scheduler._lock:
            send_events(jobs)
