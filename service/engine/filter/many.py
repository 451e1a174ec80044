"""Filter the series of a request with several series. The scheduler sees one job.

Each series has the job of a request with this series alone, but it is not added to the scheduler. Therefore, the
request has one place in the queue and one time slice at a time, regardless of the number of its series. In a time
slice, several threads filter series. They use several cores, because the kernels release the interpreter lock. A series
uses a pool slot while a thread filters it, and its reply is sent as a whole when it is complete.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rfa.service.engine.filter.filter_job import Filtered, FilterJob
from rfa.service.engine.filter.sequence_job import SequenceJob
from rfa.service.engine.filter.stages import QUANTUM_SECONDS, observe_end
from rfa.service.engine.job import Job
from rfa.service.errors import NotReady, ServiceError
from rfa.service.metrics import Metrics
from rfa.service.schemas.filter_replies import FilterTimings

# In the buffer of the reader, a completed series counts as one event, plus one for each EVENT_BYTES bytes.
EVENT_BYTES = 1 << 16


@dataclass(frozen=True)
class Part:
    """One series of a request with several series.

    Attributes:
        index: Position in the request, counted from 0.
        model: Name of the filter.
        job: Job that filters the series.
        numbers: Estimated number of numbers in the reply.
        waiting_bytes: Memory in bytes until the series is complete.
        ended_bytes: Memory in bytes from its completion until the reply is encoded.
    """

    index: int
    model: str
    job: FilterJob | SequenceJob
    numbers: int
    waiting_bytes: int
    ended_bytes: int

    @property
    def weight(self) -> int:
        """Weight of the series in the buffer of the reader, in events."""
        return 1 + self.ended_bytes // EVENT_BYTES


@dataclass(frozen=True)
class SeriesEnd:
    """Event for a series that is complete or has failed. If it has failed, `outputs` is empty and `end` is the
    error."""

    part: Part
    outputs: Sequence[Any]
    end: Filtered | ServiceError


class SeriesWorker:
    """The series that one thread filters, and the time slice of the thread. The time slice ends at the processor time
    `until` of the thread."""

    def __init__(self, job: ManyJob) -> None:
        self.part: Part | None = None
        self.until = 0.0
        self._job = job

    @property
    def is_over(self) -> bool:
        """Whether the time slice has ended."""
        job = self._job
        return job.should_yield or job.cancelled or job.interrupted or time.thread_time() >= self.until


class ManyJob(Job):
    """Job of a request with several series. Its events are `SeriesEnd`, in the order in which the series are completed.

    Args:
        parts: Series of the request, at least one.
        threads: Maximum number of threads that filter the series.
    """

    def __init__(
        self, stage: ManyStage, parts: Sequence[Part], threads: int, *, deadline_seconds: float | None = None
    ) -> None:
        super().__init__(stage, deadline_seconds=deadline_seconds)
        self.model_name = parts[0].model
        self.workers = [SeriesWorker(self) for _ in range(min(threads, len(parts)))]
        self._waiting = deque(parts)
        self._remaining = len(parts)
        self._lock = threading.Lock()

    def weight(self, event: Any) -> int:
        return event.part.weight if isinstance(event, SeriesEnd) else 1

    # The following methods run on the threads of a time slice.

    @property
    def has_waiting(self) -> bool:
        """Whether there are series that no thread has started to filter."""
        return bool(self._waiting)

    def run_worker(self, worker: SeriesWorker) -> None:
        """Filter series until the time slice is over."""
        worker.until = time.thread_time() + QUANTUM_SECONDS
        while True:
            if worker.part is None and (self.is_buffer_full or not self._begin(worker)):
                return
            self._advance(worker)
            if worker.is_over:
                return

    def _begin(self, worker: SeriesWorker) -> bool:
        with self._lock:
            worker.part = self._waiting.popleft() if self._waiting else None
        if worker.part is None:
            return False
        job = worker.part.job
        job.time_slice, job.started = worker, time.monotonic()
        return True

    def _advance(self, worker: SeriesWorker) -> None:
        assert worker.part is not None
        job = worker.part.job
        try:
            job.stage.run([job])  # type: ignore[list-item]  # each stage made its jobs
        except Exception as error:
            job.fail(error)
        if job.done:
            job.release()
            outputs, end = job.outcome()
            ended = SeriesEnd(worker.part, () if isinstance(end, ServiceError) else outputs, end)
            worker.part = None
            with self._lock:
                self.emit(ended)
                self._remaining -= 1

    @property
    def is_over(self) -> bool:
        """Whether all series are complete."""
        return not self._remaining

    def release(self) -> None:
        for worker in self.workers:
            if worker.part is not None:
                worker.part.job.release()
                worker.part = None


class ManyStage:
    """Stage that advances a request with several series by one time slice, on several threads.

    Args:
        threads: Number of threads in addition to the calling one.
    """

    max_rows = 1

    def __init__(self, threads: int, metrics: Metrics) -> None:
        self._pool = ThreadPoolExecutor(threads, "rfa-series") if threads else None
        self._metrics = metrics

    def run(self, jobs: Sequence[ManyJob]) -> None:
        for job in jobs:
            if job.interrupted:
                job.fail(NotReady("The server is shutting down; try again later."))
                continue
            own, *others = job.workers
            futures = [] if self._pool is None else [
                self._pool.submit(job.run_worker, worker)
                for worker in others if worker.part is not None or job.has_waiting
            ]  # fmt: skip
            job.run_worker(own)
            for future in futures:
                if not future.cancel():
                    future.result()
            if job.is_over:
                job.finish(self.observe_end(job))

    def observe_end(self, job: ManyJob) -> FilterTimings:
        """Count a completed request, and return its timings."""
        return observe_end(job, self._metrics, job.model_name)

    def close(self) -> None:
        """End the threads after their time slices."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
