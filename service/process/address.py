"""One port for many processes: one listening socket, which the supervisor opens and every process inherits.

A socket of its own for each process (SO_REUSEPORT) would spread connections evenly, but what the kernel has put into
the queue of a process that is stopped or stuck waits there until it is killed: of 200 requests with one of two
processes stopped, about 100 timed out. From one queue the others take them (`rfa.service.process.accepting` has how
connections are spread).
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

# The kernel takes no more than its own limit, usually 4,096.
BACKLOG = 4_096


@dataclass(frozen=True)
class Address:
    """Where the server listens; the port is a real one."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """What a user types."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def reserve(host: str, port: int) -> tuple[socket.socket, Address]:
    """Take a port for this server alone, without listening on it yet.

    Raises:
        OSError: the address cannot be used, or is taken.
    """
    holder = _socket(host)
    try:
        # Past connections of an earlier server that the kernel still remembers ...
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        # ... and then closed to whoever else comes: two that do not listen yet would both get a port that is open.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        holder.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return holder, Address(host, holder.getsockname()[1])


def listen(holder: socket.socket) -> None:
    """Let clients connect; any process that has the socket may accept them.

    Raises:
        OSError: the port was taken after all.
    """
    # As for `bind`, past connections that the kernel remembers. A listener is alone on its port in any case; its own
    # connections have this from it, and must not keep the next server from the port.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.listen(BACKLOG)


def refuse(holder: socket.socket) -> None:
    """Take no further connection, in none of the processes: also not in one that is stuck and cannot close its own."""
    with contextlib.suppress(OSError):  # some systems have this for connections only; there each process closes its own
        holder.shutdown(socket.SHUT_RDWR)


def _socket(host: str) -> socket.socket:
    if ":" not in host:
        return socket.socket(socket.AF_INET)
    plain = socket.socket(socket.AF_INET6)
    plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return plain
