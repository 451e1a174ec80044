"""`rfa.Stream`: the same numbers as the server's, bit for bit; states that go on; refusals that leave it as it was."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

import rfa
from rfa.runtime.state.keys import ephemeral_key
from tests.library.keys import API_KEY, STATE_KEY

ROWS = 200


def measured(columns: int = 1, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Times at a step that varies, and walks with a gap, spikes and a missing number."""
    draw = np.random.default_rng(3)
    values = 20 + draw.normal(size=(rows, columns)).cumsum(axis=0)
    values[50:55] = np.nan
    values[70 % rows, 0], values[90 % rows, -1] = 60, np.nan
    return 60.0 * np.arange(rows) + draw.uniform(0, 20, rows), values


def as_rows(values: np.ndarray) -> list[list[float | None] | None]:
    return [None if np.isnan(row).all() else [None if x != x else x for x in row.tolist()] for row in values]  # noqa: PLR0124


def shown(step: Any) -> dict[str, Any]:
    """A step as JSON has it."""
    return {
        **vars(step),
        "forecast": [vars(point) for point in step.forecast],
        "raised": step.raised and vars(step.raised),
        "samples": [list(sample) for sample in step.samples],
    }


def in_order(step: Any) -> dict[str, Any]:
    """A step without the marks of a late one."""
    return {name: value for name, value in shown(step).items() if name not in ("late", "recomputed", "weights")}


def asked(server: TestClient, request: dict[str, Any]) -> Any:
    reply = server.post("/filter", json=request)
    assert reply.status_code == 200, reply.text
    return reply.json()


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


@pytest.mark.parametrize("cut", [0, 1, 60, 199])
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


def test_a_stream_goes_to_the_server_and_back_bit_for_bit(server: TestClient) -> None:
    times, values = measured(2)
    whole, here = rfa.Stream(2), rfa.Stream(2)
    expected = [shown(whole.update(t, y)) for t, y in zip(times.tolist(), values, strict=True)]
    found = [shown(here.update(t, y)) for t, y in zip(times[:80].tolist(), values[:80], strict=True)]
    request = {
        "times": times[80:150].tolist(), "observations": as_rows(values[80:150]), "levels": [0.5, 0.9],
        "state": here.token(STATE_KEY, api_key=API_KEY), "return_state": True,
    }  # fmt: skip
    reply = asked(server, request)
    back = rfa.Stream.from_token(reply["state"], f"{ephemeral_key()},{STATE_KEY}", 2, api_key=API_KEY)
    found += reply["steps"] + [
        shown(back.update(t, y)) for t, y in zip(times[150:].tolist(), values[150:], strict=True)
    ]
    assert found == expected
    assert back.state == whole.state


def test_a_token_goes_on_over_the_websocket(server: TestClient) -> None:
    times, values = measured(2, 40)
    here = rfa.Stream(model="linear")
    for t, y in zip(times[:20], values[:20], strict=True):
        here.update(t, y)
    token = here.token(STATE_KEY, api_key=API_KEY)
    with server.websocket_connect("/filter/stream", headers={"X-API-Key": API_KEY}) as socket:
        socket.send_json({"model": "linear", "state": token, "levels": [0.5, 0.9]})
        assert socket.receive_json()["index"] == 20
        for t, y in zip(times[20:].tolist(), as_rows(values[20:]), strict=True):
            socket.send_json({"t": t, "y": y})
            assert socket.receive_json() == shown(here.update(t, y))


def test_a_token_opens_where_it_belongs_only() -> None:
    stream = rfa.Stream(2)
    stream.update(0.0, [1.0, 2.0])
    token = stream.token(STATE_KEY)
    assert rfa.Stream.from_token(token, STATE_KEY, 2).state == stream.state
    wrong: list[tuple[str, str, dict[str, Any]]] = [
        (token, ephemeral_key(), {}), (token[:-1], STATE_KEY, {}), (token, STATE_KEY, {"api_key": API_KEY}),
        (token, STATE_KEY, {"audience": "other"}), (token, STATE_KEY, {"columns": 1}), ("", STATE_KEY, {}),
        (token, STATE_KEY, {"model": "linear"}), (stream.token(STATE_KEY, seconds=0), STATE_KEY, {}),
    ]  # fmt: skip
    for text, key, options in wrong:
        with pytest.raises(ValueError, match="state"):
            rfa.Stream.from_token(text, key, **{"columns": 2, **options})
    with pytest.raises(ValueError, match="openssl rand -base64 32"):
        stream.token("secret")


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


def test_bytes_that_are_no_state_are_refused() -> None:
    stream = rfa.Stream()
    stream.update(None, 1.0)
    state = stream.state
    for wrong in (b"", b"RFAP\x01", state[:-1], state[:40], b"X" + state[1:], state.replace(b"default", b"defaulz"),
                  state.replace(b'"columns": 1', b'"columns": 2'), state + b"0"):  # fmt: skip
        with pytest.raises((ValueError, FileNotFoundError)):
            rfa.Stream.resume(wrong)
    with pytest.raises(ValueError, match="not the state"):
        rfa.Stream.resume("text")  # type: ignore[arg-type]
    digest = state.index(b'"digest": "') + len(b'"digest": "')
    with pytest.raises(ValueError, match="another version"):
        rfa.Stream.resume(state[:digest] + b"00" + state[digest + 2 :])


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


@pytest.mark.parametrize(("model", "columns", "seeds"), [("auto", 1, 4), ("default", 2, 2), ("linear", 2, 8)])
def test_late_observations_in_any_order_give_the_numbers_of_the_ordered_stream(
    model: str, columns: int, seeds: int
) -> None:
    """Cut in between, with refused rows in between; intervals, alarms and forecasts included."""
    times, values = measured(columns, 120)
    options: dict[str, Any] = {"model": model, "horizon": [60.0, 300.0], "alarm": 0.02, "samples": 2, "seed": 5}
    ordered = rfa.Stream(columns, **options)
    rows = list(zip(times.tolist(), values.tolist(), strict=True))
    expected = {t: shown(ordered.update(t, y)) for t, y in rows}
    for seed in range(seeds):
        draw = random.Random(seed)
        came = sorted(rows, key=lambda row: row[0] + (draw.uniform(0, 1500) if draw.random() < 0.3 else 0.0))
        stream, cut, newest = rfa.Stream(columns, late="30min", **options), draw.randrange(120), -math.inf
        for number, (t, y) in enumerate(came):
            if number == cut:
                stream = rfa.Stream.resume(stream.state)
            if draw.random() < 0.1:
                invalid: Any = draw.choice([[math.inf] * columns, "off"])
                with pytest.raises(rfa.RefusedRow):
                    stream.update(draw.choice([-5000.0, t, t]), invalid)
            step = stream.update(t, y)
            newest = max(newest, t)
            assert (t < newest) == (getattr(step, "late", False) is True)
            assert (step.index, stream.count) == (sum(other <= t for other, _ in came[:number]), number + 1)
            if {other for other, _ in came[: number + 1]} >= {other for other, _ in rows if other <= t}:
                assert in_order(step) == expected[t]
        assert stream.forecast(3) == ordered.forecast(3)
        assert (stream.time, stream._packed()[: stream._runtime.state_bytes]) == (ordered.time, ordered._packed())
        if cut == 0:
            assert stream.calibration == ordered.calibration


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_orders_of_auto_give_the_state_of_the_ordered_stream() -> None:
    options: dict[str, Any] = {"model": "auto", "horizon": [1.0], "alarm": 0.05}
    for seed in range(10_000):
        draw = random.Random(seed)
        times = sorted(draw.sample(range(200), draw.randrange(2, 24)))
        rows = [(float(t), None if draw.random() < 0.1 else draw.gauss(0, 1)) for t in times]
        length = draw.choice([5.0, 30.0, 250.0])
        came = sorted(rows, key=lambda row: row[0] + (draw.uniform(0, length) if draw.random() < 0.5 else 0.0))
        ordered, stream, cut = rfa.Stream(**options), rfa.Stream(late=length, **options), draw.randrange(48)
        for t, y in rows:
            expected = ordered.update(t, y)
        for number, (t, y) in enumerate(came):
            if number == cut:
                stream = rfa.Stream.resume(stream.state)
            step = stream.update(t, y)
            if number == len(rows) - 1 and t == expected.t:
                assert in_order(step) == shown(expected)
        assert stream._packed()[: stream._runtime.state_bytes] == ordered._packed()


def test_late_observations_with_known_columns_give_the_numbers_of_the_ordered_stream() -> None:
    options: dict[str, Any] = {"horizon": [1.0], "known": ("price", "holiday")}
    for seed in range(8):
        draw = random.Random(seed)
        rows: list[tuple[float, float, dict[str, Any]]] = [
            (float(t), draw.gauss(0, 1), {"price": [draw.gauss(0, 1), None], "holiday": float(t % 7 == 0)})
            for t in range(60)
        ]
        came = sorted(rows, key=lambda row: row[0] + (draw.uniform(0, 20) if draw.random() < 0.3 else 0.0))
        ordered, stream, cut = rfa.Stream(**options), rfa.Stream(late=30.0, **options), draw.randrange(60)
        for t, y, known in rows:
            ordered.update(t, y, known=known)
        for number, (t, y, known) in enumerate(came):
            if number == cut:
                stream = rfa.Stream.resume(stream.state)
            stream.update(t, y, known=known)
        assert stream._packed()[: stream._runtime.state_bytes] == ordered._packed()
        with pytest.raises(rfa.RefusedRow) as caught:
            stream.update(*rows[-1][:2], known=rows[-1][2])
        assert caught.value.code == "repeated"


def test_a_refused_observation_says_which_and_why() -> None:
    stream = rfa.Stream(late=100)
    for t in (0.0, 200.0, 300.0):
        stream.update(t, t)
    wrong: list[tuple[Any, Any, str]] = [
        (150.0, 1.0, "too_late"), (300.0, 300.0, "repeated"), (310.0, "off", "invalid_value"),
        ("x", 1.0, "invalid_value"),
    ]  # fmt: skip
    for t, y, code in wrong:
        with pytest.raises(rfa.RefusedRow) as caught:
            stream.update(t, y)
        assert caught.value.code == code
        assert caught.value.t == (t if code != "invalid_value" or y == "off" else None)
    assert (caught.value.index, stream.refused, stream.count) == (6, 4, 3)
    assert stream.update(300.0, 301.0).index == 3
    with pytest.raises(rfa.RefusedRow, match="comes after") as caught:
        late = rfa.Stream()
        late.update(1.0, 1.0)
        late.update(0.0, 1.0)
    assert (caught.value.code, caught.value.t, caught.value.index) == ("time_not_monotonic", 0.0, 1)
    for window in ("soon", 0, {"window": 1, "rows": 2}, {}):
        with pytest.raises(ValueError, match="late"):
            rfa.Stream(late=window)


def test_a_token_carries_the_window_to_the_server_and_back(server: TestClient) -> None:
    times, values = measured(1, 60)
    rows = list(zip(times.tolist(), values[:, 0].tolist(), strict=True))
    ordered, here = rfa.Stream(), rfa.Stream(late=600)
    for t, y in rows:
        ordered.update(t, y)
    kept = [row for row in rows if row[0] not in (times[18], times[38])]
    for t, y in kept[:19]:
        here.update(t, y)
    body = {
        "times": [times[18], *times[20:30]], "observations": as_rows(values[[18, *range(20, 30)]]), "stream": True,
        "levels": [0.5, 0.9], "state": here.token(STATE_KEY, api_key=API_KEY), "return_state": True,
        "late": {"window": "10min"},
    }  # fmt: skip
    reply = server.post("/filter", json=body)
    *lines, done = map(json.loads, reply.text.splitlines())
    assert (lines[0]["late"], lines[0]["index"]) == (True, 18)
    back = rfa.Stream.from_token(done["state"], STATE_KEY, api_key=API_KEY, late=600)
    for k in (k for k in range(30, 60) if k != 38):
        back.update(*rows[k])
        if k == 42:
            back.update(*rows[38])
    assert back.count == 60
    assert back._packed()[: back._runtime.state_bytes] == ordered._packed()
