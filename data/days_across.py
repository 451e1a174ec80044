"""Convert tables with one row per month and one column per day of the month."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import date_columns
from rfa.data.clock_parts import find_parts
from rfa.data.table import Table
from rfa.data.time_formats import candidate_formats, parse_moment
from rfa.data.wide import VALUE, is_there

DAYS: Final = 31
NUMBERED: Final = re.compile(r"([^\d]*?)0*(\d{1,2})([^\d]{0,5})")
TIME: Final = "time"
FEWEST_MONTHS: Final = 2


def melt_days(table: Table) -> Table:
    """Convert a table of months, with a column for each day, to one row per value. Other tables are unchanged.

    The other columns of numbers describe a whole month, and are left out.
    """
    import pyarrow as pa

    steps = _day_columns(list(table.columns))
    rest = {name: column for name, column in table.columns.items() if name not in steps}
    months, dates = _months(rest) if steps else ([], [])
    if not months:
        return table
    ends = [monthrange(month.year, month.month)[1] for month in months]
    there = np.stack([is_there(table.columns[name]) for name in steps], axis=1)
    if any(cells[end:].any() for cells, end in zip(there, ends, strict=True)):
        return table  # a value after the end of a month
    row, day = np.nonzero(np.arange(DAYS) < np.array(ends)[:, None])
    stacked = pa.chunked_array([chunk for name in steps for chunk in table.columns[name].cast(pa.string()).chunks])
    before = list(table.columns)[: list(table.columns).index(steps[0])]
    labels = {name: rest[name].take(row) for name in before if name not in dates and _is_label(rest[name])}
    times = [f"{months[k]:%Y-%m}-{each + 1:02d}" for k, each in zip(row.tolist(), day.tolist(), strict=True)]
    columns = {TIME: pa.chunked_array([times]), **labels, VALUE: stacked.take(day * len(table) + row)}
    note = (
        f"each row is a month with its days in the columns {steps[0]!r} to {steps[-1]!r}; columns of monthly values "
        "are left out"
    )
    return Table(columns, table.separator, table.first_row, (*table.notes, note), table.marks)


def _day_columns(names: Sequence[str]) -> list[str]:
    """Return the first 31 consecutive columns that are numbered from 1. The result is empty if there are none."""
    for begin in range(len(names) - DAYS + 1):
        found = [NUMBERED.fullmatch(name.strip()) for name in names[begin : begin + DAYS]]
        kinds = {(each[1], each[3]) for each in found if each}
        if all(found) and len(kinds) == 1 and [int(each[2]) for each in found if each] == [*range(1, DAYS + 1)]:
            return list(names[begin : begin + DAYS])
    return []


def _months(columns: dict[str, Any]) -> tuple[list[datetime], list[str]]:
    """Return the month of each row, and the columns that contain the months. They contain either the first day of each
    month, or a year and a month."""
    import pyarrow as pa

    parts = find_parts(columns)
    if parts is not None and [*parts.columns] == ["year", "month"]:
        return _first_days(parts.cells(columns).to_pylist()), [*parts.columns.values()]
    dates = [name for name in date_columns(columns) if pa.types.is_string(columns[name].type)][:1]
    return _first_days(columns[dates[0]].to_pylist()) if dates else [], dates


def _first_days(texts: Sequence[str | None]) -> list[datetime]:
    cells = [(text or "").strip() for text in texts]
    if len(cells) < FEWEST_MONTHS:
        return []
    for made in candidate_formats(cells[0]):
        try:
            months = [parse_moment(cell, made) for cell in cells]
        except ValueError:
            continue
        # If day and month are swapped, the first days of several months become the days of one January.
        if all(month.day == 1 for month in months) and len({*months}) > 1:
            return months
    return []


def _is_label(column: Any) -> bool:
    """Return whether cells are words, or integers that repeat, as the names and codes of stations do."""
    cells = [str(cell or "").strip() for cell in column.to_pylist()]
    are_codes = all(re.fullmatch(r"\d*", cell) for cell in cells) and 2 * len({*cells}) <= len(cells)
    return are_codes or not any(re.search(r"\d", cell) for cell in cells)
