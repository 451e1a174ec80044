"""The OpenAPI document against what the server really sends: every status, media type, schema and example."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from rfa.service.access.guard import is_open
from rfa.service.errors import (
    STATUS,
    HeadersTooLarge,
    InvalidRequest,
    MalformedRequest,
    RequestTimeout,
    UpgradeRequired,
)
from rfa.service.openapi import openapi_of
from rfa.service.reading import child
from tests.service.live import connected
from tests.service.models import FakeFilter, FakeLanguage, fake_models
from tests.waiting import until

pytestmark = pytest.mark.anyio
KEY = "a-key-of-sixteen-or-more"
PAGES = ("/health", "/ready", "/metrics", "/info", "/", "/docs", "/openapi.json", "/v1/models", "/tokenizer_info")
PROBES = ("/health", "/ready", "/metrics")
JSON = {"content-type": "application/json"}


async def sent(connect: Any) -> AsyncIterator[tuple[str, str, httpx.Response]]:
    """Requests that bring out every status of every route: (method, path, response)."""
    gate = threading.Semaphore(2000)
    models = fake_models(FakeLanguage(poison="bad", gate=gate), FakeFilter(bomb=666))
    bodies: dict[str, dict[str, Any]] = {
        "/generate": {"inputs": "say |"},
        "/filter": {"observations": [[1.0, 2.0], None]},
        "/generate_stream": {"inputs": "say |"},
        "/": {"inputs": "say |"},
        "/v1/completions": {"prompt": "say |"},
        "/score": {"inputs": "say |"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "say |"}]},
        "/tokenize": {"prompt": "say |"},
        "/detokenize": {"tokens": [1]},
        "/state/merge": {"states": ["x", "y"]},
        "/read": {"y": [1.5]},
    }
    bad = {path: json.loads(json.dumps(body).replace("say |", "bad |")) for path, body in bodies.items()} | {
        "/filter": {"observations": [[666, 0]]},
        "/state/merge": {"states": ["x"]},
        "/read": {},
    }
    async with connect(
        models, api_keys=KEY, workers=1, max_running=1, max_waiting=0, max_body_bytes=2500,
        stall_seconds=0.01,
        sessions="memory", allowed_hosts="localhost",
    ) as client:  # fmt: skip
        app = client.app
        for path, body in bodies.items():
            yield "post", path, await client.post(path, json=body)
            yield "post", path, await client.post(path, json=body, headers={"Host": "other.example"})
            yield "post", path, await client.post(path, json=body, headers={"Origin": "http://other.example"})
        for path in PAGES:
            yield "get", path, await client.get(path)
            yield "get", path, await client.get(path, headers={"Host": "other.example"})
        for path in PROBES:
            yield "head", path, await client.head(path)
        yield "get", "/v1/models/{model}", await client.get("/v1/models/recite")
        client.headers["Authorization"] = f"Bearer {KEY}"
        for path, body in bodies.items():
            for answer in (
                await client.post(path, json=body),
                await client.post(path, json={**body, "stream": True}),
                await client.post(path, json={**body, "stream": True}, headers={"Accept": "text/event-stream"}),
                await client.post(path, json={**body, "model": "nope"}),
                await client.put(path, json=body),
                await client.post(path, content=b" " * 6000, headers=JSON),
                await client.post(path, content=b"{}"),
                await client.post(path, json={**body, "nope": 1}),
                await client.post(path, json={**body, "state": "x"}),
                await client.post(path, json={**body, "return_state": "session:of" + path.replace("/", "-")}),
                await client.post(path, json={**body, "return_state": "session:of" + path.replace("/", "-")}),
                await client.post(path, json=bad[path]),
            ):
                yield "post", path, answer
        for path in PAGES:
            yield "get", path, await client.get(path)
            yield "get", path, await client.put(path)
        for path in PROBES:
            yield "head", path, await client.head(path)
        for name in ("recite", "nope", "x" * 300):
            yield "get", "/v1/models/{model}", await client.get(f"/v1/models/{name}")
        yield "get", "/v1/models/{model}", await client.put("/v1/models/recite")
        while gate.acquire(blocking=False):
            pass
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.post("/generate", json=bodies["/generate"]))
            await until(lambda: app.state.engine._scheduler.stalled_for() >= 0.02)
            for path, body in bodies.items():
                yield "post", path, await client.post(path, json=body)
            yield "get", "/ready", await client.get("/ready")
            yield "head", "/ready", await client.head("/ready")
            gate.release(2000)
        app.state.engine, engine = None, app.state.engine
        for path, body in bodies.items():
            yield "post", path, await client.post(path, json=body)
        for path in PAGES:
            yield "get", path, await client.get(path)
        yield "get", "/v1/models/{model}", await client.get("/v1/models/recite")
        app.state.engine = engine


async def read_here(content: bytes, options: dict[str, Any]) -> bytes:
    """As in a subprocess, without the second that its start takes."""
    kind, document = child._answer(content, **options)
    if kind == child.REFUSED:
        raise InvalidRequest("The file is none.", code="unreadable_file")
    return document


@pytest.fixture(scope="module")
async def document() -> Any:
    async with connected() as client:
        return openapi_of(client.app)


async def test_every_answer_is_documented(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rfa.service.routes.read.read_in_subprocess", read_here)
    async with connect(api_keys=KEY) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    seen: dict[str, set[int]] = {}
    probed: dict[str, set[int]] = {}
    async for method, path, response in sent(connect):
        documented = paths[path][method]["responses"]
        assert str(response.status_code) in documented, (method, path, response.status_code)
        media_type = response.headers["content-type"].partition(";")[0]
        assert media_type in documented[str(response.status_code)]["content"], (path, response.status_code, media_type)
        (probed if method == "head" else seen).setdefault(path, set()).add(response.status_code)
    # What is refused before or below the application takes a real connection: the tests of the protocol have one.
    below = {STATUS[kind] for kind in (MalformedRequest, RequestTimeout, HeadersTooLarge)}
    for path in ("/generate", "/filter"):
        assert seen[path] == {200, *STATUS.values()} - below - {STATUS[UpgradeRequired]}  # of WebSockets alone
        assert {str(status) for status in below} <= set(paths[path]["post"]["responses"])
    assert seen["/generate"] == seen["/generate_stream"] == seen["/"]
    assert seen["/v1/completions"] == seen["/score"] == seen["/generate"]
    assert seen["/v1/models/{model}"] == {200, 401, 404, 405, 422, 503}
    assert all(path in seen for path in paths)
    assert probed == {"/health": {200}, "/ready": {200, 503}, "/metrics": {200, 401}}
    assert {path for path, methods in paths.items() if "head" in methods} == set(PROBES)


async def test_the_document_asks_for_a_key_where_the_server_does(connect: Any, document: Any) -> None:
    assert "securitySchemes" not in document["components"]
    async with connect(api_keys=KEY) as client:
        guarded = openapi_of(client.app)
    for path, methods in guarded["paths"].items():
        for method, operation in methods.items():
            schemes = {} if is_open(method.upper(), path) else {"bearer", "header"}
            assert {name for choice in operation.get("security", []) for name in choice} == set(schemes)
            assert ("401" in operation["responses"]) is bool(schemes)
            assert "401" not in document["paths"][path][method]["responses"]
    assert set(guarded["components"]["securitySchemes"]) == {"bearer", "header"}
    assert guarded["components"]["schemas"] == document["components"]["schemas"]


async def test_errors_share_one_schema_and_operations_are_described(document: Any) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            for status, reply in operation["responses"].items():
                assert reply["description"], (path, status)
                if int(status) >= 400:
                    schema = reply["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/ErrorReply"}, (path, status)


async def test_every_reference_leads_somewhere(document: Any) -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [found for value in node.values() for found in references(value)]
        return [found for item in node for found in references(item)] if isinstance(node, list) else []

    found = set(references(document))
    assert found
    assert {reference.removeprefix("#/components/schemas/") for reference in found} <= set(
        document["components"]["schemas"]
    )


async def test_a_reply_links_to_what_goes_on_from_its_state(connect: Any) -> None:
    async with connect() as client:
        document = (await client.get("/openapi.json")).json()
        for path, body in (("/filter", {"observations": [[1, 2]]}), ("/generate", {"inputs": "say |"})):
            operation = document["paths"][path]["post"]
            (link,) = operation["responses"]["200"]["links"].values()
            assert link["operationId"] == operation["operationId"]
            reply = (await client.post(path, json={**body, "return_state": True})).json()
            ((name, expression),) = link["requestBody"].items()
            pointer = expression.removeprefix("$response.body#/")
            assert (await client.post(path, json={**body, name: reply[pointer]})).status_code == 200


async def test_requests_are_bounded_in_every_field(document: Any) -> None:
    """No string, number or array that a client sends is without a limit."""
    schemas = document["components"]["schemas"]

    def unbounded(node: Any, where: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        kind, keys = node.get("type"), set(node)
        bounded = {
            "string": bool(keys & {"maxLength", "enum"}),
            "array": "maxItems" in keys,
            "number": bool(keys & {"minimum", "exclusiveMinimum"}) and bool(keys & {"maximum", "exclusiveMaximum"}),
        }
        bounded["integer"] = bounded["number"]
        missing = [] if bounded.get(str(kind), True) else [where]
        inner = [*node.get("anyOf", []), node.get("items"), *node.get("properties", {}).values()]
        return missing + [
            found for part in inner for found in unbounded(part, f"{where}/{(part or {}).get('title', '')}")
        ]

    kinds = ["Generate", "Filter", "Merge", "Completion", "Score", "Chat", "Tokenize", "Detokenize"]
    for name in (*(f"{kind}Request" for kind in kinds), "GenerateParameters", "StreamOptions", "ChatMessage"):
        assert schemas[name]["additionalProperties"] is False
        assert unbounded(schemas[name], name) == []


async def test_the_examples_of_the_document_work(connect: Any, document: Any) -> None:
    schemas = document["components"]["schemas"]
    async with connect() as client:
        for path, name in (
            ("/generate", "GenerateRequest"),
            ("/filter", "FilterRequest"),
            ("/v1/completions", "CompletionRequest"),
            ("/score", "ScoreRequest"),
            ("/v1/chat/completions", "ChatRequest"),
        ):
            for example in schemas[name]["examples"]:
                assert (await client.post(path, json=example)).status_code == 200


async def test_every_field_is_described(document: Any) -> None:
    schemas = document["components"]["schemas"]
    fields = {f"{name}.{field}": facts for name, kind in schemas.items() for field, facts in kind["properties"].items()}
    assert len(fields) > 200
    assert [field for field, facts in fields.items() if not facts.get("description")] == []
