"""The ends of what /filter accepts: every bundle and mode answers with finite numbers, or says what is too much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rfa.service.schemas.filter_replies import FilterReply
from tests.service.live import blocking, serving
from tests.service.replies import read

SIZES = {"linear": 2, "oscillator": 2, "auto": 1}
TINY = (5e-324, 1e-310, 1e-160, 1e-45, 1e-30, 1e-12)
VALUES = st.sampled_from([0.0, *TINY, 1e-6, 1.0, 1e4, 1e9, 1e11, 1e12]).flatmap(
    lambda size: st.sampled_from([size, -size])
)


@pytest.fixture(scope="module")
def post() -> Iterator[Any]:
    """`post(body)` to a server with the three filters."""
    with blocking(serving("linear", "oscillator")) as ask:
        yield lambda body: ask("/filter", json=body)


@st.composite
def bodies(draw: Any) -> dict[str, Any]:
    """Any legal request of up to eight observations, drawn at the ends of its ranges."""
    model = draw(st.sampled_from(sorted(SIZES)))
    count = draw(st.integers(1, 8))
    row = st.none() | st.lists(st.none() | VALUES, min_size=SIZES[model], max_size=SIZES[model])
    gap = st.sampled_from([0.0, *TINY, 1e-3, 1.0, 1e9, 1e15])
    times = [draw(st.sampled_from([0.0, -1e15, 5e-324]))]
    while len(times) < count:
        times.append(min(times[-1] + draw(gap), 1e15))
    lists = {
        "noise": st.none() | st.lists(st.sampled_from([1e-6, 1.0, 1e6, None]), min_size=count, max_size=count),
        "horizon": st.lists(st.sampled_from([5e-324, 1e-30, 1.0, 1e9]), max_size=4),
        "levels": st.none()
        | st.lists(st.sampled_from([5e-324, 0.5, 0.999999999, 1 - 2**-52]), max_size=3, unique=True),
        "samples": st.sampled_from([0, 3]),
        "mode": st.sampled_from(["recurrent", "attention"] if model == "oscillator" else ["recurrent"]),
        "smooth": st.booleans(),
        "stream": st.booleans(),
    }
    observations = draw(st.lists(row, min_size=count, max_size=count))
    body = {"model": model, "observations": observations, "times": times, "seed": 1}
    return {**body, **{name: draw(values) for name, values in lists.items()}}


def check(response: httpx.Response, count: int) -> None:
    """All numbers are there and finite, or the failure is the client's and names an observation."""
    lines = [json.loads(line) for line in response.text.splitlines()]
    for refused in (line for line in lines if "index" in line and "error" in line):
        assert refused["error"]["code"] == "out_of_range"
        count -= 1
    lines = [line for line in lines if "index" not in line or "error" not in line]
    error = lines[-1].get("error")
    if error is not None:
        assert response.status_code in (200, 422), response.text
        assert (error["type"], error["code"]) == ("invalid_request", "out_of_range")
        assert error["param"].startswith("observations")
        return
    whole = lines[0] if len(lines) == 1 else {**lines[-1], "steps": lines[:-1]}
    whole.pop("done", None)
    whole.pop("refused", None)
    # The model of the reply refuses what is null or not finite where a number belongs.
    assert len(read(FilterReply, json.dumps(whole)).steps) == count


@given(body=bodies())
def test_extremes_are_answered_or_refused(post: Any, body: dict[str, Any]) -> None:
    check(post(body), len(body["observations"]))


@settings(max_examples=25)
@given(body=bodies(), cut=st.integers(1, 7))
def test_extremes_survive_a_state(post: Any, body: dict[str, Any], cut: int) -> None:
    """A stream that was cut and goes on from its state says the same as one that was not."""
    body = {**body, "mode": "recurrent", "smooth": False, "stream": False}
    cut = min(cut, len(body["observations"]) - 1)
    whole = post(body)
    if whole.status_code != 200 or not cut:
        return
    parts: list[Any] = []
    for part in (slice(cut), slice(cut, None)):
        piece = {name: body[name][part] for name in ("observations", "times", "noise") if body[name] is not None}
        state = {"state": parts[0]["state"], "return_state": True} if parts else {"return_state": True}
        response = post({**body, **piece, **state})
        assert response.status_code == 200, response.text
        parts.append(response.json())
    assert parts[0]["steps"] + parts[1]["steps"] == whole.json()["steps"]


@pytest.mark.parametrize(("smooth", "samples"), [(False, 0), (True, 2)])
def test_a_metric_that_begins_at_zero_is_followed(post: Any, smooth: bool, samples: int) -> None:
    """0, then 10¹¹ bytes: the square of that in units of a noise that is not known yet is beyond float32."""
    values = [0.0, *[1e11 * (1 + 0.01 * (i % 3)) for i in range(40)]]
    body = {"model": "auto", "observations": [[value] for value in values], "horizon": [1.0], "seed": 3}
    response = post({**body, "smooth": smooth, "samples": samples})
    assert response.status_code == 200, response.text
    steps = read(FilterReply, response.content).steps
    assert abs(steps[-1].mean[0] - 1.01e11) < 3e9
    assert abs(steps[-1].forecast[0].mean[0] - 1.01e11) < 3e9


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["recurrent", "attention"])
def test_levels_have_names_of_their_own(post: Any, mode: str, stream: bool) -> None:
    levels = [0.5, 0.9, 0.90000001, 0.999999999, 1 - 2**-52, 1e-7]
    body = {"model": "oscillator", "observations": [[0.0, 1.0], [0.1, 0.9]], "levels": levels, "horizon": [0.5, 0.5]}
    response = post({**body, "mode": mode, "stream": stream})
    assert response.status_code == 200, response.text
    first = json.loads(response.text.splitlines()[0])
    step = first if stream else first["steps"][0]
    for interval in (step["interval"], *(point["interval"] for point in step["forecast"])):
        assert list(interval) == ["0.5", "0.9", "0.90000001", "0.999999999", "0.9999999999999998", "1e-07"]
        assert [float(name) for name in interval] == levels
        widths = [high - low for name in sorted(interval, key=float) for low, high in interval[name][:1]]
        assert widths == sorted(widths)
    # Horizons are a list in the reply: one that is named twice is answered twice.
    assert step["forecast"][0] == step["forecast"][1]


@pytest.mark.parametrize(
    ("levels", "param", "code"),
    [
        ([0.5, 0.9999999999999999], "levels[1]", "out_of_range"),
        ([0.5, 0.9, 0.5], "levels[2]", "duplicate"),
        ([0.9, 0.90], "levels[1]", "duplicate"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_levels_that_cannot_be_reported_are_refused(
    post: Any, levels: list[float], param: str, code: str, stream: bool
) -> None:
    response = post({"observations": [[1.0, 2.0]], "model": "oscillator", "levels": levels, "stream": stream})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (422, param, code)
