"""The valid answers of this server to a request: statuses, request id, and numbers.

The numbers are computed from the bundle in this process before the run. Each series has different numbers, so an answer
to the wrong client is also detected by its body.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import orjson

from rfa.benchmarks.load.truth import as_sent, open_models
from tests.soak.wire.readings import ABSOLUTE, OWS, Request

BUNDLE = Path(__file__).resolve().parents[3] / "bundles" / "linear"
KEY = "wire-fuzzer-key-0123456789abcdef"
SERIES = 512
STREAM_PATH = b"/filter/stream"
FIRST_FRAME = '{"model": "linear", "seed": 1, "levels": [0.9]}'
LAST_FRAME = '{"close": true}'
# A different observation; the results from it on are not known in advance.
STRAY_FRAME = '{"y": [0.5, 0.25]}'
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
METHODS_OF: Mapping[bytes, frozenset[bytes]] = {
    path: frozenset(methods.split())
    for path, methods in (
        (b"/health", b"GET HEAD"),
        (b"/ready", b"GET HEAD"),
        (b"/metrics", b"GET HEAD"),
        (b"/info", b"GET"),
        (b"/filter", b"POST"),
        (b"/generate", b"POST"),
        (b"/docs", b"GET"),
        (b"/", b"GET POST"),
    )
}
OPEN_PATHS = frozenset({b"/", b"/docs", b"/openapi.json", b"/health", b"/ready"})
OPEN_METHODS = frozenset({b"GET", b"HEAD", b"OPTIONS"})
OWN_HOST = re.compile(rb"127\.0\.0\.1(?::[0-9]{0,5})?")
RECOGNISED_METHODS = frozenset(b"GET POST PUT DELETE HEAD OPTIONS PATCH TRACE".split())
REFUSALS = frozenset({400, 403, 408, 413, 414, 417, 421, 426, 431, 501, 505})


@dataclass(frozen=True)
class Truth:
    """Observations with the results of the bundle.

    Attributes:
        observations: Two rows for each series.
        steps: Their results as a client reads them.
    """

    observations: list[list[list[float]]]
    steps: list[list[dict[str, Any]]]

    def body(self, series: int, length: int) -> bytes:
        """Return the request body for the first `length` steps of a series."""
        asked = {"model": "linear", "levels": [0.9], "seed": 1}
        return orjson.dumps({**asked, "observations": self.observations[series][:length]})

    @cached_property
    def by_body(self) -> dict[bytes, list[dict[str, Any]]]:
        """Return the steps of the answer to each body."""
        numbers = range(len(self.observations))
        return {self.body(i, length): self.steps[i][:length] for i in numbers for length in (1, 2)}

    @cached_property
    def frames(self) -> dict[str, tuple[int, int]]:
        """Return series and step of each frame of a live stream."""
        return {self.frame(i, k): (i, k) for i in range(len(self.observations)) for k in (0, 1)}

    def frame(self, series: int, step: int) -> str:
        """Return the frame with one observation."""
        return orjson.dumps({"y": self.observations[series][step]}).decode()


def compute_truth(count: int = SERIES) -> Truth:
    """Compute the results of so many series with the default bundle `linear`."""
    runtime: Any = open_models([BUNDLE]).filters["linear"]
    observations = [[[0.001 * i + 0.1, 0.2 - 0.0005 * i], [0.3, 0.0007 * i]] for i in range(count)]
    steps = []
    for rows in observations:
        result = runtime.filter(
            [0.0, 1.0], rows, noise=None, levels=(0.9,), horizon=(), samples=0, seed=1, mode="recurrent", smooth=False,
            state=None,
        )  # fmt: skip
        steps.append(as_sent(result.steps))
    return Truth(observations, steps)


@dataclass(frozen=True)
class Expected:
    """Valid answers of a request.

    Attributes:
        nonce: Required request id. None: a new one.
        steps: Numbers of a 200. None: not checked.
        is_plain: Whether the request is valid in every respect, so that only its own answer is valid.
        may_continue: Whether an interim 100 may precede the answer.
    """

    statuses: frozenset[int]
    nonce: str | None
    steps: list[dict[str, Any]] | None
    is_plain: bool
    may_continue: bool


def expect(request: Request, truth: Truth, *, is_whole: bool = True) -> Expected:
    """Return the valid answers of a request.

    Args:
        is_whole: Whether its body is complete. If not, it is answered earlier or rejected.
    """
    path, oddities = _path(request)
    notes = request.notes | oddities | _oddities(request)
    statuses, steps = _of_route(request, path, truth, is_whole)
    if not _is_authorised(request, path):
        statuses, steps = frozenset({401}), None
    statuses = _with_oddities(statuses, notes)
    if not is_whole:
        statuses |= REFUSALS
    ids = request.values(b"x-request-id")
    nonce = ids[0].decode("ascii") if len(ids) == 1 and REQUEST_ID.fullmatch(ids[0]) else None
    may_continue = request.version >= (1, 1) and b"100-continue" in request.tokens(b"expect")
    return Expected(statuses, nonce, steps, not notes and is_whole, may_continue)


def _path(request: Request) -> tuple[bytes, set[str]]:
    target, oddities = request.target, set()
    if match := ABSOLUTE.match(target):
        is_usual = match[0].lower() in (b"http://", b"https://")
        authority, slash, rest = target[match.end() :].partition(b"/")
        if not is_usual or request.values(b"host") != [authority]:
            oddities.add("another authority")
        else:
            oddities.add("absolute form")
        target = slash + rest or b"/"
    path = target.partition(b"?")[0]
    if b"%" in path:
        oddities.add("escaped path")
        path = unquote_to_bytes(path)
    return path, oddities


def _oddities(request: Request) -> set[str]:
    found = set()
    if request.method not in RECOGNISED_METHODS:
        found.add("unknown method")
    if request.version < (1, 1):
        found.add("HTTP/1.0")
    if expectations := request.values(b"expect"):
        is_recognised = all(value.lower() == b"100-continue" for value in expectations)
        # A client that is rejected instead of "continue" may or may not send the body, so the connection may end (9110,
        # 10.1.1).
        found.add("expectation" if is_recognised else "other expectation")
    if request.values(b"upgrade"):
        found.add("websocket offered" if is_handshake(request) else "upgrade offered")
    hosts = request.values(b"host")
    if hosts and OWN_HOST.fullmatch(hosts[0]) is None:
        found.add("foreign host")
    if request.values(b"origin") or request.values(b"content-encoding"):
        found.add("other fields")
    return found


# Statuses that an oddity adds, or to which it restricts the answer.
_ADDED: Mapping[str, frozenset[int]] = {
    "character in the target": frozenset({200, 400, 401, 404, 405}),
    "another authority": frozenset({400, 403, 404, 421}),
    "escaped path": frozenset({400, 404}),
    "unknown method": frozenset({400, 404, 405, 501}),
    "other expectation": frozenset({417}),
    "upgrade offered": frozenset({400, 426, 501}),
    "websocket offered": frozenset({400, 403, 404, 405, 426}),
    "foreign host": frozenset({400, 403, 421}),
    "other fields": frozenset({400, 403, 415}),
    "many requests waiting": frozenset({429}),
}
_ONLY: Mapping[str, frozenset[int]] = {
    "number of hosts": frozenset({400}),
    "illegal host": frozenset({400, 403, 421}),
    "form of the target": frozenset({400, 401, 403, 404, 405, 421, 501}),
}


def _with_oddities(statuses: frozenset[int], notes: set[str]) -> frozenset[int]:
    for note in notes:
        statuses |= _ADDED.get(note, frozenset())
    for note in notes:
        if note in _ONLY:
            return _ONLY[note] | (statuses & {401})
    return statuses


def _of_route(
    request: Request, path: bytes, truth: Truth, is_whole: bool
) -> tuple[frozenset[int], list[dict[str, Any]] | None]:
    method = request.method
    if path == STREAM_PATH:
        is_open = is_whole and switches(request) != "no"
        return (frozenset({101}) if is_open else frozenset({400, 403, 404, 405, 426})), None
    if path not in METHODS_OF:
        return frozenset({404, 405} if method in (b"OPTIONS", b"TRACE", b"CONNECT") else {404}), None
    if method not in METHODS_OF[path]:
        return frozenset({405, 501} if method in (b"TRACE", b"CONNECT") else {405}), None
    if method != b"POST":
        return frozenset({200}), None
    if path != b"/filter":
        return frozenset({200, 400, 404, 413, 415, 422}), None
    is_json = request.values(b"content-type") == [b"application/json"]
    if is_whole and is_json and request.body in truth.by_body:
        return frozenset({200}), truth.by_body[request.body]
    return frozenset({400, 408, 413, 415, 422} if not is_whole else {200, 400, 413, 415, 422}), None


def presented_keys(request: Request) -> list[bytes]:
    """Return every key in the fields of the head. Trailers have none."""
    keys = [value.strip(OWS) for value in request.values(b"x-api-key")]
    for value in request.values(b"authorization"):
        scheme, _, key = value.partition(b" ")
        if scheme.lower() == b"bearer":
            keys.append(key.strip(OWS))
    return keys


def _is_authorised(request: Request, path: bytes) -> bool:
    is_open = path in OPEN_PATHS and request.method in OPEN_METHODS and not is_handshake(request)
    return is_open or presented_keys(request) == [KEY.encode()]


def is_handshake(request: Request) -> bool:
    """Return whether a request asks for a WebSocket, correctly or not."""
    return (
        request.method == b"GET"
        and request.version >= (1, 1)
        and b"websocket" in request.tokens(b"upgrade")
        and b"upgrade" in request.tokens(b"connection")
    )


def switches(request: Request) -> Literal["no", "may", "yes"]:
    """Return whether this server switches to the WebSocket protocol after a request (RFC 6455, 4.2.1)."""
    path, oddities = _path(request)
    if path != STREAM_PATH or not is_handshake(request) or presented_keys(request) != [KEY.encode()]:
        return "no"
    if request.notes & {"number of hosts", "illegal host", "form of the target"}:
        return "no"
    if request.values(b"sec-websocket-version") != [b"13"] or not _is_nonce(request.values(b"sec-websocket-key")):
        return "no"
    is_usual = (
        request.tokens(b"upgrade") == [b"websocket"]
        and not request.body
        and not oddities | request.notes
        and not _oddities(request) - {"websocket offered"}
        and not request.values(b"sec-websocket-extensions")
        and not request.values(b"sec-websocket-protocol")
        and not request.values(b"transfer-encoding")
        and not request.values(b"expect")
    )
    return "yes" if is_usual else "may"


def _is_nonce(values: list[bytes]) -> bool:
    try:
        return len(values) == 1 and len(base64.b64decode(values[0], validate=True)) == 16
    except binascii.Error:
        return False
