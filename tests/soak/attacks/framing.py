"""Families 1 and 3: excessive framing of requests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import suppress

from tests.soak.attacks.catalogue import FAIR, Drive, add, asking, attack
from tests.soak.attacks.stage import Stage
from tests.soak.attacks.wire import LINGER_SECONDS, Wire, push
from tests.soak.requests import head, post

CHUNKED = ("Transfer-Encoding: chunked", "Content-Type: application/json")
QUIET_SECONDS = 1.0
FLOOD_SECONDS = 2 * LINGER_SECONDS
# Largest framing of a request. A server that accepts more has no limit.
MOST_TRAILER_BYTES = 1_000_000
# A valid series in a body of 1.1 MB: JSON allows spaces.
LARGE = json.dumps({"observations": [[1.0, 0.5]] * 200}).encode()[:-1] + b" " * 1_100_000 + b"}"


def flood(stage: Stage, wire: Wire, opening: bytes, piece: bytes, most: int, claim: str) -> None:
    """Send an opening and then a piece repeatedly, until the server ends it or has accepted too much."""
    if push(stage, wire, opening, piece, most, claim):
        with suppress(OSError):
            wire.answer()


def flooding(opening: bytes, make: Callable[[], bytes], what: str, most: int = MOST_TRAILER_BYTES) -> Drive:
    """Return an attack by four connections that send an opening and then a piece without end."""
    claim = f"{what} at {most // 10**6} MB"

    def drive(stage: Stage) -> None:
        piece = make()
        stage.begin()
        stage.lanes(4, lambda wire: flood(stage, wire, opening, piece, most, claim))

    return drive


def chunked(body: bytes, *lines: str, trailers: bytes = b"", path: str = "/filter") -> bytes:
    """Return a request with one chunk."""
    return head("POST", path, *CHUNKED, *lines) + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers)


# Family 1: trailers and chunks.

BODY = b'{"observations":[null]}'
OPENING = head("POST", "/filter", *CHUNKED)


def trailers_often() -> list[bytes]:
    """Return a request with 30 kB of trailers."""
    return [chunked(BODY, trailers=b"".join(b"x-%d: a\r\n" % number for number in range(3_000)))]


def chunks_of_a_byte() -> list[bytes]:
    """Return a valid body of 50 kB in chunks of one byte."""
    body = json.dumps({"observations": [[1.0, 0.5]]}).encode()[:-1] + b" " * 50_000 + b"}"
    return [OPENING + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"]


def endless_trailers() -> bytes:
    """Return a thousand trailers."""
    return b"".join(b"x-%d: %s\r\n" % (number, b"a" * 40) for number in range(1_000))


def extended_chunks() -> bytes:
    """Return chunks of one byte with 4 kB of extensions each."""
    return (b"1;" + b"a=b;" * 1_000 + b"\r\n \r\n") * 16


for name, about, drive in (
    (
        "trailers-endless",
        "Trailers of a chunked request without end, on four connections.",
        flooding(head("POST", "/nothing", *CHUNKED) + b"0\r\n", endless_trailers, "trailers end"),
    ),
    (
        "trailers-tiny",
        "The same with the smallest trailers there are, whose objects are larger than they.",
        flooding(OPENING + b"0\r\n", lambda: b"a:\r\n" * 10_000, "trailers end"),
    ),
    (
        "trailer-without-line-end",
        "One trailer whose line does not end.",
        flooding(head("POST", "/health", *CHUNKED) + b"0\r\nx-a: ", lambda: b"a" * 65_536, "a trailer ends"),
    ),
    (
        "chunk-extension-endless",
        "A chunk size followed by an extension without end.",
        flooding(OPENING + b"5;a=", lambda: b"a" * 65_536, "a chunk's extension ends"),
    ),
    (
        "chunk-extensions-many",
        "Chunks of one byte with 4 kB of extensions each: two thousand times more framing than body.",
        flooding(OPENING, extended_chunks, "chunk extensions end", 20_000_000),
    ),
    (
        "chunk-size-endless",
        "A chunk size of zeros without end.",
        flooding(OPENING, lambda: b"0" * 65_536, "a chunk's size ends"),
    ),
):
    add(1, name, about, drive, seconds=FLOOD_SECONDS)
add(
    1,
    "trailers-often",
    "Whole requests with 30 kB of trailers each, one after the other.",
    asking(trailers_often, 2, "a request with trailers is answered", FAIR | {400, 408, 431}),
)
add(
    1,
    "chunks-of-a-byte",
    "A legal body of 50 kB in chunks of one byte, again and again.",
    asking(chunks_of_a_byte, 4, "a body in small chunks is answered", FAIR | {400, 408, 431}),
)


@attack(1, seconds=FLOOD_SECONDS)
def head_endless(stage: Stage) -> None:
    """Send a head without end: of many headers, one header, one line, or line ends."""
    endless = [
        (b"GET /health HTTP/1.1\r\n", b"x-a: b\r\n" * 8_000),
        (b"GET /health HTTP/1.1\r\nx-a: ", b"a" * 65_536),
        (b"GET /", b"a" * 65_536),
        (b"GET /health HTTP/1.1\r\n", b"\tx\r\n" * 8_000),
        (b"", b"\r\n" * 32_768),
    ]
    stage.begin()
    turns = itertools.cycle(endless)

    def send(wire: Wire) -> None:
        opening, piece = next(turns)
        flood(stage, wire, opening, piece, MOST_TRAILER_BYTES, "a head ends at 1 MB")

    stage.lanes(5, send)


# Family 3: Expect.


@attack(3)
def expect_waiting(stage: Stage) -> None:
    """Send 1.1 MB with `Expect: 100-continue`; the body follows the server's reply."""
    lines = ("Content-Type: application/json", f"Content-Length: {len(LARGE)}", "Expect: 100-continue")
    start = head("POST", "/filter", *lines)
    stage.begin()

    def ask(wire: Wire) -> None:
        wire.send(start)
        wire.socket.settimeout(2.0)
        try:
            interim = wire.socket.recv(4_096)
        except TimeoutError:
            interim = b""
        stage.claim("100 Continue comes within 2 s", interim.startswith(b"HTTP/1.1 100"), interim[:60])
        stage.expect("a body after 100 Continue is answered", wire.ask(LARGE), {200})
        stage.sleep(0.05)

    stage.lanes(2, ask)


add(
    3,
    "expect-at-once",
    "1.1 MB with `Expect: 100-continue`, without waiting.",
    asking(
        lambda: [post("/filter", LARGE, "Expect: 100-continue"), chunked(LARGE, "Expect: 100-continue")],
        2,
        "a body without waiting is answered",
        {200},
        pause=0.05,
    ),
)


@attack(3)
def expect_and_silence(stage: Stage) -> None:
    """Open 400 connections that announce 1.9 MB and send nothing; others send despite a rejection."""
    lines = ("Content-Type: application/json", "Content-Length: 1900000", "Expect: 100-continue")
    promise = head("POST", "/filter", *lines)
    too_large = post("/filter", b" " * 2_100_000, "Expect: 100-continue")
    stage.begin()
    silent = stage.open_many(400, lambda wire: wire.send(promise))

    def ask(wire: Wire) -> None:
        with suppress(OSError):
            wire.send(too_large)
        answer = wire.answers(QUIET_SECONDS)
        stage.claim("a body that is too large is refused", [a.status for a in answer] in ([413], []), answer)

    stage.lanes(2, ask)
    for wire in silent:
        wire.close()
