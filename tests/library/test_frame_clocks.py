"""`rfa.filter`, `forecast` and `detect` on tables with clocks, keys and cells of every form."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import rfa
from tests.library.frames import readings, same


def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sample(frac=1, random_state=3)


def several() -> pd.DataFrame:
    """Three series in long form, each with a clock of its own."""
    parts = [readings(204 + 4 * k, seed=k).assign(site=site) for k, site in enumerate(("north", "south", "east"))]
    return pd.concat(parts).reset_index()


@pytest.mark.filterwarnings("ignore:series .* rows were sorted:UserWarning")
@pytest.mark.parametrize("order", [shuffled, pytest.param(lambda frame: frame.iloc[::-1], marks=pytest.mark.slow)])
def test_many_series_by_key_are_each_as_alone_whatever_the_order(order: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    whole = several()
    together = rfa.filter(order(whole), by="site", alarm=0.01)
    assert together.index.tolist() == order(whole).index.tolist()
    ahead = rfa.forecast(order(whole), 4, by=["site"])
    found = rfa.detect(order(whole), 0.01, by="site")
    alone = dict(iter(whole.groupby("site")))
    for site, part in alone.items():
        expected = rfa.filter(part, alarm=0.01)
        pd.testing.assert_frame_equal(together.loc[part.index], expected)
        pd.testing.assert_frame_equal(
            ahead[ahead["site"] == site].drop(columns="site").reset_index(drop=True), rfa.forecast(part, 4)
        )
        pd.testing.assert_frame_equal(found.rows[found.rows["site"] == site].sort_index(), rfa.detect(part, 0.01).rows)
    each = [rfa.detect(part, 0.01) for part in alone.values()]
    assert found.raised == sum(one.raised for one in each) == len(found.rows)
    assert (found.observations, found.expected) == (
        sum(one.observations for one in each), pytest.approx(sum(one.expected for one in each))
    )  # fmt: skip


def test_keys_may_be_levels_of_the_index() -> None:
    whole = several()
    levels = whole.set_index(["site", "at"])
    found = rfa.filter(levels, by="site")
    pd.testing.assert_index_equal(found.index, levels.index)
    same(found["temp_mean"], rfa.filter(whole, by="site")["temp_mean"])
    ahead = rfa.forecast(levels, 2, by="site")
    assert ahead.index.names == ["site", "at"]
    assert ahead.index.get_level_values("site").tolist() == ["north"] * 2 + ["south"] * 2 + ["east"] * 2
    with pytest.raises(ValueError, match="level 'site' that is neither the time nor a key; add it to `by`"):
        rfa.filter(levels)


def test_rows_in_another_order_stay_where_they_are() -> None:
    frame = readings()
    with pytest.warns(UserWarning, match="rows were sorted"):
        found = rfa.filter(shuffled(frame))
    pd.testing.assert_frame_equal(found.sort_index(), rfa.filter(frame), check_freq=False)
    pd.testing.assert_index_equal(found.index, shuffled(frame).index)
    with pytest.raises(ValueError, match="times decrease; sort the rows, or leave out strict"):
        rfa.filter(shuffled(frame), strict=True)


def clocks() -> dict[str, tuple[Any, list[Any]]]:
    """A clock and what comes after it."""
    moment = datetime.datetime
    return {
        "numbers": ([0.0, 0.5, 1.0], [1.5, 2.0]),
        "whole numbers": ([3, 4, 5], [6, 7]),
        "seconds": ([1711756800 + 60 * k for k in range(3)], [1711756980, 1711757040]),
        "milliseconds": ([1711756800000 + 500 * k for k in range(3)], [1711756801500, 1711756802000]),
        "nanoseconds": ([1711756800 * 10**9 + 10**9 * k for k in range(3)], [1711756803 * 10**9, 1711756804 * 10**9]),
        "days": ([datetime.date(2024, 2, day) for day in (26, 27, 28)], [datetime.date(2024, 2, 29)]),
        "naive": ([moment(2024, 2, 28, hour) for hour in (21, 22, 23)], [moment(2024, 2, 29)]),
        "months": ([datetime.date(2024, month, 1) for month in (1, 2, 3)], [datetime.date(2024, 4, 1)]),
        "ends of months": ([moment(2024, 1, 31), moment(2024, 2, 29)], [moment(2024, 3, 31), moment(2024, 4, 30)]),
        "German text": (["30.01.2024 10:00", "30.01.2024 10:30"], ["30.01.2024 11:00", "30.01.2024 11:30"]),
        "text": (["2024-02-28", "2024-02-29", "2024-03-01"], ["2024-03-02", "2024-03-03"]),
    }  # fmt: skip


@pytest.mark.parametrize("clock", clocks())
def test_a_clock_goes_on_as_it_was_written(clock: str) -> None:
    times, after = clocks()[clock]
    found = rfa.forecast(pa.table({"time": times, "x": [1.0, 2.0, 3.0][: len(times)]}), len(after))
    assert found["time"].to_pylist() == after
    assert found["time"].type == pa.array(times).type


def test_a_clock_of_two_columns_goes_on_in_two() -> None:
    frame = pl.DataFrame({"date": ["2024-02-28"] * 2, "time": ["23:00", "23:30"], "x": [1.0, 2.0]})
    assert rfa.forecast(frame, 1).select("date", "time").rows() == [("2024-02-29", "00:00")]


def test_working_days_go_on_after_the_weekend() -> None:
    days = pd.bdate_range("2024-03-04", periods=15)  # to Friday the 22nd
    found = rfa.forecast(pd.DataFrame({"x": np.arange(15.0)}, days), 6)
    assert found.index.tolist() == pd.bdate_range("2024-03-25", periods=6).tolist()


def test_one_row_tells_no_step() -> None:
    with pytest.raises(ValueError, match="horizon requires two rows with different times"):
        rfa.forecast(pd.DataFrame({"x": [1.0]}, pd.DatetimeIndex(["2024-03-04"])), 6)


def test_a_naive_clock_hung_where_it_is_said_and_stays_there() -> None:
    """In Berlin three o'clock comes after half past one, of an index that knows no zone."""
    index = pd.DatetimeIndex(["2024-03-31 00:30", "2024-03-31 01:00", "2024-03-31 01:30"])
    found = rfa.forecast(pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index), 2, tz="Europe/Berlin")
    assert found.index.tolist() == [pd.Timestamp("2024-03-31 03:00"), pd.Timestamp("2024-03-31 03:30")]


def test_rows_without_a_clock_are_counted_on() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0]})
    assert rfa.forecast(frame, 2).index.tolist() == [3, 4]
    assert rfa.forecast(frame.assign(key="a"), 2, by="key")[["key", "t"]].to_numpy().tolist() == [["a", 3], ["a", 4]]
    assert rfa.forecast(pl.from_pandas(frame), 2)["t"].to_list() == [3, 4]


def test_what_is_masked_is_missing() -> None:
    values, gone = np.array([[1, 5], [2, 6], [900, 7], [3, 8]]), np.zeros((4, 2), bool)
    gone[2, 0] = True
    reported: Any = rfa.filter(np.ma.array(values, mask=gone), model="auto")
    plain: Any = rfa.filter(np.where(gone, np.nan, values), model="auto")
    for name in plain.dtype.names:
        same(reported[name], plain[name])
    rows = np.ma.array(
        [(np.datetime64("2024-01-01", "s") + k, y) for k, y in enumerate(values[:, 0])],
        mask=[(False, is_gone) for is_gone in gone[:, 0]], dtype=[("t", "M8[s]"), ("y0", "i8")],
    )  # fmt: skip
    by_field: Any = rfa.filter(rows, model="auto")
    same(by_field["y0"], plain["y0"])
    same(by_field["y0_mean"], rfa.filter(plain[["y0"]], model="auto")["y0_mean"])


def test_numbers_between_texts_are_read_as_in_a_file() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, 3.0], "z": [1.5, "n/a", 2.5]})
    found = rfa.filter(frame, model="auto")
    assert {"y_mean", "z_mean"} <= set(found.columns)
    with pytest.warns(UserWarning, match="row 2, column 'z': 'broken' is not a number .* read as missing"):
        odd = rfa.filter(frame[["z"]].replace("n/a", "broken"), model="auto")
    same(odd["z_mean"], rfa.filter(frame[["z"]], model="auto")["z_mean"])
    pd.testing.assert_frame_equal(found[frame.columns.tolist()], frame)
    with pytest.raises(ValueError, match="row 1, column 'big': values must be at most"):  # of more than 64 bits
        rfa.filter(pd.DataFrame({"big": [2**70, 1, 2]}), model="auto")


def test_a_clock_that_ends_before_the_forecast_is_refused() -> None:
    frame = pd.DataFrame({"y": np.arange(5.0)}, index=pd.date_range("2262-04-06", periods=5, freq="D", unit="ns"))
    assert len(rfa.forecast(frame, 1, model="auto")) == 1
    with pytest.raises(ValueError, match="after the year 2262; use microseconds"):
        rfa.forecast(frame, 10, model="auto")
    frame.index = frame.index.as_unit("us")
    assert rfa.forecast(frame, 10, model="auto").index[-1] == pd.Timestamp("2262-04-20")
