"""Spans: what they are called and hold, whose children they are, where they go, and that no secret goes with them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fastapi import WebSocket

from rfa.service.access import tracing
from rfa.service.access.request_log import record_of
from rfa.service.access.tracing import Tracing, open_tracing
from rfa.service.app import create_app
from rfa.service.settings import ConfigurationError, Settings
from tests.service.models import FakeLanguage, fake_models
from tests.service.raw_asgi import asgi
from tests.waiting import PATIENCE

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio
SECRET = "hunter2-in-the-prompt"
BODY = {"inputs": "say |", "parameters": {"max_new_tokens": 3}}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr("rfa.service.app.open_tracing", lambda settings: Tracing(lambda: exporter))
    return exporter


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


async def test_a_generation_is_described_in_the_common_words(connect: Any, finished: InMemorySpanExporter) -> None:
    async with connect() as client:
        await client.post("/generate", json=BODY, headers={"X-Request-ID": "mine"})
    span = only(finished)
    assert (span.name, span.kind.name, span.parent) == ("POST /generate", "SERVER", None)
    assert span.resource.attributes["service.name"] == "rfa-server"
    assert dict(span.attributes or {}).items() >= {
        "http.request.method": "POST", "http.route": "/generate", "http.response.status_code": 200,
        "rfa.model": "recite", "gen_ai.operation.name": "text_completion", "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3, "gen_ai.response.finish_reasons": ("length",),
        "rfa.request_id": "mine", "rfa.complete": True,
    }.items()  # fmt: skip
    assert span.status.is_unset and span.events == ()


async def test_the_first_token_of_a_stream_is_an_event(connect: Any, finished: InMemorySpanExporter) -> None:
    async with connect() as client:
        await client.post("/generate", json={**BODY, "stream": True})
    span = only(finished)
    (event,) = span.events
    assert event.name == "gen_ai.first_token"
    assert span.start_time < event.timestamp < span.end_time
    seconds = span.attributes["gen_ai.response.time_to_first_chunk"]
    assert event.timestamp == span.start_time + int(seconds * 1e9)


@pytest.mark.parametrize(
    ("headers", "is_child"),
    [
        ([("traceparent", f"00-{TRACE}-{PARENT}-01")], True),
        ([("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=1,b=2")], True),
        ([("traceparent", f"00-{TRACE}-{PARENT}-01")] * 2, False),
        ([("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "a=1"), ("tracestate", "b=2")], True),
        ([("traceparent", f"00-{'0' * 32}-{PARENT}-01")], False),
        ([("traceparent", f"ff-{TRACE}-{PARENT}-01")], False),
        ([("traceparent", "\xff\xfe")], False),
        ([("traceparent", "")], False),
        ([("tracestate", "a=1")], False),
    ],
)
async def test_the_caller_is_the_parent(
    connect: Any, finished: InMemorySpanExporter, headers: list[tuple[str, str]], is_child: bool
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    async with connect() as client:
        await asgi(client.app, path="/health", headers=raw)
    span = only(finished)
    assert (f"{span.context.trace_id:032x}" == TRACE) is is_child
    assert (span.parent is not None and f"{span.parent.span_id:016x}" == PARENT) is is_child


async def test_a_caller_who_does_not_sample_gets_no_span(connect: Any, finished: InMemorySpanExporter) -> None:
    async with connect() as client:
        await client.get("/health", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert finished.get_finished_spans() == ()


async def test_failures_are_marked_and_refusals_are_not(connect: Any, finished: InMemorySpanExporter) -> None:
    async with connect(fake_models(FakeLanguage(poison="bad"))) as client:
        await client.get("/nope")
        await client.post("/generate", json={"inputs": "bad |"})
        await client.request("BREW", "/health")
    refused, failed, odd = finished.get_finished_spans()
    assert (refused.name, refused.status.is_unset, "http.route" in refused.attributes) == ("GET", True, False)
    assert (failed.status.is_ok, failed.attributes["error.type"]) == (False, "500")
    assert odd.attributes["http.request.method"] == "_OTHER"


async def test_a_websocket_is_one_span(connect: Any, finished: InMemorySpanExporter) -> None:
    async def live(websocket: WebSocket) -> None:
        await websocket.accept()
        record_of(websocket).filtered("mean", 1)
        await websocket.close(1012)

    async def broken(websocket: WebSocket) -> None:
        await websocket.accept()
        raise KeyError

    async with connect() as client:
        client.app.add_api_websocket_route("/live", live)
        client.app.add_api_websocket_route("/broken", broken)
        await asgi(client.app, type="websocket", path="/live")
        await asgi(client.app, type="websocket", path="/broken")
    span, failed = finished.get_finished_spans()
    assert span.status.is_unset and (failed.status.is_ok, failed.attributes["error.type"]) == (False, "1011")
    assert span.name == "WEBSOCKET /live"
    expected = {"http.request.method": "GET", "http.response.status_code": 101, "rfa.websocket.close_code": 1012}
    assert dict(span.attributes or {}).items() >= {**expected, "rfa.observations": 1}.items()


async def test_no_span_holds_what_a_client_sent(connect: Any, finished: InMemorySpanExporter, monkeypatch: Any) -> None:
    async with connect(fake_models(FakeLanguage(bomb="boom")), api_keys=f"{SECRET}-key") as client:
        headers = {"X-API-Key": f"{SECRET}-key", "User-Agent": SECRET, "tracestate": f"a={SECRET}"}
        for path in ("/generate", f"/{SECRET}"):
            for body in ({"inputs": SECRET}, {"inputs": f"{SECRET} boom |"}, {"inputs": SECRET, "state": SECRET}):
                await client.post(path, json=body, headers=headers, params={"q": SECRET})
        monkeypatch.setattr(client.app.state.engine, "generate", lambda *_: {}[SECRET])
        await client.post("/generate", json=BODY, headers=headers)
    spans = finished.get_finished_spans()
    assert len(spans) == 7
    assert not [span for span in spans if SECRET in span.to_json()]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """An OTLP receiver on this machine: its address, and what it was sent."""
    received: list[tuple[str, bytes]] = []

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receive) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", received
        server.shutdown()
        thread.join(PATIENCE)


async def test_spans_reach_a_collector(connect: Any, collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    address, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", PATIENCE)
    async with connect(tracing=True) as client:
        await client.post("/generate", json=BODY)
        await client.get("/health")
    spans, services = [], set()
    for path, body in received:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            services |= {item.value.string_value for item in resource.resource.attributes if item.key == "service.name"}
            spans += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(spans) == ["GET /health", "POST /generate"] and services == {"ours"}


def test_off_is_off_for_fastapi_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    app = create_app(Settings(bundles=(), processes=1), load=lambda _: fake_models())
    assert not app._telemetry["auto_configure"] and not app._native_telemetry.enabled()


@pytest.mark.slow  # starts an interpreter; the test above looks at what FastAPI was told
def test_off_is_off_whatever_the_environment_says(collector: Any) -> None:
    """FastAPI can export by itself, messages of exceptions included, when it starts with these variables.

    And nothing is imported that would.
    """
    address, received = collector
    program = f"""
import asyncio, httpx, sys
from rfa.service.app import create_app
from rfa.service.settings import Settings
from tests.service.models import fake_models

async def main():
    app = create_app(Settings(bundles=(), processes=1, workers=1), load=lambda _: fake_models())
    started, served = asyncio.Event(), asyncio.Event()
    messages = iter([{{"type": "lifespan.startup"}}, {{"type": "lifespan.shutdown"}}])

    async def receive():
        message = next(messages)
        if message["type"] == "lifespan.shutdown":
            await served.wait()
        return message

    async def send(message):
        started.set()

    running = asyncio.create_task(app({{"type": "lifespan", "state": {{}}}}, receive, send))
    await started.wait()
    app.state.engine.generate = lambda *_: {{}}["{SECRET}"]
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.post("/generate", json={{"inputs": "a"}})).status_code == 500
        assert (await client.post("/generate", json={{"inputs": 5}})).status_code == 422
    served.set()
    await running

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": address, "FASTAPI_OTEL_AUTO_CONFIGURE": "true"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=PATIENCE)
    assert received == []


def test_without_the_packages_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(ConfigurationError, match=r"rfa-server\[tracing\]"):
        open_tracing(Settings(bundles=(), processes=1, tracing=True))
