"""One request of HTTP and its answer, as the application sees them: ASGI's `receive` and `send`."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from rfa.service.wire.http import HTTPConnection

logger = logging.getLogger("rfa.server")

# What of a body waits for the application; then the client is read no further.
HIGH_WATER_BYTES = 65_536
PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
CONTINUE = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")


class Exchange:
    """A request under way.

    Args:
        parser: that has read the head of this request and of no other.
        server: whose default headers every answer has.
    """

    def __init__(self, line: HTTPConnection, parser: h11.Connection, scope: Scope, server: ServerState) -> None:
        self.parser = parser
        self.scope = scope
        self.is_started = False
        self.is_complete = False
        self.is_last = False
        self._line = line
        self._server = server
        self._is_gone = False
        self._body = bytearray()
        self._has_more = True
        self._has_sent_end = False
        self._news = asyncio.Event()
        self._head = b""

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # the application has told its client and its log what there was to tell
            logger.debug("an answer was cut", exc_info=True)
        finally:
            if not (self.is_complete or self._is_gone):
                self._line.cut()

    # From the client.

    @property
    def is_full(self) -> bool:
        """Enough of the body waits for the application."""
        return len(self._body) > HIGH_WATER_BYTES and not self.is_complete

    def feed(self, data: bytes) -> None:
        """More of the body; that of an answered request is dropped."""
        if not self.is_complete:
            self._body += data
            self._news.set()

    def end_body(self) -> None:
        """The body is complete."""
        self._has_more = False
        self._news.set()

    def leave(self) -> None:
        """The client is gone."""
        self._is_gone = True
        self._news.set()

    async def receive(self) -> Message:
        """ASGI."""
        if self.parser.they_are_waiting_for_100_continue and not self.is_started:
            self._line.write(self.parser.send(CONTINUE) or b"")
        while not (self._has_news() or self._is_gone or self.is_complete):
            self._news.clear()
            await self._news.wait()
        if self._is_gone or self.is_complete:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        self._has_sent_end = not self._has_more
        if self._has_more:
            self._line.body_taken()
        return {"type": "http.request", "body": body, "more_body": self._has_more}

    def _has_news(self) -> bool:
        return bool(self._body) or not (self._has_more or self._has_sent_end)

    # To the client.

    async def send(self, message: Message) -> None:
        """ASGI. What is sent to a client that has left is dropped."""
        if not self._line.writable.is_set():
            await self._line.writable.wait()
        if self._is_gone:
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
        # A client that waits for leave to send its body may send it or another request now: nobody can know.
        if self.is_last or self.parser.they_are_waiting_for_100_continue:
            headers = [(name, value) for name, value in headers if name.lower() != b"connection"]
            headers.append((b"connection", b"close"))
        status = message["status"]
        response = h11.Response(status_code=status, headers=headers, reason=PHRASES.get(status, b""))
        # With the first piece of the body in one segment.
        self._head = self.parser.send(response) or b""

    def _continue(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"expected http.response.body, got {message['type']}")
        if self.is_complete:
            raise RuntimeError("the answer is complete")
        pieces, self._head = [self._head], b""
        body = message.get("body", b"")
        if body and self.scope["method"] != "HEAD":
            pieces += self.parser.send_with_data_passthrough(h11.Data(data=body)) or ()
        is_end = not message.get("more_body", False)
        if is_end:
            pieces.append(self.parser.send(h11.EndOfMessage()) or b"")
        self._line.write(b"".join(pieces))
        if is_end:
            self.is_complete = True
            self._body.clear()
            self._news.set()
            self._line.answered()


def scope_of(
    request: h11.Request,
    path: bytes,
    query: bytes,
    *,
    kind: str,
    scheme: str,
    client: tuple[str, int] | None,
    server: tuple[str, int] | None,
    state: dict[str, Any],
) -> Scope:
    """ASGI's description of a request.

    Args:
        path: percent-encoded.
        kind: "http" or "websocket".
    """
    return {
        "type": kind,
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.http_version.decode("ascii"),
        "server": server,
        "client": client,
        "scheme": scheme,
        "method": request.method.decode("ascii"),
        "root_path": "",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "headers": list(request.headers),
        "state": dict(state),
    }
