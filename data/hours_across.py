"""Convert tables with a row for each day and a column for each hour, half-hour or quarter of an hour."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import clock_column, date_columns
from rfa.data.table import Table
from rfa.data.wide import TOTAL, VALUE, is_there

# Number of columns of a day. An additional column, for the day with 25 hours, is left out if it is empty.
COUNTS: Final = (24, 48, 96)
MINUTES: Final = 1440
TIME: Final = "time"
OF_DAY: Final = re.compile(r"(?:\D*\s)?(\d{1,2}):(\d{2})(?::00)?(?:\s*(?:-|–|bis|to|a|à)\s*\d{1,2}:\d{2}(?::00)?)?")
NUMBERED: Final = re.compile(r"([^\d]*?)0*(\d{1,2})([^\d]{0,5})")
# Intervals in minutes, and first line, of the interval data of Australian meters.
INTERVALS: Final = ("5", "15", "30")
NEM12: Final = re.compile(r"100,NEM12[,\r\n]")


def melt_hours(table: Table) -> Table:
    """Convert a table with one row per day and one column per part of the day to one row per value. Other tables are
    not changed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    steps = _steps(list(table.columns))
    if not steps or len(table) < 2:
        return table
    rest = {name: column for name, column in table.columns.items() if name not in steps}
    date = clock_column(rest) if len(date_columns(rest)) < 2 else None
    if date is None or not pa.types.is_string(rest[date].type) or ":" in (rest[date][0].as_py() or ""):
        return table
    rest[date] = pc.replace_substring_regex(rest[date], r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3")
    rows, count = len(table), len(steps)
    there = np.stack([is_there(table.columns[name]) for name in steps]).T.ravel()  # sorted by day, then by time of day
    order = np.arange(rows * count)[: int(np.flatnonzero(there)[-1]) + 1] if there.any() else np.arange(rows * count)
    day, part = np.divmod(order, count)
    stacked = pa.chunked_array([chunk for name in steps for chunk in table.columns[name].cast(pa.string()).chunks])
    minutes = MINUTES // count * part
    columns: dict[str, Any] = {name: column.take(day) for name, column in rest.items() if name not in _totals(rest)}
    columns[TIME] = pa.chunked_array([[f"{each // 60:02d}:{each % 60:02d}" for each in minutes.tolist()]])
    columns[VALUE] = stacked.take(part * rows + day)
    note = f"each row is a day with its times in the columns {steps[0]!r} to {steps[-1]!r}"
    return Table(columns, table.separator, table.first_row, (*table.notes, note), table.marks)


def nem12_as_csv(text: str) -> str | None:
    """Convert Australian interval data to CSV with a row for each day, or return None for other text.

    Raises:
        ValueError: If an interval is not supported, or the days have different intervals.
    """
    if NEM12.match(text) is None:
        return None
    meter: list[str] = []
    rows: list[list[str]] = []
    for cells in csv.reader(text.splitlines()):
        if cells[:1] == ["200"] and len(cells) > 8:
            if cells[8] not in INTERVALS:
                raise ValueError(
                    f"this NEM12 file has intervals of {cells[8][:20]!r} minutes; only 5, 15 and 30 are supported"
                )
            meter = cells
        elif cells[:1] == ["300"] and meter:
            rows.append([meter[1], meter[4], cells[1], *cells[2 : 2 + MINUTES // int(meter[8])]])
    if not rows or len({len(row) for row in rows}) > 1:
        raise ValueError("this NEM12 file has no days, or days with different intervals; split it by meter")
    step = MINUTES // (len(rows[0]) - 3)
    names = [f"{k * step // 60:02d}:{k * step % 60:02d}" for k in range(len(rows[0]) - 3)]
    return "\n".join(",".join(row) for row in (["nmi", "suffix", "date", *names], *rows)) + "\n"


def _steps(names: Sequence[str]) -> list[str]:
    """Return the consecutive columns that are the times of a day. The result is empty if there are none."""
    for count in COUNTS:
        for begin in range(len(names) - count + 1):
            chosen = names[begin : begin + count]
            # One more is the hour that repeats in autumn.
            longer = names[begin : begin + count + 2]
            if _is_day(chosen) and not (len(longer) == count + 2 and _is_numbered(longer)):
                return list(chosen)
    return []


def _is_day(names: Sequence[str]) -> bool:
    step = MINUTES // len(names)
    times = [OF_DAY.fullmatch(name.strip()) for name in names]
    if all(times):
        minutes = [60 * int(found[1]) + int(found[2]) for found in times if found]
        first = minutes[0]
        return first in (0, step) and all(at % MINUTES == (first + k * step) % MINUTES for k, at in enumerate(minutes))
    return _is_numbered(names)


def _is_numbered(names: Sequence[str]) -> bool:
    """Return whether names differ only in numbers that count from 0 or 1."""
    numbered = [NUMBERED.fullmatch(name.strip()) for name in names]
    if not all(numbered) or len({(found[1], found[3]) for found in numbered if found}) > 1:
        return False
    numbers = [int(found[2]) for found in numbered if found]
    return numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(names)))


def _totals(rest: dict[str, Any]) -> list[str]:
    """Return the columns that are empty or contain the sums of the days."""
    return [name for name in rest if not is_there(rest[name]).any() or TOTAL.fullmatch(name.strip())]
