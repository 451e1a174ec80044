"""Live streams with valid and invalid handshakes and frames."""

from __future__ import annotations

import struct

from tests.soak.wire.application import FIRST_FRAME, LAST_FRAME, STRAY_FRAME
from tests.soak.wire.case import WAIT, Part, Step
from tests.soak.wire.maker import Maker
from tests.soak.wire.rfc6455 import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, unmask

KEYS = (
    b"", b"x", b"dGhlIHNhbXBsZSBub25jZQ", b"dGhlIHNhbXBsZSBub25jZQ=", b"dGhlIHNhbXBsZSBub25jZTE=", b"AAAA", b"!" * 24,
    b"dGhlIHNhbXBsZSBub25jZQ== x", b"dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
GOOD_KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
STREAM_VERSIONS = (b"12", b"8", b"0", b"", b"13, 8", b"13\r\nSec-WebSocket-Version: 8", b"+13", b"013", b"99999999999")
EXTRAS = (
    b"Sec-WebSocket-Extensions: permessage-deflate",
    b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99", b"Sec-WebSocket-Extensions: ;;,",
    b"Sec-WebSocket-Extensions: " + b"x, " * 300 + b"y", b"Sec-WebSocket-Protocol: a, b",
    b"Sec-WebSocket-Protocol: \xff", b"Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: b",
    b"Sec-WebSocket-Accept: x", b"Sec-WebSocket-Protocol: ,", b"Content-Length: 0", b"Transfer-Encoding: chunked",
    b"Expect: 100-continue", b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
)  # fmt: skip
CODES = (
    0,
    1,
    999,
    1000,
    1001,
    1002,
    1003,
    1004,
    1005,
    1006,
    1007,
    1008,
    1011,
    1012,
    1015,
    1016,
    2999,
    3000,
    4999,
    5000,
    65535,
)
BAD_TEXTS = (
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b'{"y": [1.0, "\xe9"]}',
    b"\xe2\x82",
    b"{",
    b"",
    b"null",
    b"[]",
    b'{"y": 1}',
)


def handshake(maker: Maker, *, path: bytes = b"/filter/stream", **replaced: bytes) -> bytes:
    """Return a handshake. `extra` lines are added to it."""
    fields = [
        b"Connection: " + replaced.get("connection", b"Upgrade"),
        b"Upgrade: " + replaced.get("upgrade", b"websocket"),
        b"Sec-WebSocket-Version: " + replaced.get("version", b"13"),
        b"Sec-WebSocket-Key: " + replaced.get("key", GOOD_KEY),
    ]
    if "extra" in replaced:
        fields.append(replaced["extra"])
    return maker.head(replaced.get("method", b"GET"), path, fields)


def frame(
    maker: Maker,
    payload: bytes,
    opcode: int = TEXT,
    *,
    first: int = 0x80,
    is_masked: bool = True,
    width: int | None = None,
) -> bytes:
    """Return a frame. `width` is that of its length in bytes (0, 2 or 8), by default the smallest."""
    size, mask = len(payload), maker.below(2**32).to_bytes(4, "big")
    if width is None:
        width = 0 if size < 126 else 2 if size < 65_536 else 8
    flag = 0x80 if is_masked else 0
    length = (
        bytes([flag | size]) if width == 0 else bytes([flag | {2: 126, 8: 127}[width]]) + size.to_bytes(width, "big")
    )
    return bytes([first | opcode]) + length + (mask + unmask(payload, mask) if is_masked else payload)


def strange_handshake(maker: Maker) -> list[Part]:
    """Return an invalid handshake followed by frames that a server might read as requests, or the reverse."""
    manner = maker.below(9)
    behind: bytes = frame(maker, FIRST_FRAME.encode()) + frame(maker, LAST_FRAME.encode())
    if manner == 0:
        head = handshake(maker, key=maker.choose(KEYS))
    elif manner == 1:
        head = handshake(maker, version=maker.choose(STREAM_VERSIONS))
    elif manner == 2:
        head = handshake(maker, extra=maker.choose(EXTRAS))
    elif manner == 3:
        head = handshake(
            maker, path=maker.choose((b"/health", b"/nope", b"/filter", b"/filter/stream?x", b"/filter/stream/"))
        )
    elif manner == 4:
        head = handshake(
            maker, connection=maker.choose((b"keep-alive", b"close", b"upgrade, close", b"Upgrade, Upgrade", b"x"))
        )
    elif manner == 5:
        head = handshake(
            maker, upgrade=maker.choose((b"WebSocket", b"websocket, h2c", b"h2c, websocket", b"web socket", b""))
        )
    elif manner == 6:
        head = handshake(maker, method=maker.choose((b"POST", b"HEAD", b"OPTIONS", b"GET ", b"CONNECT", b"PUT")))
    elif manner == 7:
        body = maker.bait()
        head = handshake(maker, extra=b"Content-Length: %d" % len(body)) + body
    else:
        head = handshake(maker).replace(b"HTTP/1.1", maker.choose((b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0")), 1)
    return [head, WAIT] if maker.chance(0.6) else [head, WAIT, behind]


def live_stream(maker: Maker) -> list[Part]:
    """Return a stream of observations with at most one error and a random end."""
    parts: list[Part] = [handshake(maker), WAIT]  # RFC 6455, 4.1: nothing before the answer
    series = maker.series()
    texts = [FIRST_FRAME.encode(), *(maker.truth.frame(series, k).encode() for k in range(maker.below(3)))]
    frames = [_reported(maker, text) for text in texts]
    if maker.chance(0.6):
        frames.insert(1 + maker.below(len(frames)), _lie(maker))
    frames.append(_ending(maker))
    if maker.chance(0.3):
        frames.append(frame(maker, b"{}"))
    parts += frames
    if maker.chance(0.03):
        parts.insert(-1, Step("deaf"))
        parts.insert(-1, frame(maker, b"p" * 125, PING) * 2_000)
    return parts


def _reported(maker: Maker, text: bytes) -> bytes:
    """Return a message, whole or in valid fragments with pings between them."""
    if maker.chance(0.75) or len(text) < 2:
        return frame(maker, text)
    cut = 1 + maker.below(len(text) - 1)
    between = frame(maker, b"between", PING) if maker.chance(0.5) else b""
    return (
        frame(maker, text[:cut], first=0) + between + frame(maker, b"", CONTINUATION, first=0) * maker.below(3)
        + frame(maker, text[cut:], CONTINUATION)
    )  # fmt: skip


def _ending(maker: Maker) -> bytes:
    manner = maker.below(8)
    if manner < 5:
        return frame(maker, LAST_FRAME.encode())
    if manner == 5:
        return frame(maker, struct.pack("!H", maker.choose(CODES)) + b"bye", CLOSE)
    return frame(maker, maker.choose((b"", b"\x03", struct.pack("!H", 1000), struct.pack("!H", 1000) + b"\xff")), CLOSE)


def _lie(maker: Maker) -> bytes:
    text = STRAY_FRAME.encode()
    manner = maker.below(17)
    if manner == 0:
        return frame(maker, text, is_masked=False)
    if manner == 1:
        return frame(maker, text, first=0x80 | maker.choose((0x40, 0x20, 0x10, 0x70)))
    if manner == 2:
        return frame(maker, text, maker.choose((3, 4, 5, 6, 7, 11, 12, 13, 14, 15)))
    if manner == 3:
        return frame(maker, b"x" * maker.choose((0, 5)), maker.choose((PING, PONG, CLOSE)), first=0)
    if manner == 4:
        return frame(maker, b"x" * maker.choose((126, 200, 70_000)), maker.choose((PING, PONG, CLOSE)))
    if manner == 5:
        return frame(maker, text, CONTINUATION)
    if manner == 6:
        return frame(maker, text, first=0) + frame(maker, text)
    if manner == 7:
        return frame(maker, maker.choose(BAD_TEXTS))
    if manner == 8:
        return frame(maker, text, BINARY)
    if manner == 9:  # a wrong length
        head = b"\x81" + maker.choose(
            (b"\xff" + b"\xff" * 8, b"\xff" + b"\x7f" + b"\xff" * 7, b"\xff\0\0\0\0\x10\0\0\0", b"\xfe\xff\xff")
        )
        return head + b"\0\0\0\0" + text
    if manner == 10:
        return frame(maker, text, width=maker.choose((2, 8)))  # longer than necessary
    if manner == 11:
        return frame(maker, b"ping", PING) * maker.choose((1, 3, 40))
    if manner == 12:
        return frame(maker, b"pong", PONG)
    if manner == 13:
        return frame(maker, b"\xe2", first=0) + frame(maker, maker.choose((b"\x82\xac", b"\x82", b"x")), CONTINUATION)
    if manner == 14:
        return frame(maker, b"a", first=0) + frame(maker, b"a", CONTINUATION, first=0) * maker.choose((5, 3_000))
    if manner == 15:
        return frame(maker, b" " * maker.choose((5_000, 300_000, 600_000)))
    return bytes(maker.below(256) for _ in range(1 + maker.below(20)))
