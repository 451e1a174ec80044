"""Rows that come next: those of a forecast from the state, in every form of reply, and refused where they cannot be."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import rfa
from rfa.service.schemas.filter_fields import USUAL_AHEAD
from tests.service.live import answer
from tests.service.test_columns import arrow, send

pytestmark = pytest.mark.anyio
VALUES = (20 + 5 * np.sin(np.arange(90) / 4) + np.random.default_rng(1).normal(0, 0.3, 90)).round(3).tolist()
STEP = 1800.0
TIMES = (1.7e9 + STEP * np.arange(90)).tolist()


async def asked(client: httpx.AsyncClient, **body: Any) -> Any:
    return await answer(client, body)


async def test_numbers_and_nothing_else_are_forecast_by_the_network(client: httpx.AsyncClient) -> None:
    reply = await asked(client, values=VALUES)
    ahead = reply["ahead"]
    assert reply["model"] == "default" and ahead["t"] == list(range(90, 90 + USUAL_AHEAD))
    coming = 20 + 5 * np.sin(np.arange(90, 90 + USUAL_AHEAD) / 4)
    assert np.abs(np.array(ahead["mean.y"]) - coming).max() < 2.5
    ends = zip(ahead["lower.0.9.y"], ahead["mean.y"], ahead["upper.0.9.y"], strict=True)
    assert all(low < mean < high for low, mean, high in ends)
    # What is followed on the way was not asked for.
    assert reply["calibration"]["leads"] == []
    assert not any(name.startswith("forecast") for name in reply["columns"])


@pytest.mark.parametrize("model", ["series", "auto"])
async def test_they_are_those_of_the_library(client: httpx.AsyncClient, model: str) -> None:
    for extra in ({}, {"smooth": True}):
        ahead = (
            await asked(client, model=model, times=TIMES, values={"y": VALUES}, ahead=30, levels=[0.5, 0.9], **extra)
        )["ahead"]
        frame = np.array(list(zip(TIMES, VALUES, strict=True)), [("t", "f8"), ("y", "f8")])
        found = rfa.forecast(frame, 30, time="t", model=model)
        for name, column in (("mean.y", "y_mean"), ("std.y", "y_std"), ("upper.0.9.y", "y_high90"), ("t", "t")):
            assert ahead[name] == found[column].tolist(), (name, extra)


async def test_rows_go_on_at_the_rate_that_they_have_of_late(client: httpx.AsyncClient) -> None:
    """Here and in Python: the clock of this series has changed."""
    times = [*(60.0 * np.arange(50)), *(60.0 * 49 + np.arange(1, 41))]
    outputs = (await asked(client, values=VALUES, times=times, ahead=2))["ahead"]
    assert outputs["t"] == [times[-1] + 1, times[-1] + 2]
    ahead: Any = rfa.forecast(np.array(VALUES), 2, time=np.array(times))
    np.testing.assert_allclose(ahead["y_mean"], outputs["mean.y"])


async def test_a_state_goes_on_to_the_same_rows(client: httpx.AsyncClient) -> None:
    whole = await asked(client, values={"y": VALUES}, ahead=5)
    first = await asked(client, values={"y": VALUES[:60]}, ahead=5, return_state=True)
    rest = await asked(client, values={"y": VALUES[60:]}, ahead=5, state=first["state"])
    assert rest["ahead"] == whole["ahead"] != first["ahead"]


async def test_a_state_knows_how_far_apart_rows_are(client: httpx.AsyncClient) -> None:
    async def row(k: int, state: str | None) -> Any:
        values = {"y": VALUES[k : k + 1]}
        return await asked(client, times=TIMES[k : k + 1], values=values, ahead=4, state=state, return_state=True)

    first = await asked(client, times=TIMES[:1], values={"y": VALUES[:1]}, return_state=True)
    second = await row(1, first["state"])
    gone_on = await row(9, second["state"])  # after a gap
    for reply, last in ((second, 1), (gone_on, 9)):
        assert reply["ahead"]["t"] == [TIMES[last] + STEP * k for k in range(1, 5)]


async def test_leads_are_those_that_were_asked_for_and_warnings_are_of_all(client: httpx.AsyncClient) -> None:
    reply = await asked(client, values={"y": [1.03**k for k in range(600)]}, model="auto", horizon=[3.0], ahead=12)
    assert [lead["horizon"] for lead in reply["calibration"]["leads"]] == [3.0]
    outputs = {warning["horizon"]: warning["message"] for warning in reply["warnings"]}
    assert "scored because of `ahead`" in outputs[12.0] and "`ahead`" not in outputs[None]


async def test_arrow_and_many_series_have_them_too(client: httpx.AsyncClient) -> None:
    alone = (await asked(client, values={"y": VALUES}, ahead=3, levels=[0.9]))["ahead"]
    many = await asked(client, series={"one": {"values": {"y": VALUES}}}, ahead=3, levels=[0.9])
    assert many["series"]["one"]["ahead"] == alone
    reply = await send(client, arrow({"y": VALUES}), ahead=3, levels=0.9)
    assert reply.status_code == 200, reply.text
    outputs = pa.ipc.open_stream(reply.content).schema.metadata[b"rfa"]
    assert json.loads(outputs)["ahead"] == alone


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"observations": [[1.0]], "ahead": 2}, "ahead"),
        ({"values": {"y": [1.0, 2.0]}, "ahead": 1025}, "ahead"),
        ({"values": {"y": [1.0, 2.0]}, "ahead": -1}, "ahead"),
        ({"values": {"y": [1.0, 2.0]}, "times": [5, 5], "ahead": 2}, "ahead"),
        ({"values": {"x": [1.0], "v": [0.0]}, "model": "linear", "ahead": 2, "mode": "attention"}, "mode"),
    ],
)
async def test_what_cannot_be_reported_is_refused(client: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    reply = await client.post("/filter", json=body)
    assert reply.status_code == 422 and reply.json()["error"]["param"] == param, reply.text


async def test_nothing_more_is_reported_where_something_else_is_asked(client: httpx.AsyncClient) -> None:
    for body in ({"values": VALUES, "horizon": [1.0]}, {"values": {"load": VALUES}}, {"values": VALUES, "ahead": 0},
                 {"values": VALUES[:1], "times": [5.0]}):  # fmt: skip
        assert (await asked(client, **body))["ahead"] is None
