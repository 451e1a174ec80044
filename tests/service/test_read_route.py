"""POST /read: a file as the loader has it, read apart from what serves; and files that would cost too much."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from rfa.data import load_series
from rfa.service.memory import MemoryBudget
from rfa.service.reading import child
from rfa.service.schemas.files import ReadReply
from tests.data.everyday_readings import EVERYDAY, RIGHT
from tests.service.live import connected
from tests.service.replies import read
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio
CORPUS = Path(__file__).resolve().parent.parent / "data" / "corpus"
BODY = {"content-type": "application/octet-stream"}
READ_ALL = """
import json, sys
from pathlib import Path
from rfa.service.reading import child
sys.meta_path.insert(0, child.WithoutPandas())
for path, options in json.load(sys.stdin):
    kind, document = child._answer(Path(path).read_bytes(), **options)
    print((kind + document).decode())
"""
OPTIONS: dict[str, Any] = {
    "time": None,
    "columns": [],
    "by": [],
    "sheet": None,
    "zone": "UTC",
    "every": None,
    "most_numbers": 1000,
}


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Any]:
    async with connected() as client:
        yield client


def packed_parquet(rows: int) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"y": np.zeros(rows)}), sink, compression="zstd")
    return sink.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "berlin_autumn.csv",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("missing_words.csv", "packed.csv.gz", "typed.parquet")
        ),
        "workbook.xlsx",
    ],
)
async def test_a_file_is_read_as_the_command_reads_it(client: Any, name: str) -> None:
    if name.endswith("xlsx"):
        pytest.importorskip("python_calamine")
    series = load_series(CORPUS / name)
    reply = await client.post("/read", content=(CORPUS / name).read_bytes(), headers=BODY)
    assert reply.status_code == 200, reply.text
    (found,) = read(ReadReply, reply.content).series.values()
    assert found.times == series.times.tolist()
    assert (found.clock, found.is_dated) == (series.clock, series.is_dated)
    values = np.array([*found.values.values()], np.float64).T
    np.testing.assert_array_equal(values, series.values)


def test_everyday_files_are_read_right_without_pandas() -> None:
    """As the route reads them, but all in one process."""
    asked = [[str(EVERYDAY / name), {**OPTIONS, **RIGHT[name][0], "most_numbers": 10**6}] for name in RIGHT]
    command = [sys.executable, "-c", READ_ALL]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for (_, keys, names, times, values, note), line in zip(RIGHT.values(), done.stdout.splitlines(), strict=True):
        found = read(ReadReply, line.removeprefix("a")).series
        assert list(found) == [" / ".join(key) for key in keys]
        first = next(iter(found.values()))
        assert list(first.values) == names
        assert first.times[:2] == pytest.approx(times, abs=1e-6, rel=0)
        assert next(iter(first.values.values()))[:2] == values
        assert note in " · ".join(first.notes)


async def test_marks_of_missing_values_can_be_kept_and_added(client: Any) -> None:
    content = (EVERYDAY / "sentinels.csv").read_bytes()
    reply = await client.post("/read", params={"missing": ["none", "5.3"]}, content=content, headers=BODY)
    wind = read(ReadReply, reply.content).series[""].values["wind"]
    assert wind[0] is None and -999 in wind and 9999 in wind


@pytest.mark.parametrize(
    ("make", "status", "code"),
    [
        # Made where they are sent: every process of the tests collects them.
        pytest.param(lambda: b"", 422, "unreadable_file", marks=pytest.mark.slow),  # the loader's refusals are one path
        pytest.param(lambda: b"\0\1\2", 422, "unreadable_file", marks=pytest.mark.slow),
        (lambda: b"a,b\n1,2\n1,2,3\n", 422, "unreadable_file"),
        (lambda: gzip.compress(b"1\n" * 20_000_000), 413, "payload_too_large"),
        (lambda: packed_parquet(12_000_000), 413, "payload_too_large"),
        (lambda: b"x" * 2_000_001, 413, "payload_too_large"),
    ],
    ids=["empty", "no text", "ragged", "packed bomb", "bomb of columns", "large"],
)
async def test_a_dear_file_is_refused(client: Any, make: Callable[[], bytes], status: int, code: str) -> None:
    reply = await client.post("/read", content=make(), headers=BODY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
    assert client.app.state.memory.leased_bytes == 0


async def test_what_it_answers_goes_into_filter_as_it_is(client: Any) -> None:
    """Also after files that were refused."""
    text = b"time,a,b\n2026-01-01,1,2\n2026-01-02,,3\n2026-01-03,2,2\n"
    (series,) = (await client.post("/read", content=text, headers=BODY)).json()["series"].values()
    reply = await client.post("/filter", json={"times": series["times"], "values": series["values"]})
    assert reply.status_code == 200, reply.text
    assert reply.json()["columns"]["t"] == series["times"]


async def test_series_that_a_column_tells_apart(client: Any) -> None:
    text = "time,who,v\n" + "".join(f"2026-01-0{day},{who},{day}\n" for who in "xy" for day in range(1, 8))
    for options in ({"by": "who"}, {}):
        answer = await client.post("/read", params=options, content=text.encode(), headers=BODY)
        assert {name: series["values"] for name, series in answer.json()["series"].items()} == {
            "x": {"v": [*range(1, 8)]},
            "y": {"v": [*range(1, 8)]},
        }


async def test_a_form_around_a_file_is_refused_with_what_to_do(client: Any) -> None:
    reply = await client.post("/read", files={"file": b"t,y\n0,1\n"})
    assert reply.status_code == 415
    assert "--data-binary" in reply.json()["error"]["message"]


def test_more_numbers_than_a_body_may_hold_are_refused() -> None:
    text = b"y\n" + b"0.5\n" * 400
    assert child._answer(text, **{**OPTIONS, "most_numbers": 800})[0] == child.ANSWERED
    kind, words = child._answer(text, **{**OPTIONS, "most_numbers": 799})
    assert kind == child.REFUSED and b"the file contains 800 numbers, but the limit is 799" in words


async def test_a_server_without_memory_for_a_file_says_so(connect: Any) -> None:
    async with connect() as client:
        client.app.state.memory = MemoryBudget(1 << 20)
        reply = await client.post("/read", content=b"y\n1\n", headers=BODY)
    assert reply.status_code == 413


def test_names_of_columns_are_such_as_filter_takes() -> None:
    _, answer = child._answer(f'"{"x" * 80}","a\tb"\n1.5,2\n3,5\n'.encode(), **OPTIONS)
    assert list(orjson.loads(answer)["series"][""]["values"]) == ["x" * 64, "a b"]
