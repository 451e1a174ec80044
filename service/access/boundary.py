"""The outermost middleware. It adds request ids and common headers, and counts and logs each request.

It also converts unexpected exceptions to error responses. Otherwise, the server would close the connection, and
pipelined requests would get no response.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from rfa.service.access.middleware import Middleware, refuse
from rfa.service.access.request_log import Record, access_logger, log_request, request_id, without_nulls
from rfa.service.access.tracing import Tracing
from rfa.service.disconnect import ClientGone
from rfa.service.errors import as_service_error
from rfa.service.frames import FRAMES, Frames, Take
from rfa.service.metrics import Metrics

logger = logging.getLogger("rfa.http")
METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"})
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
LONGEST_PATH: Final = 128
SWITCHING_PROTOCOLS, FORBIDDEN = 101, 403
INTERNAL_ERROR: Final = 1011
HEADERS: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class Boundary(Middleware):
    """Middleware for HTTP and WebSocket that encloses the rest of the application. See the module docstring."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing | None = None) -> None:
        super().__init__(app)
        self._metrics = metrics
        self._tracing = tracing

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = _CountedMessages(scope, receive, send)
        scope.setdefault("state", {})["record"] = counted.record
        token = request_id.set(counted.record.id)
        span = self._tracing.begin(scope, counted.record) if self._tracing else None
        try:
            await self._app(scope, counted.receive, counted.send)
        except (ClientGone, ClientDisconnect, WebSocketDisconnect):
            logger.debug("the client disconnected")
        except Exception as error:
            logger.exception("a request failed unexpectedly")
            await counted.fail(error)
        finally:
            self._finish(scope, counted.record)
            if self._tracing and span:
                self._tracing.end(span, scope, counted.record)
            request_id.reset(token)

    def _finish(self, scope: Scope, record: Record) -> None:
        record.route = _route_of(scope)
        record.tenant = scope["state"].get("tenant", "")
        status = "disconnect" if record.status is None else str(record.status)
        self._metrics.http_requests.labels(record.route, record.method, status).inc()
        # The path of a request without a route is logged, shortened and without its query.
        log_request(record, scope["path"][:LONGEST_PATH] if record.route == "other" else None)


class _CountedMessages:
    """Wraps `receive` and `send` of one request, and counts its messages in the record of the request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        if scope["type"] == "websocket":
            method = "WEBSOCKET"
        else:
            method = scope["method"] if scope["method"] in METHODS else "other"
        self.record = Record(id=_request_id(scope["headers"]), method=method, client=scope.get("client"))
        if (frames := scope.get("extensions", {}).get(FRAMES)) is not None:
            scope["extensions"][FRAMES] = _CountedFrames(frames, self.record)

    async def receive(self) -> Message:
        message = await self._receive()
        kind, record = message["type"], self.record
        if kind == "http.request":
            record.bytes_in += len(message.get("body", b""))
        elif kind == "websocket.receive":
            record.frames_in += 1
            record.bytes_in += _frame_size(message)
        elif kind == "websocket.disconnect" and record.close_code is None:
            record.close_code = message.get("code")
        return message

    async def send(self, message: Message) -> None:
        kind, record = message["type"], self.record
        if kind in ("http.response.start", "websocket.http.response.start"):
            record.status = message["status"]
            message = {**message, "headers": self._headers(message)}
        elif kind in ("http.response.body", "websocket.http.response.body"):
            body = message.get("body", b"")
            record.bytes_out += len(body)
            more = message.get("more_body", False)
            record.is_complete = not more
            record.is_streamed |= more
            if body and record.seconds_to_first_body is None:
                record.seconds_to_first_body = record.seconds
        elif kind == "websocket.accept":
            record.status = SWITCHING_PROTOCOLS
            message = {**message, "headers": self._headers(message)}
            self._log_open()
        elif kind == "websocket.send":
            record.frames_out += 1
            record.bytes_out += _frame_size(message)
        elif kind == "websocket.close":
            record.is_complete = True
            record.status = record.status or FORBIDDEN
            if record.close_code is None:
                record.close_code = message.get("code", 1000)
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """Send an error response, or an error frame and a close frame on an open WebSocket.

        Raises:
            Exception: If an HTTP response has already started, `error` is raised again. The server then closes the
                connection.
        """
        service_error = as_service_error(error)
        if self.record.status is None:
            await refuse(service_error, self._scope, self.receive, self.send)
        elif self._scope["type"] == "http":
            raise error
        elif self.record.close_code is None:
            await self.send({"type": "websocket.send", "text": orjson.dumps(service_error.payload()).decode()})
            await self.send({"type": "websocket.close", "code": INTERNAL_ERROR})

    def _headers(self, message: Message) -> list[tuple[bytes, bytes]]:
        headers = list(message.get("headers", ()))
        present = {name.lower() for name, _ in headers}
        headers.append((b"x-request-id", self.record.id.encode()))
        headers.extend(header for header in HEADERS if header[0] not in present)
        return headers

    def _log_open(self) -> None:
        fields = {
            "id": self.record.id,
            "client": self.record.client[0] if self.record.client else None,
            "route": _route_of(self._scope),
            "tenant": self._scope["state"].get("tenant", "") or None,
        }
        access_logger.info("websocket open", extra={"fields": without_nulls(fields)})


class _CountedFrames:
    """Wraps `Frames`, and counts the frames and their bytes in the record of the request."""

    def __init__(self, frames: Frames, record: Record) -> None:
        self._frames = frames
        self._record = record

    def listen(self, take: Take | None) -> None:
        self._frames.listen(None if take is None else partial(self._counted, take))

    def _counted(self, take: Take, text: bytes) -> bool:
        if not take(text):
            return False
        self._record.frames_in += 1
        self._record.bytes_in += len(text)
        return True

    def send_now(self, frames: Sequence[bytes]) -> bool:
        if not self._frames.send_now(frames):
            return False
        self._record.frames_out += len(frames)
        self._record.bytes_out += sum(map(len, frames))
        return True


def _route_of(scope: Scope) -> str:
    """Return the path template of the route of a request. Without a route, return "other", because clients must not be
    able to create label values."""
    if (route := scope.get("route")) is not None:
        return str(route.path)
    # Starlette's own routes in a FastAPI router set only `endpoint`. Without parameters, the path is the template.
    return str(scope["path"]) if "endpoint" in scope and not scope.get("path_params") else "other"


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """Return the request id that the client sent, if there is exactly one and it is valid. Otherwise, return a new
    id."""
    values = [value for name, value in headers if name == b"x-request-id"]
    if len(values) == 1 and REQUEST_ID.fullmatch(values[0]):
        return values[0].decode("ascii")
    return uuid.uuid4().hex


def _frame_size(message: Message) -> int:
    """Return the size of a frame: its bytes if it is binary, its characters if it is text."""
    return len(message.get("bytes") or message.get("text") or "")
