"""Files as programs write them: each is read right on the first command, in the command, Python and the upload."""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rfa as library
from rfa.cli.main import app
from rfa.data import Frame, ReadOptions, load_table, read_all
from tests.data.everyday_readings import EVERYDAY, HOUR, RIGHT

# How the next time of each file is written.
NEXT = {
    "quarters.csv": {"quarter": "2021Q1"}, "month_names.csv": {"month": "Jan-22"},
    "year_month.csv": {"year": "2022", "month": "1"}, "lastgang.csv": {"Datum": "11.01.2026", "Uhrzeit": "00:00"},
    "unix_ms.csv": {"unix_ms": "1767228600000"}, "influx_hosts.csv": {"host": "db01", "_time": "2026-02-01T01:00:00Z"},
    "brackets.csv": {"Date": "08/01/2025"}, "prometheus_range.json": {"instance": "a:9100", "time": "1767231600"},
}  # fmt: skip


def read(name: str, **more: Any) -> Frame:
    return read_all(load_table(EVERYDAY / name), ReadOptions(**{**RIGHT[name][0], **more}))


def test_every_file_has_its_reading() -> None:
    assert RIGHT.keys() == {path.name for path in EVERYDAY.iterdir()}


@pytest.mark.parametrize("name", RIGHT)
def test_a_file_is_read_right(name: str) -> None:
    _, keys, names, times, values, note = RIGHT[name]
    frame = read(name)
    assert list(frame.series) == keys
    series = next(iter(frame.series.values()))
    assert list(series.names) == names
    assert series.times[:2] == pytest.approx(times, abs=1e-6, rel=0)
    assert series.values[:2, 0].tolist() == values
    assert note in " · ".join(series.notes)
    assert (np.diff(series.times) >= 0).all() and not np.isinf(series.values).any()


def test_the_hour_that_a_clock_shows_twice_is_an_hour_longer() -> None:
    assert set(np.diff(read("autumn_local.csv").series[()].times)) == {HOUR}


def test_marks_and_words_are_missing_unless_they_are_switched_off() -> None:
    wind = read("sentinels.csv").series[()].values
    assert np.isnan(wind).sum() == 8 and np.nanmax(wind) < 10
    kept = read("sentinels.csv", missing=["none"]).series[()].values
    assert kept.min() == -999 and kept.max() == 9999
    assert np.isnan(read("sentinels.csv", missing=["none", "5.3"]).series[()].values[0, 0])
    assert np.isnan(read("home_assistant.csv").series[()].values).sum() == 10


def test_numbers_in_brackets_are_negative() -> None:
    assert read("brackets.csv").series[()].values[2, 1] == -134.36


def test_on_and_off_are_one_and_zero() -> None:
    door = read("home_assistant_several.csv").series["binary_sensor.back_door",].values
    assert set(door[:, 0]) <= {0.0, 1.0}


# The same reading as in the tests above; the command writes its times.
@pytest.mark.parametrize(
    "name", [name if name in NEXT else pytest.param(name, marks=pytest.mark.slow) for name in RIGHT]
)
def test_the_commands_take_it_at_once(name: str) -> None:
    options = [f"--tz={zone}" for zone in RIGHT[name][0].values()]
    model = ["--bundle", "auto"]
    found = CliRunner().invoke(app, ["forecast", str(EVERYDAY / name), "--horizon", "3", *model, *options])
    assert found.exit_code == 0, found.stderr
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    keys, names = RIGHT[name][1:3]
    assert len(rows) == 3 * len(keys)
    assert all(f"{column}_mean" in rows[0] for column in names)
    assert NEXT.get(name, {}).items() <= rows[0].items()
    shown = CliRunner().invoke(app, ["inspect", str(EVERYDAY / name), "--json", *options])
    assert shown.exit_code == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert [series["name"] for series in document["series"]] == [" / ".join(key) for key in keys]
    assert [column["name"] for column in document["series"][0]["columns"]] == names


@pytest.mark.parametrize("name", RIGHT)
def test_python_takes_its_path(name: str) -> None:
    zone = RIGHT[name][0].get("zone", "UTC")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found: Any = library.forecast(EVERYDAY / name, 3, model="auto", tz=zone)
    assert len(found) == 3 * len(RIGHT[name][1])
    assert all(f"{column}_mean" in found for column in RIGHT[name][2])


@pytest.mark.parametrize("command", ["detect", "filter"])
def test_alarms_are_rows_of_the_file(command: str) -> None:
    rate = ["--rate", "1/day", "--rows"] if command == "detect" else ["--alarm", "1/day"]
    path = str(EVERYDAY / "error_burst.csv")
    found = CliRunner().invoke(app, [command, path, *rate, "--bundle", "auto"])
    assert found.exit_code == 0, found.stderr
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    alarms = [row for row in rows if row["alarm"] == "1"]
    assert 0 < len(alarms) < 100 and (command == "filter") == (len(rows) == 6000)
    assert all(math.isfinite(float(row["errors_mean"])) for row in alarms)
