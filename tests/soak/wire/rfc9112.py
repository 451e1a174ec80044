"""Parse the requests in a stream of bytes by RFC 9110 and RFC 9112.

    readings(data) -> every reading that the RFCs permit

If an RFC leaves a choice ("MAY", "reject or replace"), the stream has several permitted readings: one that accepts the
input and one that rejects it. A `Leniency` names such a choice, which a server makes equally for all requests of a
connection. The parser favours clarity over speed and is not incremental.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

from tests.soak.wire.readings import (
    ABSOLUTE,
    AUTHORITY,
    CHUNK_EXTENSION,
    CHUNK_LINE,
    CONTROL,
    END_OF_HEAD,
    FIELD,
    FRAMING,
    HOST,
    LOOSE_REQUEST_LINE,
    OWS,
    REQUEST_LINE,
    TARGET,
    USUAL_LIMITS,
    Ending,
    Leniency,
    Limits,
    Reading,
    Request,
)


class _Illegal(Exception):
    def __init__(self, why: str, *statuses: int) -> None:
        super().__init__(why)
        self.statuses = frozenset(statuses or (400,))


class _Incomplete(Exception):
    """The stream ends here."""


def never(_: Request) -> Literal["no"]:
    """Never switch the protocol."""
    return "no"


def readings(
    data: bytes,
    limits: Limits = USUAL_LIMITS,
    switches: Callable[[Request], Literal["no", "may", "yes"]] = never,
) -> Iterator[Reading]:
    """Return every permitted reading, the strictest first.

    Args:
        switches: Returns whether the server switches the protocol after a request.
    """
    waiting: list[frozenset[Leniency]] = [frozenset()]
    seen = set(waiting)
    while waiting:
        reader = _Reader(data, limits, switches, waiting.pop(0))
        yield reader.read()
        for further in sorted(reader.asked - reader.granted):
            granted = reader.granted | {further}
            if granted not in seen:
                seen.add(granted)
                waiting.append(granted)


class _Reader:
    def __init__(
        self,
        data: bytes,
        limits: Limits,
        switches: Callable[[Request], Literal["no", "may", "yes"]],
        granted: frozenset[Leniency],
    ) -> None:
        self._data = data
        self._limits = limits
        self._switches = switches
        self.granted = granted
        self.asked: set[Leniency] = set()
        self._notes: set[str] = set()
        self._at = 0

    def read(self) -> Reading:
        requests: list[Request] = []
        while True:
            self._notes = set()
            request: Request | None = None
            begin = self._at
            try:
                request = self._head(len(requests))
                if request is None:
                    return self._reading(requests, "boundary", begin)
                self._body(request)
            except _Incomplete:
                return self._reading(requests, "in body" if request else "in head", begin, unfinished=request)
            except _Illegal as fault:
                ending: Ending = "illegal body" if request else self._ending_of_illegal_head(begin)
                return self._reading(requests, ending, begin, str(fault), fault.statuses, request)
            request.end = self._at
            request.notes |= self._notes
            requests.append(request)
            switches = self._switches(request)
            if switches == "yes" or (switches == "may" and self._may("the protocol is switched")):
                return self._reading(requests, "switched", self._at)
            if request.version < (1, 1) or b"close" in request.tokens(b"connection"):
                return self._reading(requests, "closed", self._at)

    def _ending_of_illegal_head(self, begin: int) -> Ending:
        """A server may check a complete head rather than each of its lines."""
        rest = self._data[begin : begin + self._limits.head[1] + 1]
        return "illegal head" if END_OF_HEAD.search(rest) or len(rest) > self._limits.head[1] else "in head"

    def _reading(
        self,
        requests: list[Request],
        ending: Ending,
        at: int,
        why: str = "",
        statuses: frozenset[int] = frozenset(),
        unfinished: Request | None = None,
    ) -> Reading:
        if unfinished is not None:
            unfinished.notes |= self._notes
        return Reading(tuple(requests), ending, at, why, statuses, unfinished, self.granted)

    def _may(self, leniency: Leniency) -> bool:
        self.asked.add(leniency)
        if leniency in self.granted:
            self._notes.add(leniency)
            return True
        return False

    def _need(self, leniency: Leniency, *statuses: int) -> None:
        """Reject unless the leniency is granted."""
        if not self._may(leniency):
            raise _Illegal(f"not granted: {leniency}", *statuses)

    # Lines.

    def _line(self, *, is_framing: bool = False) -> bytes:
        """Return the next line without its end. In the framing of a body only CRLF ends a line."""
        end = self._data.find(b"\n", self._at)
        if end < 0:
            if is_framing and len(self._data) - self._at > self._limits.head[1]:
                raise _Illegal("a chunk line without end", 400, 413, 431)
            raise _Incomplete
        line = self._data[self._at : end]
        if line.endswith(b"\r"):
            line = line[:-1]
        elif is_framing:
            raise _Illegal("bare LF in the framing of a body")
        else:
            self._need("bare LF ends a line")
        self._at = end + 1
        return line

    def _safe(self, line: bytes) -> bytes:
        """Return a line of a head without forbidden characters."""
        if b"\r" in line:
            self._need("bare CR is a space")
            line = line.replace(b"\r", b" ")
        return line

    def _field_lines(self, limit: tuple[int, int], large: Leniency) -> list[tuple[bytes, bytes]]:
        """Return the fields up to the empty line after them."""
        begin = self._at
        fields: list[tuple[bytes, bytes]] = []
        is_first = True
        while True:
            if len(self._data) - begin > limit[1] and self._at - begin > limit[1]:
                raise _Illegal(large, 400, 413, 431)
            try:
                line = self._line()
            except _Incomplete:
                if len(self._data) - begin > limit[1]:
                    raise _Illegal(large, 400, 413, 431) from None
                raise
            if not line:
                break
            line = self._safe(line)
            if line[:1] in (b" ", b"\t"):
                if is_first:
                    self._need("indented first field is skipped")
                    continue
                self._need("folded line")
                name, value = fields[-1]
                fields[-1] = (name, (value + b" " + self._value(line)).strip(OWS))
            else:
                is_first = False
                fields.append(self._field(line))
        if self._at - begin > limit[0]:
            self._need(large, 400, 413, 431)
        if len(fields) > self._limits.fields:
            self._need("many fields", 400, 413, 431)
        return fields

    def _field(self, line: bytes) -> tuple[bytes, bytes]:
        match = FIELD.fullmatch(line)
        if match is None:
            raise _Illegal("not a field line")
        return match[1].lower(), self._value(match[2])

    def _value(self, value: bytes) -> bytes:
        if b"\0" in value:
            self._need("NUL is a space")
            value = value.replace(b"\0", b" ")
        if CONTROL.search(value):
            self._need("control character in a value")
        return value.strip(OWS)

    # The head.

    def _head(self, before: int) -> Request | None:
        while self._data.startswith((b"\r\n", b"\n"), self._at):
            self._need("empty line before a request")
            self._line()
        if self._at == len(self._data):
            return None
        start = self._at
        method, target, version = self._request_line()
        low, high = self._limits.head
        used = self._at - start
        fields = self._field_lines((low - used, high - used), "large head")
        request = Request(method, target, version, fields, start)
        if before >= self._limits.pipelined:
            self._need("many requests waiting", 400, 429, 503)
        self._note_target(request)
        self._note_host(request)
        self._check_framing(request)
        return request

    def _request_line(self) -> tuple[bytes, bytes, tuple[int, int]]:
        begin = self._at
        try:
            line = self._line()
        except _Incomplete:
            if len(self._data) - begin > self._limits.head[1]:
                raise _Illegal("a request line without end", 400, 414, 431) from None
            raise
        if len(line) > self._limits.head[1]:
            raise _Illegal("a long request line", 400, 414, 431)
        match = REQUEST_LINE.fullmatch(self._safe(line))
        if match is None:
            match = LOOSE_REQUEST_LINE.fullmatch(self._safe(line))
            if match is None:
                raise _Illegal("not a request line", 400, 501, 505)
            self._need("whitespace in the request line")
        version = int(match[3]), int(match[4])
        if version[0] != 1:
            raise _Illegal("another major version", 400, 505)
        if version[1] > 1:
            self._need("later HTTP/1 version", 400, 505)
        return match[1], match[2], version

    def _note_target(self, request: Request) -> None:
        target = request.target
        if target == b"*":
            is_right = request.method == b"OPTIONS"
        elif request.method == b"CONNECT":
            is_right = AUTHORITY.fullmatch(target) is not None
        else:
            is_right = target.startswith(b"/") or ABSOLUTE.match(target) is not None
        if not is_right:
            request.notes.add("form of the target")
        elif target != b"*" and request.method != b"CONNECT" and not TARGET.fullmatch(target):
            self._need("character in the target")

    def _note_host(self, request: Request) -> None:
        hosts = request.values(b"host")
        if len(hosts) > 1 or (not hosts and request.version >= (1, 1)):
            request.notes.add("number of hosts")
        elif hosts and not HOST.fullmatch(hosts[0]):
            request.notes.add("illegal host")

    # The body (9112, 6.3).

    def _check_framing(self, request: Request) -> None:
        """Reject a head that does not define the end of its body."""
        codings, lengths = request.values(b"transfer-encoding"), request.values(b"content-length")
        if codings and lengths:
            raise _Illegal("Content-Length beside Transfer-Encoding")
        if codings:
            self._check_codings(request)
        if lengths:
            self._length(lengths)

    def _check_codings(self, request: Request) -> None:
        elements = b",".join(request.values(b"transfer-encoding")).lower().split(b",")
        codings = [element.strip(OWS) for element in elements]
        if b"" in codings and any(codings):
            self._need("empty list element", 400, 501)
            codings = [coding for coding in codings if coding]
        if codings != [b"chunked"]:
            raise _Illegal("another transfer coding than chunked", 400, 501)
        if request.version < (1, 1):
            self._need("chunked in HTTP/1.0", 400, 501)

    def _length(self, values: list[bytes]) -> int:
        elements = [element.strip(OWS) for element in b",".join(values).split(b",")]
        if not all(re.fullmatch(rb"[0-9]+", element) for element in elements):
            raise _Illegal("a Content-Length that is no number")
        if len({int(element) for element in elements}) > 1:
            raise _Illegal("two Content-Lengths")
        if len(elements) > 1:
            self._need("equal Content-Lengths")
        if max(map(len, elements)) > self._limits.digits:
            self._need("long numeral", 400, 413)
        return int(elements[0])

    def _body(self, request: Request) -> None:
        if request.values(b"transfer-encoding"):
            self._chunks(request)
        elif lengths := request.values(b"content-length"):
            request.body = self._take(self._length(lengths))

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise _Incomplete
        self._at += count
        return taken

    def _chunks(self, request: Request) -> None:
        pieces = []
        while size := self._chunk_size():
            pieces.append(self._take(size))
            end = self._data[self._at : self._at + 2]
            if end not in (b"", b"\r", b"\r\n"):
                raise _Illegal("a chunk that goes on behind its size")
            if end != b"\r\n":
                raise _Incomplete
            self._at += 2
        request.body = b"".join(pieces)
        request.trailers = self._field_lines(self._limits.trailers, "large trailers")
        if any(name in FRAMING for name, _ in request.trailers):
            self._need("framing in a trailer")

    def _chunk_size(self) -> int:
        line = self._line(is_framing=True)
        if len(line) > self._limits.head[1]:
            raise _Illegal("a long chunk line", 400, 413, 431)
        match = CHUNK_LINE.fullmatch(line)
        if match is None:
            raise _Illegal("not a chunk size")
        digits, space, extension = match.groups()
        if space:
            self._need("whitespace after a chunk size")
        if extension:
            self._check_extension(extension)
        if len(digits) > self._limits.digits:
            self._need("long numeral", 400, 413)
        return int(digits, 16)

    def _check_extension(self, extension: bytes) -> None:
        if not extension.startswith(b";"):
            raise _Illegal("not a chunk extension")
        extension = self._safe(extension)
        if b"\0" in extension:
            self._need("NUL is a space")
            extension = extension.replace(b"\0", b" ")
        if not CHUNK_EXTENSION.fullmatch(extension):
            self._need("chunk extension without form")
        if len(extension) > self._limits.extension:
            self._need("long chunk extension", 400, 413, 431)
