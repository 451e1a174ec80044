"""Cache of the systems that requests define, and of their stages. The key is the hash of the definition.

Each job has a reference to its stages, and reserves memory for them. The cache also keeps the stages for later
requests, up to `MAX_CACHED` systems and `MAX_CACHED_BYTES`. It removes idle systems first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.filters.system import InvalidSystem, System
from rfa.runtime.pool import StatePool
from rfa.service.engine.served import FilterStages
from rfa.service.errors import InvalidRequest, Overloaded

if TYPE_CHECKING:
    from rfa.runtime.filters.compiled_system import SystemRuntime

MAX_CACHED: Final = 64
MAX_CACHED_BYTES: Final = 64 << 20
# Each pool is a memory map, and a process may have about ten thousand memory maps.
MAX_SYSTEMS: Final = 1_024
# Maximum number of requests that wait for a system to be built. Building a system may take 0.5 s on a core.
MAX_WAITING: Final = 64
RETRY_AFTER_SECONDS: Final = 1


class ServedSystem(NamedTuple):
    """A system that a request defines.

    Attributes:
        stages: Stages that filter with the system.
        digest: Digest of the system, which its states contain.
        own_bytes: Memory of the system without its pool slots, in bytes.
    """

    stages: FilterStages
    digest: str
    own_bytes: int

    @property
    def model(self) -> FilterRuntime:
        """Filter of the system."""
        return self.stages.filtering.model

    @property
    def pool(self) -> StatePool:
        """Pool that stores the states of its streams."""
        return self.stages.filtering.pool


class SystemCache:
    """Cache of the systems that requests define. All calls must come from one event loop.

    Args:
        make: Function that builds the stages of a filter.
    """

    def __init__(self, make: Callable[[FilterRuntime], FilterStages]) -> None:
        self._make = make
        self._cached: OrderedDict[bytes, ServedSystem] = OrderedDict()
        self._pools: weakref.WeakSet[StatePool] = weakref.WeakSet()
        self._building = asyncio.Lock()
        self._waiting = 0

    @property
    def pool_slots_in_use(self) -> int:
        """Number of pool slots in use by all systems."""
        return sum(pool.in_use for pool in list(self._pools))

    @property
    def cached(self) -> int:
        """Number of cached systems."""
        return len(self._cached)

    @property
    def count(self) -> int:
        """Number of systems that are cached or in use."""
        return len(self._pools)

    async def get(self, document: Mapping[str, Any]) -> ServedSystem:
        """Return the system that a document defines. The caller must keep a reference until its jobs are submitted.

        Raises:
            InvalidRequest: If the document is invalid. The message names the field.
            Overloaded: If too many requests wait for systems, or too many systems are in use.
        """
        key = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
        if key not in self._cached:
            await self._add(key, document)
        self._cached.move_to_end(key)
        return self._cached[key]

    async def _add(self, key: bytes, document: Mapping[str, Any]) -> None:
        if self._waiting >= MAX_WAITING or len(self._pools) >= MAX_SYSTEMS:
            raise Overloaded(
                "The server currently has too many linear systems in use; try again later.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
                code="systems_full",
            )
        self._waiting += 1
        try:
            async with self._building:
                if key not in self._cached:
                    model = await asyncio.to_thread(_build, document)
                    system = ServedSystem(self._make(model), model.digest, model.kept_bytes)
                    self._cached[key] = system
                    self._pools.add(system.pool)
                    self._evict(key)
        finally:
            self._waiting -= 1

    def _evict(self, newest: bytes) -> None:
        """Remove systems until the cache is within its limits: first idle systems and then others, in each case the
        least recently used ones first. The newest system is not removed."""
        idle = [key for key, system in self._cached.items() if not system.pool.in_use]
        busy = [key for key in self._cached if key not in set(idle)]
        sizes = {key: system.own_bytes + system.pool.touched_bytes for key, system in self._cached.items()}
        for key in (*idle, *busy):
            if len(self._cached) <= MAX_CACHED and sum(sizes[key] for key in self._cached) <= MAX_CACHED_BYTES:
                return
            if key != newest:
                del self._cached[key]


def _build(document: Mapping[str, Any]) -> SystemRuntime:
    from rfa.runtime.filters.compiled_system import SystemRuntime

    try:
        return SystemRuntime(System.from_document(document))
    except InvalidSystem as error:
        raise InvalidRequest(f"{error}.", param=error.field, code="invalid_system") from None
