"""The processes of one server: their connections, their metrics, their state key, and the port of the probes."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.live import read_answer
from tests.service.processes import Server, engines_of, serving
from tests.service.test_metrics_processes import check_valid, samples
from tests.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of two processes, which serves with both until the last test ends it."""
    with serving(tmp_path_factory.mktemp("server"), max_connections=8, health_port=0) as server:
        yield server


def health_url(server: Server) -> str:
    found = re.search(r"serving health checks on port (\d+)", server.log)
    assert found is not None
    return f"http://127.0.0.1:{found[1]}"


def test_the_state_key_is_one_for_all(server: Server) -> None:
    keys = [path.read_text() for path in server.folder.glob("key-*")]
    assert len(keys) == 2 and len(set(keys)) == 1
    assert len(base64.b64decode(keys[0], validate=True)) == 32


def test_metrics_tell_of_all_processes(server: Server) -> None:
    def asked(text: str) -> float:
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "rfa_http_requests_total" and sample.labels["route"] == "/health"
        )

    before = asked(server.metrics())
    for _ in range(12):
        httpx.get(f"{server.url}/health", timeout=PATIENCE)
    text = server.metrics()
    check_valid(text)
    assert asked(text) == before + 12
    resident = samples(text, "rfa_process_resident_memory_bytes")
    assert len(resident) == 2 and all(10e6 < value < 10e9 for value in resident.values())
    assert sum(samples(text, "rfa_open_connections").values()) >= 1  # the one that asks


def test_no_request_waits_for_a_stopped_process(server: Server) -> None:
    stopped = server.children()[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        statuses = [httpx.get(f"{server.url}/health", timeout=PATIENCE).status_code for _ in range(40)]
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert statuses == [200] * 40


def test_probes_are_answered_when_every_place_is_taken_and_every_loop_hangs(server: Server) -> None:
    port, url = int(server.url.rpartition(":")[2]), health_url(server)
    crowd = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(40)]
    with httpx.Client(base_url=url, timeout=PATIENCE) as probe:
        for path in ("/health", "/ready"):
            assert probe.get(path).status_code == 200
        wait_until(lambda: engines_of(probe.get("/metrics").text) == {"0", "1"})
        children = server.children()
        for child in children:
            os.kill(child, signal.SIGSTOP)
        assert [probe.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
        for child in children:
            os.kill(child, signal.SIGCONT)
        for connection in crowd:
            connection.close()
        server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0


@pytest.mark.slow  # starts four processes and opens hundreds of connections
def test_a_server_gives_each_process_its_share(tmp_path: Path) -> None:
    def shares() -> list[int]:
        return [int(float(count)) for count in re.findall(r"rfa_open_connections\{[^}]*\} (\S+)", shared.metrics())]

    with serving(tmp_path, processes=4) as shared, ExitStack() as held:
        address = ("127.0.0.1", int(shared.url.rpartition(":")[2]))
        clients: list[socket.socket] = []

        def is_answered(client: socket.socket) -> bool:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return read_answer(client)[0] == 200

        def connect(count: int) -> None:
            for _ in range(count):
                clients.append(held.enter_context(socket.create_connection(address, PATIENCE)))
                assert is_answered(clients[-1])
            wait_until(lambda: sum(shares()) >= len(clients))

        connect(160)
        # A process that the machine let starve gets what follows until it has as many as the others.
        while len(clients) < 320 and 3 * min(shares()) < 2 * max(shares()):
            connect(40)
        found = shares()
        assert len(found) == 4 and 3 * min(found) >= 2 * max(found), found
        assert all(map(is_answered, clients))
        assert "serving health checks on port" not in shared.log  # without the setting
