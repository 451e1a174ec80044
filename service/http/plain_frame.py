"""Parse and build WebSocket frames (RFC 6455) with a complete, short text message. Nearly all frames of live streams
have this form.

Other frames are parsed by the websockets package, which takes five times as long per frame.
"""

from __future__ import annotations

from typing import Final

from websockets.frames import apply_mask

WHOLE_TEXT: Final = 0x81  # FIN and the text opcode
MASKED: Final = 0x80
# A length below SHORT takes one byte, a length below MEDIUM two more bytes, and a greater length eight more bytes.
SHORT, MEDIUM = 126, 65_536
LONG_FORM: Final = 127


def lone_text(data: bytes) -> bytes | None:
    """Return the text if the bytes are exactly one complete text frame from a client. Otherwise, return None."""
    if len(data) < 6 or data[0] != WHOLE_TEXT:
        return None
    size, start = data[1] - MASKED, 2
    if size == SHORT:
        size, start = int.from_bytes(data[2:4], "big"), 4
        if size < SHORT:
            return None
    if not 0 <= size < MEDIUM or len(data) != start + 4 + size or (start == 2 and size >= SHORT):
        return None
    return apply_mask(data[start + 4 :], data[start : start + 4])


def text_frame(payload: bytes) -> bytes:
    """Return the frame with which a server sends a text message."""
    size = len(payload)
    if size < SHORT:
        return bytes((WHOLE_TEXT, size)) + payload
    if size < MEDIUM:
        return bytes((WHOLE_TEXT, SHORT)) + size.to_bytes(2, "big") + payload
    return bytes((WHOLE_TEXT, LONG_FORM)) + size.to_bytes(8, "big") + payload


def frame_size(payload: int) -> int:
    """Return the minimum size of a frame from a client with a payload of the given size. A frame can be larger, because
    clients may encode the length with more bytes than necessary."""
    return 6 + payload + (0 if payload < SHORT else 2 if payload < MEDIUM else 8)
