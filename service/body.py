"""Reading a request body: JSON only, every byte and second of it bounded, one decoder.

    bytes     leased as they come, refused beyond the largest body, declared or not
    seconds   between two pieces, and for the whole by a lowest rate
    cost      counted piece by piece (`rfa.service.json_cost`): what would decode to too much is never decoded
    others    one piece of a large body is counted, decoded or validated before other work runs

FastAPI's own reading accepts NaN, 1e999 and lone surrogates, has no bound, and answers a refused body by repeating it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

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
from rfa.service.settings import Settings
from rfa.service.validation import check_lengths, validated

# Counted at once: about a millisecond at worst.
PIECE_BYTES: Final = 65_536
# A body of more is a large one: to decode, validate and check it may take half a millisecond.
LARGE_BYTES: Final = 4_096
Model = TypeVar("Model", bound=BaseModel)


def decode_json(text: bytes | str, subject: str, members: int | None = None) -> Any:
    """Decode strict JSON (RFC 8259, finite numbers, valid Unicode, no name twice in an object).

    Args:
        subject: what messages call it.
        members: how many the text has, where somebody has counted.

    Raises:
        InvalidRequest: with the position of the fault or the name, never with the text around it.
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


@dataclass(frozen=True)
class BodyLimits:
    """What a route takes: bytes, and what JSON may hold."""

    size: int
    json: JsonLimits

    @classmethod
    def of(cls, settings: Settings) -> BodyLimits:
        """Of all routes but those that take more."""
        return cls(settings.max_body_bytes, body_limits(settings))


def hold(lease: Lease, size: int) -> None:
    """Lease what a body takes until it is taken apart.

    Raises:
        PayloadTooLarge: there will never be so much.
        Overloaded: memory is short at this moment.
    """
    if lease.size + size > lease.largest:
        needed = lease.size + size
        raise PayloadTooLarge(
            f"The body takes about {needed} bytes of memory to read; a request may have {lease.largest} on this server."
        )
    lease.grow(size)


async def read_body(
    request: Request,
    model: type[Model],
    settings: Settings,
    lease: Lease,
    cooperative: CooperativeWork,
    limits: BodyLimits,
) -> Model:
    """The body as the model has it; afterwards the lease covers that, and no longer the bytes.

    Raises:
        PayloadTooLarge: before more than the largest body and one chunk are held, or it would take too much memory.
        RequestTimeout: it comes too slowly.
        InvalidRequest: it holds too much, is not JSON, or not what the model says.
        Overloaded: memory is short at this moment.
        ClientGone: the client left while a large one waited for its turn.
    """
    before = lease.size
    pieces, counts = await _read_pieces(request, settings, lease, cooperative, limits)
    is_long = counts.size > LARGE_BYTES
    hold(lease, counts.decoding_bytes())
    validating = _validated(pieces, counts.members, model, settings, cooperative, is_long=is_long)
    # A client that disconnects leaves the queue: its body need not be validated.
    body = await (unless_disconnected(request, validating) if is_long else validating)
    lease.shrink(lease.size - before - counts.validated_bytes())
    return body


async def _validated(
    pieces: list[bytes],
    members: int,
    model: type[Model],
    settings: Settings,
    cooperative: CooperativeWork,
    *,
    is_long: bool,
) -> Model:
    document = await cooperative.run(partial(_decode, pieces, members), is_long=is_long)
    check_lengths(document, settings)
    body = await cooperative.run(partial(validated, model, document, "The body"), is_long=is_long)
    if is_long:
        await cooperative.pause()  # what the caller does with it, up to where it waits
    return body


async def _read_pieces(
    request: Request, settings: Settings, lease: Lease, cooperative: CooperativeWork, limits: BodyLimits
) -> tuple[list[bytes], JsonCounts]:
    cost = JsonCost(limits.json, "The body")
    pieces: list[bytes] = []
    size = 0
    async with aclosing(_leased(request, settings, lease, limits.size)) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            pieces.append(chunk)
            for start in range(0, len(chunk), PIECE_BYTES):
                piece = chunk[start : start + PIECE_BYTES]
                await cooperative.run(partial(cost.feed, piece), is_long=size > LARGE_BYTES)
    return pieces, cost.counts


async def read_bytes(request: Request, settings: Settings, lease: Lease, largest: int) -> bytes:
    """The body as it is, held to its size and its pace; the lease covers it.

    Args:
        largest: bytes.

    Raises:
        PayloadTooLarge, RequestTimeout, Overloaded
    """
    async with aclosing(_leased(request, settings, lease, largest)) as chunks:
        body = b"".join([chunk async for chunk in chunks])
    lease.shrink(len(body))  # of the pieces
    return body


async def _leased(request: Request, settings: Settings, lease: Lease, largest: int) -> AsyncGenerator[bytes]:
    """The pieces of the body, not too many bytes of them, once the lease covers each."""
    size = 0
    async with aclosing(_in_time(request, settings, largest)) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > largest:
                raise _too_large(largest)
            hold(lease, 2 * len(chunk))  # the piece, and its place in the whole
            yield chunk


def _decode(pieces: list[bytes], members: int) -> Any:
    body = b"".join(pieces)
    pieces.clear()
    return decode_json(body, "The body", members)


async def _in_time(request: Request, settings: Settings, largest: int) -> AsyncGenerator[bytes]:
    """The pieces of the body, none too late, and all of them not too late together."""
    _check_declared(request, largest)
    gap, rate = settings.body_timeout_seconds, settings.min_body_rate
    loop = asyncio.get_running_loop()
    begin, size = loop.time(), 0
    chunks = request.stream()
    while True:
        until_next, until_end = loop.time() + gap, begin + gap + size / rate
        try:
            async with asyncio.timeout_at(min(until_next, until_end)):
                chunk = await anext(chunks, None)
        except TimeoutError:
            if until_next <= until_end:
                raise RequestTimeout(f"The next piece of the body must come within {gap:g} s.") from None
            raise RequestTimeout(f"The body must come at {rate} bytes a second or faster.") from None
        if chunk is None:
            return
        size += len(chunk)
        yield chunk


def _check_declared(request: Request, largest: int) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > largest:
        raise _too_large(largest)


def _too_large(largest: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body must not be larger than {largest} bytes.")


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


def require_uncompressed(content_encoding: str | None) -> None:
    """Refuse a body in another coding: its bytes would be told to be no JSON.

    Raises:
        UnsupportedMediaType
    """
    if (content_encoding or "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("The body must be sent uncompressed, without Content-Encoding.")


def require_bare(content_type: str | None) -> None:
    """Refuse a form around a file: its boundaries would be told to be rows.

    Raises:
        UnsupportedMediaType
    """
    if (content_type or "").strip().lower().startswith("multipart/"):
        raise UnsupportedMediaType("The body must be the file itself, not a form: curl --data-binary @FILE, not -F.")


class ValidatedRequest(Request):
    """A request whose body was read, decoded and validated already; FastAPI takes the model as it is."""

    def __init__(self, request: Request, body: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._validated = body

    async def body(self) -> Any:
        return self._validated  # FastAPI asks whether there is one, and takes it where it is not called JSON

    async def json(self) -> BaseModel:
        return self._validated


class StrictJSONRoute(APIRoute):
    """A route that reads its body by the rules of this module, and whose requests lease what they hold."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; the lease of the request (`lease_of`) ends after the last byte of the answer.

        Raises:
            NotReady: before start-up.
        """
        memory: MemoryBudget | None = scope["app"].state.memory
        if memory is None:
            raise NotReady("The bundles are not loaded.")
        with memory.take(0) as lease:
            scope.setdefault("state", {})["lease"] = lease
            await super().handle(scope, receive, send)

    def limits(self, settings: Settings) -> BodyLimits:
        """Of its bodies of JSON."""
        return BodyLimits.of(settings)

    def plain_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, which a validated body is given to."""
        return super().get_route_handler()

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = self.plain_handler()
        if self.body_field is None:
            return handle

        model: Any = self.body_field.field_info.annotation

        async def read_then_handle(request: Request) -> Response:
            require_json(request.headers.get("content-type"))
            require_uncompressed(request.headers.get("content-encoding"))
            state = request.app.state
            limits = self.limits(state.settings)
            body = await read_body(request, model, state.settings, lease_of(request), state.cooperative, limits)
            return await handle(ValidatedRequest(request, body))

        return read_then_handle
