"""A retired model: whoever names it is answered by the one in its place, and told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

import rfa
from tests.cli.commands import rfa as run_command
from tests.service.live import Live, answer, serving

VALUES = np.random.default_rng(3).normal(size=40).round(3).tolist()


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
    with live(bundles=(bundles / "linear",)) as url, connect(f"{url.replace('http', 'ws')}/filter/stream") as stream:
        stream.send(json.dumps({"model": "metrics", "return_state": True, "state_every": 2}))
        assert json.loads(stream.recv())["model"] == "auto"
        stream.send(json.dumps({"y": [1.0]}))
        assert "warnings" not in json.loads(stream.recv())
        stream.send(json.dumps({"y": [2.0]}))
        assert [warning["code"] for warning in json.loads(stream.recv())["warnings"]] == ["retired_model"]
        stream.send('{"close": true}')
        end = json.loads(stream.recv())
        assert [warning["code"] for warning in end["warnings"]] == ["retired_model"]
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
