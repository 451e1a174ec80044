"""Families 1 to 3: lies and excesses in how a request is framed.

Who was answered is told by request ids: a server answers with the client's own. What stands in a body, and is answered
with its id, was served as a request.
"""

from __future__ import annotations

import itertools
import json
import random
import secrets
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress

from tests.soak.attacks.catalogue import Drive, add, attack
from tests.soak.attacks.stage import LINGER_SECONDS, Stage, Wire, push
from tests.soak.requests import head, post

KEY = "attacks-" + "k" * 24
CHUNKED = ("Transfer-Encoding: chunked", "Content-Type: application/json")
QUIET_SECONDS = 1.0
FLOOD_SECONDS = 2 * LINGER_SECONDS
FAIR = frozenset({200, 400, 408, 413, 422, 429, 431, 503})
# Of one request beyond its body; what a server takes more of is without a bound.
MOST_TRAILER_BYTES = 1_000_000
# A legal series in a body of 1.1 MB: JSON may hold spaces.
LARGE = json.dumps({"observations": [[1.0, 0.5]] * 200}).encode()[:-1] + b" " * 1_100_000 + b"}"


def flood(stage: Stage, wire: Wire, opening: bytes, piece: bytes, most: int, claim: str) -> None:
    """Send an opening and then a piece again and again, until the server ends it or has taken too much."""
    if push(stage, wire, opening, piece, most, claim):
        with suppress(OSError):
            wire.answer()


def flooding(opening: bytes, make: Callable[[], bytes], what: str, most: int = MOST_TRAILER_BYTES) -> Drive:
    """A driver of four connections that send an opening, and then a piece without end."""
    claim = f"{what} at {most // 10**6} MB"

    def drive(stage: Stage) -> None:
        piece = make()
        stage.begin()
        stage.lanes(4, lambda wire: flood(stage, wire, opening, piece, most, claim))

    return drive


def asking(make: Callable[[], list[bytes]], lanes: int, claim: str, statuses: Set[int], pause: float = 0.0) -> Drive:
    """A driver that asks some requests in turn."""

    def drive(stage: Stage) -> None:
        requests = make()
        stage.begin()
        stage.keep_asking(lanes, requests, claim, statuses, pause=pause)

    return drive


def chunked(body: bytes, *lines: str, trailers: bytes = b"", path: str = "/filter") -> bytes:
    """A whole request with one chunk."""
    return head("POST", path, *CHUNKED, *lines) + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers)


# Family 1: trailers and chunks.

BODY = b'{"observations":[null]}'
OPENING = head("POST", "/filter", *CHUNKED)


def trailers_often() -> list[bytes]:
    """A request with 30 kB of trailers."""
    return [chunked(BODY, trailers=b"".join(b"x-%d: a\r\n" % number for number in range(3_000)))]


def chunks_of_a_byte() -> list[bytes]:
    """A legal body of 50 kB in chunks of one byte."""
    body = json.dumps({"observations": [[1.0, 0.5]]}).encode()[:-1] + b" " * 50_000 + b"}"
    return [OPENING + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"]


def endless_trailers() -> bytes:
    """A thousand trailers."""
    return b"".join(b"x-%d: %s\r\n" % (number, b"a" * 40) for number in range(1_000))


def extended_chunks() -> bytes:
    """Chunks of one byte with 4 kB of extensions each."""
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
    asking(trailers_often, 2, "a request with trailers is answered", FAIR),
)
add(
    1,
    "chunks-of-a-byte",
    "A legal body of 50 kB in chunks of one byte, again and again.",
    asking(chunks_of_a_byte, 4, "a body in small chunks is answered", FAIR),
)


@attack(1, key=KEY)
def trailer_as_header(stage: Stage) -> None:
    """Trailers that would mean something as headers: an API key, a length, another host, another encoding."""

    def request(*trailers: str, lines: tuple[str, ...] = ()) -> bytes:
        return chunked(BODY, *lines, trailers="".join(f"{trailer}\r\n" for trailer in trailers).encode())

    forged = [
        (f"X-API-Key: {KEY}",),
        (f"x-api-key:{KEY}",),
        (f"Authorization: Bearer {KEY}",),
        (f"X-API-Key: {KEY}", f"X-API-Key: {KEY}"),
        ("X-Nothing: a", f"X-API-Key: {KEY}"),
    ]
    harmless = [("Content-Length: 3",), ("Transfer-Encoding: chunked",), ("Host: other",), ("Connection: close",)]
    stage.begin()

    def ask(trailers: tuple[str, ...], status: int, claim: str, *lines: str) -> None:
        with stage.connect() as wire:
            wire.send(request(*trailers, lines=lines))
            answers = wire.answers(QUIET_SECONDS)
        statuses = [answer.status for answer in answers]
        stage.claim(claim, statuses in ([status], [400]), f"{trailers[0]}: {statuses}")

    for trailers in forged:
        ask(trailers, 401, "a key in a trailer opens nothing")
    for trailers in harmless:
        ask(trailers, 200, "a trailer changes nothing", f"X-API-Key: {KEY}")
        ask((*trailers, f"X-API-Key: {KEY}"), 200, "a trailer changes nothing", f"X-API-Key: {KEY}")


@attack(1, seconds=FLOOD_SECONDS)
def head_endless(stage: Stage) -> None:
    """A head without end: of many headers, of one, of one line, of nothing but line ends."""
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


# Family 2: upgrades.

UPGRADES = ("h2c", "foo", "TLS/1.0, HTTP/2.0", "websocket2", "WebSocket/13", "h2c, websocket", "websocket, h2c", ",")
CONNECTIONS = ("Upgrade", "keep-alive, upgrade", "Upgrade, HTTP2-Settings")


def smuggling_requests() -> Iterator[tuple[str, str, bytes]]:
    """Requests that ask for an upgrade and have a request in their body: a name, the id inside, the bytes."""
    paths = (("POST", "/filter"), ("GET", "/health"), ("POST", "/nothing"), ("GET", "/filter/stream"))
    for upgrade, connection in itertools.product(UPGRADES, CONNECTIONS):
        lines = [f"Connection: {connection}", f"Upgrade: {upgrade}", "Content-Type: application/json"]
        yield from with_bodies(f"{connection} {upgrade!r}", paths, lines)


def websocket_smuggling() -> Iterator[tuple[str, str, bytes]]:
    """The same behind handshakes of a WebSocket that are broken, or have a body."""
    key = "Sec-WebSocket-Key: " + "A" * 22 + "=="
    good = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key]
    broken = [good[:2], good[:3], [*good[:2], "Sec-WebSocket-Version: 8", good[3]], [*good[:3], "Sec-WebSocket-Key: x"]]
    paths = (("GET", "/filter/stream"), ("GET", "/health"), ("POST", "/filter"), ("GET", "/nothing"))
    for lines in [good, *broken]:
        yield from with_bodies(str(lines[2:]), paths, lines)


def with_bodies(name: str, paths: Sequence[tuple[str, str]], lines: list[str]) -> Iterator[tuple[str, str, bytes]]:
    """Heads with a request in their body, by its length and in chunks."""
    for method, path in paths:
        for framing in ("length", "chunked"):
            inner_id = f"inner-{secrets.token_hex(8)}"
            inner = head("GET", "/info", f"X-Request-ID: {inner_id}")
            if framing == "length":
                request = head(method, path, *lines, f"Content-Length: {len(inner)}") + inner
            else:
                chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
                request = head(method, path, *lines, "Transfer-Encoding: chunked") + chunks
            yield f"{method} {path} {name} {framing}", inner_id, request


@attack(2, seconds=20)
def upgrade_smuggling(stage: Stage) -> None:
    """A request in the body of a request that asks for an upgrade; then another on the same connection."""
    cases = list(itertools.product([*smuggling_requests(), *websocket_smuggling()], ("joined", "split")))
    random.Random(1).shuffle(cases)  # time may not suffice for all: then for some of every kind
    stage.begin()

    def attempt(case: tuple[str, str, bytes], sending: str) -> None:
        name, inner_id, request = case
        name = f"{name} {sending}"
        outer_id, next_id = f"outer-{secrets.token_hex(8)}", f"next-{secrets.token_hex(8)}"
        first, _, rest = request.partition(b"\r\n")
        with stage.connect(seconds=5) as wire:
            start, _, body = rest.partition(b"\r\n\r\n")
            opening = first + b"\r\nX-Request-ID: %s\r\n" % outer_id.encode() + start + b"\r\n\r\n"
            if sending == "joined":
                wire.send(opening + body)
            else:  # as two segments, which a server reads one after the other
                wire.send(opening)
                stage.sleep(0.05)
                wire.send(body)
            answers = wire.answers(0.3)
            if answers and answers[-1].status != 101:
                with suppress(OSError):
                    wire.send(head("GET", "/health", f"X-Request-ID: {next_id}", "Connection: close"))
                    answers += wire.answers(1.0)
        ids = [answer.headers.get("x-request-id", "") for answer in answers if not answer.is_interim]
        stage.claim("no body is served as a request", inner_id not in ids, name)
        stage.claim("each request has one answer at most", ids.count(outer_id) <= 1 and ids.count(next_id) <= 1, name)
        stage.claim("nothing else is answered", len(ids) <= 2, f"{name}: {len(ids)} answers")

    turns = iter(cases)

    def lane() -> None:
        for case, sending in turns:
            if not stage.is_on:
                return
            try:
                attempt(case, sending)
            except OSError:
                stage.count("connections lost")
            stage.count("cases")

    stage.together([lane] * 16)


def h2c_with_body() -> list[bytes]:
    """What `curl --http2` sends: an offer of h2c that a server may pass over, with a body that it may not."""
    body = b'{"observations":[[1.0,0.5]]}'
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    other = post("/filter", body, "Connection: Upgrade", "Upgrade: foo")
    return [post("/filter", body, *offer), chunked(body, *offer), other]


add(
    2,
    "upgrade-h2c-with-body",
    "What `curl --http2` sends: an offer of h2c with a body.",
    asking(h2c_with_body, 2, "an offer of h2c is passed over", {200}, pause=0.02),
)


@attack(2)
def upgrades_refused(stage: Stage) -> None:
    """Broken handshakes as fast as they go, each on a connection of its own."""
    requests = [request for _, _, request in websocket_smuggling()]
    stage.begin()
    turns = itertools.cycle(requests)

    def ask(wire: Wire) -> None:
        wire.send(next(turns))
        wire.answers(0.2)

    stage.lanes(8, ask)


# Family 3: Expect.


@attack(3)
def expect_waiting(stage: Stage) -> None:
    """1.1 MB with `Expect: 100-continue`, the body sent once the server says so."""
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
def expect_wrong(stage: Stage) -> None:
    """Expectations that nobody knows, and ones where there is nothing to expect."""
    values = ["200-ok", "100-continue, 200-ok", "", "100-Continue", "x" * 1_000]
    requests = [post("/filter", BODY, f"Expect: {value}") for value in values]
    requests += [head("GET", "/health", "Expect: 100-continue"), post("/nothing", BODY, "Expect: 100-continue")]
    requests += [post("/filter", BODY, "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0", 1)]
    stage.begin()

    def ask(_: Wire) -> None:
        for request in requests:
            with stage.connect() as own:
                answer = own.ask(request)
            stage.expect("any expectation is answered", answer, {200, 404, 417}, request[:120])
        stage.sleep(0.1)

    stage.lanes(1, ask)


@attack(3)
def expect_and_silence(stage: Stage) -> None:
    """400 connections that promise 1.9 MB and send nothing; others that are refused and send all the same."""
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
