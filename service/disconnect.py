"""Clients that leave before they are answered: what was to be done for them is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has closed the connection, lost it, or takes nothing: nobody is left to answer."""


class Disconnected(ClientGone, OSError):
    """Something was to be sent to a client that has left. ASGI says that this is an OSError."""


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for `work`, and cancel it when the client leaves: Starlette does not do that for plain handlers.

    The body must have been read.

    Raises:
        ClientGone: when the client left first.
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
    """Until the client has left; what it sends before that is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
