"""What judges of both ways share: problems, verdicts, and checks of answers."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from tests.soak.wire.answers import Answer, read_answer
from tests.soak.wire.application import (
    FIRST_FRAME,
    LAST_FRAME,
    STRAY_FRAME,
    Expected,
    Truth,
)
from tests.soak.wire.case import Case
from tests.soak.wire.readings import Request
from tests.soak.wire.rfc6455 import Frames, read_frames

Outcome = Literal["closed", "reset", "open", "left", "refused"]
Kind = Literal[
    "wrong client",  # an answer with the request id of another client
    "smuggled",  # bytes of a body, or after the end, were answered as a request
    "another's numbers",  # a body with the results of other observations
    "wrong content",
    "server error",
    "wrong status",
    "trailer authenticates",
    "unanswered",
    "unanswered after half-close",
    "extra answer",  # more answers than requests
    "refusal lost",  # closed without an answer to invalid input
    "not closed",  # still open, although nothing may follow
    "goes on",  # a rejection that does not announce the close
    "no request id",
    "wrong request id",
    "wrong interim",
    "malformed answer",
    "error of another shape",
    "handshake",
    "wrong frames",
    "wrong close code",
    "not connected",
]
NONCE = re.compile(rb"w[0-9a-f]+-[a-z]-[0-9a-f]+-[0-9a-f]+")
ID_FIELD = re.compile(rb"(?i)\r\nx-request-id:[ \t]*([^\r\n]*?)[ \t]*\r\n")
ASKED_FIELD = re.compile(rb"(?i)\r\nx-asked:[ \t]*([^\r\n]*?)[ \t]*\r\n")
INTERIM = re.compile(rb"HTTP/1\.1 10[02-9] [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")
ANY_NONCE = re.compile(rb"\bw[0-9a-f]+-([a-z])-([0-9a-f]+)-[0-9a-f]+\b")
HANDSHAKE_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OVERLOAD = frozenset({429, 503})
OVERLOAD_CODES = frozenset({"overloaded", "queue_full", "queue_timeout", "too_many_connections", "not_ready"})
ANY_STEP = object()
# For a client that does not answer the server's pings; this one never does.
NO_PONG = 1011
LONGEST_MESSAGE = 2 * 262_144


class Problem(NamedTuple):
    """A violation."""

    kind: Kind
    detail: str


@dataclass(frozen=True)
class Seen:
    """The received bytes.

    Attributes:
        outcome: How the connection ended for the client.
    """

    received: bytes
    outcome: Outcome


@dataclass
class Verdict:
    """Problems under the reading that explains most, and counts."""

    problems: list[Problem] = field(default_factory=list)
    answers: int = 0
    refusals: int = 0
    overloads: int = 0
    reading: str = ""


class Judge:
    """The common part of both ways."""

    def __init__(self, case: Case, seen: Seen, truth: Truth) -> None:
        self._case = case
        self._seen = seen
        self._truth = truth
        self._data = seen.received
        self._result = Verdict()

    def _blame(self, kind: Kind, detail: str) -> None:
        self._result.problems.append(Problem(kind, detail[:300]))

    def _read(self, at: int, method: bytes) -> Answer | None:
        answer = read_answer(self._data, at, method)
        if answer is not None and method == b"HEAD" and answer.closes and answer.status >= 400:
            # A server that cannot parse a head does not know that its method is HEAD; nothing can follow.
            with_body = read_answer(self._data, at, b"GET")
            answer = with_body if with_body is not None and with_body.end == len(self._data) else answer
        if answer is not None:
            self._result.answers += 1
            if answer.status in OVERLOAD and code(answer) in OVERLOAD_CODES:
                self._result.overloads += 1
        return answer

    def _check(self, answer: Answer, request: Request, expected: Expected) -> None:
        """Compare one answer with the valid answers of its request."""
        is_refusal = answer.status >= 400 and (answer.closes or answer.status in OVERLOAD)
        self._check_id(answer, expected, is_refusal)
        # After the last byte of a client a 100 asks whether it is still there (RFC 9110, 15.2).
        may_be_asked = self._case.half_closes and request.version >= (1, 1)
        is_right = expected.may_continue and answer.interim == (100,)
        if not (is_right or not answer.interim or (may_be_asked and set(answer.interim) == {100})):
            self._blame("wrong interim", f"{answer.interim} before {answer.status}")
        if answer.status in OVERLOAD and code(answer) in OVERLOAD_CODES:
            return
        if answer.status not in expected.statuses:
            self._blame(self._kind_of_status(answer, request), self._reported(answer, request, expected))
        elif answer.status == 200 and expected.steps is not None and request.method != b"HEAD":
            self._check_steps(answer, expected.steps)
        if answer.status >= 400:
            self._check_shape(answer, request.method)

    def _kind_of_status(self, answer: Answer, request: Request) -> Kind:
        names = {name for name, _ in request.trailers}
        if answer.status < 400 and names & {b"x-api-key", b"authorization"}:
            return "trailer authenticates"
        return "server error" if answer.status >= 500 else "wrong status"

    def _reported(self, answer: Answer, request: Request, expected: Expected) -> str:
        head = f"{request.method!r} {request.target[:40]!r} {sorted(request.notes)}"
        return f"{answer.status} {code(answer)} to {head}, expected {sorted(expected.statuses)}"

    def _check_id(self, answer: Answer, expected: Expected, is_refusal: bool) -> None:
        given = answer.request_id
        if not given:
            self._blame("no request id", f"{answer.status} {code(answer)}")
        elif given == expected.nonce:
            return
        elif NONCE.fullmatch(given.encode("latin-1")):
            mine = given.encode() in self._case.data  # also after a mutation
            kind: Kind = "smuggled" if "-b-" in given else "extra answer" if mine else "wrong client"
            self._blame(kind, f"{given} instead of {expected.nonce}, {answer.status}")
        elif expected.nonce is not None and not (is_refusal and not expected.is_plain):
            self._blame("wrong request id", f"{given} instead of {expected.nonce}, {answer.status}")

    def _check_steps(self, answer: Answer, steps: list[dict[str, Any]]) -> None:
        try:
            got = orjson.loads(answer.body)["steps"]
        except (ValueError, KeyError, TypeError):
            self._blame("wrong content", f"no steps: {answer.body[:80]!r}")
            return
        if got != steps:
            others = any(got == existing[: len(got)] for existing in self._truth.steps)
            self._blame("another's numbers" if others else "wrong content", f"{got[:1]}")

    def _check_shape(self, answer: Answer, method: bytes) -> None:
        if method != b"HEAD" and code(answer) is None:
            self._blame("error of another shape", f"{answer.status} {answer.body[:80]!r}")

    # WebSockets.

    def _check_handshake(self, answer: Answer, request: Request) -> None:
        key = request.values(b"sec-websocket-key")[0]
        accept = base64.b64encode(hashlib.sha1(key + HANDSHAKE_GUID).digest())
        fields = answer.fields
        if fields.get(b"sec-websocket-accept") != accept or fields.get(b"upgrade", b"").lower() != b"websocket":
            self._blame("handshake", f"{fields}")

    def _check_stream(self, sent: Frames, at: int) -> None:
        """Check the frames of one live stream in both directions."""
        reported = read_frames(self._data[at:], "server", 1 << 24)
        if reported.faults:
            self._blame("wrong frames", f"the server's own: {reported.why}")
            return
        answers, code = self._session(sent)
        got = [document(message) for message in reported.messages]
        is_cut = bool(sent.faults or sent.close or self._case.is_cut_short or self._case.half_closes)
        is_whole = not is_cut and reported.close is not None and reported.close[0] == code
        if code is None and got[len(answers) :] in (["error"], ["done"]):  # the server stopped waiting
            code, got = reported.close[0] if reported.close else None, got[:-1]
        if not agree(got, answers) or (is_whole and len(got) < len(answers)):
            self._blame("wrong frames", f"{len(got)} of {len(answers)}: {got[-1:]}, sent {sent.messages[-2:]}"[:300])
        if not is_subsequence(reported.pongs, sent.pings):
            self._blame("wrong frames", f"pongs {reported.pongs[:4]} to pings {sent.pings[:4]}")
        if reported.close is not None:
            self._check_code(sent, reported.close[0], code)
        elif code is not None and not (self._seen.outcome == "reset" or is_cut or sent.choices):
            self._blame("wrong close code", "no close frame")

    def _check_code(self, sent: Frames, got: int, code: int | None) -> None:
        allowed = set(sent.faults | sent.choices)
        if sent.close is not None:
            allowed |= {sent.close[0], 1000, 1005}
        allowed.add(code if code is not None else NO_PONG)
        if sent.is_inside:
            allowed.add(NO_PONG)
        if self._case.half_closes:
            allowed |= {1000, 1001, 1002, 1006, 1011}
        if sent.fragments > 16 or sent.is_inside:
            allowed |= {1008, 1009}
        if sent.fragments > 16 or any(len(m) > 65_000 for m in sent.messages):
            allowed.add(1009)
        if got not in allowed | {1013}:
            self._blame("wrong close code", f"{got}, expected {sorted(allowed)}; {sent.why}")

    def _session(self, sent: Frames) -> tuple[list[Any], int | None]:
        """Return the documents due for these messages, and the close code after them. None: the stream continues."""
        answers: list[Any] = []
        series: int | None = None
        is_recognised = True
        accepted = 0
        for number, message in enumerate(sent.messages):
            if number == 0:
                if message != FIRST_FRAME:
                    return ["error"], 1008
                answers.append("ready")
            elif message == LAST_FRAME:
                return [*answers, "done"], 1000
            else:
                place = self._truth.frames.get(message) if isinstance(message, str) else None
                if place is None and message != STRAY_FRAME:
                    answers.append("error")
                    continue
                is_recognised = is_recognised and place is not None and place[1] == accepted
                accepted += 1
                is_recognised = is_recognised and place is not None and series in (None, place[0])
                if is_recognised and place is not None:
                    series = place[0]
                    answers.append(self._truth.steps[series][place[1]])
                else:
                    answers.append(ANY_STEP)
        return answers, 1009 if 1009 in sent.faults else None


def code(answer: Answer) -> str | None:
    """Return the code of an error in this server's one shape, otherwise None."""
    try:
        error = orjson.loads(answer.body)["error"]
        return str(error["code"]) if set(error) == {"message", "type", "param", "code"} else None
    except (ValueError, KeyError, TypeError):
        return None


def document(message: str | bytes) -> Any:
    try:
        document = orjson.loads(message)
    except ValueError:
        return message
    if isinstance(document, dict):
        for name in ("ready", "done", "error"):
            if name in document:
                return name
    return document


def agree(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return whether one is a prefix of the other, except for a final error, which the server may have found first."""
    for mine, other in zip(got, expected, strict=False):
        if mine != other and not (other is ANY_STEP and isinstance(mine, dict) and "mean" in mine):
            return False
    return len(got) <= len(expected)


def is_subsequence(few: Sequence[bytes], many: Sequence[bytes]) -> bool:
    rest = iter(many)
    return all(item in rest for item in few)
