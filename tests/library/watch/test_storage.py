"""Stored states: in Redis, and in a storage that cannot be written for a while."""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import redis

from rfa.library.watch.config import StateOptions
from rfa.library.watch.http_server import HttpServer, Reply
from rfa.library.watch.storage import FileStorage, RedisStorage, StateError
from rfa.library.watch.store import Store, open_store
from rfa.library.watch.watch import Watch
from rfa.library.watch.wire import read_write_request
from tests.library.watch.fake_prometheus import FakePrometheus, fake_prometheus
from tests.library.watch.pushing import config_of
from tests.library.watch.running import START, Running, config_for
from tests.library.watch.test_sinks import Receiver
from tests.soak.faults.redis_process import RedisProcess
from tests.soak.faults.server import free_port
from tests.waiting import PATIENCE, wait_until

KEYS = (bytes(range(32)),)


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    with fake_prometheus() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process


def test_a_killed_watch_goes_on_from_redis(fake: FakePrometheus, server: RedisProcess) -> None:
    whole = Running(config_for(fake.url))
    whole.step(9)
    rows, now = [], START
    for steps in (1, 3, 5):  # the second begins from the states, the third from a journal too
        part = Running(config_for(fake.url), RedisStorage(server.url, "killed"), KEYS)
        part.now = now
        part.step(steps)
        now, rows = part.now, rows + part.rows
        part.abandon()
    assert rows == whole.rows
    with server.client() as client:
        stored = {key.decode() for key in client.keys("rfa:watch:killed*")}
        contents = b"".join(frame for key in stored if ":states:" in key for frame in client.lrange(key, 0, -1))
    assert len(stored) == 3 and b"host" not in contents  # unused keys are deleted, and labels are encrypted


def test_the_process_that_began_last_writes(fake: FakePrometheus, server: RedisProcess) -> None:
    first = Running(config_for(fake.url), RedisStorage(server.url, "two"), KEYS)
    first.step(2)
    second = Running(config_for(fake.url), RedisStorage(server.url, "two"), KEYS)
    second.now = first.now
    with pytest.raises(StateError, match="another process has started to use this storage"):
        first.step(1)
    second.step(1)
    assert [row["index"] for row in second.rows] == [31] * 3
    first.abandon()
    second.abandon()


def test_other_keys_or_none_are_refused(fake: FakePrometheus, server: RedisProcess) -> None:
    one = Running(config_for(fake.url), RedisStorage(server.url, "keys"), KEYS)
    one.step(1)
    one.abandon()
    with pytest.raises(StateError, match="check RFA_STATE_KEYS"):
        Running(config_for(fake.url), RedisStorage(server.url, "keys"), (bytes(range(1, 33)),))
    with pytest.raises(StateError, match="set RFA_STATE_KEYS"):
        open_store(StateOptions(redis=server.url), ())
    with pytest.raises(OSError, match="Redis rfa:watch:watch: "):
        open_store(StateOptions(redis="redis://127.0.0.1:9"), KEYS)


def test_a_frame_whose_reply_was_lost_is_stored_once(
    fake: FakePrometheus, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Running(config_for(fake.url), RedisStorage(server.url, "lost"), KEYS)
    one.step(1)
    execute = redis.client.Pipeline.execute
    lost = iter([True])

    def lose(pipeline: redis.client.Pipeline, *arguments: Any) -> Any:
        found = execute(pipeline, *arguments)
        if next(lost, False):
            raise redis.ConnectionError("the reply is lost")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(redis.client.Pipeline, "execute", lose)
        one.step(2)
    one.abandon()
    rows = one.rows + one.rows_after_restart(RedisStorage(server.url, "lost"), KEYS)
    assert [row["index"] for row in rows[::3]] == [30, 31, 32]


def test_rows_wait_while_redis_is_away(fake: FakePrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rfa.library.watch.storage._TIMEOUT_SECONDS", 0.3)
    whole = Running(config_for(fake.url))
    whole.step(6)
    with RedisProcess(tmp_path) as server:
        one = Running(config_for(fake.url), RedisStorage(server.url, "away"), KEYS)
        one.step(2)
        server._signal(signal.SIGSTOP)
        one.step(2)
        assert "rfa_watch_store_errors_total 2" in one.watch.metrics()
        server.thaw()
        one.step(1)
        one.abandon()
        assert one.rows + one.rows_after_restart(RedisStorage(server.url, "away"), KEYS) == whole.rows


def test_rows_wait_while_the_disk_is_full(
    fake: FakePrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Running(config_for(fake.url))
    whole.step(6)
    one = Running(config_for(fake.url), tmp_path / "state")
    one.step(2)
    journal = (tmp_path / "state.journal").stat().st_size

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("rfa.library.watch.storage.os.fsync", full)
        one.step(2)  # a part of a frame may be written
        one.watch.save()
    assert "rfa_watch_store_errors_total 3" in one.watch.metrics()
    assert not list(tmp_path.glob("*.new"))
    one.step(1)
    assert (tmp_path / "state.journal").stat().st_size > journal
    one.abandon()
    assert one.rows + one.rows_after_restart(tmp_path / "state") == whole.rows


def test_a_state_of_another_version_is_refused(
    fake: FakePrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Running(config_for(fake.url), tmp_path / "state")
    one.step(1)
    one.abandon()
    monkeypatch.setattr("rfa.library.watch.store.MAGIC", "rfa watch 3")
    with pytest.raises(StateError, match="another version"):
        Running(config_for(fake.url), FileStorage(tmp_path / "state"))


def test_requests_wait_in_redis_for_the_next_watch(server: RedisProcess) -> None:
    receiver = Receiver(["/write"], failures=0)

    def watch(url: str) -> Watch:
        return Watch(
            config_of("stdin]", f'[sink.remote_write]\nurl = "{url}/write"\n[state]\nredis = "{server.url}"'),
            Store(RedisStorage(server.url, "waits"), KEYS),
        )

    first = watch("http://127.0.0.1:9")
    for k in range(3):
        first.push_messages([json.dumps({"labels": {"__name__": "load"}, "t": START + k, "value": 1}).encode()])
    first.close()
    with server.client() as client:
        contents = b"".join(client.hvals("rfa:watch:waits:outbox:remote_write"))
        assert contents and b"load" not in contents  # sealed
        again = watch(receiver.url)
        wait_until(lambda: len(receiver.bodies) == 3)
        again.close()
        receiver.server.close()
        assert not client.exists("rfa:watch:waits:outbox:remote_write")
    assert [read_write_request(body)[0].times[0] for body in receiver.bodies] == [START, START + 1, START + 2]


@pytest.mark.slow  # starts two processes; the test above has the law without a kill
def test_a_kill_between_the_store_and_the_sending_loses_no_request(server: RedisProcess, tmp_path: Path) -> None:
    """The server of the sink is away while a watch is killed, and takes its requests from the next one."""
    port, path = free_port(), tmp_path / "watch.toml"
    path.write_text(
        f'[source.stdin]\n[sink.remote_write]\nurl = "http://127.0.0.1:{port}/write"\n'
        f'[state]\nredis = "{server.url}"\nname = "sends"\n[[query]]\nname = "q"\nexpr = "load"\n'
    )
    command = [sys.executable, "-m", "rfa", "watch", str(path)]
    env = {**os.environ, "RFA_STATE_KEYS": base64.b64encode(sha256(b"a key of this test").digest()).decode()}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as killed, server.client() as client:
        assert killed.stdin is not None
        for k in range(3):
            line = {"labels": {"__name__": "load"}, "t": START + k, "value": k}
            killed.stdin.write(json.dumps(line).encode() + b"\n")
            killed.stdin.flush()
            wait_until(lambda count=k + 1: killed.poll() is not None or journal(client) >= count)  # type: ignore[misc]
        killed.kill()
    contents = b"".join(client.hvals("rfa:watch:sends:outbox:remote_write"))
    assert contents and b"load" not in contents  # sealed
    bodies: list[bytes] = []

    def take(body: bytes, headers: Mapping[str, str]) -> Reply:
        bodies.append(body)
        return Reply(204)

    sink = HttpServer(f"127.0.0.1:{port}", {("POST", "/write"): take})
    subprocess.run(command, stdin=subprocess.DEVNULL, env=env, check=True, timeout=PATIENCE)
    sink.close()
    assert [read_write_request(body)[0].times[0] for body in bodies] == [START, START + 1, START + 2]
    assert not client.exists("rfa:watch:sends:outbox:remote_write")


def journal(client: redis.Redis) -> int:
    """Rows of that watch that are confirmed."""
    return sum(client.llen(key) for key in client.keys("rfa:watch:sends:journal:*"))
