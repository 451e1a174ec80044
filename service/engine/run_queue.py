"""Queue of the jobs that wait for a quantum. The lock of the scheduler protects it."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque

from rfa.service.engine.job import Job, Stage

# Number of consecutive quanta of live streams after which waiting requests get a quantum.
LIVE_IN_A_ROW = 8


class RunQueue:
    """Queue of the jobs of all stages.

    Live streams come first. They are ordered by start-time fair queueing, so that streams with expensive or frequent
    observations wait for the others. Requests of different stages alternate.
    """

    def __init__(self) -> None:
        self.live_waiting = 0
        self._stages: dict[Stage, StageQueue] = {}
        self._arrivals = itertools.count()
        self._start_tag = 0  # start tag of the last live stream that was served, in rows
        self._live_in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self._stages)

    def push(self, job: Job, *, first: bool = False) -> None:
        """Add a job to the queue. If `first` is set, a request is added at the front."""
        queue = self._stages.setdefault(job.stage, StageQueue())
        if job.is_stream:
            self.live_waiting += 1
            begin = max(self._start_tag, job._start_tag)
            job._start_tag = begin + job.rows
            heapq.heappush(queue.live, (begin, next(self._arrivals), job))
        elif first:
            queue.requests.appendleft(job)
        else:
            queue.requests.append(job)

    def take(self, busy: int, workers: int) -> list[Job]:
        """Remove and return the jobs for the next quantum. They belong to the same stage.

        Their number is limited, so that the waiting jobs of the stage and the busy jobs are divided equally among the
        workers.

        Args:
            busy: Number of jobs that are being advanced.
            workers: Number of worker threads.
        """
        is_live_first = self._is_live_next()
        stage = self._next_stage(is_live_first)
        queue = self._stages.pop(stage)
        count = math.ceil((len(queue) + busy) / workers)
        if is_live_first:
            self._start_tag = max(self._start_tag, queue.live[0][0])
        jobs = queue.take(count, stage.max_rows, is_live_first=is_live_first)
        if queue:
            self._stages[stage] = queue
        self._live_in_a_row = self._live_in_a_row + 1 if is_live_first else 0
        self.live_waiting -= sum(job.is_stream for job in jobs)
        return jobs

    def _is_live_next(self) -> bool:
        if self._live_in_a_row >= LIVE_IN_A_ROW and any(queue.requests for queue in self._stages.values()):
            return False
        return self.live_waiting > 0

    def _next_stage(self, is_live_first: bool) -> Stage:
        if is_live_first:
            return min(
                (stage for stage, queue in self._stages.items() if queue.live),
                key=lambda stage: self._stages[stage].live[0][:2],
            )
        return next(stage for stage, queue in self._stages.items() if queue.requests)


class StageQueue:
    """Queue of the jobs that wait for a quantum of one stage."""

    def __init__(self) -> None:
        self.live: list[tuple[int, int, Job]] = []  # a heap of start tag, order of arrival, and job
        self.requests: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self.live) + len(self.requests)

    def take(self, count: int, max_rows: int, *, is_live_first: bool) -> list[Job]:
        """Remove and return at most `count` jobs with at most `max_rows` rows in total, but at least one job. Live
        streams come first if `is_live_first` is set, and requests otherwise."""
        jobs: list[Job] = []
        rows = 0
        kinds = ("live", "requests") if is_live_first else ("requests", "live")
        for kind in kinds:
            while (job := self._first(kind)) and (not jobs or (len(jobs) < count and rows + job.rows <= max_rows)):
                rows += job.rows
                jobs.append(job)
                if kind == "live":
                    heapq.heappop(self.live)
                else:
                    self.requests.popleft()
        return jobs

    def _first(self, kind: str) -> Job | None:
        if kind == "live":
            return self.live[0][-1] if self.live else None
        return self.requests[0] if self.requests else None
