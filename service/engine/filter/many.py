"""Many series in a request: one job in the scheduler's eyes, and a part for each series.

A part is the job that its series would be alone, but it never enters the scheduler: the request has one place in the
queue and one turn at a time, however many series it holds. In its turn a few threads take parts one after the other,
each thread in a lane of its own; numbers are computed outside of the interpreter's lock, so lanes use as many cores as
there are. A part holds a seat while it is in a lane, and is given to the reader whole when it has ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rfa.service.engine.filter.jobs import Filtered, FilterJob, SequenceJob
from rfa.service.engine.filter.stages import QUANTUM_SECONDS, observe_end
from rfa.service.engine.job import Job
from rfa.service.errors import NotReady, ServiceError
from rfa.service.metrics import Metrics
from rfa.service.schemas.filter_replies import FilterTimings

# What a series that waits for its reader weighs in the buffer: one event for each so many bytes.
EVENT_BYTES = 1 << 16


@dataclass(frozen=True)
class Part:
    """A series of a request.

    Attributes:
        place: which one it is, from 0.
        model: name of what filters it.
        numbers: that its reply holds, more or less.
        kept_bytes: what it takes until it ends.
        held_bytes: what it takes from its end until it is encoded.
    """

    place: int
    model: str
    job: FilterJob | SequenceJob
    numbers: int
    kept_bytes: int
    held_bytes: int

    @property
    def weight(self) -> int:
        """In the reader's buffer."""
        return 1 + self.held_bytes // EVENT_BYTES


@dataclass(frozen=True)
class SeriesEnd:
    """A series that has ended: what was told of it, nothing where it failed, and how it ended."""

    part: Part
    outputs: Sequence[Any]
    end: Filtered | ServiceError


class Lane:
    """What one thread works on: the part that is under way, and its turn, which ends at a processor time of the
    thread."""

    def __init__(self, job: ManyJob) -> None:
        self.part: Part | None = None
        self.until = 0.0
        self._job = job

    @property
    def is_over(self) -> bool:
        """Whether the turn is."""
        job = self._job
        return job.is_in_the_way or job.cancelled or job.interrupted or time.thread_time() >= self.until


class ManyJob(Job):
    """A request of many series. Its events are `SeriesEnd`, in the order in which they end.

    Args:
        parts: one at least; their jobs belong to this one.
        lanes: threads that may work on it at the same time.
    """

    def __init__(
        self, stage: ManyStage, parts: Sequence[Part], lanes: int, *, deadline_seconds: float | None = None
    ) -> None:
        super().__init__(stage, deadline_seconds=deadline_seconds)
        self.model_name = parts[0].model
        self.lanes = [Lane(self) for _ in range(min(lanes, len(parts)))]
        self._waiting = deque(parts)
        self._left = len(parts)
        self._lock = threading.Lock()

    def weight(self, event: Any) -> int:
        return event.part.weight if isinstance(event, SeriesEnd) else 1

    # On the threads of a turn.

    @property
    def has_waiting(self) -> bool:
        """Whether a series has not begun."""
        return bool(self._waiting)

    def follow(self, lane: Lane) -> None:
        """Work on one series after the other until the lane's turn is over."""
        lane.until = time.thread_time() + QUANTUM_SECONDS
        while True:
            if lane.part is None and (self.is_ahead or not self._begin(lane)):
                return
            self._advance(lane)
            if lane.is_over:
                return

    def _begin(self, lane: Lane) -> bool:
        with self._lock:
            lane.part = self._waiting.popleft() if self._waiting else None
        if lane.part is None:
            return False
        job = lane.part.job
        job.turn, job.started = lane, time.monotonic()
        return True

    def _advance(self, lane: Lane) -> None:
        assert lane.part is not None
        job = lane.part.job
        try:
            job.stage.run([job])  # type: ignore[list-item]  # each stage made its jobs
        except Exception as error:
            job.fail(error)
        if job.done:
            job.release()
            outputs, end = job.outcome()
            ended = SeriesEnd(lane.part, () if isinstance(end, ServiceError) else outputs, end)
            lane.part = None
            with self._lock:
                self.emit(ended)
                self._left -= 1

    @property
    def is_over(self) -> bool:
        """Whether every series has ended."""
        return not self._left

    def release(self) -> None:
        for lane in self.lanes:
            if lane.part is not None:
                lane.part.job.release()
                lane.part = None


class ManyStage:
    """Advances a request of many series by one turn, on several threads.

    Args:
        threads: beside the worker that calls.
    """

    max_rows = 1

    def __init__(self, threads: int, metrics: Metrics) -> None:
        self._helpers = ThreadPoolExecutor(threads, "rfa-series") if threads else None
        self._metrics = metrics

    def run(self, jobs: Sequence[ManyJob]) -> None:
        for job in jobs:
            if job.interrupted:
                job.fail(NotReady("The server is shutting down."))
                continue
            own, *others = job.lanes
            helping = [] if self._helpers is None else [
                self._helpers.submit(job.follow, lane) for lane in others if lane.part is not None or job.has_waiting
            ]  # fmt: skip
            job.follow(own)
            for future in helping:
                if not future.cancel():
                    future.result()
            if job.is_over:
                job.finish(self.observe_end(job))

    def observe_end(self, job: ManyJob) -> FilterTimings:
        """Count a finished request."""
        return observe_end(job, self._metrics, job.model_name)

    def close(self) -> None:
        """End the threads, once their turns are over."""
        if self._helpers is not None:
            self._helpers.shutdown(wait=False, cancel_futures=True)
