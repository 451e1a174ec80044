"""The examples of Home Assistant and Node-RED in the guide: their requests are made, and their replies are used."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import jinja2
import numpy as np
import pytest
import yaml

from tests.readme_blocks import Block, parse_blocks
from tests.service.live import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "connect.md"
NOW = 1_780_000_000.0


def block(language: str, word: str) -> Block:
    (found,) = (one for one in parse_blocks(PAGE.read_text("utf-8")) if one.language == language and word in one.body)
    return found


def rendered(template: str, **variables: Any) -> str:
    """A template as Home Assistant renders it, with what this one uses."""

    def number(text: str, default: str) -> float | str:
        try:
            return float(text)
        except ValueError:
            return default

    environment = jinja2.Environment()
    environment.filters["float"] = number
    return environment.from_string(template).render(**variables)


async def create(client: httpx.AsyncClient, session: str) -> None:
    """The request of the page that begins a session."""
    body = block("bash", "return_state").body
    text = body[body.index("-d '") + 4 : body.rindex("'")].replace("'$(date +%s)'", str(NOW - 300))
    document = json.loads(text)
    assert document["return_state"] == "session:living-room"
    reply = await client.post("/filter", json={**document, "return_state": f"session:{session}"})
    assert reply.status_code == 200, reply.text


async def test_home_assistant() -> None:
    (rest,) = yaml.safe_load(block("yaml", "rest:").body)["rest"]
    draw = np.random.default_rng(1)
    values = [*(f"{value:.1f}" for value in draw.normal(21, 0.3, 60)), "unavailable", "60.0"]
    (sensor,), (alarm,) = rest["sensor"], rest["binary_sensor"]
    seen = []
    async with serving(sessions="memory") as client:
        await create(client, "living-room")
        for k, value in enumerate(values):
            moment = NOW + k * rest["scan_interval"]
            body = rendered(
                rest["payload_template"],
                now=lambda: None,
                as_timestamp=lambda _, t=moment: t,
                states=lambda _, v=value: v,
            )
            reply = await client.request(
                rest["method"], httpx.URL(rest["resource"]).path, content=body, headers=rest["headers"]
            )
            assert reply.status_code == 200, reply.text
            shown = {"value_json": reply.json()}
            seen.append([rendered(one["value_template"], **shown) for one in (sensor, alarm)])
    assert abs(float(seen[-2][0]) - 21) < 1  # also of a row without a value
    assert seen[-1][1] == "True" and [is_alarm for _, is_alarm in seen[-12:-2]] == ["False"] * 10


def messages_of(function: str) -> Any:
    """What a function node makes of some messages."""
    code = f"""
    const run = new Function("msg", {json.dumps(function)});
    console.log(JSON.stringify([21.5, 21.4, "broken"].map(payload => run({{payload}}))));
    """
    run = subprocess.run(["node", "-e", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return json.loads(run.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_node_red() -> None:
    flow = json.loads(block("json", "http request").body)
    nodes = {node["type"]: node for node in flow}
    assert [[nodes["function"]["id"]], [nodes["http request"]["id"]], [nodes["switch"]["id"]]] == [
        nodes[name]["wires"][0] for name in ("inject", "function", "http request")
    ]
    messages = messages_of(nodes["function"]["func"])
    async with serving(sessions="memory") as client:
        await create(client, "pump")
        for message in messages:
            path = httpx.URL(message["url"]).path
            reply = await client.post(path, json=message["payload"], headers=message["headers"])
            assert reply.status_code == 200, reply.text
    found: Any = {"payload": reply.json()}
    for name in nodes["switch"]["property"].replace("[", ".").replace("]", "").split("."):
        found = found[int(name)] if name.isdecimal() else found[name]
    assert found is None or isinstance(found, bool)
