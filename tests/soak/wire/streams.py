"""Byte streams of clients: valid requests and at most one oddity, each with what must become of it.

A case is a function of the seed and its number. Tables state the outcome of every oddity by the RFCs 9110, 9112 and
6455, so no parser has to agree with the server's.

    answered   its answer comes, under its own id
    refused    at most one error comes, and nothing after it
    either     a choice that an RFC leaves to the server, which may also close the connection after its answer
    unknown    random changes: only the laws of all streams apply
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.soak.requests import BINARY, CLOSE, CONTINUATION, PING, TEXT, frame, message
from tests.soak.wire.cases import KEY, OPTIONS, Case, End, Maker, Outcome, Part, Truth, post, request

ANY_CLOSE = frozenset({1000, 1002, 1003, 1007, 1008, 1009, 1013})

# Oddities of the framing, by outcome. {n} is the right length.

LENGTHS: Mapping[Outcome, Sequence[str]] = {
    "answered": ("{n}", "0{n}", "{n}\t"),
    "either": ("{n}, {n}", "{n},{n}", "00000000000000000000{n}", "{n}\r\nContent-Length: {n}"),
    "refused": (
        "+{n}", "-{n}", "{n}, 0{n}", "{n},", ",{n}", "{n} {n}", "{n};", "{n}.0", "0x{n:x}", "{n}e0", "", " ",
        "\x0b{n}", "{n}\x00", "{n}_0", "nine", "9223372036854775808", "18446744073709551616", "-1", "\r\n {n}",
        "\u00b2", '"{n}"', "{n}\r\nContent-Length: 1{n}", "{n}\r\ncontent-length: 0",
    ),
}  # fmt: skip
CODINGS: Mapping[Outcome, Sequence[bytes]] = {
    "answered": (b": chunked", b": Chunked", b":\tcHuNkEd\t", b":chunked "),
    "either": (b": chunked,", b": ,chunked", b": , ,chunked"),
    "refused": (
        b": \x0bchunked", b": chunked\x00", b": chunked\x0c", b": xchunked", b": chunkedx", b": chunked;q=1",
        b": gzip", b": identity", b": chunked, identity", b": identity, chunked", b": gzip, chunked", b":",
        b": chunked, gzip", b": chunked, chunked", b": chunked chunked", b': "chunked"', b": \r\n chunked",
        b": chunked\r\n , gzip", b": chunke\xc4\x8f", b": chu\rnked", b" : chunked", b"\t: chunked",
        b": chunked\r\nTransfer-Encoding: gzip", b": gzip\r\nTransfer-Encoding: chunked",
    ),
}  # fmt: skip
SIZES: Mapping[Outcome, Sequence[str]] = {
    "answered": ("{n:x}", "{n:X}", "0{n:x}", "{n:x};a", "{n:x};a=b", '{n:x};a="b;c"'),
    "either": (
        "00000000{n:x}", "000000000000000000000000{n:x}", "{n:x} ;a", "{n:x}; a = b", "{n:x};", "{n:x};;;", "{n:x} ",
        "{n:x};a=\x00", "{n:x};" + "a" * 300, "{n:x};" + "b" * 9000, "{n:x}\t",
    ),
    "refused": (
        "{n:x};a\nb", " {n:x}", "0x{n:x}", "+{n:x}", "-{n:x}", "{n}g", "", "ffffffffffffffff1", "{n:x},{n:x}", "-1",
        "{n:x}_0", "{n:x}.0", "{n:x}h", "\u0661",
    ),
}  # fmt: skip
TRAILERS: Mapping[Outcome, Sequence[bytes]] = {
    "answered": (b"X-A: b\r\n", b"X-A: b\r\nX-B:\r\n", b"Connection: close\r\n", b"Host: other.example\r\n"),
    "either": (
        b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"X-A: b\r\n c\r\n", b"X-A: \x01\r\n", b"X-A: b\n",
        b"".join(b"X-%d: a\r\n" % number for number in range(1_000)), b"Upgrade: websocket\r\n",
    ),
    "refused": (b"X Y: z\r\n", b"X-A\r\n", b"X-A : b\r\n", b"X-A: \x00\r\n", b"\x00: b\r\n", b": b\r\n", b"0\r\n"),
}  # fmt: skip
LINES: Mapping[Outcome, Sequence[bytes]] = {
    "answered": (
        b"x: y", b"X!#$%&'*+-.^_`|~9: x", b"X_Y: z", b"0: x", b"a" * 200 + b": x", b"Content_Length: 7", b"X-A:",
        b"TE: trailers", b"X-A: a,,,b", b'X-A: "a', b"X-A: \t a \t", b"X-A: \xff\xfe", b"X-A: " + b"a" * 3000,
    ),
    "refused": (
        b": x", b"X Y: x", b"X-Y : x", b"X\tY: x", b"X\x00Y: x", b"X\x7fY: x", b"X\xe9: x", b"X(: x", b"X/Y: x",
        b"[X]: x", b'"X": x', b"\xef\xbb\xbfX: x", b"X{}: x", b"x", b"X-A: a\x00b", b"X-A: a\rb", b"X-A: a\x01",
        b"X-A: \x7f", b"X-A: a\x1b[0m", b"X-A: a\r\n b", b"X-A: a\r\n\t", b"X-A: a\n b", b"X-A: a\nX-B: b",
        b"X-A: a\r\r\nX-B: b", b"Host: 127.0.0.1", b"Host: other.example",
    ),
}  # fmt: skip
HOSTS = (b"", b"127.0.0.1:x", b"other.example", b"u@127.0.0.1", b"a b", b"[::1", b"127.0.0.1\x00", b"\xc3\xa9")
STARTS: Mapping[Outcome, Sequence[bytes]] = {
    "either": (
        *(method + b" /health HTTP/1.1" for method in (b"PUT", b"TRACE", b"CONNECT", b"PRI", b"get", b"FOO", b"M-X")),
        *(b"GET " + target + b" HTTP/1.1" for target in (
            b"/health?x=1?y=/../#", b"//health", b"/%68ealth", b"/h%", b"/%00", b"/nope/../health", b"/<x>", b"/a|b",
            b"*", b"http://127.0.0.1/health", b"http://127.0.0.1", b"https://127.0.0.1/nope", b"ftp://127.0.0.1/",
            b"http://other.example/health", b"http:///health", b"127.0.0.1:80", b"health", b"?x", b"/" + b"a" * 3000,
            b"/" + b"a" * 70_000,
        )),
        b"GET /health HTTP/1.0", b"GET /health HTTP/1.9", b"\r\nGET /health HTTP/1.1",
    ),
    "refused": (
        *(method + b" /health HTTP/1.1" for method in (b"GET!@", b"\x00GET", b"G\xc3\x8bT", b"", b" GET")),
        *(b"GET " + target + b" HTTP/1.1" for target in (b"/\xc3\xa9", b"/a b", b"", b"/health\x7f", b"/he\tlth")),
        *(b"GET /health " + version for version in (
            b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.10", b"HTTP/01.1", b"HTTP/1", b"http/1.1", b"HTTP/1.1 ", b"HTTP /1.1",
            b"HTTP/1,1", b"HTTPS/1.1", b"", b"HTTP/1.1\rX: y", b"HTTP/1.1\nX: y", b"HTTP/1.1 x",
        )),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x", b"HTTP/1.1 200 OK",
    ),
}  # fmt: skip


def pick(maker: Maker, table: Mapping[Outcome, Sequence[Any]]) -> tuple[Outcome, Any]:
    """Choose an outcome, and one of its oddities."""
    outcome = maker.choose(list(table))
    return outcome, maker.choose(table[outcome])


def lengths(maker: Maker) -> Part:
    """Content-Length, right and wrong."""
    outcome, text = pick(maker, LENGTHS)
    name, body, target = maker.new_id(), maker.bait(), maker.choose((b"/filter", b"/nope", b"/health"))
    value = text.format(n=len(body)).encode()
    return maker.odd(post(name, b"Content-Length: " + value, target=target), body, outcome, name)


def codings(maker: Maker) -> Part:
    """Transfer-Encoding, right and wrong."""
    outcome, text = pick(maker, CODINGS)
    name, body = maker.new_id(), maker.chunked(maker.bait()) + b"\r\n"
    return maker.odd(post(name, b"Transfer-Encoding" + text), body, outcome, name)


def both(maker: Maker) -> Part:
    """Content-Length beside Transfer-Encoding: each hides a request from the other's reader."""
    bait = maker.bait()
    body = maker.choose((b"0\r\n\r\n" + bait, maker.chunked(bait) + b"\r\n"))
    length = maker.choose((len(body), body.index(b"\r\n") + 2))
    fields = [b"Content-Length: %d" % length, b"Transfer-Encoding: chunked"]
    maker.rng.shuffle(fields)
    return maker.odd(post(maker.new_id(), *fields), body, "refused")


def chunks(maker: Maker) -> Part:
    """Sizes of chunks, and line ends after them."""
    outcome, size = pick(maker, SIZES)
    name, (body, steps) = maker.new_id(), maker.series()
    end = b"\r\n"
    if outcome == "refused" and maker.rng.random() < 0.3:
        size, end = "{n:x}", maker.choose((b"\r", b"\r\r\n", b"", b"X\r\n"))
    data = size.format(n=len(body)).encode() + b"\r\n" + body + end + b"0\r\n\r\n"
    if end == b"":
        data = data.replace(body, body + b"ab")
    statuses = frozenset({200}) if outcome == "answered" else frozenset()
    return maker.odd(post(name, b"Transfer-Encoding: chunked"), data, outcome, name, steps=steps, statuses=statuses)


def trailers(maker: Maker) -> Part:
    """Trailers. A key in them authenticates nobody."""
    outcome, lines = pick(maker, TRAILERS)
    name, (body, steps), key = maker.new_id(), maker.series(), maker.choose((KEY, None))
    lines += b"" if key else b"X-API-Key: %s\r\nAuthorization: Bearer %s\r\n" % (KEY.encode(), KEY.encode())
    head = post(name, b"Transfer-Encoding: chunked", key=key)
    allowed = {200} if key and outcome == "answered" else set() if key else {400, 401, 431}
    more = {"statuses": frozenset(allowed), "steps": steps if key else None}
    return maker.odd(head, maker.chunked(body) + lines + b"\r\n", outcome, name, **more)


def fields(maker: Maker) -> Part:
    """Names and values of fields, and hosts."""
    outcome, line = pick(maker, LINES)
    name = maker.new_id()
    head = request(b"GET", maker.choose((b"/health", b"/nope")), name, b"A: b", line)
    if maker.rng.random() < 0.2:
        outcome, head = "either", head.replace(b"Host: 127.0.0.1", b"Host: " + maker.choose(HOSTS), 1)
    return Part((head,), outcome, name)


def starts(maker: Maker) -> Part:
    """Request lines."""
    outcome, line = pick(maker, STARTS)
    name = maker.new_id()
    return Part((request(b"GET", b"/", name).replace(b"GET / HTTP/1.1", line, 1),), outcome, name)


def upgrades(maker: Maker) -> Part:
    """Upgrades that the server does not make, with a bait as the body."""
    name, body = maker.new_id(), maker.bait()
    connection = maker.choose((b"Upgrade", b"upgrade, HTTP2-Settings", b"keep-alive, Upgrade", b"x"))
    offer = maker.choose((b"h2c", b"foo", b"TLS/1.0", b"websocket2", b"h2c, websocket", b"", b"websocket", b"foo/\xff"))
    more = [b"Connection: " + connection, b"Upgrade: " + offer, b"Sec-WebSocket-Version: 13"]
    if maker.rng.random() < 0.5:
        more.append(b"Transfer-Encoding: chunked")
        body = maker.chunked(body) + b"\r\n"
    else:
        more.append(b"Content-Length: %d" % len(body))
    head = request(maker.choose((b"POST", b"GET", b"PUT")), maker.choose((b"/nope", b"/filter/stream")), name, *more)
    return maker.odd(head, body, "either", name)


def expectations(maker: Maker) -> Part:
    """Expect."""
    name, (body, steps) = maker.new_id(), maker.series()
    value = maker.choose((b"100-continue", b"100-Continue", b"200-ok", b"", b"100-continue, x"))
    head = post(name, b"Expect: " + value, b"Content-Length: %d" % len(body))
    return maker.odd(head, body, "either", name, steps=steps, expects=True)


def changed(maker: Maker) -> Part:
    """Valid requests with some bytes replaced, removed or repeated."""
    some = [part for part in (maker.honest() for _ in range(4)) if not part.is_head]
    data = bytearray(b"".join(piece for part in some for piece in part.pieces)) or bytearray(b"\0")
    for _ in range(maker.rng.randint(1, 3)):
        place, size = maker.rng.randrange(len(data)), maker.rng.randrange(8)
        noise = maker.choose((b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"\xff", bytes(data[place : place + 40])))
        data[place : place + size] = maker.choose(
            (noise, b"", bytes(value ^ 1 for value in data[place : place + size]))
        )
    return Part((bytes(data),), "unknown")


# WebSockets.


def lies(maker: Maker) -> tuple[bytes, frozenset[int]]:
    """Return faulty frames, and the codes with which the server may close."""
    text, protocol = b'{"y": [0.5, 0.25]}', frozenset({1002})
    return maker.choose((
        (b"\x81%c%s" % (len(text), text), protocol),  # not masked
        (frame(text, 0x40 | TEXT), protocol), (frame(text, maker.choose((3, 7, 11, 15))), protocol),
        (frame(b"x", PING, is_final=False), protocol), (frame(b"x" * maker.choose((126, 70_000)), PING), protocol),
        (frame(text, CONTINUATION), protocol), (frame(text, is_final=False) + frame(text), protocol),
        (frame(maker.choose((b"\x03", b"\x03\xed", b"\0\0")), CLOSE), protocol),
        (frame(maker.choose((b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"))), frozenset({1007})),
        (frame(b"\x03\xe8\xff", CLOSE), frozenset({1002, 1007})),
        (b"\x81\xff\xff" + b"\xff" * 7 + bytes(4), frozenset({1002, 1009})),
        (frame(b" " * 600_000), frozenset({1009})), (frame(b"\0", BINARY), ANY_CLOSE),
        (frame(maker.choose((b"{", b"null", b"[]", b'{"y": 1}'))), ANY_CLOSE),
        (frame(b"a", is_final=False) + frame(b"a", CONTINUATION, is_final=False) * 3_000, ANY_CLOSE),
    ))  # fmt: skip


def live_streams(maker: Maker) -> Part:
    """A handshake, observations, and a fault or the right end."""
    name, (frames, steps) = maker.new_id(), maker.frames()
    frames.insert(0, message(OPTIONS))
    if maker.rng.random() < 0.3:
        frames.insert(maker.rng.randrange(len(frames)), frame(b"ping", PING))
    lie, codes = (b"", frozenset({1000})) if maker.rng.random() < 0.4 else lies(maker)
    data = b"".join(frames) + lie + message({"close": True})
    return Part((handshake(name), data), "answered", name, frozenset({101}), steps, codes)


def handshake(name: str) -> bytes:
    """Return a valid handshake."""
    fields = (b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13")
    return request(b"GET", b"/filter/stream", name, *fields, b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")


def strange_handshakes(maker: Maker) -> Part:
    """Handshakes with a fault, and frames after them that must not be read as requests."""
    name = maker.new_id()
    old, new = maker.choose((
        (b"Version: 13", b"Version: 12"), (b"Version: 13", b"Version: 13, 8"), (b"ZQ==", b"Z"), (b"ZQ==", b"ZQ== x"),
        (b"Upgrade: websocket", b"Upgrade: web socket"), (b"Key: ", b"Key: x\r\nSec-WebSocket-Key: "),
        (b"/filter/stream", b"/health"), (b"/filter/stream", b"/nope"), (b"Connection: Upgrade", b"Connection: x"),
        (b"GET ", b"POST "), (b"HTTP/1.1", b"HTTP/1.0"), (KEY.encode(), b"x"),
    ))  # fmt: skip
    head = handshake(name).replace(old, new, 1)
    data = b"" if maker.rng.random() < 0.5 else frame(maker.bait())
    return maker.odd(head, data, "unknown" if data else "either", name)


Odd = Callable[[Maker], Part]
ODDITIES: tuple[Odd, ...] = (
    Maker.honest, lengths, codings, both, chunks, trailers, fields, starts, upgrades, expectations, changed,
    live_streams, strange_handshakes,
)  # fmt: skip


def make_case(seed: int, index: int, truth: Truth) -> Case:
    """Return the case of a number: valid requests, an oddity, and valid requests, the last of which closes."""
    maker = Maker(seed, index, truth)
    odd = maker.choose(ODDITIES)
    parts = [maker.honest() for _ in range(maker.choose((0, 0, 1, 2)))] + [odd(maker)]
    is_stream = bool(parts[-1].codes)
    if not is_stream:
        parts += [maker.honest() for _ in range(maker.choose((0, 0, 1, 40)))]
        parts.append(maker.honest(b"Connection: close"))
    ends: tuple[End, ...] = ("wait", "half-close", "reset", "leave")
    end = maker.rng.choices(ends, (80, 10, 5, 5))[0]
    if any(part.outcome == "unknown" for part in parts) and end == "wait":
        end = "half-close"  # the server may be waiting for more
    cuts = maker.choose((0, 0, 0, 1, 3, 12))
    return Case(index, odd.__name__, tuple(parts), cuts, "wait" if is_stream and end == "half-close" else end)
