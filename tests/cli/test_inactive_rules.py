"""Notes of `rfa detect` about alarm rules that did not have enough history."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rfa as library
from rfa.runtime.uncertainty.inactive_rules import STRETCH_HISTORY
from tests.cli.commands import rfa


def _file(path: Path, rows: int, step: str = "1h", columns: int = 1) -> Path:
    values = np.random.default_rng(5).normal(size=(rows, columns))
    frame = pd.DataFrame(values, columns=[f"x{k}" for k in range(columns)])
    frame.insert(0, "time", pd.date_range("2026-01-01", periods=rows, freq=step))
    frame.to_csv(path, index=False)
    return path


def _note(*arguments: object) -> str | None:
    code, _, err = rfa(*arguments, "--model", "auto")
    assert code == 0
    found = re.findall("^note: (.*)$", err, re.MULTILINE)
    assert len(found) <= 1
    return found[0] if found else None


def test_the_note_names_the_rules_and_what_they_need(tmp_path: Path) -> None:
    short, long = _file(tmp_path / "a.csv", 300), _file(tmp_path / "b.csv", 700)
    text = f"not all alarm rules were active yet: 'stretch' needs {STRETCH_HISTORY}; "
    text += "'standstill' and 'gap' need about 630 rows at this rate"
    assert _note("detect", short, "--rate", "0.002") == _note("filter", short, "--alarm", "0.002") == text
    assert _note("detect", long, "--rate", "0.002") is None and _note("filter", short) is None
    assert _note("detect", short, long, "--rate", "0.002") == f"1 of 2 series: {text}"
    # Neither rules that were not requested, nor rules that cannot raise an alarm with these options, are named.
    assert _note("detect", short, "--rate", "0.002", "--rules", "value") is None
    assert _note("detect", short, "--rate", "0.002", "--direction", "up") == text.split(";")[0]


@pytest.mark.parametrize(("step", "first_days", "rows"), [("1h", 48, 300), ("30min", 96, 300), ("1min", 1440, 700)])
def test_stretch_is_active_after_the_stated_history(tmp_path: Path, step: str, first_days: int, rows: int) -> None:
    options = ("--rate", "0.02", "--rules", "stretch")
    assert _note("detect", _file(tmp_path / "a.csv", first_days + rows, step), *options) is None
    shorter = _note("detect", _file(tmp_path / "b.csv", first_days + round(0.8 * rows), step), *options)
    assert shorter is not None and STRETCH_HISTORY in shorter


@pytest.mark.parametrize("columns", [1, 2])
def test_a_gap_raises_an_alarm_if_and_only_if_its_rule_is_not_named(tmp_path: Path, columns: int) -> None:
    found = []
    for rows in (31 * columns, 32 * columns):
        path = _file(tmp_path / "x.csv", rows, columns=columns)
        note = _note("detect", path, "--rate", "0.002", "--rules", "gap")
        frame = pd.read_csv(path, parse_dates=["time"])
        last = frame.iloc[-1:].assign(time=frame["time"].iloc[-1] + pd.Timedelta("100D"))
        alarms = library.detect(pd.concat([frame, last]), 0.002, model="auto", rules=["gap"]).raised
        found.append((note is None, alarms))
    assert found == [(False, 0), (True, 1)]
