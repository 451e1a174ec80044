"""Compare the bytes of a server behind a proxy with every permitted reading of the bytes sent to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tests.soak.wire.answers import Answer, Malformed
from tests.soak.wire.application import (
    Expected,
    Truth,
    expect,
)
from tests.soak.wire.case import Case
from tests.soak.wire.readings import Reading, Request
from tests.soak.wire.rfc6455 import read_frames
from tests.soak.wire.verdict import (
    ASKED_FIELD,
    INTERIM,
    LONGEST_MESSAGE,
    NONCE,
    OVERLOAD_CODES,
    Judge,
    Seen,
    Verdict,
    code,
)


class ProxiedJudge(Judge):
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
        elif answer.status >= 500 and answer.status not in (501, 505) and code(answer) not in OVERLOAD_CODES:
            self._blame("server error", f"{answer.status} {answer.body[:60]!r} to {asked}: {self._strict.why}")
        elif (existing := self._existing(asked, before)) is None:
            if self._is_legal and "-b-" in asked:
                self._blame("smuggled", f"the proxy asked {asked}, {answer.status}")
        elif before >= self._case.data.count(asked.encode()):
            self._blame("extra answer", f"another to {asked}, {answer.status}")
        elif given and not self._is_ambiguous(asked):
            request, expected = existing
            if is_simple(request) and expected.is_plain:
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
            if not (expected.is_plain and is_simple(request) and expected.nonce):
                return
            if expected.nonce not in answered:
                self._blame("unanswered", f"{request.method!r} {request.target[:40]!r}, {self._seen.outcome}")
                return


def is_simple(request: Request) -> bool:
    """Return whether a proxy forwards a request unchanged."""
    hops = (b"upgrade", b"te", b"expect", b"trailer", b"http2-settings")
    is_handed_on = request.method in (b"GET", b"HEAD", b"POST") and not request.target.startswith(b"/filter/stream")
    return is_handed_on and not any(name in hops for name, _ in request.fields) and not request.trailers
