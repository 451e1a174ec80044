"""Oddities: invalid framing that a client may send among valid requests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tests.soak.wire.application import KEY
from tests.soak.wire.case import WAIT, Part, Step
from tests.soak.wire.maker import Maker

METHODS = (
    b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"PRI", b"PROPFIND",
    b"M-SEARCH", b"LINK", b"get", b"FOO", b"G", b"GET!", b"\x00GET", b"G\xc3\x8bT", b"A" * 40,
)  # fmt: skip
TARGETS = (
    b"/health", b"/nope", b"/filter", b"/filter/stream", b"/health?x=1", b"/health?x=1?y=/../#", b"//health",
    b"/health/", b"/%68ealth", b"/h%", b"/%00", b"/nope/../health", b"/nope;x=1", b"/\xc3\xa9", b"/a b", b"/<x>",
    b"/a|b", b"*", b"http://127.0.0.1/health", b"http://127.0.0.1:80/nope?x", b"HTTP://127.0.0.1/health",
    b"http://127.0.0.1", b"https://127.0.0.1/health", b"ftp://127.0.0.1/health", b"http://other.example/health",
    b"http:///health", b"http://u@127.0.0.1/health", b"127.0.0.1:80", b"127.0.0.1", b"health", b"", b"?x",
    b"/health\x7f", b"/he\tlth", b"/" + b"a" * 3000,
)  # fmt: skip
VERSIONS = (
    b"HTTP/1.0", b"HTTP/1.0", b"HTTP/1.0", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/3.0",
    b"HTTP/1.10", b"HTTP/01.1", b"HTTP/1", b"HTTP/1.", b"http/1.1", b"HTTP/1.1 ", b"HTTP /1.1", b"HTTP/1,1",
    b"HTTPS/1.1", b"", b"RTSP/1.1",
)  # fmt: skip
LENGTHS = (
    "{n}", "{n}", "0{n}", "000000{n}", "00000000000000000000{n}", "+{n}", "-{n}", "{n}, {n}", "{n},{n}", "{n}, 0{n}",
    "{n},", ",{n}", "{n} {n}", "{n};", "{n}.0", "0x{n:x}", "{n}e0", "", " ", "{n}\t", "\x0b{n}", "{n}\x00", "{n}_0",
    "nine", "{more}", "{far}", "{less}", "0", "{n}, {more}", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "18446744073709551{wrap}", "99999999999999999999999999", "4294967296", "-1", "\r\n {n}",
    "{n}\r\n {n}", "\u00b2", '"{n}"',
)  # fmt: skip
CODINGS = (
    b"chunked", b"Chunked", b"CHUNKED", b"cHuNkEd", b"\tchunked\t", b"chunked ", b"chunked,", b",chunked",
    b", ,chunked", b"\x0bchunked", b"chunked\x00", b"chunked\x0c", b"xchunked", b"chunkedx", b"chunked;q=1",
    b"chunked; x", b"gzip", b"identity", b"chunked, identity", b"identity, chunked", b"gzip, chunked",
    b"chunked, gzip", b"chunked, chunked", b"chunked chunked", b"", b'"chunked"', b"\r\n chunked", b"\r\n\tchunked",
    b"chunked\r\n , gzip", b"gzip\r\n chunked", b"chunke\xc4\x8f", b"chu\rnked",
)  # fmt: skip
CODING_NAMES = (
    b"Transfer-Encoding", b"Transfer-Encoding", b"Transfer-Encoding", b"transfer-encoding", b"TRANSFER-ENCODING",
    b"Transfer-Encoding ", b"Transfer_Encoding", b"Transfer-Encoding\t", b" Transfer-Encoding",
    b"Transfer\x00-Encoding", b"TE",
)  # fmt: skip
UPGRADES = (
    b"h2c", b"h2c", b"foo", b"h2", b"HTTP/2.0", b"TLS/1.0", b"websocket2", b"h2c, websocket", b"IRC/6.9", b"",
    b"websocket", b"WebSocket/13", b"foo/\xff", b"h2c;q=1",
)  # fmt: skip
EXPECTATIONS = (
    b"100-continue", b"100-continue", b"100-continue", b"100-Continue", b"200-ok", b"", b"100-continue, x",
    b"x=\"y\"", b"100-continue\r\nExpect: 100-continue", b"100 continue",
)  # fmt: skip
BAD_NAMES = (
    b"", b" ", b"X Y", b"X-Y ", b"X\tY", b"X\x00Y", b"X\x7fY", b"X\xe9", b"X(", b"X/Y", b"X@", b"[X]", b"X=",
    b"\"X\"", b"X\r", b"\xef\xbb\xbfX", b"X{}",
)  # fmt: skip
GOOD_NAMES = (
    b"x",
    b"X!#$%&'*+-.^_`|~9",
    b"X_Y",
    b"0",
    b"a" * 200,
    b"Content_Length",
    b"x-forwarded-for",
    b"TE",
    b"via",
)
BAD_VALUES = (
    b"a\x00b", b"a\rb", b"a\r\rb", b"a\x01", b"\x7f", b"a\x0bb", b"a\x1b[0m", b"\xff\xfe", b"a\xc3\xa9", b"\t a \t",
    b"", b"a\r\n b", b"a\r\n\t", b"a\n b", b"a\nX-Other: b", b"a\r\r\nX-Other: b", b"a\x85b", b"a,,,b", b'"a',
    b"a" * 3000, b"a\x00\r\nX-Other: b",
)  # fmt: skip
HOSTS: Sequence[Sequence[bytes]] = (
    [], [b""], [b"127.0.0.1", b"127.0.0.1"], [b"127.0.0.1", b"other.example"], [b"127.0.0.1 "], [b"127.0.0.1:80"],
    [b"127.0.0.1:x"], [b"127.0.0.1, other"], [b"other.example"], [b"127.0.0.1/health?"], [b"u@127.0.0.1"], [b"a b"],
    [b"[::1]:80"], [b"[::1"], [b"127.0.0.1\x00"], [b"http://127.0.0.1"], [b"127.0.0.1:"], [b"127.0.0.1:99999999"],
    [b"\xc3\xa9"],
)  # fmt: skip
SIZES = (
    "{n:x}", "{n:X}", "0{n:x}", "00000000{n:x}", "000000000000000000000000{n:x}", "{n:x};a", "{n:x};a=b",
    '{n:x};a="b;\\"c"', "{n:x} ;a", "{n:x}; a = b", "{n:x};", "{n:x};;;", "{n:x};a=\x00", "{n:x};a\rb", "{n:x};a\nb",
    "{n:x} ", "{n:x}\t", " {n:x}", "0x{n:x}", "+{n:x}", "-{n:x}", "{n}g", "", "{more:x}", "{less:x}", "ffffffff",
    "fffffffffffffffe", "ffffffffffffffff", "10000000000000000{n:x}", "{n:x},{n:x}", "{n:x}\r\n",
    "{n:x};" + "a" * 300, "{n:x};" + "b" * 9000, "-1", "{n:x}_0", "{n:x}.0", "{n:x}h", "\u0661",
)  # fmt: skip
ENDS = (
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"\n",
    b"\r",
    b"\n\r",
    b"\r\r\n",
    b"",
    b"\r\n\r\n",
    b" \r\n",
    b"X\r\n",
)
TRAILERS = (
    b"X-A: b\r\n", b"X-API-Key: " + KEY.encode() + b"\r\n", b"Authorization: Bearer " + KEY.encode() + b"\r\n",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: other.example\r\n",
    b"X-Request-ID: trailer\r\n", b"X Y: z\r\n", b"X-A\r\n", b"X-A : b\r\n", b" folded\r\n", b"X-A: b\r\n c\r\n",
    b"X-A: b\n", b"X-A: \x00\r\n", b"\x00: b\r\n", b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b": b\r\n", b"X-A: b\r\r\n", b"0\r\n",
    b"GET /health HTTP/1.1\r\n",
)  # fmt: skip
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n\r\n", b"\n", b"\r\n", b"\x00" * 20 + b"\r\n", b"SSH-2.0-x\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"GET  /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /health  HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b" GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET\t/health\tHTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /health HTTP/1.1\rHost: 127.0.0.1\r\r",
    b"GET /health HTTP/1.1\r\n Host: 127.0.0.1\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff\r\n\r\n",
    b"GET /health HTTP/1.1 x\r\nHost: 127.0.0.1\r\n\r\n",
    b"\xef\xbb\xbfGET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
)  # fmt: skip
# Of 200 kB each.
FLOOD_PIECES = 40


def methods(maker: Maker) -> list[Part]:
    """Any method, with and without a body."""
    method = maker.choose(METHODS)
    target = maker.choose((b"/health", b"/nope", b"/filter", b"127.0.0.1:80", b"*"))
    body = maker.bait() if maker.chance(0.4) else b""
    fields = [b"Content-Length: %d" % len(body)] if body else []
    return [maker.head(method, target, fields), body]


def targets(maker: Maker) -> list[Part]:
    """Every form of a target, valid and invalid."""
    return [maker.head(maker.choose((b"GET", b"GET", b"GET", b"OPTIONS", b"CONNECT")), maker.choose(TARGETS))]


def versions(maker: Maker) -> list[Part]:
    """Versions, some with a body or keep-alive."""
    body = maker.series_body() if maker.chance(0.4) else b""
    fields = [b"Connection: keep-alive"] if maker.chance(0.5) else []
    if body:
        fields += [b"Content-Type: application/json"]
        is_chunked = maker.chance(0.3)
        fields += [b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)]
        body = maker.chunked(body) if is_chunked else body
    head = maker.head(b"POST" if body else b"GET", b"/filter" if body else b"/health", fields)
    return [head.replace(b"HTTP/1.1", maker.choose(VERSIONS), 1), body]


def lengths(maker: Maker) -> list[Part]:
    """Invalid and ambiguous Content-Length."""
    body = maker.chosen_body()
    fields = [b"Content-Length: " + maker.numeral(LENGTHS, len(body))]
    if maker.chance(0.25):
        fields.append(maker.choose((b"Content-Length: ", b"content-length:")) + maker.numeral(LENGTHS, len(body)))
    if maker.chance(0.1):
        fields[0] = fields[0].replace(
            b"Content-Length",
            maker.choose((b"Content-Length ", b"Content_Length", b" Content-Length", b"CONTENT-LENGTH")),
        )
    return [maker.head(b"POST", maker.path(), [b"Content-Type: application/json", *fields]), body]


def codings(maker: Maker) -> list[Part]:
    """Invalid and ambiguous Transfer-Encoding."""
    fields = [maker.choose(CODING_NAMES) + b": " + maker.choose(CODINGS)]
    if maker.chance(0.2):
        fields.append(b"Transfer-Encoding: " + maker.choose(CODINGS))
    body = maker.chunked(maker.chosen_body()) if maker.chance(0.8) else maker.bait()
    return [maker.head(b"POST", maker.path(), [b"Content-Type: application/json", *fields]), body]


def both(maker: Maker) -> list[Part]:
    """Content-Length beside Transfer-Encoding, either of them hiding a request."""
    bait = maker.bait()
    if maker.chance(0.5):
        body = b"0\r\n\r\n" + bait
        length = len(body)
    else:
        body = maker.chunked(bait)
        length = body.index(b"\r\n") + 2
    coding = maker.choose((b"chunked", b"chunked", b"Chunked", b"\tchunked", b"xchunked", b"identity", b"chunked\x0b"))
    fields = [b"Content-Length: %d" % length, b"Transfer-Encoding: " + coding]
    if maker.chance(0.5):
        fields.reverse()
    return [maker.head(b"POST", maker.path(), [b"Content-Type: application/json", *fields]), body]


def chunks(maker: Maker) -> list[Part]:
    """Invalid chunk sizes and line ends."""
    body = maker.chosen_body()
    edges = sorted({0, len(body), *(maker.below(len(body)) for _ in range(maker.below(4)))})
    lie = maker.below(len(edges))
    pieces = []
    for place, (first, last) in enumerate(itertools.pairwise(edges)):
        piece, is_lie = body[first:last], place == lie
        size = maker.numeral(SIZES, len(piece)) if is_lie else b"%x" % len(piece)
        pieces += [size, maker.choose(ENDS) if is_lie else b"\r\n", piece, maker.choose(ENDS) if is_lie else b"\r\n"]
    zero = maker.choose((b"0", b"0", b"0", b"000", b"0;a=b", b"00000000000000000000", b"0x0", b"-0", b"0 "))
    pieces += [zero, maker.choose(ENDS), maker.choose(ENDS)] if lie == len(edges) - 1 else [b"0\r\n\r\n"]
    fields = [b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
    return [maker.head(b"POST", maker.path(), fields), b"".join(pieces)]


def trailers(maker: Maker) -> list[Part]:
    """Trailers after the chunks: keys, framing, many, broken."""
    body = maker.chunked(maker.series_body())[:-2]
    lines = b"".join(maker.choose(TRAILERS) for _ in range(maker.choose((1, 1, 2, 3, 10))))
    if maker.chance(0.1):
        lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * maker.below(60)) for number in range(maker.below(2000)))
    names = [b"Trailer: X-A"] if maker.chance(0.3) else []
    fields = [b"Content-Type: application/json", b"Transfer-Encoding: chunked", *names]
    head = maker.head(b"POST", b"/filter", fields, with_key=maker.chance(0.5))
    return [head, body, lines, b"\r\n"]


def upgrades(maker: Maker) -> list[Part]:
    """Upgrade to another protocol, with a body that resembles requests."""
    body = maker.bait(is_slow=maker.chance(0.3), is_far=maker.chance(0.1)) + (
        maker.bait() if maker.chance(0.3) else b""
    )
    offer = maker.choose(UPGRADES)
    connection = maker.choose(
        (b"Upgrade", b"Upgrade", b"upgrade, HTTP2-Settings", b"keep-alive, Upgrade", b"close, upgrade", b"x")
    )
    fields = [b"Connection: " + connection, b"Upgrade: " + offer]
    if maker.chance(0.4):
        fields.append(b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    manner = maker.below(5)
    if manner == 0:
        body = b""
    elif manner == 1:
        fields.append(b"Transfer-Encoding: chunked")
        body = maker.chunked(body)
    elif manner == 2:
        body = maker.series_body()
        fields += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    else:
        fields.append(b"Content-Length: %d" % len(body))
    method = maker.choose((b"POST", b"POST", b"GET", b"PUT", b"OPTIONS"))
    target = maker.choose((b"/filter", b"/nope", b"/health", b"/filter/stream"))
    head = maker.head(method, target, fields)
    return [head, body] if maker.chance(0.6) else [head, Step("pause", seconds=0.002), body]


def expectations(maker: Maker) -> list[Part]:
    """Expect, with and without waiting for 100 Continue."""
    is_right = maker.chance(0.7)
    body = maker.series_body() if is_right else maker.bait()
    is_chunked = maker.chance(0.3)
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    fields = [b"Expect: " + maker.choose(EXPECTATIONS), framing]
    fields.append(b"Content-Type: application/json")
    head = maker.head(b"POST", b"/filter" if is_right else maker.path(), fields)
    if maker.chance(0.1):
        head = head.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    body = maker.chunked(body) if is_chunked else body
    return [head, WAIT, body] if maker.chance(0.5) else [head, body]


def names(maker: Maker) -> list[Part]:
    """Invalid names of fields."""
    name = maker.choose(BAD_NAMES) if maker.chance(0.7) else maker.choose(GOOD_NAMES)
    line = name + maker.choose((b": x", b":x", b":", b": x", b"x"))
    fields = [b"A: b", line] if maker.chance(0.5) else [line, b"A: b"]
    return [maker.head(b"GET", maker.path(), fields)]


def values(maker: Maker) -> list[Part]:
    """Invalid values of fields, NUL, and bare CR and LF."""
    field = maker.choose((b"X-A", b"X-A", b"Accept", b"Cookie", b"X-Request-ID", b"Connection")) + b": "
    return [maker.head(b"GET", maker.path(), [field + maker.choose(BAD_VALUES)])]


def line_ends(maker: Maker) -> list[Part]:
    """Other line ends in a head."""
    end = maker.choose((b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n\r\n"))
    head = maker.head(b"GET", maker.path(), [b"A: b"])
    lines = head.split(b"\r\n")
    place = maker.below(len(lines) - 1)
    if maker.chance(0.3):
        return [head.replace(b"\r\n", end)]
    return [b"\r\n".join(lines[: place + 1]) + end + b"\r\n".join(lines[place + 1 :])]


def hosts(maker: Maker) -> list[Part]:
    """No host, two hosts, and wrong ones."""
    head = maker.head(b"GET", maker.path())
    lines = b"".join(b"Host: " + host + b"\r\n" for host in maker.choose(HOSTS))
    return [head.replace(maker.host + b"\r\n", lines, 1)]


def garbage(maker: Maker) -> list[Part]:
    """Bytes that are not HTTP, or nearly HTTP."""
    return [maker.choose(GARBAGE)]


def large(maker: Maker) -> list[Part]:
    """Heads far above the limit, in one field, in many, or in the target."""
    manner = maker.below(3)
    size = maker.choose((2_000, 70_000, 200_000))
    if manner == 0:
        return [maker.head(b"GET", b"/health", [b"X-Big: " + b"a" * size])]
    if manner == 1:
        return [maker.head(b"GET", b"/health", [b"X-%d: a" % number for number in range(size // 10)])]
    return [maker.head(b"GET", b"/nope/" + b"a" * size)]


def mutated(maker: Maker) -> list[Part]:
    """Valid requests with some bytes replaced, removed, repeated or moved."""
    data = bytearray(b"".join(maker.honest() for _ in range(1 + maker.below(3))))
    for _ in range(1 + maker.below(3)):
        place = maker.below(len(data))
        manner = maker.below(6)
        if manner == 0:
            data[place] = maker.below(256)
        elif manner == 1:
            del data[place : place + 1 + maker.below(8)]
        elif manner == 2:
            data[place:place] = maker.choose((b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b",", b"0", b"\t", b"\xff"))
        elif manner == 3:
            data[place:place] = data[place : place + 1 + maker.below(40)]
        elif manner == 4:
            data[place] ^= 1 << maker.below(8)
        else:
            other = maker.below(len(data))
            data[place:place] = data[other : other + maker.below(60)]
        if not data:
            break
    return [bytes(data)]


def honest(maker: Maker) -> list[Part]:
    """A pipeline of valid requests."""
    return [maker.honest() for _ in range(1 + maker.below(4))]


def long_pipeline(maker: Maker) -> list[Part]:
    """About as many requests at once as may wait, or more."""
    count = maker.choose((50, 58, 90))
    return [maker.head(b"GET", b"/health", with_key=False) for _ in range(count)]


def flood(maker: Maker) -> list[Part]:
    """Trailers or one chunk extension without end, which limits on heads and bodies do not count."""
    body = maker.chunked(maker.series_body())[:-2]
    if maker.chance(0.5):
        rest, tail = b"X-A: " + b"a" * 2_000 + b"\r\n", body
    else:
        rest, tail = b"a" * 2_000, b"5;a="
    fields = [b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
    head = maker.head(b"POST", b"/filter", fields, with_key=maker.chance(0.5))
    piece = Step("send", rest * 100)
    return [head, tail, *([piece, Step("pause", seconds=0.001)] * FLOOD_PIECES)]
