"""Convert wide tables with one series per row, such as those of the M4 competition. Each row contains an id followed by
one value per column."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock import read_clock
from rfa.data.clock_choice import clock_column
from rfa.data.clock_numbers import time_unit
from rfa.data.numbers import NumberFormat, parse_numbers
from rfa.data.table import MISSING, Table
from rfa.data.time_formats import candidate_formats

FEWEST_STEPS: Final = 3
# Minimum number of numbered columns for which each row is probably one series.
MANY_STEPS: Final = 12
DATED: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}([-/.]\d|$)")
# Dates of months and days without separators.
COMPACT: Final = re.compile(r"((?:19|20)\d\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])?")
MOST_VALUES: Final = 50_000_000
YEAR_NAME: Final = re.compile(r"(1[5-9]|20|21)\d\d")
# Names of columns that summarise the others.
TOTAL: Final = re.compile(r"(grand )?total|sum(me)?|gesamt|average|mean|mittelwert|annual|ann", re.IGNORECASE)
TIME, VALUE, YEAR = "time", "value", "year"


def melt_wide(table: Table, by: Sequence[str]) -> Table:
    """Convert a wide table to one row per value. Other tables are unchanged.

    A table is wide if the names of its columns, except for the keys, are numbered (V2, V3, …) or dates. The cells of
    other columns are repeated for each value.

    Args:
        table: The table.
        by: Names of the key columns.

    Raises:
        ValueError: If there are too many values.
    """
    import pyarrow as pa

    steps = step_columns([name for name in table.columns if name not in by])
    if not by or len(steps) < FEWEST_STEPS or not _is_distinct(table, by):
        return table
    others = {name: column for name, column in table.columns.items() if name not in (*by, *steps)}
    if not _are_many_dates(steps) and clock_column(others) is not None:
        return table
    if len(steps) * len(table) > MOST_VALUES:
        raise ValueError(f"the table exceeds the limit of {MOST_VALUES:,} values; split it")
    there = np.stack([is_there(table.columns[name]) for name in steps])  # [steps, rows]
    # Empty cells after the last value are not part of a series.
    is_kept = np.maximum.accumulate(there[::-1], axis=0)[::-1]
    has_numbers = np.any([has_digit(table.columns[name]) for name in steps], axis=0)
    left = [str(cells[0]) for cells in zip(*(table.columns[name].to_pylist() for name in by), strict=True)]
    left = [label for label, is_series in zip(left, has_numbers.tolist(), strict=True) if not is_series]
    clock = _clock_row(table, by, steps)
    if clock is not None:
        has_numbers = has_numbers & (np.arange(len(table)) != clock)
    step, row = np.nonzero(is_kept & has_numbers)
    totals = [name for name in table.columns if TOTAL.fullmatch(name.strip())]
    rest = {name: column.take(row) for name, column in table.columns.items() if name not in (*steps, *totals)}
    stacked = pa.chunked_array([chunk for name in steps for chunk in _chunks(table.columns[name])])
    columns = {**rest, VALUE: stacked.take(step * len(table) + row)}
    if clock is not None:
        unit = time_unit(str(table.columns[by[0]][clock]))
        seconds = [float(table.columns[name][clock].as_py()) * (unit[1] if unit else 1.0) for name in steps]
        columns[TIME] = pa.chunked_array([seconds]).take(step)
    elif dates := _as_dates(steps):
        columns[TIME] = pa.chunked_array([dates]).take(step)
    elif all(YEAR_NAME.fullmatch(name.strip()) for name in steps):
        columns[YEAR] = pa.chunked_array([steps]).take(step)
    note = f"each row is a series with its values in the columns {steps[0]!r} to {steps[-1]!r}"
    notes = (note, f"rows without numbers are left out: {', '.join(map(repr, left[:4]))}") if left else (note,)
    return Table(columns, table.separator, table.first_row, (*table.notes, *notes))


def _clock_row(table: Table, by: Sequence[str], steps: Sequence[str]) -> int | None:
    """Return the index of a row that contains the times of the columns, such as `Time [s]`. Return None if there is
    none."""
    for row, label in enumerate(table.columns[by[0]].to_pylist()):
        if time_unit(str(label)) is None:
            continue
        cells = [str(table.columns[name][row]).strip() for name in steps]
        numbers = [float(cell) for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)]
        if len(numbers) == len(cells) and all(one < other for one, other in itertools.pairwise(numbers)):
            return row
    return None


def wide_keys(table: Table) -> list[str]:
    """Return the key columns of a wide table. The result is empty for other tables.

    A wide table has distinct labels before many numbered columns, and no time column.
    """
    first = next(iter(table.columns))
    steps = step_columns([name for name in table.columns if name != first])
    least = FEWEST_STEPS if steps and _as_dates(steps) else MANY_STEPS
    if len(steps) < least or len(table) < 2:
        return []
    if not _are_many_dates(steps) and clock_column(table.columns) is not None:
        return []
    labels = [name for name in table.columns if name not in steps and _holds_labels(table, name)]
    return next((key for key in (*([name] for name in labels), labels) if key and _is_distinct(table, key)), [])


def _are_many_dates(steps: Sequence[str]) -> bool:
    """Return whether too many column names are dates for a column of dates to be the time column."""
    return len(steps) >= MANY_STEPS and bool(_as_dates(steps))


def step_columns(names: Sequence[str]) -> list[str]:
    """Return the last consecutive columns whose names are numbered or dates, except totals. The result is empty if
    there are none."""
    names = [name for name in names if not TOTAL.fullmatch(name.strip())]
    counted = _last(names, _counts_up)
    dated = _last(names, lambda name, _: _is_date(name.strip()))
    # The last days of a month also count up, but only the dates continue from the previous month.
    if len(dated) > 1 and len(dated) >= len(counted) and _as_dates(dated):
        return dated
    return counted if len(counted) > 1 else []


def _last(names: Sequence[str], goes_on: Callable[[str, str], bool]) -> list[str]:
    """Return the longest sequence of names at the end of the list in which each name continues the previous one."""
    count = min(len(names), 1)
    while count < len(names) and goes_on(names[-count - 1], names[-count]):
        count += 1
    return list(names[len(names) - count :])


def _counts_up(name: str, after: str) -> bool:
    one, other = (re.fullmatch(r"(.*?)(\d+)", text) for text in (name, after))
    return bool(one and other and one[1] == other[1] and int(other[2]) == int(one[2]) + 1)


def _is_date(name: str) -> bool:
    return bool(COMPACT.fullmatch(name) or DATED.match(name) or candidate_formats(name))


def _as_dates(names: Sequence[str]) -> list[str]:
    """Return the names as dates, with 202401 as 2024-01. The result is empty if they are not dates."""
    import pyarrow as pa

    dates = [re.sub(r"^(\d{4})(\d\d)$", r"\1-\2", name.strip()) for name in names]
    if dates[0].isdigit() and not COMPACT.fullmatch(dates[0]):
        return []
    try:
        clock = read_clock(
            pa.chunked_array([dates]), "header", zone="UTC", time_format=None, rows=np.arange(len(dates))
        )
    except ValueError:
        return []
    return dates if clock.is_dated else []


def _holds_labels(table: Table, name: str) -> bool:
    import pyarrow as pa

    column = table.columns[name]
    return pa.types.is_string(column.type) and parse_numbers(NumberFormat(table), name) is None


def _is_distinct(table: Table, by: Sequence[str]) -> bool:
    keys = list(zip(*(table.columns[name].to_pylist() for name in by), strict=True))
    return len(set(keys)) == len(keys)


def is_there(column: Any) -> np.ndarray:
    """Return whether each cell is present, `[N]`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type):
        cells = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        return ~np.asarray(pc.is_in(pc.fill_null(cells, ""), pa.array(MISSING)).to_numpy(), bool)
    return np.asarray(pc.is_valid(column).to_numpy(), bool)


def has_digit(column: Any) -> np.ndarray:
    """Return whether each cell contains a digit, `[N]`. This is true for all cells of columns that are not text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return np.ones(len(column), bool)
    return np.asarray(pc.fill_null(pc.match_substring_regex(column, r"\d"), False).to_numpy(), bool)


def _chunks(column: Any) -> list[Any]:
    import pyarrow as pa

    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]
