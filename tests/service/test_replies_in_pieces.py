"""Replies that are computed while they are sent: no further than their reader takes them, and leased before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rfa.service.engine.reply_size import HELD
from rfa.service.schemas.filter_replies import FilterReply
from rfa.service.schemas.text_replies import GenerateReply
from tests.service.models import FakeFilter, FakeLanguage, fake_models
from tests.service.raw_asgi import asgi
from tests.service.replies import read
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio
# Some 1.5 MB of JSON: more than is held before a reply begins.
ROWS = 2_200
LONG: dict[str, Any] = {"observations": [[float(i), 0.0] for i in range(ROWS)], "horizon": [1.0] * 5, "seed": 1}
DAY = {"send_timeout_seconds": 86_400.0}


class Reader:
    """The server's side of a connection whose client takes `chunks` of a reply, and then no more until `go_on`."""

    def __init__(self, app: Any, path: str, body: Any, chunks: int) -> None:
        self.messages: list[Any] = []
        self.go_on = asyncio.Event()
        self.waits = asyncio.Event()
        self._left = asyncio.Event()
        self._chunks = chunks
        sent = {"type": "http.request", "body": json.dumps(body).encode()}
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        given: dict[str, Any] = {"path": path, "method": "POST", "headers": headers}
        self.task = asyncio.create_task(asgi(app, sent, take=self._send, gone=self._left, **given))

    @property
    def chunks(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    @property
    def is_complete(self) -> bool:
        return self.messages[-1]["type"] == "http.response.body" and not self.messages[-1].get("more_body", False)

    def leave(self) -> None:
        self._left.set()

    async def _send(self, message: Any) -> None:
        self.messages.append(message)
        if len(self.chunks) > self._chunks:
            self.waits.set()
            await self.go_on.wait()


async def has_stopped(number: Callable[[], int]) -> int:
    """Where a number that grows stays; what is wrong here might take longer, never what is right."""
    async with asyncio.timeout(PATIENCE):
        while True:
            before = number()
            await asyncio.sleep(0.1)
            if number() == before:
                return before


@asynccontextmanager
async def reading(client: Any, body: Any, chunks: int = 3, path: str = "/filter") -> AsyncIterator[Reader]:
    reader = Reader(client.app, path, body, chunks)
    try:
        async with asyncio.timeout(PATIENCE):
            await reader.waits.wait()
        yield reader
    finally:
        reader.leave()
        reader.go_on.set()
        await asyncio.gather(reader.task, return_exceptions=True)


@pytest.mark.parametrize("more", [{}, pytest.param({"mode": "attention"}, marks=pytest.mark.slow), {"stream": True}])
async def test_no_more_is_computed_than_its_reader_takes(connect: Any, more: dict[str, Any]) -> None:
    counted = 0

    class Counting(FakeFilter):
        def _observe(self, *given: Any) -> Any:
            nonlocal counted
            counted += 1
            return super()._observe(*given)

    # Of a stream next to nothing is held.
    rows, held = (400, 0) if "stream" in more else (ROWS, HELD)
    body = {**LONG, "observations": LONG["observations"][:rows]}
    async with connect(fake_models(filter=Counting()), stream_buffer=16, **DAY) as client:
        whole = (await client.post("/filter", json=body)).json()
        counted = 0
        async with reading(client, {**body, **more}) as reader:
            stopped = await has_stopped(lambda: counted)
            sent = b"".join(reader.chunks)
            assert stopped <= sent.count(b'"index"') + 16 + held // 800
            assert stopped < rows
            assert client.app.state.memory.leased_bytes > 0
            reader.go_on.set()
            await asyncio.wait_for(reader.task, PATIENCE)
            assert reader.is_complete
            text = b"".join(reader.chunks).decode()
        assert counted == rows
        assert client.app.state.memory.leased_bytes == 0
    if "stream" in more:
        assert [json.loads(line) for line in text.splitlines()[:-1]] == whole["steps"]
    else:
        assert json.loads(text)["steps"] == whole["steps"]


async def test_a_reader_that_leaves_ends_the_work(connect: Any) -> None:
    model = FakeFilter()
    async with connect(fake_models(filter=model), stream_buffer=16, **DAY) as client:
        async with reading(client, LONG) as reader:
            reader.leave()
            await asyncio.wait_for(reader.task, PATIENCE)
            assert not reader.is_complete
        done = await has_stopped(lambda: len(model.batches))
        assert done < ROWS
        await until(lambda: not client.app.state.engine.pool_slots_in_use)
        assert client.app.state.memory.leased_bytes == 0


@pytest.mark.parametrize(("where", "is_cut"), [(10, False), (2_100, True)])
async def test_a_failure_has_its_status_until_the_reply_is_under_way(connect: Any, where: int, is_cut: bool) -> None:
    """Afterwards the connection is closed before the end, which a client cannot take for a reply."""
    observations = [*LONG["observations"]]
    observations[where] = [-1.0, 0.0]
    async with connect(fake_models(filter=FakeFilter(poison=-1.0)), **DAY) as client:
        reader = Reader(client.app, "/filter", {**LONG, "observations": observations}, chunks=10_000)
        await asyncio.wait_for(reader.task, PATIENCE)
        status = reader.messages[0]["status"]
        assert (status, reader.is_complete) == ((200, False) if is_cut else (422, True))
        if is_cut:
            with pytest.raises(json.JSONDecodeError):
                json.loads(b"".join(reader.chunks))
        assert client.app.state.memory.leased_bytes == 0
        after = await client.post("/filter", json={"observations": [[1.0, 2.0]]})
    assert after.status_code == 200


async def test_a_short_reply_says_its_length(connect: Any) -> None:
    async with connect() as client:
        short = await client.post("/filter", json={"observations": [[1.0, 2.0]] * 5, "horizon": [1.0]})
        text = await client.post("/generate", json={"inputs": "say |"})
        long = await client.post("/filter", json=LONG)
    assert int(short.headers["content-length"]) == len(short.content)
    assert int(text.headers["content-length"]) == len(text.content)
    assert "content-length" not in long.headers
    assert len(read(FilterReply, long.content).steps) == ROWS


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/filter", {"observations": [[1.0, 2.0]] * 300, "horizon": [1.0] * 200}),
        ("/filter", {"observations": [[1.0, 2.0]] * 200, "horizon": [1.0] * 200, "smooth": True}),
        ("/filter", {"observations": [[1.0, 2.0]] * 300, "horizon": [1.0] * 200, "stream": True}),
        ("/generate", {"inputs": "say |", "parameters": {"max_new_tokens": 2_000, "n": 4}}),
        ("/generate", {"inputs": "say |", "parameters": {"max_new_tokens": 2_000, "top_n_tokens": 32}, "stream": True}),
        ("/v1/completions", {"prompt": ["say |"] * 8, "max_tokens": 1_000, "logprobs": 5}),
        ("/v1/completions", {"prompt": ["say |"] * 8, "max_tokens": 1_000, "stream": True}),
    ],
)
async def test_what_a_reply_may_hold_is_leased_before_it_is_made(connect: Any, path: str, body: Any) -> None:
    model, language = FakeFilter(), FakeLanguage()
    async with connect(fake_models(language, model)) as client:
        memory = client.app.state.memory
        with memory.take(int(0.75 * memory.limit_bytes) - 100_000):
            refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "memory_exhausted")
        assert not model.batches and not language.batches
        assert memory.leased_bytes == 0
        assert (await client.post(path, json=body)).status_code == 200
        assert memory.leased_bytes == 0


async def test_what_can_never_be_held_is_refused_for_good(connect: Any) -> None:
    """429 would have the client try again for ever."""
    body = {"observations": [[1.0, 2.0]] * 300, "horizon": [1.0] * 256, "smooth": True}
    async with connect(max_reply_numbers=10**9) as client:
        client.app.state.memory.limit_bytes = 5_000_000
        response = await client.post("/filter", json=body)
        again = await client.post("/filter", json={**body, "smooth": False})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (422, "observations", "reply_too_large")
    assert again.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_latents_of_all_choices_count_together(connect: Any, stream: bool) -> None:
    """A hundred tokens of eight numbers beside their five, of which one prompt alone asks for few."""
    body = {"prompt": ["say |"] * 5, "n": 2, "max_tokens": 10, "stream": stream}
    async with connect(max_reply_numbers=1_299) as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        refused = await client.post("/v1/completions", json={**body, "return_latents": True})
        fewer = {**body, "prompt": ["say |"] * 4, "return_latents": True}
        assert (await client.post("/v1/completions", json=fewer)).status_code == 200
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (422, "max_tokens", "reply_too_large")
    assert "return_latents" in error["message"] and "1300 numbers" in error["message"]


async def test_long_details_are_those_of_the_stream(connect: Any) -> None:
    """They are encoded token by token, from numbers."""
    body = {"inputs": "say |", "parameters": {"max_new_tokens": 100, "n": 2, "top_n_tokens": 3, "return_latents": True}}
    async with connect(fake_models(FakeLanguage(script="ab" * 1_000))) as client:
        whole = await client.post("/generate", json={**body, "stream": False})
        stream = await client.post("/generate", json={**body, "stream": True})
    reply = read(GenerateReply, whole.content)
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line]
    assert reply.continuations is not None and reply.continuations[0].details == reply.details
    for sample, continuation in enumerate(json.loads(whole.content)["continuations"]):
        mine = [event for event in events if event["sample"] == sample]
        details = continuation["details"]
        assert details["tokens"] == [event["token"] for event in mine]
        assert details["top_tokens"] == [event["top_tokens"] for event in mine]
        assert details["latents"] == [event["latent"] for event in mine]
