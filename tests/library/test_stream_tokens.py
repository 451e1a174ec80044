"""Tokens of `rfa.Stream`, late observations, and observations that are refused."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from starlette.testclient import TestClient

import rfa
from rfa.runtime.state.keys import ephemeral_key
from tests.library.keys import API_KEY, STATE_KEY
from tests.library.steps import as_rows, asked, in_order, measured, shown


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
        other = b"0" if state[digest : digest + 1] != b"0" else b"1"
        rfa.Stream.resume(state[:digest] + other + state[digest + 1 :])


@pytest.mark.parametrize(
    ("model", "columns", "seeds"),
    [("auto", 1, 2), ("default", 2, 1), ("linear", 2, 2), pytest.param("linear", 2, 8, marks=pytest.mark.slow)],
)
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
    for seed in range(2):
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
