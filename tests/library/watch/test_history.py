"""`rfa backtest CONFIG` finds the alarms that the watch raised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rfa.library.watch.filters import QueryFilter, Samples
from rfa.library.watch.history import counter_rates, recorded_series
from tests.cli.commands import rfa, rfa_json
from tests.library.watch.fake_prometheus import fake_prometheus, noise, wave
from tests.library.watch.running import START, STEP, Running, config_for

STEPS = 160
QUERY = 'name = "q"\nexpr = "up"\nalarm = {rate = 0.02}\nhorizon = ["10m"]'


def spiky(name: str, t: float) -> float | None:
    """Waves with a spike and a missing value in each series."""
    step = (t - START) // STEP
    if step == 150:
        return None
    return wave(name, t) + (80 if step == 100 + ord(name) % 7 else 0)


def written(url: str, folder: Path) -> Path:
    path = folder / "watch.toml"
    path.write_text(f'step = "1m"\n[source.prometheus]\nurl = "{url}"\n[[query]]\n{QUERY}\n')
    return path


def test_the_alarms_are_those_of_the_watch(tmp_path: Path) -> None:
    with fake_prometheus() as fake:
        fake.value = spiky
        running = Running(config_for(fake.url, query=QUERY, history="1m"))
        running.step(STEPS)
        rows = running.rows
        begin, end = (str(int(at)) for at in (START, START + (STEPS - 1) * STEP))
        config = written(fake.url, tmp_path)
        found = rfa_json("backtest", config, "--from", begin, "--to", end)
    series = sorted({row["labels"]["host"] for row in rows})
    assert [one["name"] for one in found["series"]] == [f"q: up / {host}" for host in series]
    for one in found["series"]:
        own = [row for row in rows if row["labels"]["host"] == one["name"][-1]]
        assert one["rows"] == len(own) + 1 == STEPS - 1  # the first row was history
        assert one["alarms"] == sum(row["alarm"] for row in own) > 0
        assert set(one["coverage"]) == {"step", "600s"}


def test_counters_become_the_rates_of_the_watch() -> None:
    draw = np.random.default_rng(0)
    times = START + np.cumsum(draw.uniform(10, 50, 80))
    values = np.cumsum(draw.uniform(0, 9, 80))
    values[40:] -= values[40]
    values[60] = np.nan
    config = config_for("http://127.0.0.1:1", query='name = "q"\nexpr = "up"\ntype = "counter"')
    one = QueryFilter(config.query[0], STEP, is_counter=True)
    (scored,) = one.apply(one.admit([Samples((), times, values)]))
    own_times, rates = counter_rates(times, values)
    assert np.array_equal(scored.times, own_times) and np.array_equal(scored.values, rates)


def test_a_long_history_is_read_in_parts() -> None:
    with fake_prometheus() as fake:
        config = config_for(fake.url, query=QUERY)
        found = list(recorded_series(config, START, START + 400 * STEP))
        assert len(fake.asked) > 1
    for (query, labels, series), host in zip(found, "abc", strict=True):
        assert query.name == "q" and dict(labels)["host"] == host
        assert np.array_equal(series.times, START + STEP * np.arange(401))
        assert series.values[7, 0] == pytest.approx(100 + noise(host, series.times[7]), abs=11)


def test_labelled_windows_and_pictures(tmp_path: Path) -> None:
    labels, report = tmp_path / "labels.csv", tmp_path / "report.json"
    spike = {host: int(START + (100 + ord(host) % 7) * STEP) for host in "ab"}
    labels.write_text("host,from,to,why\n" + "".join(f"{host},{t - 60},{t + 60},x\n" for host, t in spike.items()))
    with fake_prometheus() as fake:
        fake.value = spiky
        times = ("--from", str(int(START)), "--to", str(int(START + STEPS * STEP)))
        code, out, err = rfa(
            "backtest", written(fake.url, tmp_path), *times, "--windows", labels, "--out", report, "--figures", tmp_path
        )
    assert code == 0, err
    assert "2 of 2 windows found" in out
    assert [one["scores"]["windows"] for one in json.loads(report.read_text())["series"]] == [1, 1, 0]
    assert len(list(tmp_path.glob("q_up_*.png"))) == 3


def test_one_line_says_what_is_wrong(tmp_path: Path) -> None:
    config = written("http://127.0.0.1:1", tmp_path)
    for options, message in (
        (("--rate", "1/day"), "--rate is not supported with a configuration"),
        (("--rate", "0.001"), "--rate is not supported with a configuration"),
        (("--from", "yesterday"), "--from"),
        (("--to", "2026-03-01"), "http://127.0.0.1:1: "),
    ):
        code, _, err = rfa("backtest", config, *options)
        assert code == 1 and message in err and len(err.splitlines()) == 1, err
