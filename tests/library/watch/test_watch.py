"""A watch of a Prometheus: rows, series that come and go, counters, and its metrics."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rfa
from rfa.library.watch.config_file import parse_config
from rfa.library.watch.http_server import Reply
from rfa.library.watch.prometheus import SourceError
from tests.library.watch.fake_prometheus import FakePrometheus, wave
from tests.library.watch.running import START, STEP, Running, config_for


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
    ("metric", "kind", "is_counter"),
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
    fake: FakePrometheus, metric: str, kind: str | None, is_counter: bool
) -> None:
    fake.hosts = {metric: ["a"]}
    fake.types = {} if kind is None else {metric: kind}
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
