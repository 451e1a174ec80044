"""Functions that all routes share: access to the engine, documented errors, replies and streams."""

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
# Prevents proxies from buffering a stream.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# Minimum size of the chunks of a long document, about half a millisecond of work.
PIECE_BYTES: Final = 1 << 15


async def get_engine(request: Request) -> Engine:
    """Return the engine, after switching to the current bundles if they have changed. Call this at the start of a
    request.

    This function is asynchronous, because FastAPI runs other functions in threads, and bundles may be switched only in
    the event loop.

    Raises:
        NotReady: Before start-up and after shutdown.
    """
    engine: Engine | None = request.app.state.engine
    if engine is None:
        raise NotReady("The bundles are not loaded.")
    engine.switch_when_due()
    return engine


EngineDep = Annotated[Engine, Depends(get_engine)]


# Errors of the routes whose body names a model.
BODY_ERRORS: tuple[type[ServiceError], ...] = (
    InvalidRequest, MethodNotAllowed, NotFound, NotReady, Overloaded, PayloadTooLarge, UnsupportedMediaType,
)  # fmt: skip


def error_responses(*kinds: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of these errors and of the errors that every route can return."""
    described: dict[int | str, dict[str, Any]] = {}
    every: tuple[type[ServiceError], ...] = (InternalError, *kinds)
    # InternalError comes first, so that another error with the same status can replace its description.
    for kind in sorted(every, key=STATUS.__getitem__):
        entry: dict[str, Any] = {"model": ErrorReply, "description": (kind.__doc__ or "").strip()}
        if kind in _EXAMPLES:
            entry["content"] = {"application/json": {"example": asdict(_EXAMPLES[kind].payload())}}
        described[STATUS[kind]] = entry
    return described


_EXAMPLES: dict[type[ServiceError], ServiceError] = {
    InvalidRequest: InvalidRequest(
        "observations[2] has 3 values, but model 'oscillator' takes 2", param="observations[2]", code="shape_mismatch"
    ),
    NotReady: NotReady("The bundles are not loaded."),
    EngineFailure: EngineFailure(
        "The model computed a value that is not finite for this request.", code="non_finite_output"
    ),
}


def json_response(document: Any) -> Response:
    """Return a short JSON reply."""
    return Response(dumps(document), media_type="application/json")


class ReplyCut(ClientGone):
    """Raised if a reply that has already started cannot be completed. Closing the connection informs the client."""


def encode_ndjson(document: Any) -> Iterator[bytes]:
    """Encode a document as one NDJSON line, in chunks if it is long."""
    return _chunks(chain(pieces(document), (b"\n",)))


def encode_sse(document: Any) -> Iterator[bytes]:
    """Encode a document as one server-sent event, in chunks if it is long. JSON contains no raw line breaks, so no
    value can begin another event.
    """
    return _chunks(chain((b"data: ",), pieces(document), (b"\n\n",)))


def _chunks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Join parts into chunks of at least PIECE_BYTES, except for the last one."""
    buffer = _PieceBuffer()
    for part in parts:
        if chunk := buffer.add(part):
            yield chunk
    if chunk := buffer.flush():
        yield chunk


class _PieceBuffer:
    """Buffer that joins parts of a reply to pieces of at least PIECE_BYTES."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> bytes:
        """Add a part. Return all parts joined if they have at least PIECE_BYTES; otherwise, return b""."""
        self._parts.append(part)
        self._size += len(part)
        return self.flush() if self._size >= PIECE_BYTES else b""

    def flush(self) -> bytes:
        """Return all parts joined, and empty the buffer."""
        joined = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return joined


class PieceStream(Response):
    """Response body that is computed while it is sent.

    The next part is computed when the connection has accepted the previous one. If the client disconnects, or reads
    nothing for `send_timeout_seconds`, the iteration ends and its work is cancelled.

    Args:
        source: the iterator that produces the parts. It is closed at the end, even if no part was requested.
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
            # Without a pause, a backlog blocks the event loop if no call waits, as after a disconnect.
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
            logger.exception("stream failed")
        yield as_service_error(error).payload()


async def _first(request: Request, iterator: AsyncIterator[Item]) -> Item:
    """Return the first item of an iterator. If an error occurs before it, the iterator is closed and the error is
    returned with its own status."""
    try:
        return await unless_disconnected(request, anext(iterator))
    except BaseException:
        await _close(iterator)
        raise


async def open_stream(request: Request, documents: AsyncIterator[Any], media_type: str) -> PieceStream:
    """Return a stream of documents that always ends with exactly one terminal document, even after an error.

    Raises:
        ServiceError, ClientGone: See `_first`.
    """
    return event_stream(request, await _first(request, documents), documents, media_type)


def event_stream(request: Request, first: Any, documents: AsyncIterator[Any], media_type: str) -> PieceStream:
    """Return a stream that starts with `first`. See `open_stream`."""
    encode = encode_sse if media_type == SSE else encode_ndjson
    pieces = _encode_all(_with_terminal_error(first, documents), encode)
    return PieceStream(request, pieces, documents, media_type, headers=STREAM_HEADERS)


async def open_pieces(request: Request, encoded: AsyncIterator[bytes], media_type: str) -> PieceStream:
    """Return a body that is sent while it is computed. An error after the first part interrupts the body.

    Raises:
        ServiceError, ClientGone: See `_first`.
    """
    first = await _first(request, encoded)
    return PieceStream(request, _rest([first], encoded), encoded, media_type, headers=STREAM_HEADERS)


async def _rest(buffered: list[bytes], following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the buffered parts, then the following ones. An error interrupts the body."""
    while buffered:
        yield buffered.pop(0)
    try:
        async for piece in following:
            yield piece
    except Exception as error:
        if not isinstance(error, NAMED):
            logger.exception("reply failed")
        logger.warning("a reply was interrupted: %s", as_service_error(error).message)
        raise ReplyCut from None


async def document_response(request: Request, encoded: AsyncIterator[bytes]) -> Response:
    """Return a JSON reply that is computed while it is encoded.

    Up to HELD bytes are computed before the reply is sent, so that errors until then have their own status. The rest of
    a longer reply is computed while the client reads it, and an error interrupts it.

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
    """Read up to HELD bytes into `buffered`. Return whether this was the whole body."""
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
    """Join small parts into parts of at least PIECE_BYTES."""
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
    """Encode a complete document in parts."""
    for piece in pieces(document):
        yield piece


async def _close(iterator: AsyncIterator[Any]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
