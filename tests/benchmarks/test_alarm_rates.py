"""Alarms at a stated rate: what is counted, and how several bundles share a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.filters import alarm_rates
from rfa.benchmarks.filters.alarm_rates import BURN_IN, RATES, Series, count, with_rates
from rfa.benchmarks.results_page.filters import alarm_tables, and_others
from rfa.measured import write_result


def rows(share: float) -> dict[str, Any]:
    over = dict.fromkeys(("0.01", "0.001"), share)
    return {"nab": {"series": 1, "observations": 1_000, "over_nominal": over, "coverage": {"0.9": share}}}


def test_a_bundle_is_added_to_those_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_rates, "origin", lambda command: {"command": command})
    out = tmp_path / "alarm-rates.json"
    write_result(out, with_rates(out, "auto", rows(0.9)))
    (alone, _) = alarm_tables(json.loads(out.read_text()))
    assert [row[0] for row in alone.rows] == ["nab"]
    write_result(out, with_rates(out, "series", rows(0.5)))
    write_result(out, with_rates(out, "auto", rows(1.1)))
    document = json.loads(out.read_text())
    assert document["others"]["series"]["command"].endswith("--model series")
    assert and_others(document) == [document, document["others"]["series"]]
    alarms, coverage = alarm_tables(document)
    assert list(alarms.rows) == [
        ("nab, `auto`", "1,000", "1.10", "1.10"),
        ("nab, `series`", "1,000", "0.50", "0.50"),
    ]
    assert list(coverage.rows) == [("nab, `auto`", "110.0"), ("nab, `series`", "50.0")]


def test_anomalies_gaps_and_the_beginning_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that raises an alarm at every row, and whose intervals hold the even rows."""
    length = BURN_IN + 100
    values = np.arange(length) % 2.0
    values[BURN_IN + 10] = np.nan
    is_clean = np.arange(length) != BURN_IN + 20

    def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["fields"] == ["alarm"]:
            return {"alarm": np.ones(length)}
        ends = {"lower": -0.5, "upper": 0.5}
        return {
            f"forecast.1.0.{side}.{level!r}.y": np.full(length, end)
            for side, end in ends.items()
            for level in alarm_rates.LEVELS
        }

    monkeypatch.setattr(alarm_rates, "ask", ask)
    found = count("", "auto", Series(np.arange(float(length)), values, is_clean))
    assert found.observations == found.forecast == 98
    assert found.alarms.tolist() == [98.0] * len(RATES) and found.inside.tolist() == [48.0] * len(alarm_rates.LEVELS)
