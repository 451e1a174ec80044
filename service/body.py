"""Reading a request body: JSON only, bounded in size and depth, one decoder.

FastAPI's own reading accepts NaN, 1e999 and lone surrogates, has no bound, and answers a refused body by repeating it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute

from service.errors import InvalidRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from service.settings import Settings

# An unterminated string matches to the end of the body, so that the scan is linear for any input.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SLOPE = np.zeros(256, dtype=np.int32)
_SLOPE[[ord("["), ord("{")]] = 1
_SLOPE[[ord("]"), ord("}")]] = -1


def json_depth(body: bytes) -> int:
    """Deepest nesting of brackets outside strings; an upper bound where the JSON is broken."""
    brackets = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    if not brackets:
        return 0
    return int(np.cumsum(_SLOPE[np.frombuffer(brackets, dtype=np.uint8)]).max(initial=0))


def decode_json(text: bytes | str, subject: str) -> Any:
    """Decode strict JSON; `subject` is what the message calls it.

    Raises:
        InvalidRequest: with the position of the fault, never with the text around it.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = error.msg.split(":")[0]
        raise InvalidRequest(
            f"{subject} must be valid JSON with finite numbers and valid Unicode: {reason} at character {error.pos}.",
            code="invalid_json",
        ) from None


def parse_json(body: bytes, max_depth: int) -> Any:
    """Decode strict JSON (RFC 8259, finite numbers, valid Unicode).

    Raises:
        InvalidRequest: with the position of the fault, never with the text around it.
    """
    if json_depth(body) > max_depth:
        raise InvalidRequest(f"The body must not nest deeper than {max_depth} levels.", code="too_deep")
    return decode_json(body, "The body")


async def read_bounded(request: Request, limit: int, gap_seconds: float) -> bytes:
    """Read the body and stop as soon as it exceeds `limit` bytes, declared or not.

    Raises:
        PayloadTooLarge: before more than `limit` bytes and one chunk are held.
        RequestTimeout: when nothing more of it comes for `gap_seconds`.
    """
    refusal = PayloadTooLarge(f"The body must not be larger than {limit} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise refusal
    chunks: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(gap_seconds) as patience:
            async for chunk in request.stream():
                patience.reschedule(loop.time() + gap_seconds)
                size += len(chunk)
                if size > limit:
                    raise refusal
                chunks.append(chunk)
    except TimeoutError:
        raise RequestTimeout(f"The next piece of the body must come within {gap_seconds:g} s.") from None
    return b"".join(chunks)


def require_json(content_type: str | None) -> None:
    """Refuse everything but `application/json` in UTF-8.

    Raises:
        UnsupportedMediaType: for another or no content type.
    """
    media_type, *parameters = (content_type or "").lower().split(";")
    pairs = [parameter.partition("=") for parameter in parameters]
    charsets = [value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"]
    if media_type.strip() != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise UnsupportedMediaType("The Content-Type must be application/json (UTF-8).")


class _ParsedRequest(Request):
    """A request whose body was read and decoded already."""

    def __init__(self, request: Request, body: bytes, document: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._bytes = body
        self._document = document

    async def body(self) -> bytes:
        return self._bytes

    async def json(self) -> Any:
        return self._document


class StrictJSONRoute(APIRoute):
    """A route that reads its body by the rules of this module."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_then_handle(request: Request) -> Response:
            settings: Settings = request.app.state.settings
            require_json(request.headers.get("content-type"))
            body = await read_bounded(request, settings.max_body_bytes, settings.body_timeout_seconds)
            return await handle(_ParsedRequest(request, body, parse_json(body, settings.max_json_depth)))

        return read_then_handle
