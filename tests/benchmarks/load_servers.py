"""Servers to load in tests: they answer rightly, but for one planted fault."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import WSMsgType, web

from rfa.benchmarks.load.scenario import TextLoad
from rfa.benchmarks.load.truth import as_sent, text_engine
from rfa.service.engine.models import Models
from rfa.service.engine.text.generated import Generation
from rfa.service.engine.text.options import GenerateOptions

FAULT_AT = 3
Fault = Callable[[dict[str, Any]], Sequence[dict[str, Any]]]


def change_a_digit(step: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The smallest change of one number."""
    return [{**step, "mean": [math.nextafter(step["mean"][0], math.inf), *step["mean"][1:]]}]


def drop(step: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The reply never comes."""
    return []


def repeat(step: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The reply comes twice."""
    return [step, step]


@dataclass
class FakeServer:
    """`/filter/stream`, `/filter` and `/generate` with the models given, one request after the other.

    fault: what happens to the replies of index FAULT_AT of the first stream. ending: replaces entries of the terminal
    frame. text_fault: what happens to the second event of a text.
    """

    models: Models
    fault: Fault | None = None
    status: int = 200
    ending: dict[str, Any] = field(default_factory=dict)
    text_fault: Callable[[dict[str, Any]], Sequence[dict[str, Any]]] | None = None

    def __post_init__(self) -> None:
        self._opened = 0

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        """One live stream."""
        number, self._opened = self._opened, self._opened + 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        question = orjson.loads((await socket.receive()).data)
        await socket.send_str('{"ready": true, "index": 0}')
        runtime = list(self.models.filters.values())[-1]  # the bundle, not `auto`
        state, total, count = None, 0.0, 0
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            asked = orjson.loads(message.data)
            if asked.get("close"):
                done = {"done": True, "steps": count, "log_likelihood": total, "reason": "close", "state": None}
                await socket.send_str(orjson.dumps({**done, **self.ending}).decode())
                break
            result = _filter(runtime, question, [asked["t"]], [asked["y"]], state)
            state, total, count = result.state, total + result.log_likelihood, count + 1
            reply = as_sent(result.steps[0])
            is_spoiled = self.fault is not None and count - 1 == FAULT_AT and not number
            for sent in self.fault(reply) if is_spoiled else [reply]:
                await socket.send_str(orjson.dumps(sent).decode())
        await socket.close()
        return socket

    async def filter(self, request: web.Request) -> web.Response:
        """A whole series."""
        if self.status != 200:
            error = {"error": {"message": "", "type": "", "param": None, "code": "planted"}}
            return web.Response(status=self.status, body=orjson.dumps(error))
        asked = orjson.loads(await request.read())
        runtime = list(self.models.filters.values())[-1]  # the bundle, not `auto`
        result = _filter(runtime, asked, asked["times"], asked["observations"], None)
        steps = as_sent(result.steps)
        if self.fault is not None:
            steps[FAULT_AT : FAULT_AT + 1] = self.fault(steps[FAULT_AT])
        return web.Response(body=orjson.dumps({"steps": steps, "log_likelihood": result.log_likelihood}))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """A streamed text."""
        asked = orjson.loads(await request.read())
        if self.status != 200:
            headers = {"Retry-After": "1"} if self.status == 429 else {}
            return web.Response(status=self.status, body=b'{"error": {"code": "planted"}}', headers=headers)
        events = [event async for event in self._events(asked)]
        if self.text_fault is not None:
            events[1:2] = self.text_fault(events[1])
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        return response

    async def _events(self, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        given = asked["parameters"]
        options = GenerateOptions(
            prompt=asked["inputs"],
            max_new_tokens=given["max_new_tokens"],
            seed=given["seed"],
            temperature=given["temperature"],
            is_sampled=given["do_sample"],
            truncate=given["truncate"],
            is_streamed=True,
        )
        engine = text_engine(self.models, TextLoad(new_tokens=given["max_new_tokens"]))
        try:
            async for event in engine.generate(asked["model"], options).events():
                yield _terminal(event, options) if isinstance(event, Generation) else _token(event)
        finally:
            engine.close()


def _token(event: Any) -> dict[str, Any]:
    return {"index": event.index, "token": as_sent(event.token), "generated_text": None, "details": None}


def _terminal(generation: Generation, options: GenerateOptions) -> dict[str, Any]:
    (continuation,) = generation.texts
    details = {
        "finish_reason": continuation.finish_reason,
        "generated_tokens": len(continuation.events),
        "input_length": generation.input_length,
        "seed": options.seed,
    }
    return {**_token(continuation.events[-1]), "generated_text": continuation.text, "details": details}


def _filter(runtime: Any, asked: dict[str, Any], times: list[float], observations: list[Any], state: Any) -> Any:
    return runtime.filter(
        times,
        observations,
        noise=None,
        levels=asked["levels"],
        horizon=asked.get("horizon", ()),
        samples=asked["samples"],
        seed=asked["seed"],
        mode="recurrent",
        smooth=False,
        state=state,
    )


@asynccontextmanager
async def serving(server: FakeServer) -> AsyncIterator[str]:
    """Its address, while it serves on this event loop."""
    application = web.Application()
    application.add_routes(
        [
            web.get("/filter/stream", server.stream),
            web.post("/filter", server.filter),
            web.post("/generate", server.generate),
        ]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
