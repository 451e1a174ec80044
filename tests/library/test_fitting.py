"""`rfa.fit`: models of the series in a frame, as `rfa fit` makes them, and what takes them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rfa
from tests.cli.commands import rfa as command
from tests.waiting import PATIENCE

pytest.importorskip("scipy")
OF_BOTH = ("load", "heat")
CONFIG = {"max_harmonics": 1, "max_free_modes": 1, "iterations": 10}


def frame(days: int = 30, sites: tuple[str, ...] = ("north", "south")) -> pd.DataFrame:
    """Hourly rows of some sites: work days have a morning; load and heat of each."""
    draw = np.random.default_rng(4)
    hours = pd.date_range("2024-01-01", periods=24 * days, freq="h")
    morning = 10 * (hours.day_of_week < 5) * np.exp(-(((hours.hour - 9) / 3) ** 2))
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "time": hours,
                    "site": site,
                    "load": 50 * (k + 1) + morning + draw.normal(size=len(hours)),
                    "heat": 20 + draw.normal(size=len(hours)).cumsum() / 10,
                }
            )
            for k, site in enumerate(sites)
        ],
        ignore_index=True,
    )


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return frame()


@pytest.fixture(scope="module")
def models(rows: pd.DataFrame) -> rfa.Models:
    return rfa.fit(rows, by="site", tz="Europe/Berlin", config=CONFIG)


def test_models_are_those_of_the_command(rows: pd.DataFrame, models: rfa.Models, tmp_path: Path) -> None:
    rows.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    out = tmp_path / "models.json"
    words = ("--by", "site", "--tz", "Europe/Berlin", "--config", tmp_path / "config.json")
    code, _, err = command("fit", tmp_path / "rows.csv", *words, "--out", out)
    assert code == 0, err
    assert json.loads(out.read_text())["series"] == models.systems
    assert set(models) == {f"{site} / {column}" for site in ("north", "south") for column in ("load", "heat")}
    assert "calendar" in models["north / load"]
    assert not models.failed
    models.save(tmp_path / "mine.json")
    assert rfa.Models.load(tmp_path / "mine.json").systems == models.systems


def test_each_series_takes_its_own_model(rows: pd.DataFrame, models: rfa.Models) -> None:
    how: dict[str, Any] = {"by": "site", "tz": "Europe/Berlin"}
    both = rfa.forecast(rows, "1d", system=models, **how)
    found = rfa.filter(rows, columns="load", system=models, **how)
    alarms = rfa.detect(rows, 0.01, columns="load", system=models, **how)
    assert alarms.observations > 0
    for site in ("north", "south"):
        mine = rows[rows["site"] == site].drop(columns="site")
        reported = both[both["site"] == site]
        for column in ("load", "heat"):
            alone: dict[str, Any] = {"columns": column, "tz": "Europe/Berlin", "system": models[f"{site} / {column}"]}
            expected = rfa.forecast(mine, "1d", **alone)
            for name in [name for name in expected if name.startswith(column)]:
                np.testing.assert_array_equal(reported[name], expected[name])
        alone = {"columns": "load", "tz": "Europe/Berlin", "system": models[f"{site} / load"]}
        np.testing.assert_array_equal(found[found["site"] == site]["load_mean"], rfa.filter(mine, **alone)["load_mean"])
    # Nine in the morning of a Wednesday, and night.
    wednesday = both[(both["site"] == "north") & (both["time"] == "2024-01-31 09:00")]["load_mean"].item()
    night = both[(both["site"] == "north") & (both["time"] == "2024-01-31 03:00")]["load_mean"].item()
    assert wednesday - night == pytest.approx(10, abs=4 * math.sqrt(2))  # noise of single rows is 1


def test_columns_with_models_of_their_own_are_filtered_each_by_itself(
    rows: pd.DataFrame, models: rfa.Models, tmp_path: Path
) -> None:
    """In Python and by the command, the same numbers; what is of a row elsewhere is of each column."""
    rows.to_csv(tmp_path / "rows.csv", index=False)
    models.save(tmp_path / "models.json")
    reported, picture = tmp_path / "told.csv", tmp_path / "told.svg"
    code, said, err = command(
        "filter", tmp_path / "rows.csv", "--by", "site", "--tz", "Europe/Berlin", "--system", tmp_path / "models.json",
        "--horizon", "3", "--digits", "full", "--out", reported, "--plot", picture,
    )  # fmt: skip
    assert code == 0, err
    assert said.startswith("4 series, 2,880 rows")
    table = pd.read_csv(reported)
    assert list(table.columns[:6]) == ["time", "site", "load", "heat", "kind", "load_mean"]
    assert len(table) == len(rows) + 2 * 3
    assert picture.stat().st_size > 10_000
    found = rfa.filter(rows, by="site", tz="Europe/Berlin", system=models)
    ahead = rfa.forecast(rows, 3, by="site", tz="Europe/Berlin", system=models)
    for name in ("load_mean", "load_high90", "load_weight", "load_outlier", "heat_mean", "heat_nis", "heat_anomaly"):
        np.testing.assert_array_equal(table[table["kind"] == "estimate"][name], found[name])
        alone = rfa.filter(rows, columns=name[:4], by="site", tz="Europe/Berlin", system=models)
        own = name if name.endswith(("mean", "high90")) else name[5:]
        np.testing.assert_array_equal(found[name], alone[own])
    for name in ("load_mean", "heat_low90"):
        np.testing.assert_array_equal(table[table["kind"] == "forecast"][name], ahead[name])
    assert "weight" not in found
    alarms = rfa.detect(rows, 0.01, by="site", tz="Europe/Berlin", system=models)
    alone = [rfa.detect(rows, 0.01, columns=name, by="site", tz="Europe/Berlin", system=models) for name in OF_BOTH]
    assert alarms.raised == sum(one.raised for one in alone) > 0
    assert alarms.observations == 2 * len(rows)
    for name, one in zip(OF_BOTH, alone, strict=True):
        mine = alarms.rows[alarms.rows[f"{name}_alarm"]]
        for column, own in ((f"{name}_expected", f"{name}_expected"), (f"{name}_anomaly", "anomaly")):
            np.testing.assert_array_equal(mine[column], one.rows[own])
    # Everything, a document for each column.
    code, said, err = command(
        "filter", tmp_path / "rows.csv", "--by", "site", "--system", tmp_path / "models.json", "--json"
    )
    assert [(one["key"], one["columns"]) for one in json.loads(said)["series"]] == [
        ({"site": site}, [column]) for site in ("north", "south") for column in ("load", "heat")
    ]


def test_a_document_that_was_read_from_the_file_is_taken_as_it_is(rows: pd.DataFrame, models: rfa.Models) -> None:
    north = rows[rows["site"] == "north"]
    kept = {"series": {"load": models["north / load"]}, "fits": {}}
    reported = rfa.filter(north, columns="load", system=kept)
    expected = rfa.filter(north, columns="load", system=models["north / load"])
    np.testing.assert_array_equal(reported["load_mean"], expected["load_mean"])


def test_what_has_no_model_is_refused_with_what_to_do(rows: pd.DataFrame, models: rfa.Models) -> None:
    with pytest.raises(ValueError, match=r"contains systems for 'north / load', .*but none for 'load'"):
        rfa.filter(rows[rows["site"] == "north"], columns="load", system=models)
    with pytest.raises(ValueError, match="pass only one of them"):
        rfa.filter(rows, by="site", columns="load", system=models, model="linear")


def test_series_that_fail_are_named_and_cost_the_others_nothing(rows: pd.DataFrame) -> None:
    short = pd.concat([rows[rows["site"] == "north"], frame(1, ("new",)).head(4)], ignore_index=True)
    with pytest.warns(UserWarning, match="left out: series 'new': column 'load' has"):
        found = rfa.fit(short, by="site", columns="load", config=CONFIG)
    assert set(found) == {"north"}
    assert set(found.failed) == {"new"}
    with pytest.raises(ValueError, match="column 'load' has"):
        rfa.fit(frame(1, ("new",)).head(4), columns="load")
    with pytest.raises(ValueError, match="seasonality"):
        rfa.fit(rows, by="site", config={"seasonality": 3})


def test_what_cannot_be_written_is_found_before_the_work(rows: pd.DataFrame, tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "nowhere" / "models.json"):
        with pytest.raises(ValueError, match="cannot be written"):
            rfa.fit(rows, by="site", out=out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_stopped_fit_goes_on(tmp_path: Path, number: signal.Signals, request: pytest.FixtureRequest) -> None:
    """Sent once a first series is kept; what was finished is not done again."""
    frame(20, tuple("abcdef")).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    out, kept = tmp_path / "models.json", tmp_path / "models.json.fitted"
    words = [
        sys.executable, "-m", "rfa", "fit", "rows.csv", "--by", "site", "--column", "load", "--out", out.name,
        "--config", "config.json",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(rfa.__file__).parent.parent)}
    # A run in the background of a script is born deaf to SIGINT, and its processes with it.
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        until = time.monotonic() + PATIENCE
        while not kept.exists() and running.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        running.send_signal(number)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 128 + number, said
    assert "run the same command to continue" in said
    assert kept.exists()
    assert not out.exists()
    went_on = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert went_on.returncode == 0, went_on.stderr
    assert len(json.loads(out.read_text())["series"]) == 6
    assert not kept.exists()
