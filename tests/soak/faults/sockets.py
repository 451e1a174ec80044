"""Clients below HTTP: they ask, and then do not read, do not go on, or leave without a word."""

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
    """A connection; a small receive buffer lets the server notice soon that nobody reads."""
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
    """A WebSocket on /filter/stream on which nothing was said yet.

    Raises:
        ConnectionError: the server refuses it.
    """
    made = open_socket(port, receive_buffer)
    made.sendall(handshake())
    answer = read_until(made, b"\r\n\r\n")
    if b" 101 " not in answer:
        made.close()
        raise ConnectionError(f"no WebSocket: {answer[:100]!r}")
    return made


def live_stream(port: int) -> socket.socket:
    """A live stream that got one answer, so that it owns a seat of state."""
    made = upgrade(port)
    made.sendall(message({}) + message({"y": None}))
    read_until(made, b'"mean"')
    return made


def streamed_reply(port: int) -> socket.socket:
    """A streamed reply of POST /filter, too large for the buffers between, of which nothing is read."""
    made = open_socket(port, SMALL_BUFFER)
    made.sendall(post("/filter", {"observations": [None] * LARGE_ANSWERS, "samples": LARGE_SAMPLES, "stream": True}))
    return made


def read_until(made: socket.socket, mark: bytes) -> bytes:
    """What came up to and with `mark`.

    Raises:
        ConnectionError: the server closed before.
    """
    data = b""
    while mark not in data:
        piece = made.recv(65_536)
        if not piece:
            raise ConnectionError(f"closed after {data[-100:]!r}")
        data += piece
    return data


def reset(made: socket.socket) -> None:
    """Leave with a reset, as a process that died with unread data does."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()
