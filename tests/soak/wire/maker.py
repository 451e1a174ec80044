"""The parts of streams."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tests.soak.wire.application import KEY, Truth

Item = TypeVar("Item")
# Wrong lengths, including those that wrap around 64 bits to the right length.
_WRAP = 2**64


class Maker:
    """Makes the parts of one case. Every request has a unique request id.

    Ids are `wSEED-KIND-CASE-NUMBER`: kind `h` may be answered; `b` is in a body and must not be.

    Attributes:
        host: Host line of every request.
    """

    host = b"Host: 127.0.0.1"

    def __init__(self, rng: random.Random, seed: int, index: int, truth: Truth, *, is_proxied: bool) -> None:
        self._rng = rng
        self._id = f"w{seed:x}-%s-{index:x}-%x"
        self._count = 0
        self._truth = truth
        self._is_proxied = is_proxied

    def choose(self, items: Sequence[Item]) -> Item:
        """Choose an item."""
        return items[int(self._rng.random() * len(items))]

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self._rng.random() < share

    def below(self, count: int) -> int:
        """Return a number from 0 to `count` - 1, or 0 if `count` is 0."""
        return int(self._rng.random() * count)

    def series(self) -> int:
        """Choose a series."""
        return self.below(len(self._truth.observations))

    @property
    def truth(self) -> Truth:
        """Return the expected results of a series."""
        return self._truth

    def nonce(self, kind: str = "h") -> bytes:
        """Return a new request id."""
        self._count += 1
        return (self._id % (kind, self._count)).encode()

    def head(
        self,
        method: bytes,
        target: bytes,
        fields: Sequence[bytes] = (),
        *,
        with_key: bool = True,
        kind: str = "h",
    ) -> bytes:
        """Return the head of a request."""
        lines = [method + b" " + target + b" HTTP/1.1", self.host, b"X-Request-ID: " + self.nonce(kind)]
        if with_key:
            lines.append(b"X-API-Key: " + KEY.encode())
        return b"\r\n".join([*lines, *fields, b"", b""])

    def path(self) -> bytes:
        """Choose a path with or without a body."""
        return self.choose((b"/filter", b"/nope", b"/health"))

    def series_body(self) -> bytes:
        """Return a valid body with numbers that no other request uses at the moment."""
        return self._truth.body(self.series(), 1 + self.below(2))

    def chosen_body(self) -> bytes:
        """Return a valid body, or one that resembles requests."""
        return self.series_body() if self.chance(0.5) else self.bait()

    def bait(self, *, is_slow: bool = False, is_far: bool = False) -> bytes:
        """Return a request for use in a body, which must never be answered.

        Args:
            is_slow: Whether its answer takes so long that a proxy may reuse its connection.
            is_far: Whether empty lines precede it, so that it arrives separately from the head of the outer request.
        """
        if is_far:
            return b"\r\n" * 160_000 + self.bait(is_slow=is_slow)
        if is_slow:
            body = b'{"observations":[' + b",".join([b"[0.5,0.25]"] * 400) + b"]}"
            return self._post(body, "b")
        if self.chance(0.3):
            return self._post(self.series_body(), "b")
        return self.head(b"GET", self.choose((b"/health", b"/info", b"/nope")), kind="b")

    def chunked(self, body: bytes) -> bytes:
        """Encode a body in valid chunks without trailers."""
        pieces, at = [], 0
        while at < len(body):
            piece = body[at : at + 1 + self.below(len(body))]
            at += len(piece)
            size = b"%x" % len(piece)
            pieces += [self.choose((size, size, b"0" + size, size.upper(), size + b";a=b")), b"\r\n", piece, b"\r\n"]
        return b"".join(pieces) + b"0\r\n\r\n"

    def honest(self) -> bytes:
        """Return a valid request with a known answer."""
        manner = self._rng.random()
        if manner < 0.55:
            return self.head(b"GET", b"/health", with_key=manner < 0.1)
        if manner < 0.73:
            return self.head(b"GET", b"/nope/%d" % self.below(1000))
        if manner < 0.80:
            return self.head(b"GET", b"/nope", with_key=False)
        if manner < 0.85 and not self._is_proxied:
            return self.head(b"HEAD", b"/health")
        if manner < 0.95:
            return self._post(self.series_body(), "h")
        fields = [b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
        return self.head(b"POST", b"/filter", fields) + self.chunked(self.series_body())

    def last(self) -> bytes:
        """Return a valid request that ends the connection."""
        fields = [self.choose((b"Connection: close", b"Connection: Close", b"connection:x, close"))]
        if self.chance(0.15):
            body = self.series_body()
            fields += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
            return self.head(b"POST", b"/filter", fields) + body
        return self.head(b"GET", self.choose((b"/health", b"/nope")), fields)

    def numeral(self, templates: Sequence[str], n: int) -> bytes:
        """Return a length in a correct or wrong form."""
        more, less, far = n + 1 + self.below(9), max(n - 1 - self.below(9), 0), n + 100_000
        template = self.choose(templates)
        wrap = str(_WRAP + n)[len("18446744073709551") :]
        return template.format(n=n, more=more, less=less, far=far, wrap=wrap).encode("utf-8")

    def _post(self, body: bytes, kind: str) -> bytes:
        fields = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        return self.head(b"POST", b"/filter", fields, kind=kind) + body
