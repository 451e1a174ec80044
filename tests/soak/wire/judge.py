"""Compare the bytes of a server with every permitted reading of the bytes sent to it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from tests.soak.wire.answers import Answer, Malformed, read_answer
from tests.soak.wire.application import (
    FIRST_FRAME,
    LAST_FRAME,
    REFUSALS,
    STRAY_FRAME,
    Expected,
    Truth,
    expect,
    is_handshake,
    switches,
)
from tests.soak.wire.case import Case
from tests.soak.wire.rfc6455 import Frames, read_frames
from tests.soak.wire.rfc9112 import Reading, Request, readings

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


def read_case(case: Case) -> list[Reading]:
    """Return every permitted reading of all bytes of a case."""
    return list(readings(case.data, switches=switches))


def judge(case: Case, seen: Seen, truth: Truth, found: Sequence[Reading], *, is_proxied: bool = False) -> Verdict:
    """Return the verdict on one connection.

    Args:
        found: Every permitted reading.
        is_proxied: Whether a proxy may reject a part itself.
    """
    if seen.outcome == "refused":
        return Verdict([Problem("not connected", "")])
    if is_proxied:
        return _Proxied(case, seen, truth, found).verdict()
    best: Verdict | None = None
    for reading in found:
        verdict = _Direct(case, seen, truth, reading).verdict()
        if best is None or len(verdict.problems) < len(best.problems):
            best = verdict
        if not best.problems:
            break
    assert best is not None
    return best


class _Judge:
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
            if answer.status in OVERLOAD and _code(answer) in OVERLOAD_CODES:
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
        if answer.status in OVERLOAD and _code(answer) in OVERLOAD_CODES:
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
        return f"{answer.status} {_code(answer)} to {head}, expected {sorted(expected.statuses)}"

    def _check_id(self, answer: Answer, expected: Expected, is_refusal: bool) -> None:
        given = answer.request_id
        if not given:
            self._blame("no request id", f"{answer.status} {_code(answer)}")
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
        if method != b"HEAD" and _code(answer) is None:
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
        got = [_document(message) for message in reported.messages]
        is_cut = bool(sent.faults or sent.close or self._case.is_cut_short or self._case.half_closes)
        is_whole = not is_cut and reported.close is not None and reported.close[0] == code
        if code is None and got[len(answers) :] in (["error"], ["done"]):  # the server stopped waiting
            code, got = reported.close[0] if reported.close else None, got[:-1]
        if not _agree(got, answers) or (is_whole and len(got) < len(answers)):
            self._blame("wrong frames", f"{len(got)} of {len(answers)}: {got[-1:]}, sent {sent.messages[-2:]}"[:300])
        if not _is_subsequence(reported.pongs, sent.pings):
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


class _Direct(_Judge):
    """Judges a server without a proxy."""

    def __init__(self, case: Case, seen: Seen, truth: Truth, reading: Reading) -> None:
        super().__init__(case, seen, truth)
        self._reading = reading
        self._result.reading = f"{reading.ending} {reading.why} {sorted(reading.granted)}"
        self._is_over = False

    def verdict(self) -> Verdict:
        try:
            at = self._due()
            if not self._is_over:
                self._behind(at)
        except Malformed as error:
            self._blame("malformed answer", str(error))
        return self._result

    def _due(self) -> int:
        """Return every request due, in order, and the position after the answers."""
        at = 0
        for request in self._reading.requests:
            expected = expect(request, self._truth)
            answer = self._read(at, request.method)
            if answer is None or self._is_refused_with_others(answer, expected):
                self._missing(at, request)
                return at
            self._check(answer, request, expected)
            at = answer.end
            if answer.status == 101:
                self._switched(answer, request, at)
                return at
            if answer.closes and not expected.is_plain:
                self._last(at)
                return at
        return at

    def _is_refused_with_others(self, answer: Answer, expected: Expected) -> bool:
        """Return whether a valid request lost its answer to the rejection of later input."""
        is_refusal = answer.closes and answer.status in REFUSALS and answer.request_id != expected.nonce
        return is_refusal and answer.status not in expected.statuses

    def _missing(self, at: int, request: Request) -> None:
        self._is_over = True
        # A client that half-closes cannot want a WebSocket.
        if self._case.is_cut_short or (self._case.half_closes and is_handshake(request)):
            return
        kind: Kind = "unanswered after half-close" if self._case.half_closes else "unanswered"
        place = f"{request.method!r} {request.target[:40]!r} {sorted(request.notes)}"
        self._blame(kind, f"{place}, {self._seen.outcome}, {self._reading.ending}, left {self._data[at : at + 60]!r}")

    def _last(self, at: int) -> None:
        """Check that nothing follows and the connection ends."""
        self._is_over = True
        self._nothing_at(at)
        if self._seen.outcome == "open":
            self._blame("not closed", self._result.reading)

    def _nothing_at(self, at: int) -> None:
        if len(self._data) > at:
            rest = self._data[at:]
            ids = ID_FIELD.findall(rest)
            kind: Kind = "smuggled" if any(b"-b-" in existing for existing in ids) else "extra answer"
            self._blame(kind, f"{rest[:60]!r} {ids[:1]} after {self._reading.ending}: {self._reading.why}")

    def _switched(self, answer: Answer, request: Request, at: int) -> None:
        self._is_over = True
        self._check_handshake(answer, request)
        sent = read_frames(self._case.data[request.end :], "client", LONGEST_MESSAGE)
        self._check_stream(sent, at)
        _, code = self._session(sent)
        must_end = sent.close or code or (sent.faults and not sent.is_inside)
        if self._seen.outcome == "open" and must_end:
            self._blame("not closed", f"WebSocket: {sent.why or sent.close}")

    def _behind(self, at: int) -> None:
        """Check the bytes after the due requests."""
        reading = self._reading
        if reading.ending in ("boundary", "closed", "switched"):
            self._nothing_at(at)
        elif reading.unfinished is not None:
            self._unfinished(reading.unfinished, at)
        else:
            self._refused(at)
        must_end = reading.ending not in ("boundary", "switched") or self._case.half_closes
        if must_end and self._seen.outcome == "open":
            self._blame("not closed", self._result.reading)

    def _unfinished(self, request: Request, at: int) -> None:
        """Check a request with a wrong or missing body: at most one answer, before or instead."""
        expected = expect(request, self._truth, is_whole=False)
        answer = self._read(at, request.method)
        if answer is None:
            is_needed = self._reading.ending == "illegal body" and not self._case.is_cut_short
            if is_needed:
                self._blame("refusal lost", f"{self._result.reading}, {self._seen.outcome}")
            return
        self._result.refusals += answer.status >= 400
        allowed = expected.statuses | self._reading.statuses
        if self._reading.ending == "illegal body":  # detected on arrival rather than after a timeout
            allowed -= {408}
        self._check(answer, request, Expected(allowed, expected.nonce, None, False, expected.may_continue))
        self._nothing_at(answer.end)

    def _refused(self, at: int) -> None:
        """Check an invalid or endless head: one rejection, and nothing after it."""
        answer = self._read(at, b"GET")
        if answer is None:
            if self._reading.ending == "illegal head" and not self._case.is_cut_short:
                self._blame("refusal lost", f"{self._result.reading}, {self._seen.outcome}")
            return
        self._result.refusals += 1
        allowed = self._reading.statuses or frozenset({400, 408, 414, 431, 501, 505})
        if answer.status not in allowed:
            kind: Kind = "server error" if answer.status >= 500 else "wrong status"
            self._blame(kind, f"{answer.status} {_code(answer)}, expected {sorted(allowed)}: {self._reading.why}")
        if not answer.closes:
            self._blame("goes on", f"{answer.status}: {self._reading.why}")
        self._check_id(answer, Expected(allowed, None, None, False, False), True)
        self._check_shape(answer, b"GET")
        self._nothing_at(answer.end)


class _Proxied(_Judge):
    """Judges a server behind a proxy, which rejects some input itself and accepts much that it should reject.

    `X-Asked` has the id of the request that the proxy sent, and the answer must be to that request. If the stream is
    valid, the proxy may only have sent the requests due.
    """

    def __init__(self, case: Case, seen: Seen, truth: Truth, found: Sequence[Reading]) -> None:
        super().__init__(case, seen, truth)
        self._strict = found[0]
        self._is_legal = not any(reading.why for reading in found)
        self._result.reading = f"proxied, strictly {self._strict.ending} {self._strict.why}"
        self._is_refused = False  # by the proxy itself
        # By id, then by position: a mutated stream may repeat an id.
        self._due: dict[str, dict[int, tuple[Request, Expected]]] = {}
        for reading in found:
            for request in reading.requests:
                self._add(request, expect(request, truth))
            if reading.unfinished is not None:
                self._add(reading.unfinished, expect(reading.unfinished, truth, is_whole=False))

    def _add(self, request: Request, expected: Expected) -> None:
        if expected.nonce:
            self._due.setdefault(expected.nonce, {}).setdefault(request.start, (request, expected))

    def _existing(self, asked: str, before: int) -> tuple[Request, Expected] | None:
        """Return the request with an id, after so many earlier answers to it."""
        places = self._due.get(asked)
        return places[sorted(places)[min(before, len(places) - 1)]] if places else None

    def verdict(self) -> Verdict:
        at, answered = 0, Counter[str]()
        try:
            while at < len(self._data):
                asked = self._asked(at)
                existing = self._existing(asked, answered[asked])
                answer = self._read(at, existing[0].method if existing else b"GET")
                if answer is None:
                    break
                at = answer.end
                self._take(answer, asked, answered[asked])
                answered[asked] += 1
                self._is_refused |= answer.closes and not answer.request_id
                if answer.status == 101 and existing is not None:
                    self._check_handshake(answer, existing[0])
                    self._check_stream(read_frames(self._case.data[existing[0].end :], "client", LONGEST_MESSAGE), at)
                    return self._result
        except Malformed as error:
            if self._is_legal:  # otherwise possibly the proxy's answer to HTTP/0.9, or to a HEAD
                self._blame("malformed answer", str(error))
            return self._result
        self._check_leading(answered)
        if self._seen.outcome == "open" and self._strict.ending == "closed":
            self._blame("not closed", self._result.reading)
        return self._result

    def _asked(self, at: int) -> str:
        """Return the id that the proxy read in the request of the answer here."""
        while INTERIM.match(self._data, at):
            at = self._data.find(b"\r\n\r\n", at) + 4
        match = ASKED_FIELD.search(self._data, at, self._data.find(b"\r\n\r\n", at) + 4)
        return match[1].decode("latin-1") if match else ""

    def _take(self, answer: Answer, asked: str, before: int) -> None:
        given = answer.request_id
        if given != asked and NONCE.fullmatch(given.encode("latin-1")):
            self._blame("wrong client", f"{given} to {asked}, {answer.status}")
        elif answer.status >= 500 and answer.status not in (501, 505) and _code(answer) not in OVERLOAD_CODES:
            self._blame("server error", f"{answer.status} {answer.body[:60]!r} to {asked}: {self._strict.why}")
        elif (existing := self._existing(asked, before)) is None:
            if self._is_legal and "-b-" in asked:
                self._blame("smuggled", f"the proxy asked {asked}, {answer.status}")
        elif before >= self._case.data.count(asked.encode()):
            self._blame("extra answer", f"another to {asked}, {answer.status}")
        elif given and not self._is_ambiguous(asked):
            request, expected = existing
            if _is_simple(request) and expected.is_plain:
                self._check(answer, request, expected)
            elif answer.status == 200 and expected.steps is not None:
                self._check_steps(answer, expected.steps)
            elif answer.status == 422 and expected.steps is not None and not request.notes:
                self._blame("wrong status", self._reported(answer, request, expected))

    def _is_ambiguous(self, asked: str) -> bool:
        """Return whether an id occurs several times: a proxy that drops a bad line may assign it to another head."""
        return len(re.findall(rb"\b%s\b" % re.escape(asked.encode()), self._case.data)) > 1

    def _check_leading(self, answered: Counter[str]) -> None:
        """Check that each plain request before any oddity has its answer."""
        if self._case.is_cut_short or self._case.half_closes or self._is_refused:
            return
        for request in self._strict.requests:
            expected = expect(request, self._truth)
            if not (expected.is_plain and _is_simple(request) and expected.nonce):
                return
            if expected.nonce not in answered:
                self._blame("unanswered", f"{request.method!r} {request.target[:40]!r}, {self._seen.outcome}")
                return


def _is_simple(request: Request) -> bool:
    """Return whether a proxy forwards a request unchanged."""
    hops = (b"upgrade", b"te", b"expect", b"trailer", b"http2-settings")
    is_handed_on = request.method in (b"GET", b"HEAD", b"POST") and not request.target.startswith(b"/filter/stream")
    return is_handed_on and not any(name in hops for name, _ in request.fields) and not request.trailers


def _code(answer: Answer) -> str | None:
    """Return the code of an error in this server's one shape, otherwise None."""
    try:
        error = orjson.loads(answer.body)["error"]
        return str(error["code"]) if set(error) == {"message", "type", "param", "code"} else None
    except (ValueError, KeyError, TypeError):
        return None


def _document(message: str | bytes) -> Any:
    try:
        document = orjson.loads(message)
    except ValueError:
        return message
    if isinstance(document, dict):
        for name in ("ready", "done", "error"):
            if name in document:
                return name
    return document


def _agree(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return whether one is a prefix of the other, except for a final error, which the server may have found first."""
    for mine, other in zip(got, expected, strict=False):
        if mine != other and not (other is ANY_STEP and isinstance(mine, dict) and "mean" in mine):
            return False
    return len(got) <= len(expected)


def _is_subsequence(few: Sequence[bytes], many: Sequence[bytes]) -> bool:
    rest = iter(many)
    return all(item in rest for item in few)
