"""Alarms at a stated rate: what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.filters import alarm_rates
from rfa.benchmarks.filters.alarm_rates import BURN_IN, RATES, Series, count


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
