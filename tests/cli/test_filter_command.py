"""`rfa filter` and its relatives: rows, estimates, alarms, leads and systems."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rfa.cli.filter_run import parse_lead
from rfa.cli.main import app
from tests.cli.commands import EXAMPLE, rfa, rfa_json

EXAMPLE_OUTLIERS = [61, 97, 133]
EXAMPLE_GAP = range(110, 122)


def test_filter_gives_a_row_per_row_and_finds_the_outliers(linear_bundle: Path) -> None:
    code, out, err = rfa("filter", EXAMPLE, "--bundle", linear_bundle, "--lead", 0.5)
    assert code == 0, err
    given = list(csv.DictReader(EXAMPLE.read_text().splitlines()))
    table = list(csv.DictReader(out.splitlines()))
    assert [row["t"] for row in table] == [row["t"] for row in given]
    assert [i for i, row in enumerate(table) if row["outlier"] == "1"] == EXAMPLE_OUTLIERS
    for row, source in zip(table, given, strict=True):
        for name in ("x", "y"):
            assert row[name] == "" if source[name] == "" else float(row[name]) == float(source[name])
            assert float(row[f"{name}_low90"]) < float(row[f"{name}_mean"]) < float(row[f"{name}_high90"])
            assert float(row[f"{name}_ahead0.5_std"]) > float(row[f"{name}_std"])
    widths = [float(row["x_std"]) for row in table]
    assert widths[109:122] == sorted(set(widths[109:122])), "uncertainty grows where nothing is measured"
    assert all(table[i]["anomaly"] == "" for i in EXAMPLE_GAP)


def test_filter_gives_the_numbers_of_the_runtime(linear_bundle: Path) -> None:
    from rfa.cli import filter_run as command
    from rfa.data import load_series
    from rfa.runtime.bundle.bundle import open_bundle
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.service.encoding import dumps

    runtime, series = FilterRuntime(open_bundle(linear_bundle)), load_series(EXAMPLE)
    found = command.run_filter(runtime, series, [0.5])
    observations = [[None if np.isnan(v) else float(v) for v in row] for row in series.values]
    whole = runtime.filter(list(map(float, series.times)), observations, levels=command.LEVELS, horizon=[0.5])
    assert dumps(found.steps) == dumps(whole.steps) and found.smoothed is None
    assert found.log_likelihood == whole.log_likelihood


def test_filter_smooths_by_all_rows_or_by_so_many_later_ones(linear_bundle: Path) -> None:
    def columns(*options: object) -> dict[str, np.ndarray]:
        code, out, err = rfa("filter", EXAMPLE, "--bundle", linear_bundle, "--digits", "full", *options)
        assert code == 0, err
        table = list(csv.DictReader(out.splitlines()))
        return {name: np.array([float(row[name]) for row in table]) for name in table[0] if name.startswith("x_")}

    plain, smooth, none, some = columns(), columns("--smooth"), columns("--lag", 0), columns("--lag", 6)
    assert not any("smooth" in name for name in plain)
    mean, std = smooth["x_smooth_mean"], smooth["x_smooth_std"]
    # The last row has no later one; before it, what came later helps, most of all where nothing was measured.
    assert mean[-1] == pytest.approx(smooth["x_mean"][-1], abs=1e-5) and (std <= smooth["x_std"] * (1 + 1e-4)).all()
    assert (std[EXAMPLE_GAP] < 0.9 * smooth["x_std"][EXAMPLE_GAP]).all()
    assert np.allclose(none["x_smooth_mean"], plain["x_mean"], atol=1e-5)
    assert (std - 1e-4 <= some["x_smooth_std"]).all() and (some["x_smooth_std"] <= none["x_smooth_std"] + 1e-4).all()
    assert np.allclose(some["x_smooth_mean"][-7:], mean[-7:]) and not np.allclose(some["x_smooth_mean"][:-7], mean[:-7])
    document = rfa_json("filter", EXAMPLE, "--bundle", linear_bundle, "--lag", 6)
    assert [state["mean"][0] for state in document["smoothed"]] == list(some["x_smooth_mean"])


def test_filter_draws_the_series(linear_bundle: Path, tmp_path: Path) -> None:
    from matplotlib import image

    picture, table = tmp_path / "out.png", tmp_path / "all.json"
    code, out, err = rfa("filter", EXAMPLE, "--bundle", linear_bundle, "--plot", picture, "--out", table)
    assert code == 0, err
    assert re.match(r"200 rows, 3 outliers, 90 % intervals contained \d\d\.\d % one step ahead, log-likelihood ", out)
    pixels = image.imread(picture)[..., :3]
    assert min(pixels.shape[:2]) > 300
    blue = (pixels[..., 2] > pixels[..., 0] + 0.3).mean()
    red = (pixels[..., 0] > pixels[..., 2] + 0.5).mean()
    assert blue > 0.003, "no estimate is drawn"
    assert red > 1e-5, "no outlier is drawn"
    document = json.loads(table.read_text())
    assert document["outliers"] == EXAMPLE_OUTLIERS
    assert document["columns"] == ["x", "y"]
    assert len(document["steps"]) == 200


def test_alarms_come_at_the_rate_that_is_asked_for(tmp_path: Path) -> None:
    """As a share of the rows, and by the day, which is the same share of rows a minute apart."""
    generator = np.random.default_rng(3)
    values = 1e6 * (50 + generator.standard_normal(600))
    values[500] += 2e7
    rows = "\n".join(f"{60 * i},{value:.9g}" for i, value in enumerate(values))
    (tmp_path / "metric.csv").write_text(f"t,value\n{rows}\n")
    document = rfa_json("filter", tmp_path / "metric.csv", "--alarm", "0.002", "--quiet", 20)
    assert document["model"] == "default" and 500 in document["outliers"]
    alarms, flags = document["alarms"], [step["alarm"] for step in document["steps"]]
    assert flags[500] is True and 1 <= flags.count(True) == alarms["raised"] <= 6
    assert alarms["observations"] == 600 and alarms["expected"] == pytest.approx(1.2, rel=2e-3)
    out = tmp_path / "out.csv"
    code, said, _ = rfa("filter", tmp_path / "metric.csv", "--alarm", "2.88/day", "--quiet", 20, "--out", out)
    assert code == 0 and f"incidents ({alarms['raised']} alarms, 1.2 expected by chance)" in said
    table = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["alarm"] == "1" for row in table] == flags


@pytest.mark.parametrize("rate", ["0", "0.6", "nan", "often", "1/decade", "0/day"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    code, _, err = rfa("filter", EXAMPLE, "--alarm", rate)
    assert code == 1 and "--alarm must be a fraction of the observations" in err


def test_a_rate_above_half_of_the_rows_is_refused(tmp_path: Path) -> None:
    """Every day of daily rows would be all of them, in silence."""
    days = "".join(f"2024-01-{day + 1:02},{day % 7}\n" for day in range(30))
    (tmp_path / "daily.csv").write_text("date,sold\n" + days)
    code, _, err = rfa("filter", tmp_path / "daily.csv", "--bundle", "auto", "--alarm", "1/day")
    assert (
        code == 1
        and "--alarm requests an alarm for more than half of the rows of daily.csv, which are 86,400 s apart" in err
    )
    code, _, err = rfa("filter", tmp_path / "daily.csv", "--bundle", "auto", "--alarm", "3/week")
    assert code == 0 and "expected by chance" in err


def test_a_flag_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    code, _, err = rfa("filter", EXAMPLE, "--quiet", 5)
    assert code == 1 and "--quiet requires an alarm rate" in err
    (tmp_path / "bare.csv").write_text("value\n1\n2\n3\n")
    code, _, err = rfa("filter", tmp_path / "bare.csv", "--alarm", "1/day")
    assert code == 1 and "bare.csv has no time column" in err


def sensor_file(path: Path, rows: int = 600) -> Path:
    """A room's sensors, as no bundle of a system describes them."""
    rng = np.random.default_rng(1)
    lines = [
        f"2024-03-{1 + k // 144:02d} {k % 144 // 6:02d}:{k % 6 * 10:02d},"
        f"{21 + math.sin(k / 23) + 0.1 * rng.normal():.2f},"
        f"{50 + 3 * math.cos(k / 23) + 0.5 * rng.normal():.1f}"
        for k in range(rows)
    ]
    path.write_text("date,temperature,humidity\n" + "\n".join(lines) + "\n")
    return path


def test_a_system_runs_only_by_its_name_and_says_where_it_does_not_fit(tmp_path: Path) -> None:
    path = sensor_file(tmp_path / "room.csv", 120)
    code, out, err = rfa("filter", path, "--bundle", "oscillator", "--json")
    assert code == 0 and "outliers for 'oscillator'" in err and "does not describe this series" in err
    document = json.loads(out)
    assert document["warnings"] and any("taken as UTC" in note for note in document["notes"])


def test_any_columns_are_filtered_and_their_estimates_are_near_them(tmp_path: Path) -> None:
    document = rfa_json("filter", sensor_file(tmp_path / "room.csv"))
    assert document["model"] == "default" and document["warnings"] == []
    for temperature, humidity in (step["mean"] for step in document["steps"][20:]):
        assert abs(temperature - 21) < 2 and abs(humidity - 50) < 20


def test_a_number_of_rows_is_a_lead_of_a_dated_file(tmp_path: Path) -> None:
    document = rfa_json("filter", sensor_file(tmp_path / "room.csv"), "--lead", "12")
    step = document["steps"][50]
    assert step["forecast"][0]["t"] - step["t"] == 7200


def test_dates_stay_dates_in_table_and_picture(tmp_path: Path) -> None:
    path, table, picture = sensor_file(tmp_path / "room.csv"), tmp_path / "out.csv", tmp_path / "out.svg"
    options = ("--column", "humidity", "--from", "2024-03-02", "--to", "2024-03-03", "--lead", "2h")
    code, _, err = rfa("filter", path, *options, "--out", table, "--plot", picture)
    assert code == 0, err
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["date"] for row in rows[:2]] == ["2024-03-02 00:00", "2024-03-02 00:10"] and len(rows) == 144
    assert all(float(row["humidity_ahead2h_mean"]) for row in rows)
    assert ("UTC" in picture.read_text() and "Mar" in picture.read_text()) or "03-02" in picture.read_text()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.5", 0.5),
        ("30min", 1800),
        ("6h", 21600),
        ("1.5 d", 129600),
        ("1e-3", 1e-3),
        ("2 days", 172_800),
        ("1 week", 604_800),
        ("90 seconds", 90),
        ("1 hour", 3600),
    ],
)
def test_a_lead_has_units(text: str, seconds: float) -> None:
    assert parse_lead(text, 1.0) == seconds


@pytest.mark.parametrize("text", ["0", "-1", "6 fortnights", "nan", "inf", "1e999", ""])
def test_what_is_no_lead_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--lead must be"):
        parse_lead(text, 1.0)


def test_a_series_comes_from_standard_input() -> None:
    text = "ts;Temp °C;Status\n01.03.2024 00:00;21,5;ok\n01.03.2024 00:10;21,6;ok\n14.03.2024 00:20;;Fehler\n"
    found = CliRunner().invoke(app, ["filter", "-", "--tz", "Europe/Berlin"], input=text.encode())
    assert found.exit_code == 0, found.stderr
    rows = list(csv.DictReader(found.stdout.splitlines()))
    assert [row["ts"] for row in rows] == ["01.03.2024 00:00", "01.03.2024 00:10", "14.03.2024 00:20"]
    assert [row["Status"] for row in rows] == ["ok", "ok", "Fehler"]
    assert [row["Temp °C"] for row in rows] == ["21.5", "21.6", ""] and "'Status'" in found.stderr


def test_what_is_well_covered_is_not_doubted(tmp_path: Path) -> None:
    values = 100 + np.cumsum(np.random.default_rng(3).normal(size=2000))
    (tmp_path / "walk.csv").write_text("value\n" + "\n".join(map(str, values)) + "\n")
    document = rfa_json("filter", tmp_path / "walk.csv", "--lead", "12")
    assert document["warnings"] == []
    (parse_lead,) = document["calibration"]["leads"]
    assert (parse_lead["steps"], parse_lead["scored"]) == (12, 1987) and abs(parse_lead["coverage"]["0.9"] - 0.9) < 0.03


def test_a_constant_is_no_reason_for_a_warning(tmp_path: Path) -> None:
    (tmp_path / "still.csv").write_text("value\n" + "21.5\n" * 600)
    still, out_file = tmp_path / "still.csv", tmp_path / "out.csv"
    code, out, err = rfa("filter", still, "--bundle", "auto", "--lead", "12", "--out", out_file)
    assert code == 0 and "90 % intervals contained 100.0 % one step ahead, 100.0 % 12 steps ahead, " in out
    assert "warning" not in err
