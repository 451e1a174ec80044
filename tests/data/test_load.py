"""Files as people have them: a corpus, each file with what is expected of it, under three zones of the machine."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rfa.data import Key, Series, key_name, load_series, load_table, read_frame
from rfa.data.attributes import numbered_names_as_csv
from rfa.data.file_formats import read_table

CORPUS = Path(__file__).parent / "corpus"
CASES: list[dict[str, Any]] = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))


# One zone that is not UTC shows whether a file is read by the clock of the machine.
@pytest.fixture(
    params=["Europe/Berlin", *(pytest.param(zone, marks=pytest.mark.slow) for zone in ("UTC", "America/New_York"))]
)
def machine_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_every_file_has_its_expectation() -> None:
    files = {case["file"] for case in CASES}
    assert files == {path.name for path in CORPUS.iterdir()} - {"expected.json"} and len(files) >= 60


@pytest.mark.usefixtures("machine_zone")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_file_is_read_right_or_refused_with_what_to_do(case: dict[str, Any]) -> None:
    failed: dict[str, str] = {}

    def read() -> dict[Key, Series]:
        table = load_table(CORPUS / case["file"], sheet=case.get("sheet"))
        return read_frame(
            table, refused=lambda key, error: failed.update({key_name(key): str(error)}), **case.get("options", {})
        )

    if "refused" in case:
        with pytest.raises(ValueError, match=re.escape(case["refused"])) as caught:
            read()
        assert "\n" not in str(caught.value)
        return
    found = read()
    expected = case["series"] if "series" in case else [[[], case["names"], case["times"], case["values"]]]
    assert list(found) == [tuple(key) for key, *_ in expected]
    for series, (_, names, times, values) in zip(found.values(), expected, strict=True):
        assert series.names == tuple(names)
        # Seconds since 1970 have seven digits after the point in float64.
        assert series.times == pytest.approx(times, abs=1e-6, rel=0)
        rows = [[math.nan if value is None else value for value in row] for row in values]
        assert np.array_equal(series.values, np.array(rows, np.float64), equal_nan=True)
        assert case.get("note", "") in " · ".join(series.notes)
    assert failed.keys() == case.get("failed", {}).keys()
    for key, reported in case.get("failed", {}).items():
        assert f"series {key!r}: {reported}" in failed[key]


MIXED, FIXED = ("999", "1.007", "-1.015"), ("1.007", "12.015", "1.250")
BETWEEN, DOUBTED = "points separate thousands", "a point before three digits is read as a decimal point"


@pytest.mark.parametrize(
    ("separator", "cells", "others", "values", "note"),
    [
        (";", MIXED, (), [999, 1007, -1015], BETWEEN),
        ("\t", MIXED, (), [999, 1007, -1015], BETWEEN),
        (",", MIXED, (), [999, 1.007, -1.015], DOUBTED),
        # Other columns tell more than what separates the cells.
        (";", MIXED, ("1.5", "2", "3"), [999, 1.007, -1.015], DOUBTED),
        (",", MIXED, ("1.5", "2", "3"), [999, 1.007, -1.015], ""),
        (",", MIXED, ('"1,5"', "2", "3"), [999, 1007, -1015], BETWEEN),
        (";", FIXED, ("1,5", "2", "3"), [1007, 12015, 1250], BETWEEN),
        (";", FIXED, MIXED, [1007, 12015, 1250], BETWEEN),
        # Three decimals of a sensor, and numbers that have no such points.
        (";", FIXED, (), [1.007, 12.015, 1.25], ""),
        (",", FIXED, ("1", "2", "3"), [1.007, 12.015, 1.25], ""),
        (";", ("0.999", "1", "1.007"), (), [0.999, 1, 1.007], ""),
        (";", ("1", "1.007", "1.25"), (), [1, 1.007, 1.25], ""),
        (";", ("1500", "1.007", "2.125"), (), [1500, 1.007, 2.125], ""),
        (",", ("999", "1.234.567", "1.015"), (), [999, 1234567, 1015], BETWEEN),
        (";", ("999 €", "", "1.015 €"), (), [999, math.nan, 1015], BETWEEN),
    ],
)
def test_points_are_between_thousands_where_the_file_says_so(
    separator: str, cells: tuple[str, ...], others: tuple[str, ...], values: list[float], note: str
) -> None:
    days = ("date", "01.03.2026", "14.03.2026", "15.03.2026")
    columns = [days, ("a", *cells), *([("b", *others)] if others else [])]
    text = "\n".join(separator.join(row) for row in zip(*columns, strict=True))
    found = read_frame(read_table(text.encode(), None))[()]
    np.testing.assert_array_equal(found.values[:, 0], values)
    said = [note for note in found.notes if "'a'" in note and "point" in note]
    assert len(said) == bool(note) and all(note in reported for reported in said)


def test_a_part_of_a_series_is_named_by_its_times() -> None:
    days = CORPUS / "iso_minutes.csv"
    assert load_series(days, start="2024-03-10").values.tolist() == [[2.5], [3.5]]
    assert load_series(days, start="2024-03-10T01:00+01:00", end="2024-03-10T01:00").values.tolist() == [[2.5]]
    assert load_series(days, zone="Europe/Berlin", end="2024-03-10").values.tolist() == [[1.5]]
    assert load_series(CORPUS / "plain_numbers.csv", start="0.5").times.tolist() == [0.5, 2]
    for wrong, reported in (("soon", "an ISO date"), ("2025-01-01", "rows range from 2024-03-09T23:00")):
        with pytest.raises(ValueError, match=reported):
            load_series(days, start=wrong)


def test_dates_come_back_as_they_were() -> None:
    series = load_series(CORPUS / "epoch_ms.csv")
    assert series.is_dated and series.clock == "ts"
    assert str(series.moments(series.times)[0]) == "2024-03-09T23:00:00.250000"
    plain = load_series(CORPUS / "plain_numbers.csv")
    assert not plain.is_dated and plain.moments(plain.times) is plain.times


def test_a_frame_of_arrow_is_read_as_its_file_is() -> None:
    when = np.datetime64("2024-03-09T00:00:00.25", "ms") + np.arange(4)
    table = pa.table({
        "sensor": pa.array(["b", "a", "b", None]).dictionary_encode(), "hall": [1, 2, 1, 2], "when": when,
        "level": [1.5, float("inf"), None, 4.0], "is_up": [True, False, True, False],
    })  # fmt: skip
    found = read_frame(table, by=["sensor", "hall"], refused=lambda key, error: None)
    assert list(found) == [("b", 1)]  # a's value is infinite, and the last row has no key
    series = found["b", 1]
    assert series.names == ("level",) and series.clock == "when" and series.is_dated
    assert series.times.tolist() == [1709942400.25, 1709942400.252]
    assert np.array_equal(series.values, [[1.5], [np.nan]], equal_nan=True)
    assert series.rows is not None and series.rows.tolist() == [0, 2]
    with pytest.raises(ValueError, match="series 'a / 2': the value columns are empty"):
        read_frame(table, by=["sensor", "hall"])
    for empty in (table[:0], pa.table({})):
        with pytest.raises(ValueError, match="no rows"):
            read_frame(empty)


def test_series_of_a_table_are_those_of_a_table_each() -> None:
    """What is read of one does not depend on the others, nor on the order in which their rows stand."""
    rng = np.random.default_rng(4)
    owner, times = rng.integers(0, 30, 2000), np.round(rng.uniform(0, 1e6, 2000))
    table = pa.table({"owner": owner, "t": times, "y": rng.normal(size=2000)})
    found = read_frame(table, by=["owner"], every="1h", refused=print)
    assert sorted(found) == [(k,) for k in range(30)]
    for (k,), series in found.items():
        alone = read_frame(table.filter(pa.array(owner == k)).drop(["owner"]), time="t", every="1h")[()]
        assert np.array_equal(series.times, alone.times) and np.array_equal(series.values, alone.values, equal_nan=True)


def test_a_regular_clock_has_the_mean_of_each_cell() -> None:
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(1.7e9, 1.7e9 + 86400, 3000))
    values = np.where(rng.random(3000) < 0.1, np.nan, 1e6 + rng.normal(size=3000))
    table = pa.table({"t": times, "y": values})
    series = read_frame(table, every="10min")[()]
    assert np.array_equal(np.diff(series.times), np.full(len(series.times) - 1, 600.0)) and series.times[0] % 600 == 0
    for at, (mean,) in zip(series.times, series.values, strict=True):
        inside = [
            y for t, y in zip(times.tolist(), values.tolist(), strict=True) if at <= t < at + 600 and not math.isnan(y)
        ]
        # Sums of 25 numbers of 1, above a level that is taken off before.
        assert mean == pytest.approx(math.fsum(inside) / len(inside), rel=0, abs=1e-9) if inside else math.isnan(mean)
    # In India an hour begins at half past, in Berlin a day at 22 or 23 o'clock.
    assert read_frame(table, every="1h", zone="Asia/Kolkata")[()].times[0] % 3600 == 1800
    year = pa.table({"t": 1.7e9 + 3600.0 * np.arange(9000), "y": np.arange(9000.0)})
    days = read_frame(year, every="1d", zone="Europe/Berlin")[()]
    assert set((days.times % 86400 / 3600).tolist()) == {22.0, 23.0}
    assert set(np.diff(days.times).tolist()) == {82800.0, 86400.0, 90000.0}


def test_a_damaged_arrow_file_is_refused(tmp_path: Path) -> None:
    content = (CORPUS / "typed.arrow").read_bytes()
    assert content.count(b"abc") == 1
    (tmp_path / "damaged.arrow").write_bytes(content.replace(b"abc", b"\xff\xfe\xff"))
    with pytest.raises(ValueError, match=r"the table is damaged: .*Invalid UTF8"):
        load_series(tmp_path / "damaged.arrow")


def test_the_mark_that_a_preamble_names_is_missing_wherever_it_stands() -> None:
    rows = "\n".join(f"202401{day:02d}000000 {-777 if day == 7 else 120 + day} 40" for day in range(1, 29))
    text = f"#CNRW|*|CUNITcm|*|RINVAL-777|*|\n#LAYOUT(timestamp,value,status)|*|\n{rows}\n"
    series = read_frame(read_table(text.encode()))[()]
    assert np.flatnonzero(np.isnan(series.values[:, 0])).tolist() == [6]


class Unsplit(str):
    """A text that must not be copied."""

    def __getitem__(self, key: Any) -> str:
        raise AssertionError("the rows are copied")


def test_rows_without_numbered_names_are_not_split() -> None:
    assert numbered_names_as_csv(Unsplit("time value\n" + "1 2\n" * 50)) is None
    with pytest.raises(AssertionError, match="are copied"):
        numbered_names_as_csv(Unsplit("# name 0 = depth\n# name 1 = salinity\n" + "1 2\n" * 50))
