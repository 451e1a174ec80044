"""Memory budget for requests. Memory is reserved before it is allocated. Without enough memory, a request is rejected.

`RFA_MAX_MEMORY` limits the memory of a process. The budget for requests is the memory that remains after loading the
bundles, minus `Models.reserved_bytes`. A request reserves an upper bound on the memory for:

- the body, as its bytes arrive, and the decoded document;
- the objects that the handler creates and the pool slots of its texts, until the handler returns;
- the reply, until its last byte is sent.

Other memory has separate limits: connections (`RFA_MAX_CONNECTIONS`), pool slots of filters (a few kB for each of
`RFA_MAX_STREAMS`), named sessions (`RFA_MAX_SESSION_BYTES`) and cached systems (`rfa.service.engine.system_cache`). The
second set of bundles during a reload is not counted.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import threading
from collections.abc import Callable
from typing import Final, Self

from starlette.requests import HTTPConnection

from rfa.service.errors import Overloaded
from rfa.service.json_cost import body_limits
from rfa.service.machine import ProcessMemory, memory_bytes, process_memory
from rfa.service.metrics import Metrics
from rfa.service.settings import ConfigurationError, LimitSettings, Settings

MIB: Final = 1 << 20
# Fraction of the machine or container that all processes may use. The supervisor, the kernel and the allocator need the
# rest.
SHARE_OF_MACHINE: Final = 0.8
# With this budget, a process can use its cores fully, and two processes fit into a small container.
DEFAULT_BUDGET_BYTES: Final = 192 * MIB
# Leases above SMALL_BYTES may use at most the fraction LARGE_SHARE of the budget. The rest remains for small requests.
SMALL_BYTES: Final = 64 * 1024
LARGE_SHARE: Final = 0.75
RETRY_AFTER_SECONDS: Final = 1
TRIM_SECONDS: Final = 10.0
TRIM_BYTES: Final = 8 * MIB


class MemoryBudget:
    """Memory budget for all requests of one process. It is thread-safe.

    Args:
        limit_bytes: Maximum size of all leases together, in bytes.
        count_refusal: Function that is called when memory is refused.
    """

    def __init__(self, limit_bytes: int, count_refusal: Callable[[], None] = lambda: None) -> None:
        self.limit_bytes = limit_bytes
        self._count_refusal = count_refusal
        self._leased_bytes = 0
        self._large_bytes = 0
        self._lock = threading.RLock()

    @property
    def leased_bytes(self) -> int:
        """Total size of all leases, in bytes."""
        return self._leased_bytes

    def take(self, size: int) -> Lease:
        """Return a lease of `size` bytes.

        Raises:
            Overloaded: If there is not enough memory left (`memory_exhausted`).
        """
        lease = Lease(self)
        lease.grow(size)
        return lease

    def _change(self, lease: Lease, by: int) -> None:
        """Change the size of a lease by `by` bytes. The size does not become negative."""
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
            "The memory for requests is exhausted; try again later.",
            retry_after_seconds=RETRY_AFTER_SECONDS,
            code="memory_exhausted",
        )

    def _end(self, lease: Lease) -> None:
        with self._lock:
            self._change(lease, -lease.size)
            lease.is_over = True


class Lease:
    """Memory reserved from a `MemoryBudget`. A lease can be used as a context manager, which releases it at the end of
    the block. It is thread-safe.

    Attributes:
        size: Reserved memory in bytes.
        is_over: Whether the lease was released. After that, its size no longer changes, even if the request is
            still being processed.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self.size = 0
        self.is_over = False
        self._budget = budget

    @property
    def largest(self) -> int:
        """Maximum size of the lease, in bytes."""
        return int(LARGE_SHARE * self._budget.limit_bytes)

    def grow(self, size: int) -> None:
        """Reserve `size` more bytes.

        Raises:
            Overloaded: If there is not enough memory left (`memory_exhausted`). The lease is then unchanged.
        """
        self._budget._change(self, size)

    def shrink(self, size: int) -> None:
        """Return up to `size` bytes to the budget."""
        self._budget._change(self, -size)

    def release(self) -> None:
        """Return all memory to the budget. Further calls do nothing."""
        self._budget._end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _if_large(size: int) -> int:
    return size if size > SMALL_BYTES else 0


def lease_of(connection: HTTPConnection) -> Lease:
    """Return the memory lease of a request. It is released after the last byte of the reply."""
    lease: Lease = connection.scope["state"]["lease"]
    return lease


async def return_free_memory() -> None:
    """Return freed memory to the operating system periodically, until the coroutine is cancelled.

    The allocator keeps free pages below the last used page. After 60 incomplete bodies, these were 70 MB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if trim is not None:
        trim(0)
    at_rest = process_memory().own
    while trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        if process_memory().own - at_rest > TRIM_BYTES:
            await asyncio.to_thread(trim, 0)


def largest_request_bytes(limits: LimitSettings) -> int:
    """Return the memory of the largest request that the limits allow, in bytes. It consists of two copies of the body
    and the decoded document."""
    size = limits.max_body_bytes
    return 2 * size + body_limits(limits).most(size).decoding_bytes()


def open_budget(settings: Settings, metrics: Metrics, kept_bytes: int = 0) -> MemoryBudget:
    """Create the memory budget of this process and its gauges. Call this after the bundles are loaded.

    Args:
        kept_bytes: Memory in bytes that the models may keep between requests.

    Raises:
        ConfigurationError: If there is not enough memory for the largest request that the limits allow.
    """
    budget = MemoryBudget(
        request_memory(settings, kept_bytes=kept_bytes),
        count_refusal=metrics.admission_rejections.labels("memory_exhausted").inc,
    )
    metrics.watch("request_memory_bytes", "Bytes of memory reserved by requests.", lambda: budget.leased_bytes)
    metrics.watch(
        "request_memory_limit_bytes", "Maximum bytes of memory that requests may reserve.", lambda: budget.limit_bytes
    )
    return budget


def request_memory(settings: Settings, held: ProcessMemory | None = None, kept_bytes: int = 0) -> int:
    """Return the memory budget for the requests of this process, in bytes.

    Without `RFA_MAX_MEMORY`, the budget is `DEFAULT_BUDGET_BYTES`, or more if the limits allow large requests. The
    budget is smaller if all processes together would otherwise exceed their share of the memory of the container or
    machine.

    Args:
        held: Memory of this process with its bundles loaded. By default, it is measured.
        kept_bytes: Memory in bytes that the models may keep between requests.

    Raises:
        ConfigurationError: If there is not enough memory for the largest request that the limits allow.
    """
    held = held or process_memory()
    own = held.own + kept_bytes
    needed = math.ceil(largest_request_bytes(settings.limits) / LARGE_SHARE)
    if settings.limits.max_memory is not None:
        available = settings.limits.max_memory - own - held.mapped
        remedy = f"increase RFA_MAX_MEMORY by {needed - available} bytes, or lower RFA_MAX_BODY_BYTES"
    else:
        processes = settings.models.processes
        share = (int(SHARE_OF_MACHINE * memory_bytes()) - held.mapped) // processes
        available = min(max(DEFAULT_BUDGET_BYTES, 2 * needed), share - own)
        remedy = (
            f"each of {processes} processes needs {needed - available} bytes more; lower RFA_PROCESSES or "
            "RFA_MAX_BODY_BYTES, or set RFA_MAX_MEMORY"
        )
    if available < needed:
        raise ConfigurationError(
            f"there is not enough memory for the bundles and the largest allowed request; {remedy}"
        )
    return available
