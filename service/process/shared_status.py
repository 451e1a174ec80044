"""Status that the processes of a server share, in one page of shared memory.

    generation    generation of the current bundles; all processes use it for new requests
    outcomes      number of reloads and time of the last reload, by outcome
    connections   number of connections of each process, and the time at which it was last updated

The supervisor writes the first two, and each process its own number of connections. A value has eight aligned bytes and
one writer, so a reader sees either the old value or the new one.
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
# Number of values per process: the number of connections, and the time of the last update.
PER_PROCESS = 2
# A process updates its number of connections ten times per second. After this time without an update, it is ignored.
SILENT_SECONDS = 0.5
CLOSED = float("inf")


class SharedStatus:
    """Provides access to the shared page of memory.

    Args:
        descriptor: File descriptor of the page. This object does not close it.
        processes: Number of processes.
    """

    def __init__(self, descriptor: int, processes: int) -> None:
        header = 1 + 2 * len(OUTCOMES)
        size = VALUE_BYTES * (header + PER_PROCESS * processes)
        if os.fstat(descriptor).st_size < size:  # only in the process that creates the page
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        page = memoryview(mmap.mmap(descriptor, size))
        self._generation = page[:VALUE_BYTES].cast("q")
        self._outcomes = page[VALUE_BYTES : VALUE_BYTES * header].cast("d")
        self._connections = page[VALUE_BYTES * header :].cast("d")

    # Bundles.

    @property
    def generation(self) -> int:
        """Generation of the bundles that all processes use for new requests."""
        return self._generation[0]

    def commit(self, generation: int) -> None:
        """Switch to the bundles of a generation. Requests that start after this call do not use the previous
        bundles."""
        self._generation[0] = generation

    def count(self, outcome: Outcome, now: float) -> None:
        """Count a reload that ended at the time `now`, in seconds since 1970."""
        index = 2 * OUTCOMES.index(outcome)
        self._outcomes[index] += 1
        self._outcomes[index + 1] = now

    def reloads(self) -> dict[str, tuple[float, float]]:
        """Return the number of reloads for each outcome, and the time of the last one in seconds since 1970. The time
        is 0 if there was none."""
        counts, times = self._outcomes[::2], self._outcomes[1::2]
        return {outcome: (counts[k], times[k]) for k, outcome in enumerate(OUTCOMES)}

    # Connections.

    def set_connections(self, index: int, count: float) -> None:
        """Publish the number of connections of a process. Infinity means that it does not accept connections."""
        self._connections[PER_PROCESS * index] = count
        self._connections[PER_PROCESS * index + 1] = time.monotonic()

    def fewest_connections(self, index: int) -> float:
        """Return the smallest number of connections of another process that accepts connections, or infinity if there
        is no such process.

        Args:
            index: Index of the calling process.
        """
        since = time.monotonic() - SILENT_SECONDS
        counts, updates = self._connections[::PER_PROCESS], self._connections[1::PER_PROCESS]
        others = (
            count
            for other, (count, updated) in enumerate(zip(counts, updates, strict=True))
            if other != index and updated >= since
        )
        return min(others, default=CLOSED)


def create_shared_status(processes: int) -> SharedStatus:
    """Create a shared status. Processes that inherit its file descriptor have access to it.

    Raises:
        OSError: If neither shared memory nor a temporary file is available.
    """
    if hasattr(os, "memfd_create"):
        return SharedStatus(os.memfd_create("rfa-status"), processes)
    with tempfile.TemporaryFile() as file:
        return SharedStatus(os.dup(file.fileno()), processes)
