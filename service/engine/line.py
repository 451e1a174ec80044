"""Who comes next among the jobs that wait for the same stage."""

from __future__ import annotations

import heapq
from collections import deque

from rfa.service.engine.job import Job


class WaitingLine:
    """Jobs that wait for a quantum of one stage: live streams, which somebody waits for, and requests.

    Streams come in the order of what they were given lately (start-time fair queueing): one that asks for much in each
    answer, or sends faster than it is answered, waits for the others, and not they for it.
    """

    def __init__(self) -> None:
        self.live: list[tuple[int, int, Job]] = []  # a heap: rows given before, order of arrival
        self.requests: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self.live) + len(self.requests)

    def take(self, most: int, max_rows: int, *, is_live_first: bool) -> list[Job]:
        """The jobs of the next quantum, one at least: the others share it as far as they fit."""
        jobs: list[Job] = []
        rows = 0
        kinds = ("live", "requests") if is_live_first else ("requests", "live")
        for kind in kinds:
            while (job := self._first(kind)) and (not jobs or (len(jobs) < most and rows + job.rows <= max_rows)):
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
