"""Parse the frames in a stream of bytes by RFC 6455, without extensions.

`read_frames` reads the frames of a client (masked) or of a server (unmasked), up to the first framing error.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Literal

Side = Literal["client", "server"]
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LONGEST_CONTROL = 125
PROTOCOL_ERROR, INVALID_DATA, TOO_BIG, POLICY = 1002, 1007, 1009, 1008


@dataclass
class Frames:
    """The contents of a stream of frames.

    Attributes:
        messages: Complete messages; text as str.
        close: Code and reason of the close frame. 1005: without a code.
        faults: Valid close codes for the error, empty for a valid stream.
        choices: Codes with which a server may close without an error: a length longer than necessary, or a close frame
            within a message.
        why: Description of the error.
        is_inside: Whether the stream ends within a frame or a fragmented message.
    """

    messages: list[str | bytes] = field(default_factory=list)
    pings: list[bytes] = field(default_factory=list)
    pongs: list[bytes] = field(default_factory=list)
    close: tuple[int, str] | None = None
    faults: frozenset[int] = frozenset()
    choices: frozenset[int] = frozenset()
    why: str = ""
    is_inside: bool = False
    fragments: int = 0


class _Fault(Exception):
    """`is_unfinished`: the frame is incomplete, and a server may wait for its rest before it checks."""

    def __init__(self, why: str, *codes: int) -> None:
        super().__init__(why)
        self.codes = frozenset(codes or (PROTOCOL_ERROR,))
        self.is_unfinished = False


@dataclass(frozen=True)
class _Frame:
    is_final: bool
    opcode: int
    payload: bytes
    is_minimal: bool


def read_frames(data: bytes, side: Side, largest: int = 1 << 20) -> Frames:
    """Read frames up to the end, the close frame or the first error.

    Args:
        side: The sender.
        largest: Bytes of a message. A larger one is an error, code 1009.
    """
    reported = Frames()
    at = 0
    pieces: list[bytes] | None = None
    kind, total = TEXT, 0
    try:
        while at < len(data):
            parsed = _frame(data, at, side, largest)
            if parsed is None:
                reported.is_inside = True
                break
            frame, at = parsed
            if not frame.is_minimal:
                reported.choices = frozenset({PROTOCOL_ERROR})
            if frame.opcode >= CLOSE:
                _take_control(reported, frame)
                if reported.close is not None:
                    break
                continue
            if (frame.opcode == CONTINUATION) != (pieces is not None):
                raise _Fault("a message inside another, or a continuation of none")
            if pieces is None:
                pieces, kind, total = [], frame.opcode, 0
            pieces.append(frame.payload)
            total += len(frame.payload)
            reported.fragments = max(reported.fragments, len(pieces))
            if total > largest:
                raise _Fault("a message too large", TOO_BIG)
            if frame.is_final:
                _take_message(reported, kind, b"".join(pieces))
                pieces = None
    except _Fault as fault:
        reported.faults |= fault.codes
        reported.why = reported.why or str(fault)
        reported.is_inside = reported.is_inside or fault.is_unfinished
    if pieces is not None:
        reported.is_inside = True
        if reported.close is not None:
            reported.choices |= {PROTOCOL_ERROR}
    return reported


def _frame(data: bytes, at: int, side: Side, largest: int) -> tuple[_Frame, int] | None:
    """Return the frame at a position and the position after it, or None if the stream ends first."""
    if len(data) - at < 2:
        return None
    first, second = data[at], data[at + 1]
    opcode, size = first & 15, second & 127
    begin, width = at + 2, {126: 2, 127: 8}.get(second & 127, 0)
    at = begin + width
    if width:
        size = int.from_bytes(data[begin:at], "big")
    mask = data[at : at + 4] if second & 128 else b"\0\0\0\0"
    at += 4 if second & 128 else 0
    is_whole = len(data) >= at + size
    try:
        _check_head(first, second, side)
        if len(data) >= begin + width:
            _check_size(size, width, largest)
    except _Fault as fault:
        fault.is_unfinished = not is_whole
        raise
    if not is_whole:
        return None
    is_minimal = size >= {0: 0, 2: 126, 8: 65_536}[width]
    return _Frame(bool(first & 128), opcode, unmask(data[at : at + size], mask), is_minimal), at + size


def _check_head(first: int, second: int, side: Side) -> None:
    opcode = first & 15
    if first & 0x70:
        raise _Fault("a reserved bit")
    if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
        raise _Fault("a reserved opcode")
    if bool(second & 128) != (side == "client"):
        raise _Fault("a mask on the wrong side")
    if opcode >= CLOSE and (second & 127 > LONGEST_CONTROL or not first & 128):
        raise _Fault("a control frame that is long or fragmented")


def _check_size(size: int, width: int, largest: int) -> None:
    if width == 8 and size >> 63:
        raise _Fault("a length with its first bit set", PROTOCOL_ERROR, TOO_BIG)
    if size > largest:
        raise _Fault("a frame too large", TOO_BIG, PROTOCOL_ERROR)


def _take_control(reported: Frames, frame: _Frame) -> None:
    if frame.opcode == PING:
        reported.pings.append(frame.payload)
    elif frame.opcode == PONG:
        reported.pongs.append(frame.payload)
    else:
        reported.close = _closing(frame.payload)


def _closing(payload: bytes) -> tuple[int, str]:
    if not payload:
        return 1005, ""
    if len(payload) == 1:
        raise _Fault("half a close code")
    (code,) = struct.unpack("!H", payload[:2])
    try:
        reason = payload[2:].decode()
    except UnicodeDecodeError:  # either error may be detected first, whatever the code
        raise _Fault("a reason that is not UTF-8", INVALID_DATA, PROTOCOL_ERROR) from None
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        raise _Fault("a close code that nobody may send")
    return code, reason


def _take_message(reported: Frames, kind: int, payload: bytes) -> None:
    """Add a message. After one that is not UTF-8 only pings and further errors count.

    A server may parse all frames of a read before it decodes their text.
    """
    if kind == BINARY:
        message: str | bytes = payload
    else:
        try:
            message = payload.decode()
        except UnicodeDecodeError:
            reported.faults |= {INVALID_DATA}
            reported.why = reported.why or "text that is not UTF-8"
    if not reported.faults:
        reported.messages.append(message)


def unmask(payload: bytes, mask: bytes) -> bytes:
    """Mask or unmask a payload (5.3)."""
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(len(payload), "big")
