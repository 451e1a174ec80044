"""POST /filter over a running mean: plain reply, both stream forms, missing values, and rules between fields."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rfa.service.errors import RowErrorReply
from rfa.service.schemas.filter_replies import FilterDone, FilterReply, FilterStepReply
from tests.service.live import connected
from tests.service.models import FakeFilter, fake_models
from tests.service.replies import read

pytestmark = pytest.mark.anyio
SEQUENCE = {"times": [0.0, 0.5, 0.5, 2.0], "observations": [[1.0, 2.0], None, [3.0, None], [None, 4]]}
MEANS = [[1.0, 2.0], [1.0, 2.0], [2.0, 2.0], [2.0, 3.0]]


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    if response.headers["content-type"].startswith("text/event-stream"):
        blocks = response.text.split("\n\n")
        assert blocks.pop() == ""
        return [json.loads(block.removeprefix("data: ")) for block in blocks]
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def test_one_step_per_observation(connect: Any) -> None:
    async with connect() as client:
        response = await client.post("/filter", json={**SEQUENCE, "horizon": [0.25], "samples": 2, "seed": 9})
    assert response.status_code == 200, response.text
    reply = read(FilterReply, response.content)
    assert [step.mean for step in reply.steps] == MEANS
    assert [step.t for step in reply.steps] == SEQUENCE["times"]
    assert [step.index for step in reply.steps] == [0, 1, 2, 3]
    assert set(reply.steps[0].interval) == {"0.5", "0.9"}
    assert reply.steps[3].forecast[0].t == 2.25
    assert len(reply.steps[0].samples) == 2
    assert (reply.model, reply.seed, reply.log_likelihood, reply.smoothed) == ("mean", 9, 3.0, None)


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (None, "application/x-ndjson"),
        ("*/*", "application/x-ndjson"),
        ("application/x-ndjson", "application/x-ndjson"),
        ("text/event-stream", "text/event-stream; charset=utf-8"),
    ],
)
async def test_streams_say_what_the_plain_reply_says(connect: Any, accept: str | None, media_type: str) -> None:
    async with connect() as client:
        plain = (await client.post("/filter", json={**SEQUENCE, "seed": 1})).json()
        headers = {} if accept is None else {"Accept": accept}
        response = await client.post("/filter", json={**SEQUENCE, "seed": 1, "stream": True}, headers=headers)
    assert response.headers["content-type"] == media_type
    *steps, last = lines(response)
    assert steps == plain["steps"]
    assert [read(FilterStepReply, json.dumps(step)).mean for step in steps] == MEANS
    done = read(FilterDone, json.dumps(last))
    assert (done.model, done.log_likelihood, done.seed) == (plain["model"], plain["log_likelihood"], plain["seed"])


@pytest.fixture(scope="module")
async def bounded() -> AsyncIterator[Any]:
    async with connected(max_reply_numbers=4000, max_observations=5) as client:
        yield client


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"observations": [[1, 2], [1, 2], [1, 2, 3], None]}, "observations[2]", "shape_mismatch"),
        ({"observations": []}, "observations", "too_short"),
        ({"observations": [1, 2, None, 3]}, "observations[0]", "list_type"),
        ({"observations": [[1, "2"], None, None, None]}, "observations[0][1]", "float_type"),
        ({"observations": [[1, True], None, None, None]}, "observations[0][1]", "float_type"),
        ({"observations": [[1, 1e13], None, None, None]}, "observations[0][1]", "less_than_equal"),
        ({"times": [0, 1, 2]}, "times", "length_mismatch"),
        ({"times": [0, 2, 1, 3]}, "times[2]", "time_not_monotonic"),
        ({"noise": [1, 1, 1]}, "noise", "length_mismatch"),
        ({"noise": [1, 0, 1, None]}, "noise[1]", "greater_than_equal"),
        ({"levels": [0.5, 1.0]}, "levels[1]", "less_than"),
        ({"levels": [0.77]}, "levels", "level_not_calibrated"),
        ({"horizon": [0]}, "horizon[0]", "greater_than"),
        ({"samples": -1}, "samples", "greater_than_equal"),
        ({"samples": 1024, "horizon": [1.0] * 256}, "observations", "reply_too_large"),
        ({"mode": "magic"}, "mode", "literal_error"),
        ({"seed": 2**64}, "seed", "int_type"),
        ({"seed": -1}, "seed", "greater_than_equal"),
        ({"state": "token"}, "state", "state_invalid"),
        ({"state": "session:a b"}, "state", "session_name"),
        ({"mode": "attention", "return_state": True}, "mode", "no_state"),
        ({"mode": "attention", "state": "token"}, "mode", "no_state"),
        ({"what": 1}, "what", "extra_forbidden"),
        ({"observations": [[1, 2]] * 6, "times": None}, "observations", "too_large"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_named(bounded: Any, change: dict[str, Any], param: str, code: str, stream: bool) -> None:
    response = await bounded.post("/filter", json={**SEQUENCE, **change, "stream": stream})
    after = await bounded.post("/filter", json=SEQUENCE)
    if stream and param.partition("[")[0] in ("observations", "times", "noise") and "[" in param:
        refused = [line for line in lines(response) if "error" in line]
        assert len(refused) == lines(response)[-1]["refused"] == (3 if code == "list_type" else 1)
        read(RowErrorReply, json.dumps(refused[0]))
        error = refused[0]["error"]
    else:
        assert response.status_code == 422, response.text
        error = response.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request")
    assert param.partition("[")[0] in error["message"]
    # Of one column each number is a row all the same.
    assert code != "list_type" or '"observations": [[21.4], [21.5]]' in error["message"]
    assert [step["mean"] for step in after.json()["steps"]] == MEANS


async def test_a_broken_sequence_fails_alone(connect: Any) -> None:
    body = {"observations": [[1, 2], [666, 0], [1, 1]]}
    async with connect(fake_models(filter=FakeFilter(poison=666))) as client:
        plain = await client.post("/filter", json=body)
        stream = await client.post("/filter", json={**body, "stream": True})
        after = await client.post("/filter", json=SEQUENCE)
    assert (plain.status_code, plain.json()["error"]["code"]) == (422, "out_of_range")
    assert plain.json()["error"]["param"] == "observations[1]"
    first, refused, last, done = lines(stream)
    assert first["mean"] == [1, 2] and (refused["error"]["code"], refused["index"]) == ("out_of_range", 1)
    assert (last["index"], last["mean"], done["refused"]) == (1, [1, 1.5], 1)
    assert [step["mean"] for step in after.json()["steps"]] == MEANS


# The fake forecasts the mean so far, ± the level: forecast are 3 (2 before), 4 (2 before), nothing at 0 and at null.
CHECKS = {
    "scored": 2,
    "coverage": {"0.5": 0.0, "0.9": 0.0},
    "bound": 1.0,
    "gamma": 0.025,
    "weighted_nis": 2.0,
    "pit": [0] * 9 + [2],
    "weighted_nis_bins": [0, 0, 0, 0, 2, 0, 0, 0],
    "alarms": None,
    "outliers": 0,
    "leads": [],
    "components": [{"scored": 1, "coverage": {"0.5": 0.0, "0.9": 0.0}}] * 2,
}


async def test_the_reply_says_how_its_forecasts_came_true(connect: Any) -> None:
    exact = {"observations": [[1.0, 1.0]] * 3 + [[1.7, 1.0]] + [[1.175, 1.0]] * 96}
    async with connect() as client:
        plain = (await client.post("/filter", json=SEQUENCE)).json()
        stream = await client.post("/filter", json={**SEQUENCE, "stream": True})
        smooth = (await client.post("/filter", json={**SEQUENCE, "smooth": True})).json()
        one = (await client.post("/filter", json={"observations": [[1, 2]]})).json()
        many = (await client.post("/filter", json=exact)).json()
        metrics = (await client.get("/metrics")).text
        first = [(await client.post("/filter", json={"observations": [[1.0, 1.0]] * k})).json() for k in (71, 72)]
    assert plain["calibration"] == lines(stream)[-1]["calibration"] == smooth["calibration"] == CHECKS
    nothing: dict[str, Any] = {"coverage": {"0.5": None, "0.9": None}, "bound": None, "weighted_nis": None}
    nothing |= {"pit": [0] * 10, "weighted_nis_bins": [0] * 8}
    nothing["components"] = [{"scored": 0, "coverage": nothing["coverage"]}] * 2
    assert one["calibration"] == {**CHECKS, "scored": 0, **nothing}
    checks = many["calibration"]
    assert (checks["scored"], checks["coverage"]) == (198, {"0.5": 197 / 198, "0.9": 1.0})
    # Of two columns, 70 of 70 are not yet too many: 0.9^70 > FALSE_WARNINGS / 4 / 2 > 0.9^71.
    assert plain["warnings"] == first[0]["warnings"] == []
    for reply in (first[1], many):
        assert [(found["code"], found["components"]) for found in reply["warnings"]] == [("high_coverage", [0, 1])]
    assert checks["bound"] == pytest.approx(2 * 1.025 / (0.025 * 198))
    counted = {
        "rfa_filter_forecast_observations_total": 2 * 3 + 99,
        "rfa_filter_weighted_nis_total": 2 * (2 * 3 + 99),
        "rfa_filter_forecast_scored_components_total": 2 * 3 + 198,
    }
    for name, value in counted.items():
        assert f'{name}{{model_name="mean"}} {value:.1f}' in metrics
    assert 'rfa_filter_forecast_inside_components_total{level="0.5",model_name="mean"} 197.0' in metrics
    pit = [line for line in metrics.splitlines() if line.startswith("rfa_filter_forecast_pit_components_total")]
    assert len(pit) == 10 and sum(float(line.split()[-1]) for line in pit) == 2 * 3 + 198
    # The fake always gives 2, which is the upper edge of its bin.
    for edge in ("0.1", "0.25", "0.5", "1", "2", "4", "8", "+Inf"):
        count = 2 * 3 + 99.0 if edge == "2" else 0.0
        assert f'rfa_filter_forecast_nis_observations_total{{bin="{edge}",model_name="mean"}} {count}' in metrics


async def test_an_unknown_time_zone_is_refused(connect: Any) -> None:
    async with connect() as client:
        assert (await client.post("/filter", json={**SEQUENCE, "tz": "Europe/Berlin"})).status_code == 200
        refused = await client.post("/filter", json={**SEQUENCE, "tz": "../etc/passwd"})
    assert refused.status_code == 422
    assert refused.json()["error"]["param"] == "tz"
    assert "unknown time zone" in refused.json()["error"]["message"]
