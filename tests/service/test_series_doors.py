"""The network of series through every door: HTTP, live streams, states, commands and Python, with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rfa
from rfa.cli.main import app
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.series.filter import open_series
from tests.service.live import serving
from tests.small_series import exported

VALUES = (20 + np.sin(np.arange(120) / 4) + np.arange(120) / 50).round(3).tolist()


@pytest.fixture(scope="session")
def small(bundle_cache: Path) -> Path:
    return exported(bundle_cache, "small-series").path


def alone(path: Path, **given: Any) -> Any:
    return open_series(open_bundle(path)).filter(
        np.arange(120.0).tolist(), [[value] for value in VALUES], levels=(0.9,), **given
    )


@pytest.mark.anyio
async def test_over_http_in_one_request_and_in_two(small: Path) -> None:
    async with serving(str(small)) as client:
        (info,) = [one for one in (await client.get("/info")).json()["models"] if one["name"] == "small-series"]
        assert info["kind"] == "series" and info["modes"] == ["recurrent"] and info["golden_values"] > 0
        rows = [[value] for value in VALUES]
        body = {"model": "small-series", "observations": rows, "levels": [0.9], "horizon": [1, 24]}
        whole = (await client.post("/filter", json=body)).json()
        found = alone(small, horizon=(1.0, 24.0)).steps
        assert [step["mean"] for step in whole["steps"]] == [step.mean for step in found]
        assert whole["steps"][-1]["forecast"][1]["interval"]["0.9"] == found[-1].forecast[1].interval["0.9"]
        first = {**body, "observations": rows[:77], "return_state": True}
        state = (await client.post("/filter", json=first)).json()["state"]
        assert len(state) <= 64 << 10
        rest = (await client.post("/filter", json={**body, "observations": rows[77:], "state": state})).json()
        assert [step["forecast"] for step in rest["steps"]] == [step["forecast"] for step in whole["steps"][77:]]
        refused = await client.post("/filter", json={**body, "mode": "attention"})
        assert refused.status_code == 422 and refused.json()["error"]["code"] == "no_such_mode"


def test_in_python_and_by_the_command(small: Path, tmp_path: Path) -> None:
    expected = alone(small, horizon=(1.0,))
    file = tmp_path / "values.csv"
    file.write_text("y\n" + "\n".join(map(str, VALUES)) + "\n")
    frame = rfa.filter(np.array(VALUES), model=small)
    np.testing.assert_array_equal(frame["y_mean"], [step.mean[0] for step in expected.steps])
    ahead = rfa.forecast(np.array(VALUES), 24, model=small)
    assert len(ahead["y_mean"]) == 24 and (ahead["y_low90"] < ahead["y_mean"]).all()
    out = tmp_path / "out.csv"
    result = CliRunner().invoke(app, ["filter", str(file), "--bundle", str(small), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout.splitlines()[-1])["steps"]) == 120
    stream = rfa.Stream(model=small)
    for t, (value, step) in enumerate(zip(VALUES, expected.steps, strict=True)):
        assert stream.update(t, value).mean == step.mean


@pytest.mark.anyio
async def test_leads_further_than_it_was_trained_at_are_warned_of(small: Path, tmp_path: Path) -> None:
    """By every door, and not those that are within."""
    async with serving(str(small)) as client:

        async def horizons(**asked: Any) -> list[float | None]:
            body = {"model": "small-series", "values": {"y": VALUES}, **asked}
            found = (await client.post("/filter", json=body)).json()["warnings"]
            return [one["horizon"] for one in found if one["code"] == "far_ahead"]

        assert await horizons(horizon=[768.0]) == await horizons(ahead=768) == []
        assert await horizons(horizon=[1.0, 900.0, 800.0]) == [800.0]
        assert await horizons(ahead=1000) == [769.0]
    with pytest.warns(UserWarning, match=r"more than 768 steps ahead \(here up to 1,000\)"):
        rfa.forecast(np.array(VALUES), 1000, model=small)
    stream = rfa.Stream(model=small, horizon=[1000.0])
    for t, value in enumerate(VALUES[:3]):
        stream.update(t, value)
    assert [one.code for one in stream.warnings] == ["far_ahead"]
    file = tmp_path / "values.csv"
    file.write_text("y\n" + "\n".join(map(str, VALUES)) + "\n")
    result = CliRunner().invoke(app, ["filter", str(file), "--bundle", str(small), "--horizon", "1000", "--json"])
    assert "warning: forecasts more than 768 steps ahead (here up to 1,000)" in result.stderr
