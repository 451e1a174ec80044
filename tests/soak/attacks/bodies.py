"""Family 4: bodies within the limit of size that cost far more to check than to send."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from tests.soak.attacks.answers import Answer
from tests.soak.attacks.catalogue import attack
from tests.soak.attacks.stage import Over, Stage, frame, message, post

ROOM = 1_900_000
REFUSALS = frozenset({400, 413, 422, 429, 503})
# An answer that told every mistake would be a second bomb.
MOST_ANSWER_BYTES = 65_536
LANES = 10


def filled(opening: str, item: str, closing: str, room: int = ROOM) -> bytes:
    """A body of so many equal items."""
    count = (room - len(opening) - len(closing)) // (len(item) + 1)
    return (opening + ",".join([item] * count) + closing).encode()


def numbered(opening: str, item: Callable[[int], str], closing: str, count: int) -> bytes:
    """A body of items that differ."""
    return (opening + ",".join(map(item, range(count))) + closing).encode()


def nested(depth: int, room: int = ROOM) -> bytes:
    """Lists as deep as they may be, many beside each other."""
    tower = "[" * depth + "]" * depth
    return filled('{"observations":[', tower, "]}", room)


def invalid_bodies() -> Iterator[tuple[str, bytes]]:
    """A path and a body that must be refused."""
    yield "/filter", filled('{"observations":[', "0", "]}")
    yield "/filter", filled('{"observations":[', '"a"', "]}")
    yield "/filter", filled('{"observations":[', "{}", "]}")
    yield "/filter", filled('{"observations":[[1]],"times":[', '"a"', "]}")
    yield "/filter", filled('{"observations":[[1]],"noise":[', "-1", "]}")
    yield "/filter", filled('{"observations":[[1]],"horizon":[', "0", "]}")
    yield "/filter", filled('{"observations":[[1]],"levels":[', "2", "]}")
    yield "/filter", filled('{"observations":[[', '"a"', "]]}")
    yield "/filter", filled('{"observations":[', "[true]", "]}")
    yield "/filter", numbered("{", lambda number: f'"x{number}":0', "}", 160_000)
    yield "/filter", filled("{", '"a":0', "}")
    yield "/filter", filled('{"observations":', '[0],"observations":', "[0]}").replace(b",[0]}", b"[0]}")
    yield "/filter", nested(28)
    yield "/filter", filled('{"observations":[', "[" + "9" * 100_000 + "]", "]}")
    yield "/filter", filled('{"observations":[', "[1e" + "9" * 100_000 + "]", "]}")
    yield "/filter", filled('{"observations":[', "[0." + "1" * 100_000 + "]", "]}")
    yield "/filter", filled("[", "0", "]")
    yield "/generate", numbered('{"inputs":"a","parameters":{', lambda number: f'"x{number}":0', "}}", 160_000)
    yield "/generate", filled('{"inputs":"a","parameters":{"stop":[', '""', "]}}")
    yield "/generate", filled('{"inputs":[', "0", "]}")
    yield "/generate", ('{"inputs":"a","state":"' + "v" * ROOM + '"}').encode()
    yield "/v1/completions", filled('{"prompt":[', '"a"', ",0]}")
    yield "/v1/completions", filled('{"prompt":[', "0", ',"a"]}')
    yield "/v1/completions", filled('{"prompt":[', "[0]", "]}")
    yield "/v1/completions", filled('{"prompt":[', "-1", "]}")
    yield "/v1/completions", filled('{"prompt":[', "true", "]}")
    yield "/v1/completions", filled('{"prompt":"a","stop":[', '"a"', "]}")
    yield "/v1/completions", filled('{"prompt":"a","logit_bias":{', '"a":1', "}}")
    yield "/", filled('{"inputs":"a","parameters":{', '"a":{}', "}}")


def repeat(stage: Stage, requests: list[bytes], lanes: int) -> None:
    """Ask these in turn on some connections; each answer a small refusal."""
    stage.begin()

    def look(answer: Answer) -> None:
        stage.claim("a refusal is short", answer.size <= MOST_ANSWER_BYTES, answer.size)

    stage.keep_asking(lanes, requests, "a bad body is refused", REFUSALS, look=look)


def bodies(*numbers: int) -> list[bytes]:
    """Requests with some of the bodies."""
    found = list(invalid_bodies())
    return [post(*found[number]) for number in numbers]


@attack(4)
def numbers_invalid(stage: Stage) -> None:
    """900,000 numbers where lists should be, one connection repeating."""
    repeat(stage, bodies(0), 1)


@attack(4)
def numbers_invalid_tenfold(stage: Stage) -> None:
    """The same on ten connections."""
    repeat(stage, bodies(0), LANES)


@attack(4)
def strings_invalid(stage: Stage) -> None:
    """480,000 strings where lists should be, on ten connections."""
    repeat(stage, bodies(1, 7), LANES)


@attack(4)
def fields_unknown(stage: Stage) -> None:
    """160,000 fields that nobody knows, and one field 300,000 times, on ten connections."""
    repeat(stage, bodies(9, 10, 11, 17, 28), LANES)


@attack(4)
def lists_nested(stage: Stage) -> None:
    """Lists nested to the limit, as many as there is room for, on ten connections."""
    repeat(stage, bodies(12), LANES)


@attack(4)
def integers_long(stage: Stage) -> None:
    """Numbers of 100,000 digits, on ten connections."""
    repeat(stage, bodies(13, 14, 15), LANES)


@attack(4)
def bodies_of_all_kinds(stage: Stage) -> None:
    """Every bad body in turn, on ten connections."""
    requests = [post(*each) for each in invalid_bodies()]
    random.Random(1).shuffle(requests)
    repeat(stage, requests, LANES)


@attack(4)
def bodies_valid_and_long(stage: Stage) -> None:
    """Series of 10,000 observations that are legal but for the model: checking them may not hold others up."""
    count = 10_000
    series = {
        "observations": [[0.1234567890123456789, None]] * count,
        "times": list(range(count)),
        "noise": [1.0] * count,
    }
    request = post("/filter", {**series, "model": "nothing"})
    stage.begin()
    stage.keep_asking(4, [request], "an unknown model is told", {404, *REFUSALS})


@attack(4)
def frames_invalid(stage: Stage) -> None:
    """The same on WebSockets: first frames and observations of 250 kB that must be refused."""
    room = 250_000
    first = [
        filled('{"levels":[', '"a"', "]}", room),
        filled("{", '"a":0', "}", room),
        numbered("{", lambda number: f'"x{number}":0', "}", 20_000),
        filled('{"horizon":[', "0", "]}", room),
        b'{"state":"' + b"v" * room + b'"}',
        nested(30, room),
        b"[" * room,
    ]
    then = [
        filled('{"y":[', '"a"', "]}", room),
        filled('{"y":[', "0", "]}", room),
        numbered('{"y":[0,0],', lambda number: f'"x{number}":0', "}", 20_000),
        b'{"y":[' + b"9" * room + b"]}",
    ]
    cases = [frame(body) for body in first] + [message({}) + frame(body) for body in then]
    stage.begin()
    turns = itertools.cycle(cases)

    def lane() -> None:
        while stage.is_on:
            try:
                with stage.upgrade() as wire:
                    wire.send(next(turns))
                    code = wire.close_code()
                stage.claim("a bad frame ends the stream with a code", code in (1003, 1007, 1008, 1009, 1013), code)
            except OSError:
                stage.count("connections lost")
                stage.sleep(0.02)
            except Over:
                return

    stage.together([lane] * LANES)
