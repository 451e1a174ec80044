"""Files with several readings are refused, with an option that reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rfa.data import read_frame
from rfa.data.file_formats import read_table
from tests.data.kind import HOURS, ROWS, VALUES, table

TIMES = [f"{each:%Y-%m-%d %H:%M}" for each in HOURS]
PAIRS = [each for each in TIMES[: ROWS // 2] for _ in range(2)]
UNITS = ["kWh"] * (ROWS - 9) + ["m3"] * 9
CASES = {
    "MJD": (["x", "y"], [60310.25 + k / 4 for k in range(ROWS)], "MJD"),
    "days since 1970": (["date", "y"], range(19723, 19723 + ROWS), "days since 1970-01-01"),
    "Apple": (["date", "y"], range(725_846_400, 725_846_400 + 60 * ROWS, 60), "seconds since 2001-01-01"),
    "LabVIEW": (["time", "y"], range(3_786_912_000, 3_786_912_000 + ROWS), "seconds since 1904-01-01"),
    "hours": (["time", "y"], range(1_086_960, 1_086_960 + ROWS), "hours since 1900-01-01"),
}


@pytest.mark.parametrize(("header", "times", "form"), CASES.values(), ids=CASES)
def test_numbers_that_may_be_dates_are_asked_for(header: list[str], times: list[float], form: str) -> None:
    content = table(header, times, VALUES)
    with pytest.raises(ValueError, match=re.escape(f"--time-format {form!r}")):
        read_frame(read_table(content))
    series = read_frame(read_table(content), time_format=form)[()]
    assert series.is_dated and "2023-12-31" <= str(series.moments(series.times[:1])[0]) < "2024-01-03"
    assert not read_frame(read_table(content), time=header[0])[()].is_dated or form.startswith("seconds")


def test_decimal_years_are_asked_for() -> None:
    content = table(["x", "y"], [round(1990 + k / 12, 3) for k in range(ROWS)], VALUES)
    with pytest.raises(ValueError, match="--time-format 'decimal years'"):
        read_frame(read_table(content))
    series = read_frame(read_table(content), time="x", time_format="decimal years")[()]
    assert [str(each)[:7] for each in series.moments(series.times[[0, 6, 12]])] == ["1990-01", "1990-07", "1991-01"]


@pytest.mark.parametrize(
    ("header", "columns", "message", "options"),
    [
        (["time", "y"], [PAIRS, VALUES], "50% of the rows repeat the time of another row", {"time": "time"}),
        (["time", "unit", "y"], [TIMES, UNITS, VALUES], "specify --by 'unit'", {"by": ["unit"]}),
        (["a", "20.5"], [["b", "c"] * (ROWS // 2), VALUES], "if the file has no header", {"columns": ["20.5"]}),
        (["x", "n"], [VALUES, [3 * k + k % 2 for k in range(ROWS)]], "'n' increases", {"columns": ["x"]}),
        (["run", "y"], [[f"r{k}/{k * k}" for k in range(ROWS)], VALUES], "may be a time", {"columns": ["y"]}),
    ],
)
def test_other_doubts_name_an_option_that_works(
    header: list[str], columns: list[list[object]], message: str, options: dict[str, Any]
) -> None:
    content = table(header, *columns)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_frame(read_table(content))
    assert read_frame(read_table(content), **options)


def test_two_zones_in_a_column_are_asked_for() -> None:
    content = table(["time", "timezone", "y"], TIMES, ["Europe/Berlin", "Asia/Tokyo"] * (ROWS // 2), VALUES)
    with pytest.raises(ValueError, match="several time zones"):
        read_frame(read_table(content))


def test_two_tables_without_a_blank_line_are_asked_for() -> None:
    first, second = (table(["time", *names], TIMES, VALUES, VALUES) for names in (("in", "out"), ("low", "high")))
    content = first + b"\n" + second
    with pytest.raises(ValueError, match="--sheet 'table 2'"):
        read_table(content)
