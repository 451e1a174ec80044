"""Requests and WebSocket frames of a client, as bytes."""

from __future__ import annotations

import base64
import json
import secrets
import struct
from typing import Any

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 1, 2, 8, 9, 10, 0


def head(method: str, path: str, *lines: str) -> bytes:
    """Return a request head."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def post(path: str, document: Any, *lines: str) -> bytes:
    """Return a request. If `document` is bytes, it is already JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return head("POST", path, "Content-Type: application/json", f"Content-Length: {len(body)}", *lines) + body


def handshake() -> bytes:
    """Return a WebSocket handshake."""
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    return (
        f"GET /filter/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()


def frame(payload: bytes, opcode: int = TEXT, *, is_final: bool = True) -> bytes:
    """Return a WebSocket frame of a client, masked with zeros."""
    first = (0x80 if is_final else 0) | opcode
    size = len(payload)
    if size < 126:
        length = struct.pack("!B", 0x80 | size)
    elif size < 65_536:
        length = struct.pack("!BH", 0x80 | 126, size)
    else:
        length = struct.pack("!BQ", 0x80 | 127, size)
    return bytes([first]) + length + bytes(4) + payload


def message(document: Any) -> bytes:
    """Return a text frame with JSON."""
    return frame(json.dumps(document).encode())
