"""One port for many processes.

Every process has a listening socket of its own on the port (SO_REUSEPORT): the kernel spreads new connections evenly
over them, where one shared socket leaves most of them to whichever process wakes first (200 connections over four
processes: 43 to 56 each against 22 to 118). It also means that nobody waits in the queue of a process that is gone.

The supervisor holds the port without listening on it, so that port 0 is resolved once, and so that a second server
is refused: Linux lets any process of the same user share a port that is open to sharing.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

BACKLOG = 2048


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
    """Take a port for the processes of this user alone, for as long as the socket is open.

    Raises:
        OSError: the address cannot be used, or is taken.
    """
    holder = _socket(host)
    try:
        # Alone at first, past connections of an earlier server that the kernel still remembers ...
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        # ... then open to listeners that ask for sharing, and closed to whoever comes here next.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        holder.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return holder, Address(host, holder.getsockname()[1])


def share(address: Address) -> socket.socket:
    """A socket of one process on the reserved port; it takes connections once somebody listens on it."""
    listener = _socket(address.host)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((address.host, address.port))
    return listener


def _socket(host: str) -> socket.socket:
    if ":" not in host:
        return socket.socket(socket.AF_INET)
    plain = socket.socket(socket.AF_INET6)
    plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return plain
