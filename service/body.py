"""Read request bodies as strict JSON, with limits on size, time, memory and cost.

- Size and memory: memory is reserved for the bytes as they arrive. A body beyond the limit is rejected, whether or not
  the request contains its length.
- Time: the time between two pieces has a maximum, and the rate of the whole body a minimum.
- Cost: values and names are counted in the bytes that arrive (`rfa.service.json_cost`). An expensive text is rejected
  before it is decoded.
- Fairness: other tasks run between the pieces of a large body.

FastAPI's own reader accepts NaN, 1e999 and lone surrogates, has no limits, and repeats a rejected body in its reply.
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
from rfa.service.setting_groups import LimitSettings
from rfa.service.validation import check_lengths, validated

# Counting this many bytes takes at most about a millisecond.
PIECE_BYTES: Final = 65_536
# Larger bodies may take more than half a millisecond to decode and validate.
LARGE_BYTES: Final = 4_096
Model = TypeVar("Model", bound=BaseModel)


def decode_json(text: bytes | str, subject: str, members: int | None = None) -> Any:
    """Decode strict JSON (RFC 8259), and return its value. Numbers must be finite, Unicode must be valid, and no name
    may occur twice in an object.

    Args:
        subject: Name of the text in error messages.
        members: Number of members of all objects in the text. If None, they are counted.

    Raises:
        InvalidRequest: If the text is invalid. The message contains the position of the error or the repeated name, but
            no other part of the text.
    """
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = error.msg.split(":")[0]
        raise InvalidRequest(
            f"{subject} must be valid JSON with finite numbers and valid Unicode; {reason} at character {error.pos}.",
            code="invalid_json",
        ) from None
    check_members(text, document, subject, members)
    return document


class BodyLimits(NamedTuple):
    """Limits of a route: the size of a body in bytes, and limits on the content of JSON."""

    size: int
    json: JsonLimits

    @classmethod
    def of(cls, settings: LimitSettings) -> BodyLimits:
        """Return the limits of routes that do not define other limits."""
        return cls(settings.max_body_bytes, body_limits(settings))


def hold(lease: Lease, size: int) -> None:
    """Reserve `size` more bytes of memory for a body and its decoding.

    Raises:
        PayloadTooLarge: If the body needs more memory than a request may use.
        Overloaded: If there is currently not enough free memory.
    """
    if lease.size + size > lease.largest:
        needed = lease.size + size
        raise PayloadTooLarge(
            f"Reading the request body needs about {needed} bytes of memory, but a request may use at most "
            f"{lease.largest} on this server."
        )
    lease.grow(size)


class BodyReader:
    """Reads the body of one request.

    Args:
        lease: Memory lease, which grows by the memory of the body.
        cooperative: Scheduler in which the work on a large body runs.
    """

    def __init__(self, request: Request, settings: LimitSettings, lease: Lease, cooperative: CooperativeWork) -> None:
        self._request = request
        self._settings = settings
        self._lease = lease
        self._cooperative = cooperative

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return a reader with the settings of the application and the lease of the request."""
        state = request.app.state
        return cls(request, state.settings.limits, lease_of(request), state.cooperative)

    async def read_model(self, model: type[Model], limits: BodyLimits) -> Model:
        """Read and validate the body, and return the validated model. Afterwards, the lease covers the model instead of
        the bytes of the body.

        Args:
            model: Model that validates the body.
            limits: Limits of the route.

        Raises:
            PayloadTooLarge: If the body is too large or needs too much memory.
            RequestTimeout: If the body arrives too slowly.
            InvalidRequest: If the body has too many values, is not JSON, or does not match the model.
            Overloaded: If there is currently not enough free memory.
            ClientGone: If the client disconnects before a large body is validated.
        """
        before = self._lease.size
        pieces, counts = await self._read_pieces(limits)
        is_long = counts.size > LARGE_BYTES
        hold(self._lease, counts.decoding_bytes())
        validating = self._validate(pieces, counts.members, model, is_long=is_long)
        # The validation of a long body is cancelled if the client disconnects.
        body = await (unless_disconnected(self._request, validating) if is_long else validating)
        self._lease.shrink(self._lease.size - before - counts.validated_bytes())
        return body

    async def read_bytes(self, largest: int) -> bytes:
        """Read the body, and return its bytes. Afterwards, the lease covers these bytes.

        Args:
            largest: Maximum size in bytes.

        Raises:
            PayloadTooLarge: If the body is too large.
            RequestTimeout: If the body arrives too slowly.
            Overloaded: If there is currently not enough free memory.
        """
        async with aclosing(self._leased(largest)) as chunks:
            body = b"".join([chunk async for chunk in chunks])
        self._lease.shrink(len(body))  # for the separate pieces, which are no longer needed
        return body

    async def _validate(self, pieces: list[bytes], members: int, model: type[Model], *, is_long: bool) -> Model:
        document = await self._cooperative.run(partial(_decode, pieces, members), is_long=is_long)
        check_lengths(document, self._settings)
        body = await self._cooperative.run(partial(validated, model, document, "The body"), is_long=is_long)
        if is_long:
            await self._cooperative.pause()  # before the caller processes the body
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
        """Yield the parts of the body. The lease grows before a part is yielded."""
        size = 0
        async with aclosing(self._in_time(largest)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > largest:
                    raise _too_large(largest)
                hold(self._lease, 2 * len(chunk))  # for the piece, and for its copy in the whole body
                yield chunk

    async def _in_time(self, largest: int) -> AsyncGenerator[bytes]:
        """Yield the parts of the body. Raise RequestTimeout if they arrive too slowly."""
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
                    raise RequestTimeout(f"The next part of the request body must arrive within {gap:g} s.") from None
                raise RequestTimeout(
                    f"The request body must arrive at a rate of {rate} bytes per second or more."
                ) from None
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
    return PayloadTooLarge(f"The request body must not be larger than {largest} bytes.")


def require_json(content_type: str | None) -> None:
    """Check that the content type of a body is `application/json`, and that its charset, if any, is UTF-8.

    Raises:
        UnsupportedMediaType: If the content type is missing or different.
    """
    media_type, *parameters = (content_type or "").lower().split(";")
    pairs = [parameter.partition("=") for parameter in parameters]
    charsets = [value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"]
    if media_type.strip() != "application/json" or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise UnsupportedMediaType("The Content-Type must be application/json (UTF-8).")


def require_uncompressed(content_encoding: str | None) -> None:
    """Check that a body is not compressed. Otherwise, its bytes would be reported as invalid JSON.

    Raises:
        UnsupportedMediaType: If the body is compressed.
    """
    if (content_encoding or "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The request body must be sent uncompressed, without a Content-Encoding header.")


def require_bare(content_type: str | None) -> None:
    """Check that a body is a file, and not a form that contains a file. The boundaries of a form would be read as rows.

    Raises:
        UnsupportedMediaType: If the body is a form.
    """
    if (content_type or "").strip().lower().startswith("multipart/"):
        raise UnsupportedMediaType(
            "The body must be the file itself, not a form. With curl, use --data-binary @FILE instead of -F."
        )


class ValidatedRequest(Request):
    """Request with a validated body, which FastAPI uses without parsing it again."""

    def __init__(self, request: Request, body: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._validated = body

    async def body(self) -> Any:
        return self._validated  # FastAPI calls `body` instead of `json` for content types other than JSON

    async def json(self) -> BaseModel:
        return self._validated


class StrictJSONRoute(APIRoute):
    """Route that reads JSON bodies with `BodyReader`, and reserves memory for its requests."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. Its memory lease (`lease_of`) is released after the last byte of the reply.

        Raises:
            NotReady: If the bundles are not loaded yet.
        """
        memory: MemoryBudget | None = scope["app"].state.memory
        if memory is None:
            raise NotReady("The bundles are not loaded yet; try again later.")
        with memory.take(0) as lease:
            scope.setdefault("state", {})["lease"] = lease
            await super().handle(scope, receive, send)

    def limits(self, settings: LimitSettings) -> BodyLimits:
        """Return the limits on JSON bodies."""
        return BodyLimits.of(settings)

    def plain_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, for requests whose body is already validated."""
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
