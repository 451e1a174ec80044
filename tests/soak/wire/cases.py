"""The bytes of one connection, each part with what must become of it, and the tools to make them."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from rfa.benchmarks.load.truth import as_sent, open_models
from tests.soak.requests import message

BUNDLE = Path(__file__).resolve().parents[3] / "bundles" / "linear"
KEY = "wire-fuzzer-key-0123456789abcdef"
OPTIONS = {"model": "linear", "levels": [0.9], "seed": 1}
Outcome = Literal["answered", "refused", "either", "unknown"]
End = Literal["wait", "half-close", "reset", "leave"]


@dataclass(frozen=True)
class Truth:
    """Two observations of each series, and their steps as a client reads them. No two series have equal numbers."""

    observations: list[list[list[float]]]
    steps: list[list[dict[str, Any]]]

    @classmethod
    def compute(cls, count: int) -> Truth:
        """Compute the steps of so many series with the bundle."""
        runtime: Any = open_models([BUNDLE]).filters["linear"]
        observations = [[[0.001 * i + 0.1, 0.2 - 0.0005 * i], [0.3, 0.0007 * i]] for i in range(count)]
        options: dict[str, Any] = {"noise": None, "levels": (0.9,), "horizon": (), "samples": 0, "seed": 1}
        options |= {"mode": "recurrent", "smooth": False, "state": None}
        return cls(observations, [as_sent(runtime.filter([0.0, 1.0], rows, **options).steps) for rows in observations])

    def body(self, series: int, length: int) -> bytes:
        """Return the body of a request for the first `length` steps of a series."""
        return orjson.dumps({**OPTIONS, "observations": self.observations[series][:length]})


@dataclass(frozen=True)
class Part:
    """One request, or the frames of a stream.

    Attributes:
        pieces: Its bytes. The client pauses between them.
        id: Its request id, or "".
        statuses: Allowed statuses of its answer. Empty: all but server errors.
        steps: The steps that the answer must contain.
        codes: Allowed close codes of a WebSocket. Empty: the part is a request.
    """

    pieces: tuple[bytes, ...]
    outcome: Outcome
    id: str = ""
    statuses: frozenset[int] = frozenset()
    steps: tuple[dict[str, Any], ...] | None = None
    codes: frozenset[int] = frozenset()
    is_head: bool = False
    expects: bool = False


@dataclass(frozen=True)
class Case:
    """The parts of one connection. `cuts` splits their bytes; `end` is what the client does after the last."""

    index: int
    kind: str
    parts: tuple[Part, ...]
    cuts: int
    end: End

    @property
    def data(self) -> bytes:
        """Return all bytes."""
        return b"".join(piece for part in self.parts for piece in part.pieces)


class Maker:
    """Makes parts. Ids are `wSEED-KIND-CASE-NUMBER`: of kind `h` for requests, and `b` for baits."""

    def __init__(self, seed: int, index: int, truth: Truth) -> None:
        self.rng = random.Random(f"{seed}:{index}")
        self.choose = self.rng.choice
        self._truth = truth
        self._name = f"w{seed:x}-%s-{index:x}-%x"
        self._numbers = itertools.count()

    def new_id(self, kind: str = "h") -> str:
        return self._name % (kind, next(self._numbers))

    def series(self) -> tuple[bytes, tuple[dict[str, Any], ...]]:
        """Return a valid body and its steps."""
        number, length = self.rng.randrange(len(self._truth.steps)), self.rng.randint(1, 2)
        return self._truth.body(number, length), tuple(self._truth.steps[number][:length])

    def frames(self) -> tuple[list[bytes], tuple[dict[str, Any], ...]]:
        """Return the observations of a live stream as frames, and their steps."""
        number, length = self.rng.randrange(len(self._truth.steps)), self.rng.randint(0, 2)
        rows = self._truth.observations[number][:length]
        return [message({"y": row}) for row in rows], tuple(self._truth.steps[number][:length])

    def bait(self) -> bytes:
        """Return a request that must not be served."""
        return request(b"GET", self.choose((b"/health", b"/info", b"/nope")), self.new_id("b"))

    def chunked(self, body: bytes) -> bytes:
        """Encode a body in valid chunks, without the end of the trailers."""
        pieces, at = [], 0
        while at < len(body):
            piece = body[at : at + 1 + self.rng.randrange(len(body))]
            at += len(piece)
            size = self.choose((b"%x", b"%X", b"0%x", b"%x;a=b")) % len(piece)
            pieces.append(size + b"\r\n" + piece + b"\r\n")
        return b"".join(pieces) + b"0\r\n"

    def honest(self, *fields: bytes) -> Part:
        """Return a valid request."""
        name = self.new_id()
        kind = self.choose(("health", "nothing", "no key", "head", "series", "chunks"))
        if kind == "health":
            return Part((request(b"GET", b"/health", name, *fields),), "answered", name, frozenset({200}))
        if kind == "nothing":
            return Part((request(b"GET", b"/nope", name, *fields),), "answered", name, frozenset({404}))
        if kind == "no key":
            head = request(b"GET", b"/info", name, *fields, key=None)
            return Part((head,), "answered", name, frozenset({401}))
        if kind == "head":
            return Part(
                (request(b"HEAD", b"/health", name, *fields),), "answered", name, frozenset({200}), is_head=True
            )
        body, steps = self.series()
        if kind == "chunks":
            fields += (b"Transfer-Encoding: chunked",)
            body = self.chunked(body) + b"\r\n"
        else:
            fields += (b"Content-Length: %d" % len(body),)
        return Part((post(name, *fields, body=body),), "answered", name, frozenset({200}), steps)

    def odd(self, head: bytes, body: bytes, outcome: Outcome, name: str = "", **more: Any) -> Part:
        """Return an oddity, with or without a pause between its head and its body."""
        return Part((head, body) if self.rng.random() < 0.4 else (head + body,), outcome, name, **more)


def request(method: bytes, target: bytes, name: str, *fields: bytes, key: str | None = KEY) -> bytes:
    """Return the head of a request."""
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: 127.0.0.1", b"X-Request-ID: " + name.encode(), *fields]
    return b"\r\n".join([*lines, *([b"X-API-Key: " + key.encode()] if key else []), b"", b""])


def post(name: str, *fields: bytes, body: bytes = b"", target: bytes = b"/filter", key: str | None = KEY) -> bytes:
    """Return a request with a JSON body, whose framing is in the fields."""
    return request(b"POST", target, name, b"Content-Type: application/json", *fields, key=key) + body
