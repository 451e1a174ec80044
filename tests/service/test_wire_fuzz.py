"""The wire fuzzer in small: some hundred cases against a real server, and answers that its judge must find wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from websockets.frames import Frame, Opcode

from rfa.benchmarks.load.truth import open_models
from tests.service.live import Live, running
from tests.soak.wire.cases import BUNDLE, KEY, Case, Part, Truth, post, request
from tests.soak.wire.client import Seen, play
from tests.soak.wire.judge import judge
from tests.soak.wire.streams import handshake, make_case
from tests.waiting import wait_until

CASES = 400
AT_ONCE = 16
SEED = 18
# Longer than the timeouts of the server below.
SILENCE_SECONDS = 10


async def wrong_answers(live: Live, truth: Truth) -> list[str]:
    """Play the cases, some at once; what must not have happened."""
    wrong: list[str] = []
    indices = iter(range(CASES))

    async def work() -> None:
        for index in indices:
            case = make_case(SEED, index, truth)
            verdict = judge(case, await play(case, live.port, SILENCE_SECONDS))
            wrong.extend(f"{index} {case.kind}: {kind}: {detail}" for kind, detail in verdict.problems)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return wrong


def test_every_request_is_answered_once_to_the_one_who_sent_it() -> None:
    truth = Truth.compute(64)
    limits: dict[str, Any] = {"header_timeout_seconds": 5, "body_timeout_seconds": 5, "api_keys": KEY}
    with running(open_models([BUNDLE]), **limits) as live:
        wrong = asyncio.run(wrong_answers(live, truth))
        wait_until(lambda: live.server.open_connections() == 0)
        engine = live.app.state.engine
        wait_until(lambda: engine.pool_slots_in_use == 0 and engine._scheduler.streams == 0)
    assert not wrong, "\n".join(wrong)


# Verdicts on planted answers.

OBSERVATIONS = [[[0.5, 0.25], [1.0, 2.0]], [[1.5, 0.5], [3.0, 4.0]]]
TRUTH = Truth(OBSERVATIONS, [[{"mean": 1}, {"mean": 2}], [{"mean": 3}, {"mean": 4}]])
ID1, ID2 = "w1-h-0-1", "w1-h-0-2"


def ask(name: str, *fields: bytes, **options: Any) -> Part:
    return Part((request(b"GET", b"/health", name, *fields),), "answered", name, frozenset({200}), **options)


def say(status: int, name: str, document: Any = None, *, closes: bool = False) -> bytes:
    error = {"message": "", "type": "", "param": None, "code": document}
    body = json.dumps({"error": error} if status >= 400 else document).encode()
    lines = f"X-Request-ID: {name}\r\nContent-Length: {len(body)}\r\n" + "Connection: close\r\n" * closes
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


TWO = (ask(ID1), ask(ID2))
BAD = (ask(ID1), Part((post(ID2, b"Content-Length: x"),), "refused"), ask("w1-h-0-3"))
CHOICE = (Part((request(b"FOO", b"/", ID1),), "either", ID1), ask(ID2))
SERIES = (Part((post(ID1, b"Content-Length: 1"),), "answered", ID1, frozenset({200}), ({"mean": 1},)),)
OK1, OK2, NO = say(200, ID1), say(200, ID2), say(400, "0123", closes=True)


@pytest.mark.parametrize(
    ("parts", "received", "outcome", "kinds"),
    [
        (TWO, OK1 + OK2, "closed", set()),
        (TWO, OK1, "closed", {"unanswered"}),
        (TWO, OK1, "left", set()),
        (TWO, OK1 + OK2, "open", {"not closed"}),
        (TWO, OK1 + OK2 + OK2, "closed", {"extra answer"}),
        (TWO, OK2 + OK1, "closed", {"wrong request id"}),
        (TWO, say(200, "w1-h-7-1") + OK2, "closed", {"wrong client", "wrong request id"}),
        (TWO, say(200, "w1-b-0-9") + OK2, "closed", {"smuggled", "wrong request id"}),
        (TWO, say(200, "") + OK2, "closed", {"no request id", "wrong request id"}),
        (TWO, say(500, ID1) + OK2, "closed", {"server error", "wrong status"}),
        (TWO, b"HTTP/1.1 100 Continue\r\n\r\n" + OK1 + OK2, "closed", {"wrong interim"}),
        (TWO, OK1 + OK2 + b"junk\r\n\r\n", "closed", {"malformed answer"}),
        (TWO, say(200, ID1, closes=True) + OK2, "closed", {"answer after a close"}),
        (SERIES, say(200, ID1, {"steps": [{"mean": 1}]}), "closed", set()),
        (SERIES, say(200, ID1, {"steps": [{"mean": 3}]}), "closed", {"wrong numbers"}),
        (BAD, OK1 + NO, "closed", set()),
        (BAD, OK1, "reset", {"refusal lost"}),
        (BAD, OK1 + say(200, ID2), "closed", {"taken"}),
        (BAD, OK1 + NO + say(200, "w1-h-0-3"), "closed", {"extra answer", "answer after a close"}),
        (CHOICE, NO, "closed", set()),
        (CHOICE, OK1 + OK2, "closed", set()),
        (CHOICE, OK1, "closed", {"unanswered"}),
    ],
)  # fmt: skip
def test_a_verdict(parts: tuple[Part, ...], received: bytes, outcome: Literal["closed"], kinds: set[str]) -> None:
    case = Case(0, "test", parts, 0, "wait")
    assert {kind for kind, _ in judge(case, Seen(received, outcome)).problems} == kinds


SWITCHED = b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Request-ID: " + ID1.encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("texts", "code", "kinds"),
    [
        (('{"ready": 1}', '{"mean": 1}', '{"done": 1}'), 1000, set()),
        (('{"ready": 1}', '{"done": 1}'), 1000, {"wrong numbers"}),
        (('{"ready": 1}', '{"mean": 3}', '{"done": 1}'), 1000, {"wrong numbers"}),
        (('{"ready": 1}', '{"mean": 1}', '{"done": 1}'), 1002, {"wrong close code"}),
        (('{"ready": 1}', '{"mean": 1}', '{"done": 1}'), None, {"wrong close code"}),
    ],
)
def test_a_verdict_on_a_stream(texts: tuple[str, ...], code: int | None, kinds: set[str]) -> None:
    frames = [Frame(Opcode.TEXT, text.encode()) for text in texts]
    frames += [] if code is None else [Frame(Opcode.CLOSE, code.to_bytes(2, "big"))]
    data = SWITCHED + b"".join(frame.serialize(mask=False) for frame in frames)
    part = Part((handshake(ID1),), "answered", ID1, frozenset({101}), ({"mean": 1},), frozenset({1000}))
    verdict = judge(Case(0, "test", (part,), 0, "wait"), Seen(data, "closed"))
    assert {kind for kind, _ in verdict.problems} == kinds


def test_a_case_is_a_function_of_its_number_and_every_outcome_occurs() -> None:
    cases = [make_case(3, index, TRUTH) for index in range(300)]
    assert cases == [make_case(3, index, TRUTH) for index in range(300)]
    assert {part.outcome for case in cases for part in case.parts} == {"answered", "refused", "either", "unknown"}
