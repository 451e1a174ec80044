"""What `rfa.filter`, `forecast` and `detect` refuse, and what they warn of."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import rfa
from rfa.library import models
from rfa.runtime.messages import COMPILING
from tests.library.frames import readings, same


def test_one_bad_series_is_named_and_costs_the_others_nothing() -> None:
    frame = pl.DataFrame({"key": ["a"] * 3 + ["b"] * 3, "x": [1.0, 2.0, 3.0, 1e13, None, 2.0]})
    with pytest.warns(UserWarning, match="left out: series 'b': row 4, column 'x': values must be at most 1e\\+12"):
        found = rfa.filter(frame, by="key", alarm=0.1)
    assert found["x_mean"].null_count() == 3 and found["alarm"].to_list()[3:] == [False] * 3
    same(found["x_mean"][:3], rfa.filter(frame[:3], by="key")["x_mean"])
    with pytest.raises(ValueError, match="series 'b'"):
        rfa.filter(frame[3:], by="key")


def test_cells_that_are_no_numbers_are_warned_of() -> None:
    frame = pd.DataFrame({"x": [1.0, math.inf, 2.0]})
    with pytest.warns(UserWarning, match="row 2, column 'x': the value is not finite .* read as missing"):
        found = rfa.filter(frame)
    assert np.isnan(found["nis"][1])
    with pytest.raises(ValueError, match="or read the file without strict"):
        rfa.filter(frame, strict=True)


def test_what_is_no_measurement_is_left_alone() -> None:
    frame = pd.DataFrame(
        {1: [1.0, 2.0, 3.0], "label": ["a", "b", "c"], "any": [object(), {}, 3], "on": [True, False, True]}
    )
    found = rfa.filter(frame)
    assert found.columns.tolist()[:7] == [1, "label", "any", "on", "1_mean", "1_std", "1_low50"]
    pd.testing.assert_frame_equal(found[frame.columns.tolist()], frame)


@pytest.mark.parametrize(
    ("data", "options", "reported"),
    [
        (lambda: pd.DataFrame({"x": ["a", "b"]}), {}, "no value column"),
        (lambda: pd.DataFrame({"x": []}), {}, "no rows"),
        (lambda: pd.DataFrame({"x": [1.0]}), {"columns": "z"}, "no column is called 'z'; the columns are 'x'"),
        (lambda: pd.DataFrame({"x": [1.0]}), {"time": "z"}, "no column is called 'z'"),
        (lambda: pd.DataFrame({"x": [1.0]}), {"by": "z"}, "no column is called 'z'"),
        (lambda: pd.DataFrame({"x": [1.0]}), {"time": [1.0]}, "time must be the name of a column"),
        (lambda: pd.DataFrame({"x": [1.0], "nis": ["a"]}), {}, "column 'nis', which the result would add; rename it"),
        (lambda: pl.DataFrame({"x": [1.0], "x_mean": ["a"]}), {}, "column 'x_mean'"),
        (lambda: pl.DataFrame({"x": [1.0]}).lazy(), {}, "collect\\(\\) on it"),
        (lambda: pd.DataFrame({"time": [None, 1], "x": [1.0, 2]}), {}, "row 1, column 'time': the time is missing"),
        (
            lambda: pd.DataFrame({"time": ["1/2/2024", "1/3/2024"], "x": [1.0, 2]}),
            {},
            "matches several time formats; specify time_format='%d/%m/%Y' or time_format=",
        ),
        (lambda: pd.DataFrame({"time": ["2024-01-01"], "x": [1.0]}), {"tz": "Mars"}, "unknown time zone 'Mars'"),
        (lambda: np.zeros((2, 2, 2)), {}, "3 dimensions"),
        (lambda: np.array(["a", "b"]), {}, "pass an array of numbers, or a frame"),
        (lambda: [1.0, "b"], {}, "pass an array of numbers, or a frame"),
        (lambda: np.zeros(3), {"time": [1.0]}, "time has 1 values, but data has 3 rows"),
        (lambda: 3.0, {}, "0 dimensions"),
        (lambda: "file.csv", {}, "file 'file.csv' does not exist"),
        (lambda: None, {}, "0 dimensions"),
        (lambda: np.zeros((3, 65)), {}, "up to 64 columns"),
        (lambda: np.zeros((3, 3)), {"model": "linear"}, "expects 2 columns, got 3"),
        (lambda: np.zeros(3), {"levels": (0.0,)}, "levels\\[0\\]"),
        (lambda: np.zeros(3), {"alarm": "1/day"}, "no time column"),
        (lambda: np.zeros(3), {"alarm": 0.9}, "alarm.rate"),
        (lambda: np.array([1.0, 1e13]), {}, "row 2, column 'y': values must be at most 1e\\+12"),
        (lambda: np.zeros(2), {"time": [0.0, 1e300]}, "row 2: times must be at most 1e\\+15"),
        (lambda: pd.DataFrame({"x": [1.0], "z": [1j]}), {}, "column 'z' contains complex numbers"),
        (
            lambda: np.zeros(3),
            {"levels": 0.9},
            "levels must be numbers between 0 and 1 such as \\(0.5, 0.9\\), got",
        ),
        (lambda: np.zeros(3), {"levels": None}, "levels must be numbers"),
    ],
)
def test_what_cannot_be_filtered_is_said_with_what_to_do(
    data: Callable[[], Any], options: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ValueError, match=reported):
        rfa.filter(data(), **options)


@pytest.mark.parametrize(
    ("horizon", "reported"),
    [
        (0, "'0'"), ("1min", "shorter than the time between two rows, 1800 s"), (2.5, "rows such as 24"),
        ("", "got ''"), (None, "rows such as"), (10_001, "at most 10,000 rows"), ("9999d", "limit of 10,000 rows"),
        (datetime.timedelta(0), "positive duration"),
    ],
)  # fmt: skip
def test_a_horizon_that_is_none_is_refused(horizon: Any, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        rfa.forecast(readings(), horizon)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"rate": 0.9}, "alarm.rate"), ({"rate": "often"}, "alarm.rate"), ({"direction": "left"}, "alarm.direction"),
        ({"quiet": -1}, "alarm.quiet"), ({"range": (2.0, 1.0)}, "alarm.range"),
        ({"min_deviation": -1}, "alarm.min_deviation"),
    ],
)  # fmt: skip
def test_an_alarm_that_is_none_is_refused(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        rfa.detect([1.0, 2.0], **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rfa.forecast([1.0, 2.0, 3.0], 2, model="auto", weights=True),
        lambda: rfa.Stream(model="auto", weights=True),
    ],
    ids=["forecast", "Stream"],
)
def test_weights_of_a_model_that_mixes_none_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="weights requires a model that combines several forecasts"):
        call()


def test_an_alarm_at_more_than_half_of_the_rows_is_refused() -> None:
    """By whichever function: of rows every 30 minutes half are 24 a day."""
    reported = "requests an alarm for more than half of the rows, which are 1,800 s apart"
    with pytest.raises(ValueError, match=reported):
        rfa.detect(readings(), "25/day", model="auto")
    with pytest.raises(ValueError, match=reported):
        rfa.filter(readings(), alarm="1/minute", model="auto")
    assert rfa.detect(readings(), "24/day", model="auto").observations


def test_what_is_compiled_is_said_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = models.call_on_compile

    def compiling(tell: Callable[[], object]) -> Any:
        tell()
        return reported(tell)

    monkeypatch.setattr(models, "call_on_compile", compiling)
    rfa.filter([1.0, 2.0], model="auto")
    assert capsys.readouterr() == ("", f"rfa: {COMPILING}\n")


def test_a_folder_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no bundle is called ''"):
        rfa.filter([1.0], model="")


def test_what_has_failed_on_the_data_is_warned_of_by_its_series() -> None:
    growth = [1.03**k for k in range(700)]
    flat = pd.DataFrame({"key": ["growth"] * 700 + ["noise"] * 700, "y": growth + readings(700)["temp"].tolist()})
    with pytest.warns(UserWarning, match="series 'growth': ") as reported:
        rfa.filter(flat, by="key", model="auto")
    assert not any("noise" in str(one.message) for one in reported)
