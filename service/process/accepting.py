"""Connections, evenly over the processes.

The kernel deals new connections out by a hash, which is even for thousands and not for dozens: of 64 over four
processes one often gets 22, and it is the fullest process that users wait for. Most of our connections live long and
carry work all the time. So the processes share a table of how many each has, and one that has more than the emptiest
hands a new connection on to it, through a UNIX socket, before a byte is read.

    accept ── own count ≤ the least ──> serve it here
       └───── else ── send the socket ──> that process serves it (or, should it not take it, this one)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import socket
import struct
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("rfa.server")
Factory = Callable[[], asyncio.Protocol]

BACKLOG = 2048
# Accepted in one go: the event loop has others to look after, too.
ACCEPTED_AT_ONCE = 64
PAUSE_SECONDS = 0.5
# The kernel's own choice grows to megabytes: what a client that does not read makes the server compute, and hold.
SEND_BUFFER_BYTES = 131_072
NO_MORE_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
COUNT_BYTES = 4
CLOSED = 2**30


class Shares:
    """How many connections each process has, and the way to its door.

    Args:
        directory: private to the server's user, the same for all processes.
        index: place of this process.
        processes: number of places.

    Raises:
        OSError: the table or the socket cannot be made.
    """

    def __init__(self, directory: Path, index: int, processes: int) -> None:
        self._index = index
        self._doors = [directory / f"door-{place}" for place in range(processes)]
        with (directory / "connections").open("a+b") as file:
            file.truncate(COUNT_BYTES * processes)
            self._memory = mmap.mmap(file.fileno(), COUNT_BYTES * processes)
        self._counts = memoryview(self._memory).cast("i")
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._door.setblocking(False)
        self._doors[index].unlink(missing_ok=True)  # of the process that had this place before
        self._door.bind(str(self._doors[index]))
        self.tell(0)

    @property
    def door(self) -> socket.socket:
        """Where others hand connections in."""
        return self._door

    def tell(self, count: int) -> None:
        """Let the others know how many connections this process has."""
        self._counts[self._index] = count

    def hand_on(self, connection: socket.socket, count: int) -> bool:
        """Give a connection to the process that has the fewest, if that has fewer than `count`: was it taken?"""
        self.tell(count)
        least = min(range(len(self._counts)), key=self._counts.__getitem__)
        if self._counts[least] >= count:
            return False
        try:
            # `socket.send_fds` has no use for an address, whatever its signature says.
            self._door.sendmsg([b"c"], [_rights(connection)], 0, str(self._doors[least]))
        except OSError:  # it is gone, or does not keep up
            return False
        self._counts[least] += 1  # until it counts itself
        connection.close()
        return True

    def take(self) -> socket.socket | None:
        """A connection that another process handed on."""
        try:
            _, (descriptor,), _, _ = socket.recv_fds(self._door, 1, 1)
        except (OSError, ValueError):
            return None
        return socket.socket(fileno=descriptor)

    def close(self) -> None:
        """Take part no longer."""
        self.tell(CLOSED)
        self._doors[self._index].unlink(missing_ok=True)
        self._door.close()


def _rights(connection: socket.socket) -> tuple[int, int, bytes]:
    """The control message that carries a socket."""
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", connection.fileno())


class Acceptor:
    """Takes the connections of one listener; has the part of `asyncio.Server` that uvicorn uses.

    Args:
        listener: bound.
        factory: makes the protocol of a connection.
        count: connections that this process serves.
        shares: of all processes; None serves every connection here.
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

    def open(self) -> None:
        """Take connections from now on."""
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._is_open = True
        self._loop.add_reader(self._listener, self._accept)
        if self._shares is not None:
            self._loop.add_reader(self._shares.door, self._take)

    def tell(self) -> None:
        """Bring the count that others see up to date."""
        if self._shares is not None and self._is_open:
            self._shares.tell(self._total())

    def close(self) -> None:
        """Take no more; those that were handed on in the meantime are served."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._listener)
        if self._shares is not None:
            self._loop.remove_reader(self._shares.door)
            self._shares.tell(CLOSED)
            self._take()
            self._shares.close()

    async def wait_closed(self) -> None:
        """Wait until every accepted connection is with its protocol."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    def _total(self) -> int:
        return self._count() + len(self._beginning)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            if self._shares is None or not self._shares.hand_on(connection, self._total()):
                self._begin(connection)

    def _take(self) -> None:
        while self._shares is not None and (connection := self._shares.take()) is not None:
            self._begin(connection)

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

    def _pause(self, error: OSError) -> None:
        """No file descriptor is left: let some be closed, instead of failing at every turn of the loop."""
        if error.errno not in NO_MORE_FILES:
            raise error
        logger.error("no connection can be accepted: %s", error.strerror)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener, self._accept)
