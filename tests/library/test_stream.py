"""`rfa.Stream`: the same numbers as the server's, bit for bit; states that go on; refusals that leave it as it was."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

import rfa
from tests.library.keys import API_KEY, STATE_KEY
from tests.library.steps import ROWS, as_rows, asked, measured, shown


@pytest.mark.parametrize(("model", "other"), [("series", "default"), ("default", "series")])
def test_a_model_is_unaffected_by_another_that_used_its_buffers(model: str, other: str) -> None:
    """`default` and `series` share buffers of equal shape."""
    times, values = measured(2, 40)

    def steps(model: str) -> list[Any]:
        stream = rfa.Stream(2, model=model, horizon=[60.0, "1h"], alarm=0.01, seed=7, samples=2)
        return [shown(stream.update(t, y)) for t, y in zip(times.tolist(), values, strict=True)]

    alone = steps(model)
    steps(other)
    assert steps(model) == alone


@pytest.mark.parametrize(("model", "columns"), [("auto", 1), ("auto", 3), ("series", 2), ("linear", 2)])
def test_a_stream_tells_what_the_server_tells(server: TestClient, model: str, columns: int) -> None:
    times, values = measured(columns)
    stream = rfa.Stream(
        columns, model=model, levels=(0.5, 0.9), horizon=[60.0, "1h"], alarm="50/day", seed=7, samples=2
    )
    steps = [shown(stream.update(t, y)) for t, y in zip(times.tolist(), values, strict=True)]
    request = {
        "model": model, "times": times.tolist(), "observations": as_rows(values), "levels": [0.5, 0.9], "seed": 7,
        "horizon": [60.0, 3600.0], "alarm": {"rate": "50/day"}, "samples": 2,
    }  # fmt: skip
    reply = asked(server, request)
    assert steps == reply["steps"]
    assert (stream.count, stream.time, stream.columns) == (ROWS, times[-1], columns)
    checks = stream.calibration
    assert checks.coverage == reply["calibration"]["coverage"]
    assert checks.alarms is not None and checks.alarms.raised == reply["calibration"]["alarms"]["raised"]


@pytest.mark.parametrize("cut", [0, 60])
def test_a_stream_that_was_kept_as_bytes_goes_on_as_if_it_had_not(cut: int) -> None:
    times, values = measured(2)
    options: Any = {"horizon": [60.0], "alarm": {"rate": 0.01, "quiet": 5}, "levels": (0.8,)}
    whole, first = rfa.Stream(2, **options), rfa.Stream(2, **options)
    for t, y in zip(times[:cut], values[:cut], strict=True):
        assert shown(whole.update(t, y)) == shown(first.update(t, y))
    kept = first.state
    again = rfa.Stream.resume(kept)
    assert again.state == kept and again.count == cut
    for t, y in zip(times[cut:], values[cut:], strict=True):
        assert shown(again.update(t, y)) == shown(whole.update(t, y))
    assert again.state == whole.state and first.state == kept


def test_a_forecast_from_the_present_state_changes_nothing(server: TestClient) -> None:
    times, values = measured()
    stream = rfa.Stream(horizon=["1h"])
    for t, y in zip(times, values[:, 0], strict=True):
        stream.update(t, y)
    before = stream.state
    points = stream.forecast([60.0, 600.0, "1h"])
    assert stream.state == before
    assert [point.t - times[-1] for point in points] == pytest.approx([60, 600, 3600])
    # The server, asked for the same with an observation that is missing.
    request = {
        "times": [float(times[-1])], "observations": [None], "levels": [0.5, 0.9], "horizon": [60.0, 600.0, 3600.0],
        "state": stream.token(STATE_KEY, api_key=API_KEY),
    }  # fmt: skip
    assert asked(server, request)["steps"][0]["forecast"] == [vars(point) for point in points]


def test_a_forecast_is_that_of_the_step_where_no_season_was_seen() -> None:
    stream = rfa.Stream(horizon=[1.0, 5.0])
    for t in range(60):
        step = stream.update(float(t), 3.0 * t + math.sin(t * t))
    assert [vars(point) for point in stream.forecast([1.0, 5.0])] == [vars(point) for point in step.forecast]


def test_a_horizon_is_rows_or_a_span() -> None:
    stream = rfa.Stream()
    for k in range(50):
        stream.update(1800.0 * k, k % 3)
    assert [point.t for point in stream.forecast(3)] == [1800.0 * k for k in (50, 51, 52)]
    assert [point.t for point in stream.forecast("2h")] == [1800.0 * k for k in (50, 51, 52, 53)]
    assert stream.forecast(timedelta(hours=2)) == stream.forecast("2h") == stream.forecast(np.int64(4))
    for wrong, reported in (
        (0, "1 to 10000"), (10_001, "1 to 10000"), ("1min", "shorter than the time step"), ("soon", "'6h'"),
        (0.5, "rows such as 24"), ("0h", "positive"), ([-1.0], "horizon"), (["x"], "'6h'"), (None, "rows such as 24"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=reported):
            stream.forecast(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an observation first"):
        rfa.Stream().forecast(3)


def test_times_may_be_dates_or_counted() -> None:
    start = datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    seconds, dates, counted, rows = rfa.Stream(), rfa.Stream(), rfa.Stream(), rfa.Stream()
    for k in range(5):
        at = start + timedelta(minutes=k)
        here = (at, at.replace(tzinfo=None), np.datetime64(at.replace(tzinfo=None)), pd.Timestamp(at), at)[k]
        assert shown(dates.update(here, k)) == shown(seconds.update(at.timestamp(), k))
        assert shown(counted.update(None, k)) == shown(rows.update(k, k))


def test_missing_is_none_or_nan_in_any_dress() -> None:
    for nothing in (None, math.nan, [None], [math.nan], np.array([math.nan]), np.float64(math.nan)):
        stream = rfa.Stream()
        stream.update(None, 1)
        step = stream.update(None, nothing)
        assert step.nis is None and step.anomaly is None and step.mean == [1.0]


@pytest.mark.parametrize(
    ("t", "y", "reported"),
    [
        (6.0, math.inf, "y\\[0\\] must be finite"), (6.0, [-math.inf], "y\\[0\\] must be finite"),
        (6.0, 1e13, "at most 1e\\+12"), (6.0, [1.0, 2.0], "2 values, but each observation of the stream has 1"),
        (6.0, [], "0 values"),
        (6.0, "1", "must be a number"), (6.0, {1: 2}.items(), "must be a number"), (6.0, [[1.0]], "must be a number"),
        (4.0, 1.0, "4.0 comes after 5.0"), (math.nan, 1.0, "t must be finite"), (math.inf, 1.0, "t must be"),
        (1e16, 1.0, "at most 1e\\+15"), ("noon", 1.0, "t must be a number or a date"), ([1], 1.0, "t must be a number"),
        (6.0, pd.NA, "must be a number"), (6.0, [object()], "must be a number"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_the_stream_as_it_was(t: Any, y: Any, reported: str) -> None:
    stream = rfa.Stream(alarm=0.01)
    for k in range(6):
        stream.update(float(k), 2.0 * k)
    before = stream.state
    with pytest.raises(ValueError, match=reported):
        stream.update(t, y)
    assert stream.state == before
    stream.update(6.0, 12.0)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"columns": 0}, "at least 1"), ({"columns": 65}, "up to 64 columns"), ({"levels": ()}, "levels must not"),
        ({"levels": (0.5, 0.5)}, "levels\\[1\\]"), ({"levels": (1.5,)}, "levels\\[0\\]"),
        ({"horizon": [0.0]}, "horizon\\[0\\]"),
        ({"horizon": 3.0}, "must be a list"), ({"horizon": "6h"}, "must be a list"), ({"alarm": "often"}, "alarm.rate"),
        ({"alarm": {"rate": 0.1, "what": 1}}, "alarm.what"), ({"seed": -1}, "seed"), ({"samples": -1}, "samples"),
        ({"model": "linear", "columns": 3}, "expects 2 columns"), ({"model": "books"}, "not a filter"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        rfa.Stream(**options)


def test_an_unknown_bundle_is_refused_with_the_names_of_others() -> None:
    with pytest.raises(FileNotFoundError, match="linear"):
        rfa.Stream(model="nothing")


def test_an_alarm_by_the_clock_needs_a_clock() -> None:
    with pytest.raises(ValueError, match=r"alarm\.rate requires t"):
        rfa.Stream(alarm="1/day").update(None, 1.0)


MOTION = {"preset": "constant_velocity", "process_noise": 0.1, "measurement_noise": 0.25}


def test_a_stream_has_a_system_of_its_own_and_keeps_it(server: TestClient) -> None:
    values = [0.1, 1.2, 2.1, 9.0, 4.1, 5.2]
    stream, steps = rfa.Stream(system=MOTION), []
    for number, value in enumerate(values):
        steps.append(stream.update(float(number), value))
        stream = rfa.Stream.resume(stream.state)
    reply = server.post(
        "/filter", json={"system": MOTION, "times": [0, 1, 2, 3, 4, 5], "observations": [[v] for v in values]}
    ).json()
    assert [step.mean for step in steps] == [step["mean"] for step in reply["steps"]]
    with pytest.raises(ValueError, match="system and model cannot be combined"):
        rfa.Stream(model="linear", system=MOTION)
    with pytest.raises(ValueError, match=r"system\.measurement_noise is required"):
        rfa.Stream(system={"preset": "level", "process_noise": 1})


def test_a_stream_whose_intervals_fail_says_so() -> None:
    stream = rfa.Stream(model="auto")
    for k in range(600):
        stream.update(float(k), 1.03**k)
    assert "many_outliers" in [warning.code for warning in stream.warnings]
