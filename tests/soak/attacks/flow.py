"""Family 12: clients that take nothing, send without end, or hold places without using them."""

from __future__ import annotations

import itertools
import json
import struct
from contextlib import suppress

from tests.soak.attacks.catalogue import Drive, add, attack
from tests.soak.attacks.stage import LINGER_SECONDS, Over, Stage, Wire, push
from tests.soak.requests import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, frame, handshake, head, message, post

SMALL_BUFFER = 4_096
MOST_MESSAGE_BYTES = 2_000_000
OTHER_CLIENT = "127.0.0.9"
LIMIT = 60
MOST_STREAMS = 9_000
SILENT = 4_000
BODY = json.dumps({"observations": [[1.0, 0.5]]}).encode()


def sending(data: bytes, *, is_read: bool = False, **options: int) -> Drive:
    """A driver of four WebSockets that send the same again and again."""

    def drive(stage: Stage) -> None:
        stage.begin()

        def send(wire: Wire) -> None:
            while True:
                wire.send(data)
                if is_read:
                    wire.skim()

        stage.lanes(4, send, on_stream=True, **options)

    return drive


def pushing(opening: bytes, piece: bytes, claim: str, **options: int) -> Drive:
    """A driver of four WebSockets that send one message without end."""

    def drive(stage: Stage) -> None:
        stage.begin()

        def send(wire: Wire) -> None:
            push(stage, wire, opening, piece, 3 * MOST_MESSAGE_BYTES, claim)

        stage.lanes(4, send, on_stream=True, **options)

    return drive


# Control frames and fragments.

PINGS, PONGS = frame(b"x" * 125, PING) * 500, frame(b"x" * 125, PONG) * 500
NOTHING = frame(b"", CONTINUATION, is_final=False)
BEGUN, BEGUN_EMPTY = frame(b'"', TEXT, is_final=False), frame(b"", TEXT, is_final=False)
BYTES = frame(b"x", CONTINUATION, is_final=False) * 5_000
add(
    12,
    "pings-unread",
    "Four sockets that ping and never read a pong.",
    sending(PINGS, receive_buffer=SMALL_BUFFER),
    seconds=20,
)
add(12, "pings-read", "Pings as fast as they go, and every pong read.", sending(frame(b"", PING) * 2_000, is_read=True))
add(12, "pongs-unasked", "Pongs without end that nobody asked for.", sending(PONGS))
for name, about, drive in (
    (
        "fragments-tiny",
        "One message in fragments of a byte.",
        pushing(BEGUN, BYTES, "a message of fragments of a byte ends"),
    ),
    (
        "fragments-empty",
        "One message in empty fragments, without end.",
        pushing(BEGUN_EMPTY, NOTHING * 5_000, "a message of empty fragments ends"),
    ),
    (
        "fragments-and-pings",
        "A message that never ends, with pings between its fragments.",
        pushing(
            BEGUN, (NOTHING + frame(b"", PING)) * 2_500, "a message between pings ends", receive_buffer=SMALL_BUFFER
        ),
    ),
):
    add(12, name, about, drive, seconds=2 * LINGER_SECONDS)


@attack(12)
def frames_broken(stage: Stage) -> None:
    """Frames that no client may send: each ends its stream at once, with a code of the protocol."""
    huge = b"\x81\xff" + struct.pack("!Q", 2**63 - 1) + bytes(4)
    cases = {
        "compressed": (frame(b"\xaa\x56\x4a\x00", reserved=4), {1002}),
        "reserved bit 2": (frame(b"{}", reserved=2), {1002}),
        "reserved bit 3": (frame(b"{}", reserved=1), {1002}),
        "opcode 3": (frame(b"{}", 3), {1002}),
        "opcode 15": (frame(b"", 15), {1002}),
        "unmasked": (b"\x81\x02{}", {1002}),
        "long ping": (frame(b"x" * 126, PING), {1002}),
        "fragmented ping": (frame(b"x", PING, is_final=False), {1002}),
        "long close": (frame(b"\x03\xe8" + b"x" * 60_000, CLOSE), {1002}),
        "close of a byte": (frame(b"\x03", CLOSE), {1002}),
        "close with a forbidden code": (frame(struct.pack("!H", 1005), CLOSE), {1002}),
        "close with no Unicode": (frame(b"\x03\xe8\xff\xff", CLOSE), {1002, 1007}),
        "continuation of nothing": (frame(b"{}", CONTINUATION), {1002}),
        "two messages at once": (frame(b"{", TEXT, is_final=False) + frame(b"{}", TEXT), {1002}),
        "no Unicode": (frame(b'"\xff"'), {1007}),
        "huge": (huge, {1009, 1002}),
        "binary": (frame(b"{}", BINARY), {1003, 1008}),
    }
    stage.begin()
    turns = itertools.cycle(cases.items())

    def send(wire: Wire) -> None:
        name, (data, codes) = next(turns)
        wire.send(data)
        code = wire.close_code()
        stage.claim("a broken frame ends its stream", code in codes, f"{name}: {code}")
        stage.sleep(0.02)

    stage.lanes(4, send, on_stream=True)


@attack(12)
def frames_byte_by_byte(stage: Stage) -> None:
    """Frames in segments of a byte."""
    data = message({}) + message({"y": [1.0, 0.5]}) * 50
    stage.begin()

    def send(wire: Wire) -> None:
        for byte in data:
            wire.send(bytes([byte]))
        while b'"index":49' not in wire.frame()[1]:
            pass
        stage.count("streams answered")

    stage.lanes(4, send, on_stream=True)


# Bodies and heads that come slowly, or in small pieces.


@attack(12)
def bodies_byte_by_byte(stage: Stage) -> None:
    """Chunked bodies in segments of a byte."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    request = head("POST", "/filter", "Transfer-Encoding: chunked", "Content-Type: application/json") + chunks
    stage.begin()

    def send(wire: Wire) -> None:
        while True:
            for byte in request:
                wire.send(bytes([byte]))
            answer = wire.answer()
            stage.expect("a body of single bytes is answered", answer, {200})
            if answer is None:
                return

    stage.lanes(4, send)


def holding(count: int, opening: bytes, drip: bytes, gap: float) -> Drive:
    """A driver of so many connections that have begun something and go on with it a little at a time."""

    def drive(stage: Stage) -> None:
        stage.begin()
        open_wires = stage.open_many(count, lambda wire: wire.send(opening))
        while stage.is_on:
            for wire in list(open_wires):
                try:
                    wire.send(drip)
                except OSError:
                    open_wires.remove(wire)
                    wire.close()
                    stage.count("connections ended")
                except Over:
                    break
            stage.sleep(gap)
        stage.count("connections held", len(open_wires))

    return drive


LONG_BODY = head("POST", "/filter", "Content-Type: application/json", "Content-Length: 1900000")
HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
for name, about, drive in (
    ("bodies-slow", "500 bodies of which a byte comes every second.", holding(500, LONG_BODY + b"{", b" ", 1.0)),
    (
        "bodies-nearly-whole",
        "300 bodies of 1.9 MB without their last bytes: 570 MB for a server to hold, if it does.",
        holding(300, LONG_BODY + b" " * 1_899_990, b" ", 2.0),
    ),
    ("heads-slow", "1,000 heads of which a byte comes every half second.", holding(1_000, HEAD + b"x-a: ", b"a", 0.5)),
    (
        "heads-nearly-whole",
        "2,000 heads of 30 kB without their end.",
        holding(2_000, HEAD + b"x-a: b\r\n" * 3_700, b"x-a: b\r\n", 1.0),
    ),
):
    add(12, name, about, drive, seconds=20)


# Places that are held.


@attack(12, seconds=20)
def streams_idle(stage: Stage) -> None:
    """1,000 live streams on which one observation was answered and nothing follows."""
    stage.begin()
    begin = message({}) + message({"y": [1.0, 0.5]})
    stage.count("streams held", len(stage.open_many(1_000, lambda wire: wire.send(begin), on_stream=True)))
    stage.sleep(stage.left)


@attack(12, seconds=30)
def streams_everywhere(stage: Stage) -> None:
    """One client opens live streams until no place is left; another client must still get one."""
    stage.begin()
    open_wires: list[Wire] = []
    refused = 0
    while stage.left > 6 and len(open_wires) < MOST_STREAMS and refused < 50:
        try:
            wire = stage.upgrade()
            wire.send(message({}))
            open_wires.append(wire)
        except OSError:
            refused += 1
    stage.count("streams held", len(open_wires))
    stage.count("streams refused", refused)
    for _ in range(4):
        try:
            with stage.upgrade(source=OTHER_CLIENT) as wire:
                wire.send(message({}))
                _, payload = wire.frame()
            stage.claim("another client still gets a stream", b'"ready"' in payload, payload[:100])
        except OSError as error:
            stage.claim("another client still gets a stream", False, error)


@attack(12, settings={"max_connections": LIMIT}, seconds=12)
def silence_at_the_limit(stage: Stage) -> None:
    """Silent sockets at the limit of connections (60 a process here): /health, and who has something to say, get in."""
    stage.begin()
    open_wires = stage.open_many(3 * LIMIT)
    while stage.is_on:
        for name, request in (("/health", head("GET", "/health")), ("a request", post("/filter", BODY))):
            try:
                with stage.connect(source=OTHER_CLIENT, seconds=2) as wire:
                    answer = wire.ask(request)
                is_answered = answer is not None and answer.status == 200
                stage.claim(f"{name} is answered beside silent sockets", is_answered, answer and answer.status)
            except OSError as error:
                stage.claim(f"{name} is answered beside silent sockets", False, error)
        with suppress(OSError):
            open_wires.append(stage.connect())  # the attacker comes again and again
        stage.sleep(0.1)


@attack(12, seconds=20)
def silence_of_thousands(stage: Stage) -> None:
    """4,000 sockets that say nothing."""
    stage.begin()
    open_wires = stage.open_many(SILENT)
    stage.sleep(stage.left)
    stage.count("connections held", len(open_wires))


# Haste.


@attack(12)
def connections_opened_and_closed(stage: Stage) -> None:
    """Connections as fast as they go: closed at once, reset, or after a request."""
    request = head("GET", "/health")
    stage.begin()
    kinds = itertools.cycle(("close", "reset", "ask and reset", "ask"))

    def come_and_go(wire: Wire) -> None:
        kind = next(kinds)
        if kind.startswith("ask"):
            wire.send(request)
        if kind.endswith("reset"):
            wire.reset()
        elif kind == "ask":
            wire.answer()

    stage.lanes(8, come_and_go)


@attack(12)
def streams_opened_and_left(stage: Stage) -> None:
    """Live streams opened as fast as they go, left with a reset after their first observation."""
    data = message({"horizon": [0.1] * 16, "samples": 64}) + message({"y": [1.0, 0.5]}) * 5
    stage.begin()

    def come_and_go(wire: Wire) -> None:
        wire.send(data)
        wire.reset()

    stage.lanes(8, come_and_go, on_stream=True)


@attack(12)
def requests_left(stage: Stage) -> None:
    """Costly requests whose client leaves at once."""
    series = {"observations": [[1.0, 0.5]] * 5_000, "smooth": True}
    text = {"inputs": "It was", "parameters": {"max_new_tokens": 1_000, "n": 16}}
    requests = itertools.cycle([post("/filter", series), post("/generate", text)])
    stage.begin()

    def leave(wire: Wire) -> None:
        wire.send(next(requests))
        stage.sleep(0.02)
        wire.reset()

    stage.lanes(8, leave)


@attack(12)
def pipeline_unread(stage: Stage) -> None:
    """100,000 requests for /health on one connection, no answer read; four connections."""
    requests = head("GET", "/health") * 1_000
    stage.begin()

    def send(wire: Wire) -> None:
        for _ in range(100):
            wire.send(requests)
        stage.sleep(1.0)

    stage.lanes(4, send, receive_buffer=SMALL_BUFFER)


@attack(12)
def pipeline_read(stage: Stage) -> None:
    """Sixty requests at a time, every answer read, again and again; four connections."""
    requests = head("GET", "/health") * 60
    stage.begin()

    def ask(wire: Wire) -> None:
        while True:
            wire.send(requests)
            for _ in range(60):
                answer = wire.answer()
                stage.expect("a pipelined request is answered", answer, {200})
                if answer is None:
                    return

    stage.lanes(4, ask)


@attack(12)
def pipeline_of_work(stage: Stage) -> None:
    """Series in a pipeline, no answer read; eight connections."""
    requests = post("/filter", {"observations": [[1.0, 0.5]] * 2_000}) * 60
    stage.begin()

    def send(wire: Wire) -> None:
        wire.send(requests)
        stage.sleep(stage.left)

    stage.lanes(8, send, receive_buffer=SMALL_BUFFER)


@attack(12)
def handshakes_and_frames_at_once(stage: Stage) -> None:
    """A handshake with 250 kB of frames behind it in one piece, again and again."""
    frames = message({}) + message({"y": [1.0, 0.5]}) * 8_000
    stage.begin()

    def send(wire: Wire) -> None:
        wire.send(handshake() + frames)
        while True:
            wire.skim()

    stage.lanes(4, send)
