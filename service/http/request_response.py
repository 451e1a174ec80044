"""Pass an HTTP request and its response to the application, as scope, `receive` and `send` of ASGI."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

from rfa.service.http.connection import host_and_port
from rfa.service.http.head import path_and_query

if TYPE_CHECKING:
    from rfa.service.http.http1 import HTTPConnection

logger = logging.getLogger("rfa.server")

# While more than this number of body bytes wait for the application, the connection does not read.
HIGH_WATER_BYTES = 65_536
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
CONTINUE = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")


class RequestResponse:
    """An HTTP request that is being processed, and its response.

    Args:
        parser: Parser that has parsed the head of this request and nothing else.
        server: State of uvicorn, which contains the default headers of responses.
    """

    is_started = is_complete = is_last = False
    _is_disconnected = _has_sent_end = False
    _has_more = True
    _head = b""

    def __init__(self, connection: HTTPConnection, parser: h11.Connection, scope: Scope, server: ServerState) -> None:
        self.parser = parser
        self.scope = scope
        self._connection = connection
        self._server = server
        self._body = bytearray()
        self._changed = asyncio.Event()

    async def run(self, app: ASGIApp) -> None:
        """Run the application. If it does not complete the response, close the connection, so that the client detects
        this."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # the application has already reported it
            logger.debug("the application ended without completing a response", exc_info=True)
        finally:
            if not (self.is_complete or self._is_disconnected):
                self._connection.transport.close()

    # From the client.

    @property
    def is_full(self) -> bool:
        """Whether reading should pause, because many bytes of the body are waiting for the application."""
        return len(self._body) > HIGH_WATER_BYTES and not self.is_complete

    def feed(self, data: bytes) -> None:
        """Append data to the body. If the response is complete, discard the data."""
        if not self.is_complete:
            self._body += data
            self._changed.set()

    def end_body(self) -> None:
        """Mark the body as complete."""
        self._has_more = False
        self._changed.set()

    def disconnect(self) -> None:
        """Notify the application that the client has disconnected."""
        self._is_disconnected = True
        self._changed.set()

    async def receive(self) -> Message:
        """Wait for the next ASGI message to the application, and return it."""
        if self.parser.they_are_waiting_for_100_continue and not self.is_started:
            self._connection.write(self.parser.send(CONTINUE) or b"")
        while not (self._has_message() or self._is_disconnected or self.is_complete):
            self._changed.clear()
            await self._changed.wait()
        if self._is_disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self._has_sent_end = not self._has_more
        if self._has_more:
            self._connection.read_more_body()
        return {"type": "http.request", "body": body, "more_body": self._has_more}

    def _has_message(self) -> bool:
        return bool(self._body) or not (self._has_more or self._has_sent_end)

    # To the client.

    async def send(self, message: Message) -> None:
        """Handle an ASGI message sent by the application. The message is ignored if the client has disconnected."""
        if not self._connection.writable.is_set():
            await self._connection.writable.wait()
        if self._is_disconnected:
            return
        if not self.is_started:
            self._start(message)
        else:
            self._continue(message)

    def _start(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"expected http.response.start, got {message['type']}")
        self.is_started = True
        headers = [*self._server.default_headers, *message.get("headers", ())]
        # A client that waits for 100 Continue may send its body or another request next, and the server cannot
        # distinguish them.
        if self.is_last or self.parser.they_are_waiting_for_100_continue:
            headers = [(name, value) for name, value in headers if name.lower() != b"connection"]
            headers.append((b"connection", b"close"))
        status = message["status"]
        response = h11.Response(status_code=status, headers=headers, reason=PHRASES.get(status, b""))
        # The head is sent together with the first part of the body.
        self._head = self.parser.send(response) or b""

    def _continue(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"expected http.response.body, got {message['type']}")
        if self.is_complete:
            raise RuntimeError("the response is already complete")
        pieces, self._head = [self._head], b""
        body = message.get("body", b"")
        if body and self.scope["method"] != "HEAD":
            pieces += self.parser.send_with_data_passthrough(h11.Data(data=body)) or ()
        is_end = not message.get("more_body", False)
        if is_end:
            pieces.append(self.parser.send(h11.EndOfMessage()) or b"")
        self._connection.write(b"".join(pieces))
        if is_end:
            self.is_complete = True
            self._body.clear()
            self._changed.set()
            self._connection.on_response_complete()


def make_scope(request: h11.Request, kind: Literal["http", "websocket"], connection: HTTPConnection) -> Scope:
    """Return the ASGI scope of a request.

    Raises:
        MalformedRequest: If the request target is invalid.
    """
    path, query = path_and_query(request)
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version.decode("ascii"),
        "server": host_and_port(connection.transport.get_extra_info("sockname")),
        "client": connection.client,
        "scheme": "ws" if kind == "websocket" else "http",
        "method": request.method.decode("ascii"),
        "root_path": "",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "headers": list(request.headers),
        "state": dict(connection.manager.app_state),
    }
