"""Many series as one Arrow table in long format: the numbers of JSON, and no more memory than was leased."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rfa.service.arrow import GROUPING_BYTES, NUMBER_BYTES, decode_series
from rfa.service.memory import DEFAULT_BUDGET_BYTES, MemoryBudget
from rfa.service.setting_groups import LimitSettings
from tests.service.test_columns import send
from tests.service.test_many import QUERY, alone, batches, long_table, many, named, served, stream, untimed, walks

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("order", [pytest.param("by series", marks=pytest.mark.slow), "by time"])  # sorts more
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
        for k in range(120):
            body = bytearray(good[k % 2])
            for _ in range(rng.randint(1, 4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            statuses.add((await send(client, bytes(body), by="id")).status_code)
        assert (await send(client, good[0], by="id")).status_code == 200
        assert client.app.state.memory.leased_bytes == 0
    assert statuses == {200, 422}


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
