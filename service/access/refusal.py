"""A failure before an answer has begun, told over HTTP and over a WebSocket handshake."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rfa.service.errors import STATUS, ServiceError

POLICY_VIOLATION: Final = 1008


def error_response(error: ServiceError) -> Response:
    """A failure in the one error shape."""
    body = orjson.dumps(error.payload())
    return Response(body, STATUS[type(error)], error.headers(), "application/json")


async def refuse(error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in the one error shape, a handshake too; where the server cannot, it answers the handshake with 403."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
        return
    await error_response(error)(scope, receive, send)


async def turn_away(error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
    """`refuse` before the application has received anything."""
    if scope["type"] == "websocket":
        await receive()  # websocket.connect, which the refusal answers
    await refuse(error, scope, receive, send)
