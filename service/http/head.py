"""Checks of the request line and headers that are stricter than those of h11.

h11 accepts some heads that a proxy and a server may parse differently, which allows request smuggling. This module
rejects bare line feeds and carriage returns, control characters, folded lines, a body framed twice, and chunks in
HTTP/1.0.
"""

from __future__ import annotations

import re
from typing import Final

import h11

from rfa.service.errors import HeadersTooLarge, MalformedRequest

END: Final = b"\r\n\r\n"
LINE_END: Final = b"\r\n"
# Parsing takes about 10 µs per header of any size, so 32 kB of empty headers would take 0.1 s.
MAX_HEADERS: Final = 100
VERSIONS: Final = (b"1.0", b"1.1")
# A field value must not contain control characters except tab (RFC 9110, 5.5).
_NOT_TEXT: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n")
_BARE: Final = re.compile(rb"(?<!\r)\n")
_LINES: Final = "The request line and headers must be lines of text that end with CR LF."
_FOLDED: Final = re.compile(rb"\r\n[ \t]")
_FIRST: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]|\r?\Z")


def starts_like_a_request(data: bytes | bytearray) -> bool:
    """Return whether `data` is empty or can be the start of a method name. A TLS handshake, for example, cannot."""
    return _FIRST.match(data) is not None


def check_line_ends(unfinished: bytes | bytearray, begin: int) -> None:
    """Reject an incomplete head that contains a bare line feed, because its end would never be found.

    Args:
        begin: index of the first unchecked byte.

    Raises:
        MalformedRequest: If there is a bare line feed.
    """
    if _BARE.search(unfinished, begin):
        raise MalformedRequest(_LINES)


def check_text(head: bytes) -> None:
    """Reject a complete head that has invalid lines or too many of them.

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


def check_framing(request: h11.Request) -> None:
    """Reject a request if two parsers could disagree about the end of its body.

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
    """Return the percent-encoded path and query of any form of request target (RFC 9112, 3.2).

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
