"""Clients below HTTP that send requests and then do not read, do not continue, or disconnect."""

from __future__ import annotations

import socket
import struct

from tests.soak.requests import handshake, message, post
from tests.waiting import PATIENCE

SMALL_BUFFER = 4_096
# More than the buffers of both sockets and of the engine hold, and cheap to compute: a reader who stops soon
LARGE_SAMPLES = 128
LARGE_ANSWERS = 2_000


def open_socket(port: int, receive_buffer: int | None = None) -> socket.socket:
    """Open a connection. A small receive buffer lets the server detect soon that nobody reads."""
    made = socket.socket()
    made.settimeout(PATIENCE)
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        made.connect(("127.0.0.1", port))
    except OSError:
        made.close()
        raise
    return made


def upgrade(port: int, receive_buffer: int | None = None) -> socket.socket:
    """Open a WebSocket on /filter/stream without a message.

    Raises:
        ConnectionError: The server rejects it.
    """
    made = open_socket(port, receive_buffer)
    made.sendall(handshake())
    answer = read_until(made, b"\r\n\r\n")
    if b" 101 " not in answer:
        made.close()
        raise ConnectionError(f"no WebSocket: {answer[:100]!r}")
    return made


def live_stream(port: int) -> socket.socket:
    """Open a live stream that got one answer, and therefore has a slot."""
    made = upgrade(port)
    made.sendall(message({}) + message({"y": None}))
    read_until(made, b'"mean"')
    return made


def streamed_reply(port: int) -> socket.socket:
    """Open a streamed reply of POST /filter, too large for the buffers on the way, without reading it."""
    made = open_socket(port, SMALL_BUFFER)
    made.sendall(post("/filter", {"observations": [None] * LARGE_ANSWERS, "samples": LARGE_SAMPLES, "stream": True}))
    return made


def read_until(made: socket.socket, mark: bytes) -> bytes:
    """Return the bytes received up to and including `mark`.

    Raises:
        ConnectionError: The server closed before.
    """
    data = b""
    while mark not in data:
        piece = made.recv(65_536)
        if not piece:
            raise ConnectionError(f"closed after {data[-100:]!r}")
        data += piece
    return data


def reset(made: socket.socket) -> None:
    """Reset the connection, as a process that dies with unread data does."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
