"""Status that the processes of a server share, in one page of shared memory.

    generation    of the bundles in use; writing it switches every process to a reload
    outcomes      number of reloads by outcome, and the time of the last of each; written by the supervisor
    connections   number of connections of each process, and when it was last updated

Every value is eight aligned bytes with one writer, so a reader sees either the old value or the new one.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from typing import Final, Literal, get_args

Outcome = Literal["committed", "refused", "aborted"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
VALUE_BYTES = 8
# Values per process: its connections, and the time of the last update.
PER_PROCESS = 2
# A process updates its count ten times per second. It is ignored if it has not done so for this time.
SILENT_SECONDS = 0.5
CLOSED = float("inf")


class SharedStatus:
    """The shared page of memory.

    Args:
        descriptor: file descriptor of the page. It is not closed by this object.
        processes: number of processes.
    """

    def __init__(self, descriptor: int, processes: int) -> None:
        header = 1 + 2 * len(OUTCOMES)
        size = VALUE_BYTES * (header + PER_PROCESS * processes)
        if os.fstat(descriptor).st_size < size:  # true only in the process that creates the page
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        page = memoryview(mmap.mmap(descriptor, size))
        self._generation = page[:VALUE_BYTES].cast("q")
        self._outcomes = page[VALUE_BYTES : VALUE_BYTES * header].cast("d")
        self._connections = page[VALUE_BYTES * header :].cast("d")

    # Bundles.

    @property
    def generation(self) -> int:
        """Generation of the bundles that every process uses for new requests."""
        return self._generation[0]

    def commit(self, generation: int) -> None:
        """Switch to other bundles. After this, no request starts with the previous ones."""
        self._generation[0] = generation

    def count(self, outcome: Outcome, now: float) -> None:
        """Count a reload that ended at the time `now`, in seconds since 1970."""
        index = 2 * OUTCOMES.index(outcome)
        self._outcomes[index] += 1
        self._outcomes[index + 1] = now

    def reloads(self) -> dict[str, tuple[float, float]]:
        """Return the number of reloads for each outcome, and the time of the last one, or 0 if there was none."""
        counts, times = self._outcomes[::2], self._outcomes[1::2]
        return {outcome: (counts[k], times[k]) for k, outcome in enumerate(OUTCOMES)}

    # Connections.

    def set_connections(self, index: int, count: float) -> None:
        """Publish the number of connections of a process. It is infinity while the process accepts none."""
        self._connections[PER_PROCESS * index] = count
        self._connections[PER_PROCESS * index + 1] = time.monotonic()

    def fewest_connections(self, index: int) -> float:
        """Return the smallest number of connections among the other processes that accept connections, or infinity if
        there is none."""
        since = time.monotonic() - SILENT_SECONDS
        counts, updates = self._connections[::PER_PROCESS], self._connections[1::PER_PROCESS]
        others = (
            count
            for other, (count, updated) in enumerate(zip(counts, updates, strict=True))
            if other != index and updated >= since
        )
        return min(others, default=CLOSED)


def create_shared_status(processes: int) -> SharedStatus:
    """Create a page that other processes can access if they inherit its file descriptor.

    Raises:
        OSError: If neither shared memory nor a temporary file is available.
    """
    if hasattr(os, "memfd_create"):
        return SharedStatus(os.memfd_create("rfa-status"), processes)
    with tempfile.TemporaryFile() as file:
        return SharedStatus(os.dup(file.fileno()), processes)
