"""Summaries of `rfa.detect`, `rfa.backtest` and `rfa detect`, which count incidents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rfa
from rfa.library.incidents import describe_incidents
from tests.cli.commands import rfa as run


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
