"""The network of series through every door: HTTP, live streams, states, commands and Python, with the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

import rfa
from rfa.cli.main import app
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.series.filter import open_series
from tests.cli.commands import rfa as run_command
from tests.service.conftest import Live
from tests.service.live import answer, replies_of, serving
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


# A retired model: whoever names it is answered by the one in its place, and told so.


def without(reply: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in (*names, "timings")}


@pytest.mark.anyio
async def test_a_reply_is_that_of_auto_and_says_so() -> None:
    body = {"values": {"y": VALUES}, "seed": 1}
    async with serving("linear") as client:
        retired, auto = [await answer(client, {**body, "model": name}) for name in ("metrics", "auto")]
        many = await answer(client, {"series": {"a": {"values": {"y": VALUES}}}, "model": "metrics", "seed": 1})
    note = {
        "code": "retired_model", "horizon": None, "components": None,
        "message": "model 'metrics' was replaced by 'auto', which computed this reply; request 'auto', because the "
        "next version rejects 'metrics'",
    }  # fmt: skip
    assert retired["warnings"] == [note, *auto["warnings"]]
    assert without(retired, "warnings") == without(auto, "warnings") and retired["model"] == "auto"
    assert many["series"]["a"]["warnings"] == retired["warnings"] and many["model"] == "auto"


def test_a_stream_says_so_with_its_states_and_at_its_end(live: Live, bundles: Path) -> None:
    begin = {"model": "metrics", "return_state": True, "state_every": 2}
    with live(bundles=(bundles / "linear",)) as url:
        ready, first, second, end = replies_of(url, begin, {"y": [1.0]}, {"y": [2.0]}, {"close": True})
        assert ready["model"] == "auto" and "warnings" not in first
        assert [[one["code"] for one in reply["warnings"]] for reply in (second, end)] == [["retired_model"]] * 2
        state = {"model": "auto", "state": end["state"], "values": {"y": [3.0]}}
        assert httpx.post(f"{url}/filter", json=state).status_code == 200


def test_python_and_the_command_say_so(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="'metrics' was replaced"):
        retired = rfa.filter(np.array(VALUES), model="metrics")
    assert retired["y_mean"].tolist() == rfa.filter(np.array(VALUES), model="auto")["y_mean"].tolist()
    path = tmp_path / "values.csv"
    path.write_text("y\n" + "".join(f"{value}\n" for value in VALUES))
    code, out, err = run_command("filter", path, "--bundle", "metrics")
    assert code == 0 and "'metrics' was replaced" in err and out == run_command("filter", path, "--bundle", "auto")[1]
