"""Parse the answers of a server by RFC 9112, strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass

STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [\t \x21-\x7e\x80-\xff]*")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t \x21-\x7e\x80-\xff]*?)[ \t]*")


class Malformed(ValueError):
    """The bytes of the server are not an answer."""


@dataclass(frozen=True)
class Answer:
    """One complete answer; names are in lower case.

    Attributes:
        end: Position of its end.
        interim: Statuses of the preceding 1xx answers.
    """

    status: int
    fields: dict[bytes, bytes]
    body: bytes
    end: int
    interim: tuple[int, ...] = ()

    @property
    def request_id(self) -> str:
        """Return the request id, or ""."""
        return self.fields.get(b"x-request-id", b"").decode("latin-1")

    @property
    def closes(self) -> bool:
        """Return whether it announces the close of the connection."""
        return b"close" in self.fields.get(b"connection", b"").lower()


def read_answer(data: bytes, at: int, method: bytes) -> Answer | None:
    """Return the answer at a position, or None if it is incomplete.

    Args:
        method: Method of its request.

    Raises:
        Malformed: It cannot become an answer.
    """
    interim: list[int] = []
    while True:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if data[at : at + 5] != b"HTTP/"[: len(data) - at]:
                raise Malformed(f"no status line: {data[at : at + 40]!r}")
            return None
        first, *lines = data[at:end].split(b"\r\n")
        at = end + 4
        match = STATUS_LINE.fullmatch(first)
        if match is None:
            raise Malformed(f"no status line: {first[:40]!r}")
        status = int(match[1])
        if status >= 200 or status == 101:
            break
        interim.append(status)
    fields: dict[bytes, bytes] = {}
    for line in lines:
        named = FIELD.fullmatch(line)
        if named is None:
            raise Malformed(f"no field: {line[:40]!r}")
        name = named[1].lower()
        if name in fields and name in (b"content-length", b"transfer-encoding", b"x-request-id"):
            raise Malformed(f"{name.decode()} twice")
        fields[name] = named[2]
    if method == b"HEAD" or status in (101, 204, 304):
        return Answer(status, fields, b"", at, tuple(interim))
    body = _chunks(data, at) if b"transfer-encoding" in fields else _counted(data, at, fields)
    return None if body is None else Answer(status, fields, body[0], body[1], tuple(interim))


def _counted(data: bytes, at: int, fields: dict[bytes, bytes]) -> tuple[bytes, int] | None:
    length = fields.get(b"content-length", b"")
    if not length.isdigit():
        raise Malformed("an answer without length")
    end = at + int(length)
    return (data[at:end], end) if end <= len(data) else None


def _chunks(data: bytes, at: int) -> tuple[bytes, int] | None:
    pieces = []
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        try:
            size = int(data[at:end], 16)
        except ValueError:
            raise Malformed("no chunk size") from None
        at = end + 2
        if len(data) < at + size + 2:
            return None
        if data[at + size : at + size + 2] != b"\r\n":
            raise Malformed("a chunk longer than it says")
        pieces.append(data[at : at + size])
        at += size + 2
        if not size:
            return b"".join(pieces), at
