"""What the routes share: the engine, documented failures, replies, and streams that end well."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, Final

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
    NotReady,
    ServiceError,
    as_service_error,
)

logger = logging.getLogger("rfa.http")

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
# Proxies must not collect a stream before they pass it on.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
# A chunk of a long document is so large, or a little larger: half a millisecond's work.
PIECE_BYTES: Final = 1 << 15


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
    every: tuple[type[ServiceError], ...] = (InternalError, *kinds)
    # The first, so that a failure of the same status that is named describes it, in every process alike.
    for kind in sorted(every, key=STATUS.__getitem__):
        entry: dict[str, Any] = {"model": ErrorReply, "description": (kind.__doc__ or "").strip()}
        if kind in _EXAMPLES:
            entry["content"] = {"application/json": {"example": asdict(_EXAMPLES[kind].payload())}}
        described[STATUS[kind]] = entry
    return described


_EXAMPLES: dict[type[ServiceError], ServiceError] = {
    InvalidRequest: InvalidRequest(
        "observations[2] has 3 values, model 'oscillator' takes 2", param="observations[2]", code="shape_mismatch"
    ),
    NotReady: NotReady("The bundles are not loaded."),
    EngineFailure: EngineFailure(
        "The model gave a value that is not finite for this request.", code="non_finite_output"
    ),
}


def json_response(document: Any) -> Response:
    """A short JSON reply."""
    return Response(dumps(document), media_type="application/json")


class ReplyCut(ClientGone):
    """The rest of a reply that is under way cannot be made; closing the connection shows that."""


def encode_ndjson(document: Any) -> Iterator[bytes]:
    """One line, in chunks if it is long."""
    return _chunks(chain(pieces(document), (b"\n",)))


def encode_sse(document: Any) -> Iterator[bytes]:
    """One event, in chunks if it is long. JSON holds no raw line break, so a value cannot begin another event."""
    return _chunks(chain((b"data: ",), pieces(document), (b"\n\n",)))


def _chunks(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks of PIECE_BYTES at least, but for the last."""
    chunk: list[bytes] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            yield b"".join(chunk)
            chunk.clear()
            size = 0
    if chunk:
        yield b"".join(chunk)


class PieceStream(Response):
    """A body that is made while it is sent, a chunk for each piece.

    The next piece is made once the connection has taken the one before it. A client that leaves, or takes nothing for
    `send_timeout` seconds, ends the iteration and the work behind it.

    Args:
        source: what makes the pieces; closed at the end, also where none was asked for.
    """

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        source: AsyncIterator[Any],
        media_type: str,
        *,
        send_timeout: float,
        cooperative: CooperativeWork,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._pieces = pieces
        self._source = source
        self._cooperative = cooperative
        self._deadline = Deadline(send_timeout)

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
            # Where nothing waits, as when the client has just gone, a whole backlog would keep everyone else waiting.
            await (self._cooperative.pause() if len(piece) >= PIECE_BYTES else asyncio.sleep(0))
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        with self._deadline:
            await send({"type": "http.response.body", "body": body, "more_body": more})


def event_stream(
    first: Any, documents: AsyncIterator[Any], media_type: str, *, send_timeout: float, cooperative: CooperativeWork
) -> PieceStream:
    """Documents as they come, each its own chunk or several, and exactly one terminal document, also on error."""
    encode = encode_sse if media_type == SSE else encode_ndjson
    pieces = _encoded(_with_terminal_error(first, documents), encode)
    return PieceStream(
        pieces, documents, media_type, send_timeout=send_timeout, cooperative=cooperative, headers=STREAM_HEADERS
    )


async def _encoded(documents: AsyncIterator[Any], encode: Callable[[Any], Iterator[bytes]]) -> AsyncIterator[bytes]:
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


async def open_stream(request: Request, documents: AsyncIterator[Any], media_type: str) -> PieceStream:
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
    state = request.app.state
    timeout = state.settings.send_timeout_seconds
    return event_stream(first, documents, media_type, send_timeout=timeout, cooperative=state.cooperative)


async def open_pieces(request: Request, encoded: AsyncIterator[bytes], media_type: str) -> PieceStream:
    """A body that is sent as it is made, whose first piece exists: what fails before it gets its own status, and a
    failure after it cuts the body.

    Raises:
        ServiceError: the failure before the first piece.
        ClientGone: when the client left before it.
    """
    try:
        first = await unless_disconnected(request, anext(encoded))
    except BaseException:
        await _close(encoded)
        raise
    state = request.app.state
    timeout = state.settings.send_timeout_seconds
    pieces = _rest([first], encoded)
    return PieceStream(
        pieces, encoded, media_type, send_timeout=timeout, cooperative=state.cooperative, headers=STREAM_HEADERS
    )


async def _rest(held: list[bytes], following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body of which the first pieces are held; a failure after them cuts it."""
    while held:
        yield held.pop(0)
    try:
        async for piece in following:
            yield piece
    except Exception as error:
        if not isinstance(error, NAMED):
            logger.exception("reply failed")
        logger.warning("a reply that was under way is cut: %s", as_service_error(error).message)
        raise ReplyCut from None


async def document_response(request: Request, encoded: AsyncIterator[bytes]) -> Response:
    """A JSON reply that is computed while it is encoded.

    One of up to HELD is there before it is sent: a failure until then has its own status. The rest of a longer
    one is made as the client takes it, and a failure cuts it.

    Raises:
        ServiceError: the failure before that.
        ClientGone: when the client left before that.
    """
    held: list[bytes] = []
    collected = _collected(encoded)
    try:
        is_whole = await unless_disconnected(request, _hold(collected, held, request.app.state.cooperative))
    except BaseException:
        await _close(encoded)
        raise
    if is_whole:
        return Response(b"".join(held), media_type="application/json")
    state = request.app.state
    timeout = state.settings.send_timeout_seconds
    pieces = _rest(held, collected)
    return PieceStream(pieces, collected, "application/json", send_timeout=timeout, cooperative=state.cooperative)


async def _hold(encoded: AsyncIterator[bytes], held: list[bytes], cooperative: CooperativeWork) -> bool:
    """Take pieces until there are HELD; returns whether that was all."""
    size = 0
    async for piece in encoded:
        held.append(piece)
        size += len(piece)
        if size >= HELD:
            return False
        if len(piece) >= PIECE_BYTES:
            await cooperative.pause()
    return True


async def _collected(encoded: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES at least."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in encoded:
            parts.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                yield b"".join(parts)
                parts.clear()
                size = 0
        if parts:
            yield b"".join(parts)
    finally:
        await _close(encoded)


async def encoded_at_once(document: Any) -> AsyncIterator[bytes]:
    """A document that exists, in pieces."""
    for piece in pieces(document):
        yield piece


async def _close(iterator: AsyncIterator[Any]) -> None:
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
