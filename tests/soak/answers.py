"""Answers of a server, read from bytes with h11."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import h11

Read = Callable[[], bytes]
ERROR_KEYS = frozenset({"message", "type", "param", "code"})
# Rejections under load with an explanation: these are answers, not failures.
EXPLAINED = {503: frozenset({"not_ready", "overloaded"})}
MOST_HEAD_BYTES = 65_536
# So that h11 accepts a 101.
ASKED = [("Host", "x"), ("Connection", "Upgrade"), ("Upgrade", "websocket")]


class Malformed(ConnectionError):
    """The bytes are not HTTP."""


@dataclass(frozen=True)
class Answer:
    """One answer. Header names are lower-case; only the beginning of a long body is kept."""

    status: int
    headers: dict[str, str]
    body: bytes
    size: int

    @property
    def is_interim(self) -> bool:
        """Return whether the final answer is still to come."""
        return 100 <= self.status < 200 and self.status != 101

    @property
    def closes(self) -> bool:
        """Return whether it announces the close of the connection."""
        return "close" in self.headers.get("connection", "").lower()

    @property
    def id(self) -> str:
        """Return the request id, or ""."""
        return self.headers.get("x-request-id", "")

    @property
    def error(self) -> dict[str, object] | None:
        """Return the error object if the body has the error shape."""
        try:
            document = json.loads(self.body)
        except ValueError:
            return None
        error = document.get("error") if isinstance(document, dict) else None
        return error if isinstance(error, dict) and set(error) == ERROR_KEYS else None

    @property
    def complaint(self) -> str | None:
        """Return the defect of the answer regardless of the request, or None."""
        if self.status < 400:
            return None
        if self.error is None:
            return f"{self.status} without the error shape"
        if not self.id:
            return f"{self.status} without a request id"
        if self.status >= 500 and self.error["type"] not in EXPLAINED.get(self.status, ()):
            return f"{self.status} {self.error['code']}"
        return None


class AnswerReader:
    """Reads answers from a source of bytes in order.

    Args:
        read: Returns the next bytes, or b"" at the end.
        keep: Number of kept bytes of a body. The rest is counted and dropped.

    Attributes:
        buffer: Bytes after the last answer.
    """

    def __init__(self, read: Read, keep: int = 65_536) -> None:
        self._read = read
        self._keep = keep
        self.buffer = b""
        self._has_ended = False

    def take(self, method: str = "GET") -> Answer | None:
        """Return the next answer, or None if the other side closed before it began.

        Args:
            method: Method of its request.

        Raises:
            ConnectionError: The connection closed within an answer.
            Malformed: The bytes are not HTTP.
        """
        self.buffer = self.buffer or self._read()
        if not self.buffer:
            return None
        parser = h11.Connection(h11.CLIENT, MOST_HEAD_BYTES)
        parser.send(h11.Request(method=method, target="/", headers=ASKED))
        parser.send(h11.EndOfMessage())
        try:
            parser.receive_data(self.buffer)
            return self._answer(parser)
        except h11.RemoteProtocolError as error:
            kind = ConnectionError if self._has_ended else Malformed
            raise kind(f"{error}: {self.buffer[:80]!r}") from None

    def exactly(self, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            ConnectionError: The other side closed before.
        """
        while len(self.buffer) < size:
            piece = self._read()
            if not piece:
                raise ConnectionError("closed in the middle of an answer")
            self.buffer += piece
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def _answer(self, parser: h11.Connection) -> Answer:
        head: h11.Response | h11.InformationalResponse | None = None
        body, size = bytearray(), 0
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                piece = self._read()
                self._has_ended = not piece
                parser.receive_data(piece)
            elif isinstance(event, h11.Data):
                size += len(event.data)
                body += event.data[: max(0, self._keep - len(body))]
            elif isinstance(event, h11.Response | h11.InformationalResponse):
                head = event
            if isinstance(event, h11.InformationalResponse | h11.EndOfMessage):
                assert head is not None
                self.buffer = parser.trailing_data[0]
                headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
                return Answer(head.status_code, headers, bytes(body), size)
