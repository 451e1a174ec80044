"""Systems that came with their requests, where their jobs run: kept by content, within bounds.

A request's job holds its place for as long as it lives, and leases what that takes. So places are kept for the next
request alone: those used last, up to `MOST_KEPT` and `MOST_KEPT_BYTES`, idle ones given up first. Nothing refers to a
place that was given up but the jobs that are at work in it: with the last of them its memory is gone.
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
from rfa.service.engine.served import FilterPlace
from rfa.service.errors import InvalidRequest, Overloaded

if TYPE_CHECKING:
    from rfa.runtime.filters.compiled_system import SystemRuntime

MOST_KEPT: Final = 64
MOST_KEPT_BYTES: Final = 64 << 20
# At work at the same time, each with a pool of seats: maps of memory, of which a process may have some ten thousand.
MOST_AT_WORK: Final = 1_024
# Requests that wait for a system to be made: each may take half a second of a core.
MOST_WAITING: Final = 64
RETRY_AFTER_SECONDS: Final = 1


class SystemPlace(NamedTuple):
    """Where jobs of a system run, what its states are bound to, and the memory that it takes beside seats."""

    filters: FilterPlace
    digest: str
    own_bytes: int

    @property
    def model(self) -> FilterRuntime:
        """What filters."""
        return self.filters.filtering.model

    @property
    def pool(self) -> StatePool:
        """Seats of its streams."""
        return self.filters.filtering.pool


class Systems:
    """Places of systems; for use on one event loop.

    Args:
        make: a place for a model.
    """

    def __init__(self, make: Callable[[FilterRuntime], FilterPlace]) -> None:
        self._make = make
        self._kept: OrderedDict[bytes, SystemPlace] = OrderedDict()
        self._alive: weakref.WeakSet[StatePool] = weakref.WeakSet()
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def seats_in_use(self) -> int:
        """Seats that have an owner, of all systems."""
        return sum(pool.in_use for pool in list(self._alive))

    @property
    def kept(self) -> int:
        """Systems that are kept for the next request."""
        return len(self._kept)

    @property
    def at_work(self) -> int:
        """Systems that are there, for the next request or for a job."""
        return len(self._alive)

    async def place(self, document: Mapping[str, Any]) -> SystemPlace:
        """Where jobs of the system of a document run; hold it until they are submitted.

        Raises:
            InvalidRequest: naming the field of the document.
            Overloaded: too many wait, or are at work.
        """
        key = _key(document)
        if key not in self._kept:
            await self._add(key, document)
        self._kept.move_to_end(key)
        return self._kept[key]

    async def _add(self, key: bytes, document: Mapping[str, Any]) -> None:
        """Make a place, one at a time and beside the event loop."""
        if self._waiting >= MOST_WAITING or len(self._alive) >= MOST_AT_WORK:
            raise Overloaded(
                "The server has too many new systems to make at this moment, or at work; try again.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
                code="systems_full",
            )
        self._waiting += 1
        try:
            async with self._turn:
                if key not in self._kept:
                    model = await asyncio.to_thread(_built, document)
                    place = SystemPlace(self._make(model), model.digest, model.kept_bytes)
                    self._kept[key] = place
                    self._alive.add(place.pool)
                    self._trim(key)
        finally:
            self._waiting -= 1

    def _trim(self, newest: bytes) -> None:
        """Give up places until what is kept is within bounds: idle ones, then any, those not used for longest first."""
        idle = [key for key, place in self._kept.items() if not place.pool.in_use]
        busy = [key for key in self._kept if key not in set(idle)]
        sizes = {key: place.own_bytes + place.pool.touched_bytes for key, place in self._kept.items()}
        for key in (*idle, *busy):
            if len(self._kept) <= MOST_KEPT and sum(sizes[kept] for kept in self._kept) <= MOST_KEPT_BYTES:
                return
            if key != newest:
                del self._kept[key]


def _built(document: Mapping[str, Any]) -> SystemRuntime:
    from rfa.runtime.filters.compiled_system import SystemRuntime

    try:
        return SystemRuntime(System.from_document(document))
    except InvalidSystem as error:
        raise InvalidRequest(f"{error}.", param=error.field, code="invalid_system") from None


def _key(document: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
