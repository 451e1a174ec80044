"""Options of alarms as they come from files and from Python: values of any type."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.uncertainty.alarms import OPTIONS, alarm_of

ODD = [
    None, True, -1, 5, 1.5, float("nan"), float("inf"), 10**400, "", "x", [], [1], [[1]], [None], [[None, None]], {},
    {"a": 1}, date(2026, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_of_another_type_is_an_error_of_its_option(name: str) -> None:
    refused = 0
    for value in ODD:
        try:
            alarm_of({"rate": "1/day", name: value})
        except InvalidInput as error:
            assert error.param is not None and error.param.startswith(f"alarm.{name}"), value
            refused += 1
    assert refused > len(ODD) / 2


@pytest.mark.parametrize(
    "window",
    [
        ["2026-01-01", "2026-01-03"],
        [date(2026, 1, 1), date(2026, 1, 3)],
        [datetime(2026, 1, 1), datetime(2026, 1, 3, tzinfo=UTC)],
        "2026-01-01/2026-01-03",
    ],
)
def test_windows_may_be_the_times_of_a_file_format(window: Any) -> None:
    begin, end = (datetime(2026, 1, day, tzinfo=UTC).timestamp() for day in (1, 3))
    assert alarm_of({"rate": "1/day", "mute": [window]}).mute.spans == ((begin, end),)


def test_numbers_of_numpy_are_numbers() -> None:
    rule = alarm_of({"rate": "1/day", "min_deviation": np.float32(2), "range": (np.float64(0), np.int64(9))}).rule
    assert (rule.deviation, rule.low, rule.high) == (2.0, 0.0, 9.0)
