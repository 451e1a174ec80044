"""Systems in requests: /filter, live streams and merges with them, their states, and a server that they do not fill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from rfa.runtime.filters.compiled_system import SystemRuntime
from rfa.runtime.filters.system import System
from rfa.service.engine import system_cache as systems
from rfa.service.engine.engine import Engine
from rfa.service.schemas.filter_replies import FilterReply, MergeReply
from tests.runtime.filters.test_system import REFUSED
from tests.service.live import answer, refusal, serving
from tests.service.replies import read
from tests.service.stream_socket import Socket
from tests.service.test_columns import arrow, send

pytestmark = pytest.mark.anyio
LEVEL: dict[str, Any] = {"preset": "level", "process_noise": 0.1, "measurement_noise": 0.5}
PLANE: dict[str, Any] = {
    "preset": "constant_velocity",
    "dimensions": 2,
    "process_noise": 0.1,
    "measurement_noise": 0.25,
}
NAME = System.from_document(PLANE).name
TIMES = [0.0, 0.5, 0.5, 2.0, 2.5, 4.0]
ROWS: list[Any] = [[1.0, 2.0], [1.5, None], None, [3.0, 1.0], [40.0, 1.5], [4.0, 2.0]]
BODY: dict[str, Any] = {"system": PLANE, "times": TIMES, "observations": ROWS, "horizon": [0.5], "seed": 3}


async def post(client: httpx.AsyncClient, path: str = "/filter", **document: Any) -> Any:
    return await answer(client, document, path)


async def refused(client: httpx.AsyncClient, path: str = "/filter", **document: Any) -> dict[str, Any]:
    status, error = await refusal(client, document, path)
    assert status == 422
    found: dict[str, Any] = error
    return found


def engine_of(client: httpx.AsyncClient) -> Engine:
    engine: Engine = client.app.state.engine  # type: ignore[attr-defined]
    return engine


# What is told.


async def test_a_series_is_filtered_by_the_system_that_came_with_it() -> None:
    async with serving(sessions="memory") as client:
        reply = await client.post("/filter", json={**BODY, "levels": [0.9]})
    found = read(FilterReply, reply.content)
    alone = SystemRuntime(System.from_document(PLANE)).filter(TIMES, ROWS, levels=(0.9,), horizon=(0.5,), seed=3)
    assert found.model == NAME and NAME.startswith("system:") and found.passes == 3
    assert [step.mean for step in found.steps] == [step.mean for step in alone.steps]
    assert [step.interval for step in found.steps] == [step.interval for step in alone.steps]
    assert found.log_likelihood == alone.log_likelihood
    assert [step.weight for step in found.steps][2] is None and found.steps[4].weight < 0.1


async def test_everything_that_needs_no_graphs_is_had() -> None:
    async with serving(sessions="memory") as client:
        whole = await post(client, **BODY, samples=2, smooth=True, alarm={"rate": 0.1}, passes=1)
        assert whole["passes"] == 1 and len(whole["smoothed"]) == 6 and whole["calibration"]["alarms"]
        assert np.array(whole["steps"][0]["samples"]).shape == (2, 2)
        plain = await post(client, **BODY)
        bias, pushed = [[1.0, 0.0]] * 6, [[0.5, 0, 0, 0]] * 6
        moved = await post(
            client, **{**BODY, "observations": [None if r is None else [r[0] + 1, r[1]] for r in ROWS]}, bias=bias
        )
        driven = await post(client, **BODY, input=pushed)
        lines = (await client.post("/filter", json={**BODY, "stream": True})).text.splitlines()
    assert [step["mean"] for step in moved["steps"]] == [step["mean"] for step in plain["steps"]]
    assert driven["steps"][3]["mean"] != plain["steps"][3]["mean"]
    assert [json.loads(line) for line in lines[:-1]] == plain["steps"]


async def test_columns_and_arrow_take_a_system_too() -> None:
    table = pa.table({"t": TIMES, "x": [1.0, 1.5, None, 3, 40, 4], "y": [2.0, None, None, 1, 1.5, 2]})
    async with serving(sessions="memory") as client:
        plain = await post(client, **BODY)
        columns = {name: table[name].to_pylist() for name in ("x", "y")}
        found = await post(client, system=PLANE, times=TIMES, values=columns)
        reply = await send(client, arrow(table.to_pydict()), system=json.dumps(PLANE))
    means = np.array([step["mean"] for step in plain["steps"]])
    np.testing.assert_array_equal(found["columns"]["mean.x"], means[:, 0])
    streamed = pa.ipc.open_stream(reply.content).read_all()
    np.testing.assert_array_equal(streamed["mean.y"].to_numpy(), means[:, 1])
    assert json.loads(streamed.schema.metadata[b"rfa"])["model"] == NAME


async def test_a_live_stream_takes_its_system_in_the_first_frame() -> None:
    async with serving(sessions="memory") as client:
        plain = await post(client, **BODY)
        socket = Socket(client.app)  # type: ignore[attr-defined]
        ready = await socket.start(system=PLANE, horizon=[0.5], seed=3, return_state=True)
        assert (ready.model, ready.observation_size, ready.levels) == (NAME, 2, [0.5, 0.8, 0.9, 0.95])
        for t, row in zip(TIMES, ROWS, strict=True):
            socket.frame({"t": t, "y": row})
        socket.frame({"close": True})
        (*steps, done), _ = await socket.rest()
        assert steps == plain["steps"]
        assert done["log_likelihood"] == plain["log_likelihood"]
        onward: dict[str, Any] = {"times": [5.0], "observations": [[4.5, 2.0]], "seed": 3, "horizon": [0.5]}
        after = await post(client, system=PLANE, state=done["state"], **onward)
        whole = await post(client, **{**BODY, "times": [*TIMES, 5.0], "observations": [*ROWS, [4.5, 2.0]]})
    assert after["steps"][0] == whole["steps"][-1]


async def test_a_state_goes_on_with_the_same_system_alone() -> None:
    async with serving(sessions="memory") as client:
        first = await post(client, system=PLANE, observations=ROWS[:3], return_state=True)
        spelt = {**PLANE, "dimensions": 2, "process_noise": 0.1, "nu": 7, "damping": None}
        again = await post(client, system=spelt, observations=ROWS[3:], state=first["state"])
        assert again["steps"][0]["index"] == 3
        other = await refused(client, system={**PLANE, "nu": None}, observations=ROWS[3:], state=first["state"])
        named = await refused(client, observations=ROWS[3:], state=first["state"])
        await post(client, system=PLANE, observations=ROWS[:3], return_state="session:here")
        session = await post(client, system=PLANE, observations=ROWS[3:], state="session:here@3")
    assert (other["param"], other["code"]) == (named["param"], named["code"]) == ("state", "state_invalid")
    assert session["state"] == "session:here@6"


async def test_beliefs_of_a_system_merge() -> None:
    async with serving(sessions="memory") as client:
        states = []
        for row in ([1.0, None], [None, 2.0]):
            reply = await post(client, system=PLANE, times=[1.0], observations=[row], return_state=True)
            states.append(reply["state"])
        document = {"system": PLANE, "states": states, "return_state": False}
        merged = read(MergeReply, (await client.post("/state/merge", json=document)).content)
        error = await refused(client, "/state/merge", system=LEVEL, states=states)
    assert merged.model == NAME
    np.testing.assert_allclose(merged.mean, [1.0, 2.0], rtol=1e-6)
    assert error["param"] == "states[0]"


# What is refused.


async def test_a_system_is_in_the_place_of_a_model() -> None:
    async with serving(sessions="memory") as client:
        both = await refused(client, **BODY, model="auto")
        attention = await refused(client, **BODY, mode="attention")
        socket = Socket(client.app)  # type: ignore[attr-defined]
        socket.frame({"system": PLANE, "model": "auto"})
        (frame,), _ = await socket.rest()
        size = await refused(client, system=LEVEL, observations=ROWS)
        leads = await refused(client, system={**LEVEL, "dimensions": 64}, observations=[None], horizon=[*range(1, 65)])
    assert (both["param"], both["code"]) == (frame["error"]["param"], frame["error"]["code"])
    assert (both["param"], both["code"]) == ("system", "model_and_system")
    assert (attention["param"], attention["code"]) == ("mode", "no_such_mode") and "bundle" in attention["message"]
    assert size["param"] == "observations[0]" and "system:" in size["message"]
    assert (leads["param"], leads["code"]) == ("horizon", "too_large") and "at most 63 horizons" in leads["message"]


def plain(document: Any) -> Any:
    """As JSON has it; None where it cannot."""
    try:
        return json.loads(json.dumps(document, allow_nan=False, default=lambda array: array.tolist()))
    except ValueError:
        return None


async def test_what_is_wrong_with_a_system_is_named() -> None:
    """By the document's own rules, or before them by the types of a request: always the field, never a 500."""
    async with serving(sessions="memory") as client:
        for document, field, _ in REFUSED:
            if plain(document) is not None:
                error = await refused(client, system=plain(document), observations=[[1.0]])
                assert error["param"].startswith(field), error
        error = await refused(client, system={"A": [[-1]], "Q": 1, "R": "x"}, observations=[[1.0]])
        assert error["message"].startswith("system.R: Must be a number (times the identity matrix)")
        unstable = await refused(client, system={"A": [[1]], "Q": 1, "R": 1}, observations=[[1.0]])
        assert (unstable["param"], unstable["code"]) == ("system.A", "invalid_system")


# What a server keeps.


def numbered() -> Iterator[dict[str, Any]]:
    for k in range(1, 100_000):
        yield {**LEVEL, "process_noise": k / 1024}


async def test_large_systems_are_kept_by_their_bytes() -> None:
    async with serving(sessions="memory") as client:
        for k in range(12):
            large = {**LEVEL, "dimensions": 40, "process_noise": 1 + k}
            await post(client, system=large, observations=[[1.0] * 40], fields=["mean"])
        cache = engine_of(client)._systems
        held = sum(system.own_bytes for system in cache._cached.values())
        exposition = (await client.get("/metrics")).text
    assert 0 < cache.cached < 12 and held <= systems.MAX_CACHED_BYTES
    assert "system:" not in exposition and 'model_name="system"' in exposition


async def test_systems_are_made_one_at_a_time_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "MAX_WAITING", 3)
    async with serving(sessions="memory") as client:
        documents = numbered()
        asked = [client.post("/filter", json={"system": next(documents), "observations": [[1.0]]}) for _ in range(12)]
        replies = await asyncio.gather(*asked)
        codes = {reply.status_code for reply in replies}
        same = [client.post("/filter", json=BODY) for _ in range(3)]
        assert {reply.status_code for reply in await asyncio.gather(*same)} == {200}
        assert engine_of(client)._systems._waiting == 0
    assert codes == {200, 429}
    refused_ones = [reply for reply in replies if reply.status_code == 429]
    assert all(
        reply.json()["error"]["code"] == "systems_full" and reply.headers["retry-after"] for reply in refused_ones
    )


async def test_many_series_have_a_system_for_all_or_one_each() -> None:
    observed: dict[str, Any] = {"times": [0.0, 1.0, 2.5], "observations": [[1.0], [1.5], [0.5]]}
    other = {**LEVEL, "process_noise": 2.0}
    async with serving(sessions="memory") as client:
        alone = {
            str(name): await post(client, system=one, **observed, seed=3) for name, one in enumerate((LEVEL, other))
        }
        each = {"0": {**observed, "system": LEVEL}, "1": {**observed, "system": other}, "2": {**observed, "system": {}}}
        found = (await post(client, series=each, seed=3))["series"]
        for name, reply in alone.items():
            assert {**found[name], "timings": 0} == {**reply, "timings": 0}
        assert found["2"]["error"]["param"] == "system.A"
        shared = await post(client, series={"0": observed}, system=LEVEL, seed=3)
        assert {**shared["series"]["0"], "timings": 0} == {**alone["0"], "timings": 0}
        assert shared["model"] == alone["0"]["model"]
