"""Requests that are invalid, or legal, a hundred thousand times over: one plain refusal, and nothing is left leased."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ValidationError
from websockets.sync.client import connect as connect_websocket

from rfa.service.cooperative import CooperativeWork, Result
from rfa.service.schemas.filter_requests import FilterRequest
from rfa.service.schemas.openai import CompletionRequest
from rfa.service.schemas.stream_requests import FilterStreamRequest, StreamObservation
from rfa.service.schemas.text_requests import GenerateRequest
from tests.service.live import Live, connected, running
from tests.service.raw_asgi import asgi
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
MANY = 50_000


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Any]:
    async with connected() as client:
        yield client


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running() as live:
        yield live


# Model, document, and where its first fault is.
FAULTS: dict[str, tuple[type[BaseModel], dict[str, Any], str]] = {
    "observations": (FilterRequest, {"observations": ["x"] * MANY}, "observations[0]"),
    "late components": (FilterRequest, {"observations": [[0.0]] * 9_000 + [["x"] * 99] * 999}, "observations[9000][0]"),
    "noise": (FilterRequest, {"observations": [None], "noise": [0] * MANY}, "noise[0]"),
    "horizon": (FilterRequest, {"observations": [None], "horizon": ["x"] * MANY}, "horizon[0]"),
    "levels of a stream": (FilterStreamRequest, {"levels": ["x"] * MANY}, "levels[0]"),
    "components of a frame": (StreamObservation, {"y": ["x"] * MANY}, "y[0]"),
    "stop": (GenerateRequest, {"inputs": "", "parameters": {"stop": [1] * MANY}}, "parameters.stop[0]"),
    "unknown fields": (GenerateRequest, {"inputs": "", **{f"f{i}": 1 for i in range(MANY)}}, "f0"),
    "prompts of two kinds": (CompletionRequest, {"prompt": [1] * MANY + ["x"]}, "prompt"),
    "prompts of tokens": (CompletionRequest, {"prompt": [[1], ["x"] * MANY]}, "prompt"),
    "stops": (CompletionRequest, {"prompt": "", "stop": [1] * MANY}, "stop"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_few_of_many_faults_are_collected(case: str) -> None:
    model, document, first = FAULTS[case]
    with pytest.raises(ValidationError) as refused:
        model.model_validate(document)
    assert refused.value.error_count() <= 20
    location = refused.value.errors(include_input=False)[0]["loc"]
    assert "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:] == first


# Path, body and the code of its refusal, which is a 422.
BODIES: dict[str, tuple[str, bytes, str]] = {
    "900,000 invalid numbers": ("/filter", b'{"observations":[' + b"9," * 900_000 + b"9]}", "too_many_values"),
    "480,000 strings": ("/filter", b'{"observations":[' + b'"x",' * 480_000 + b'"x"]}', "too_many_values"),
    "160,000 unknown fields": (
        "/generate", b'{"inputs":"",' + b",".join(b'"%x":1' % i for i in range(160_000)) + b"}", "too_many_values"
    ),
    "one name over and over": ("/filter", b'{"observations":[null]' + b',"a":1' * 300_000 + b"}", "too_many_values"),
    "empty arrays": ("/v1/completions", b'{"prompt":[' + b"[]," * 600_000 + b"[]]}", "too_many_values"),
    "too many observations": ("/filter", orjson.dumps({"observations": [[1.0, 2.0]] * 20_001}), "too_large"),
    "too many times": ("/filter", orjson.dumps({"observations": [None], "times": ["x"] * 20_001}), "too_large"),
    "invalid numbers": ("/filter", orjson.dumps({"observations": [[True] * 20] * 10_000}), "float_type"),
    "an integer of 100,000 digits": ("/filter", b'{"observations":[[' + b"9" * 100_000 + b"]]}", "invalid_json"),
    "depth": ("/generate", b"[" * 1_000_000, "too_deep"),
    "a text without an end": ("/generate", b'{"inputs":"' + b"[" * 1_900_000, "invalid_json"),
    "tokens": ("/v1/completions", orjson.dumps({"prompt": [7] * 300_000}), "too_many_values"),
    "prompts": ("/v1/completions", orjson.dumps({"prompt": ["x"] * 900}), "no_member"),
    "a long state": (
        "/filter", orjson.dumps({"observations": [None], "state": "v1." + "A" * 1_900_000}), "state_invalid"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
async def test_a_dear_body_is_refused_in_words(client: Any, case: str) -> None:
    path, body, code = BODIES[case]
    reply = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, code)
    assert client.app.state.memory.leased_bytes == 0


class OnePiece(CooperativeWork):
    """Runs the first long piece; later ones never run."""

    is_over = False

    async def run(self, work: Callable[[], Result], *, is_long: bool) -> Result:
        if self.is_over:
            await asyncio.Event().wait()
        self.is_over = is_long
        return work()


async def test_the_body_of_a_client_that_left_waits_for_no_turn(connect: Any) -> None:
    body = orjson.dumps({"observations": [[1.0]] * 2_000})
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    async with connect() as client:
        client.app.state.cooperative = cooperative = OnePiece()
        message = {"type": "http.request", "body": body, "more_body": False}
        async with asyncio.timeout(PATIENCE):
            sent = await asgi(client.app, message, method="POST", path="/filter", headers=headers)
        assert cooperative.is_over and sent == []
        assert client.app.state.memory.leased_bytes == 0


def frame(y: bytes) -> str:
    return (b'{"y":[' + y + b"]}").decode()


FRAMES = {
    "invalid numbers": (frame(b"true," * 4_000 + b"1"), "float_type"),
    "numbers": (frame(b"1," * 100_000 + b"1"), "too_many_values"),
    "arrays": (frame(b"[]," * 80_000 + b"1"), "too_many_values"),
    "strings": (frame(b'"",' * 80_000 + b"1"), "too_many_values"),
    "fields": ("{" + ",".join(f'"f{index}":1' for index in range(20_000)) + "}", "too_many_values"),
    "few fields": ("{" + ",".join(f'"f{index}":1' for index in range(200)) + "}", "missing"),
    "depth": ("[" * 200_000, "too_deep"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_dear_frame_ends_its_stream_in_words(live: Live, case: str) -> None:
    text, code = FRAMES[case]
    with connect_websocket(f"ws://127.0.0.1:{live.port}/filter/stream", open_timeout=PATIENCE) as socket:
        socket.send("{}")
        assert "ready" in orjson.loads(socket.recv())
        socket.send(text)
        assert orjson.loads(socket.recv())["error"]["code"] == code


async def test_a_legal_body_of_the_largest_size_is_answered(connect: Any) -> None:
    async with connect(max_waiting=8) as client:
        body = orjson.dumps({"inputs": "It was. " * 230_000, "parameters": {"truncate": 4, "max_new_tokens": 1}})
        reply = await client.post("/generate", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 200, reply.text
        assert reply.json()["details"]["input_length"] == 4


async def test_without_memory_a_body_is_refused_and_later_taken(connect: Any) -> None:
    body = {"observations": [[1.0, 2.0]] * 2_000}
    async with connect() as client:
        memory = client.app.state.memory
        with memory.take(int(0.75 * memory.limit_bytes)):
            refused = await client.post("/filter", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "memory_exhausted")
            assert int(refused.headers["Retry-After"]) >= 1
            small = await client.post("/filter", json={"observations": [[1.0, 2.0]]})
            assert small.status_code == 200
        assert (await client.post("/filter", json=body)).status_code == 200
        assert memory.leased_bytes == 0
        metrics = (await client.get("/metrics")).text
    assert "rfa_request_memory_bytes 0.0" in metrics
    assert 'rfa_admission_rejections_total{reason="memory_exhausted"} 1.0' in metrics


async def test_a_stream_holds_its_lease_until_its_end(connect: Any) -> None:
    async with connect() as client:
        memory = client.app.state.memory
        body = {"observations": [[1.0, 2.0]] * 50, "stream": True}
        async with client.stream("POST", "/filter", json=body) as reply:
            seen = [memory.leased_bytes async for _ in reply.aiter_lines()]
        assert len(seen) == 51
        assert memory.leased_bytes == 0
