"""The parts that streams are put together from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from tests.soak.wire.application import KEY, Truth

Item = TypeVar("Item")
# Numbers that the lies name: what would wrap around 64 bits to the right length.
_WRAP = 2**64


class Maker:
    """Makes the parts of one case; every request that it makes has a request id of its own.

    Ids are `wSEED-KIND-CASE-NUMBER`: kind `h` may be answered, `b` lies in a body and must not be.

    Attributes:
        host: the Host line of every request.
    """

    host = b"Host: 127.0.0.1"

    def __init__(self, rng: random.Random, seed: int, index: int, truth: Truth, *, is_proxied: bool) -> None:
        self._rng = rng
        self._id = f"w{seed:x}-%s-{index:x}-%x"
        self._count = 0
        self._truth = truth
        self._is_proxied = is_proxied

    def choose(self, items: Sequence[Item]) -> Item:
        """One of some."""
        return items[int(self._rng.random() * len(items))]

    def chance(self, share: float) -> bool:
        """True so often."""
        return self._rng.random() < share

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1; 0 where there is none."""
        return int(self._rng.random() * count)

    def series(self) -> int:
        """A series of the truth."""
        return self.below(len(self._truth.observations))

    @property
    def truth(self) -> Truth:
        """What the server must say of a series."""
        return self._truth

    def nonce(self, kind: str = "h") -> bytes:
        """A new request id."""
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
        """The head of a request."""
        lines = [method + b" " + target + b" HTTP/1.1", self.host, b"X-Request-ID: " + self.nonce(kind)]
        if with_key:
            lines.append(b"X-API-Key: " + KEY.encode())
        return b"\r\n".join([*lines, *fields, b"", b""])

    def path(self) -> bytes:
        """One that takes a body, or none."""
        return self.choose((b"/filter", b"/nope", b"/health"))

    def series_body(self) -> bytes:
        """A body that the application takes, with numbers that nobody else asks for at the moment."""
        return self._truth.body(self.series(), 1 + self.below(2))

    def chosen_body(self) -> bytes:
        """A legal body, or one that looks like requests."""
        return self.series_body() if self.chance(0.5) else self.bait()

    def bait(self, *, is_slow: bool = False, is_far: bool = False) -> bytes:
        """A request in a body, which must never be answered.

        Args:
            is_slow: its answer would take a while: long enough for a proxy to give its connection to somebody else.
            is_far: empty lines before it, so that it does not come in one piece with the head of the outer request.
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
        """A body in legal chunks, without trailers."""
        pieces, at = [], 0
        while at < len(body):
            piece = body[at : at + 1 + self.below(len(body))]
            at += len(piece)
            size = b"%x" % len(piece)
            pieces += [self.choose((size, size, b"0" + size, size.upper(), size + b";a=b")), b"\r\n", piece, b"\r\n"]
        return b"".join(pieces) + b"0\r\n\r\n"

    def honest(self) -> bytes:
        """A legal request whose answer is known."""
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
        """An honest request that ends the connection."""
        fields = [self.choose((b"Connection: close", b"Connection: Close", b"connection:x, close"))]
        if self.chance(0.15):
            body = self.series_body()
            fields += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
            return self.head(b"POST", b"/filter", fields) + body
        return self.head(b"GET", self.choose((b"/health", b"/nope")), fields)

    def numeral(self, templates: Sequence[str], n: int) -> bytes:
        """A length, told truly or not."""
        more, less, far = n + 1 + self.below(9), max(n - 1 - self.below(9), 0), n + 100_000
        template = self.choose(templates)
        wrap = str(_WRAP + n)[len("18446744073709551") :]
        return template.format(n=n, more=more, less=less, far=far, wrap=wrap).encode("utf-8")

    def _post(self, body: bytes, kind: str) -> bytes:
        fields = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        return self.head(b"POST", b"/filter", fields, kind=kind) + body
