"""What `rfa filter` writes: the user's columns and times, the rows that come next, many series, and in which form."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from pyarrow import parquet

from rfa.cli import plot
from rfa.cli.digits import round_estimates, round_score
from rfa.cli.filter_models import load_filter
from rfa.cli.filter_output import as_csv
from rfa.cli.filter_run import Task
from rfa.cli.plot import MAX_PANELS, axis_label, gaps, largest_deviations, y_limits
from rfa.data import load_series
from rfa.runtime.uncertainty.alarms import NEVER
from tests.cli.commands import rfa, rfa_json

FULL = ("--digits", "full")


def table_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def readings(path: Path, rows: int = 60, *, seed: int = 1) -> Path:
    """A sensor's log as people have it: local times, a label, a gap."""
    draw = np.random.default_rng(seed)
    lines = ["when,temp_c,door"]
    for k in range(rows):
        value = "" if 20 <= k < 24 else f"{20 + np.sin(k / 4) + 0.1 * draw.normal():.2f}"
        lines.append(f"2026-03-{1 + k // 24:02d} {k % 24:02d}:00,{value},{'open' if k % 5 else 'shut'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_table_has_the_columns_and_times_of_the_file_and_the_rows_to_come(tmp_path: Path) -> None:
    path = readings(tmp_path / "room.csv")
    code, out, err = rfa("filter", path, "--horizon", "6h", *FULL)
    assert code == 0, err
    given, rows = table_of(path.read_text()), table_of(out)
    assert [{name: row[name] for name in ("when", "door")} for row in rows[:60]] == [
        {name: row[name] for name in ("when", "door")} for row in given
    ]
    assert [row["kind"] for row in rows] == ["estimate"] * 60 + ["forecast"] * 6
    assert [row["when"] for row in rows[60:]] == [f"2026-03-03 {hour}:00" for hour in range(12, 18)]
    assert all(row["temp_c"] == row["door"] == row["anomaly"] == "" for row in rows[60:])
    for row in rows[60:]:
        assert float(row["temp_c_low90"]) < float(row["temp_c_mean"]) < float(row["temp_c_high90"])
    document = rfa_json("filter", path, "--horizon", "6")
    assert [point["mean"][0] for point in document["forecast"]] == [float(row["temp_c_mean"]) for row in rows[60:]]


def test_a_forecast_is_that_of_python(tmp_path: Path) -> None:
    import pandas as pd

    import rfa as library

    path = readings(tmp_path / "room.csv")
    given = pd.read_csv(path)
    frame, rows = library.forecast(given, "30h"), table_of(rfa("filter", path, "--horizon", "30h", *FULL)[1])[60:]
    assert [row["when"] for row in rows] == frame["when"].tolist()
    for name in ("mean", "std", "low90", "high90"):
        assert [float(row[f"temp_c_{name}"]) for row in rows] == frame[f"temp_c_{name}"].tolist()
    estimates, rows = library.filter(given), table_of(rfa("filter", path, *FULL)[1])
    for name in ("temp_c_mean", "temp_c_low90", "anomaly", "confidence"):
        assert [float(row[name] or "nan") for row in rows] == pytest.approx(estimates[name], rel=0, abs=0, nan_ok=True)


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    ".csv": lambda out: [{name: cell or None for name, cell in row.items()} for row in table_of(out.read_text())],
    ".jsonl": lambda out: [json.loads(line) for line in out.read_text().splitlines()],
    ".parquet": lambda out: parquet.read_table(out).to_pylist(),
    ".arrow": lambda out: pa.ipc.open_file(out.read_bytes()).read_all().to_pylist(),
}


def test_every_form_holds_the_same_table(tmp_path: Path) -> None:
    path = readings(tmp_path / "room.csv")
    expected = table_of(rfa("filter", path, *FULL)[1])
    for ending, read in READERS.items():
        out = tmp_path / f"out{ending}"
        assert rfa("filter", path, "--out", out, *FULL)[0] == 0
        rows = read(out)
        assert list(rows[0]) == list(expected[0]) and len(rows) == 60
        for row, required in zip(rows, expected, strict=True):
            assert [None if x is None else float(x) for x in (row["temp_c"], row["temp_c_mean"])] == [
                float(x) if x else None for x in (required["temp_c"], required["temp_c_mean"])
            ]


def test_numbers_have_the_digits_that_matter(tmp_path: Path) -> None:
    path = readings(tmp_path / "room.csv")
    full = table_of(rfa("filter", path, "--lead", "1h", "--smooth", *FULL)[1])
    for digits, options in ((3, ()), (1, ("--digits", "1"))):
        rows = table_of(rfa("filter", path, "--lead", "1h", "--smooth", *options)[1])
        for row, exact in zip(rows, full, strict=True):
            assert {row[name] for name in ("when", "temp_c", "door")} == {
                exact[name] for name in ("when", "temp_c", "door")
            }
            for before in ("temp_c", "temp_c_ahead1h"):
                width = float(exact[f"{before}_high90"]) - float(exact[f"{before}_low90"])
                places = digits - int(np.floor(np.log10(width)))
                for part in ("mean", "std", "low90", "high90"):
                    assert float(row[f"{before}_{part}"]) == round(float(exact[f"{before}_{part}"]), places)
            if row["anomaly"]:
                assert float(row["anomaly"]) == pytest.approx(float(exact["anomaly"]), rel=10.0**-digits)
        assert len(rows[30]["temp_c_smooth_mean"]) <= 4 + digits < len(full[30]["temp_c_smooth_mean"])
    code, _, err = rfa("forecast", path, "--digits", "few")
    assert code == 1 and "--digits must be full or a number from 1 to 15, got 'few'" in err


def test_no_digits_are_cut_where_there_is_no_width() -> None:
    exact = np.array([4.99, 1234567.891, np.nan, 0.3])
    parts = {"mean": exact, "low90": exact, "high90": np.add(exact, [0, 5e6, 1, np.inf])}
    found = round_estimates(parts, 3)["mean"]
    assert found[[0, 1, 3]].tolist() == [4.99, 1234568.0, 0.3] and np.isnan(found[2])
    assert round_score(np.array([0.0, 0.123456, 0.99987654, 12.3456, np.nan]), 2)[:4].tolist() == [
        0,
        0.123,
        0.999877,
        12.3,
    ]


def test_an_interval_without_width_has_the_digits_of_the_deviation() -> None:
    exact, ends = np.array([95.00045499236461, 95.1]), np.array([95.0, 95.1])
    parts = {"mean": exact, "std": np.array([0.0007284467813650315, 0]), "low90": ends, "high90": ends}
    found = round_estimates(parts, 3)
    assert found["mean"].tolist() == [95.000455, 95.1] and found["std"].tolist() == [0.000728, 0]
    assert found["low90"].tolist() == ends.tolist()


def test_a_series_without_rows_adds_nothing_to_the_csv() -> None:
    table = pa.table({"t": [1, 2], "door": ["open", "shut"]})
    none, once = table.slice(0, 0), "1,open\n2,shut\n"
    for parts, expected in (([none, table], once), ([table, none, table], 2 * once), ([none, none], "")):
        assert as_csv(pa.concat_tables(parts)).decode() == "t,door\n" + expected


def test_series_by_key_and_from_several_files_are_each_as_alone(tmp_path: Path) -> None:
    one, other = readings(tmp_path / "one.csv"), readings(tmp_path / "other.csv", 40, seed=2)
    alone = {path.name: table_of(rfa("filter", path)[1]) for path in (one, other)}
    code, out, err = rfa("filter", one, other)
    assert code == 0, err
    for name, rows in alone.items():
        found = [row for row in table_of(out) if row["file"] == name]
        assert [{k: v for k, v in row.items() if k != "file"} for row in found] == rows
    both = [f"{line},{name}" for name, path in (("a", one), ("b", other)) for line in path.read_text().splitlines()[1:]]
    (tmp_path / "long.csv").write_text("when,temp_c,door,room\n" + "\n".join(both) + "\n2026-01-01 00:00,1e300,x,c\n")
    code, out, err = rfa("filter", tmp_path / "long.csv", "--by", "room")
    assert code == 1 and f"long.csv: c: row {len(both) + 2}, column 'temp_c': values must be at most 1e+12" in err
    for key, name in (("a", "one.csv"), ("b", "other.csv")):
        means = [row["temp_c_mean"] for row in table_of(out) if row["room"] == key]
        assert means == [row["temp_c_mean"] for row in alone[name]]


def test_columns_called_like_a_result_keep_their_names(tmp_path: Path) -> None:
    lines = [f"{k},log,7,{k % 3}" for k in range(5)]
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("t,file,kind,y\n" + "\n".join(lines) + "\n")
    code, out, err = rfa("filter", tmp_path / "a.csv", tmp_path / "b.csv", "--column", "y", "--horizon", "1")
    assert code == 0, err
    rows = table_of(out)
    assert [row["file_2"] for row in rows] == ["a.csv"] * 6 + ["b.csv"] * 6
    assert [row["kind_2"] for row in rows] == [*["estimate"] * 5, "forecast"] * 2
    assert [(row["file"], row["kind"]) for row in rows[:6]] == [*[("log", "7")] * 5, ("", "")]


def test_what_cannot_be_written_is_said_before_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nothing there.csv"
    for option, target, reported in (
        ("--out", tmp_path / "no" / "x.csv", "does not exist"),
        ("--out", tmp_path, "must end in"),
        ("--plot", tmp_path / "x.gif", "must end in"),
        ("--out", tmp_path / "x.txt", ".parquet"),
    ):
        code, _, err = rfa("filter", path, option, target)
        assert code != 0 and reported in err and option in err, err
    if os.geteuid() != 0:  # who may do anything may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "no permission to write" in rfa("filter", path, "--out", tmp_path / "locked" / "x.csv")[2]
    own = readings(tmp_path / "room.csv")
    assert "is the input file" in rfa("filter", own, "--out", own)[2]
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    code, _, err = rfa("filter", own, "--out", tmp_path / "loop.csv")
    assert code and "loop.csv" in err and "unexpected" not in err


def test_a_regular_clock_has_the_mean_of_each_step(tmp_path: Path) -> None:
    path = readings(tmp_path / "room.csv")
    rows = table_of(rfa("filter", path, "--every", "2h")[1])
    given = [float(row["temp_c"] or "nan") for row in table_of(path.read_text())]
    assert len(rows) == 30 and rows[1]["when"] == "2026-03-01 02:00"
    assert float(rows[3]["temp_c"]) == pytest.approx(np.mean(given[6:8])) and rows[10]["temp_c"] == ""


def test_a_system_is_a_file(tmp_path: Path) -> None:
    path, system = readings(tmp_path / "room.csv"), tmp_path / "level.json"
    system.write_text('{"preset": "level", "process_noise": 1e-4, "measurement_noise": 0.01}')
    assert rfa_json("filter", path, "--system", system)["model"].startswith("system:")
    assert "remove one of them" in rfa("filter", path, "--system", system, "--bundle", "linear")[2]
    system.write_text('{"series": {"temp_c": {"preset": "level", "process_noise": 1, "measurement_noise": -1}}}')
    assert "level.json: system.measurement_noise must be above 0" in rfa("filter", path, "--system", system)[2]


def test_a_picture_has_a_panel_a_column_units_and_a_fan(tmp_path: Path) -> None:
    path, picture = readings(tmp_path / "room.csv"), tmp_path / "room.svg"
    code, _, err = rfa("filter", path, "--horizon", "12", "--alarm", "0.1", "--plot", picture)
    assert code == 0, err
    drawn = picture.read_text()
    for text in ("temp [°C]", "UTC", "forecast, 90%", "nothing measured", "room.csv"):
        assert f"<!-- {text} -->" in drawn, text


def test_a_short_forecast_is_drawn_again_beside_a_long_series(tmp_path: Path) -> None:
    path, picture = readings(tmp_path / "room.csv", 200), tmp_path / "room.svg"
    widths = []
    for horizon in ("19", "21"):
        assert rfa("filter", path, "--horizon", horizon, "--plot", picture)[0] == 0
        widths.append(float(picture.read_text().split('width="')[1].split("pt")[0]))
    assert widths[0] > widths[1]


def test_outliers_are_marked_in_the_columns_that_are_off(tmp_path: Path) -> None:
    draw = np.random.default_rng(8)
    values = np.stack([0.1 * draw.normal(size=300), 100 + 20 * draw.normal(size=300)], axis=1)
    values[200, 0] += 5.0  # fifty of its deviations, a quarter of one of the other's
    path = tmp_path / "two.csv"
    path.write_text("t,small,large\n" + "".join(f"{k},{a},{b}\n" for k, (a, b) in enumerate(values)))
    task = Task(load_filter(None), [], None, NEVER, 0.999, smooth=False, lag=None)
    [found] = task.run("two.csv", (), load_series(path))
    assert 200 in found.outliers
    assert largest_deviations(found)[200].tolist() == [True, False]
    [small] = task.run("", (), load_series(path, columns=["small"]))
    assert largest_deviations(small).all()


def test_first_intervals_do_not_set_the_axis(tmp_path: Path) -> None:
    """They rest on one row, and reach many times as far as all that was measured."""
    values = 1850 + 400 * np.sin(np.arange(200) / 5) + np.random.default_rng(3).normal(0, 20, 200)
    path = tmp_path / "load.csv"
    path.write_text("t,y\n" + "".join(f"{k},{'' if k < 3 else value}\n" for k, value in enumerate(values)))
    for bundle in ("auto", "series"):
        [found] = Task(load_filter(bundle), ["12"], "24", NEVER, 0.999, smooth=False, lag=None).run(
            "", (), load_series(path)
        )
        assert np.nanmax(found.outputs["upper.0.9.y"]) > 3000
        low, high = y_limits(found, 0, 0)
        assert 0 < low < values.min() and values.max() < high < 3000, bundle


def test_every_ring_has_its_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows not all are drawn, but those that are marked."""
    values = np.random.default_rng(3).normal(size=300)
    values[[101, 202]] = 60.0
    path = tmp_path / "many.csv"
    path.write_text("t,y\n" + "".join(f"{k},{value}\n" for k, value in enumerate(values)))
    [found] = Task(load_filter("auto"), [], None, NEVER, 0.999, smooth=False, lag=None).run("", (), load_series(path))
    drawn: list[Figure] = []
    monkeypatch.setattr(plot, "MAX_POINTS", 30)
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    plot.draw([found], tmp_path / "many.png", title="many")
    [axes] = drawn[0].axes
    dots = {x for line in axes.get_lines() if line.get_marker() == "." for x in line.get_xdata()}
    [rings] = [line for line in axes.get_lines() if line.get_label() == "outlier"]
    ringed = set(np.asarray(rings.get_xdata()).tolist())
    assert {101.0, 202.0} <= ringed <= dots and len(dots) < 100


def test_what_cannot_be_drawn_is_said_before_the_file_is_filtered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, picture = tmp_path / "many.csv", tmp_path / "many.png"
    count = MAX_PANELS // 2 + 1
    path.write_text("t,host,a,b\n" + "".join(f"{k},h{host},1,2\n" for host in range(count) for k in range(3)))
    code, _, err = rfa("filter", path, "--by", "host", "--plot", picture, "--bundle", "oscillator")
    assert code == 1 and f"a figure shows up to {MAX_PANELS} columns, but there are {2 * count}" in err
    assert not picture.exists() and "failed" not in err
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "rfa.cli.plot"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "rfa-server[plot]" in rfa("filter", tmp_path / "not there.csv", "--plot", picture)[2]


def test_names_tell_units() -> None:
    names = {
        "latency (ms)": "latency [ms]",
        "power [kW]": "power [kW]",
        "temp_c": "temp [°C]",
        "c": "c",
        "count": "count",
    }
    assert {name: axis_label(name) for name in names} == names


def test_gaps_are_where_nothing_was_measured_or_no_row_is() -> None:
    def found(times: list[float], missing: tuple[int, ...] = ()) -> list[tuple[int, int]]:
        return gaps(np.array(times), np.isin(np.arange(len(times)), missing))

    even = [float(k) for k in range(40)]
    assert found(even) == found([0.0]) == found([3.0, 3.0]) == []
    assert found(even, (2, 3, 10)) == [(1, 4), (9, 11)]
    assert found(even, (0, 1, 38, 39)) == [(0, 2), (37, 39)]
    assert found([*even[:20], *even[25:]]) == [(19, 20)]
    # At uneven times twice the usual step is nothing.
    uneven = np.cumsum(np.tile([1.0, 2.0, 0.5, 1.5, 3.0], 8)).tolist()
    assert found(uneven, (3,)) == []
    assert found([*uneven, uneven[-1] + 50]) == [(39, 40)]
