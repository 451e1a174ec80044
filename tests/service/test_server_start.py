"""A server starts as a whole or not at all: its address, its settings and its keys."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from rfa.runtime.state.keys import ephemeral_key
from rfa.service.process.address import listen, reserve
from rfa.service.process.settings_json import read_settings, with_state_key, write_settings
from rfa.service.settings import Settings
from tests.service.processes import ROOT, SERVE, started
from tests.waiting import PATIENCE


def test_a_taken_port_is_refused_whoever_has_it() -> None:
    holder, address = reserve("127.0.0.1", 0)
    with holder:
        with pytest.raises(OSError, match="Address already in use"):
            reserve("127.0.0.1", address.port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.host, address.port), PATIENCE)
        listen(holder)
        with pytest.raises(OSError, match="Address already in use"):
            reserve("127.0.0.1", address.port)
        with socket.socket() as sharing:  # Linux lets processes of one user share a port that is open to sharing
            sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError, match="Address already in use"):
                sharing.bind((address.host, address.port))
    with socket.create_server(("127.0.0.1", address.port)), pytest.raises(OSError, match="in use"):
        reserve("127.0.0.1", address.port)
    reserve("127.0.0.1", address.port)[0].close()


def test_a_port_is_free_again_past_connections_of_the_server_before() -> None:
    holder, address = reserve("127.0.0.1", 0)
    listen(holder)
    clients = [socket.create_connection((address.host, address.port), PATIENCE) for _ in range(3)]
    accepted = [holder.accept()[0] for _ in clients]
    for connection in accepted:  # who closes first, waits
        connection.close()
    holder.close()
    for client in clients:
        assert client.recv(1) == b""
        client.close()
    again, _ = reserve("127.0.0.1", address.port)
    with again:
        listen(again)
        socket.create_connection((address.host, address.port), PATIENCE).close()


def test_a_state_key_is_the_operators_if_there_is_one() -> None:
    given = Settings(bundles=(), state_keys=SecretStr(ephemeral_key()))
    assert with_state_key(given) is given
    one, other = (with_state_key(Settings(bundles=())).state.state_keys for _ in range(2))
    assert one != other


def test_settings_arrive_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(
        bundles=(tmp_path / "a", tmp_path / "b"), api_keys=SecretStr("one,two"), port=1234, stall_seconds=0.25
    )
    monkeypatch.setenv("RFA_MAX_RUNNING", "7")
    monkeypatch.setenv("RFA_STATE_KEYS", "other")
    arrived = read_settings(json.loads(json.dumps(write_settings(given))))
    assert arrived == given


def test_a_process_that_never_starts_ends_the_server(tmp_path: Path) -> None:
    at_once = "from rfa.service.process import supervisor; supervisor.FIRST_PAUSE_SECONDS = 0.01\n"
    with started(tmp_path, ("-c", "raise SystemExit(3)"), serve=at_once + SERVE, processes=2) as server:
        assert server.process.wait(PATIENCE) == 1
        assert "server processes exited repeatedly: a server process exited with exit code 3" in server.log


def run_rfa(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RFA_PROCESSES": "2", **settings}
    command = [sys.executable, "-m", "rfa", "serve", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def test_a_bad_bundle_is_one_clear_line(linear_bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "linear"
    broken.mkdir()
    for file in linear_bundle.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    golden = json.loads((broken / "golden.json").read_text())
    (broken / "golden.json").write_text(json.dumps(golden) + " ")
    done = run_rfa("--port", "0", "--bundle", str(broken))
    assert done.returncode == 1
    assert done.stderr.startswith("rfa: ") and "golden.json" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow  # starts a server and its processes; a bad bundle is one clear line by the same way
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RFA_SESSIONS", "memory"),
        ("RFA_STATE_KEYS", "c2hvcnQ="),
        ("RFA_MAX_MEMORY", "1000000"),
    ],
)
def test_settings_that_only_the_processes_can_judge_are_one_clear_line(
    linear_bundle: Path, name: str, value: str
) -> None:
    done = run_rfa("--port", "0", "--bundle", str(linear_bundle), **{name: value})
    assert done.returncode == 1
    assert done.stderr.startswith("rfa: ") and done.stderr.count("\n") == 1, done.stderr
    assert (
        name.removeprefix("RFA_").lower() in done.stderr.lower().replace(" ", "_") and value not in done.stderr.split()
    )
