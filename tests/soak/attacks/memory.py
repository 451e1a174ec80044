"""Sample the resident memory of the processes of a server.

The kernel records the largest resident size of a process (VmHWM) and resets it on request (`clear_refs`), so peaks
between two samples are included.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LOOK_SECONDS = 0.02
MEMBERS_SECONDS = 0.2
KILOBYTE = 1024
FORGET_PEAK = "5"
_FIELD = re.compile(r"^(VmRSS|VmHWM):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Resident:
    """Bytes of a process: now, and the peak since `Memory.mark`."""

    now: int
    peak: int


class Memory:
    """Samples processes until the block ends.

    Args:
        members: Returns the process ids. Called several times per second, because processes are replaced.
    """

    def __init__(self, members: Callable[[], list[int]]) -> None:
        self._members = members
        self._peaks: dict[int, int] = {}
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def mark(self) -> dict[int, int]:
        """Return resident bytes by process id, and start to record peaks."""
        with self._lock:
            self._peaks.clear()
            for pid in self._members():
                with suppress(OSError):
                    (PROC / str(pid) / "clear_refs").write_text(FORGET_PEAK)
            return {pid: resident.now for pid, resident in self._look().items()}

    def now(self) -> dict[int, int]:
        """Return resident bytes by process id."""
        with self._lock:
            return {pid: resident.now for pid, resident in self._look().items()}

    def peaks(self) -> Mapping[int, int]:
        """Return the peaks since `mark`, including ended processes."""
        with self._lock:
            self._look()
            return dict(self._peaks)

    def wait_until_back(self, before: Mapping[int, int], share: float, deadline: float) -> dict[int, int]:
        """Wait until every process is at most a share above its earlier size, or until a monotonic time.

        Returns:
            Resident bytes at the end.
        """
        while not is_back(before, now := self.now(), share) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return now

    def _watch(self) -> None:
        members: list[int] = []
        next_members = 0.0
        while not self._is_over.wait(LOOK_SECONDS):
            if time.monotonic() >= next_members:
                members = self._members()
                next_members = time.monotonic() + MEMBERS_SECONDS
            with self._lock:
                self._look(members)

    def _look(self, members: list[int] | None = None) -> dict[int, Resident]:
        found = {}
        for pid in self._members() if members is None else members:
            resident = read_resident(pid)
            if resident is not None:
                found[pid] = resident
                self._peaks[pid] = max(self._peaks.get(pid, 0), resident.peak)
        return found


def read_resident(pid: int) -> Resident | None:
    """Return the resident memory of a process, or None if it has ended."""
    try:
        fields = dict(_FIELD.findall((PROC / str(pid) / "status").read_text()))
    except OSError:
        return None
    if len(fields) < 2:  # an ending process has no memory
        return None
    return Resident(int(fields["VmRSS"]) * KILOBYTE, int(fields["VmHWM"]) * KILOBYTE)


def is_back(before: Mapping[int, int], now: Mapping[int, int], share: float) -> bool:
    """Return whether no live process is more than a share above its earlier size."""
    return all(now[pid] <= (1 + share) * size for pid, size in before.items() if pid in now)
