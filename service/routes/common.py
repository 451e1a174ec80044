"""What the routes share: the engine, documented failures, replies, and streams that end well."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Request, Response
from starlette.types import Receive, Scope, Send

from service.deadline import Deadline
from service.engine.engine import Engine
from service.errors import (
    STATUS,
    EngineFailure,
    InternalError,
    InvalidRequest,
    NotReady,
    ServiceError,
    as_service_error,
)
from service.schemas import ErrorReply

logger = logging.getLogger("rfa.http")

Result = TypeVar("Result")
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
# Proxies must not collect a stream before they pass it on.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def get_engine(request: Request) -> Engine:
    """The engine of this application, turned to the bundles in force: a request begins here.

    Async because FastAPI runs other functions on threads, and bundles change on the event loop alone.

    Raises:
        NotReady: before start-up and after shutdown.
    """
    engine: Engine | None = request.app.state.engine
    if engine is None:
        raise NotReady("The bundles are not loaded.")
    engine.settle()
    return engine


EngineDep = Annotated[Engine, Depends(get_engine)]


def error_responses(*kinds: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for these failures and for those that every route can have."""
    described: dict[int | str, dict[str, Any]] = {}
    for kind in sorted({*kinds, InternalError}, key=lambda kind: STATUS[kind]):
        entry: dict[str, Any] = {"model": ErrorReply, "description": (kind.__doc__ or "").strip()}
        if kind in _EXAMPLES:
            example = {"error": dict(zip(("message", "type", "param", "code"), _EXAMPLES[kind], strict=True))}
            entry["content"] = {"application/json": {"example": example}}
        described[STATUS[kind]] = entry
    return described


_EXAMPLES: dict[type[ServiceError], tuple[str, str, str | None, str]] = {
    InvalidRequest: (
        "observations[2] has 3 values, model 'oscillator' takes 2",
        "invalid_request",
        "observations[2]",
        "shape_mismatch",
    ),
    NotReady: ("The bundles are not loaded.", "not_ready", None, "not_ready"),
    EngineFailure: (
        "The model gave a value that is not finite for this request.",
        "engine_error",
        None,
        "non_finite_output",
    ),
}


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON reply, encoded once; numpy numbers and dataclasses included."""
    body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json", headers=headers)


class ClientGone(Exception):
    """The client has closed the connection: nobody is left to answer."""


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for `work`, and cancel it when the client leaves: Starlette does not do that for plain handlers.

    The body must have been read.

    Raises:
        ClientGone: when the client left first.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Encode = Callable[[Any], bytes]


def encode_ndjson(document: Any) -> bytes:
    """One line."""
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def encode_sse(document: Any) -> bytes:
    """One event. JSON holds no raw line break, so a value cannot begin another event."""
    return b"data: " + orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


class EventStream(Response):
    """Documents as they come, each its own chunk, and exactly one terminal document, also on error.

    A client that leaves, or takes nothing for `send_timeout` seconds, ends the iteration and the work behind it.
    """

    def __init__(self, documents: AsyncIterator[Any], *, media_type: str, send_timeout: float, first: Any) -> None:
        super().__init__(headers=STREAM_HEADERS, media_type=media_type)
        del self.headers["content-length"]
        self._documents = documents
        self._first = first
        self._encode: Encode = encode_sse if media_type == SSE else encode_ndjson
        self._deadline = Deadline(send_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        watching = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({sending, watching}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except (TimeoutError, OSError):
            raise ClientGone from None
        finally:
            for task in (sending, watching):
                task.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
            await _close(self._documents)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for document in self._with_terminal_error():
            await self._send(send, self._encode(document))
            # Where nothing waits, as when the client has just gone, a whole backlog would keep everyone else waiting.
            await asyncio.sleep(0)
        await self._send(send, b"", more=False)

    async def _with_terminal_error(self) -> AsyncIterator[Any]:
        try:
            yield self._first
            async for document in self._documents:
                yield document
        except Exception as error:
            if not isinstance(error, ServiceError):
                logger.exception("stream failed")
            yield as_service_error(error).payload()

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        with self._deadline:
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def open_stream(request: Request, documents: AsyncIterator[Any], media_type: str) -> EventStream:
    """A stream whose first document exists: what fails before it gets its own status instead of a line in a 200.

    Raises:
        ServiceError: the failure before the first document.
        ClientGone: when the client left before it.
    """
    try:
        first = await unless_disconnected(request, anext(documents))
    except BaseException:
        await _close(documents)
        raise
    settings = request.app.state.settings
    return EventStream(documents, media_type=media_type, send_timeout=settings.send_timeout_seconds, first=first)


async def _close(documents: AsyncIterator[Any]) -> None:
    close = getattr(documents, "aclose", None)
    if close is not None:
        await close()
