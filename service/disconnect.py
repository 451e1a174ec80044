"""Cancels work for clients that have disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has disconnected, or reads nothing."""


class Disconnected(ClientGone, OSError):
    """Sending to a client that has disconnected. ASGI requires an OSError."""


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for `work`, and cancel it if the client disconnects, which Starlette does not do for plain handlers.

    The body must have been read.

    Raises:
        ClientGone: The client disconnected first.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects, discarding messages until then."""
    while (await receive())["type"] != "http.disconnect":
        pass
