"""A watch of a Prometheus: rows, series that come and go, counters, restarts, and its metrics."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from psutil import Process

import rfa
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.filters import QueryFilter, Samples
from rfa.library.watch.http_server import Reply
from rfa.library.watch.prometheus import SourceError
from rfa.library.watch.storage import FileStorage, StateError
from rfa.library.watch.store import Store
from tests.library.watch.fake_prometheus import FakePrometheus, fake_prometheus, wave
from tests.library.watch.running import START, STEP, Running, config_for


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    with fake_prometheus() as found:
        yield found


def test_rows_are_those_of_a_stream(fake: FakePrometheus) -> None:
    running = Running(config_for(fake.url, query='name = "q"\nexpr = "up"\nhorizon = ["5m"]'))
    running.step(5)
    stream = rfa.Stream(model="auto", levels=(0.9,), horizon=(STEP, 300.0), alarm="1/day")
    steps = {}
    for k in range(-29, 5):
        t = START + k * STEP
        t -= t % STEP
        steps[t] = stream.update(t, wave("a", t))
    rows = [row for row in running.rows if row["labels"]["host"] == "a"]
    assert [row["index"] for row in rows] == [30, 31, 32, 33]
    for row in rows:
        step, before = steps[row["t"]], steps[row["t"] - STEP].forecast[0]
        assert row["score"] == step.anomaly and row["alarm"] == step.alarm
        assert row["mean"] == row["value"] - step.innovation[0]
        low, high = before.interval["0.9"][0]
        assert row["upper"] - row["lower"] == pytest.approx(high - low)
        ahead = step.forecast[1]
        assert row["forecast"][0] == {
            "horizon": 300.0, "mean": ahead.mean[0], "lower": ahead.interval["0.9"][0][0],
            "upper": ahead.interval["0.9"][0][1],
        }  # fmt: skip


def test_a_spike_is_an_alarm_and_begins_an_incident(fake: FakePrometheus) -> None:
    fake.value = lambda name, t: wave(name, t) + (500 if name == "b" and t >= START + 4 * STEP else 0)
    query = 'name = "q"\nexpr = "up"\nalarm = {rate = "1/hour"}'
    running = Running(config_for(fake.url, query=query, history="12h"))
    running.step(8)
    alarms = [row for row in running.rows if row["alarm"]]
    assert {row["labels"]["host"] for row in alarms} == {"b"}
    assert alarms[0]["incident"] and alarms[0]["value"] > alarms[0]["upper"] and alarms[0]["probability"] < 0.01
    text = running.watch.metrics()
    assert re.search(r'^rfa_incident\{query="q",metric="up",host="b"\} 1\.0$', text, re.MULTILINE)
    assert re.search(r'^rfa_incident\{query="q",metric="up",host="[ac]"\} 0\.0$', text, re.MULTILINE)
    assert re.search(r'^rfa_alarms_total\{query="q",metric="up",host="b"\} [1-9]', text, re.MULTILINE)


def test_new_series_start_at_once_and_gone_ones_expire(fake: FakePrometheus) -> None:
    running = Running(config_for(fake.url, expire="3m"))
    running.step(2)
    fake.hosts["up"] = ["b", "c", "new"]
    running.step(1)
    assert {row["labels"]["host"] for row in running.rows[-3:]} == {"b", "c", "new"}
    assert next(row for row in running.rows if row["labels"]["host"] == "new")["index"] == 0
    running.step(4)
    assert 'host="a"' not in running.watch.metrics() and 'rfa_watch_series{query="q"} 3' in running.watch.metrics()


def test_series_beyond_the_limit_are_refused_and_counted(fake: FakePrometheus) -> None:
    running = Running(config_for(fake.url, query='name = "q"\nexpr = "up"\nseries_limit = 2'))
    running.step(2)
    assert {row["labels"]["host"] for row in running.rows} == {"a", "b"}
    assert re.search(r'rfa_watch_dropped_total\{query="q",reason="limit"\} [1-9]', running.watch.metrics())


@pytest.mark.parametrize("kind", ["auto", "counter"])
def test_counters_become_rates_and_resets_are_no_jumps(fake: FakePrometheus, kind: str) -> None:
    fake.types["up"] = "counter"
    reset = START + 2 * STEP - (START + 2 * STEP) % STEP
    fake.value = lambda name, t: 5 * (t - (reset - 30 if t >= reset else 1_600_000_000))
    running = Running(config_for(fake.url, query=f'name = "q"\nexpr = "up"\ntype = "{kind}"'))
    running.step(5)
    values = [(row["t"], row["value"]) for row in running.rows if row["labels"]["host"] == "a"]
    assert [value for t, value in values if t != reset] == [5.0] * 3
    assert dict(values)[reset] == 5 * 30 / STEP  # what it has counted since the reset


@pytest.mark.parametrize(
    ("metric", "known", "is_counter"),
    [
        ("jobs_total", "counter", True),
        ("jobs", "counter", True),
        ("jobs_total", "gauge", False),
        ("jobs_total", None, True),  # OpenMetrics: the metadata are those of "jobs"
        ("wait_seconds_count", None, True),  # of the histogram "wait_seconds"
        ("jobs_total", "unknown", True),
        ("jobs", None, False),
    ],
)
def test_the_type_is_that_of_the_server_or_of_the_name(
    fake: FakePrometheus, metric: str, known: str | None, is_counter: bool
) -> None:
    fake.hosts = {metric: ["a"]}
    fake.types = {} if known is None else {metric: known}
    running = Running(config_for(fake.url, query=f'name = "q"\nexpr = "{metric}"'))
    assert running.watch.filters["q"].is_counter == is_counter


def test_a_type_is_not_guessed_while_the_server_is_away(fake: FakePrometheus, tmp_path: Path) -> None:
    fake.types["up"] = "counter"
    running = Running(config_for(fake.url))
    running.step(2)
    path = tmp_path / "watch.toml"
    path.write_text(f'step = "1m"\n[source.prometheus]\nurl = "{fake.url}"\n[[query]]\nname = "q"\nexpr = "up"\n')
    fake.is_down = True
    with pytest.raises(SourceError, match=r"query 'q': its type is unknown, .* 503: down; set type = "):
        Running(config_for(fake.url))
    assert not running.watch.reload(path)  # it would lose the states
    Running(config_for(fake.url, query='name = "q"\nexpr = "up"\ntype = "counter"'))
    fake.is_down = False
    running.step(1)
    assert [row["index"] for row in running.rows[-3:]] == [30] * 3


def test_missing_and_huge_values_are_missing(fake: FakePrometheus) -> None:
    fake.value = lambda name, t: (
        {"a": float("nan"), "b": float("inf"), "c": 1e300}[name] if t > START else wave(name, t)
    )
    running = Running(config_for(fake.url))
    running.step(3)
    last = running.rows[-3:]
    assert all(row["value"] is None and row["score"] is None and row["mean"] is not None for row in last)


def test_steps_that_were_missed_are_read_later(fake: FakePrometheus) -> None:
    running = Running(config_for(fake.url))
    running.step(2)
    fake.is_down = True
    running.step(3)
    assert 'rfa_watch_source_errors_total{query="q"} 3' in running.watch.metrics()
    fake.is_down = False
    running.step(1)
    times = [row["t"] for row in running.rows if row["labels"]["host"] == "a"]
    assert np.diff(times).tolist() == [STEP] * 4


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
    assert "source: prometheus can be replaced by stdin only with a restart" in caplog.text
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


GARBAGE = [
    "null", '"text"', "[]", '{"resultType": "matrix"}', '{"resultType": "matrix", "result": 5}',
    '{"resultType": "matrix", "result": [{"values": [[1, "2"]]}]}',
    '{"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "x"]]}]}',
    '{"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "2", 3]]}]}',
    '{"resultType": "matrix", "result": [{"metric": [], "values": []}]}',
]  # fmt: skip


@pytest.mark.parametrize("data", [*GARBAGE, None])
def test_garbage_of_a_source_is_an_error_and_the_watch_goes_on(
    fake: FakePrometheus, monkeypatch: pytest.MonkeyPatch, data: str | None
) -> None:
    running = Running(config_for(fake.url))
    running.step(2)
    body = b"\xff\x00" if data is None else f'{{"status": "success", "data": {data}}}'.encode()
    with monkeypatch.context() as patched:
        patched.setattr(fake, "answer", lambda path: Reply(200, body))
        running.step(1)
    assert 'rfa_watch_source_errors_total{query="q"} 1' in running.watch.metrics()
    running.step(1)
    assert [row["index"] for row in running.rows] == [30] * 3 + [31] * 3 + [32] * 3


def test_times_that_were_not_asked_for_are_dropped(fake: FakePrometheus) -> None:
    running = Running(config_for(fake.url))
    running.step(2)
    series = fake._series

    def later(given: Mapping[str, str]) -> Iterator[Any]:
        one: Any
        for one in series(given):
            yield {**one, "values": [*one["values"], [1e12, "1"], ["nan", "1"]]}

    fake._series = later  # type: ignore[method-assign]
    running.step(2)
    assert [row["index"] for row in running.rows] == [30] * 3 + [31] * 3 + [32] * 3
    assert running.watch.filters["q"].dropped["future"] == 12


def test_a_clock_that_was_set_back_counts_nothing_twice(fake: FakePrometheus, caplog: pytest.LogCaptureFixture) -> None:
    running = Running(config_for(fake.url))
    running.step(2)
    present = running.now
    fake.value = lambda name, t: wave(name, t) if t <= present + STEP else None
    running.now = present + 1800  # within `expire`
    running.step(1)
    running.now = present
    fake.value = wave
    running.step(3)
    times = [row["t"] for row in running.rows if row["labels"]["host"] == "a"]
    assert np.diff(times).tolist() == [STEP] * (len(times) - 1) and len(times) == 4
    assert "the system clock was set back by 1800 s" in caplog.text


@pytest.mark.parametrize(("is_victoria", "step", "delay"), [(False, "15s", 5), (True, "15s", 35), (True, "1m", 5)])
def test_a_step_is_read_once_the_server_has_it(fake: FakePrometheus, is_victoria: bool, step: str, delay: int) -> None:
    """VictoriaMetrics hides the last 30 s where the step is short."""
    fake.is_victoria = is_victoria
    source = f'[source.prometheus]\nurl = "{fake.url}"\n'
    config = parse_config(f'step = "{step}"\nhistory = "30m"\n{source}[[query]]\nname = "q"\nexpr = "up"\n', "test")
    running = Running(config)
    fake.is_down = True
    running.step(1)
    assert not fake.asked and running.watch.errors == {"q": 1}
    fake.is_down = False
    running.step(2)
    end = running.now - STEP - delay
    assert fake.asked[-1][1] == end - end % config.step


def test_history_is_not_exposed(fake: FakePrometheus) -> None:
    running = Running(config_for(fake.url))
    running.watch.pull()
    assert running.watch.filters["q"].observations == 90 and "rfa_mean{" not in running.watch.metrics()
    running.now += STEP
    running.watch.pull()
    assert running.watch.metrics().count("rfa_mean{") == 3


def test_a_watch_stops_within_a_history(fake: FakePrometheus, tmp_path: Path) -> None:
    first, stop = Running(config_for(fake.url, history="10h"), tmp_path / "state"), threading.Event()
    series = fake._series

    def stopping(given: Mapping[str, str]) -> Iterator[Any]:
        stop.set()
        return series(given)

    fake._series = stopping  # type: ignore[method-assign]
    first.watch.run(stop, threading.Event(), tmp_path)
    assert len(fake.asked) == 1
    fake._series = series  # type: ignore[method-assign]
    again, whole = (
        Running(config_for(fake.url, history="10h"), tmp_path / "state"),
        Running(config_for(fake.url, history="10h")),
    )
    for one in (again, whole):
        one.step(2)
        one.abandon()
    assert again.rows == whole.rows and len(again.rows) == 3


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
