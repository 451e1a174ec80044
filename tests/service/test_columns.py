"""Series as columns and as Arrow streams: the numbers of the rows, and nothing else is let in."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pyarrow as pa
import pytest

from rfa.service.arrow import ARROW
from tests.service.live import answer, serving

pytestmark = pytest.mark.anyio
TIMES = [0.0, 0.1, 0.25, 0.25, 0.9, 1.0, 2.5]
ROWS = [[1.0, 0.2], None, [0.7, None], [0.6, 0.5], [None, None], [40.0, -40.0], [0.1, 0.3]]
VALUES = {"left": [None if row is None else row[0] for row in ROWS], "right": [row and row[1] for row in ROWS]}
ASKED: dict[str, Any] = {"levels": [0.5, 0.9], "horizon": [0.1, 0.7], "seed": 3}


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving("linear", "oscillator") as client:
        yield client


def arrow(columns: dict[str, Any], **options: Any) -> bytes:
    table = pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue()


async def send(client: httpx.AsyncClient, body: bytes, **query: Any) -> httpx.Response:
    return await client.post(f"/filter?{urlencode(query)}", content=body, headers={"Content-Type": ARROW})


def as_columns(steps: list[dict[str, Any]], names: list[str]) -> dict[str, list[Any]]:
    """Steps of a plain reply, by the names that OpenAPI tells."""
    found: dict[str, list[Any]] = {name: [step[name] for step in steps] for name in ("index", "t")}
    for name in ("precision", "confidence", "weight", "nis", "anomaly", "alarm"):
        found[name] = [step[name] for step in steps]
    for k, name in enumerate(names):
        for what in ("mean", "std"):
            found[f"{what}.{name}"] = [step[what][k] for step in steps]
        found[f"innovation.{name}"] = [step["innovation"] and step["innovation"][k] for step in steps]
        for level in steps[0]["interval"]:
            for side, part in enumerate(("lower", "upper")):
                found[f"{part}.{level}.{name}"] = [step["interval"][level][k][side] for step in steps]
                for i, lead in enumerate(ASKED["horizon"]):
                    bands = [step["forecast"][i]["interval"][level][k][side] for step in steps]
                    found[f"forecast.{lead!r}.{part}.{level}.{name}"] = bands
        for i, lead in enumerate(ASKED["horizon"]):
            for what in ("mean", "std"):
                found[f"forecast.{lead!r}.{what}.{name}"] = [step["forecast"][i][what][k] for step in steps]
    return found


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("linear", {}),
        ("linear", {"smooth": True}),
        ("oscillator", {}),
        ("oscillator", {"mode": "attention"}),
        ("oscillator", {"smooth": True}),
    ],
)
async def test_columns_have_the_numbers_of_rows(client: httpx.AsyncClient, model: str, more: dict[str, Any]) -> None:
    """On the compiled filter and on the graphs, which give one step at a time."""
    rows = await answer(client, {**ASKED, **more, "model": model, "times": TIMES, "observations": ROWS})
    columns = await answer(client, {**ASKED, **more, "model": model, "times": TIMES, "values": VALUES})
    found, expected = columns.pop("columns"), as_columns(rows.pop("steps"), ["left", "right"])
    if more.get("smooth"):
        for what in ("mean", "std"):
            for k, name in enumerate(("left", "right")):
                expected[f"smoothed.{what}.{name}"] = [state[what][k] for state in rows["smoothed"]]
        rows["smoothed"] = None
    assert found == expected
    assert columns.pop("ahead") is None and {**columns, "timings": 0} == {**rows, "timings": 0}


async def test_an_arrow_stream_has_the_numbers_of_columns(client: httpx.AsyncClient) -> None:
    query = {"model": "linear", "levels": "0.5,0.9", "horizon": "0.1,0.7", "seed": 3}
    columns = await answer(client, {**ASKED, "model": "linear", "times": TIMES, "values": VALUES})
    response = await send(client, arrow({"t": TIMES, **VALUES}), **query)
    assert (response.status_code, response.headers["content-type"]) == (200, ARROW)
    table = pa.ipc.open_stream(response.content).read_all()
    assert table.to_pydict() == columns.pop("columns")
    summary = json.loads(table.schema.metadata[b"rfa"])
    assert {**summary, "timings": 0} == {**columns, "timings": 0}


async def test_clocks_and_kinds_of_numbers(client: httpx.AsyncClient) -> None:
    """Timestamps of any unit are seconds since 1970, wherever they stand; integers and nulls are numbers."""
    begin = 1_700_000_000
    kinds = [
        arrow({"y": [1.0, None, 3.0], "when": pa.array([begin, begin + 1, begin + 3], pa.timestamp("s"))}),
        arrow({"when": pa.array([begin * 10**9 + i * 10**9 for i in (0, 1, 3)], pa.timestamp("ns", "UTC")),
               "y": pa.array([1, None, 3], pa.int16())}),
        arrow({"TIME": [begin, begin + 1, begin + 3], "y": pa.array([1, float("nan"), 3], pa.float32())}),
    ]  # fmt: skip
    tables = []
    for body in kinds:
        response = await send(client, body, model="auto", seed=1)
        assert response.status_code == 200, response.text
        tables.append(pa.ipc.open_stream(response.content).read_all().to_pydict())
    by_index = await send(client, arrow({"y": [1.0, 2.0]}), model="auto")
    assert tables[0] == tables[1] == tables[2]
    assert tables[0]["t"] == [begin, begin + 1, begin + 3] and tables[0]["anomaly"][1] is None
    assert pa.ipc.open_stream(by_index.content).read_all()["t"].to_pylist() == [0.0, 1.0]


async def test_a_reply_has_the_fields_that_were_asked_for(client: httpx.AsyncClient) -> None:
    sent = {"model": "linear", "times": TIMES, "seed": 3, "horizon": [0.1]}
    full = (await answer(client, {**sent, "observations": ROWS}))["steps"]
    for fields in (["mean"], ["interval", "anomaly"], ["innovation", "forecast", "weight"], ["samples"]):
        steps = (await answer(client, {**sent, "observations": ROWS, "fields": fields}))["steps"]
        assert steps == [{name: step[name] for name in step if name in ("index", "t", *fields)} for step in full]
        body = {**sent, "observations": ROWS, "fields": fields, "stream": True}
        lines = (await client.post("/filter", json=body)).text.splitlines()
        assert [json.loads(line) for line in lines[:-1]] == steps
    columns = (await answer(client, {**sent, "values": VALUES, "fields": ["std", "nis"]}))["columns"]
    refused = await client.post("/filter", json={**sent, "observations": ROWS, "fields": ["mena"]})
    document = (await client.get("/openapi.json")).json()
    assert set(document["components"]["schemas"]["FilterStepReply"]["required"]) <= steps[0].keys()
    assert sorted(columns) == ["index", "nis", "std.left", "std.right", "t"]
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "fields[0]")


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"observations": ROWS}, "observations", "rows_or_columns"),
        ({"values": None}, "observations", "rows_or_columns"),
        ({"values": {"left": [1.0] * 7, "right": [1.0] * 6}}, "values.right", "length_mismatch"),
        ({"values": {"left": [], "right": []}, "times": []}, "values.left", "length_mismatch"),
        ({"values": {"left": [1.0] * 7}}, "values", "shape_mismatch"),
        ({"values": {"left": [1.0] * 7, "right": [1e13] * 7}}, "values.right[0]", "less_than_equal"),
        ({"values": {str(k): [1.0] * 7 for k in range(65)}, "model": "auto"}, "values", "too_large"),
        ({"times": TIMES[:3]}, "times", "length_mismatch"),
        ({"samples": 2}, "samples", "rows_only"),
        ({"stream": True}, "stream", "rows_only"),
        ({"values": {"": [1.0] * 7, "right": [1.0] * 7}}, None, "string_too_short"),
    ],
)
async def test_bad_columns_are_refused_by_name(
    client: httpx.AsyncClient, change: dict[str, Any], param: str | None, code: str
) -> None:
    response = await client.post("/filter", json={"model": "linear", "times": TIMES, "values": VALUES, **change})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (422, code), error
    assert param is None or error["param"] == param


async def test_more_than_the_server_takes_is_refused_before_it_is_looked_at() -> None:
    async with serving("linear", "oscillator", max_observations=6) as client:
        columns = await client.post("/filter", json={"model": "linear", "values": VALUES})
        stream = await send(client, arrow(VALUES), model="linear")
        alone = await client.post("/filter", json={"values": [1.0] * 7})
        assert (await client.post("/filter", json={"values": [1.0] * 6})).status_code == 200
    assert (alone.status_code, alone.json()["error"]["code"]) == (422, "too_large")
    assert alone.json()["error"]["param"] == "values"
    for response in (columns, stream):
        assert (response.status_code, response.json()["error"]["code"]) == (422, "too_large")
        assert response.json()["error"]["param"] == "values.left"


async def test_what_is_no_arrow_stream_of_numbers_is_refused(client: httpx.AsyncClient) -> None:
    good = arrow({"t": TIMES, **VALUES})
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], ["a", "a"])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, twice.schema) as writer:
        writer.write_table(twice)
    bad = {
        b"": "invalid_arrow",
        b"t,left\n1,2\n": "invalid_arrow",
        good[:200]: "invalid_arrow",
        arrow({"t": [1.0], "left": ["a"], "right": [1.0]}): "not_numbers",
        arrow({"left": pa.array(["a"]).dictionary_encode(), "right": [1.0]}): "not_numbers",
        arrow(
            {"left": pa.array(["a"] * 5000).dictionary_encode(), "right": [0.0] * 5000}, compression="zstd"
        ): "invalid_arrow",
        arrow({"left": [0.0] * 5000, "right": [0.0] * 5000}, compression="zstd"): "invalid_arrow",
        arrow({"left": [0.0] * 5000, "right": [0.0] * 5000}, compression="lz4"): "invalid_arrow",
        sink.getvalue(): "duplicate",
        arrow({"left": [1.0, float("inf")], "right": [1.0, 2.0]}): "finite_number",
    }
    for body, code in bad.items():
        response = await send(client, body, model="linear")
        assert (response.status_code, response.json()["error"]["code"]) == (422, code), response.text
    unknown = await send(client, good, model="linear", level="0.9")
    assert unknown.json()["error"]["param"] == "level"
    for query, param in ((("times", [9.0] * len(TIMES)), "times"), (("model", "auto"), "model")):
        path = f"/filter?{urlencode([('model', 'linear'), query])}"
        response = await client.post(path, content=good, headers={"Content-Type": ARROW})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (422, param, "duplicate")
    assert (await send(client, good, model="linear")).status_code == 200


async def test_a_list_of_numbers_is_one_column(client: httpx.AsyncClient) -> None:
    numbers = [1.0, None, 2.0, 1.5, 1.8]
    plain, named = [await answer(client, {"values": one, **ASKED}) for one in (numbers, {"y": numbers})]
    assert plain.pop("timings") and named.pop("timings")
    assert plain == named
    refused = await client.post("/filter", json={"values": [1.0, "two"]})
    assert refused.status_code == 422 and refused.json()["error"]["param"] == "values.y[1]"


async def test_a_column_has_nothing_where_it_has_shown_nothing(client: httpx.AsyncClient) -> None:
    """A step has a number for each component, and there it is as wide as can be."""
    late, other = [None, None, 100.0, 101.0], [1.0, 2.0, 1.5, None]
    body = {"model": "auto", "levels": [0.9], "horizon": [1.0]}
    found = await answer(client, {**body, "values": {"late": late, "other": other}})
    steps = (await answer(client, {**body, "observations": list(zip(late, other, strict=True))}))["steps"]
    columns = found["columns"]
    of_late = [name for name in columns if name.endswith(".late") and not name.startswith("innovation")]
    assert len(of_late) == 2 + 2 + 2 + 2
    for name in of_late:
        assert columns[name][:2] == [None, None] and None not in columns[name][2:], name
        assert None not in columns[name.replace(".late", ".other")]
    assert [step["std"][0] for step in steps[:2]] == [1e6, 1e6] and steps[2]["std"][0] < 100
