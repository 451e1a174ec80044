"""Open the listening socket, which all processes share. The supervisor opens it, and the server processes inherit it.

One socket per process (SO_REUSEPORT) would also balance connections. However, connections in the queue of a stopped or
hanging process would wait until it is killed: with one of two processes stopped, about 100 of 200 requests timed out.
With a shared queue, the other processes accept them. `rfa.service.process.accepting` balances the connections.
"""

from __future__ import annotations

import contextlib
import socket
from typing import NamedTuple

# Maximum number of connections that wait to be accepted. The kernel has a limit too, which is usually 4,096.
BACKLOG = 4_096


class Address(NamedTuple):
    """Host and port on which the server listens. The port is the actual one, and not 0."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """URL of the server for log lines."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def reserve(host: str, port: int) -> tuple[socket.socket, Address]:
    """Bind a port exclusively, without listening on it. Return the socket and its address.

    Args:
        port: Port to bind. If it is 0, a free port is chosen.

    Raises:
        OSError: If the address is invalid or in use.
    """
    holder = _socket(host)
    try:
        # With SO_REUSEADDR, connections of an earlier server in TIME_WAIT do not prevent binding.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        # Without SO_REUSEADDR, no other server can bind the port before this one listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        holder.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return holder, Address(host, holder.getsockname()[1])


def listen(holder: socket.socket) -> None:
    """Start listening on a bound socket. All processes that have inherited the socket may accept connections.

    Raises:
        OSError: If the port is already in use.
    """
    # Accepted connections inherit this option, so they do not prevent the next server from binding the port while
    # they are in TIME_WAIT.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.listen(BACKLOG)


def refuse(holder: socket.socket) -> None:
    """Stop accepting connections in all processes, even in a process that hangs and cannot close its socket."""
    # Some systems do not support this for listening sockets. There, each process closes its socket.
    with contextlib.suppress(OSError):
        holder.shutdown(socket.SHUT_RDWR)


def _socket(host: str) -> socket.socket:
    if ":" not in host:
        return socket.socket(socket.AF_INET)
    plain = socket.socket(socket.AF_INET6)
    plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return plain
