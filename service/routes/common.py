"""Functions that several routes use: access to the engine, descriptions of errors, and replies that are streamed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request, Response
from starlette.types import Receive, Scope, Send

from rfa.service.cooperative import CooperativeWork
from rfa.service.deadline import Deadline
from rfa.service.disconnect import ClientGone, disconnected, unless_disconnected
from rfa.service.encoding import dumps, pieces
from rfa.service.engine.engine import Engine
from rfa.service.engine.reply_size import HELD
from rfa.service.errors import (
    NAMED,
    STATUS,
    EngineFailure,
    ErrorReply,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    ServiceError,
    UnsupportedMediaType,
    as_service_error,
)

logger = logging.getLogger("rfa.http")

Item = TypeVar("Item")
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
# Headers that prevent proxies from buffering a stream.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# Minimum size of the chunks of a long document. Encoding a chunk takes about half a millisecond.
PIECE_BYTES: Final = 1 << 15


async def get_engine(request: Request) -> Engine:
    """Return the engine. If a reload has replaced the bundles, the engine uses the new ones from now on. Call this at
    the start of a request.

    This function is asynchronous because FastAPI runs other functions in threads, and the bundles may only be replaced
    on the event loop.

    Raises:
        NotReady: If the bundles are not loaded, or the server is shutting down.
    """
    engine: Engine | None = request.app.state.engine
    if engine is None:
        raise NotReady("The bundles are not loaded yet; try again later.")
    engine.switch_when_due()
    return engine


EngineDep = Annotated[Engine, Depends(get_engine)]


# Errors of routes whose request has a body with the name of a model.
BODY_ERRORS: tuple[type[ServiceError], ...] = (
    InvalidRequest, MethodNotAllowed, NotFound, NotReady, Overloaded, PayloadTooLarge, UnsupportedMediaType,
)  # fmt: skip


def error_responses(*kinds: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of the responses for the given errors and for `InternalError`."""
    described: dict[int | str, dict[str, Any]] = {}
    every: tuple[type[ServiceError], ...] = (InternalError, *kinds)
    # InternalError comes first. Another error with the same status then replaces its description.
    for kind in sorted(every, key=STATUS.__getitem__):
        entry: dict[str, Any] = {"model": ErrorReply, "description": (kind.__doc__ or "").strip()}
        if kind in _EXAMPLES:
            entry["content"] = {"application/json": {"example": asdict(_EXAMPLES[kind].payload())}}
        described[STATUS[kind]] = entry
    return described


_EXAMPLES: dict[type[ServiceError], ServiceError] = {
    InvalidRequest: InvalidRequest(
        "observations[2] has 3 values, but model 'oscillator' expects 2", param="observations[2]", code="shape_mismatch"
    ),
    NotReady: NotReady("The bundles are not loaded yet; try again later."),
    EngineFailure: EngineFailure(
        "The model computed a value that is not finite for this request.", code="non_finite_output"
    ),
}


def json_response(document: Any) -> Response:
    """Return a response with a short JSON document."""
    return Response(dumps(document), media_type="application/json")


class ReplyCut(ClientGone):
    """Raised if a reply that has already started cannot be completed. The connection is closed, so that the client
    detects this."""


def encode_ndjson(document: Any) -> Iterator[bytes]:
    """Encode a document as one NDJSON line. The bytes of a long document are yielded in chunks."""
    return _chunks(chain(pieces(document), (b"\n",)))


def encode_sse(document: Any) -> Iterator[bytes]:
    """Encode a document as one server-sent event. The bytes of a long document are yielded in chunks. JSON contains no
    line breaks, so a value cannot start another event."""
    return _chunks(chain((b"data: ",), pieces(document), (b"\n\n",)))


def _chunks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Join parts to chunks of at least PIECE_BYTES. The last chunk may be smaller."""
    buffer = _PieceBuffer()
    for part in parts:
        if chunk := buffer.add(part):
            yield chunk
    if chunk := buffer.flush():
        yield chunk


class _PieceBuffer:
    """Joins parts of a reply into pieces of at least PIECE_BYTES."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> bytes:
        """Add a part. If all parts together have at least PIECE_BYTES, return them joined. Otherwise, return b""."""
        self._parts.append(part)
        self._size += len(part)
        return self.flush() if self._size >= PIECE_BYTES else b""

    def flush(self) -> bytes:
        """Return all parts joined, and clear the buffer."""
        joined = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return joined


class PieceStream(Response):
    """Response whose body is computed while it is sent.

    The next part is computed after the previous one was sent. If the client disconnects or reads nothing for
    `send_timeout_seconds`, the computation is cancelled.

    Args:
        pieces: Parts of the body.
        source: Iterator from which the parts are computed. It is closed at the end, even if no part was requested.
    """

    def __init__(
        self,
        request: Request,
        pieces: AsyncIterator[bytes],
        source: AsyncIterator[Any],
        media_type: str,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._pieces = pieces
        self._source = source
        self._cooperative: CooperativeWork = request.app.state.cooperative
        self._deadline = Deadline(request.app.state.settings.limits.send_timeout_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        watching = asyncio.ensure_future(disconnected(receive))
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
            self._deadline.close()
            await _close(self._source)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await self._send(send, piece)
            # Without a pause, many parts block the event loop if no call waits, for example after a disconnect.
            await (self._cooperative.pause() if len(piece) >= PIECE_BYTES else asyncio.sleep(0))
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        with self._deadline:
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _encode_all(documents: AsyncIterator[Any], encode: Callable[[Any], Iterator[bytes]]) -> AsyncIterator[bytes]:
    async for document in documents:
        for piece in encode(document):
            yield piece


async def _with_terminal_error(first: Any, documents: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        yield first
        async for document in documents:
            yield document
    except Exception as error:
        if not isinstance(error, NAMED):
            logger.exception("a streamed reply failed with an unexpected error")
        yield as_service_error(error).payload()


async def _first(request: Request, iterator: AsyncIterator[Item]) -> Item:
    """Return the first item of an iterator. If an error occurs before it, close the iterator and raise the error, so
    that the response has the status of the error."""
    try:
        return await unless_disconnected(request, anext(iterator))
    except BaseException:
        await _close(iterator)
        raise


async def open_stream(request: Request, documents: AsyncIterator[Any], media_type: str) -> PieceStream:
    """Return a response that streams documents. If an error occurs after the first document, the last document is the
    error.

    Args:
        media_type: NDJSON or SSE.

    Raises:
        ServiceError: If an error occurs before the first document.
        ClientGone: If the client disconnects before the first document.
    """
    return event_stream(request, await _first(request, documents), documents, media_type)


def event_stream(request: Request, first: Any, documents: AsyncIterator[Any], media_type: str) -> PieceStream:
    """Return a response that streams `first` and then `documents`. See `open_stream`."""
    encode = encode_sse if media_type == SSE else encode_ndjson
    pieces = _encode_all(_with_terminal_error(first, documents), encode)
    return PieceStream(request, pieces, documents, media_type, headers=STREAM_HEADERS)


async def open_pieces(request: Request, encoded: AsyncIterator[bytes], media_type: str) -> PieceStream:
    """Return a response whose body is sent while it is computed. If an error occurs after the first part, the
    connection is closed.

    Raises:
        ServiceError: If an error occurs before the first part.
        ClientGone: If the client disconnects before the first part.
    """
    first = await _first(request, encoded)
    return PieceStream(request, _rest([first], encoded), encoded, media_type, headers=STREAM_HEADERS)


async def _rest(buffered: list[bytes], following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the buffered parts, and then the following ones. If an error occurs, raise ReplyCut."""
    while buffered:
        yield buffered.pop(0)
    try:
        async for piece in following:
            yield piece
    except Exception as error:
        if not isinstance(error, NAMED):
            logger.exception("a reply failed with an unexpected error")
        logger.warning("a reply was interrupted by an error: %s", as_service_error(error).message)
        raise ReplyCut from None


async def document_response(request: Request, encoded: AsyncIterator[bytes]) -> Response:
    """Return a response with a JSON document that is computed while it is encoded.

    The first HELD bytes are computed before the reply is sent. If an error occurs in this part, the response is the
    error. The rest is computed while the client reads it. If an error occurs then, the connection is closed.

    Raises:
        ServiceError: If an error occurs before the reply is sent.
        ClientGone: If the client disconnects before the reply is sent.
    """
    buffered: list[bytes] = []
    joined = _join_pieces(encoded)
    try:
        is_complete = await unless_disconnected(request, _buffer(joined, buffered, request.app.state.cooperative))
    except BaseException:
        await _close(encoded)
        raise
    if is_complete:
        return Response(b"".join(buffered), media_type="application/json")
    return PieceStream(request, _rest(buffered, joined), joined, "application/json")


async def _buffer(encoded: AsyncIterator[bytes], buffered: list[bytes], cooperative: CooperativeWork) -> bool:
    """Read about HELD bytes into `buffered`. Return whether this was the whole body."""
    size = 0
    async for piece in encoded:
        buffered.append(piece)
        size += len(piece)
        if size >= HELD:
            return False
        if len(piece) >= PIECE_BYTES:
            await cooperative.pause()
    return True


async def _join_pieces(encoded: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join parts into pieces of at least PIECE_BYTES. The last piece may be smaller."""
    buffer = _PieceBuffer()
    try:
        async for part in encoded:
            if piece := buffer.add(part):
                yield piece
        if piece := buffer.flush():
            yield piece
    finally:
        await _close(encoded)


async def encode_document(document: Any) -> AsyncIterator[bytes]:
    """Encode a document that is already computed, and yield the parts."""
    for piece in pieces(document):
        yield piece


async def _close(iterator: AsyncIterator[Any]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
