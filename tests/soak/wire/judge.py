"""Compare the bytes of a server with every permitted reading of the bytes sent to it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.soak.wire.answers import Answer, Malformed
from tests.soak.wire.application import (
    REFUSALS,
    Expected,
    Truth,
    expect,
    is_handshake,
    switches,
)
from tests.soak.wire.case import Case
from tests.soak.wire.judge_proxied import ProxiedJudge
from tests.soak.wire.readings import Reading, Request
from tests.soak.wire.rfc6455 import read_frames
from tests.soak.wire.rfc9112 import readings
from tests.soak.wire.verdict import (
    ID_FIELD,
    LONGEST_MESSAGE,
    Judge,
    Kind,
    Problem,
    Seen,
    Verdict,
    code,
)


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
        return ProxiedJudge(case, seen, truth, found).verdict()
    best: Verdict | None = None
    for reading in found:
        verdict = DirectJudge(case, seen, truth, reading).verdict()
        if best is None or len(verdict.problems) < len(best.problems):
            best = verdict
        if not best.problems:
            break
    assert best is not None
    return best


class DirectJudge(Judge):
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
            self._blame(kind, f"{answer.status} {code(answer)}, expected {sorted(allowed)}: {self._reading.why}")
        if not answer.closes:
            self._blame("goes on", f"{answer.status}: {self._reading.why}")
        self._check_id(answer, Expected(allowed, None, None, False, False), True)
        self._check_shape(answer, b"GET")
        self._nothing_at(answer.end)
