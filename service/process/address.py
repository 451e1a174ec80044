"""The listening socket of all processes. The supervisor opens it, and every process inherits it.

One socket per process (SO_REUSEPORT) would also balance connections, but connections queued for a stopped or hanging
process would wait until it is killed. With one of two processes stopped, about 100 of 200 requests timed out. With a
shared queue, the other processes accept them. `rfa.service.process.accepting` balances the connections.
"""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

# The kernel limits this, usually to 4,096.
BACKLOG = 4_096


class Address(NamedTuple):
    """Host and port on which the server listens. The port is never 0."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """URL that is shown to users."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def reserve(host: str, port: int) -> tuple[socket.socket, Address]:
    """Bind a port exclusively, without listening on it.

    Raises:
        OSError: If the address is invalid or in use.
    """
    holder = _socket(host)
    try:
        # Connections of an earlier server in TIME_WAIT do not prevent binding ...
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        # ... and from here on no other server can bind. With SO_REUSEADDR, two servers could bind before either
        # listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        holder.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return holder, Address(host, holder.getsockname()[1])


def listen(holder: socket.socket) -> None:
    """Start listening on the port. Any process that has the socket may accept connections.

    Raises:
        OSError: If the port is already in use.
    """
    # Accepted connections inherit this option, so that in TIME_WAIT they do not block the port for the next server.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.listen(BACKLOG)


def refuse(holder: socket.socket) -> None:
    """Stop accepting connections in all processes, including a process that hangs and cannot close its socket."""
    with contextlib.suppress(
        OSError
    ):  # some systems do not support this for listeners; there each process closes its own
        holder.shutdown(socket.SHUT_RDWR)


def _socket(host: str) -> socket.socket:
    if ":" not in host:
        return socket.socket(socket.AF_INET)
    plain = socket.socket(socket.AF_INET6)
    plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return plain
