"""Balancing of connections between several processes that accept from one listening socket.

All processes accept from the socket that the supervisor opened. With separate queues, the connections of a stopped or
hanging process would wait until it is killed. A shared queue alone gives most connections to the process that wakes
first, and connections live long. The processes therefore publish their connection counts in the shared status. A
process with more connections than another one waits for 2 ms, so that the other can accept a new connection.

    wakes ── own count within its fair share ──────────────────> accept
       └──── else ── wait 2 ms ── the others took none ─────────> accept one

No connection is passed between processes, so none is lost. A process that has not updated its count for 0.5 s is
ignored.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from rfa.service.process.shared_status import CLOSED, SharedStatus

logger = logging.getLogger("rfa.server")
Factory = Callable[[], asyncio.Protocol]

# Maximum number of connections accepted per event loop iteration.
ACCEPTED_AT_ONCE = 64
# Time for which a process with more connections leaves a new one to the others.
YIELD_SECONDS = 0.002
# A process may have this many more connections than another, plus a sixteenth. Strict alternation would delay bursts.
ALLOWED_LEAD = 2
ALLOWED_LEAD_DIVISOR = 16
PAUSE_SECONDS = 0.5
# The kernel's default grows to megabytes. The server would compute and hold that much for a client that does not read.
SEND_BUFFER_BYTES = 131_072
NO_MORE_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class ConnectionShare:
    """The share of one process in all connections, according to the shared status."""

    def __init__(self, status: SharedStatus, index: int) -> None:
        self._status = status
        self._index = index

    def publish(self, count: float) -> None:
        """Publish the number of connections of this process. It is infinity if the process accepts no more."""
        self._status.set_connections(self._index, count)

    def limit(self) -> float:
        """Return the number of connections that this process may have while others have fewer."""
        fewest = self._status.fewest_connections(self._index)
        return fewest + ALLOWED_LEAD + fewest / ALLOWED_LEAD_DIVISOR


class Acceptor:
    """Acceptor of connections from one listening socket. It has the methods of `asyncio.Server` that uvicorn uses.

    Args:
        listener: listening socket, which other processes may share.
        factory: function that creates the protocol of a connection.
        count: function that returns the number of connections of this process.
        share: share of this process in all connections, or None with a single process.
    """

    def __init__(
        self, listener: socket.socket, factory: Factory, count: Callable[[], int], share: ConnectionShare | None
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._count = count
        self._share = share
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._is_pausing = False

    def open(self) -> None:
        """Start accepting connections."""
        self._listener.setblocking(False)
        self._is_open = True
        self._loop.add_reader(self._listener, self._on_readable)
        self.publish()

    def publish(self) -> None:
        """Update the number of connections that other processes see."""
        if self._share is not None and self._is_open and not self._is_pausing:
            self._share.publish(self._total())

    def close(self) -> None:
        """Stop accepting connections."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._listener)
        if self._share is not None:
            self._share.publish(CLOSED)

    async def wait_closed(self) -> None:
        """Wait until every accepted connection has a protocol."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _total(self) -> int:
        return self._count() + len(self._beginning)

    def _limit(self) -> float:
        return CLOSED if self._share is None else self._share.limit()

    def _on_readable(self) -> None:
        if (limit := self._limit()) <= self._total():
            self._pause(YIELD_SECONDS, lambda: self._accept_if_still_waiting(limit))
        else:
            self._accept(1)

    def _accept_if_still_waiting(self, before: float) -> None:
        """Accept a connection for which this process waited, unless another process has accepted it."""
        if not before < self._limit() <= self._total():
            self._accept(1)

    def _accept(self, number: int) -> None:
        """Accept `number` connections, and further ones while this process is within its share."""
        for accepted in range(ACCEPTED_AT_ONCE):
            if accepted >= number and self._limit() <= self._total():
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._fail(error)
                return
            self._begin(connection)
            self.publish()

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        task = self._loop.create_task(self._connect(connection))
        self._beginning.add(task)
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self.publish()

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError:  # the client has already disconnected
            connection.close()

    def _fail(self, error: OSError) -> None:
        """Pause if there are no free file descriptors. Otherwise, every iteration of the event loop would fail."""
        if error.errno == errno.EINVAL:  # the supervisor has shut the listener down
            self.close()
            return
        if error.errno not in NO_MORE_FILES:
            raise error
        logger.error("the server cannot accept connections: %s", error.strerror)
        self._is_pausing = True
        if self._share is not None:
            self._share.publish(CLOSED)
        self._pause(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._is_pausing = False
        self.publish()

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        """Accept no connections for some seconds, then call `then` and accept connections again."""

        def resume() -> None:
            if self._is_open:
                self._loop.add_reader(self._listener, self._on_readable)
                then()

        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, resume)
