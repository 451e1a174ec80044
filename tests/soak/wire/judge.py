"""Compares what a client received with what must become of its parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.soak.answers import Answer, AnswerReader, Malformed
from tests.soak.wire.cases import Case, Part
from tests.soak.wire.client import Seen

NONCE = re.compile(r"w[0-9a-f]+-([hb])-([0-9a-f]+)-[0-9a-f]+")
ID_FIELD = re.compile(rb"^x-request-id: *([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
# What a server does not implement, and errors of a busy one: answers, not failures.
NOT_IMPLEMENTED = (501, 505)
OVERLOAD_CODES = ("not_ready", "overloaded", "too_many_connections")
MOST_BYTES = 1 << 24


@dataclass
class Verdict:
    """What was wrong, as pairs of a kind and a detail."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    answers: int = 0
    refusals: int = 0

    def blame(self, kind: str, detail: object) -> None:
        """Add a problem."""
        self.problems.append((kind, str(detail)[:300]))


def judge(case: Case, seen: Seen, *, is_proxied: bool = False) -> Verdict:
    """Judge one connection. A proxy refuses and mends some input itself, so only the laws of all streams are judged."""
    verdict = Verdict()
    try:
        answers, rest = read_answers(seen.received, {part.id for part in case.parts if part.is_head})
    except Malformed as error:
        verdict.blame("malformed answer", error)
        return verdict
    finals = [answer for answer in answers if not answer.is_interim]
    verdict.answers = len(finals)
    verdict.refusals = sum(answer.status >= 400 and answer.closes for answer in finals)
    _check_all(case, finals, verdict, is_proxied=is_proxied)
    if not is_proxied or all(part.outcome == "answered" for part in case.parts):
        left = _check_parts(case, finals, seen.outcome == "left", verdict)
        if left:
            verdict.blame("extra answer", left[0])
    if finals and finals[-1].status == 101:
        _check_stream(case.parts[-1], rest, seen.outcome == "left", verdict)
    elif rest and seen.outcome == "closed":
        verdict.blame("malformed answer", rest[:80])
    if seen.outcome == "open":
        verdict.blame("not closed", finals[-1:])
    # After the last byte of a client a 100 asks whether it is still there (RFC 9110, 15.2).
    may_continue = case.end == "half-close" or any(part.expects for part in case.parts)
    if not may_continue and any(answer.is_interim for answer in answers):
        verdict.blame("wrong interim", answers)
    return verdict


def read_answers(data: bytes, heads: set[str]) -> tuple[list[Answer], bytes]:
    """Return the complete answers, and the bytes after them.

    Args:
        heads: Ids of requests whose answers have no body.

    Raises:
        Malformed: The bytes are not HTTP.
    """
    answers: list[Answer] = []
    while data and (not answers or answers[-1].status != 101):
        first = ID_FIELD.search(data, 0, data.find(b"\r\n\r\n") + 1)
        is_head = first is not None and first[1].decode("latin-1") in heads
        reader = AnswerReader(iter((data, b"")).__next__, MOST_BYTES)
        try:
            answer = reader.take("HEAD" if is_head else "GET")
        except Malformed:
            raise
        except ConnectionError:  # the last answer is not complete
            break
        assert answer is not None
        answers.append(answer)
        data = reader.buffer
    return answers, data


def _check_all(case: Case, answers: Sequence[Answer], verdict: Verdict, *, is_proxied: bool) -> None:
    """Check the laws of all streams: whose answer it is, one for each request, and none after a close."""
    data, seen = case.data, set[str]()
    for number, answer in enumerate(answers):
        if not answer.id and not is_proxied:
            verdict.blame("no request id", answer)
        if nonce := NONCE.fullmatch(answer.id):
            if nonce[1] == "b":
                verdict.blame("smuggled", answer)
            elif answer.id.encode() not in data or answer.headers.get("x-asked", answer.id) != answer.id:
                verdict.blame("wrong client", answer)
            elif answer.id in seen and data.count(answer.id.encode()) == 1:
                verdict.blame("extra answer", answer)
            seen.add(answer.id)
        if answer.status >= 500 and answer.status not in NOT_IMPLEMENTED and _code(answer) not in OVERLOAD_CODES:
            verdict.blame("server error", answer)
        if answer.status >= 400 and answer.error is None and answer.id and answer.body:
            verdict.blame("error of another shape", answer)
        if answer.closes and number + 1 < len(answers):
            verdict.blame("answer after a close", answers[number + 1])


def _check_parts(case: Case, answers: Sequence[Answer], has_left: bool, verdict: Verdict) -> Sequence[Answer]:
    """Check each part's outcome in order. Return the answers that no part explains."""
    left = list(answers)
    for part in case.parts:
        if part.outcome == "unknown":
            return ()
        if not left:
            if not has_left and part.outcome != "either":
                verdict.blame("refusal lost" if part.outcome == "refused" else "unanswered", part)
            return ()
        answer = left.pop(0)
        if part.outcome == "refused":
            if answer.status < 400:
                verdict.blame("taken", (answer, part))
            return left
        is_own = answer.id == part.id
        if part.outcome == "answered" and not is_own:
            verdict.blame("wrong request id", (answer, part))
        if part.statuses and answer.status not in part.statuses:
            verdict.blame("wrong status", (answer, part))
        if part.steps is not None and answer.status == 200 and _steps(answer) != list(part.steps):
            verdict.blame("wrong numbers", (answer, part))
        if part.outcome == "either" and (answer.closes or not is_own or (not left and answer.status >= 400)):
            return left
    return left


def _code(answer: Answer) -> object:
    return (answer.error or {}).get("code")


def _steps(answer: Answer) -> Any:
    try:
        return orjson.loads(answer.body)["steps"]
    except (ValueError, KeyError, TypeError):
        return answer.body


def _check_stream(part: Part, data: bytes, has_left: bool, verdict: Verdict) -> None:
    """Check the frames of the server: its answers in order, and the code with which it closes."""
    protocol = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN)
    protocol.receive_data(data)
    messages = [event.data for event in protocol.events_received() if getattr(event, "opcode", 8) < 3]
    if protocol.parser_exc is not None:
        verdict.blame("wrong frames", protocol.parser_exc)
        return
    documents = [orjson.loads(message) for message in messages]
    documents = [document for document in documents if "error" not in document]
    expected: list[Any] = ["ready", *(part.steps or ()), "done"]
    got = [next((name for name in ("ready", "done") if name in document), document) for document in documents]
    code = protocol.close_rcvd.code if protocol.close_rcvd else None
    if has_left and code is None:
        expected = expected[: len(got)]
    elif code not in part.codes:
        verdict.blame("wrong close code", (code, part.codes))
    if got != (expected if code == 1000 else expected[: len(got)]):
        verdict.blame("wrong numbers", (got, expected))
