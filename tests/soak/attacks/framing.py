"""Families 1 to 3: lies and excesses in how a request is framed.

Who was answered is told by request ids: a server answers with the client's own. What stands in a body, and is answered
with its id, was served as a request.
"""

from __future__ import annotations

import itertools
import json
import random
import secrets
from collections.abc import Iterator
from contextlib import suppress

from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import LINGER_SECONDS, Stage, Wire, head, post, push

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


# Family 1: trailers and chunks.


@attack(1, seconds=FLOOD_SECONDS)
def trailers_endless(stage: Stage) -> None:
    """Trailers of a chunked request without end, on four connections."""
    opening = head("POST", "/nothing", *CHUNKED) + b"0\r\n"
    piece = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 40) for number in range(1_000))
    stage.begin()
    claim = "trailers end at 1 MB"
    stage.lanes(4, lambda wire: flood(stage, wire, opening, piece, MOST_TRAILER_BYTES, claim))


@attack(1, seconds=FLOOD_SECONDS)
def trailers_tiny(stage: Stage) -> None:
    """The same with the smallest trailers there are, whose objects are larger than they."""
    opening = head("POST", "/filter", *CHUNKED) + b"0\r\n"
    stage.begin()
    claim = "trailers end at 1 MB"
    stage.lanes(4, lambda wire: flood(stage, wire, opening, b"a:\r\n" * 10_000, MOST_TRAILER_BYTES, claim))


@attack(1, seconds=FLOOD_SECONDS)
def trailer_without_line_end(stage: Stage) -> None:
    """One trailer whose line does not end."""
    opening = head("POST", "/health", *CHUNKED) + b"0\r\nx-a: "
    stage.begin()
    claim = "a trailer ends at 1 MB"
    stage.lanes(4, lambda wire: flood(stage, wire, opening, b"a" * 65_536, MOST_TRAILER_BYTES, claim))


@attack(1)
def trailers_often(stage: Stage) -> None:
    """Whole requests with 30 kB of trailers each, one after the other."""
    trailers = b"".join(b"x-%d: a\r\n" % number for number in range(3_000))
    body = b'{"observations":[null]}'
    request = head("POST", "/filter", *CHUNKED) + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers)
    stage.begin()
    stage.keep_asking(2, [request], "a request with trailers is answered", FAIR)


@attack(1, seconds=FLOOD_SECONDS)
def chunk_extension_endless(stage: Stage) -> None:
    """A chunk size followed by an extension without end."""
    opening = head("POST", "/filter", *CHUNKED) + b"5;a="
    stage.begin()
    claim = "a chunk's extension ends at 1 MB"
    stage.lanes(4, lambda wire: flood(stage, wire, opening, b"a" * 65_536, MOST_TRAILER_BYTES, claim))


@attack(1, seconds=FLOOD_SECONDS)
def chunk_extensions_many(stage: Stage) -> None:
    """Chunks of one byte with 4 kB of extensions each: two thousand times more framing than body."""
    opening = head("POST", "/filter", *CHUNKED)
    piece = (b"1;" + b"a=b;" * 1_000 + b"\r\n \r\n") * 16
    stage.begin()
    claim = "chunk extensions end at 20 MB"
    stage.lanes(4, lambda wire: flood(stage, wire, opening, piece, 20_000_000, claim))


@attack(1, seconds=FLOOD_SECONDS)
def chunk_size_endless(stage: Stage) -> None:
    """A chunk size of zeros without end."""
    opening = head("POST", "/filter", *CHUNKED)
    stage.begin()
    claim = "a chunk's size ends at 1 MB"
    stage.lanes(4, lambda wire: flood(stage, wire, opening, b"0" * 65_536, MOST_TRAILER_BYTES, claim))


@attack(1)
def chunks_of_a_byte(stage: Stage) -> None:
    """A legal body of 50 kB in chunks of one byte, again and again."""
    body = json.dumps({"observations": [[1.0, 0.5]]}).encode()[:-1] + b" " * 50_000 + b"}"
    request = head("POST", "/filter", *CHUNKED) + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    stage.begin()
    stage.keep_asking(4, [request], "a body in small chunks is answered", FAIR)


@attack(1, key=KEY)
def trailer_as_header(stage: Stage) -> None:
    """Trailers that would mean something as headers: an API key, a length, another host, another encoding."""
    body = b'{"observations":[null]}'

    def request(*trailers: str, lines: tuple[str, ...] = ()) -> bytes:
        end = "".join(f"{trailer}\r\n" for trailer in trailers).encode()
        return head("POST", "/filter", *CHUNKED, *lines) + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, end)

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
    for upgrade, connection in itertools.product(UPGRADES, CONNECTIONS):
        for method, path in (("POST", "/filter"), ("GET", "/health"), ("POST", "/nothing"), ("GET", "/filter/stream")):
            for framing in ("length", "chunked"):
                inner_id = f"inner-{secrets.token_hex(8)}"
                inner = head("GET", "/info", f"X-Request-ID: {inner_id}")
                lines = [f"Connection: {connection}", f"Upgrade: {upgrade}", "Content-Type: application/json"]
                if framing == "length":
                    request = head(method, path, *lines, f"Content-Length: {len(inner)}") + inner
                else:
                    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
                    request = head(method, path, *lines, "Transfer-Encoding: chunked") + chunks
                yield f"{method} {path} {connection} {upgrade!r} {framing}", inner_id, request


def websocket_smuggling() -> Iterator[tuple[str, str, bytes]]:
    """The same behind handshakes of a WebSocket that are broken, or have a body."""
    key = "Sec-WebSocket-Key: " + "A" * 22 + "=="
    good = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key]
    broken = [good[:2], good[:3], [*good[:2], "Sec-WebSocket-Version: 8", good[3]], [*good[:3], "Sec-WebSocket-Key: x"]]
    for lines in [good, *broken]:
        for method, path in (("GET", "/filter/stream"), ("GET", "/health"), ("POST", "/filter"), ("GET", "/nothing")):
            inner_id = f"inner-{secrets.token_hex(8)}"
            inner = head("GET", "/info", f"X-Request-ID: {inner_id}")
            kinds = {
                "length": head(method, path, *lines, f"Content-Length: {len(inner)}") + inner,
                "chunked": head(method, path, *lines, "Transfer-Encoding: chunked")
                + b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner),
            }
            for framing, request in kinds.items():
                yield f"{method} {path} {lines[2:]} {framing}", inner_id, request


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


@attack(2)
def upgrade_h2c_with_body(stage: Stage) -> None:
    """What `curl --http2` sends: an offer of h2c that a server may pass over, with a body that it may not."""
    body = b'{"observations":[[1.0,0.5]]}'
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    chunked = head("POST", "/filter", *CHUNKED, *offer) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    requests = [post("/filter", body, *offer), chunked, post("/filter", body, "Connection: Upgrade", "Upgrade: foo")]
    stage.begin()
    stage.keep_asking(2, requests, "an offer of h2c is passed over", {200}, pause=0.02)


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


@attack(3)
def expect_at_once(stage: Stage) -> None:
    """The same without waiting."""
    chunks = head("POST", "/filter", *CHUNKED, "Expect: 100-continue") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(LARGE), LARGE)
    requests = [post("/filter", LARGE, "Expect: 100-continue"), chunks]
    stage.begin()
    stage.keep_asking(2, requests, "a body without waiting is answered", {200}, pause=0.05)


@attack(3)
def expect_wrong(stage: Stage) -> None:
    """Expectations that nobody knows, and ones where there is nothing to expect."""
    wanted = ["200-ok", "100-continue, 200-ok", "", "100-Continue", "x" * 1_000]
    body = b'{"observations":[null]}'
    requests = [post("/filter", body, f"Expect: {value}") for value in wanted]
    requests += [head("GET", "/health", "Expect: 100-continue"), post("/nothing", body, "Expect: 100-continue")]
    requests += [post("/filter", body, "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0", 1)]
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
    held = []
    for _ in range(400):
        with suppress(OSError):
            wire = stage.connect()
            held.append(wire)
            wire.send(promise)

    def ask(wire: Wire) -> None:
        with suppress(OSError):
            wire.send(too_large)
        answer = wire.answers(QUIET_SECONDS)
        stage.claim("a body that is too large is refused", [a.status for a in answer] in ([413], []), answer)

    stage.lanes(2, ask)
    for wire in held:
        wire.close()
