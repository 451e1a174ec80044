"""The weights of the experts of `default`, and the range that no number leaves, in every form of reply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

import rfa
from rfa.cli.main import app
from rfa.runtime.series.mixture_layout import EXPERTS
from tests.service.live import answer, bundled, replies_of, running

pytestmark = pytest.mark.anyio
RNG = np.random.default_rng(1)
VALUES = (20 + 5 * np.sin(2 * np.pi * np.arange(90) / 12) + RNG.normal(0, 0.3, 90)).round(3).tolist()
# Near the border of what is possible, so that unlimited intervals lie beyond it.
SHARES = np.minimum(100, 99 + RNG.normal(0, 1, 120)).tolist()


def total(weights: dict[str, Any]) -> np.ndarray:
    return np.sum([np.array(weights[name]) for name in EXPERTS], axis=0)


async def test_steps_have_weights_of_each_horizon_and_component(client: httpx.AsyncClient) -> None:
    rows = [[value, 2 * value] for value in VALUES]
    reply = await answer(client, {"observations": rows, "horizon": [1, 12], "fields": ["forecast", "weights"]})
    first, last = reply["steps"][0]["weights"], reply["steps"][-1]["weights"]
    assert tuple(last) == EXPERTS and first["network"] == [[1, 1], [1, 1]]
    assert total(last).shape == (2, 2) and np.allclose(total(last), 1)
    assert last["network"][0] != [1, 1]
    plain = await answer(client, {"observations": rows, "horizon": [1, 12], "fields": ["forecast"]})
    assert plain["steps"] == [{k: v for k, v in step.items() if k != "weights"} for step in reply["steps"]]
    assert "weights" not in (await answer(client, {"observations": rows[:2], "horizon": [1]}))["steps"][0]


async def test_columns_have_weights_under_the_same_names(client: httpx.AsyncClient) -> None:
    body = {"horizon": [1.0], "fields": ["weights"]}
    reply = await answer(client, {**body, "values": {"y": VALUES}})
    steps = await answer(client, {**body, "observations": [[y] for y in VALUES]})
    further = await answer(client, {**body, "values": {"y": VALUES}, "ahead": 3})
    for name in EXPERTS:
        column = f"forecast.1.0.weight.{name}.y"
        assert reply["columns"][column] == [step["weights"][name][0][0] for step in steps["steps"]]
        ahead = further["ahead"][f"weight.{name}.y"]
        assert len(ahead) == 3 and ahead[0] == further["columns"][column][-1]


@pytest.mark.parametrize("model", ["series", "auto", "linear"])
async def test_models_without_experts_have_none(client: httpx.AsyncClient, model: str) -> None:
    rows = [[float(t), 0.0] if model == "linear" else [float(t)] for t in range(5)]
    reply = await answer(client, {"model": model, "observations": rows, "horizon": [1], "fields": ["weights"]})
    assert [step["weights"] for step in reply["steps"]] == [None] * 5


def test_a_stream_has_the_weights_of_a_request() -> None:
    body = {"horizon": [1], "fields": ["weights"], "range": [0, 21]}
    with running(bundled("series")) as live:
        _, *frames = replies_of(live.url, body, *({"y": [y]} for y in VALUES[:30]))
        rows = {**body, "observations": [[y] for y in VALUES[:30]]}
        assert frames == httpx.post(f"{live.url}/filter", json=rows).json()["steps"]
    stream = rfa.Stream(horizon=[1], weights=True, maximum=21)
    steps: list[Any] = [stream.update(None, y) for y in VALUES[:30]]
    assert [step.weights for step in steps] == [frame["weights"] for frame in frames]
    resumed: Any = rfa.Stream.resume(stream.state).update(None, 1.0)
    following: Any = stream.update(None, 1.0)
    assert resumed.weights == following.weights and resumed.interval == following.interval


def numbers(value: Any) -> list[float]:
    """All numbers of means, medians, bounds and samples in a reply."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in ("t", "std", "index", "innovation")}
        return [number for part in kept.values() for number in numbers(part)]
    return [number for part in value for number in numbers(part)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("model", ["default", "series", "auto"])
@pytest.mark.parametrize("smooth", [False, True])
async def test_no_number_leaves_the_range(client: httpx.AsyncClient, model: str, smooth: bool) -> None:
    rows = [[share] for share in SHARES]
    body = {"model": model, "observations": rows, "horizon": [1, 7], "samples": 20, "seed": 1, "smooth": smooth}
    names = ["mean", "interval", "forecast", "samples"]
    free = await answer(client, {**body, "fields": names})
    reply = await answer(client, {**body, "fields": names, "range": [98, 99.5]})
    assert max(numbers(free["steps"])) > 99.5 and min(numbers(free["steps"])) < 98
    for steps in (reply["steps"], reply["smoothed"] or []):
        found = numbers(steps)
        assert not found or (min(found) >= 98 and max(found) <= 99.5)
    assert reply["calibration"] == free["calibration"]
    values = {"model": model, "values": {"y": SHARES}, "ahead": 4, "range": [None, 99.5], "smooth": smooth}
    ahead = (await answer(client, values))["ahead"]
    assert max(numbers({name: part for name, part in ahead.items() if not name.startswith("std")})) <= 99.5


async def test_a_range_in_the_wrong_order_is_refused(client: httpx.AsyncClient) -> None:
    for body in ({"values": VALUES}, {"series": {"a": {"values": VALUES}}}):
        reply = await client.post("/filter", json={**body, "range": [3, 1]})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (422, "range", "out_of_range")
        assert "range[0] must be below range[1], got 3 and 1" in error["message"]


def test_the_library_and_the_command_limit_forecasts(tmp_path: Path) -> None:
    array = np.array(SHARES)
    found = rfa.forecast(array, 5, maximum=99.5, weights=True)
    ends = [found[name] for name in ("y_mean", "y_median", "y_high50", "y_high90")]
    assert np.max(ends) <= 99.5
    assert np.allclose(sum(found[f"y_weight_{name}"] for name in EXPERTS), 1)
    assert rfa.filter(array, maximum=99.5)["y_high90"].max() <= 99.5
    with pytest.raises(ValueError, match="minimum must be below maximum, got 3 and 1"):
        rfa.forecast(array, 5, minimum=3, maximum=1)
    file = tmp_path / "shares.csv"
    file.write_text("share\n" + "\n".join(map(str, SHARES)))
    run = CliRunner().invoke(app, ["forecast", str(file), "--horizon", "5", "--max", "99.5", "--weights", "--json"])
    document = json.loads(run.stdout.splitlines()[-1])
    assert max(point["interval"]["0.9"][0][1] for point in document["forecast"]) <= 99.5
    assert np.allclose(total(document["weights"]), 1)
    run = CliRunner().invoke(app, ["forecast", str(file), "--min", "3", "--max", "1"])
    assert run.exit_code and "--min must be below --max, got 3 and 1" in run.output
