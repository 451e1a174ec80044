"""Parse the head of a request, which is its request line and headers. The checks are stricter than those of h11.

h11 accepts some heads that a proxy and a server may parse differently, which allows request smuggling. This module
rejects bare line feeds and carriage returns, control characters, folded lines, requests with both Content-Length and
Transfer-Encoding, and Transfer-Encoding in HTTP/1.0.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

import h11

from rfa.service.errors import HeadersTooLarge, MalformedRequest, ServiceError

END: Final = b"\r\n\r\n"
LINE_END: Final = b"\r\n"
# Parsing takes about 10 µs per header of any size, so 32 kB of empty headers would take 0.1 s.
MAX_HEADERS: Final = 100
# Maximum size of all trailers together, and of the line with a chunk size. Each is parsed in one call.
MAX_TRAILER_BYTES: Final = 1_024
_NOT_HTTP: Final = "The request is not valid HTTP/1.1."
VERSIONS: Final = (b"1.0", b"1.1")
# A field value must not contain control characters except tab (RFC 9110, 5.5).
_NOT_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n")
_BARE: Final = re.compile(rb"(?<!\r)\n")
_LINES: Final = "The request line and headers must consist of lines of text, each of which ends with CR LF."
_FOLDED: Final = re.compile(rb"\r\n[ \t]")
_FIRST: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]|\r?\Z")


def check_start(data: bytes | bytearray) -> None:
    """Check that received bytes can be the start of a method name. This rejects a TLS handshake, for example.

    Raises:
        MalformedRequest: If `data` is not empty and cannot be the start of a method name.
    """
    if _FIRST.match(data) is None:
        raise MalformedRequest(_NOT_HTTP)


def check_line_ends(unfinished: bytes | bytearray, begin: int) -> None:
    """Check that an incomplete head contains no bare line feed. Otherwise, its end might never be found.

    Args:
        begin: Index of the first byte that was not checked before.

    Raises:
        MalformedRequest: If there is a bare line feed.
    """
    if _BARE.search(unfinished, begin):
        raise MalformedRequest(_LINES)


def parse_head(head: bytes) -> tuple[h11.Connection, h11.Request]:
    """Parse a complete head. Return the parser, with which the body must be parsed, and the request.

    Raises:
        HeadersTooLarge: If there are too many headers.
        MalformedRequest: If the head is invalid.
    """
    _check_text(head)
    parser = h11.Connection(h11.SERVER, MAX_TRAILER_BYTES)  # the limit applies to the trailers
    parser.receive_data(head)
    request = parser.next_event()
    if not isinstance(request, h11.Request):
        raise MalformedRequest(_NOT_HTTP)
    _check_framing(request)
    return parser, request


def parse_error(error: h11.RemoteProtocolError) -> ServiceError:
    """Return the error to report to the client for an error of the parser."""
    if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return HeadersTooLarge(
            f"The trailers and the line of a chunk size must not be larger than {MAX_TRAILER_BYTES} bytes."
        )
    return MalformedRequest(_NOT_HTTP)


def wants_websocket(request: h11.Request) -> bool:
    """Return whether a request is a WebSocket handshake. Other upgrades are ignored (RFC 9110, 7.8)."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        values.setdefault(name, []).extend(part.strip().lower() for part in value.split(b","))
    has_body = b"transfer-encoding" in values or values.get(b"content-length", [b"0"]) != [b"0"]
    return (
        request.method == b"GET"
        and request.http_version == b"1.1"
        and not has_body
        and b"upgrade" in values.get(b"connection", ())
        and values.get(b"upgrade") == [b"websocket"]
    )


def _check_text(head: bytes) -> None:
    """Check every line of a complete head.

    Raises:
        HeadersTooLarge: If there are too many headers.
        MalformedRequest: If a line is invalid.
    """
    if head.count(b"\n") > MAX_HEADERS + 2:  # plus the request line and the empty line
        raise HeadersTooLarge(f"A request must not contain more than {MAX_HEADERS} headers.")
    if _NOT_TEXT.search(head):
        raise MalformedRequest(_LINES)
    if _FOLDED.search(head):
        raise MalformedRequest("A header must not be folded over several lines.")


def _check_framing(request: h11.Request) -> None:
    """Check that all parsers agree on the end of the body.

    Raises:
        MalformedRequest: If the framing is ambiguous.
    """
    names = [name for name, _ in request.headers]
    is_chunked = b"transfer-encoding" in names
    if request.http_version not in VERSIONS:
        raise MalformedRequest("The HTTP version must be 1.0 or 1.1.")
    if is_chunked and b"content-length" in names:
        raise MalformedRequest("A request must not contain both Content-Length and Transfer-Encoding.")
    if is_chunked and request.http_version == b"1.0":
        raise MalformedRequest("HTTP/1.0 does not support Transfer-Encoding.")


def path_and_query(request: h11.Request) -> tuple[bytes, bytes]:
    """Return the path and the query of a request target in any form (RFC 9112, 3.2). They are still percent-encoded.

    Raises:
        MalformedRequest: If the target contains a fragment, or a host that differs from the Host header.
    """
    target = request.target
    if b"#" in target:
        raise MalformedRequest("The request target must not contain a fragment.")
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        authority, slash, path = _split_authority(rest)
        hosts = [value for name, value in request.headers if name == b"host"]
        if any(host.lower() != authority.lower() for host in hosts):
            raise MalformedRequest("The host in the request target must match the Host header.")
        target = slash + path if slash == b"/" else b"/" + slash + path
    path, _, query = target.partition(b"?")
    return path, query


def _split_authority(rest: bytes) -> tuple[bytes, bytes, bytes]:
    match = re.search(rb"[/?]", rest)
    if match is None:
        return rest, b"/", b""
    return rest[: match.start()], rest[match.start() : match.end()], rest[match.end() :]
