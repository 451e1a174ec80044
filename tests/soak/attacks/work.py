"""How long the server itself worked while a client waited: latency without what others took of a shared machine.

Of every process the processor time of all its threads is read again and again (the kernel's schedstat, nanoseconds).
What a process worked between the moment that an observation was due and its answer is a lower bound of the latency
that it would have had on a machine of its own: a blocked event loop shows here, a stolen core does not.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

LOOK_SECONDS = 0.01
MEMBERS_SECONDS = 0.5
PROC = Path("/proc")


class Work:
    """Watches processes until the block ends.

    Args:
        members: tells the process ids.
    """

    def __init__(self, members: Callable[[], list[int]]) -> None:
        self._members = members
        self._times: dict[int, array[float]] = {}
        self._worked: dict[int, array[float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Work:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def during(self, samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """For (due, seconds) of observations: (due, seconds that the process that worked most did so meanwhile)."""
        if not samples:
            return []
        due = np.array([at for at, _ in samples])
        answered = due + np.array([seconds for _, seconds in samples])
        most = np.zeros(len(due))
        for pid, times in self._times.items():
            if len(times) > 1:
                worked = np.interp(answered, times, self._worked[pid]) - np.interp(due, times, self._worked[pid])
                most = np.maximum(most, worked)
        return list(zip(due.tolist(), most.tolist(), strict=True))

    def _watch(self) -> None:
        members: list[int] = []
        next_members = 0.0
        while not self._is_over.wait(LOOK_SECONDS):
            if time.monotonic() >= next_members:
                members = self._members()
                next_members = time.monotonic() + MEMBERS_SECONDS
            for pid in members:
                worked = worked_seconds(pid)
                # A thread that ends takes its time with it; time does not run backwards.
                worked = max(worked, self._worked[pid][-1] if pid in self._worked else 0.0)
                self._times.setdefault(pid, array("d")).append(time.monotonic())
                self._worked.setdefault(pid, array("d")).append(worked)


def worked_seconds(pid: int) -> float:
    """Processor time of the threads that a process has now."""
    total = 0
    with suppress(OSError):
        for thread in os.scandir(PROC / str(pid) / "task"):
            with suppress(OSError):
                total += int((Path(thread.path) / "schedstat").read_bytes().split()[0])
    return total / 1e9
