"""Parse HTTP/1.1 answers from bytes, independently of the server's code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

Read = Callable[[], bytes]
NO_BODY = frozenset({204, 304})
ERROR_KEYS = frozenset({"message", "type", "param", "code"})
# Rejections under load with an explanation: these are answers, not failures.
EXPLAINED = {503: frozenset({"not_ready", "overloaded"})}


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
        if "x-request-id" not in self.headers:
            return f"{self.status} without a request id"
        if self.status >= 500 and self.error["type"] not in EXPLAINED.get(self.status, ()):
            return f"{self.status} {self.error['code']}"
        return None


class AnswerReader:
    """Reads answers from a source of bytes in order.

    Args:
        read: Returns the next bytes, or b"" at the end.
        keep: Number of kept bytes of a body. The rest is counted and dropped.
    """

    def __init__(self, read: Read, keep: int = 65_536) -> None:
        self._read = read
        self._keep = keep
        self.buffer = bytearray()

    def take(self) -> Answer | None:
        """Return the next answer, or None if the other side closed before it began.

        Raises:
            ConnectionError: The connection closed within an answer, or the bytes are not HTTP.
        """
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/1.") or not first[9:12].isdigit():
            raise ConnectionError(f"no HTTP: {first[:40]!r}")
        status = int(first[9:12])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        body, size = self._body(status, headers)
        return Answer(status, headers, body, size)

    def exactly(self, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            ConnectionError: The other side closed before.
        """
        while len(self.buffer) < size:
            self._more()
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def _body(self, status: int, headers: dict[str, str]) -> tuple[bytes, int]:
        kept = bytearray()
        if status < 200 or status in NO_BODY:
            return b"", 0
        if headers.get("transfer-encoding", "").lower() == "chunked":
            size = 0
            while length := int(self._line().split(b";")[0], 16):
                self._skim(length, kept)
                self._line()
                size += length
            while self._line():
                pass
            return bytes(kept), size
        if "content-length" in headers:
            size = int(headers["content-length"])
            self._skim(size, kept)
            return bytes(kept), size
        while piece := self._read():
            self.buffer += piece
        body, size = bytes(self.buffer[: self._keep]), len(self.buffer)
        self.buffer.clear()
        return body, size

    def _skim(self, size: int, kept: bytearray) -> None:
        while size:
            if not self.buffer:
                self._more()
            piece = self.buffer[:size]
            size -= len(piece)
            kept += piece[: max(0, self._keep - len(kept))]
            del self.buffer[: len(piece)]

    def _line(self) -> bytes:
        line = self._until(b"\r\n")
        if line is None:
            raise ConnectionError("closed in the middle of an answer")
        return line

    def _until(self, mark: bytes) -> bytes | None:
        while (place := self.buffer.find(mark)) < 0:
            piece = self._read()
            if not piece:
                if self.buffer:
                    raise ConnectionError("closed in the middle of an answer")
                return None
            self.buffer += piece
        found = bytes(self.buffer[:place])
        del self.buffer[: place + len(mark)]
        return found

    def _more(self) -> None:
        piece = self._read()
        if not piece:
            raise ConnectionError("closed in the middle of an answer")
        self.buffer += piece
