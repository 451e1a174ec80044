"""A client of WS /filter/stream that speaks ASGI to the application, and dialogues with it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from rfa.service.schemas.filter_replies import StreamReady
from tests.service.replies import read
from tests.waiting import PATIENCE, until


class Socket:
    """A WebSocket client that speaks ASGI to the application."""

    def __init__(
        self,
        app: FastAPI,
        take: Callable[[Any], Awaitable[None]] | None = None,
        *,
        client: str = "10.0.0.1",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.app = app
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()
        self.sent.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
            "scheme": "ws", "path": "/filter/stream", "raw_path": b"/filter/stream", "query_string": b"",
            "root_path": "", "headers": list(headers), "client": (client, 1), "server": ("test", 80),
            "subprotocols": [], "state": {}, "extensions": {},
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self.sent.get, take or self._take))

    async def _take(self, message: Any) -> None:
        await self.open.wait()
        self.received.put_nowait(message)

    def text(self, text: str) -> None:
        self.sent.put_nowait({"type": "websocket.receive", "text": text})

    def frame(self, document: Any) -> None:
        self.text(json.dumps(document))

    async def reply(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            message = await self.received.get()
        if message["type"] == "websocket.accept":
            return await self.reply()
        return json.loads(message["text"]) if message["type"] == "websocket.send" else message

    async def start(self, **request: Any) -> Any:
        self.frame(request)
        return read(StreamReady, json.dumps(await self.reply()))

    async def rest(self) -> tuple[list[Any], int]:
        """Every frame up to the close, and its code; the application has ended and says nothing more."""
        frames = []
        while not (isinstance(frame := await self.reply(), dict) and frame.get("type") == "websocket.close"):
            frames.append(frame)
        async with asyncio.timeout(PATIENCE):
            await self.task
        assert self.received.empty()
        return frames, frame["code"]

    async def leave(self) -> None:
        self.sent.put_nowait({"type": "websocket.disconnect", "code": 1006})
        async with asyncio.timeout(PATIENCE):
            await self.task


async def slots_are_free(app: FastAPI) -> None:
    engine = app.state.engine
    await until(lambda: not engine.pool_slots_in_use and not engine._scheduler.streams)


async def run(app: FastAPI, observations: list[Any], **request: Any) -> tuple[StreamReady, list[Any], Any]:
    socket = Socket(app)
    ready = await socket.start(**request)
    for t, y in observations:
        socket.frame({"t": t, "y": y})
    socket.frame({"close": True})
    (*steps, done), code = await socket.rest()
    assert code == 1000, done
    return ready, steps, done


def random_observations(count: int) -> list[Any]:
    rng = random.Random(3)
    times = sorted(rng.uniform(0, 20) for _ in range(count))
    return [(t, None if rng.random() < 0.1 else [rng.gauss(0, 1), rng.gauss(0, 1)]) for t in times]


class SteppedLoop:
    """The clock and the timers of the running loop, as far as streams use them, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.timers: dict[int, tuple[float, Any, tuple[Any, ...]]] = {}
        real = asyncio.get_running_loop()

        class Handle:
            def __init__(handle, number: int) -> None:
                handle.number = number

            def cancel(handle) -> None:
                self.timers.pop(handle.number, None)

        def call_at(when: float, act: Any, *values: Any) -> Handle:
            number = len(self.timers) + 1000 * int(when)
            self.timers[number] = when, act, values
            return Handle(number)

        class Loop:
            time = staticmethod(lambda: self.now)

            def __getattr__(loop, name: str) -> Any:
                return getattr(real, name)

        loop = Loop()
        loop.call_at = call_at  # type: ignore[attr-defined]
        for module in ("filter_stream", "live_stream"):
            monkeypatch.setattr(f"rfa.service.routes.{module}.get_running_loop", lambda: loop)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for number, (when, act, values) in list(self.timers.items()):
            if when <= self.now:
                del self.timers[number]
                act(*values)
