"""Incidents: their times, and the summaries that count them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from starlette.testclient import TestClient

import rfa
from rfa.library.incidents import describe_incidents
from tests.cli.commands import rfa as run
from tests.library.frames import asked


def _with_standstill() -> pd.DataFrame:
    values = 20 + np.random.default_rng(4).normal(size=600)
    values[400:420] = values[400]
    return pd.DataFrame({"time": pd.date_range("2026-01-01", periods=600, freq="h"), "x": values})


def test_numbers_of_rows_stand_behind_that_of_incidents() -> None:
    assert describe_incidents(5, 22, 8.13) == "5 incidents (22 alarms, 8.1 expected by chance)"
    assert describe_incidents(1, 1, 1320.4) == "1 incident (1 alarm, 1,320 expected by chance)"
    assert describe_incidents(0, 0, 0.02) == "0 incidents (0 alarms, 0.02 expected by chance)"


def test_all_summaries_count_a_standstill_as_one_incident(tmp_path: Path) -> None:
    frame = _with_standstill()
    found = rfa.detect(frame, 0.002, model="auto", rules=["standstill"])
    assert found.raised >= 5 and len(found.incidents) == 1
    counts = f"1 incident ({found.raised} alarms, 1.2 expected by chance)"
    assert str(found).endswith(f"observations, {counts}")
    alarm = {"rate": 0.002, "rules": ["standstill"]}
    assert counts in str(rfa.backtest(frame, alarm=alarm, model="auto"))
    frame.to_csv(tmp_path / "x.csv", index=False)
    options = (tmp_path / "x.csv", "--model", "auto", "--rules", "standstill")
    for command in (("detect", *options, "--rate", "0.002"), ("filter", *options, "--alarm", "0.002")):
        code, _, err = run(*command)
        assert code == 0 and f" {counts}, " in err


def test_the_incident_of_a_gap_lasts_from_the_value_before_to_the_value_after_it(tmp_path: Path) -> None:
    frame = _with_standstill().drop(index=range(501, 515)).reset_index(drop=True)
    frame.loc[498:500, "x"] = np.nan  # rows without a value are part of the gap
    before, after = pd.Timestamp("2026-01-21 17:00"), pd.Timestamp("2026-01-22 11:00")
    incidents = rfa.detect(frame, 0.01, model="auto", rules=["gap"]).incidents
    assert incidents[["begin", "end", "time", "rule"]].values.tolist() == [[before, after, after, "gap"]]
    frame.to_csv(tmp_path / "x.csv", index=False)
    _, out, _ = run("detect", tmp_path / "x.csv", "--model", "auto", "--rules", "gap", "--rate", "0.01")
    assert out.splitlines()[1].startswith("2026-01-21 17:00:00,2026-01-22 11:00:00,1,x,")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_gap_between_two_requests_begins_in_the_first_one(server: TestClient, is_streamed: bool) -> None:
    values = [[value] for value in np.random.default_rng(4).normal(size=400).tolist()]
    options = {"alarm": {"rate": 0.01, "rules": ["gap"]}, "model": "auto"}
    first = {"times": list(range(398)), "observations": [*values[:397], None], "return_state": True}
    state = asked(server, **options, **first)["state"]
    second = {"times": [420, 421], "observations": values[398:], "state": state, "stream": is_streamed}
    reply = server.post("/filter", json={**options, **second})
    (incident,) = json.loads(reply.text.splitlines()[-1])["incidents"]
    assert (incident["begin"], incident["end"], incident["t"], incident["rules"]) == (396, 420, 420, ["gap"])


def test_incidents_that_are_not_listed_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = _with_standstill()
    whole = rfa.detect(frame, 0.02, model="auto")
    assert len(whole.incidents) > 2 and whole.omitted == 0
    monkeypatch.setattr("rfa.runtime.uncertainty.incidents.MOST_INCIDENTS", 2)
    found = rfa.detect(frame, 0.02, model="auto")
    assert len(found.incidents) == 2 and str(found) == str(whole)
    for name in ("a.csv", "b.csv"):
        frame.to_csv(tmp_path / name, index=False)
    assert rfa.detect(tmp_path, 0.02, model="auto").omitted == 2 * found.omitted > 0


@pytest.mark.parametrize("time_format", ["%Y-%m-%d", "%d.%m.%Y", "%d-%b-%Y"])
def test_series_without_incidents_have_tables_without_rows(tmp_path: Path, time_format: str) -> None:
    times = pd.date_range("2025-01-01", periods=120).strftime(time_format)
    values = np.random.default_rng(0).uniform(95, 105, (3, 120)).round(1)
    quiet = pd.concat(pd.DataFrame({"date": times, "store": k, "y": row}) for k, row in enumerate(values))
    quiet.to_csv(tmp_path / "a.csv", index=False)
    values[1, 100] = 30
    loud = pd.concat(pd.DataFrame({"date": times, "store": k, "y": row}) for k, row in enumerate(values))
    loud.to_csv(tmp_path / "b.csv", index=False)
    options = ("--model", "auto", "--rules", "value", "--rate", "0.002")
    code, none, err = run("detect", tmp_path / "a.csv", *options)
    assert code == 0 and none.startswith("store,begin,end,") and none.count("\n") == 1 and "0 incidents" in err
    one = f"1,{times[100]},{times[100]},1,y,30,"
    code, found, err = run("detect", tmp_path / "b.csv", *options)
    assert code == 0 and found.startswith(none + one) and found.count("\n") == 2 and "1 incident " in err
    code, joined, _ = run("detect", tmp_path, *options)
    assert code == 0 and joined == f"file,{none}b.csv,{found.removeprefix(none)}"
    code, rows, _ = run("detect", tmp_path, *options, "--rows")
    assert code == 0 and rows.splitlines()[1].startswith(f"b.csv,{times[100]},1,30,") and rows.count("\n") == 2
    for data in (tmp_path / "b.csv", tmp_path):
        detected: Any = rfa.detect(data, 0.002, model="auto", rules=["value"])
        (incident,) = detected.incidents.to_dict("records")
        assert incident["begin"] == incident["time"] == times[100]
    detected = rfa.detect(tmp_path / "a.csv", 0.002, model="auto", rules=["value"])
    assert len(detected.incidents) == 0
    code, _, err = run("detect", tmp_path, *options[:-1], "1e-9", "--out", tmp_path / "none.parquet")
    empty = parquet.read_table(tmp_path / "none.parquet")
    assert code == 0 and len(empty) == 0 and not any(map(pa.types.is_null, empty.schema.types)), err
