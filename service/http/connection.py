"""Connections of a process, and the base class of HTTP and WebSocket connections."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from array import array
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from rfa.service.memory import Lease, MemoryBudget
from rfa.service.metrics import Metrics
from rfa.service.setting_groups import LimitSettings

if TYPE_CHECKING:
    from rfa.service.http.http1 import HTTPConnection

# Maximum time for one connection before others are processed.
SLICE_SECONDS = 0.002
# Maximum time for all connections in an iteration of the event loop. The tasks that they wake take several times as
# long.
ITERATION_SECONDS = 0.0005
# Maximum number of calls in an iteration. A time limit alone is not enough, because a call may only wake a task.
CALLS_PER_ITERATION = 16
# Number of bytes for which no memory is reserved. Nearly all incomplete heads and messages are smaller.
FREE_BYTES = 4_096
LEASE_STEP_BYTES = 16_384
TCP_CLOSE = 7  # the kernel's state of a socket that the client has reset


@dataclass
class ConnectionManager:
    """Manages the connections of one server process and enforces their limits.

    Args:
        app: ASGI application.
        state: Sets of connections and tasks of uvicorn, which waits for them at shutdown.
        app_state: State from the lifespan of the application. It is copied into the scope of every request.
        waiting: Connections without a complete request, the one that has waited longest first.
    """

    app: ASGIApp
    limits: LimitSettings
    metrics: Metrics
    memory: MemoryBudget
    state: ServerState
    app_state: dict[str, Any]
    # The dictionary is used as an ordered set.
    waiting: dict[HTTPConnection, None] = field(default_factory=dict)
    _iteration_end: float | None = None
    _queue: deque[Callable[[], None]] = field(default_factory=deque)

    def add(self, connection: Connection) -> None:
        """Register an open connection."""
        self.state.connections.add(connection)  # type: ignore[arg-type]  # uvicorn names only its own classes

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.state.connections.discard(connection)  # type: ignore[arg-type]

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the application for one request. uvicorn waits for the task when the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)

    def count(self, reason: str) -> None:
        """Count a connection that the server closed. `reason` is a label of the metric, so it must have few values."""
        self.metrics.connections_refused.labels(reason).inc()

    def run_now(self, work: Callable[[], None]) -> bool:
        """Run `work` if no other work is queued and this iteration of the event loop has time left. Return whether
        `work` was run."""
        if self._queue or not self.has_time():
            return False
        work()
        return True

    def run_later(self, work: Callable[[], None]) -> None:
        """Run `work` in one of the next iterations of the event loop."""
        self._queue.append(work)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._run_queue)

    def _run_queue(self) -> None:
        try:
            for _ in range(min(len(self._queue), CALLS_PER_ITERATION)):
                if not self.has_time():
                    break
                try:
                    self._queue[0]()  # removed after the call, so that `run_later` does not schedule `_run_queue` again
                finally:
                    self._queue.popleft()
        finally:
            if self._queue:
                asyncio.get_running_loop().call_soon(self._run_queue)

    def has_time(self) -> bool:
        """Return whether connections may do more work in this iteration of the event loop."""
        now = time.monotonic()
        if self._iteration_end is None:
            self._iteration_end = now + ITERATION_SECONDS
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        return now < self._iteration_end

    def _begin_iteration(self) -> None:
        self._iteration_end = None

    def has_capacity(self) -> bool:
        """Return whether a new connection can be served. If there are too many connections, close the one that has been
        idle longest."""
        if len(self.state.connections) <= self.limits.max_connections:
            return True
        for longest in self.waiting:
            self.count("made_room")
            longest.evict()
            return True
        return False


class BufferLease:
    """Reserves memory for an incomplete head or message from the budget of the process, while its size increases."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._lease: Lease | None = None
        self._leased = FREE_BYTES

    def resize(self, size: int) -> None:
        """Reserve memory for at least `size` bytes. Memory is reserved in large steps.

        Raises:
            Overloaded: If the budget is exhausted.
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
        """Return all reserved memory to the budget."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        self._leased = FREE_BYTES


class Connection(asyncio.Protocol):
    """Base class of connections with flow control. A connection is closed if its client reads nothing for a long time.

    Attributes:
        transport: Transport of the connection.
        manager: Object that limits the number of connections.
        writable: Event that is not set while the client reads too slowly.
    """

    transport: asyncio.Transport
    _sent_bytes = 0
    _read_bytes = 0
    _pending = 0
    _pending_since = 0.0

    def __init__(self, manager: ConnectionManager) -> None:
        self.manager = manager
        self.writable = asyncio.Event()
        self.writable.set()
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._lease = BufferLease(manager.memory)
        self._is_queued = False
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self.manager.add(self)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def write(self, data: bytes) -> None:
        """Send bytes. If `data` is empty or the connection is closing, this does nothing."""
        if data and not self.transport.is_closing():
            self._sent_bytes += len(data)
            self.transport.write(data)

    def _pause_reading(self, should_pause: bool) -> None:
        if should_pause and not self._is_paused:
            self.transport.pause_reading()
        elif self._is_paused and not should_pause:
            self.transport.resume_reading()
        self._is_paused = should_pause

    def is_quiet(self) -> bool:
        """Return whether the application is not writing. The number of unacknowledged bytes can then only decrease."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Disconnect a client that has read nothing for `send_timeout_seconds`. This is called about once per second.

        The transport is aborted. Closing it would wait until its buffer is written, which does not happen if the client
        reads nothing.

        Args:
            now: Monotonic time in seconds.
        """
        pending = unacknowledged_bytes(self.transport) if self.is_quiet() else 0
        read = self._sent_bytes - pending
        if pending == 0 or read > self._read_bytes or self._pending == 0:
            self._pending_since = now
        elif now - self._pending_since >= self.manager.limits.send_timeout_seconds:
            self.manager.count("stalled_reader")
            self.transport.abort()
        self._pending, self._read_bytes = pending, read


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the client has not acknowledged, or 0 if all bytes were passed to the kernel.

    The number includes the bytes in the send buffer of the kernel, which can hold megabytes. The kernel accepts more
    bytes only when a third of this buffer is free. The bytes in the buffer of the transport alone would therefore not
    show that a slow client is reading.
    """
    buffered = transport.get_write_buffer_size()
    if buffered == 0:
        return 0
    queued = array("i", [0])
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
    except OSError:
        return buffered
    return buffered + queued[0]


def host_and_port(name: object) -> tuple[str, int] | None:
    """Return the host and port in the address of a socket, or None for a UNIX socket or a closed socket."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def is_reset(connection: socket.socket) -> bool:
    """Return whether the client has reset the connection."""
    try:
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return struct.unpack("B", information)[0] == TCP_CLOSE
