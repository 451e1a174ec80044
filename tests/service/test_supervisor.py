"""A server of several processes: it survives its parts, obeys signals, and ends in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from rfa.service.process.managed_child import Child, StartedProcess
from rfa.service.process.snapshot import Snapshot
from tests.service.processes import Server, is_alive, serving
from tests.waiting import PATIENCE, wait_until

NO_BUNDLES = Snapshot(1, Path(), (), "", 0)
SLOW = {"inputs": "slow |", "parameters": {"max_new_tokens": 40}, "stream": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of two processes. It must serve with both after each test."""
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server
        assert server.end() == 0


def test_a_killed_process_is_replaced_while_the_others_serve(server: Server) -> None:
    first, second = server.children()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: "SIGKILL" in server.log)
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        assert client.get("/ready").status_code == 200
    wait_until(lambda: server.engines() == {"0", "1"})
    assert second in server.children() and first not in server.children()
    restarts = [line for line in server.metrics().splitlines() if line.startswith("rfa_process_restarts_total")]
    assert sorted(line.split()[1] for line in restarts) == ["0.0", "1.0"]


def test_a_process_whose_engine_hangs_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, processes=1, stall_seconds=1) as server:
        hung = server.children()[0]
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client, pytest.raises(httpx.TransportError):
            client.post("/generate", json={"inputs": "hang |"})
        wait_until(lambda: f"(pid {hung}) does not respond" in server.log)
        wait_until(lambda: server.children() not in ([], [hung]) and server.engines() == {"0"})
        assert server.end() == 0


def test_processes_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        children = server.children()
        # One of them can do nothing about it itself.
        os.kill(children[0], signal.SIGSTOP)
        server.process.kill()
        wait_until(lambda: not any(map(is_alive, children)))


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stream_under_way_ends_as_it_should(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        with client.stream("POST", "/generate", json=SLOW) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(number)
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert events[-1]["details"]["generated_tokens"] == 40
        assert server.process.wait(PATIENCE) == 0
        assert "Traceback" not in server.log
        assert f"{number.name}: completing running requests for up to 60 s" in server.log
        assert "shutdown complete: every process has exited" in server.log


def test_what_does_not_end_in_the_grace_time_is_reported_so(tmp_path: Path) -> None:
    with (
        serving(tmp_path, shutdown_grace_seconds=0) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        long = {**SLOW, "parameters": {"max_new_tokens": 1000}}
        with client.stream("POST", "/generate", json=long) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        assert "error" in events[-1] or events[-1]["details"]["generated_tokens"] < 1000
        assert server.process.wait(PATIENCE) == 0


def test_a_second_signal_ends_everything_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, shutdown_grace_seconds=3600) as server:
        children = server.children()

        def hang() -> None:
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{server.url}/generate", json={"inputs": "hang |"}, timeout=PATIENCE)

        client = threading.Thread(target=hang)
        client.start()
        wait_until(lambda: running_requests(server.metrics()) == 1)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: sum(map(is_alive, children)) == 1)  # the idle one has drained
        wait_until(lambda: is_refused(server.url))  # though the other one still has the listener
        assert server.end(signal.SIGTERM) == 128 + signal.SIGTERM
        assert "second stop signal, SIGTERM: killing all processes" in server.log and "drained;" not in server.log
        client.join()
        assert not any(map(is_alive, children))


def running_requests(text: str) -> float:
    lines = [line for line in text.splitlines() if line.startswith("rfa_num_requests_running{")]
    return sum(float(line.split()[1]) for line in lines)


def test_bundles_are_loaded_anew_by_one_process_after_another_and_served_by_all_at_once(server: Server) -> None:
    first = version(server)
    assert f"serving recite (lm, onnx), mean (filter), version {first}, on " in server.log
    before, recorded = len(server.log), set(server.folder.glob("load-*"))
    server.put("b")
    seen, is_over = [], threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            seen.append(texts(server))

    asking = threading.Thread(target=ask)
    asking.start()
    server.reload()
    is_over.set()
    asking.join()
    assert seen == sorted(seen)  # nobody who asks after an answer of the new bundle gets the old one
    second = version(server)
    assert second != first
    line = f"reload finished: all 2 processes now serve version {second} instead of version {first}"
    assert line in server.log
    spans = sorted(
        [float(x) for x in path.read_text().split()] for path in set(server.folder.glob("load-*")) - recorded
    )
    assert len(spans) == 2 and all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert {texts(server) for _ in range(6)} == {"bbb"}
    text = server.metrics()
    for engine in "01":
        assert f'rfa_bundle_version_info{{engine="{engine}",version="{second}"}} 1.0' in text
        assert f'rfa_reloads_total{{engine="{engine}",outcome="committed"}} 1.0' in text
        assert f'rfa_reloads_total{{engine="{engine}",outcome="refused"}} 0.0' in text
    assert last_reload(text, "committed") > 1.7e9 and last_reload(text, "refused") == 0
    assert " ERROR " not in server.log[before:]


@pytest.mark.parametrize(
    ("misbehaviour", "outcome", "reason"),
    [
        ("refuse", "refused", "the new bundle is broken the new bundle is broken"),
        pytest.param("die", "aborted", "exited", marks=pytest.mark.slow),
    ],
)
def test_a_bundle_that_one_process_does_not_load_is_served_by_none(
    tmp_path: Path, misbehaviour: str, outcome: str, reason: str
) -> None:
    with serving(tmp_path, processes=3) as server:
        first, children = version(server), server.children()
        last = max(children, key=lambda pid: place(server, pid))  # the others have prepared when it is asked
        server.put("b")
        (tmp_path / f"{misbehaviour}-{last}").touch()
        server.reload()
        (line,) = (line for line in server.log.splitlines() if "all processes still serve" in line)
        assert outcome in line and reason in line and f"all processes still serve version {first}" in line
        assert len(line) < 2_000
        wait_until(lambda: len(server.engines()) == 3)
        # Also the process that was started since has what was served then, not what lies on the disk.
        assert {texts(server) for _ in range(12)} == {"aaa"} and versions(server) == {first}
        assert (last in server.children()) == (misbehaviour == "refuse")
        assert last_reload(server.metrics(), outcome) > 1.7e9
        server.reload()
        assert {texts(server) for _ in range(6)} == {"bbb"} and first not in versions(server)
        assert server.end() == 0


def test_files_that_change_reach_no_process_without_a_reload(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        first = version(server)
        server.put("b")
        for pid in server.children():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: pid not in server.children() and len(server.children()) == 2)  # type: ignore[misc]
            wait_until(lambda: server.engines() == {"0", "1"})
        assert {texts(server) for _ in range(8)} == {"aaa"} and versions(server) == {first}
        assert server.end() == 0
    assert not list(tmp_path.glob("rfa-*")), "the copies are left"


def test_a_process_that_says_what_is_no_message_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        babbler = server.children()[0]
        (tmp_path / f"babble-{babbler}").touch()
        wait_until(lambda: f"(pid {babbler}) sent an invalid message (" in server.log)
        wait_until(lambda: babbler not in server.children() and server.engines() == {"0", "1"})
        assert server.end() == 0
        assert "Traceback" not in server.log


def is_refused(url: str) -> bool:
    """Whether no process takes a connection any more."""
    try:
        httpx.get(f"{url}/health", timeout=PATIENCE)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        pass
    return False


def version(server: Server) -> str:
    return str(httpx.get(f"{server.url}/info", timeout=PATIENCE).json()["bundle_version"])


def versions(server: Server) -> set[str]:
    """As every process tells."""
    return set(re.findall(r'rfa_bundle_version_info\{[^}]*version="(\w+)"\} 1.0', server.metrics()))


def texts(server: Server) -> str:
    body = {"inputs": "|", "parameters": {"max_new_tokens": 3}}
    return str(httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE).json()["generated_text"])


def last_reload(text: str, outcome: str) -> float:
    found = re.search(rf'rfa_last_reload_timestamp_seconds\{{[^}}]*outcome="{outcome}"\}} (\S+)', text)
    assert found is not None
    return float(found[1])


def place(server: Server, pid: int) -> int:
    """Processes are started in the order of their places."""
    return server.children().index(pid) if pid in server.children() else -1


def test_a_signal_to_a_process_that_is_ending_leaves_its_exit_code_alone() -> None:
    async def end_under_signals() -> list[int]:
        codes = []
        for _ in range(20):
            child = await Child.start(await StartedProcess.start(["/bin/sh", "-c", "exit 3"]), 0, NO_BUNDLES, {})
            while child.process.returncode is None:
                child.signal(signal.SIGCONT)
                await asyncio.sleep(0)
            codes.append(child.process.returncode)
            child.channel.close()
        return codes

    assert asyncio.run(end_under_signals()) == [3] * 20
