"""`rfa.filter`, `forecast` and `detect` on data of every kind: answered in kind, with the numbers of the server."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import rfa
from rfa.library import models
from rfa.runtime.messages import COMPILING
from tests.library.keys import API_KEY, STATE_KEY

ROWS = 300
FOLLOWED = [1.0, 4.0, 24.0]  # leads of `series` before 24 rows ahead, and these

ZONE = "Europe/Berlin"


def readings(rows: int = ROWS, seed: int = 1) -> pd.DataFrame:
    """Half-hourly readings of a room in Berlin while clocks go forward, with a gap, a spike and labels."""
    draw = np.random.default_rng(seed)
    hours = np.arange(rows) / 2
    frame = pd.DataFrame(
        {
            "temp": 20 + 3 * np.sin(2 * np.pi * hours / 24) + draw.normal(size=rows),
            "room": pd.Categorical(["hall"] * (rows // 2) + ["attic"] * (rows // 2)),
            "humidity": 50 + draw.normal(size=rows).cumsum(),
        },
        index=pd.date_range("2024-03-29", periods=rows, freq="30min", tz=ZONE, name="at"),
    )
    frame.iloc[40:44, 0] = np.nan
    frame.iloc[200:201, 0] = 60.0
    return frame


def seconds(frame: pd.DataFrame) -> list[float]:
    found: list[float] = (frame.index.as_unit("s").asi8.astype(float)).tolist()
    return found


def observed(frame: pd.DataFrame, columns: list[str]) -> list[list[float | None]]:
    return [[None if x != x else x for x in row] for row in frame[columns].to_numpy(float).tolist()]  # noqa: PLR0124


def asked(server: TestClient, **request: Any) -> Any:
    reply = server.post("/filter", json={"levels": [0.5, 0.9], **request})
    assert reply.status_code == 200, reply.text
    return reply.json()


def same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(
        np.asarray(found, np.float64), np.array([math.nan if x is None else x for x in expected], np.float64)
    )


ADDED = [
    "temp_mean", "temp_std", "temp_low50", "temp_high50", "temp_low90", "temp_high90", "humidity_mean", "humidity_std",
    "humidity_low50", "humidity_high50", "humidity_low90", "humidity_high90", "weight", "nis", "anomaly", "confidence",
]  # fmt: skip


def test_a_frame_is_filtered_as_the_server_filters_it(server: TestClient) -> None:
    frame = readings()
    found = rfa.filter(frame, alarm="2/day", smooth=True)
    rows = observed(frame, ["temp", "humidity"])
    steps = asked(server, times=seconds(frame), observations=rows, alarm={"rate": "2/day"}, smooth=True, tz=ZONE)
    for a, name in enumerate(("temp", "humidity")):
        same(found[f"{name}_mean"], [step["mean"][a] for step in steps["steps"]])
        same(found[f"{name}_std"], [step["std"][a] for step in steps["steps"]])
        for level in ("0.5", "0.9"):
            for end, part in enumerate(("low", "high")):
                same(found[f"{name}_{part}{level[2:]}0"], [step["interval"][level][a][end] for step in steps["steps"]])
        same(found[f"{name}_smooth_mean"], [step["mean"][a] for step in steps["smoothed"]])
        same(found[f"{name}_smooth_std"], [step["std"][a] for step in steps["smoothed"]])
    for name in ("weight", "nis", "anomaly", "confidence"):
        same(found[name], [step[name] for step in steps["steps"]])
    assert found["alarm"].tolist() == [bool(step["alarm"]) for step in steps["steps"]]
    assert found["alarm"].sum() == steps["calibration"]["alarms"]["raised"] > 0
    assert found["outlier"].iloc[200] and not found["outlier"].iloc[40:44].any()


def test_pandas_stay_as_they_were_with_columns_beside() -> None:
    frame = readings()
    before = frame.copy(deep=True)
    found = rfa.filter(frame)
    pd.testing.assert_frame_equal(frame, before)
    pd.testing.assert_frame_equal(found[frame.columns.tolist()], frame)
    assert found.columns.tolist() == [*frame.columns, *ADDED, "outlier"]
    pd.testing.assert_index_equal(found.index, frame.index)


def as_given(frame: pd.DataFrame) -> dict[str, Any]:
    """The same readings in every kind that has a clock."""
    flat = frame.reset_index()
    return {
        "pandas": frame,
        "pandas with a column": flat.set_index(np.arange(len(flat)) + 7),
        "pandas of Arrow": flat.convert_dtypes(dtype_backend="pyarrow"),
        "polars": pl.from_pandas(flat),
        "arrow": pa.Table.from_pandas(flat, preserve_index=False),
        "batch": pa.RecordBatch.from_pandas(flat, preserve_index=False),
        "fields": flat[["at", "temp", "humidity"]].assign(at=flat["at"].dt.tz_convert(None)).to_records(index=False),
    }


def column(found: Any, name: str) -> Any:
    if isinstance(found, pa.Table):
        return found[name].to_pandas()
    return found[name].to_numpy() if isinstance(found, pl.DataFrame) else found[name]


KINDS: dict[str, type] = {
    "pandas": pd.DataFrame, "pandas with a column": pd.DataFrame, "pandas of Arrow": pd.DataFrame,
    "polars": pl.DataFrame, "arrow": pa.Table, "batch": pa.Table, "fields": np.ndarray,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_answered_in_kind_with_the_same_numbers(kind: str) -> None:
    frame = readings()
    if kind == "fields":  # whose times have no zone
        frame = frame.tz_convert("UTC")
    given = as_given(frame)[kind]
    work: Callable[[Any], Any]
    answer: Any
    for answer, work in (
        (rfa.filter(frame, alarm=0.01), lambda data: rfa.filter(data, alarm=0.01)),
        (rfa.forecast(frame, 5), lambda data: rfa.forecast(data, 5)),
        (rfa.detect(frame, 0.01).rows, lambda data: rfa.detect(data, 0.01).rows),
    ):
        found: Any = work(given)
        assert len(found) == len(answer) > 0 and isinstance(found, KINDS[kind])
        for name in answer.columns:
            if name not in frame.columns:
                same(column(found, name), answer[name].to_numpy(float))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_given_is_in_the_answer_untouched(kind: str) -> None:
    given = as_given(readings())[kind]
    found = rfa.filter(given)
    if isinstance(found, pd.DataFrame):
        pd.testing.assert_frame_equal(found[given.columns.tolist()], given)
    elif isinstance(found, pl.DataFrame):
        assert found.select(given.columns).equals(given)
    elif isinstance(found, pa.Table):
        assert found.select(given.schema.names).equals(pa.table(given))
    else:
        for name in given.dtype.names:
            np.testing.assert_array_equal(found[name], given[name])


@pytest.mark.parametrize("kind", KINDS)
def test_forecasts_go_on_by_the_same_clock_over_the_change_of_clocks(kind: str) -> None:
    frame = readings(100)  # the last is of half past one, half an hour before clocks go forward
    found = rfa.forecast(as_given(frame)[kind], "3h")
    times = found.index if kind == "pandas" else column(found, "at")
    expected = pd.date_range("2024-03-31 03:00", periods=6, freq="30min", tz="Europe/Berlin", name="at")
    if kind == "fields":
        np.testing.assert_array_equal(times, expected.tz_convert(None).to_numpy())
    elif kind == "polars":
        assert found["at"].dtype == pl.Datetime("us", "Europe/Berlin")
        assert found["at"].to_list() == expected.to_pydatetime().tolist()
    else:
        assert [moment.isoformat() for moment in times] == [moment.isoformat() for moment in expected]
    if kind == "pandas":
        assert found.index.equals(expected) and found.index.name == expected.name
        assert (
            found.index.name == "at" and [name for name in found.columns if not name.endswith("median")] == ADDED[:12]
        )


def test_an_array_is_answered_by_one_with_fields() -> None:
    frame = readings()
    values = frame[["temp", "humidity"]].to_numpy()
    one, two = rfa.filter(values[:, 0]), rfa.filter(values, time=seconds(frame))
    assert one.dtype.names[:4] == ("y", "y_mean", "y_std", "y_low50")
    assert two.dtype.names[:5] == ("t", "y0", "y1", "y0_mean", "y0_std")
    np.testing.assert_array_equal(two["y1"], values[:, 1])
    expected = rfa.filter(frame.tz_convert("UTC"))
    same(two["y0_low90"], expected["temp_low90"])
    same(one["y_mean"], rfa.filter(values[:, 0].tolist())["y_mean"])
    assert rfa.forecast(values[:, 0], 3)["t"].tolist() == [300, 301, 302]
    dated = rfa.forecast(values, 2, time=frame.index.tz_convert(None).to_numpy())
    np.testing.assert_array_equal(dated["t"], frame.index[-1].tz_convert(None) + pd.to_timedelta([30, 60], "min"))
    found = rfa.detect(values[:, 0], 0.01)
    assert found.rows.dtype.names == (
        "y", "y_expected", "y_expected_low50", "y_expected_high50", "y_expected_low90", "y_expected_high90", "anomaly"
    )  # fmt: skip


def test_a_series_of_pandas_or_polars_is_a_frame_of_one_column() -> None:
    frame = readings()
    found = rfa.filter(frame["temp"])
    pd.testing.assert_frame_equal(found, rfa.filter(frame[["temp"]]))
    pd.testing.assert_index_equal(found.index, frame.index)
    assert rfa.filter(frame["temp"].rename(None)).columns[0] == "y"
    numbers: Any = pl.Series("temp", frame["temp"].to_numpy())
    counted = rfa.filter(numbers)
    assert counted.columns[:2] == ["temp", "temp_mean"]


def test_any_table_with_arrows_interface_is_answered_by_one_of_arrow() -> None:
    class Foreign:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.table({"t": [0, 1, 2], "x": [1.0, 2.0, 3.0]}).__arrow_c_stream__(requested_schema)

    foreign: Any = Foreign()
    assert rfa.filter(foreign).column_names[:3] == ["t", "x", "x_mean"]
    assert rfa.filter(pa.table({"x": [1.0, 2.0]}).to_reader()).num_rows == 2


def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sample(frac=1, random_state=3)


def several() -> pd.DataFrame:
    """Three series in long form, each with a clock of its own."""
    parts = [readings(240 + 30 * k, seed=k).assign(site=site) for k, site in enumerate(("north", "south", "east"))]
    return pd.concat(parts).reset_index()


@pytest.mark.filterwarnings("ignore:series .* rows were sorted:UserWarning")
@pytest.mark.parametrize("order", [lambda frame: frame, shuffled, lambda frame: frame.iloc[::-1]])
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
    with pytest.raises(ValueError, match="level 'site' that is neither the time nor a key; name it in `by`"):
        rfa.filter(levels)


def test_rows_in_another_order_stay_where_they_are() -> None:
    frame = readings()
    with pytest.warns(UserWarning, match="rows were sorted"):
        found = rfa.filter(shuffled(frame))
    pd.testing.assert_frame_equal(found.sort_index(), rfa.filter(frame), check_freq=False)
    pd.testing.assert_index_equal(found.index, shuffled(frame).index)
    with pytest.raises(ValueError, match="times decrease; without strict, rows are sorted"):
        rfa.filter(shuffled(frame), strict=True)


def test_a_stream_and_a_frame_agree_bit_for_bit() -> None:
    frame = readings()
    stream = rfa.Stream(2, alarm=0.01, tz=ZONE)
    steps = [stream.update(t, y) for t, y in zip(frame.index, frame[["temp", "humidity"]].to_numpy(), strict=True)]
    found = rfa.filter(frame, alarm=0.01)
    same(found["humidity_mean"], [step.mean[1] for step in steps])
    same(found["anomaly"], [step.anomaly for step in steps])
    same(found["temp_high90"], [step.interval["0.9"][0][1] for step in steps])
    assert found["alarm"].tolist() == [bool(step.alarm) for step in steps]


def test_a_forecast_is_that_of_a_stream_and_of_the_server(server: TestClient) -> None:
    frame = readings()[["temp"]]
    stream = rfa.Stream(horizon=[1800 * lead for lead in FOLLOWED], tz=ZONE)
    for t, y in zip(frame.index, frame["temp"], strict=True):
        stream.update(t, y)
    points = stream.forecast("12h")
    found = rfa.forecast(frame, 24)
    reply = asked(
        server, times=seconds(frame)[-1:], observations=[None], state=stream.token(STATE_KEY, api_key=API_KEY),
        horizon=[1800.0 * k for k in range(1, 25)], tz=ZONE,
    )  # fmt: skip
    for reported in (points, [type("Point", (), point) for point in reply["steps"][0]["forecast"]]):
        same(found["temp_mean"], [point.mean[0] for point in reported])
        same(found["temp_std"], [point.std[0] for point in reported])
        same(found["temp_low90"], [point.interval["0.9"][0][0] for point in reported])
        same(found["temp_high50"], [point.interval["0.5"][0][1] for point in reported])


def test_what_is_rare_is_found_and_counted(server: TestClient) -> None:
    frame = readings()[["temp"]]
    found = rfa.detect(frame, "1/day", quiet=5, direction="up")
    reply = asked(
        server, times=seconds(frame), observations=observed(frame, ["temp"]),
        alarm={"rate": "1/day", "quiet": 5, "direction": "up"}, tz=ZONE,
    )  # fmt: skip
    checks = reply["calibration"]["alarms"]
    assert (found.raised, found.expected, found.observations, list(found.bound or ())) == (
        checks["raised"], checks["expected"], checks["observations"], checks["bound"]
    )  # fmt: skip
    at = [step["index"] for step in reply["steps"] if step["alarm"]]
    assert 200 in at and found.rows.index.tolist() == frame.index[at].tolist()
    same(found.rows["temp_expected"], [frame["temp"].iloc[k] - reply["steps"][k]["innovation"][0] for k in at])
    same(found.rows["anomaly"], [reply["steps"][k]["anomaly"] for k in at])
    low, high = found.rows["temp_expected_low90"], found.rows["temp_expected_high90"]
    assert ((low < found.rows["temp_expected"]) & (found.rows["temp_expected"] < high)).all()
    assert (found.rows["temp"] > high).all()
    assert str(found) == f"296 observations, {found.raised} alarms, {found.expected:.3g} expected"
    assert repr(found) == f"{found}\n{found.incidents!r}"


def test_limits_are_alarms_however_rare() -> None:
    found = rfa.detect(readings()["temp"], 1e-9, range=(None, 59.0))
    assert found.rows["temp"].tolist() == [60.0] and found.raised == 1
    given: Any = [99.0, 1.0, 1.0]
    first = rfa.detect(given, 1e-9, range=(0.0, 59.0)).rows
    assert first["y"].tolist() == [99.0] and np.isnan(first["y_expected"]).all()


def test_nothing_rare_is_no_rows() -> None:
    found = rfa.detect(pl.DataFrame({"x": [1.0, 2.0, 1.0, 2.0]}))
    assert found.rows.height == 0 and found.raised == 0 and "x_expected" in found.rows.columns


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


def test_one_bad_series_is_named_and_costs_the_others_nothing() -> None:
    frame = pl.DataFrame({"key": ["a"] * 3 + ["b"] * 3, "x": [1.0, 2.0, 3.0, 1e13, None, 2.0]})
    with pytest.warns(UserWarning, match="left out: series 'b': row 4, column 'x': values must be at most 1e\\+12"):
        found = rfa.filter(frame, by="key", alarm=0.1)
    assert found["x_mean"].null_count() == 3 and found["alarm"].to_list()[3:] == [False] * 3
    same(found["x_mean"][:3], rfa.filter(frame[:3], by="key")["x_mean"])
    with pytest.raises(ValueError, match="series 'b'"):
        rfa.filter(frame[3:], by="key")


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
    with pytest.raises(ValueError, match="end in 2262; use microseconds"):
        rfa.forecast(frame, 10, model="auto")
    frame.index = frame.index.as_unit("us")
    assert rfa.forecast(frame, 10, model="auto").index[-1] == pd.Timestamp("2262-04-20")


def test_cells_that_are_no_numbers_are_warned_of() -> None:
    frame = pd.DataFrame({"x": [1.0, math.inf, 2.0]})
    with pytest.warns(UserWarning, match="row 2, column 'x': not finite .* read as missing"):
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
            "choose one: time_format='%d/%m/%Y' or time_format=",
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
    with pytest.raises(ValueError, match="weights requires a mixture such as default"):
        call()


def test_an_alarm_at_more_than_half_of_the_rows_is_refused() -> None:
    """By whichever function: of rows every 30 minutes half are 24 a day."""
    reported = "requests an alarm for more than half of the rows, which are 1,800 s apart"
    with pytest.raises(ValueError, match=reported):
        rfa.detect(readings(), "25/day", model="auto")
    with pytest.raises(ValueError, match=reported):
        rfa.filter(readings(), alarm="1/minute", model="auto")
    assert rfa.detect(readings(), "24/day", model="auto").observations


def test_a_bundle_filters_what_it_was_made_for(server: TestClient) -> None:
    values = np.random.default_rng(0).normal(size=(50, 2))
    found: Any = rfa.filter(values, time=0.1 * np.arange(50), model="linear", columns=["y0", "y1"], smooth=True)
    reply = asked(
        server, model="linear", times=(0.1 * np.arange(50)).tolist(), observations=values.tolist(), smooth=True
    )
    same(found["y1_smooth_mean"], [step["mean"][1] for step in reply["smoothed"]])
    assert len(rfa.forecast(values, 3, time=0.1 * np.arange(50), model="linear")) == 3


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


def test_a_frame_goes_through_a_system(server: TestClient) -> None:
    system = {"preset": "level", "process_noise": 0.1, "measurement_noise": 0.5}
    values = [1.0, 1.5, 0.5, 9.0]
    found: Any = rfa.filter(np.array(values), system=system)
    same(
        found["y_mean"],
        [step["mean"][0] for step in asked(server, system=system, observations=[[v] for v in values])["steps"]],
    )
    with pytest.raises(ValueError, match="expects 1 columns, got 2"):
        rfa.filter(np.ones((3, 2)), system=system)
