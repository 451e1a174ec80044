"""Readings of a stream of requests, and the patterns of their parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Leniency = Literal[
    "empty line before a request",  # 9112, 2.2: SHOULD ignore at least one
    "bare LF ends a line",  # 9112, 2.2: MAY
    "bare CR is a space",  # 9112, 2.2: invalid, or replaced
    "NUL is a space",  # 9110, 5.5: rejected, or replaced
    "control character in a value",  # 9110, 5.5: invalid; MAY be retained
    "folded line",  # 9112, 5.2: rejected, or replaced
    "indented first field is skipped",  # 9112, 2.2: rejected, or consumed
    "whitespace in the request line",  # 9112, 3: MAY
    "character in the target",  # 9112, 3.2: SHOULD be refused
    "later HTTP/1 version",  # 9110, 2.5: processed as 1.1
    "equal Content-Lengths",  # 9110, 8.6: rejected, or one of them
    "empty list element",  # 9110, 5.6.1: MUST be ignored; a transfer coding is better refused
    "chunked in HTTP/1.0",  # 9112, 6.1: faulty; processed and closed
    "whitespace after a chunk size",  # 9112, 7.1.1: bad whitespace
    "chunk extension without form",  # 9112, 7.1.1: MUST ignore what is unrecognised
    "long chunk extension",  # 9112, 7.1.1: ought to be limited
    "long numeral",  # leading zeros are legal; numerals may be limited
    "large head",
    "many fields",
    "large trailers",
    "framing in a trailer",  # 9110, 6.5.1: nobody may send it; ignored, or refused
    "many requests waiting",
    "the protocol is switched",  # 9110, 7.8: MAY be ignored
]
Ending = Literal[
    "boundary",  # every byte belongs to a complete request
    "in head",  # within a head
    "in body",  # within the body of `unfinished`
    "illegal head",
    "illegal body",  # of `unfinished`, whose head was valid
    "closed",  # the last request ended the connection; the rest is ignored
    "switched",  # the rest belongs to another protocol
]
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
REQUEST_LINE = re.compile(rb"(" + TOKEN + rb") ([^\x00-\x20\x7f]+) HTTP/([0-9])\.([0-9])")
LOOSE_REQUEST_LINE = re.compile(
    rb"[ \t\x0b\x0c\r]*(" + TOKEN + rb")[ \t\x0b\x0c\r]+([^\x00-\x20\x7f]+)[ \t\x0b\x0c\r]+"
    rb"HTTP/([0-9])\.([0-9])[ \t\x0b\x0c\r]*"
)
TARGET = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})+")
ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://")
AUTHORITY = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\]):[0-9]+")
HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
FIELD = re.compile(rb"(" + TOKEN + rb"):(.*)", re.DOTALL)
END_OF_HEAD = re.compile(rb"\r\n\r\n")
CONTROL = re.compile(rb"[\x01-\x08\x0a-\x0c\x0e-\x1f\x7f]")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]+)([ \t]*)(.*)", re.DOTALL)
QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
CHUNK_EXTENSION = re.compile(
    rb"(?:[ \t]*;[ \t]*" + TOKEN + rb"(?:[ \t]*=[ \t]*(?:" + TOKEN + rb"|" + QUOTED + rb"))?)+"
)
FRAMING = (b"transfer-encoding", b"content-length", b"host")
OWS = b" \t"


@dataclass(frozen=True)
class Limits:
    """Sizes that a server must accept, and sizes from which it must reject. Between them it may do either.

    Attributes:
        head: Bytes of a request line with its fields; `trailers` likewise.
        pipelined: Minimum number of requests that may wait for their answers.
    """

    head: tuple[int, int] = (16_384, 40_000)
    trailers: tuple[int, int] = (1_000, 200_000)
    fields: int = 64
    extension: int = 128
    digits: int = 16
    pipelined: int = 60


USUAL_LIMITS = Limits()


@dataclass
class Request:
    """One request; names of fields are in lower case.

    Attributes:
        notes: Oddities without effect on the framing, including the leniencies that it needed.
        start, end: Its position in the stream.
    """

    method: bytes
    target: bytes
    version: tuple[int, int]
    fields: list[tuple[bytes, bytes]]
    start: int
    end: int = -1
    body: bytes = b""
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a field by line."""
        return [value for existing, value in self.fields if existing == name]

    def tokens(self, name: bytes) -> list[bytes]:
        """Return the elements of a list field in lower case."""
        elements = b",".join(self.values(name)).lower().split(b",")
        return [element.strip(OWS) for element in elements if element.strip(OWS)]


@dataclass(frozen=True)
class Reading:
    """One permitted reading of a stream.

    Attributes:
        requests: Complete valid requests: each has an answer due.
        unfinished: A request with a valid head and an invalid or incomplete body.
        why: Description of the error, or "".
        statuses: Statuses of the rejection of an invalid stream.
        at: The position where reading stopped.
    """

    requests: tuple[Request, ...]
    ending: Ending
    at: int
    why: str = ""
    statuses: frozenset[int] = frozenset()
    unfinished: Request | None = None
    granted: frozenset[Leniency] = frozenset()
