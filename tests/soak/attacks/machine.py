"""How much of the machine others take: what a latency measured beside them is worth."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STAT = Path("/proc/stat")
# Of its first line, in ticks: user, nice, system, idle, iowait, irq, softirq, steal.
BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Span:
    """A stretch of the monotonic clock, and the share of the machine's cores that others took in it."""

    begin: float
    end: float
    strangers: float

    def holds(self, at: float) -> bool:
        """Whether a time lies in it."""
        return self.begin <= at < self.end


def span(act: Callable[[], object]) -> Span:
    """Do something, and tell of the time that it took."""
    begin, busy, own = time.monotonic(), busy_seconds(), own_seconds()
    act()
    end = time.monotonic()
    theirs = (busy_seconds() - busy) - (own_seconds() - own)
    return Span(begin, end, round(max(0.0, theirs) / ((end - begin) * (os.cpu_count() or 1)), 3))


def busy_seconds() -> float:
    """Processor time that all cores spent since the machine began, whoever got it."""
    fields = [int(field) for field in STAT.read_text().split("\n", 1)[0].split()[1:]]
    return sum(fields[place] for place in BUSY) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor time of this process and all its descendants, those that have ended included."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
