"""`rfa.filter_table`: the numbers of `rfa.filter` of each series, and states that go on from table to table."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rfa
from rfa.library.table import STEP_ROWS, TableColumns, TableFilter

SERIES = ("kitchen", "hall", "cellar")
OPTIONS: dict[str, Any] = {"model": "auto", "alarm": 0.02}


def readings(rows: int = 240, seed: int = 2) -> pa.Table:
    """Rows of some series in the order of time, with missing numbers and a spike."""
    draw = np.random.default_rng(seed)
    values = draw.normal(size=rows).cumsum()
    values[100], values[50:54] = 90, np.nan
    times = np.datetime64("2026-03-01T00:00") + np.arange(rows) * np.timedelta64(10, "m")
    celsius = pa.array(values, from_pandas=True)
    return pa.table(
        {"room": draw.choice(SERIES, rows), "when": times.astype("datetime64[us]"), "celsius": celsius,
         "percent": pa.array(draw.integers(0, 100, rows)), "note": ["x"] * rows}
    )  # fmt: skip


def assert_same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema)
    for name in found.column_names:
        one, other = (table[name].combine_chunks().to_pylist() for table in (found, expected))
        assert one == other, name


def states_of(table: pa.Table) -> dict[str, bytes]:
    """The state of each room."""
    rows = zip(table["room"].to_pylist(), table["kept"].to_pylist(), strict=True)
    return {room: state for room, state in rows if state is not None}


def alone(table: pa.Table, room: str, **options: Any) -> pd.DataFrame:
    frame = table.sort_by("when").to_pandas()
    return rfa.filter(frame[frame["room"] == room].drop(columns="room"), time="when", **OPTIONS, **options)


@pytest.mark.parametrize(
    "order", [pytest.param("time", marks=pytest.mark.slow), pytest.param("series", marks=pytest.mark.slow), "random"]
)
def test_each_series_has_the_numbers_that_it_has_alone(order: str) -> None:
    table = readings()
    rows = {
        "time": np.arange(len(table)),
        "series": np.argsort(table["room"].to_pylist(), kind="stable"),
        "random": np.random.default_rng(0).permutation(len(table)),
    }[order]
    table = table.take(pa.array(rows))
    found = rfa.filter_table(table, key="room", time="when", **OPTIONS)
    assert found.select(table.column_names).equals(table)
    for room in SERIES:
        own = found.to_pandas()
        own = own[own["room"] == room].sort_values("when")
        expected = alone(table, room)
        assert list(own.columns[1:]) == list(expected.columns)
        for name in expected.columns[4:]:
            assert np.array_equal(own[name], expected[name], equal_nan=expected[name].dtype.kind == "f"), name


@pytest.mark.parametrize("cut", [0, 100])
def test_a_table_in_two_parts_with_the_states_of_the_first(cut: int) -> None:
    table = readings()
    how: dict[str, Any] = {"key": ["room"], "time": "when", "horizon": ["1h"], "state": "kept", **OPTIONS}
    whole = rfa.filter_table(table, **how)
    first = rfa.filter_table(table[:cut], **how)
    states = states_of(first)
    assert len(states) == len(set(table[:cut]["room"].to_pylist()))
    rest = table[cut:]
    given = pa.array([states.get(room) for room in rest["room"].to_pylist()], pa.large_binary())
    second = rfa.filter_table(rest.append_column("kept", given), **how)
    names = [name for name in whole.column_names if name != "kept"]
    assert_same(second.select(names), whole[cut:].select(names))
    assert states_of(second).items() <= states_of(whole).items()


def test_parts_of_a_table_are_as_the_whole() -> None:
    table = readings()
    whole = rfa.filter_table(table, key="room", time="when", **OPTIONS)
    work = TableFilter(TableColumns(("room",), "when").of(table.schema), **OPTIONS)
    parts = [work.filter(batch) for batch in table.to_batches(max_chunksize=31)]
    assert_same(pa.concat_tables(parts), whole)
    assert (work.refused, work.alarms) == (0, sum(whole["alarm"].to_pylist()))
    assert len(work.streams) == len(SERIES)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_batches_are_as_the_whole(is_grouped: bool) -> None:
    table = readings().sort_by([("room", "ascending"), ("when", "ascending")])
    whole = rfa.filter_table(table, key="room", time="when", **OPTIONS)
    limit = 2 if is_grouped else 3  # a batch has rows of two series at most
    batches = rfa.filter_batches(
        table.to_batches(max_chunksize=31), key="room", time="when", is_grouped=is_grouped, limit=limit, **OPTIONS
    )
    assert_same(pa.Table.from_batches(list(batches)), whole)


def test_rows_of_many_calls() -> None:
    rows = STEP_ROWS + 1000
    draw = np.random.default_rng(0)
    table = pa.table({"key": np.arange(rows) % 2, "t": np.arange(rows) // 2, "x": draw.normal(size=rows)})
    found = rfa.filter_table(table.take(pa.array(draw.permutation(rows))), key="key", time="t", values="x", **OPTIONS)
    expected = rfa.filter_table(table, key="key", time="t", values="x", **OPTIONS)
    assert_same(found.sort_by([("t", "ascending"), ("key", "ascending")]), expected)


def test_keys_of_several_columns_and_kinds() -> None:
    table = readings().drop_columns(["note", "percent"])
    days = pa.array([date(2026, 3, 1) + timedelta(k % 2) for k in range(len(table))])
    table = table.append_column("day", days).append_column("door", pa.array(np.arange(len(table)) % 3 == 0))
    room = table["room"].combine_chunks().dictionary_encode()
    table = table.set_column(0, "room", room)
    found = rfa.filter_table(table, key=("room", "day", "door"), time="when", fields=["mean"], **OPTIONS).to_pandas()
    for _, own in found.groupby(["room", "day", "door"], observed=True):
        expected = rfa.filter(own[["when", "celsius"]], time="when", **OPTIONS)
        assert np.array_equal(own["celsius_mean"], expected["celsius_mean"])


def test_rows_that_cannot_be_filtered_have_nulls() -> None:
    table = pa.table(
        {
            "room": ["a", None, "a", "a", "a"],
            "when": pa.array([0.0, 1.0, None, 3.0, 4.0]),
            "celsius": [1.0, 2.0, 3.0, float("inf"), 5.0],
        }
    )
    work = TableFilter(TableColumns(("room",), "when").of(table.schema), model="auto")
    found = work.filter(table)
    assert [mean is None for mean in found["celsius_mean"].to_pylist()] == [False, True, True, True, False]
    assert work.refused == 3
    late = work.filter(table[:1])
    assert late["celsius_mean"].to_pylist() == [None]


def test_local_times_are_those_of_the_zone() -> None:
    table = readings()
    zone = "America/New_York"  # a clock change on 8 March
    aware = table.set_column(1, "when", table["when"].cast(pa.timestamp("us", "UTC")))
    naive = table.set_column(1, "when", aware["when"].cast(pa.timestamp("us", zone)).cast(pa.timestamp("us", "UTC")))
    for one in (aware, naive):
        found = rfa.filter_table(one, key="room", time="when", values="celsius", tz=zone, alarm=0.02)
        for room in SERIES:
            frame = one.to_pandas()
            expected = rfa.filter(frame[frame["room"] == room][["when", "celsius"]], time="when", tz=zone, alarm=0.02)
            own = found.to_pandas()
            assert np.array_equal(own[own["room"] == room]["celsius_mean"], expected["celsius_mean"])


def test_frames_and_empty_tables() -> None:
    table = readings()
    expected = rfa.filter_table(table, key="room", time="when", **OPTIONS)
    assert_same(rfa.filter_table(table.to_batches()[0], key="room", time="when", **OPTIONS), expected)
    frame = rfa.filter_table(table.to_pandas(), key="room", time="when", **OPTIONS)
    assert frame["celsius_mean"].to_pylist() == expected["celsius_mean"].to_pylist()
    shuffled = table.to_pandas().sample(frac=1, random_state=0)  # with an index that is no range
    assert rfa.filter_table(shuffled, key="room", time="when", **OPTIONS).column_names == expected.column_names
    empty = rfa.filter_table(table[:0], key="room", time="when", state="state", **OPTIONS)
    assert empty.schema.names == [*expected.schema.names, "state"] and len(empty) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "floor"}, "there is no column 'floor'"),
        ({"time": "room"}, "time: column 'room' has type string"),
        ({"values": "note"}, "values: column 'note' has type string"),
        ({"fields": ["middle"]}, "fields contains 'middle'"),
        ({"key": ()}, "key must name at least one column"),
        ({"key": ("room", "celsius", "percent")}, "no column contains numbers to filter"),
        ({"state": "note"}, "not the state of a Stream"),
    ],
)
def test_bad_arguments_name_themselves(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rfa.filter_table(readings(120), **{"key": "room", "time": "when", **OPTIONS, **change})
