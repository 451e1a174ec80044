"""What any client may send to any route: bodies, headers, paths and methods, each answered in the one error shape."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from rfa.service.app import create_app
from rfa.service.bundle_version import bundle_version
from rfa.service.errors import ERROR_TYPES, STATUS, ErrorReply, InternalError, as_service_error
from rfa.service.routes import filter, filter_stream, generate, health, info, openai, page, tgi
from rfa.service.schemas.server_replies import Info
from rfa.service.settings import Settings
from tests.service.live import connected
from tests.service.models import fake_models
from tests.service.replies import read

pytestmark = pytest.mark.anyio
GOOD = b'{"inputs": "say |", "parameters": {"max_new_tokens": 3}}'
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with connected() as client:
        yield client


def check_error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = read(ErrorReply, response.content).error
    assert error.code == code
    assert (status, error.type) in {(STATUS[kind], ERROR_TYPES[kind]) for kind in STATUS}
    return response.json()["error"]


async def check_still_works(client: httpx.AsyncClient) -> None:
    response = await client.post("/generate", content=GOOD, headers=JSON)
    assert (response.status_code, response.json()["generated_text"]) == (200, "the")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b"\xef\xbb\xbf" + GOOD, "invalid_json"),
        (b'{"inputs": "\\ud800"}', "invalid_json"),
        (b'{"inputs": "\xed\xa0\x80"}', "invalid_json"),
        (b'{"inputs": "a", "parameters": {"temperature": NaN}}', "invalid_json"),
        (b'{"inputs": "a", "parameters": {"temperature": 1e999}}', "invalid_json"),
        (b'{"inputs": "a", "parameters": {"seed": 1e30}}', "int_type"),
        (b'{"inputs": "a", "parameters": {"temperature": "0.5"}}', "float_type"),
        (b'{"inputs": "a", "parameters": {"max_new_tokens": false}}', "int_type"),
        (b'{"inputs": "a", "parameters": {"max_new_tokens": 5.0}}', "int_type"),
        (b'{"inputs": "a", "parameters": {"do_sample": 0}}', "bool_type"),
        (b'{"inputs": "a", "parameters": {"do_samples": true}}', "extra_forbidden"),
        (b'{"inputs": "a", "stream": "false"}', "bool_type"),
        (b'{"inputs": 5}', "string_type"),
        (b"{}", "missing"),
        (b"[]", "model_type"),
        (b'{"inputs": "a", "parameters": null}', "model_type"),
        (b"[" * 40 + b"]" * 40, "too_deep"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "too_deep"),
        (b'"' + b'\\"' * 100_000, "invalid_json"),
        (b'{"' + b"x" * 200_000 + b'": 1, "inputs": "a"}', "extra_forbidden"),
        (b'{"inputs": "a", "inputs": "a"}', "duplicate"),
        (b'{"inputs": "a", "parameters": {"seed": 1, "s\\u0065ed": 2}}', "duplicate"),
    ],
    ids=range(26),
)
async def test_a_bad_body_is_refused_and_never_repeated(client: Any, body: bytes, code: str) -> None:
    response = await client.post("/generate", content=body, headers=JSON)
    check_error(response, 422, code)
    assert len(response.content) < 600
    await check_still_works(client)


async def test_what_the_client_sent_is_not_in_the_answer(connect: Any) -> None:
    secret = "hunter2"
    bodies = [
        {"inputs": "a", "parameters": {"max_new_tokens": secret}},
        {"inputs": "a", "parameters": {"decode": secret}},
        {"inputs": "a", "model": f"{secret}/{secret}"},
        {"inputs": "a", "model": secret},
        {"inputs": "a", "parameters": {"stop": [secret * 100]}},
    ]
    async with connect() as client:
        for body in bodies:
            response = await client.post("/generate", json=body)
            assert 400 <= response.status_code < 500
            assert secret not in response.text
        named = await client.post("/generate", json={"inputs": "a", "<script>alert(1)</script>" + "y" * 500: 1})
    assert "<" not in named.text and len(named.json()["error"]["param"]) <= 64


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", ";;;",
     "application/jsonp", "application/json; charset=latin-1", "application/octet-stream"],
)  # fmt: skip
async def test_other_content_types_are_refused(client: Any, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    for path in ("/generate", "/filter"):
        check_error(await client.post(path, content=GOOD, headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"']
)
async def test_json_content_types_are_taken(client: Any, content_type: str) -> None:
    response = await client.post("/generate", content=GOOD, headers={"content-type": content_type})
    assert response.status_code == 200


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_size_limit_is_exact_declared_or_not(connect: Any, extra: int, is_chunked: bool) -> None:
    limit = 5000
    body = GOOD + b" " * (limit + extra - len(GOOD))

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 700):
            yield body[start : start + 700]

    async with connect(max_body_bytes=limit) as client:
        response = await client.post("/generate", content=chunks() if is_chunked else body, headers=JSON)
        if extra:
            check_error(response, 413, "payload_too_large")
        else:
            assert response.status_code == 200
        await check_still_works(client)


async def test_paths_and_methods(connect: Any) -> None:
    async with connect() as client:
        for path in ("/nope", "/generate/", "/v1/nope", "/generate/x"):
            check_error(await client.post(path, content=GOOD, headers=JSON), 404, "not_found")
        response = await client.get("/generate")
        check_error(response, 405, "method_not_allowed")
        assert response.headers["allow"] == "POST"
        check_error(await client.delete("/health"), 405, "method_not_allowed")
        for index in range(20):
            await client.get(f"/random-{index}")
            await client.request(f"VERB{index}", "/generate")
        metrics = (await client.get("/metrics")).text
    assert "random" not in metrics and "VERB" not in metrics
    assert 'rfa_http_requests_total{method="GET",route="other",status="404"} 20.0' in metrics
    assert 'rfa_http_requests_total{method="POST",route="other",status="404"} 4.0' in metrics
    assert 'rfa_http_requests_total{method="GET",route="/generate",status="405"} 1.0' in metrics


async def test_an_unexpected_exception_is_a_500_in_the_same_shape(
    connect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect() as client:
        with monkeypatch.context() as patch:
            patch.setattr(client.app.state.engine, "generate", lambda *_: 1 / 0)
            error = check_error(await client.post("/generate", content=GOOD, headers=JSON), 500, "internal_error")
        await check_still_works(client)
    assert "division" not in error["message"] and "ZeroDivisionError" in caplog.text


def called(dependant: Dependant) -> Iterator[Any]:
    yield dependant.call
    for dependency in dependant.dependencies:
        yield from called(dependency)


def test_no_route_hops_to_a_thread() -> None:
    """FastAPI runs plain functions on threads: GET /ready took three times as long."""
    routers = [module.router for module in (generate, tgi, openai, filter, filter_stream, health, info, page)]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    functions = {function for route in routes for function in called(route.dependant)}
    assert len(functions) > len(routers)
    assert {function for function in functions if not inspect.iscoroutinefunction(function)} == set()


async def test_before_start_up_nothing_is_ready_but_alive(connect: Any) -> None:
    async with connect() as client:
        engine, client.app.state.engine = client.app.state.engine, None
        for path in ("/ready", "/info"):
            response = await client.get(path)
            check_error(response, 503, "not_ready")
            assert response.headers["retry-after"] == "1"
        check_error(await client.post("/generate", content=GOOD, headers=JSON), 503, "not_ready")
        assert (await client.get("/health")).status_code == 200
        client.app.state.engine = engine
        assert (await client.get("/ready")).json() == {"status": "ready", "models": ["recite", "mean"]}


async def test_info_tells_models_and_limits(connect: Any) -> None:
    async with connect(max_new_tokens=77) as client:
        info = read(Info, (await client.get("/info")).content)
    assert [(model.name, model.kind) for model in info.models] == [("recite", "lm"), ("mean", "filter")]
    assert info.limits["max_new_tokens"] == 77
    assert info.bundle_version == bundle_version(model.digest for model in info.models)


async def test_every_metric_has_its_name_and_buckets_below_a_millisecond(connect: Any) -> None:
    async with connect() as client:
        await check_still_works(client)
        text = (await client.get("/metrics")).text
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
        assert f'rfa_{name}_seconds_bucket{{le="0.0005",model_name="recite"}}' in text
    assert 'rfa_generation_tokens_total{model_name="recite"} 3.0' in text
    assert 'rfa_prompt_tokens_total{model_name="recite"} 5.0' in text
    assert 'rfa_request_success_total{finished_reason="length",model_name="recite"} 1.0' in text
    assert "rfa_num_requests_running 0.0" in text and "rfa_num_requests_waiting 0.0" in text


def test_every_failure_has_a_status_and_a_type() -> None:
    assert set(STATUS) == set(ERROR_TYPES)
    assert as_service_error(KeyError("x")).payload().error.type == ERROR_TYPES[InternalError]
    assert "home" not in str(as_service_error(KeyError("/home/x")).payload())


async def test_an_application_can_start_again() -> None:
    app = create_app(Settings(bundles=(), processes=1, workers=1), load=lambda _: fake_models())
    for _ in range(2):
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
        async with app.router.lifespan_context(app), client:
            await check_still_works(client)
        assert app.state.engine is None
