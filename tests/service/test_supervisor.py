"""A server of several processes: it starts as a whole or not at all, survives its parts, and ends in order."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from service.process.address import reserve, share
from service.process.handover import read_settings, with_state_key, write_settings
from service.settings import Settings
from service.state.keys import ephemeral_key
from tests.service.live import LONG_SECONDS, wait_until
from tests.service.processes import ROOT, is_alive, serving, started

SLOW = {"inputs": "slow |", "parameters": {"max_new_tokens": 40}, "stream": True}


def test_all_processes_serve_and_end_with_the_signal(tmp_path: Path) -> None:
    with serving(tmp_path, processes=3) as server:
        assert "recite (lm), mean (filter)" in server.log and "with 3 processes" in server.log
        children = server.children()
        assert len(children) == 3
        assert server.engines() == {"0", "1", "2"}
        assert server.end() == 0
        assert not any(map(is_alive, children))
        assert server.log.count(" rfa.supervisor: ") == 1 and " ERROR " not in server.log, server.log


def test_connections_are_spread_over_the_processes() -> None:
    holder, address = reserve("127.0.0.1", 0)
    with holder:
        listeners = [share(address) for _ in range(4)]
        for listener in listeners:
            listener.listen(500)
            listener.setblocking(False)
        clients = [socket.create_connection((address.host, address.port), LONG_SECONDS) for _ in range(200)]
        taken: Counter[int] = Counter()
        accepted = []
        for index, listener in enumerate(listeners):
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except BlockingIOError:
                    break
                taken[index] += 1
        for each in (*clients, *accepted, *listeners):
            each.close()
    assert taken.total() == 200
    assert min(taken[index] for index in range(4)) >= 15  # 50 each on average; fewer than 15 is less likely than 1e-9


def test_a_taken_port_is_refused_whoever_has_it() -> None:
    holder, address = reserve("127.0.0.1", 0)
    with holder:
        with pytest.raises(OSError, match="Address already in use"):
            reserve("127.0.0.1", address.port)
        with share(address) as listener:
            listener.listen()
            with pytest.raises(OSError, match="Address already in use"):
                reserve("127.0.0.1", address.port)
    with socket.create_server(("127.0.0.1", address.port)), pytest.raises(OSError, match="in use"):
        reserve("127.0.0.1", address.port)
    reserve("127.0.0.1", address.port)[0].close()


def test_a_killed_process_is_replaced_while_the_others_serve(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        first, second = server.children()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "SIGKILL" in server.log)
        with httpx.Client(base_url=server.url, timeout=LONG_SECONDS) as client:
            assert client.get("/ready").status_code == 200
        wait_until(lambda: server.engines() == {"0", "1"})
        assert second in server.children() and first not in server.children()
        with httpx.Client(base_url=server.url, timeout=LONG_SECONDS) as client:
            text = client.get("/metrics").text
        restarts = [line for line in text.splitlines() if line.startswith("rfa_process_restarts_total")]
        assert sorted(line.split()[1] for line in restarts) == ["0.0", "1.0"]
        assert server.end() == 0


def test_a_process_whose_event_loop_hangs_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, stall_seconds=1) as server:
        stopped = server.children()[0]
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: f"(pid {stopped}) is wedged" in server.log)
        wait_until(lambda: not is_alive(stopped) and len(server.children()) == 2)
        assert server.end() == 0


def test_a_process_whose_engine_hangs_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, processes=1, stall_seconds=1) as server:
        hung = server.children()[0]
        with httpx.Client(base_url=server.url, timeout=LONG_SECONDS) as client, pytest.raises(httpx.TransportError):
            client.post("/generate", json={"inputs": "hang |"})
        assert f"(pid {hung}) is wedged" in server.log
        wait_until(lambda: server.children() not in ([], [hung]) and server.engines() == {"0"})
        assert server.end() == 0


def test_processes_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        children = server.children()
        # One of them can do nothing about it itself.
        os.kill(children[0], signal.SIGSTOP)
        server.process.kill()
        wait_until(lambda: not any(map(is_alive, children)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_under_way_ends_as_it_should(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as server, httpx.Client(base_url=server.url, timeout=LONG_SECONDS) as client:
        with client.stream("POST", "/generate", json=SLOW) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(number)
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert events[-1]["details"]["generated_tokens"] == 40
        assert server.process.wait(LONG_SECONDS) == 0
        assert "Traceback" not in server.log


def test_what_does_not_end_in_the_grace_time_is_told_so(tmp_path: Path) -> None:
    with (
        serving(tmp_path, shutdown_grace_seconds=0) as server,
        httpx.Client(base_url=server.url, timeout=LONG_SECONDS) as client,
    ):
        long = {**SLOW, "parameters": {"max_new_tokens": 1000}}
        with client.stream("POST", "/generate", json=long) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert "error" in events[-1] or events[-1]["details"]["generated_tokens"] < 1000
        assert server.process.wait(LONG_SECONDS) == 0


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, shutdown_grace_seconds=3600) as server:
        children = server.children()

        def hang() -> None:
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{server.url}/generate", json={"inputs": "hang |"}, timeout=LONG_SECONDS)

        client = threading.Thread(target=hang)
        client.start()
        wait_until(lambda: running_requests(metrics(server.url)) == 1)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: sum(map(is_alive, children)) == 1)  # the idle one has drained
        assert server.end(signal.SIGTERM) == 128 + signal.SIGTERM
        client.join()
        assert not any(map(is_alive, children))


def metrics(url: str) -> str:
    return httpx.get(f"{url}/metrics", timeout=LONG_SECONDS).text


def running_requests(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith("rfa_num_requests_running{")]
    return sum(float(line.split()[1]) for line in lines)


def test_the_state_key_is_one_for_all_and_the_operators_if_there_is_one(tmp_path: Path) -> None:
    with serving(tmp_path):
        keys = [path.read_text() for path in tmp_path.glob("key-*")]
    assert len(keys) == 2 and len(set(keys)) == 1
    assert len(base64.b64decode(keys[0], validate=True)) == 32
    given = Settings(bundles=(), state_keys=SecretStr(ephemeral_key()))
    assert with_state_key(given) is given
    assert with_state_key(Settings(bundles=())).state_keys != with_state_key(Settings(bundles=())).state_keys


def test_settings_arrive_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(
        bundles=(tmp_path / "a", tmp_path / "b"), api_keys=SecretStr("one,two"), port=1234, stall_seconds=0.25
    )
    monkeypatch.setenv("RFA_MAX_RUNNING", "7")
    monkeypatch.setenv("RFA_STATE_KEYS", "other")
    arrived = read_settings(json.loads(json.dumps(write_settings(given))))
    assert arrived == given


def test_bundles_are_loaded_anew_by_one_process_after_another(tmp_path: Path) -> None:
    with serving(tmp_path, processes=3) as server:
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.log.count("serves its bundles as they are now") == 3)
        spans = sorted([float(x) for x in path.read_text().split()] for path in tmp_path.glob("reload-*"))
        assert len(spans) == 3
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        (tmp_path / "refuse").touch()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "keeps its bundles: the new bundle is broken" in server.log)
        assert len(server.engines()) == 3
        assert server.end() == 0
        assert server.log.count("keeps its bundles") == 1


def test_a_process_that_never_starts_ends_the_server(tmp_path: Path) -> None:
    with started(tmp_path, program=("-c", "raise SystemExit(3)"), processes=2) as server:
        assert server.process.wait(LONG_SECONDS) == 1
        assert "no server process stays up: a server process ended with exit code 3" in server.log


def run_rfa(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RFA_PROCESSES": "2", **settings}
    command = [sys.executable, "-m", "cli", "serve", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


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


def test_a_taken_port_is_one_clear_line(linear_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_rfa("--port", str(port), "--bundle", str(linear_bundle))
    assert done.returncode == 1
    assert done.stderr == f"rfa: 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(("name", "value"), [("RFA_SESSIONS", "memory"), ("RFA_STATE_KEYS", "c2hvcnQ=")])
def test_settings_that_only_the_processes_can_judge_are_one_clear_line(
    linear_bundle: Path, name: str, value: str
) -> None:
    done = run_rfa("--port", "0", "--bundle", str(linear_bundle), **{name: value})
    assert done.returncode == 1
    assert done.stderr.startswith("rfa: ") and done.stderr.count("\n") == 1, done.stderr
    assert name.removeprefix("RFA_").lower() in done.stderr.replace(" ", "_") and value not in done.stderr.split()
