"""What the connections of a process share, and what an HTTP and a WebSocket connection have in common."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from rfa.service.memory import Lease, MemoryBudget
from rfa.service.metrics import Metrics
from rfa.service.settings import Settings

if TYPE_CHECKING:
    from rfa.service.wire.http import HTTPConnection

# One connection is worked on for so long; then others have their turn.
TURN_SECONDS = 0.002
# The turns of one round of the event loop, together; who comes later waits for the next. What they begin is worked on
# in that one, and takes some times as long.
ROUND_SECONDS = 0.0005
# Nor more of them than so many: a turn may do no more than wake the application.
TURNS_A_ROUND = 16
# Held without a lease: what nearly every client is ever in the middle of sending.
FREE_BYTES = 4_096
LEASE_STEP_BYTES = 16_384
TCP_CLOSE = 7  # the kernel's state of a socket whose peer has reset it


@dataclass
class Wire:
    """The connections of one server process, their limits, and where their ends are counted.

    Args:
        app: what answers.
        state: uvicorn's sets of connections and tasks, which it waits for at the end.
        app_state: what the lifespan of the application left, copied into the scope of every request.
    """

    app: ASGIApp
    settings: Settings
    metrics: Metrics
    memory: MemoryBudget
    state: ServerState
    app_state: dict[str, Any]
    # Whose clients have not said what they want, in the order in which they began to wait; an ordered set.
    waiting: dict[HTTPConnection, None] = field(default_factory=dict)
    _round_end: float | None = None
    _queue: deque[Callable[[], None]] = field(default_factory=deque)

    def count(self, reason: str) -> None:
        """Count a connection that was ended by the server; `reason` is one of a few words."""
        self.metrics.connections_refused.labels(reason).inc()

    def take_turn(self, work: Callable[[], None]) -> bool:
        """Let a connection work now, if nobody waits and the round of the event loop has time; whether it did."""
        if self._queue or not self.has_time():
            return False
        work()
        return True

    def queue_turn(self, work: Callable[[], None]) -> None:
        """Let a connection work in one of the next rounds, behind those that wait."""
        self._queue.append(work)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._work_on)

    def _work_on(self) -> None:
        try:
            for _ in range(min(len(self._queue), TURNS_A_ROUND)):
                if not self.has_time():
                    break
                try:
                    self._queue[0]()  # at the head meanwhile: so a round is arranged for already
                finally:
                    self._queue.popleft()
        finally:
            if self._queue:
                asyncio.get_running_loop().call_soon(self._work_on)

    def has_time(self) -> bool:
        """Whether this round has time for more work of connections, however many have come."""
        now = time.monotonic()
        if self._round_end is None:
            self._round_end = now + ROUND_SECONDS
            asyncio.get_running_loop().call_soon(self._begin_round)
        return now < self._round_end

    def _begin_round(self) -> None:
        self._round_end = None

    def has_capacity(self) -> bool:
        """Whether the newest connection has a place, if need be that of one that has waited longest."""
        if len(self.state.connections) <= self.settings.max_connections:
            return True
        for longest in self.waiting:
            self.count("made_room")
            longest.evict()
            return True
        return False


class Holding:
    """Bytes of something unfinished, leased from the budget of the process as they grow."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._lease: Lease | None = None
        self._leased = FREE_BYTES

    def resize(self, size: int) -> None:
        """Now so many bytes are held.

        Raises:
            Overloaded: there is no memory for them.
        """
        if size <= FREE_BYTES:
            self.release()
        elif size > self._leased:
            more = -(-(size - self._leased) // LEASE_STEP_BYTES) * LEASE_STEP_BYTES
            if self._lease is None:
                self._lease = self._memory.take(more)
            else:
                self._lease.grow(more)
            self._leased += more

    def release(self) -> None:
        """Nothing is held."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self._leased = FREE_BYTES


class StalledReader:
    """Sees off a peer that takes nothing.

    Closing a transport waits until its buffer is written, which a peer with a full window puts off for ever.
    `tick` is called about once a second.
    """

    wire: Wire
    transport: asyncio.Transport
    written_bytes = 0
    _taken = 0
    _pending = 0
    _pending_since = 0.0

    def is_quiet(self) -> bool:
        """Nothing is added to the buffer now, so that what the peer has to take can only shrink."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Cut the connection when its peer has taken nothing for the send timeout.

        Args:
            now: of the monotonic clock, seconds.
        """
        pending = untaken_bytes(self.transport) if self.is_quiet() else 0
        taken = self.written_bytes - pending  # more may have been written meanwhile than was taken
        if pending == 0 or taken > self._taken or self._pending == 0:
            self._pending_since = now
        elif now - self._pending_since >= self.wire.settings.send_timeout_seconds:
            self.wire.count("stalled_reader")
            self.transport.abort()
        self._pending, self._taken = pending, taken


def untaken_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the peer has not acknowledged, where some of them are still ours to write; else 0.

    The kernel's part counts because it takes more from us only once a third of its megabytes is free: a slow reader
    would look like one that takes nothing.
    """
    ours = transport.get_write_buffer_size()
    if ours == 0:
        return 0
    queued = array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    except OSError:
        return ours
    return ours + queued[0]


def address_of(name: object) -> tuple[str, int] | None:
    """Host and port of a socket; None for a UNIX socket, or one that is gone."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def is_reset(connection: socket.socket) -> bool:
    """Whether the peer of a socket has reset it."""
    try:
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return struct.unpack("B", information)[0] == TCP_CLOSE
