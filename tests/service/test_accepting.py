"""Connections are spread evenly over the processes, and none is lost on the way from one to another."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.service.live import read_answer
from tests.service.processes import serving
from tests.waiting import PATIENCE, wait_until


def test_a_server_gives_each_process_its_share(tmp_path: Path) -> None:
    def shares() -> list[int]:
        return [int(float(count)) for count in re.findall(r"rfa_open_connections\{[^}]*\} (\S+)", server.metrics())]

    with serving(tmp_path, processes=4) as server, ExitStack() as held:
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
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


def test_no_request_waits_for_a_stopped_process(tmp_path: Path) -> None:
    with serving(tmp_path, processes=2) as server:
        url = server.url
        stopped = server.children()[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            statuses = [httpx.get(f"{url}/health", timeout=PATIENCE).status_code for _ in range(40)]
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert "serving health checks on port" not in server.log  # without the setting
    assert statuses == [200] * 40
