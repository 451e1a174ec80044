"""One listening socket for all processes: the supervisor opens it, and every process inherits it.

A socket per process (SO_REUSEPORT) would balance connections, but those queued for a stopped or hanging process would
wait until it is killed: with one of two processes stopped, about 100 of 200 requests timed out. With a shared queue the
others accept them. `rfa.service.process.accepting` balances.
"""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

# The kernel limits it, usually to 4,096.
BACKLOG = 4_096


class Address(NamedTuple):
    """Host and port that the server listens on. The port is not 0."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL for users."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def reserve(host: str, port: int) -> tuple[socket.socket, Address]:
    """Bind a port exclusively, without listening on it yet.

    Raises:
        OSError: The address is invalid or in use.
    """
    holder = _socket(host)
    try:
        # Connections of an earlier server in TIME_WAIT do not prevent this ...
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        # ... and then no other server can bind: with SO_REUSEADDR two servers could bind before either listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        holder.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return holder, Address(host, holder.getsockname()[1])


def listen(holder: socket.socket) -> None:
    """Start listening. Any process that has the socket may accept.

    Raises:
        OSError: The port is already in use.
    """
    # Accepted connections inherit this, so that in TIME_WAIT they do not block the port for the next server.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.listen(BACKLOG)


def refuse(holder: socket.socket) -> None:
    """Accept no further connection in any process, including one that hangs and cannot close its socket."""
    with contextlib.suppress(OSError):  # not supported for listeners everywhere; there each process closes its own
        holder.shutdown(socket.SHUT_RDWR)


def _socket(host: str) -> socket.socket:
    if ":" not in host:
        return socket.socket(socket.AF_INET)
    plain = socket.socket(socket.AF_INET6)
    plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return plain
