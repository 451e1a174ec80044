"""Store named sessions in the memory of one process."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rfa.runtime.state.names import Opened
from rfa.service.errors import Overloaded
from rfa.service.state.sessions import SessionAddress, exists, moved, not_found, store_full

# Memory of a session in addition to its payload, measured with CPython 3.11 just after the size of the table doubles.
ENTRY_BYTES = 384
# Maximum number of expired sessions that are removed in one call.
_MAX_REMOVED = 100


@dataclass(slots=True)
class _Entry:
    payload: bytes
    step: int
    tenant: str
    expires: float

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.payload)


class MemorySessions:
    """Table of sessions, ordered by their last use. If it is full, new sessions are rejected.

    With API keys, a tenant may use at most as much memory as is still free (dynamic threshold of Choudhury and Hahne).
    This is half of the table for a single tenant, and a third for each of two tenants. Therefore, one tenant cannot
    fill the table.

    Args:
        seconds: Seconds after which an unused session expires.
        max_sessions: Maximum number of sessions.
        max_bytes: Maximum memory of all sessions in bytes: the payloads, and `ENTRY_BYTES` for each session.
        clock: Function that returns the monotonic time in seconds.
    """

    def __init__(
        self, seconds: int, max_sessions: int, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._bytes = 0
        self._tenant_sessions: Counter[str] = Counter()
        self._tenant_bytes: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of sessions, including expired ones that are not removed yet."""
        return len(self._entries)

    @property
    def bytes_held(self) -> int:
        """Estimated memory of all sessions in bytes."""
        return self._bytes

    # The methods do not wait between a check and a change. Therefore, each of them is atomic on the event loop.

    async def read(self, address: SessionAddress, max_bytes: int) -> Opened:
        """Return the state of a session. The argument `max_bytes` is ignored, because the memory can be trusted."""
        entry = self._live(_key(address))
        return Opened(entry.payload, entry.step)

    async def check_new(self, address: SessionAddress) -> None:
        """Check that the table has space for a further session with an empty payload. See `SessionStore.create` for the
        errors."""
        self._check_new(address, ENTRY_BYTES)

    async def create(self, address: SessionAddress, state: Opened) -> None:
        """Create a session."""
        entry = _Entry(state.payload, state.step, address.scope.tenant, self._clock() + self._seconds)
        self._check_new(address, entry.size)
        self._put(_key(address), entry)

    async def replace(self, address: SessionAddress, state: Opened, expected: int) -> None:
        """Replace the state of a session that is at the step `expected`."""
        key = _key(address)
        entry = self._live(key)
        if entry.step != expected:
            raise moved(expected, entry.step)
        if self._bytes + len(state.payload) - len(entry.payload) > self._max_bytes:
            raise self._full()
        self._remove(key)
        self._put(key, _Entry(state.payload, state.step, entry.tenant, self._clock() + self._seconds))

    async def aclose(self) -> None:
        """Remove all sessions."""
        while self._entries:
            self._remove(next(iter(self._entries)))

    def _live(self, key: bytes) -> _Entry:
        self._remove_expired()
        entry = self._entries.get(key)
        if entry is None or entry.expires <= self._clock():
            raise not_found()
        return entry

    def _check_new(self, address: SessionAddress, size: int) -> None:
        self._remove_expired()
        key = _key(address)
        found = self._entries.get(key)
        if found is not None and found.expires > self._clock():
            raise exists()
        if found is not None:
            self._remove(key)
        tenant = address.scope.tenant
        free_sessions, free_bytes = self._max_sessions - len(self._entries), self._max_bytes - self._bytes
        held = (self._tenant_sessions[tenant], self._tenant_bytes[tenant]) if tenant else (0, 0)
        if held[0] + 1 > free_sessions or held[1] + size > free_bytes:
            raise self._full()

    def _full(self) -> Overloaded:
        # The session that has been unused longest expires next.
        oldest = next(iter(self._entries.values()), None)
        wait = max(1, math.ceil(oldest.expires - self._clock())) if oldest else self._seconds
        return store_full(retry_after_seconds=wait)

    def _remove_expired(self) -> None:
        # A write moves a session to the end, and all sessions have the same lifetime, so the first one expires first.
        now = self._clock()
        for _ in range(_MAX_REMOVED):
            key = next(iter(self._entries), None)
            if key is None or self._entries[key].expires > now:
                return
            self._remove(key)

    def _put(self, key: bytes, entry: _Entry) -> None:
        self._entries[key] = entry
        self._count(entry, 1)

    def _remove(self, key: bytes) -> None:
        self._count(self._entries.pop(key), -1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._bytes += sign * entry.size
        self._tenant_sessions[entry.tenant] += sign
        self._tenant_bytes[entry.tenant] += sign * entry.size
        if not self._tenant_sessions[entry.tenant]:
            del self._tenant_sessions[entry.tenant], self._tenant_bytes[entry.tenant]


def _key(address: SessionAddress) -> bytes:
    return address.digest("")
