"""Many requests on a few threads: cooperative, fair, bounded.

A request is a `Job`. A job is at a `Stage`; a worker thread takes the job at the head of the run queue together with
others at the same stage, lets the stage advance them by one quantum (one decode step, one piece of a prompt, some
observations) and puts the unfinished ones back at the tail. So no request waits for another to end, streams of one
model share a step, live ones go first, and a request can be cancelled, or fail, between quanta without touching its
neighbours.

    submit → waiting (bounded) → runnable ⇄ in a worker → finished
                                     ⇅
                                  parked: its reader lags behind
                                  idle:   a live stream with nothing to do

Jobs report to the event loop that submitted them; a worker wakes that loop once per quantum, not once per job, unless
a stage has more to do for some of its jobs (`deliver_early`). What takes microseconds is done on that loop itself: live
streams of a compiled filter that were woken in one round of the loop share a step at its end.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rfa.service.engine.job import Job, Stage
from rfa.service.engine.line import WaitingLine
from rfa.service.errors import NotReady, Overloaded

logger = logging.getLogger("rfa.engine")

LONGEST_RETRY_SECONDS = 60
LONGEST_QUANTUM_SECONDS = 10
SMOOTHING = 0.1
# Rows of quick jobs in one round of an event loop: half a millisecond's work.
QUICK_ROWS = 64
# Quanta of live streams after which requests that wait have one, if there was none between them.
LIVE_IN_A_ROW = 8
Delivery = tuple[Job, list[Any]]


class Scheduler:
    """Worker threads over a run queue.

    Args:
        workers: threads.
        max_running: requests that may hold model state at the same time.
        max_waiting: requests beyond that before `submit` refuses.
        max_streams: live streams, idle ones included; they never wait: one too many is refused.
        stream_buffer: undelivered events at which a job is parked until its reader catches up.
        queue_seconds: a request that would wait longer, or did, is refused.
        count_refusal: told the reason of every refusal: queue_full, queue_slow, queue_timeout or streams_full.
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
        self._departed = threading.Condition(self._lock)
        self._jobs: set[Job] = set()
        self._waiting: dict[Job, None] = {}
        self._runnable: dict[Stage, WaitingLine] = {}
        self._parked: set[Job] = set()
        self._idle: set[Job] = set()
        self._quick: dict[asyncio.AbstractEventLoop, deque[Job]] = {}
        self._running = 0
        self._streams = 0
        self._busy = 0
        self._live_waiting = 0
        self._live_busy = 0
        self._live_in_a_row = 0
        self._given = 0  # rows before those of the last stream that was served: where one that comes now begins
        self._arrivals = itertools.count()
        self._draining = False
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
        """Requests that hold model state."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def streams(self) -> int:
        """Live streams, idle ones included."""
        return self._streams

    @property
    def live_waiting(self) -> int:
        """Live streams that wait for a quantum."""
        return self._live_waiting

    @property
    def live_at_work(self) -> bool:
        """Whether live streams wait for a quantum or are in one: somebody waits for the answers."""
        return self._live_waiting + self._live_busy > 0

    def stalled_for(self) -> float:
        """Seconds since the last progress while there is work to do, else 0."""
        with self._lock:
            return time.monotonic() - self._progress if self._has_work() else 0.0

    def submit(self, job: Job) -> None:
        """Queue a job; called on its event loop.

        Raises:
            Overloaded: when the queue is full, or the places of live streams are taken.
            NotReady: when the scheduler is draining or closing.
        """
        with self._lock:
            if self._draining or self._closing:
                raise NotReady("The server is shutting down.")
            if not self._has_work():
                self._progress = time.monotonic()
            if job.is_stream:
                self._admit_stream(job)
                return
            if self._running >= self._max_running and len(self._waiting) >= self._max_waiting:
                raise self._refusal(
                    "queue_full",
                    f"The server works on {self._running} requests and {len(self._waiting)} wait; try again later.",
                )
            if self._running >= self._max_running and self._expected_wait() > self._queue_seconds:
                raise self._refusal("queue_slow", "The requests that wait already will take too long; try again later.")
            job._scheduler = self
            self._jobs.add(job)
            if not self._waiting:
                self._last_departure = time.monotonic()
            self._waiting[job] = None
            self._admit()
            patience = min(self._queue_seconds, job.deadline - job.submitted)
            if job in self._waiting and patience < math.inf:
                job._patience = job._loop.call_later(patience, self._give_up, job)

    def consumed(self, job: Job, events: int = 1) -> None:
        """The reader took events; a parked job may go on once half of its buffer is free."""
        with self._lock:
            job._backlog -= events
            if job in self._parked and job._lag <= self.stream_buffer // 2:
                self._parked.remove(job)
                self._queue(job)

    def wake(self, job: Job) -> None:
        """There is something to do for this job again; harmless when it was not idle."""
        with self._lock:
            if job in self._idle:
                if not self._has_work():
                    self._progress = time.monotonic()
                self._idle.remove(job)
                if job.is_quick:
                    self._busy += 1
                    self._live_busy += 1
                    self._queue_quick(job)
                else:
                    self._queue(job)

    def cancel(self, job: Job) -> None:
        """Drop a job: at once where it waits, after the quantum where a worker has it."""
        with self._lock:
            if job.cancelled or job.done:
                return
            job.cancelled = True
            if job in self._waiting:
                del self._waiting[job]
                self._jobs.discard(job)
            elif job in self._parked or job in self._idle:
                self._parked.discard(job)
                self._idle.discard(job)
                self._depart(job)

    def drain(self, seconds: float) -> None:
        """Take no new job, end live streams, give requests `seconds` to end, and then interrupt them too.

        Returns when every job has ended, at the latest `LONGEST_QUANTUM_SECONDS` after the time given. Interrupted
        jobs end in an orderly way: their stage hands back what it has, and where to go on.
        """
        with self._lock:
            self._draining = True
            self._interrupt([job for job in self._jobs if job.is_stream])
            self._departed.wait_for(lambda: not self._jobs, seconds)
            self._interrupt(list(self._jobs))
            self._departed.wait_for(lambda: not self._jobs, LONGEST_QUANTUM_SECONDS)

    def close(self) -> None:
        """Stop the workers after their current quantum and fail what is left."""
        with self._lock:
            self._closing = True
            self._work_arrived.notify_all()
        for thread in self._threads:
            thread.join(LONGEST_QUANTUM_SECONDS)  # a thread that hangs in a model must not keep the process alive
        with self._lock:
            left = list(self._jobs)
        for job in left:
            job.fail(NotReady("The server is shutting down."))
            self._deliver([job])

    def _serve(self) -> None:
        while (jobs := self._take()) is not None:
            self._advance(jobs)
            self._return(jobs)
            del jobs  # nobody is kept while this thread waits

    def _take(self) -> list[Job] | None:
        """The next jobs to advance together; None when closing. Work is shared evenly among the workers."""
        with self._lock:
            while not self._runnable and not self._closing:
                self._work_arrived.wait()
            if self._closing:
                return None
            is_live_first = self._is_turn_of_live()
            stage = self._next_stage(is_live_first)
            line = self._runnable.pop(stage)
            most = math.ceil((len(line) + self._busy) / self._workers)
            if is_live_first:
                self._given = max(self._given, line.live[0][0])
            jobs = line.take(most, stage.max_rows, is_live_first=is_live_first)
            if line:
                self._runnable[stage] = line
            live = sum(job.is_stream for job in jobs)
            self._live_in_a_row = self._live_in_a_row + 1 if is_live_first else 0
            self._live_waiting -= live
            self._live_busy += live
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
            logger.warning("a batch of %d requests failed and is tried one by one", len(jobs), exc_info=error)
            for job in jobs:
                self._advance([job])

    def _run_quick(self, loop: asyncio.AbstractEventLoop) -> None:
        """On an event loop: a quantum of the quick jobs that were woken on it, those of a stage together."""
        line = self._quick[loop]
        stages: dict[Stage, list[Job]] = {}
        for _ in range(min(QUICK_ROWS, len(line))):
            job = line.popleft()
            stages.setdefault(job.stage, []).append(job)
        for jobs in stages.values():
            self._advance(jobs)
            self._return(jobs, loop)
        if line:
            loop.call_soon(self._run_quick, loop)
        else:
            del self._quick[loop]

    def _return(self, jobs: list[Job], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Deliver the quantum's events, then queue, park, lay aside or dismiss every job.

        Args:
            loop: that this is on; None on a worker.
        """
        with self._lock:
            self._progress = time.monotonic()
            self._busy -= len(jobs)
            self._live_busy -= sum(job.is_stream for job in jobs)
            # Before a job is queued: another worker that took it up would add to the same outbox, or deliver first.
            own = self._deliver(jobs, loop)
            # Those that keep their place go to the head of the line one by one: the last of them first.
            kept = [job for job in reversed(jobs) if job.keeps_place]
            for job in [*(job for job in jobs if not job.keeps_place), *kept]:
                if job.done or job.cancelled:
                    self._depart(job)
                elif job._lag >= self.stream_buffer and not job.interrupted:
                    self._parked.add(job)
                elif job.is_idle and not job.interrupted:
                    self._idle.add(job)
                elif loop is not None and not job.interrupted:
                    self._busy += 1
                    self._live_busy += 1
                    self._queue_quick(job)
                else:
                    self._queue(job, first=job.keeps_place)
        _deliver_all(own)  # without the lock: readers that take what they are given at once say so

    def _deliver(self, jobs: Sequence[Job], own: asyncio.AbstractEventLoop | None = None) -> list[Delivery]:
        """Give readers what was emitted; every event loop concerned is woken once, but the one that this is on.

        Returns:
            What is left for the caller to deliver, on its own loop.
        """
        by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
        for job in jobs:
            if job._outbox:
                job._backlog += job._emitted
                job._emitted = 0
                by_loop.setdefault(job._loop, []).append((job, job._outbox))
                job._outbox = []
        for_own = [] if own is None else by_loop.pop(own, [])
        for loop, deliveries in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver_all, deliveries)
            except RuntimeError:
                logger.debug("the event loop of %d requests is closed", len(deliveries))
        return for_own

    # With the lock held.

    def _is_turn_of_live(self) -> bool:
        if self._live_in_a_row >= LIVE_IN_A_ROW and any(line.requests for line in self._runnable.values()):
            return False
        return self._live_waiting > 0

    def _next_stage(self, is_live_first: bool) -> Stage:
        """That of the live stream that was given least; of requests stages take turns, so that no kind of work waits
        for another to run dry."""
        if is_live_first:
            return min(
                (stage for stage, line in self._runnable.items() if line.live),
                key=lambda stage: self._runnable[stage].live[0][:2],
            )
        return next(stage for stage, line in self._runnable.items() if line.requests)

    def _has_work(self) -> bool:
        return bool(self._busy or self._runnable or self._waiting)

    def _queue(self, job: Job, first: bool = False) -> None:
        line = self._runnable.setdefault(job.stage, WaitingLine())
        if job.is_stream:
            self._live_waiting += 1
            begin = max(self._given, job._given)
            job._given = begin + job.rows
            heapq.heappush(line.live, (begin, next(self._arrivals), job))
        elif first:
            line.requests.appendleft(job)
        else:
            line.requests.append(job)
        self._work_arrived.notify()

    def _queue_quick(self, job: Job) -> None:
        line = self._quick.get(job._loop)
        if line is None:
            line = self._quick[job._loop] = deque()
            job._loop.call_soon(self._run_quick, job._loop)
        line.append(job)

    def _admit(self) -> None:
        while self._waiting and self._running < self._max_running:
            job = next(iter(self._waiting))
            del self._waiting[job]
            if job._patience is not None:
                job._loop.call_soon_threadsafe(job._patience.cancel)
            self._running += 1
            self._queue(job)

    def _admit_stream(self, job: Job) -> None:
        if self._streams >= self._max_streams:
            raise self._refusal(
                "streams_full", f"The server keeps {self._streams} live streams and has no place for another."
            )
        job._scheduler = self
        self._jobs.add(job)
        self._streams += 1
        if job.is_idle:
            self._idle.add(job)
        else:
            self._queue(job)

    def _depart(self, job: Job) -> None:
        self._jobs.discard(job)
        try:
            job.release()
        except Exception:  # the other requests of this thread must not end with it
            logger.exception("a request could not give back what it holds")
        if job.is_stream:
            self._streams -= 1
        else:
            self._measure_departure()
            self._running -= 1
            self._admit()
        if not self._jobs:
            self._departed.notify_all()

    def _interrupt(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.interrupted = True
            if job in self._waiting:
                del self._waiting[job]
                self._jobs.discard(job)
                job.fail(NotReady("The server is shutting down."))
                self._deliver([job])
            elif job in self._parked or job in self._idle:
                self._parked.discard(job)
                self._idle.discard(job)
                self._queue(job)

    def _give_up(self, job: Job) -> None:
        """On the event loop: the job has waited for as long as it may."""
        with self._lock:
            if job not in self._waiting:
                return
            del self._waiting[job]
            self._jobs.discard(job)
            refusal = self._refusal("queue_timeout", "The request waited too long for a place; try again later.")
        job.fail(refusal)
        self._deliver([job])

    def _refusal(self, reason: str, message: str) -> Overloaded:
        self._count_refusal(reason)
        return Overloaded(message, retry_after_seconds=self._retry_after())

    def _measure_departure(self) -> None:
        """How fast requests leave, while others wait: an empty queue says nothing about that."""
        if not self._waiting:
            return
        now = time.monotonic()
        interval = min(now - self._last_departure, LONGEST_RETRY_SECONDS)
        self._last_departure = now
        weight = SMOOTHING if self._departure_interval else 1.0
        self._departure_interval += weight * (interval - self._departure_interval)

    def _expected_wait(self) -> float:
        """Seconds until a request that came now would begin, at the rate at which requests left lately."""
        return (len(self._waiting) + 1) * self._departure_interval

    def _retry_after(self) -> int:
        return max(1, min(LONGEST_RETRY_SECONDS, math.ceil(self._expected_wait())))


def deliver_early(jobs: Sequence[Job]) -> None:
    """On a worker that has these jobs: give readers what was emitted so far, instead of at the end of the quantum."""
    scheduler = jobs[0]._scheduler if jobs else None
    if scheduler is not None:
        with scheduler._lock:
            scheduler._deliver(jobs)


def _deliver_all(deliveries: list[Delivery]) -> None:
    for job, events in deliveries:
        job.deliver(events)
