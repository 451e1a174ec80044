"""Many series in a request: each as if it had come alone, whatever comes beside it, and however it comes."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pyarrow as pa
import pytest

from rfa.service.access.quotas import Client
from rfa.service.arrow import ARROW, GROUPING_BYTES, NUMBER_BYTES, decode_series
from rfa.service.errors import ErrorReply
from rfa.service.memory import DEFAULT_BUDGET_BYTES, MemoryBudget
from rfa.service.schemas.many import FilterManyDone, FilterManyReply, SeriesColumns, SeriesError, SeriesSteps
from rfa.service.setting_groups import LimitSettings
from tests.service.live import serving
from tests.service.raw_asgi import asgi
from tests.service.replies import read
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


async def send(client: httpx.AsyncClient, body: bytes, **query: Any) -> httpx.Response:
    return await client.post(f"/filter?{urlencode(query)}", content=body, headers={"Content-Type": ARROW})


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
        for _ in range(300):
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


# Long format.


def renamed(name: str) -> int:
    return int(name.removeprefix("walk "))


KEYS: dict[str, tuple[str, Callable[[str], dict[str, Any]], Callable[[Any], Any]]] = {
    "texts": ("id", named, lambda column: column),
    "views": ("id", named, lambda column: column.cast(pa.string_view())),
    "dictionary": ("id", named, lambda column: column.dictionary_encode()),
    "numbers": ("id", lambda name: {"id": renamed(name)}, lambda column: column.cast(pa.int16())),
    "two": (
        "id,half",
        lambda name: {"id": str(renamed(name) // 2), "half": renamed(name) % 2 == 0},
        lambda column: column,
    ),
}


def mixed_up(table: pa.Table, series: dict[str, dict[str, Any]], order: str) -> pa.Table:
    """The rows of all series between each other, those of a series in their order."""
    if order == "grouped":
        return table
    if order == "by time":
        return table.take(pa.array(np.argsort(table["t"].to_numpy(), kind="stable")))
    codes = np.repeat(np.arange(len(series)), [len(one["times"]) for one in series.values()])
    places = np.empty(len(codes), np.int64)
    places[np.argsort(np.random.default_rng(1).permutation(codes), kind="stable")] = np.arange(len(codes))
    return table.take(pa.array(places))


@pytest.mark.parametrize("case", KEYS)
@pytest.mark.parametrize("order", ["grouped", "by time", "shuffled"])
async def test_long_format_has_the_numbers_of_json(case: str, order: str) -> None:
    by, keys, kind = KEYS[case]
    series = walks(6, 30)
    table = mixed_up(long_table(series, keys), series, order)
    first = by.split(",")[0]
    table = table.set_column(table.column_names.index(first), first, kind(table[first]))
    async with served() as client:
        whole = await many(client, series, alarm=None)
        response = await send(client, stream(table), by=by, **QUERY)
        assert response.status_code == 200, response.text
        found, end = batches(response.content)
        assert client.app.state.memory.leased_bytes == 0
    assert (end["count"], end["failed"], end["observations"]) == (6, 0, len(table))
    by_keys = {tuple(keys(name).values()): reply for name, reply in whole["series"].items()}
    for batch, summary in found:
        assert batch.schema.names[: by.count(",") + 1] == by.split(",")
        columns = batch.to_pydict()
        (key,) = set(zip(*(columns.pop(name) for name in by.split(",")), strict=True))
        reply = by_keys.pop(key)
        assert set(columns.pop("error")) == {None}
        assert columns == reply.pop("columns")
        assert untimed(summary) == untimed(reply)
    assert not by_keys


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
async def test_dates_beyond_those_of_python_are_keys_like_others(kind: Any) -> None:
    numbers, unit = (pa.int32(), 1) if kind == pa.date32() else (pa.int64(), 86_400_000)
    dates = pa.array([unit * day for day in (2**31 - 1, -(2**31), 0) for _ in range(2)], numbers).cast(kind)
    async with served() as client:
        for column in (dates, dates.dictionary_encode()):
            response = await send(client, stream(pa.table({"id": column, "y": [1.0, 2.0] * 3})), by="id")
            assert response.status_code == 200, response.text
            table = pa.ipc.open_stream(response.content).read_all()
            keys = table["id"].cast(numbers)
            assert table["id"].type == kind and sorted(keys.to_pylist()) == sorted(dates.cast(numbers).to_pylist())


async def test_a_bad_series_of_a_table_is_a_row_with_its_error() -> None:
    series = walks(4, 20)
    series["walk 1"]["times"][5] = 0.0
    series["walk 3"]["values"]["y"][2] = 1e13
    async with served() as client:
        response = await send(client, stream(long_table(series, named)), by="id", **QUERY)
        errors = {name: (await alone(client, series[name], alarm=None)) for name in ("walk 1", "walk 3")}
        found, end = batches(response.content)
        table = pa.ipc.open_stream(response.content).read_all()
    assert (end["count"], end["failed"]) == (4, 2)
    rows = table.filter(pa.compute.is_valid(table["error"])).to_pylist()
    assert {row["id"]: json.loads(row["error"]) for row in rows} == errors
    assert all(row["t"] is None and row["mean.y"] is None for row in rows)
    assert {batch["id"][0].as_py(): summary for batch, summary in found if "error" in summary} == errors


@pytest.mark.parametrize(
    ("change", "query", "param", "code"),
    [
        ({}, {"by": "name"}, "by", "no_key"),
        ({}, {"by": ""}, "by", "no_key"),
        ({}, {"by": "id,id"}, "by", "no_key"),
        ({}, {"by": "t"}, "by", "no_key"),
        ({}, {"by": "y"}, "by", "no_key"),
        ({"id": ["a", None, "b"]}, {"by": "id"}, "id", "no_key"),
        ({"id": pa.array(["a", None, "b"]).dictionary_encode()}, {"by": "id"}, "id", "no_key"),
        ({"id": ["a" * 257, "b", "c"]}, {"by": "id"}, "id", "no_key"),
        ({"label": ["x", "y", "z"]}, {"by": "id"}, "values.label", "not_numbers"),
        ({"state": ["x", "y", "z"], "id": ["a"] * 3}, {"by": "state"}, "by", "no_key"),
        ({}, {"by": "id", "levels": "0.9,2"}, "levels[1]", "less_than"),
        ({}, {"by": "id", "model": "nope"}, "model", "model_not_found"),
        ({}, {"by": "id", "stream": "1"}, "stream", "bool_type"),
        ({}, {"by": "id", "levels": "0.9,0.9"}, "levels[1]", "duplicate"),
        ({}, {"by": "id", "passes": "2"}, "passes", "out_of_range"),
        ({}, {"by": "id", "mode": "attention"}, "mode", "no_such_mode"),
    ],
)
async def test_a_bad_table_is_refused_by_name(change: Any, query: dict[str, str], param: str, code: str) -> None:
    table = pa.table({"id": ["a", "b", "b"], "t": [0.0, 1.0, 2.0], "y": [1.0, 2.0, 3.0], **change})
    async with served() as client:
        response = await send(client, stream(table), **query)
        error = response.json()["error"]
        assert (response.status_code // 100, error["param"], error["code"]) == (4, param, code), error
        assert client.app.state.memory.leased_bytes == 0


@pytest.mark.parametrize("name", ["weight", "mean.y", "lower.0.9.y"])
async def test_a_key_is_not_called_like_a_column_of_the_answer(name: str) -> None:
    body = stream(pa.table({name: ["a", "b", "b"], "y": [1.0, 2.0, 3.0]}))
    async with served() as client:
        error = (await send(client, body, by=name, levels="0.9")).json()["error"]
        assert (error["param"], error["code"]) == ("by", "no_key") and name in error["message"]
        answer = await send(client, body, by=name, fields="nis")
        assert pa.ipc.open_stream(answer.content).schema.names == [name, "index", "t", "nis", "error"]
        assert client.app.state.memory.leased_bytes == 0
        assert client.app.state.engine.pool_slots_in_use == 0


async def test_what_would_unfold_is_refused_before_it_does() -> None:
    """Texts and nulls that take next to nothing in the body, and gigabytes as numbers or keys."""
    rows = 1_000_000
    long = pa.array(["k" * 250] * 3)
    views = pa.array([f"{'k' * 250}{i % 3}" for i in range(3)], pa.string_view())
    shared = pa.Array.from_buffers(
        pa.string_view(), rows, [None, pa.py_buffer(views.buffers()[1].to_pybytes()[:16] * rows), *views.buffers()[2:]]
    )
    y = pa.array(np.zeros(rows))
    columns = {f"y{i}": pa.nulls(rows) for i in range(64)}
    said_once = pa.DictionaryArray.from_arrays(np.zeros(50, np.int8), long)
    bodies = {
        "views": (pa.table({"id": shared, "y": y}), 422),
        "columns of nulls": (pa.table({"id": pa.array(np.zeros(rows, np.int8)), **columns}), 413),
        "rows of nulls": (pa.table({"id": pa.nulls(1_200_001, pa.int8()), "y": pa.nulls(1_200_001)}), 422),
        "dictionary": (pa.table({"id": said_once, "y": y[:50]}), 200),
    }
    async with served() as client:
        for case, (table, status) in bodies.items():
            response = await send(client, stream(table, rows), by="id", fields="mean")
            assert response.status_code == status, (case, response.text[:300])
        alone = await send(client, stream(pa.table({"y": pa.nulls(10**9)}), 10**9))
        assert (alone.status_code, alone.json()["error"]["code"]) == (422, "too_large")


@pytest.mark.parametrize("order", ["by series", "by time"])
def test_the_largest_table_fits_into_the_usual_budget(order: str) -> None:
    """With what is leased for it, from its bytes to its series."""
    settings = LimitSettings()
    rows = settings.max_arrow_observations
    keys = np.repeat([f"room of floor {k:04d}" for k in range(1_200)], rows // 1_200)
    columns = {"id": keys, "t": np.tile(np.arange(rows // 1_200, dtype=float), 1_200), "y": np.zeros(rows)}
    table = pa.table(columns)
    body = stream(table.sort_by("t") if order == "by time" else table, 100_000)
    assert 0.9 * settings.max_arrow_bytes < len(body) <= settings.max_arrow_bytes
    lease = MemoryBudget(DEFAULT_BUDGET_BYTES).take(len(body))
    tracemalloc.start()
    try:
        found, of_series = decode_series(body, ["id"], settings, lease)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found["series"]), len(of_series)) == (1_200, 1_200)
    assert kept <= lease.size - len(body)
    # While it is decoded there are its columns twice, and what tells the rows apart.
    assert peak <= lease.size - len(body) + NUMBER_BYTES * 2 * rows + GROUPING_BYTES * rows


async def test_a_damaged_table_ends_no_server() -> None:
    rng = random.Random(5)
    series = walks(3, 6)
    table = long_table(series, named)
    good = [stream(table), stream(table.set_column(0, "id", table["id"].dictionary_encode()))]
    statuses = set()
    async with served() as client:
        for k in range(400):
            body = bytearray(good[k % 2])
            for _ in range(rng.randint(1, 4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            statuses.add((await send(client, bytes(body), by="id")).status_code)
        assert (await send(client, good[0], by="id")).status_code == 200
        assert client.app.state.memory.leased_bytes == 0
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
    series = walks(20, 1_500)
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


@pytest.mark.parametrize("kind", ["lines", "plain", "table"])
@pytest.mark.parametrize("taken", [0, 1, 3])
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


# Limits.


async def test_more_than_the_server_takes_is_refused_before_it_is_looked_at() -> None:
    series: dict[str, Any] = {"a": {"values": {"y": ["x"] * 4}}, "b": {"observations": [["x"]] * 4}}
    short = {name: {"values": [1.0] * 4} for name in "ab"}
    limits: list[tuple[dict[str, int], dict[str, Any], str | None]] = [
        ({"max_series": 1}, {"series": series}, "series"),
        ({"max_observations": 1}, {"series": series}, "series"),
        ({"max_observations": 1}, {"series": short}, "series"),
        ({"max_series_numbers": 1_000}, {"series": {"a": {"values": {"y": [0.0] * 100}}}}, "series"),
    ]
    for settings, body, param in limits:
        async with served(**settings) as client:
            error = (await client.post("/filter", json=body)).json()["error"]
            assert (error["param"], error["code"] in ("too_large", "reply_too_large")) == (param, True), error
    async with served(max_observations=3) as client:
        found = await many(client, {**series, "c": {"values": {"y": [1.0] * 3}}, "d": {"values": [1.0] * 4}})
        assert [reply.get("error", {}).get("param") for reply in found["series"].values()] == [
            "values.y",
            "observations",
            "values",
            None,
        ]
    table = stream(pa.table({"id": [1] + [2] * 60, "y": [1.0] * 61}))
    for settings, param in (
        ({"max_series": 1}, "by"),
        ({"max_observations": 1}, None),
        ({"max_body_bytes": 1_000}, None),
    ):
        async with served(**settings) as client:
            response = await send(client, table + bytes(24_000) * ("max_body_bytes" in settings), by="id")
            assert response.status_code in (413, 422) and response.json()["error"]["param"] == param, response.text


async def test_a_hundred_thousand_points_fit_into_a_body_in_every_form() -> None:
    """With times and all digits, as Python writes them."""
    rng = np.random.default_rng(0)
    y, t = rng.normal(size=100_000).tolist(), (1_760_000_000 + np.arange(100_000)).tolist()
    parts = [slice(first, first + 1_000) for first in range(0, 100_000, 1_000)]
    forms = {
        "values": {str(k): {"times": t[part], "values": {"y": y[part]}} for k, part in enumerate(parts)},
        "rows": {str(k): {"times": t[part], "observations": [[x] for x in y[part]]} for k, part in enumerate(parts)},
    }
    async with served(quota_observations=None) as client:
        for form, series in forms.items():
            body = json.dumps({"series": series, "fields": ["mean"], "levels": [0.9]})
            response = await client.post("/filter", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code == 200, (form, response.text[:300])
            assert response.json()["observations"] == 100_000


@pytest.mark.parametrize("name", ["times", "observations", "values", "noise", "input", "bias", "state"])
async def test_what_is_of_one_series_is_not_beside_many(name: str) -> None:
    some: dict[str, Any] = {
        "times": [1],
        "observations": [[1]],
        "values": {"y": [1]},
        "noise": [1],
        "input": [[1]],
        "bias": [[1]],
        "state": "v1.A",
    }
    async with served() as client:
        response = await client.post("/filter", json={"series": {"a": {"values": {"y": [1]}}}, name: some[name]})
        other = await client.post(
            "/filter", json={"series": {"a": {"values": {"y": [1]}}}, "return_state": "session:x"}
        )
        within = await many(
            client, {"a": {"values": {"y": [1]}, "levels": [0.5]}, "b": {"values": {"y": [1]}, "lvls": 1}}
        )
    assert (response.status_code, response.json()["error"]["param"]) == (422, name)
    assert other.json()["error"]["param"] == "return_state"
    assert [reply["error"]["code"] for reply in within["series"].values()] == ["of_all_series", "extra_forbidden"]
