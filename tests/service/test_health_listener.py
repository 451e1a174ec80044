"""The port of the probes: what it says of processes, to whom, and that nothing on either port keeps a probe out."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from rfa.service.process import health
from rfa.service.process.health import MOST_CONNECTIONS, HealthStatus, health_listener
from rfa.service.settings import Settings
from tests.service.live import check_refusal, parse_head
from tests.waiting import PATIENCE

WELL = HealthStatus(is_alive=True, is_ready=True)
KEY = "a-key-of-sixteen-or-more"


@dataclass(eq=False)
class Process:
    heard: bool = True
    has_served: bool = True
    silent_ticks: int = 0
    stalled: float = 0.0


class TestVitals:
    @pytest.mark.parametrize(
        ("processes", "is_alive", "is_ready"),
        [
            ([], False, False),
            ([Process()], True, True),
            ([Process(heard=False)], False, False),
            ([Process(has_served=False)], True, False),
            ([Process(silent_ticks=60)], True, True),
            ([Process(silent_ticks=61)], True, False),
            ([Process(silent_ticks=121)], False, False),
            ([Process(stalled=30)], True, True),
            ([Process(stalled=31)], True, False),
            ([Process(silent_ticks=500), Process(stalled=31)], True, False),
            ([Process(silent_ticks=500), Process()], True, True),
            ([Process(has_served=False), Process(stalled=31)], True, False),
        ],
    )
    def test_one_good_process_is_enough(self, processes: list[Process], is_alive: bool, is_ready: bool) -> None:
        assert HealthStatus.from_processes(cast(Any, processes), tick=0.5, stall=30, is_stopping=False) == HealthStatus(
            is_alive, is_ready
        )
        assert HealthStatus.from_processes(cast(Any, processes), tick=0.5, stall=30, is_stopping=True) == HealthStatus(
            is_alive, False
        )


@asynccontextmanager
async def probes(vitals: HealthStatus = WELL, directory: str | None = None, **settings: Any) -> AsyncIterator[int]:
    """A listener in this process; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = Settings.model_validate({"bundles": (), "processes": 2, "health_port": port, **settings})
    async with health_listener(given, lambda: vitals, directory):
        yield port


async def ask(port: int, request: bytes) -> bytes:
    """Everything that these bytes are answered with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


def get(path: str, method: str = "GET", host: str = "10.42.0.17:8001", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()


async def answer_metrics(directory: Path, index: int, text: str) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text.encode())
        writer.close()

    return await asyncio.start_unix_server(answer, path=str(directory / str(index)))


@pytest.mark.anyio
class TestTheListener:
    @pytest.mark.parametrize("path", ["/health", "/ready", "/health?x=1"])
    async def test_answers_by_the_vitals(self, path: str) -> None:
        async with probes() as port:
            head, _, body = (await ask(port, get(path))).partition(b"\r\n\r\n")
            status, headers = parse_head(head)
            assert (status, headers["connection"], int(headers["content-length"])) == (200, "close", len(body))
            assert body == (b'{"status":"ready"}' if "ready" in path else b'{"status":"alive"}')
            head, _, nothing = (await ask(port, get(path, "HEAD"))).partition(b"\r\n\r\n")
            assert (parse_head(head)[1]["content-length"], nothing) == (str(len(body)), b"")
            assert (await ask(port, f"GET {path} HTTP/1.0\r\n\r\n".encode())).startswith(b"HTTP/1.1 200 OK")
        async with probes(HealthStatus(False, False)) as port:
            check_refusal(await ask(port, get(path)), 503, "not_ready")

    @pytest.mark.parametrize(
        ("request_bytes", "status", "code"),
        [
            (get("/"), 404, "not_found"),
            (get("/generate", "POST"), 404, "not_found"),
            (get("//health"), 404, "not_found"),
            (get("http://x/health"), 404, "not_found"),
            (get("/health", "POST", headers="Content-Length: 9000\r\n"), 405, "method_not_allowed"),
            (get("/health", host="evil.example"), 421, "host_not_allowed"),
            (get("/health", host="a b"), 400, "malformed_host"),
            (b"GET /health HTTP/1.1\r\n\r\n", 400, "malformed_request"),
            (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "malformed_request"),
            (b"\x16\x03\x01\x02\x00\x01\xff\r\n\r\n", 400, "malformed_request"),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000, 400, "malformed_request"),
        ],
    )
    async def test_has_nothing_else(self, request_bytes: bytes, status: int, code: str) -> None:
        async with probes() as port:
            check_refusal(await ask(port, request_bytes), status, code)

    async def test_tells_the_metrics_of_the_processes_that_answer(self, tmp_path: Path) -> None:
        text = '# HELP rfa_x X.\n# TYPE rfa_x gauge\nrfa_x{{engine="{}"}} 1.0\n'
        async with probes(directory=str(tmp_path), api_keys=KEY, processes=3) as port:
            key = f"Authorization: Bearer {KEY}\r\n"
            check_refusal(await ask(port, get("/metrics", headers=key)), 503, "not_ready")
            answering = [await answer_metrics(tmp_path, index, text.format(index)) for index in (0, 2)]
            for wrong in ("", "X-API-Key: x\r\n", f"X-API-Key: {KEY}\r\n" + key):
                check_refusal(await ask(port, get("/metrics", headers=wrong)), 401, "invalid_api_key")
            _, _, body = (await ask(port, get("/metrics", headers=key))).partition(b"\r\n\r\n")
            for server in answering:
                server.close()
            assert body.count(b"# HELP") == 1 and re.findall(rb'engine="(\d)"', body) == [b"0", b"2"]

    async def test_a_crowd_of_silent_connections_keeps_no_probe_out(self) -> None:
        async with probes() as port:
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MOST_CONNECTIONS)]
            assert (await ask(port, get("/health"))).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(PATIENCE):
                for reader, _ in silent[:MOST_CONNECTIONS]:
                    assert await _is_over(reader)
            assert not silent[-1][0].at_eof()
            for _, writer in silent:
                writer.close()

    async def test_a_slow_request_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "SECONDS", 0.05)
        async with probes() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HT")
            async with asyncio.timeout(PATIENCE):
                assert await _is_over(reader)
            writer.close()

    async def test_a_taken_port_is_reported(self) -> None:
        async with probes() as port:
            with pytest.raises(OSError, match="in use"):
                async with probes(health_port=port):
                    pass


async def _is_over(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
