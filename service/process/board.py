"""What the processes of a server see of each other at once: a page of memory that all of them share.

    generation   of the bundles in force; the supervisor's one store of it is the moment of a reload, everywhere
    outcomes     how many reloads ended how, and when the last one did; written by the supervisor
    places       of each process how many connections it has, and when it last said so

Every value is eight bytes at an address divisible by eight and has one writer, so that a reader sees the old value or
the new one.
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
# Of a place: its count, and the time of its last beat.
PER_PLACE = 2
# What says nothing for so long is no longer waited for; a process tells its count ten times a second.
SILENT_SECONDS = 0.5
CLOSED = float("inf")


class Board:
    """The shared page.

    Args:
        descriptor: of a file of this server's; the board does not own it.
        processes: number of places.
    """

    def __init__(self, descriptor: int, processes: int) -> None:
        places = 1 + 2 * len(OUTCOMES)
        size = VALUE_BYTES * (places + PER_PLACE * processes)
        if os.fstat(descriptor).st_size < size:  # whoever makes it is alone with it
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        whole = memoryview(mmap.mmap(descriptor, size))
        self._generation = whole[:VALUE_BYTES].cast("q")
        self._outcomes = whole[VALUE_BYTES : VALUE_BYTES * places].cast("d")
        self._places = whole[VALUE_BYTES * places :].cast("d")

    # Bundles.

    @property
    def generation(self) -> int:
        """Number of the bundles that every process answers new requests with."""
        return self._generation[0]

    def commit(self, generation: int) -> None:
        """Put other bundles in force: from here on no process begins anything with the ones before."""
        self._generation[0] = generation

    def count(self, outcome: Outcome, now: float) -> None:
        """Count a reload that ended `now`, in seconds since 1970."""
        place = 2 * OUTCOMES.index(outcome)
        self._outcomes[place] += 1
        self._outcomes[place + 1] = now

    def reloads(self) -> dict[str, tuple[float, float]]:
        """By outcome how many reloads ended so, and when the last of them did, 0 if none."""
        counts, times = self._outcomes[::2], self._outcomes[1::2]
        return {outcome: (counts[place], times[place]) for place, outcome in enumerate(OUTCOMES)}

    # Connections.

    def tell(self, index: int, count: float) -> None:
        """Let the others know how many connections a process has, and that it takes more."""
        self._places[PER_PLACE * index] = count
        self._places[PER_PLACE * index + 1] = time.monotonic()

    def least(self, index: int) -> float:
        """The fewest connections of the other processes that take some now; infinite if none does."""
        since = time.monotonic() - SILENT_SECONDS
        counts, beats = self._places[::PER_PLACE], self._places[1::PER_PLACE]
        others = (
            count
            for place, (count, beat) in enumerate(zip(counts, beats, strict=True))
            if place != index and beat >= since
        )
        return min(others, default=CLOSED)


def make_board(processes: int) -> Board:
    """A board that nobody else sees until its descriptor is passed on.

    Raises:
        OSError: there is neither such memory nor a place for a file.
    """
    if hasattr(os, "memfd_create"):
        return Board(os.memfd_create("rfa-board"), processes)
    with tempfile.TemporaryFile() as file:
        return Board(os.dup(file.fileno()), processes)
