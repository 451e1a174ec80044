"""Connections, evenly over the processes, from one queue.

All processes accept from the one socket that the supervisor opened: what a stopped or stuck process would have in a
queue of its own would wait until it is killed, while here it is taken by the others. But a queue alone gives most to
whichever process wakes first, and most of our connections live long and carry work all the time. So the processes tell
each other on the board how many each has, and one that has more than another leaves a new connection to that one, for
as long as a healthy process needs to come and take it.

    wakes ── own count within its fair share ──────────────────> accept
       └──── else ── wait 2 ms ── they have not taken any ──────> accept one

Nothing is handed from process to process, so there is no connection that nobody serves. A process that said nothing for
half a second is not waited for. Of 64 connections over four processes each gets 14 to 18, of 200 it is 48 to 53; over
two 31 to 34 and 95 to 106, whether they are opened at once or one after another.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from rfa.service.process.board import CLOSED, Board

logger = logging.getLogger("rfa.server")
Factory = Callable[[], asyncio.Protocol]

# Accepted in one go: the event loop has others to look after, too.
ACCEPTED_AT_ONCE = 64
# How long one that is ahead leaves a connection to the others, before it takes one.
POLITE_SECONDS = 0.002
# A process may be ahead by so many, and by such a part: in step, one connection each, a crowd would wait too long.
HEAD_START = 2
FAIR_PART = 16
PAUSE_SECONDS = 0.5
# The kernel's own choice grows to megabytes: what a client that does not read makes the server compute, and hold.
SEND_BUFFER_BYTES = 131_072
NO_MORE_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Shares:
    """The share of one process in all connections, as told on the board."""

    def __init__(self, board: Board, index: int) -> None:
        self._board = board
        self._index = index

    def tell(self, count: float) -> None:
        """Let the others know how many connections this process has; infinite takes part no longer."""
        self._board.tell(self._index, count)

    def fair(self) -> float:
        """The most that this process may have while others have fewer."""
        least = self._board.least(self._index)
        return least + HEAD_START + least / FAIR_PART


class Acceptor:
    """Takes the connections of one listener; has the part of `asyncio.Server` that uvicorn uses.

    Args:
        listener: listens already, here alone or in many processes.
        factory: makes the protocol of a connection.
        count: connections that this process serves.
        shares: in all connections; None where there is no other process.
    """

    def __init__(
        self, listener: socket.socket, factory: Factory, count: Callable[[], int], shares: Shares | None
    ) -> None:
        self._listener = listener
        self._factory = factory
        self._count = count
        self._shares = shares
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_open = False
        self._is_pausing = False

    def open(self) -> None:
        """Take connections from now on."""
        self._listener.setblocking(False)
        self._is_open = True
        self._loop.add_reader(self._listener, self._accept)
        self.tell()

    def tell(self) -> None:
        """Bring the count that others see up to date."""
        if self._shares is not None and self._is_open and not self._is_pausing:
            self._shares.tell(self._total())

    def close(self) -> None:
        """Take no more."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._listener)
        if self._shares is not None:
            self._shares.tell(CLOSED)

    async def wait_closed(self) -> None:
        """Wait until every accepted connection is with its protocol."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _total(self) -> int:
        return self._count() + len(self._beginning)

    def _fair(self) -> float:
        return CLOSED if self._shares is None else self._shares.fair()

    def _accept(self) -> None:
        if (fair := self._fair()) <= self._total():
            self._wait(POLITE_SECONDS, lambda: self._take_late(fair))
        else:
            self._take(1)

    def _take_late(self, before: float) -> None:
        """Take one that was left to the others, unless they are at it."""
        if not before < self._fair() <= self._total():
            self._take(1)

    def _take(self, number: int) -> None:
        """Accept what is there: so many, and more for as long as this process is not ahead."""
        for taken in range(ACCEPTED_AT_ONCE):
            if taken >= number and self._fair() <= self._total():
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._fail(error)
                return
            self._begin(connection)
            self.tell()

    def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        task = self._loop.create_task(self._connect(connection))
        self._beginning.add(task)
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        self.tell()

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError:  # the client has left already
            connection.close()

    def _fail(self, error: OSError) -> None:
        """No file descriptor is left: let some be closed, instead of failing at every turn of the loop."""
        if error.errno == errno.EINVAL:  # the supervisor has shut the listener, for all
            self.close()
            return
        if error.errno not in NO_MORE_FILES:
            raise error
        logger.error("no connection can be accepted: %s", error.strerror)
        self._is_pausing = True
        if self._shares is not None:
            self._shares.tell(CLOSED)
        self._wait(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._is_pausing = False
        self.tell()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        """Leave the queue alone for a while, do this, and look at it again."""

        def look() -> None:
            if self._is_open:
                self._loop.add_reader(self._listener, self._accept)
                then()

        self._loop.remove_reader(self._listener)
        self._loop.call_later(seconds, look)
