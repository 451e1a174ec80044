"""Calls an application with messages as the server hands them over, not as a client library would write them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp


async def asgi(
    app: ASGIApp,
    *incoming: dict[str, Any],
    take: Callable[[Any], Awaitable[None]] | None = None,
    gone: asyncio.Event | None = None,
    **changes: Any,
) -> list[dict[str, Any]]:
    """What the application sends for the scope with `changes`; after `incoming` the client is gone.

    Args:
        take: called with each message instead.
        gone: the client leaves once this is set.
    """
    kind = changes.get("type", "http")
    scope = {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "path": "/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "server": ("localhost", 80),
        **({"subprotocols": []} if kind == "websocket" else {}),
        **changes,
    }
    first = {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}
    waiting = [*(incoming or [first]), {"type": f"{kind}.disconnect", "code": 1000}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if len(waiting) > 1:
            return waiting.pop(0)
        if gone is not None:
            await gone.wait()
        return waiting[0]

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, take or send)
    return sent
