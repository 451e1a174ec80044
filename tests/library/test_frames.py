"""`rfa.filter`, `forecast` and `detect` on data of every kind: answered in kind, with the numbers of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

import rfa
from rfa.library.incidents import describe_incidents
from tests.library.frames import KINDS, ZONE, as_given, asked, column, observed, readings, same, seconds
from tests.library.keys import API_KEY, STATE_KEY

FOLLOWED = (24, 1, 4, 19)  # leads that `forecast` follows for 24 rows ahead
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
    counts = describe_incidents(len(found.incidents), found.raised, found.expected)
    assert str(found) == f"296 observations, {counts}"
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


def test_a_bundle_filters_what_it_was_made_for(server: TestClient) -> None:
    values = np.random.default_rng(0).normal(size=(50, 2))
    found: Any = rfa.filter(values, time=0.1 * np.arange(50), model="linear", columns=["y0", "y1"], smooth=True)
    reply = asked(
        server, model="linear", times=(0.1 * np.arange(50)).tolist(), observations=values.tolist(), smooth=True
    )
    same(found["y1_smooth_mean"], [step["mean"][1] for step in reply["smoothed"]])
    assert len(rfa.forecast(values, 3, time=0.1 * np.arange(50), model="linear")) == 3


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
