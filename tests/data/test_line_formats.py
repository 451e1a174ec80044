"""Formats of lines that only their programs write: what is refused, and where cells are completed."""

from __future__ import annotations

import pytest

from rfa.data import read_frame
from rfa.data.file_formats import read_table
from tests.data.kind import MONTHS, ROWS, VALUES, table


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"$GPGGA,120000,4807.0,N,01131.0,E,1,08,0.9,5.4,M,,M,,*47\n" * 3, "log RMC sentences"),
        (b":20:START\n:25:123/456\n:60F:C240101EUR1000,00\n:62F:C240101EUR1000,00\n", "no entries"),
        (b"!Type:Bank\nPShop\n^\n", "no entries"),
    ],
)
def test_a_format_without_times_or_amounts_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_frame(read_table(content))


def test_reversed_entries_of_a_statement_have_the_opposite_sign() -> None:
    marks = ("D", "C", "RC", "RD")
    lines = "".join(f":61:24010{k + 1}{mark}{k + 1},5NMSC\n" for k, mark in enumerate(marks))
    series = read_frame(read_table(f":20:X\n:60F:C240101CHF0,00\n{lines}".encode()))[()]
    assert series.names == ("amount (CHF)",)
    assert series.values[:, 0].tolist() == [-1.5, 2.5, -3.5, 4.5]


def test_merged_cells_are_completed_but_a_missing_one_is_not() -> None:
    names = [f"{month:%b}" for month in MONTHS]
    years = [month.year if month.month == 1 else "" for month in MONTHS]
    series = read_frame(read_table(table(["Year", "Month", "y"], years, names, VALUES)))[()]
    assert "empty cells of 'Year' are filled with the value above" in series.notes
    assert [str(each)[:7] for each in series.moments(series.times[[0, ROWS - 1]])] == ["2022-01", "2024-06"]
    missing = [month.year if k != 5 else "" for k, month in enumerate(MONTHS)]
    series = read_frame(read_table(table(["Year", "Month", "y"], missing, names, VALUES)))[()]
    assert len(series.times) == ROWS - 1 and not any("filled with the value above" in note for note in series.notes)
