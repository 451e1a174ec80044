"""`rfa inspect`, `rfa forecast` and `rfa detect`: what they print, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rfa as library
from rfa.cli.filter_table import FORECAST_PARTS
from rfa.data import sampling
from tests.cli.commands import rfa
from tests.cli.test_filter_output import table_of
from tests.data.everyday_readings import EVERYDAY

AUTO = ("--model", "auto")


def hourly(path: Path, values: Sequence[object], header: str = "time,y") -> Path:
    rows = [f"2026-03-{1 + k // 24:02d} {k % 24:02d}:00,{value}" for k, value in enumerate(values)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_inspect_shows_how_a_file_is_read_without_computing(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).normal(size=240)
    daily: list[object] = [round(20 + 5 * np.sin(k * np.pi / 12) + 0.2 * noise[k], 2) for k in range(240)]
    daily[40] = daily[90] = -999
    code, out, err = rfa("inspect", hourly(tmp_path / "room.csv", daily), "--tz", "Europe/Berlin")
    assert code == 0 and not err
    lines = dict(reversed([line.split(maxsplit=1) for line in out.splitlines()]))
    assert lines["clock"] == "time (Europe/Berlin)"
    assert lines["rows"].endswith("3,600 s apart, 0 gaps")
    assert "238 values from 14" in lines["column"] and "2 missing, seasons of 24 rows" in lines["column"]
    assert "-999 (2 cells) read as missing; --missing none keeps these values" in out


def test_inspect_names_each_series() -> None:
    code, out, _ = rfa("inspect", EVERYDAY / "home_assistant_several.csv")
    assert code == 0 and "series   3, by entity_id" in out
    assert out.count("\nrows ") == 3 and "rows     binary_sensor.back_door: 30, 2026-03-01" in out


def test_inspect_estimates_the_counts_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LARGE", 2**16), ("ENDS", 2**13), ("PARTS", 4), ("PART", 2**10)):
        monkeypatch.setattr(sampling, name, value)
    times = np.datetime64("2024-01-01T00:00") + np.arange(12_000)
    values = np.round(10 + np.random.default_rng(3).normal(size=12_000), 4)
    keys = [f"{time}Z,{value:07.4f}" for time, value in zip(times, values, strict=True)]
    path = tmp_path / "y.csv"
    for text in ("\n".join(["time,y", *keys]), "\r\n".join(['"time","y"', *keys, ""])):
        path.write_text(text, newline="")
        code, out, err = rfa("inspect", path)
        assert code == 0 and not err
        assert "sample   7" in out or "sample   6" in out
        assert re.search(
            r"rows     about 1[12],\d00, 2024-01-01T00:00:00 to 2024-01-09T07:59:00, 60 s apart, 0 gaps", out
        )
    # A sample of a quoted cell with line ends cannot be read: the first part is.
    path.write_text("time,y,text\n" + "\n".join(f'{row},"a\n\n\n\n,b"' for row in keys))
    code, out, _ = rfa("inspect", path)
    assert code == 0 and "to 2024-01-01T0" in out


@pytest.mark.parametrize(
    ("step", "rows"),
    [("m", 60), ("h", 24), ("D", 7), ("W", 8), ("M", 12)],
    ids=["minutes", "hours", "days", "weeks", "months"],
)
def test_a_forecast_without_a_horizon_has_a_usual_number_of_rows(tmp_path: Path, step: str, rows: int) -> None:
    times = np.datetime64("2024-01").astype(f"datetime64[{step}]") + np.arange(40)
    text = "\n".join(f"{time},{k % 5}" for k, time in enumerate(times.astype("datetime64[s]")))
    (tmp_path / "y.csv").write_text(f"time,y\n{text}\n")
    code, out, err = rfa("forecast", tmp_path / "y.csv", *AUTO)
    assert code == 0, err
    assert len(table_of(out)) == rows and list(table_of(out)[0]) == ["time", *(f"y_{part}" for part in FORECAST_PARTS)]


def test_weights_are_refused_of_a_model_that_mixes_none(tmp_path: Path) -> None:
    code, out, err = rfa("forecast", hourly(tmp_path / "y.csv", range(40)), "--model", "auto", "--weights")
    assert (
        (code, out) == (1, "")
        and "--weights requires a model that combines several forecasts" in err
        and "'auto'" in err
    )


def test_rules_select_what_may_raise_an_alarm(tmp_path: Path) -> None:
    values = [round(float(value), 3) for value in np.random.default_rng(2).normal(size=400)]
    values[300:330] = [values[300]] * 30
    path = hourly(tmp_path / "y.csv", values)
    detected = table_of(rfa("detect", path, *AUTO, "--rate", "0.01", "--rules", "standstill, gap")[1])
    assert [row["rule"] for row in detected] == ["standstill"]
    scored = table_of(rfa("filter", path, *AUTO, "--alarm", "0.01", "--rules", "gap")[1])
    assert {row["alarm"] for row in scored} == {"0"}
    assert library.detect(path, 0.01, model="auto", rules=["standstill", "gap"]).incidents["alarms"].sum() == sum(
        int(row["alarms"]) for row in detected
    )
    for options, expected in (
        (("detect", "--rules", "value,level"), "--rules must be one or more of value, stretch, standstill, gap"),
        (("filter", "--rules", "value"), "--rules requires an alarm rate"),
    ):
        code, out, err = rfa(options[0], path, *AUTO, *options[1:])
        assert (code, out) == (1, "") and expected in err


def test_forecast_and_detect_give_the_numbers_of_filter_and_python(tmp_path: Path) -> None:
    values = [round(float(value), 3) for value in np.random.default_rng(2).normal(size=400)]
    values[300] = 40.0
    path = hourly(tmp_path / "y.csv", values)
    whole = table_of(rfa("filter", path, *AUTO, "--horizon", "6", "--alarm", "0.01", "--digits", "full")[1])
    forecast = table_of(rfa("forecast", path, *AUTO, "--horizon", "6", "--digits", "full")[1])
    medians = [row.pop("y_median") for row in forecast]
    assert forecast == [{name: row[name] for name in forecast[0]} for row in whole[400:]]
    detected = table_of(rfa("detect", path, *AUTO, "--rate", "0.01", "--rows", "--digits", "full")[1])
    assert detected == [{name: row[name] for name in detected[0]} for row in whole[:400] if row["alarm"] == "1"]
    assert any(row["y"] == "40" for row in detected)
    frame = library.forecast(path, 6, model="auto")
    assert frame["y_mean"].tolist() == [float(row["y_mean"]) for row in forecast]
    assert frame["y_median"].tolist() == [*map(float, medians)]
    found = library.detect(path, 0.01, model="auto")
    assert found.raised == len(detected)
    incidents = table_of(rfa("detect", path, *AUTO, "--rate", "0.01", "--digits", "full")[1])
    assert [float(row["expected"]) for row in incidents] == found.incidents["expected"].tolist()
    largest = next(row for row in incidents if row["value"] == "40")
    assert (largest["column"], largest["direction"], largest["rule"].split("+")[0]) == ("y", "up", "value")
    assert largest["time"] == next(row for row in detected if row["y"] == "40")[next(iter(detected[0]))]
    assert sum(int(row["alarms"]) for row in incidents) == len(detected)


def test_rows_in_a_maintenance_window_are_no_alarms(tmp_path: Path) -> None:
    values = [round(float(value), 3) for value in np.random.default_rng(2).normal(size=400)]
    values[300] = 40.0
    path = hourly(tmp_path / "y.csv", values)
    rows: Any = library.detect(path, 0.01, model="auto", rules=["value"]).rows
    day = np.datetime64(rows["time"].iloc[-1], "s")
    for mute in (f"{day}/{day + 1}", "daily 00:00-24:00"):
        muted = table_of(rfa("detect", path, *AUTO, "--rate", "0.01", "--mute", mute)[1])
        assert all(row["value"] != "40" for row in muted)
    code, _, error = rfa("detect", path, *AUTO, "--mute", "someday")
    assert code == 1 and "--mute must be a weekly window" in error


@pytest.mark.parametrize("ending", [".png", pytest.param(".svg", marks=pytest.mark.slow), ".html"])  # .html has an SVG
def test_plot_draws_a_file_with_its_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.chdir(tmp_path)
    hourly(tmp_path / "y.csv", [round(10 + np.sin(k / 4), 3) for k in range(60)])
    out = () if ending == ".png" else ("--out", f"y{ending}")
    code, said, err = rfa("plot", "y.csv", *AUTO, *out)
    assert code == 0, err
    picture = tmp_path / (f"y{ending}" if out else "y_plot.png")
    assert "24 rows ahead" in said and said.endswith(f"→ {picture.name}\n")
    content = picture.read_bytes()
    assert content.startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}[ending])
    assert ending == ".png" or b"<svg" in content
    code, _, err = rfa("plot", "y.csv", "--out", "y.csv")
    assert code == 1 and "--out must end in .png, .svg, .pdf, .jpg or .html" in err


def test_a_folder_is_its_files_each_a_series(tmp_path: Path) -> None:
    for name in ("a", "b"):
        hourly(tmp_path / f"{name}.csv", [round(10 + np.sin(k / 4), 3) for k in range(60)])
    for source in (tmp_path, f"{tmp_path}/*.csv"):
        code, out, err = rfa("forecast", source, *AUTO, "--horizon", "2")
        assert code == 0, err
        assert [row["file"] for row in table_of(out)] == ["a.csv", "a.csv", "b.csv", "b.csv"]
    code, _, err = rfa("forecast", f"{tmp_path}/*.parquet")
    assert code == 1 and "no file matches" in err


@pytest.mark.parametrize(
    ("text", "options", "reported"),
    [
        ("when,y\n1/2/2024,1\n1/3/2024,2\n", (), "--time-format='%d/%m/%Y' or --time-format='%m/%d/%Y'"),
        ("time,y\n2024-01-01,a\n2024-01-02,b\n", (), "such as 'a' in row 2; choose other columns with --column"),
        ("time,y\n2024-01-01,1\nsoon,2\n", (), "row 3, column 'time': 'soon'"),
        ("time,y\n2024-01-01,1\n,2\n", (), "row 3, column 'time': the time is missing"),
        ("y\n1\n2\n", ("--query", "select 1"), "--query requires an SQLite or DuckDB database"),
        ("%PDF-1.7", (), "PDF files are not supported; save the table as CSV or Parquet"),
        ('{"a": 1}', (), "this JSON has no rows"),
        ('[{"a": 1}, {"a": ', (), "this is not valid JSON"),
    ],
)
def test_a_refusal_names_the_cell_and_what_mends_it(
    tmp_path: Path, text: str, options: tuple[str, ...], reported: str
) -> None:
    (tmp_path / "file.csv").write_text(text)
    code, out, err = rfa("inspect", tmp_path / "file.csv", *options)
    assert code == 1 and not out
    assert reported in err.splitlines()[-1]


def test_a_mark_may_be_negative_on_the_command_line(tmp_path: Path) -> None:
    path = hourly(tmp_path / "y.csv", [-5 if k == 3 else k for k in range(30)])
    code, out, err = rfa("inspect", path, "--missing", "-5")
    assert code == 0, err
    assert "29 values from 0 to 29, 1 missing" in out
