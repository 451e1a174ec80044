"""A streamed reply whose client leaves: what was not sent yet is not worked on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from rfa.service.cooperative import CooperativeWork
from rfa.service.routes.common import NDJSON, event_stream

pytestmark = pytest.mark.anyio
BACKLOG = 1_000
LEAVES_AFTER = 10


async def test_the_backlog_of_a_client_that_left_is_dropped() -> None:
    """The server's `send` returns at once then, so that nothing but the stream itself lets others have a turn."""
    left = asyncio.Event()
    sent = 0

    async def documents() -> AsyncIterator[int]:
        for number in range(BACKLOG):
            yield number

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == LEAVES_AFTER:
            left.set()

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    limits = SimpleNamespace(send_timeout_seconds=60)
    state = SimpleNamespace(cooperative=CooperativeWork(), settings=SimpleNamespace(limits=limits))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    stream = event_stream(request, None, documents(), NDJSON)
    await stream({}, receive, send)
    assert sent < LEAVES_AFTER + 10
