"""What requests may take of a process's memory: leased before it is used, refused where there is none.

`RFA_MAX_MEMORY` bounds a process. What is left of it once the bundles are loaded is the budget of requests, and every
request leases from it, at an upper estimate and before the memory is paid for:

    the bytes of its body, as they arrive, and what JSON makes of them
    what a handler builds from them, and the seats of its texts, as long as the request lives
    the reply, from the first number to the last byte that is handed to the connection

What models may come to keep from request to request (`FilterRuntime.kept_bytes`) is set aside before.

Not counted, because other limits bound it: connections and their buffers (`RFA_MAX_CONNECTIONS`), seats of
filters (a few kB for each of `RFA_MAX_STREAMS`), named sessions (`RFA_MAX_SESSION_BYTES`), systems that are kept for
the next request (`rfa.service.engine.system_cache`), and a second set of bundles while they are loaded anew.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from starlette.requests import HTTPConnection

from rfa.service.errors import Overloaded
from rfa.service.json_cost import body_limits
from rfa.service.machine import ProcessMemory, memory_bytes, process_memory
from rfa.service.metrics import Metrics
from rfa.service.settings import ConfigurationError, Settings

MIB: Final = 1 << 20
# Of the machine or container, for all processes; the rest is for the supervisor, the kernel and the allocator.
SHARE_OF_MACHINE: Final = 0.8
# By default: enough to fill a process with work, and no more than a small container can give to two of them.
USUAL_ROOM_BYTES: Final = 192 * MIB
# Leases of more may come to this share of the budget together: however many large requests there are, or bodies that
# are never finished, small ones are still let in.
SMALL_BYTES: Final = 64 * 1024
LARGE_SHARE: Final = 0.75
RETRY_AFTER_SECONDS: Final = 1
TRIM_SECONDS: Final = 10.0
WORTH_TRIMMING_BYTES: Final = 8 * MIB


class MemoryBudget:
    """Bytes that the requests of one process may hold together; for use from any thread.

    Args:
        limit_bytes: what all leases together may come to.
        count_refusal: called for each lease that is refused.
    """

    def __init__(self, limit_bytes: int, count_refusal: Callable[[], None] = lambda: None) -> None:
        self.limit_bytes = limit_bytes
        self._count_refusal = count_refusal
        self._leased_bytes = 0
        self._large_bytes = 0
        self._lock = threading.RLock()

    @property
    def leased_bytes(self) -> int:
        """What all leases come to at this moment."""
        return self._leased_bytes

    def take(self, size: int) -> Lease:
        """A lease of `size` bytes.

        Raises:
            Overloaded: there is not so much left (`memory_exhausted`); nothing was taken.
        """
        lease = Lease(self)
        lease.grow(size)
        return lease

    def _change(self, lease: Lease, by: int) -> None:
        """Make a lease larger, or smaller down to nothing."""
        with self._lock:
            if lease.is_over:
                return
            before, after = lease.size, max(0, lease.size + by)
            leased = self._leased_bytes + after - before
            large = self._large_bytes + _if_large(after) - _if_large(before)
            if by <= 0 or (leased <= self.limit_bytes and large <= LARGE_SHARE * self.limit_bytes):
                self._leased_bytes, self._large_bytes, lease.size = leased, large, after
                return
        self._count_refusal()
        raise Overloaded(
            "The server's memory for requests is in use at this moment; try again.",
            retry_after_seconds=RETRY_AFTER_SECONDS,
            code="memory_exhausted",
        )

    def _end(self, lease: Lease) -> None:
        with self._lock:
            self._change(lease, -lease.size)
            lease.is_over = True


class Lease:
    """A part of the budget; `with` gives it back. Made by `MemoryBudget.take`; may be used from any thread.

    Attributes:
        size: bytes held now.
        is_over: it was given back, and takes nothing any more: work that goes on for a moment after its request ended
            must not leave a part of the budget without an owner.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.size = 0
        self.is_over = False
        self._budget = budget

    @property
    def largest(self) -> int:
        """What it can come to while nobody else holds anything."""
        return int(LARGE_SHARE * self._budget.limit_bytes)

    def grow(self, size: int) -> None:
        """Hold `size` bytes more.

        Raises:
            Overloaded: there is not so much left (`memory_exhausted`); the lease is as it was.
        """
        self._budget._change(self, size)

    def shrink(self, size: int) -> None:
        """Give back `size` of the bytes, or what there is of them."""
        self._budget._change(self, -size)

    def release(self) -> None:
        """Give everything back; harmless when that was done."""
        self._budget._end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _if_large(size: int) -> int:
    return size if size > SMALL_BYTES else 0


def lease_of(connection: HTTPConnection) -> Lease:
    """The lease of a request, which ends with the last byte of its answer."""
    lease: Lease = connection.scope["state"]["lease"]
    return lease


async def return_free_memory() -> None:
    """For ever: give what was freed back to the system, as far as its library can.

    The allocator keeps free pages below the last one in use: 60 half bodies left 70 MB behind them.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    at_rest = process_memory().own
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        # Without asking what the last time brought: what was in use then may be free now, and still be held.
        if process_memory().own - at_rest > WORTH_TRIMMING_BYTES:
            await asyncio.to_thread(trim, 0)


def largest_request_bytes(settings: Settings) -> int:
    """The most memory that a legal request takes: its body in pieces and as a whole, and what its JSON decodes to."""
    size = settings.max_body_bytes
    return 2 * size + body_limits(settings).most(size).decoding_bytes()


def open_budget(settings: Settings, metrics: Metrics, kept_bytes: int = 0) -> MemoryBudget:
    """The budget of this process, whose bundles are loaded, and its gauges.

    Args:
        kept_bytes: that its models may come to keep.

    Raises:
        ConfigurationError: a legal request would not fit.
    """
    budget = MemoryBudget(
        request_memory(settings, kept_bytes=kept_bytes),
        count_refusal=metrics.admission_rejections.labels("memory_exhausted").inc,
    )
    metrics.watch("request_memory_bytes", "Memory that requests have leased.", lambda: budget.leased_bytes)
    metrics.watch("request_memory_limit_bytes", "Memory that they may lease together.", lambda: budget.limit_bytes)
    return budget


def request_memory(settings: Settings, held: ProcessMemory | None = None, kept_bytes: int = 0) -> int:
    """Bytes for the requests of this process: what its limit leaves beside the loaded bundles and what they keep.

    Without `RFA_MAX_MEMORY` that is `USUAL_ROOM_BYTES`, or less where the processes together would come to more than
    their share of the container or machine.

    Args:
        held: what the process holds now, with its bundles loaded; measured if left out.
        kept_bytes: that its models may come to keep.

    Raises:
        ConfigurationError: a legal request would not fit.
    """
    held = held or process_memory()
    own = held.own + kept_bytes
    needed = math.ceil(largest_request_bytes(settings) / LARGE_SHARE)
    if settings.max_memory is not None:
        available = settings.max_memory - own - held.mapped
        remedy = f"RFA_MAX_MEMORY must be {needed - available} bytes more, or RFA_MAX_BODY_BYTES less"
    else:
        share = (int(SHARE_OF_MACHINE * memory_bytes()) - held.mapped) // settings.processes
        available = min(max(USUAL_ROOM_BYTES, 2 * needed), share - own)
        remedy = (
            f"{needed - available} bytes more for each of {settings.processes} processes; lower RFA_PROCESSES or "
            "RFA_MAX_BODY_BYTES, or set RFA_MAX_MEMORY"
        )
    if available < needed:
        raise ConfigurationError(f"a single request would not fit into memory beside the bundles: {remedy}")
    return available
