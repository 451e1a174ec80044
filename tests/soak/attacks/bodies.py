"""Family 4: bodies within the limit of size that cost far more to check than to send."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator

from tests.soak.answers import Answer
from tests.soak.attacks.catalogue import Drive, add, asking, attack
from tests.soak.attacks.stage import Stage
from tests.soak.attacks.wire import Wire
from tests.soak.requests import frame, message, post

MOST_BYTES = 1_900_000
REFUSALS = frozenset({400, 413, 422, 429, 503})
# An answer that listed every mistake would also be expensive.
MOST_ANSWER_BYTES = 65_536
LANES = 10


def filled(opening: str, item: str, closing: str, size: int = MOST_BYTES) -> bytes:
    """Return a body of so many equal items."""
    count = (size - len(opening) - len(closing)) // (len(item) + 1)
    return (opening + ",".join([item] * count) + closing).encode()


def numbered(opening: str, item: Callable[[int], str], closing: str, count: int) -> bytes:
    """Return a body of different items."""
    return (opening + ",".join(map(item, range(count))) + closing).encode()


def nested(depth: int, size: int = MOST_BYTES) -> bytes:
    """Return many lists of the maximum depth."""
    tower = "[" * depth + "]" * depth
    return filled('{"observations":[', tower, "]}", size)


# Opening, repeated item and closing of bodies that must be rejected, by path.
REPEATED = {
    "/filter": [
        ('{"observations":[', "0", "]}"),
        ('{"observations":[', '"a"', "]}"),
        ('{"observations":[', "{}", "]}"),
        ('{"observations":[[1]],"times":[', '"a"', "]}"),
        ('{"observations":[[1]],"noise":[', "-1", "]}"),
        ('{"observations":[[1]],"horizon":[', "0", "]}"),
        ('{"observations":[[1]],"levels":[', "2", "]}"),
        ('{"observations":[[', '"a"', "]]}"),
        ('{"observations":[', "[true]", "]}"),
        ("{", '"a":0', "}"),
        ('{"observations":[', "[" + "9" * 100_000 + "]", "]}"),
        ('{"observations":[', "[1e" + "9" * 100_000 + "]", "]}"),
        ('{"model":"linear","observations":[', "[0." + "1" * 100_000 + "]", "]}"),
        ("[", "0", "]"),
    ],
    "/generate": [('{"inputs":"a","parameters":{"stop":[', '""', "]}}"), ('{"inputs":[', "0", "]}")],
    "/v1/completions": [
        ('{"prompt":[', '"a"', ",0]}"),
        ('{"prompt":[', "0", ',"a"]}'),
        ('{"prompt":[', "[0]", "]}"),
        ('{"prompt":[', "-1", "]}"),
        ('{"prompt":[', "true", "]}"),
        ('{"prompt":"a","stop":[', '"a"', "]}"),
        ('{"prompt":"a","logit_bias":{', '"a":1', "}}"),
    ],
    "/": [('{"inputs":"a","parameters":{', '"a":{}', "}}")],
}


def invalid_bodies() -> Iterator[tuple[str, bytes]]:
    """Return a path and a body that must be rejected."""
    for path, parts in REPEATED.items():
        yield from ((path, filled(*each)) for each in parts)
    yield "/filter", numbered("{", lambda number: f'"x{number}":0', "}", 160_000)
    yield "/filter", filled('{"observations":', '[0],"observations":', "[0]}").replace(b",[0]}", b"[0]}")
    yield "/filter", nested(28)
    yield "/generate", numbered('{"inputs":"a","parameters":{', lambda number: f'"x{number}":0', "}}", 160_000)
    yield "/generate", ('{"inputs":"a","state":"' + "v" * MOST_BYTES + '"}').encode()


def repeating(choose: Callable[[], list[tuple[str, bytes]]], lanes: int, *more: int) -> Drive:
    """Return an attack that sends some bodies in turn. Each gets a short rejection, or a status of `more`."""

    def look(stage: Stage, answer: Answer) -> None:
        stage.claim("a refusal is short", answer.size <= MOST_ANSWER_BYTES, answer.size)

    return asking(
        lambda: [post(*each) for each in choose()], lanes, "a bad body is refused", REFUSALS.union(more), look=look
    )


def numbers() -> list[tuple[str, bytes]]:
    """Send 900,000 numbers in place of lists."""
    return [next(invalid_bodies())]


def all_mixed() -> list[tuple[str, bytes]]:
    """Send all bodies."""
    found = list(invalid_bodies())
    random.Random(1).shuffle(found)
    return found


def long_series() -> list[tuple[str, bytes]]:
    """Return a series of 10,000 observations that is valid except for its model."""
    observations = [[0.1234567890123456789, None]] * 10_000
    series = {"observations": observations, "times": list(range(10_000)), "noise": [1.0] * 10_000}
    return [("/filter", json.dumps({**series, "model": "nothing"}).encode())]


for name, about, drive in (
    ("numbers-invalid", "900,000 numbers where lists should be, on one connection.", repeating(numbers, 1)),
    ("numbers-invalid-tenfold", "The same on ten connections.", repeating(numbers, LANES)),
    ("bodies-of-all-kinds", "Every bad body in turn, on ten connections.", repeating(all_mixed, LANES)),
    (
        "bodies-valid-and-long",
        "Series of 10,000 observations that are legal but for the model: checking them may not hold others up.",
        repeating(long_series, 4, 404),
    ),
):
    add(4, name, about, drive)


@attack(4)
def frames_invalid(stage: Stage) -> None:
    """Send the same on WebSockets: first frames and observations of 250 kB that must be rejected."""
    size = 250_000
    first = [
        filled('{"levels":[', '"a"', "]}", size),
        filled("{", '"a":0', "}", size),
        numbered("{", lambda number: f'"x{number}":0', "}", 20_000),
        filled('{"horizon":[', "0", "]}", size),
        b'{"state":"' + b"v" * size + b'"}',
        nested(30, size),
        b"[" * size,
    ]
    then = [
        filled('{"y":[', '"a"', "]}", size),
        filled('{"y":[', "0", "]}", size),
        numbered('{"y":[0,0],', lambda number: f'"x{number}":0', "}", 20_000),
        b'{"y":[' + b"9" * size + b"]}",
    ]
    end = message({"close": True})
    cases = [frame(body) for body in first] + [message({}) + frame(body) + end for body in then]
    stage.begin()
    turns = itertools.cycle(cases)

    def send(wire: Wire) -> None:
        wire.send(next(turns))
        code = wire.close_code()
        stage.claim("a bad frame ends the stream with a code", code in (1000, 1003, 1007, 1008, 1009, 1013), code)

    stage.lanes(LANES, send, on_stream=True)
