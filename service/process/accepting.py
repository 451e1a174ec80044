"""Balance connections between several processes that accept them from one listening socket.

All processes accept connections from the socket that the supervisor opened. With separate queues, the connections of a
stopped or hanging process would wait until it is killed. With only a shared queue, the process that wakes first would
accept most connections, and connections last long. The processes therefore publish their numbers of connections in the
shared status. A process with more connections than another one waits for 2 ms, so that the other one can accept a new
connection.

    new connection ── few connections ───────────────────────────────────────> accept
              └────── many ── wait 2 ms ── no other process accepted it ─────> accept

Connections are not passed between processes, so none is lost. A process that has not updated its number for 0.5 s is
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

# Maximum number of connections that are accepted in one iteration of the event loop.
ACCEPTED_AT_ONCE = 64
# Time for which a process with many connections waits for the others to accept a new one.
YIELD_SECONDS = 0.002
# A process does not wait if it has at most this many connections more than another process, plus a sixteenth of them.
# Strict alternation would delay bursts of connections.
ALLOWED_LEAD = 2
ALLOWED_LEAD_DIVISOR = 16
PAUSE_SECONDS = 0.5
# By default, the kernel increases the send buffer to megabytes. The server would then compute replies of this size for
# a client that does not read them.
SEND_BUFFER_BYTES = 131_072
NO_MORE_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class ConnectionShare:
    """Computes how many connections a process should have, from the shared status of all processes."""

    def __init__(self, status: SharedStatus, index: int) -> None:
        self._status = status
        self._index = index

    def publish(self, count: float) -> None:
        """Publish the number of connections of this process. Infinity means that it does not accept connections."""
        self._status.set_connections(self._index, count)

    def limit(self) -> float:
        """Return the number of connections above which this process leaves new connections to other processes."""
        fewest = self._status.fewest_connections(self._index)
        return fewest + ALLOWED_LEAD + fewest / ALLOWED_LEAD_DIVISOR


class Acceptor:
    """Accepts connections from one listening socket. It has the methods of `asyncio.Server` that uvicorn uses.

    Args:
        listener: Listening socket, which other processes may share.
        factory: Function that creates the protocol of a connection.
        count: Function that returns the number of connections of this process.
        share: Object that balances connections between processes. None if there is only one process.
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
        """Publish the current number of connections for the other processes."""
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
        """Wait until all accepted connections are passed to their protocols."""
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
        """Accept a connection after waiting, unless another process has accepted one in the meantime.

        Args:
            before: Result of `_limit` before waiting.
        """
        if not before < self._limit() <= self._total():
            self._accept(1)

    def _accept(self, number: int) -> None:
        """Accept at least `number` connections, and further ones while this process is below its limit."""
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
        """Handle an error. Without free file descriptors, pause, because each iteration of the event loop would
        fail."""
        if error.errno == errno.EINVAL:  # the supervisor has shut down the listening socket
            self.close()
            return
        if error.errno not in NO_MORE_FILES:
            raise error
        logger.error("the server cannot accept connections, and tries again soon: %s", error.strerror)
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
