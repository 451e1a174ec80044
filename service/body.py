"""Reads request bodies: strict JSON within limits of size, time, memory and cost.

    bytes     reserved as they arrive; rejected beyond the limit, declared or not
    seconds   between two pieces, and a lowest rate for the whole
    cost      counted piece by piece (`rfa.service.json_cost`); an expensive text is rejected before decoding
    turns     other work runs between the pieces of a large body

FastAPI's own reader accepts NaN, 1e999 and lone surrogates, has no limit, and repeats a rejected body in its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from rfa.service.cooperative import CooperativeWork
from rfa.service.disconnect import unless_disconnected
from rfa.service.errors import InvalidRequest, NotReady, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from rfa.service.json_cost import JsonCost, JsonCounts, JsonLimits, body_limits
from rfa.service.json_members import check_members
from rfa.service.memory import Lease, MemoryBudget, lease_of
from rfa.service.settings import LimitSettings
from rfa.service.validation import check_lengths, validated

# Counted in at most about a millisecond.
PIECE_BYTES: Final = 65_536
# Larger bodies may take half a millisecond to decode and validate.
LARGE_BYTES: Final = 4_096
Model = TypeVar("Model", bound=BaseModel)


def decode_json(text: bytes | str, subject: str, members: int | None = None) -> Any:
    """Decode strict JSON (RFC 8259, finite numbers, valid Unicode, no repeated names in an object).

    Args:
        subject: Its name in messages.
        members: Number of members in the text, if known.

    Raises:
        InvalidRequest: The message has the position of the error or the name, but no other text.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = error.msg.split(":")[0]
        raise InvalidRequest(
            f"{subject} must be valid JSON with finite numbers and valid Unicode: {reason} at character {error.pos}.",
            code="invalid_json",
        ) from None
    check_members(text, document, subject, members)
    return document


class BodyLimits(NamedTuple):
    """Limits of a route: bytes, and contents of JSON."""

    size: int
    json: JsonLimits

    @classmethod
    def of(cls, settings: LimitSettings) -> BodyLimits:
        """Return the limits of most routes."""
        return cls(settings.max_body_bytes, body_limits(settings))


def hold(lease: Lease, size: int) -> None:
    """Reserve memory for decoding a body.

    Raises:
        PayloadTooLarge: It is more than a request may have.
        Overloaded: There is not enough free memory now.
    """
    if lease.size + size > lease.largest:
        needed = lease.size + size
        raise PayloadTooLarge(
            f"The body needs about {needed} bytes of memory to read; a request may have {lease.largest} on this server."
        )
    lease.grow(size)


class BodyReader:
    """Reads the body of one request.

    Args:
        lease: Grows by the memory of the body.
    """

    def __init__(self, request: Request, settings: LimitSettings, lease: Lease, cooperative: CooperativeWork) -> None:
        self._request = request
        self._settings = settings
        self._lease = lease
        self._cooperative = cooperative

    @classmethod
    def of(cls, request: Request) -> Self:
        """Create with the settings and the lease of the request."""
        state = request.app.state
        return cls(request, state.settings.limits, lease_of(request), state.cooperative)

    async def read_model(self, model: type[Model], limits: BodyLimits) -> Model:
        """Return the validated body. Afterwards the lease covers it, but no longer its bytes.

        Raises:
            PayloadTooLarge: It is too large, or would take too much memory.
            RequestTimeout: It arrives too slowly.
            InvalidRequest: It has too many values, is not JSON, or does not match the model.
            Overloaded: There is not enough free memory now.
            ClientGone: The client disconnected while a large body was waiting.
        """
        before = self._lease.size
        pieces, counts = await self._read_pieces(limits)
        is_long = counts.size > LARGE_BYTES
        hold(self._lease, counts.decoding_bytes())
        validating = self._validate(pieces, counts.members, model, is_long=is_long)
        # The body of a client that disconnects need not be validated.
        body = await (unless_disconnected(self._request, validating) if is_long else validating)
        self._lease.shrink(self._lease.size - before - counts.validated_bytes())
        return body

    async def read_bytes(self, largest: int) -> bytes:
        """Return the body as bytes, at most `largest`. The lease covers it.

        Raises:
            PayloadTooLarge, RequestTimeout, Overloaded: See `read_model`.
        """
        async with aclosing(self._leased(largest)) as chunks:
            body = b"".join([chunk async for chunk in chunks])
        self._lease.shrink(len(body))  # the pieces
        return body

    async def _validate(self, pieces: list[bytes], members: int, model: type[Model], *, is_long: bool) -> Model:
        document = await self._cooperative.run(partial(_decode, pieces, members), is_long=is_long)
        check_lengths(document, self._settings)
        body = await self._cooperative.run(partial(validated, model, document, "The body"), is_long=is_long)
        if is_long:
            await self._cooperative.pause()  # before the caller processes it
        return body

    async def _read_pieces(self, limits: BodyLimits) -> tuple[list[bytes], JsonCounts]:
        cost = JsonCost(limits.json, "The body")
        pieces: list[bytes] = []
        size = 0
        async with aclosing(self._leased(limits.size)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                pieces.append(chunk)
                for start in range(0, len(chunk), PIECE_BYTES):
                    piece = chunk[start : start + PIECE_BYTES]
                    await self._cooperative.run(partial(cost.feed, piece), is_long=size > LARGE_BYTES)
        return pieces, cost.counts

    async def _leased(self, largest: int) -> AsyncGenerator[bytes]:
        """Yield the pieces of the body, each covered by the lease."""
        size = 0
        async with aclosing(self._in_time(largest)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > largest:
                    raise _too_large(largest)
                hold(self._lease, 2 * len(chunk))  # the piece, and its copy in the whole
                yield chunk

    async def _in_time(self, largest: int) -> AsyncGenerator[bytes]:
        """Yield the pieces of the body, within their time."""
        _check_declared(self._request, largest)
        gap, rate = self._settings.body_timeout_seconds, self._settings.min_body_rate
        loop = asyncio.get_running_loop()
        begin, size = loop.time(), 0
        chunks = self._request.stream()
        while True:
            until_next, until_end = loop.time() + gap, begin + gap + size / rate
            try:
                async with asyncio.timeout_at(min(until_next, until_end)):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                if until_next <= until_end:
                    raise RequestTimeout(f"The next piece of the body must come within {gap:g} s.") from None
                raise RequestTimeout(f"The body must come at {rate} bytes per second or faster.") from None
            if chunk is None:
                return
            size += len(chunk)
            yield chunk


def _decode(pieces: list[bytes], members: int) -> Any:
    body = b"".join(pieces)
    pieces.clear()
    return decode_json(body, "The body", members)


def _check_declared(request: Request, largest: int) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > largest:
        raise _too_large(largest)


def _too_large(largest: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body must not be larger than {largest} bytes.")


def require_json(content_type: str | None) -> None:
    """Reject everything except `application/json` in UTF-8.

    Raises:
        UnsupportedMediaType: Another or no content type.
    """
    media_type, *parameters = (content_type or "").lower().split(";")
    pairs = [parameter.partition("=") for parameter in parameters]
    charsets = [value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"]
    if media_type.strip() != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise UnsupportedMediaType("The Content-Type must be application/json (UTF-8).")


def require_uncompressed(content_encoding: str | None) -> None:
    """Reject a compressed body, which would cause a misleading error.

    Raises:
        UnsupportedMediaType: The body is compressed.
    """
    if (content_encoding or "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The body must be sent uncompressed, without Content-Encoding.")


def require_bare(content_type: str | None) -> None:
    """Reject a form around a file, whose boundaries would be read as rows.

    Raises:
        UnsupportedMediaType: The body is a form.
    """
    if (content_type or "").strip().lower().startswith("multipart/"):
        raise UnsupportedMediaType("The body must be the file itself, not a form: curl --data-binary @FILE, not -F.")


class ValidatedRequest(Request):
    """A request with a validated body, which FastAPI uses unchanged."""

    def __init__(self, request: Request, body: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._validated = body

    async def body(self) -> Any:
        return self._validated  # FastAPI uses it for other content types than JSON

    async def json(self) -> BaseModel:
        return self._validated


class StrictJSONRoute(APIRoute):
    """A route that reads its body with this module, and whose requests reserve memory."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Its lease (`lease_of`) ends after the last byte.

        Raises:
            NotReady: The server has not started.
        """
        memory: MemoryBudget | None = scope["app"].state.memory
        if memory is None:
            raise NotReady("The bundles are not loaded.")
        with memory.take(0) as lease:
            scope.setdefault("state", {})["lease"] = lease
            await super().handle(scope, receive, send)

    def limits(self, settings: LimitSettings) -> BodyLimits:
        """Limits of JSON bodies."""
        return BodyLimits.of(settings)

    def plain_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, for validated bodies."""
        return super().get_route_handler()

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = self.plain_handler()
        if self.body_field is None:
            return handle

        model: Any = self.body_field.field_info.annotation

        async def read_then_handle(request: Request) -> Response:
            require_json(request.headers.get("content-type"))
            require_uncompressed(request.headers.get("content-encoding"))
            body = await BodyReader.of(request).read_model(model, self.limits(request.app.state.settings.limits))
            return await handle(ValidatedRequest(request, body))

        return read_then_handle
