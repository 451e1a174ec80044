"""The oracle of the wire fuzzer: examples of the RFCs, permitted choices, and that each verdict can be reached."""

from __future__ import annotations

import json
import re

import pytest

from tests.soak.wire.application import FIRST_FRAME, KEY, LAST_FRAME, Truth
from tests.soak.wire.case import Case, Step
from tests.soak.wire.judge import judge, read_case
from tests.soak.wire.make_case import make_case
from tests.soak.wire.readings import Reading
from tests.soak.wire.rfc6455 import read_frames
from tests.soak.wire.rfc9112 import readings
from tests.soak.wire.verdict import Seen

HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


def read(data: bytes) -> list[Reading]:
    return list(readings(data))


def strict(data: bytes) -> Reading:
    return read(data)[0]


# RFC 9112.


LYING_LENGTHS = (
    b"Content-Length: +3", b"Content-Length: 3, 4", b"Content-Length: ", b"Transfer-Encoding: gzip",
    b"Content-Length: 3\r\nContent-Length: 4", b"Content-Length: 3\r\nTransfer-Encoding: chunked",
)  # fmt: skip


@pytest.mark.parametrize(
    ("data", "ending"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: x, Close\r\n\r\n" + GET, "closed"),
        (GET[:-1], "in head"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nabc", "in body"),
        (CHUNKED + b"g\r\n", "illegal body"),
        (CHUNKED + b"3\nabc\r\n0\r\n\r\n", "illegal body"),
        (CHUNKED + b"0\r\n" + b"T: u\r\n" * 50_000, "illegal body"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n", "illegal head"),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", "illegal head"),
        (b"\x16\x03\x01\r\n\r\n", "illegal head"),
        *((b"POST / HTTP/1.1\r\n" + HOST + one + b"\r\n\r\n0\r\n\r\n" + GET, "illegal head") for one in LYING_LENGTHS),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 50_000, "illegal head"),
    ],
)
def test_where_a_stream_ends(data: bytes, ending: str) -> None:
    assert strict(data).ending == ending


@pytest.mark.parametrize(
    ("data", "choice"),
    [
        (GET.replace(b"\r\n", b"\n") + GET, "bare LF ends a line"),
        (b"\r\n" + GET, "empty line before a request"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", "folded line"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\rc\r\n\r\n", "bare CR is a space"),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\0c\r\n\r\n", "NUL is a space"),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", "whitespace in the request line"),
        (b"GET /| HTTP/1.1\r\n" + HOST + b"\r\n", "character in the target"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0, 0\r\n\r\n", "equal Content-Lengths"),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", "empty list element"),
        (CHUNKED + b"0 \r\n\r\n", "whitespace after a chunk size"),
        (CHUNKED + b"00000000000000000000000\r\n\r\n", "long numeral"),
        (CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n", "framing in a trailer"),
        (GET * 61, "many requests waiting"),
    ],
)
def test_a_choice_of_the_server_is_two_readings(data: bytes, choice: str) -> None:
    refusing, taking = read(data)
    assert refusing.ending.startswith("illegal") and 400 in refusing.statuses
    assert taking.ending == "boundary" and taking.granted == {choice}
    assert any(choice in request.notes for request in taking.requests)


# RFC 6455, section 5.7.


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        ("810548656c6c6f", {1002}),  # not masked
        ("c18000000000", {1002}),  # a reserved bit
        ("89fe007e00000000" + "00" * 126, {1002}),  # a long ping
        ("018000000000818000000000", {1002}),  # a message inside another
        ("818100000000ff", {1007}),  # not UTF-8
        ("88810000000003", {1002}),  # half a close code
        ("88830000000003e8ff", {1002, 1007}),  # a reason that is not UTF-8
        ("81ff8000000000000000", {1002, 1009}),  # a length beyond 2^63
    ],
)
def test_a_fault_has_its_close_codes(data: str, codes: set[int]) -> None:
    assert read_frames(bytes.fromhex(data), "client").faults == codes


# Answers.


# Verdicts.

OBSERVATIONS = [[[0.5, 0.25], [1.0, 2.0]], [[1.5, 0.5], [3.0, 4.0]]]
TRUTH = Truth(OBSERVATIONS, [[{"mean": 1}, {"mean": 2}], [{"mean": 3}, {"mean": 4}]])
BAIT = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-ID: w1-b-0-9\r\n\r\n"


def ask(number: int, *, fields: str = "", body: bytes = b"", path: str = "/health") -> bytes:
    method = "POST" if body else "GET"
    length = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n" if body else ""
    ours = f"X-API-Key: {KEY}\r\nX-Request-ID: w1-h-0-{number}\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{ours}{length}{fields}\r\n"
    return head.encode() + body


def say(status: int, nonce: str, body: bytes = b"{}", fields: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status} X\r\nX-Request-ID: {nonce}\r\nContent-Length: {len(body)}\r\n{fields}\r\n".encode() + body
    )


def refuse(
    status: int, fields: str = "Connection: close\r\n", nonce: str = "0123456789abcdef", code: str = "x"
) -> bytes:
    error = {"message": "", "type": "", "param": None, "code": code}
    return say(status, nonce, json.dumps({"error": error}).encode(), fields)


LAST = "Connection: close\r\n"
TWO = ask(1) + ask(2, fields=LAST)
POSTS = ask(1, path="/filter", body=TRUTH.body(0, 1)) + ask(2, fields=LAST)
LYING = ask(1) + b"POST /nope HTTP/1.1\r\nContent-Length: x\r\n\r\n" + ask(2)
BROKEN = (
    b"POST /nope HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: "
    + KEY.encode()
    + b"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
)
BAITED = ask(1, path="/nope", body=BAIT) + ask(2, fields=LAST)
TRAILING = (
    b"POST /filter HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-ID: w1-h-0-1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-API-Key: %s\r\n\r\n"
    % (len(TRUTH.body(0, 1)), TRUTH.body(0, 1), KEY.encode())
) + ask(2, fields=LAST)
OK1, OK2 = say(200, "w1-h-0-1"), say(200, "w1-h-0-2")
STEPS = b'{"steps": [{"mean": 1}]}'
NOT_FOUND, UNAUTHORIZED = refuse(404, "", "w1-h-0-1"), refuse(401, "", "w1-h-0-1")


@pytest.mark.parametrize(
    ("sent", "received", "outcome", "kinds"),
    [
        (TWO, OK1 + OK2, "closed", []),
        (TWO, OK1, "closed", ["unanswered"]),
        (TWO, OK1 + OK2, "open", ["not closed"]),
        (TWO, OK1 + OK2 + OK2, "closed", ["extra answer"]),
        (TWO, say(200, "w1-h-7-1") + OK2, "closed", ["wrong client"]),
        (TWO, say(200, "0123456789abcdef") + OK2, "closed", ["wrong request id"]),
        (TWO, OK1.replace(b"X-Request-ID", b"X-Other") + OK2, "closed", ["no request id"]),
        (TWO, refuse(500, "", "w1-h-0-1") + OK2, "closed", ["server error"]),
        (TWO, refuse(429, "", "w1-h-0-1", "overloaded") + OK2, "closed", []),
        (TWO, refuse(503, "", "w1-h-0-1", "x") + OK2, "closed", ["server error"]),
        (TWO, b"HTTP/1.1 100 Continue\r\n\r\n" + OK1 + OK2, "closed", ["wrong interim"]),
        (TWO, OK1 + b"junk", "closed", ["malformed answer"]),
        (POSTS, say(200, "w1-h-0-1", STEPS.replace(b"1", b"3")) + OK2, "closed", ["another's numbers"]),
        (POSTS, say(200, "w1-h-0-1", STEPS.replace(b"1", b"9")) + OK2, "closed", ["wrong content"]),
        (LYING, OK1 + refuse(400), "closed", []),
        (LYING, OK1 + refuse(400, ""), "closed", ["goes on"]),
        (LYING, OK1, "reset", ["refusal lost"]),
        (BROKEN, refuse(404, "", "0123456789abcdef"), "closed", []),
        (BROKEN, b"", "closed", ["refusal lost"]),
        (BAITED, NOT_FOUND + OK2, "closed", []),
        (BAITED, NOT_FOUND + say(200, "w1-b-0-9"), "closed", ["smuggled"]),
        (TRAILING, UNAUTHORIZED + OK2, "closed", []),
        (TRAILING, say(200, "w1-h-0-1", STEPS) + OK2, "closed", ["trailer authenticates"]),
    ],
)  # fmt: skip
def test_a_verdict(sent: bytes, received: bytes, outcome: str, kinds: list[str]) -> None:
    case = Case(0, "test", (Step("send", sent),))
    verdict = judge(case, Seen(received, outcome), TRUTH, read_case(case))  # type: ignore[arg-type]
    assert [problem.kind for problem in verdict.problems] == kinds


HANDSHAKE = (
    f"GET /filter/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {KEY}\r\nX-Request-ID: w1-h-0-1\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Request-ID: w1-h-0-1\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


def masked(*payloads: bytes, first: int = 0x81) -> bytes:
    return b"".join(bytes([first, 0x80 | len(payload)]) + bytes(4) + payload for payload in payloads)


def plain(*payloads: bytes, first: int = 0x81) -> bytes:
    return b"".join(bytes([first, len(payload)]) + payload for payload in payloads)


TEXTS = (FIRST_FRAME.encode(), TRUTH.frame(1, 0).encode())
DIALOGUE = HANDSHAKE + masked(*TEXTS, LAST_FRAME.encode())
READY, STEP, DONE = b'{"ready": true}', b'{"mean": 3}', b'{"done": true}'
BYE = plain(b"\x03\xe8", first=0x88)


@pytest.mark.parametrize(
    ("sent", "received", "outcome", "kinds"),
    [
        (DIALOGUE, plain(READY, STEP, DONE) + BYE, "closed", []),
        (DIALOGUE, plain(READY, STEP, DONE) + BYE, "open", ["not closed"]),
        (DIALOGUE, plain(READY, STEP, DONE), "closed", ["wrong close code"]),
        (DIALOGUE, plain(READY, DONE) + BYE, "closed", ["wrong frames"]),
        (DIALOGUE, plain(READY) + plain(b"x", first=0x8A), "reset", ["wrong frames"]),
        (HANDSHAKE + masked(b"x", first=0x83), plain(b"\x03\xea", first=0x88), "closed", []),
        (HANDSHAKE + masked(b"x", first=0x83), plain(b"\x03\xe8", first=0x88), "closed", ["wrong close code"]),
        (HANDSHAKE + masked(b"x", first=0x89), plain(b"x", first=0x8A), "open", []),
    ],
)
def test_a_verdict_on_a_stream(sent: bytes, received: bytes, outcome: str, kinds: list[str]) -> None:
    case = Case(0, "test", (Step("send", sent),))
    verdict = judge(case, Seen(SWITCHED + received, outcome), TRUTH, read_case(case))  # type: ignore[arg-type]
    assert [problem.kind for problem in verdict.problems] == kinds


# Through a proxy.


# A mutation gave the second head the id of the first.
TWO_OF_ONE_ID = TWO.replace(b"w1-h-0-2", b"w1-h-0-1")
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"


def asked(answer: bytes, nonce: str) -> bytes:
    return answer.replace(b"\r\n", f"\r\nX-Asked: {nonce}\r\n".encode(), 1)


@pytest.mark.parametrize(
    ("sent", "received", "kinds"),
    [
        (TWO, asked(OK1, "w1-h-0-1") + asked(OK2, "w1-h-0-2"), []),
        (TWO, asked(OK1, "w1-h-0-1"), ["unanswered"]),
        (TWO, asked(OK1, "w1-h-0-1") + asked(say(200, "w1-h-5-2"), "w1-h-0-2"), ["wrong client"]),
        (TWO, asked(OK1, "w1-h-0-1") + asked(BAD_GATEWAY, "w1-h-0-2"), ["server error"]),
        (BAITED, asked(NOT_FOUND, "w1-h-0-1") + asked(say(200, "w1-b-0-9"), "w1-h-0-2"), ["wrong client"]),
        (BAITED, asked(NOT_FOUND, "w1-h-0-1") + asked(say(200, "w1-b-0-9"), "w1-b-0-9"), ["smuggled", "unanswered"]),
        (TWO_OF_ONE_ID, asked(NOT_FOUND, "w1-h-0-1") + asked(OK1, "w1-h-0-1"), []),
        (LYING, asked(OK1, "w1-h-0-1") + b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", []),
    ],
)  # fmt: skip
def test_a_verdict_through_a_proxy(sent: bytes, received: bytes, kinds: list[str]) -> None:
    case = Case(0, "test", (Step("send", sent),))
    verdict = judge(case, Seen(received, "closed"), TRUTH, read_case(case), is_proxied=True)
    assert [problem.kind for problem in verdict.problems] == kinds


# Cases.


def test_the_grammar_reaches_every_ending_and_every_choice() -> None:
    found = [reading for index in range(2_000) for reading in read_case(make_case(1, index, TRUTH))]
    assert {reading.ending for reading in found} == {
        "boundary", "in head", "in body", "illegal head", "illegal body", "closed", "switched"
    }  # fmt: skip
    text = "".join(str(sorted(reading.granted)) for reading in found)
    assert len(set(re.findall(r"'([^']+)'", text))) >= 20
