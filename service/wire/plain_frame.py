"""Frames of RFC 6455 in their plainest form: a short text in a frame of its own, as nearly all of a live stream are.

The parser takes any stream of bytes; of frames that come one by one it needs five times as long for each as this does.
What is not exactly of this form is the parser's.
"""

from __future__ import annotations

from typing import Final

from websockets.frames import apply_mask

WHOLE_TEXT: Final = 0x81  # fin, and the opcode
MASKED: Final = 0x80
# Lengths are one byte up to here, then two, then eight.
SHORT, MEDIUM = 126, 65_536
LONG_FORM: Final = 127


def lone_text(data: bytes) -> bytes | None:
    """The text of a client's frame, if the bytes are that frame, whole and alone; None if they are anything else."""
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
    """A text as the server sends it."""
    size = len(payload)
    if size < SHORT:
        return bytes((WHOLE_TEXT, size)) + payload
    if size < MEDIUM:
        return bytes((WHOLE_TEXT, SHORT)) + size.to_bytes(2, "big") + payload
    return bytes((WHOLE_TEXT, LONG_FORM)) + size.to_bytes(8, "big") + payload


def frame_size(payload: int) -> int:
    """Bytes of a client's frame around so many, at least: lengths may be written longer than they need to be."""
    return 6 + payload + (0 if payload < SHORT else 2 if payload < MEDIUM else 8)
