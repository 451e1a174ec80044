"""Keys and logs: bytes on a socket in, lines on the stderr of a process out, also when nobody reads them."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import orjson
import pytest
from websockets import Subprotocol
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_websocket

from tests.service.live import read_answer, running
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
KEY = "hunter2-is-the-key-here"
SECRET = "hunter2-in-the-prompt"
BODY = {"observations": [[1.0, 0.0], None]}


@contextmanager
def serving(bundle: Path, log: int | IO[bytes], **settings: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server process and its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RFA_PROCESSES": "1", "RFA_WORKERS": "1", **settings}
    command = [sys.executable, "-m", "rfa", "serve", "--bundle", str(bundle), "--port", str(port)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log) as process:
        try:
            wait_until(lambda: is_ready(process, port))
            yield process, port
        finally:
            process.kill()


def is_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        assert process.poll() is None, "the server ended"
        return False


def end(process: subprocess.Popen[bytes]) -> bytes:
    """Ask the server to stop, and give the log that nobody has read yet."""
    process.send_signal(signal.SIGTERM)
    log = process.communicate(timeout=PATIENCE)[1] or b""
    assert process.returncode == 0, log
    return log


def status_of(port: int, request: bytes) -> int:
    """What the server answers to these very bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        return int(connection.makefile("rb").readline().split()[1])


def test_no_bytes_get_past_the_guard() -> None:
    targets = [
        b"/metrics", b"//metrics", b"/metrics/", b"/%6detrics", b"/%6Detrics", b"/METRICS", b"/health/../metrics",
        b"/health/%2e%2e/metrics", b"/docs/..%2fmetrics", b"http://127.0.0.1/metrics", b"http://x/health/../metrics",
        b"/metrics?api_key=" + KEY.encode(), b"/metrics#/health", b"/health%00/metrics", b"/health;/metrics",
        b"/health/", b"/nope", b"/admin", b"/%2e/metrics", b"/./metrics",
    ]  # fmt: skip
    headers = [
        b"Host: x/health?", b"X-Forwarded-Prefix: /health", b"X-Original-URL: /health", b"Authorization: Bearer",
        b"X-API-Key:", b"X-API-Key:  \t ", b"X-API-Key: " + KEY[:-1].encode(),
        b"Authorization: Bearer \xff" + KEY.encode(), b"X-API-Key: " + KEY.encode() + b"\r\nX-API-Key: " + KEY.encode(),
        b"X-API-Key: " + KEY.encode() + b"\r\nAuthorization: Bearer " + b"y" * 20,
    ]  # fmt: skip
    with running(api_keys=KEY) as server:
        port = server.port
        for target in targets:
            assert status_of(port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n") in (400, 401), target
        for header in headers:
            request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n"
            assert status_of(port, request) in (400, 401), header
        for method in (b"POST", b"PUT", b"TRACE", b"BREW", b"get"):
            assert status_of(port, method + b" / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n") in (400, 401), (
                method
            )
        good = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-API-Key:  " + KEY.encode() + b" \r\n\r\n"
        assert status_of(port, good) == 200
        for host, status in ((b"x", 200), (b"y", 400)):
            assert status_of(port, b"GET http://x/health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n") == status
        for headers_given, expected in (({}, 401), ({"X-API-Key": "w" * 20}, 401), ({"X-API-Key": KEY}, 404)):
            with (
                pytest.raises(InvalidStatus) as refused,
                open_websocket(f"ws://127.0.0.1:{port}/nope", additional_headers=headers_given, open_timeout=PATIENCE),
            ):
                pass
            assert refused.value.response.status_code == expected


@pytest.mark.slow  # starts a server process; TestTheLog of test_boundary.py has the same laws through the real handler
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_the_log_of_a_process_holds_every_request_and_no_secret(linear_bundle: Path, log_format: str) -> None:
    settings = {"RFA_API_KEYS": KEY, "RFA_LOG_FORMAT": log_format}
    with serving(linear_bundle, subprocess.PIPE, **settings) as (process, port):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": KEY}, timeout=PATIENCE) as client:
            for index in range(20):
                body: dict[str, Any] = BODY if index % 2 else {**BODY, "model": SECRET, SECRET: SECRET}
                client.post("/filter", json=body, params={"q": SECRET}, headers={"Cookie": SECRET})
            client.get("/a%0aINFO rfa.access: request id=forged", params={"q": SECRET})
            metrics = client.get("/metrics").text
        with (
            pytest.raises(InvalidStatus),
            open_websocket(
                f"ws://127.0.0.1:{port}/nope?q={SECRET}",
                additional_headers={"X-API-Key": SECRET},
                open_timeout=PATIENCE,
            ),
        ):
            pass
        written = base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
        protocols = [Subprotocol("rfa.v1"), Subprotocol(f"rfa.key.{written}")]
        with open_websocket(
            f"ws://127.0.0.1:{port}/filter/stream", subprotocols=protocols, open_timeout=PATIENCE
        ) as live:
            live.send("{}")
            assert orjson.loads(live.recv())["ready"] and live.subprotocol == "rfa.v1"
            assert live.response is not None and live.response.headers.get_all("Sec-WebSocket-Protocol") == ["rfa.v1"]
        log = end(process).decode()
    assert "hunter2" not in log and "rfa.key" not in log and "hunter2" not in metrics
    assert "ERROR" not in log  # everything was refused, nothing went wrong
    counted = sum(
        float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("rfa_http_requests_total")
    )
    expected = int(counted) + 3  # the scrape itself, and two handshakes
    if log_format == "json":
        lines = [orjson.loads(line) for line in log.splitlines()]
        requests = [line for line in lines if (line["logger"], line["message"]) == ("rfa.access", "request")]
        assert len(requests) == expected
    else:
        assert [line for line in log.splitlines() if not re.match(r"\d{4}-\d\d-\d\dT\S+Z [A-Z]+ ", line)] == []
        assert len(re.findall(r"^\S+ INFO rfa\.access: request id=(?!forged)", log, re.MULTILINE)) == expected


@pytest.mark.slow  # starts a server process; TestTheHandler of test_boundary.py has a writer that is stuck
def test_neither_a_log_that_nobody_reads_nor_a_collector_that_is_gone_stops_anything(linear_bundle: Path) -> None:
    """The pipe is full after some hundred lines; the server goes on, and ends when it is told to."""
    pytest.importorskip("opentelemetry.sdk")
    settings = {"RFA_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with serving(linear_bundle, subprocess.PIPE, **settings) as (process, port):
        asked = b"GET /nope/" + b"x" * 120 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            for _ in range(1000):
                connection.sendall(asked)
                assert read_answer(connection)[0] == 404
        assert httpx.post(f"http://127.0.0.1:{port}/filter", json=BODY, timeout=PATIENCE).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_log_on_a_full_disk_stops_nothing(linear_bundle: Path) -> None:
    with Path("/dev/full").open("wb") as full, serving(linear_bundle, full) as (process, port):
        assert httpx.post(f"http://127.0.0.1:{port}/filter", json=BODY, timeout=PATIENCE).status_code == 200
        end(process)
