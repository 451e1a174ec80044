"""Cancel work for clients that have disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """Raised when the client has disconnected or does not read its replies."""


class Disconnected(ClientGone, OSError):
    """Raised when sending to a client that has disconnected. ASGI requires an OSError."""


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for `work`, and return its result. If the client disconnects, `work` is cancelled. Starlette does not do
    this for responses that are not streamed.

    Call this after the body has been read, because it discards messages from the client.

    Raises:
        ClientGone: If the client disconnects before the work is done.
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
    """Discard messages until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
