"""Many series in a request: each as if it had come alone, whatever comes beside it, and however it comes."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from rfa.service.access.quotas import Client
from rfa.service.arrow import ARROW
from rfa.service.errors import ErrorReply
from rfa.service.schemas.many import FilterManyDone, FilterManyReply, SeriesColumns, SeriesError, SeriesSteps
from tests.service.live import serving
from tests.service.raw_asgi import asgi
from tests.service.replies import read
from tests.service.test_columns import send
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio
ASKED: dict[str, Any] = {"levels": [0.5, 0.9], "horizon": [60.0, 600.0], "seed": 3, "alarm": {"rate": 0.05}}
served = functools.partial(serving, series_threads=3)
QUERY = {"levels": "0.5,0.9", "horizon": "60.0,600.0", "seed": 3}


def walks(count: int, rows: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Series of different lengths, with gaps, some on an uneven clock."""
    rng = np.random.default_rng(seed)
    found = {}
    for k in range(count):
        length = rows + 7 * k
        values = [None if rng.random() < 0.05 else round(float(x), 3) for x in rng.normal(size=length).cumsum()]
        times = np.cumsum(rng.integers(1, 90, length)) if k % 2 else 60 * np.arange(length)
        found[f"walk {k}"] = {"times": times.astype(float).tolist(), "values": {"y": values}}
    return found


def mixed() -> dict[str, dict[str, Any]]:
    """Series of one and of two columns, as rows and as columns, with a clock and without one."""
    found = walks(5, 40)
    rows = [[1.0, 0.2], None, [0.7, None], [0.6, 0.5], [None, None], [40.0, -40.0], [0.1, 0.3]]
    found["rows"] = {"times": [0.0, 60.0, 90.0, 90.0, 200.0, 210.0, 900.0], "observations": rows}
    found["noisy"] = {"observations": rows, "noise": [None, 1, 2, 1, 1, 10, 1]}
    found["two"] = {"values": {"left": [1.0, None, 2.0], "right": [5.0, 6.0, 7.0]}, "bias": [[1.0, 0.0], None, None]}
    return found


BAD: dict[str, Any] = {
    "short": {"times": [0, 1], "values": {"y": [1.0]}},
    "text": {"values": {"y": [1.0, "x"]}},
    "backwards": {"times": [2, 1], "values": {"y": [1.0, 2.0]}},
    "empty": {"values": {"y": []}},
    "nothing": {},
    "wide": {"observations": [[0.0] * 65]},
    "forged": {"values": {"y": [1.0]}, "state": "v1.AAAA"},
    "sessions are off": {"values": {"y": [1.0]}, "return_state": "session:a"},
    "far": {"values": {"y": [1.0, 1e13]}},
}


def untimed(reply: dict[str, Any]) -> dict[str, Any]:
    return {**reply, "timings": 0}


async def many(client: httpx.AsyncClient, series: dict[str, Any], **more: Any) -> Any:
    response = await client.post("/filter", json={**ASKED, **more, "series": series})
    assert response.status_code == 200, response.text
    if "fields" not in more:
        read(FilterManyReply, response.content)
    return response.json()


async def alone(client: httpx.AsyncClient, one: dict[str, Any], **more: Any) -> Any:
    return (await client.post("/filter", json={**ASKED, **more, **one})).json()


def long_table(series: dict[str, dict[str, Any]], keys: Callable[[str], dict[str, Any]]) -> pa.Table:
    """Series of columns as one table in long format."""
    columns: dict[str, list[Any]] = {}
    for name, one in series.items():
        rows = len(one["times"])
        parts = {**{key: [value] * rows for key, value in keys(name).items()}, "t": one["times"], **one["values"]}
        if "state" in one:
            parts["state"] = [None] * (rows // 2) + [one["state"]] * (rows - rows // 2)
        for column, values in parts.items():
            columns.setdefault(column, []).extend(values)
    return pa.table(columns)


def stream(table: pa.Table, rows: int = 97) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def batches(body: bytes) -> tuple[list[tuple[pa.RecordBatch, Any]], Any]:
    """Every batch with what it says as a whole, and what the last one says."""
    reader, found = pa.ipc.open_stream(body), []
    while True:
        try:
            batch = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            break
        found.append((batch.batch, json.loads(batch.custom_metadata[b"rfa"])))
    (nothing, end) = found.pop()
    assert nothing.num_rows == 0 and read(FilterManyDone, json.dumps(end).encode())
    return found, end


def named(key: str) -> dict[str, Any]:
    return {"id": key}


# Alone, in company, in any order.


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "more", [{}, {"smooth": True}, {"fields": ["mean", "anomaly"]}], ids=["plain", "smooth", "few"]
)
async def test_a_series_among_many_is_as_alone(threads: int, more: dict[str, Any]) -> None:
    series = mixed()
    backwards = dict(reversed([*series.items(), *BAD.items()]))
    async with served(series_threads=threads) as client:
        expected = {name: untimed(await alone(client, one, **more)) for name, one in series.items()}
        found, other = await many(client, series, **more), await many(client, backwards, **more)
        assert {name: untimed(reply) for name, reply in found["series"].items()} == expected
        assert {name: untimed(other["series"][name]) for name in series} == expected
        assert (found["count"], found["failed"], other["failed"]) == (len(series), 0, len(BAD))
        assert found["observations"] == sum(
            len(one.get("observations") or one["values"].popitem()[1]) for one in series.values()
        )
        assert client.app.state.memory.leased_bytes == 0
        assert client.app.state.engine.pool_slots_in_use == 0


async def test_a_bad_series_fails_alone_with_the_error_that_it_has_alone() -> None:
    async with served() as client:
        found = await many(client, {**BAD, "good": {"values": {"y": [1.0, 2.0]}}, "no series": 7})
        for name, one in BAD.items():
            assert found["series"][name] == await alone(client, one), name
            assert read(ErrorReply, json.dumps(found["series"][name]).encode())
        assert found["series"]["no series"]["error"]["code"] == "model_type"
        assert len(found["series"]["good"]["columns"]["mean.y"]) == 2
        assert (found["count"], found["failed"], found["observations"]) == (len(BAD) + 2, len(BAD) + 1, 2)
        metrics = (await client.get("/metrics")).text
        assert f'rfa_filter_series_total{{model_name="auto",outcome="failed"}} {len(BAD) + 1}.0' in metrics
        assert 'rfa_filter_series_total{model_name="auto",outcome="answered"} 1.0' in metrics
        none = await many(client, BAD)
    assert (none["failed"], none["observations"]) == (len(BAD), 0)


async def test_an_observation_out_of_range_fails_its_series_alone(connect: Any) -> None:
    from tests.service.models import FakeFilter, fake_models

    models = fake_models(filter=FakeFilter(poison=666, bomb=13))
    series = {
        "poison": {"observations": [[1, 1], [666, 1]]},
        "bomb": {"observations": [[13, 1]]},
        "good": {"observations": [[1, 2]] * 3},
    }
    async with connect(models) as client:
        response = await client.post("/filter", json={"model": "mean", "series": series})
        found = response.json()
    errors = {name: reply["error"] for name, reply in found["series"].items() if "error" in reply}
    assert errors["poison"]["param"] == "observations[1]"
    assert errors["bomb"]["code"] == "internal_error" and "secret" not in errors["bomb"]["message"]
    assert [step["mean"] for step in found["series"]["good"]["steps"]] == [[1, 2]] * 3
    assert (found["failed"], found["observations"]) == (2, 4)


async def test_lines_are_the_series_as_they_end_and_a_last_one() -> None:
    series = {**mixed(), **BAD}
    async with served() as client:
        whole = await many(client, series)
        for accept in ("application/x-ndjson", "text/event-stream"):
            body = {**ASKED, "series": series, "stream": True}
            response = await client.post("/filter", json=body, headers={"Accept": accept})
            assert response.headers["content-type"].startswith(accept)
            lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
            *parts, end = map(json.loads, lines)
            assert {part.pop("series"): untimed(part) if "timings" in part else part for part in parts} == {
                name: untimed(reply) if "timings" in reply else reply for name, reply in whole["series"].items()
            }
            assert read(FilterManyDone, lines[-1].encode())
            assert untimed(end) == {"done": True, **untimed({name: whole[name] for name in whole if name != "series"})}
            for line in lines[:-1]:
                kind = SeriesError if '"error"' in line[:60] or "error" in json.loads(line) else None
                steps = SeriesSteps if "steps" in json.loads(line) else SeriesColumns
                read(kind or steps, line.encode())


async def test_a_document_with_a_part_replaced_ends_no_server() -> None:
    """Every answer is a reply to all series, or a refusal in the one error shape."""
    rng, statuses = random.Random(3), set()
    odd: list[Any] = [None, True, 0, -1, 2**63, 1e300, "", "x", [], {}, [[]], {"": 1}, [None], "session:a"]
    async with served() as client:
        for _ in range(70):
            document: Any = json.loads(json.dumps({**ASKED, "series": mixed(), "stream": False}))
            inner, parents = document, []
            while isinstance(inner, dict | list) and inner and (not parents or rng.random() < 0.8):
                parents.append(
                    (inner, key := rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner))))
                )
                inner = inner[key]
            parent, key = parents[-1]
            parent[key] = rng.choice(odd)
            response = await client.post("/filter", json=document)
            statuses.add(response.status_code)
            if response.status_code != 200:
                read(ErrorReply, response.content)
            elif document.get("stream") is not True and document.get("series"):
                read(FilterManyReply, response.content)
                assert response.json()["count"] == len(document["series"])
        assert client.app.state.memory.leased_bytes == 0
        assert client.app.state.engine.pool_slots_in_use == 0
    assert statuses == {200, 422}


# States.


async def test_series_go_on_from_their_states_as_if_uninterrupted() -> None:
    series = walks(4, 60)
    cut = {name: {"times": one["times"][:25], "values": {"y": one["values"]["y"][:25]}} for name, one in series.items()}
    async with served() as client:
        whole = (await many(client, series, alarm=None))["series"]
        begun = (await many(client, cut, return_state=True, alarm=None))["series"]
        rest = {
            name: {"times": one["times"][25:], "values": {"y": one["values"]["y"][25:]}, "state": begun[name]["state"]}
            for name, one in series.items()
        }
        rest["walk 0"]["return_state"] = True
        ended = (await many(client, rest, seed=None, alarm=None))["series"]
        query = {**QUERY, "by": "id", "return_state": "true"}
        first = pa.ipc.open_stream((await send(client, stream(long_table(cut, named)), **query)).content).read_all()
        states = {row["id"]: row["state"] for row in first.to_pylist() if row["state"]}
        for name, one in rest.items():
            one["state"] = states[name]
        last, end = batches((await send(client, stream(long_table(rest, named)), by="id", **QUERY)).content)
    assert end["failed"] == 0 and first["state"].null_count == len(first) - 4
    for name, reply in whole.items():
        for column, values in reply["columns"].items():
            assert begun[name]["columns"][column] + ended[name]["columns"][column] == values, (name, column)
        assert ended[name]["seed"] == 3
    assert [name for name, reply in ended.items() if reply["state"]] == ["walk 0"]
    for batch, _ in last:
        columns = batch.to_pydict()
        (name,) = set(columns.pop("id"))
        assert all(
            values == whole[name]["columns"][column][25:] for column, values in columns.items() if column != "error"
        )


async def test_sessions_are_of_each_series() -> None:
    series: dict[str, Any] = {
        "a": {"values": {"y": [1.0, 2.0]}, "return_state": "session:a"},
        "b": {"values": {"y": [5.0]}},
    }
    async with served(sessions="memory") as client:
        found = (await many(client, series))["series"]
        again = await many(
            client,
            {"a": {"values": {"y": [3.0]}, "state": "session:a"}, "b": {**series["a"], "return_state": "session:a"}},
        )
    assert (found["a"]["state"], found["b"]["state"]) == ("session:a@2", None)
    assert again["series"]["a"]["columns"]["index"] == [2] and again["series"]["b"]["error"]["code"] == "session_exists"


# Deadlines, quotas and clients that leave.


async def test_a_deadline_ends_every_series_with_what_it_has() -> None:
    """Those that have not begun have no steps, and the state that they would have begun with."""
    series = walks(20, 500)
    async with served() as client:
        whole = (await many(client, series))["series"]
        cut = await many(client, series, deadline_ms=1, return_state=True)
        rest = {}
        for name, one in series.items():
            taken = len(cut["series"][name]["columns"]["index"])
            left = {"times": one["times"][taken:], "values": {"y": one["values"]["y"][taken:]}}
            if left["times"]:
                rest[name] = {**left, "state": cut["series"][name]["state"]}
        goes_on = (await many(client, rest, seed=None))["series"]
        table = stream(long_table(series, named))
        outputs, end = batches(
            (await send(client, table, by="id", **QUERY, deadline_ms=1, return_state="true")).content
        )
    assert len(rest) > 0 and cut["failed"] == 0
    assert cut["observations"] == sum(len(reply["columns"]["index"]) for reply in cut["series"].values())
    for name, reply in cut["series"].items():
        assert reply["finish_reason"] == ("deadline" if name in rest else "complete")
        more = goes_on[name]["columns"] if name in rest else {}
        for column, values in whole[name]["columns"].items():
            assert reply["columns"][column] + more.get(column, []) == values, (name, column)
    assert (end["count"], end["failed"]) == (20, 0)
    assert all(batch["state"].drop_null().to_pylist() for batch, _ in outputs)


async def test_observations_count_for_a_quota_where_they_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of a series that was refused, nor those that a deadline left."""
    key, spent = "a-key-of-sixteen-or-more", []
    monkeypatch.setattr(
        Client, "spend", lambda self, rate, amount: spent.append(amount) if rate == "observations" else None
    )
    async with served(api_keys=key, quota_observations=100) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        found = await many(client, {**walks(3, 20), **BAD})
        assert spent == [found["observations"]] == [60 + 7 + 14]
        spent.clear()
        cut = await many(client, walks(20, 1_000), deadline_ms=1)
        assert sum(spent) == cut["observations"] < spent[0]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [("lines", 0), ("plain", 1), ("table", 3), *(
        pytest.param(kind, taken, marks=pytest.mark.slow)
        for kind, taken in (("lines", 1), ("lines", 3), ("plain", 0), ("plain", 3), ("table", 0), ("table", 1))
    )],
)  # fmt: skip
async def test_a_client_that_leaves_ends_its_series(kind: str, taken: int) -> None:
    """After so many pieces of the answer, the first of which is there before any series has ended."""
    series = {**BAD, **walks(60, 100)}
    table = stream(long_table(walks(60, 100), named))
    body = table if kind == "table" else json.dumps({"series": series, "stream": kind == "lines"}).encode()
    headers = [(b"host", b"localhost"), (b"content-type", (ARROW if kind == "table" else "application/json").encode())]
    async with served(stream_buffer=4) as client:
        app, pieces, gone = client.app, [], asyncio.Event()

        async def take(message: Any) -> None:
            pieces.append(message.get("body", b""))
            if len(pieces) > taken:
                gone.set()
                await asyncio.Event().wait()

        async with asyncio.timeout(PATIENCE):
            query = b"by=id" if kind == "table" else b""
            sent = {"type": "http.request", "body": body}
            options = {"path": "/filter", "query_string": query, "headers": headers}
            await asgi(app, sent, method="POST", take=take, gone=gone, **options)
        assert b'"done":true' not in b"".join(pieces)
        await until(lambda: not app.state.engine.pool_slots_in_use and not app.state.engine._scheduler.running)
        assert app.state.memory.leased_bytes == 0


@pytest.mark.parametrize(
    "form", ["values", pytest.param("observations", marks=pytest.mark.slow)]
)  # a second and more each
async def test_a_hundred_thousand_points_fit_into_a_body_in_every_form(form: str) -> None:
    """With times and all digits, as Python writes them."""
    rng = np.random.default_rng(0)
    y, t = rng.normal(size=100_000).tolist(), (1_760_000_000 + np.arange(100_000)).tolist()
    parts = [slice(first, first + 1_000) for first in range(0, 100_000, 1_000)]
    series = {
        str(k): {"times": t[part], form: {"y": y[part]} if form == "values" else [[x] for x in y[part]]}
        for k, part in enumerate(parts)
    }
    body = json.dumps({"series": series, "fields": ["mean"], "levels": [0.9]})
    async with served(quota_observations=None) as client:
        response = await client.post("/filter", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text[:300]
    assert response.json()["observations"] == 100_000


@pytest.mark.parametrize("name", ["times", "observations", "values", "noise", "input", "bias", "state"])
async def test_what_is_of_one_series_is_not_beside_many(name: str) -> None:
    some: dict[str, Any] = {"observations": [[1]], "values": {"y": [1]}, "input": [[1]], "bias": [[1]], "state": "v1.A"}
    async with served() as client:
        response = await client.post(
            "/filter", json={"series": {"a": {"values": {"y": [1]}}}, name: some.get(name, [1])}
        )
        other = await client.post(
            "/filter", json={"series": {"a": {"values": {"y": [1]}}}, "return_state": "session:x"}
        )
        within = await many(
            client, {"a": {"values": {"y": [1]}, "levels": [0.5]}, "b": {"values": {"y": [1]}, "lvls": 1}}
        )
    assert (response.status_code, response.json()["error"]["param"]) == (422, name)
    assert other.json()["error"]["param"] == "return_state"
    assert [reply["error"]["code"] for reply in within["series"].values()] == ["of_all_series", "extra_forbidden"]
