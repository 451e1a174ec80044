"""Family 12: clients that read nothing, send without end, or hold resources without using them."""

from __future__ import annotations

import itertools
import json

from tests.soak.attacks.catalogue import Drive, add, attack
from tests.soak.attacks.stage import Stage
from tests.soak.attacks.wire import LINGER_SECONDS, Over, Wire, push
from tests.soak.requests import CONTINUATION, PING, PONG, TEXT, frame, handshake, head, message, post

SMALL_BUFFER = 4_096
MOST_MESSAGE_BYTES = 2_000_000
OTHER_CLIENT = "127.0.0.9"
MOST_STREAMS = 9_000
SILENT = 4_000
BODY = json.dumps({"observations": [[1.0, 0.5]]}).encode()


def sending(data: bytes, *, is_read: bool = False, **options: int) -> Drive:
    """Return an attack by four WebSockets that send the same repeatedly."""

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
    """Return an attack by four WebSockets that send one message without end."""

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


# Bodies and heads that arrive slowly or in small pieces.


def holding(count: int, opening: bytes, drip: bytes, gap: float) -> Drive:
    """Return an attack by connections that have begun a request and continue it slowly."""

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


# Held resources.


@attack(12, seconds=20)
def streams_idle(stage: Stage) -> None:
    """Open 1,000 live streams, and send one observation on each."""
    stage.begin()
    begin = message({}) + message({"y": [1.0, 0.5]})
    stage.count("streams held", len(stage.open_many(1_000, lambda wire: wire.send(begin), on_stream=True)))
    stage.sleep(stage.left)


@attack(12, seconds=30)
def streams_everywhere(stage: Stage) -> None:
    """One client opens live streams until none is left. Another client must still get one."""
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


@attack(12, seconds=20)
def silence_of_thousands(stage: Stage) -> None:
    """Open 4,000 silent sockets."""
    stage.begin()
    open_wires = stage.open_many(SILENT)
    stage.sleep(stage.left)
    stage.count("connections held", len(open_wires))


# High rates.


@attack(12)
def connections_opened_and_closed(stage: Stage) -> None:
    """Open connections at the highest rate: close at once, reset, or close after a request."""
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
    """Open live streams at the highest rate, and reset each after its first observation."""
    data = message({"horizon": [0.1] * 16, "samples": 64}) + message({"y": [1.0, 0.5]}) * 5
    stage.begin()

    def come_and_go(wire: Wire) -> None:
        wire.send(data)
        wire.reset()

    stage.lanes(8, come_and_go, on_stream=True)


@attack(12)
def requests_left(stage: Stage) -> None:
    """Send expensive requests whose client disconnects at once."""
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
    """Send 100,000 requests for /health on one connection without reading an answer, on four connections."""
    requests = head("GET", "/health") * 1_000
    stage.begin()

    def send(wire: Wire) -> None:
        for _ in range(100):
            wire.send(requests)
        stage.sleep(1.0)

    stage.lanes(4, send, receive_buffer=SMALL_BUFFER)


@attack(12)
def pipeline_read(stage: Stage) -> None:
    """Send sixty requests at a time and read every answer, repeatedly, on four connections."""
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
    """Send series in a pipeline without reading an answer, on eight connections."""
    requests = post("/filter", {"observations": [[1.0, 0.5]] * 2_000}) * 60
    stage.begin()

    def send(wire: Wire) -> None:
        wire.send(requests)
        stage.sleep(stage.left)

    stage.lanes(8, send, receive_buffer=SMALL_BUFFER)


@attack(12)
def handshakes_and_frames_at_once(stage: Stage) -> None:
    """Send a handshake with 250 kB of frames in one piece, repeatedly."""
    frames = message({}) + message({"y": [1.0, 0.5]}) * 8_000
    stage.begin()

    def send(wire: Wire) -> None:
        wire.send(handshake() + frames)
        while True:
            wire.skim()

    stage.lanes(4, send)
