"""States of a watch: restarts, crashes, reloads and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from psutil import Process

from rfa.library.watch.filters import QueryFilter, Samples
from rfa.library.watch.storage import FileStorage, StateError
from rfa.library.watch.store import Store
from tests.library.watch.fake_prometheus import FakePrometheus, wave
from tests.library.watch.running import START, STEP, Running, config_for


@pytest.mark.parametrize("keys", [(), (bytes(range(32)),)])
def test_a_killed_watch_goes_on_with_the_same_numbers(fake: FakePrometheus, tmp_path: Path, keys: tuple) -> None:
    fake.value = lambda name, t: wave(name, t) + (300 if name == "b" and t >= START + 5 * STEP else 0)
    whole = Running(config_for(fake.url))
    whole.step(9)
    rows = []
    now = START
    for steps in (1, 3, 5):  # the second ends between two files' writing, the third begins from a journal
        part = Running(config_for(fake.url), tmp_path / "state", keys)
        part.now = now
        part.step(steps)
        now = part.now
        part.abandon()
        rows += part.rows
    assert rows == whole.rows


@pytest.mark.parametrize("moment", ["before a step is confirmed", "after", "between the two files"])
def test_a_crash_at_each_moment_of_a_step(
    fake: FakePrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole = Running(config_for(fake.url))
    whole.step(6)
    crashed = Running(config_for(fake.url), tmp_path / "state")
    crashed.step(3)
    append, move = Store.append, FileStorage._move

    def crash(store: Store, *arguments: Any) -> None:
        if moment == "after":
            append(store, *arguments)
        raise KeyboardInterrupt

    def crash_at_journal(storage: FileStorage, path: Path) -> None:
        if path.suffix == ".journal":
            raise KeyboardInterrupt
        move(storage, path)

    with monkeypatch.context() as patched:
        if moment == "between the two files":
            patched.setattr(FileStorage, "_move", crash_at_journal)
            with pytest.raises(KeyboardInterrupt):
                crashed.watch.save()
        else:
            patched.setattr(Store, "append", crash)
            with pytest.raises(KeyboardInterrupt):
                crashed.step(1)
    crashed.abandon()
    again = Running(config_for(fake.url), tmp_path / "state")
    again.now = crashed.now
    again.step(6 - len(whole.rows) // 3 + 3)
    again.abandon()
    repeated = 3 if moment == "before a step is confirmed" else 0
    assert again.rows[: len(whole.rows) - len(crashed.rows) + repeated] == whole.rows[len(crashed.rows) - repeated :]


def test_a_state_file_that_was_altered_is_refused(fake: FakePrometheus, tmp_path: Path) -> None:
    state = tmp_path / "state"
    running = Running(config_for(fake.url), state)
    running.step(2)
    running.abandon()
    good = state.read_bytes()
    state.write_bytes(good[:-3] + b"abc")
    with pytest.raises(StateError, match="altered"):
        Running(config_for(fake.url), state)
    state.write_bytes(good)
    journal = tmp_path / "state.journal"
    journal.write_bytes(journal.read_bytes()[:-5])  # the last step was not confirmed
    again = Running(config_for(fake.url), state)
    again.now = running.now - STEP
    again.step(1)
    assert again.rows == running.rows[-3:]
    again.abandon()


def test_two_processes_do_not_share_a_state(fake: FakePrometheus, tmp_path: Path) -> None:
    running = Running(config_for(fake.url), tmp_path / "state")
    with pytest.raises(StateError, match="another process"):
        FileStorage(tmp_path / "state")
    running.watch.close()
    FileStorage(tmp_path / "state").close()


def test_another_expression_starts_anew(fake: FakePrometheus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake.hosts["load"] = ["x"]
    first = Running(config_for(fake.url), tmp_path / "state")
    first.step(2)
    first.watch.close()
    other = Running(config_for(fake.url, query='name = "q"\nexpr = "load"'), tmp_path / "state")
    assert "query q restarts from empty states" in caplog.text
    other.now = first.now
    other.step(1)
    assert not other.rows and other.watch.filters["q"].labels  # history only
    other.abandon()


def test_reload_keeps_states_and_an_invalid_file_changes_nothing(fake: FakePrometheus, tmp_path: Path) -> None:
    running = Running(config_for(fake.url))
    running.step(2)
    path = tmp_path / "watch.toml"
    text = f'step = "1m"\ndelay = 0\n[source.prometheus]\nurl = "{fake.url}"\n[[query]]\nname = "q"\nexpr = "up"\n'
    path.write_text(text + "alarm = {}\n")
    assert not running.watch.reload(path)
    before = running.watch.filters["q"]
    path.write_text(text + 'alarm = {rate = "1/hour"}\n')
    sink = running.watch.sinks[-1]
    assert running.watch.reload(path) and running.watch.filters["q"] is not before
    running.watch.sinks.append(sink)
    running.step(1)
    assert [row["index"] for row in running.rows[-3:]] == [31] * 3
    assert 'rfa_watch_reloads_total{result="failure"} 1' in running.watch.metrics()


def test_reload_names_what_needs_a_restart(
    fake: FakePrometheus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    running = Running(config_for(fake.url), state)
    path = tmp_path / "watch.toml"
    query = '[[query]]\nname = "q"\nexpr = "up"\n'
    new = '[sink.metrics]\nlisten = "127.0.0.1:1"\n[state]\nfile = "other"\n'
    path.write_text(f'step = "1m"\n[source.prometheus]\nurl = "{fake.url}"\n{new}{query}')
    assert running.watch.reload(path) and running.watch.config.state == running.config.state
    assert "changes of sink.metrics, state take effect after a restart" in caplog.text
    path.write_text(f'step = "1m"\n[source.stdin]\n{query}')
    assert not running.watch.reload(path)
    assert "source: a change from prometheus to stdin requires a restart" in caplog.text
    running.abandon()


def test_states_at_rest_are_small_and_bounded(fake: FakePrometheus) -> None:
    fake.hosts["up"] = [f"h{k}" for k in range(600)]  # more than are unpacked at a time
    running = Running(config_for(fake.url, history="10m"))
    running.step(2)
    one = running.watch.filters["q"]
    assert len(one.labels) == 600 and 500 < one.state_bytes / 600 < 2_500
    one = QueryFilter(config_for(fake.url).query[0], STEP, is_counter=False)
    draw = np.random.default_rng(1)
    labels = (("host", "a"),)
    for day in range(3):
        times = START + 86_400.0 * day + STEP * np.arange(1440)
        for _ in one.apply(one.admit([Samples(labels, times, draw.normal(size=1440))])):
            pass
    assert 10_000 < one.state_bytes < 47_000


def test_memory_is_that_of_the_series_not_of_their_limit(fake: FakePrometheus) -> None:
    query = config_for(fake.url, query='name = "q"\nexpr = "up"\nseries_limit = 1000000').query[0]
    samples = [Samples((("host", "a"),), np.array([START]), np.array([1.0]))]
    one = QueryFilter(query, STEP, is_counter=False)
    one.apply(one.admit(samples))  # what the process needs once, such as compiled kernels
    before = Process().memory_info().rss
    many = [QueryFilter(query, STEP, is_counter=False) for _ in range(20)]
    for one in many:
        assert [len(scored.slots) for scored in one.apply(one.admit(samples))] == [1]
    assert Process().memory_info().rss - before < 64 << 20
