"""Base class of the middleware, and functions that send error responses."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rfa.service.errors import STATUS, ServiceError

POLICY_VIOLATION: Final = 1008


class Middleware:
    """Base class of ASGI middleware for HTTP and WebSocket. Other scopes are passed to the application unchanged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            await self.handle(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or a WebSocket."""
        raise NotImplementedError


def error_response(error: ServiceError) -> Response:
    """Return the HTTP response for an error, with its status, headers and JSON document."""
    body = orjson.dumps(error.payload())
    return Response(body, STATUS[type(error)], error.headers(), "application/json")


async def refuse(error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error response.

    If the server does not support error responses to WebSocket handshakes, a handshake is rejected with status 403 and
    an empty body.
    """
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
        return
    await error_response(error)(scope, receive, send)


async def refuse_early(error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an error response with `refuse`, before anything has been received from a request or WebSocket."""
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
    await refuse(error, scope, receive, send)
