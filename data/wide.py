"""Tables that have a series in each row, such as M4's: an id, and its values from one column to the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock import clock_column, read_clock
from rfa.data.numbers import Writing, read_numbers
from rfa.data.table import MISSING, Table

FEWEST_STEPS: Final = 3
# Columns in a row that are more likely one series than as many.
MANY_STEPS: Final = 12
DATED: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}([-/.]\d|$)")
MOST_VALUES: Final = 50_000_000
TIME, VALUE = "time", "value"


def unfolded(table: Table, by: Sequence[str]) -> Table:
    """The same table with a row for each value, where each row is a series: where the columns beside its keys count
    up, as in V2, V3, …, or are dates. Other columns go on beside each value.

    Raises:
        ValueError: there would be too many values.
    """
    import pyarrow as pa

    steps = steps_of([name for name in table.columns if name not in by])
    if not by or len(steps) < FEWEST_STEPS or not _is_distinct(table, by):
        return table
    if clock_column({name: column for name, column in table.columns.items() if name not in (*by, *steps)}) is not None:
        return table
    if len(steps) * len(table) > MOST_VALUES:
        raise ValueError(f"the table has more than {MOST_VALUES:,} values: give a part of it")
    is_there = np.stack([_is_there(table.columns[name]) for name in steps])  # [steps, rows]
    # What is empty behind the last value is no part of a series.
    is_kept = np.maximum.accumulate(is_there[::-1], axis=0)[::-1]
    step, row = np.nonzero(is_kept)
    rest = {name: column.take(row) for name, column in table.columns.items() if name not in steps}
    stacked = pa.chunked_array([chunk for name in steps for chunk in _chunks(table.columns[name])])
    columns = {**rest, VALUE: stacked.take(step * len(table) + row)}
    if _are_dates(steps):
        columns[TIME] = pa.chunked_array([steps]).take(step)
    note = f"each row is a series, along the columns {steps[0]!r} to {steps[-1]!r}"
    return Table(columns, table.separator, table.first_row, (*table.notes, note))


def refuse_rows_of_series(table: Table) -> None:
    """Refuse a table that has no clock, and labels that all differ before many columns that count up.

    Raises:
        ValueError: it is one.
    """
    first = next(iter(table.columns))
    steps = steps_of([name for name in table.columns if name != first])
    if (
        len(steps) >= MANY_STEPS
        and clock_column(table.columns) is None
        and len(table) > 1
        and _holds_labels(table, first)
        and _is_distinct(table, [first])
    ):
        raise ValueError(
            f"each row seems to be a series, along the columns {steps[0]!r} to {steps[-1]!r}: give --by {first!r}; or "
            "choose columns with --column"
        )


def steps_of(names: Sequence[str]) -> list[str]:
    """The last columns in a row whose names count up, or are dates; none where they do neither."""
    counted = _last(names, _counts_up)
    if len(counted) > 1:
        return counted
    dated = _last(names, lambda name, _: DATED.match(name.strip()) is not None)
    return dated if len(dated) > 1 and _are_dates(dated) else []


def _last(names: Sequence[str], goes_on: Callable[[str, str], bool]) -> list[str]:
    """The last names in a row of which each goes on as the next."""
    count = min(len(names), 1)
    while count < len(names) and goes_on(names[-count - 1], names[-count]):
        count += 1
    return list(names[len(names) - count :])


def _counts_up(name: str, after: str) -> bool:
    one, other = (re.fullmatch(r"(.*?)(\d+)", text) for text in (name, after))
    return bool(one and other and one[1] == other[1] and int(other[2]) == int(one[2]) + 1)


def _are_dates(names: Sequence[str]) -> bool:
    import pyarrow as pa

    try:
        clock = read_clock(
            pa.chunked_array([list(names)]), "header", zone="UTC", time_format=None, rows=np.arange(len(names))
        )
    except ValueError:
        return False
    return clock.is_dated and not names[0].isdigit()


def _holds_labels(table: Table, name: str) -> bool:
    import pyarrow as pa

    column = table.columns[name]
    return pa.types.is_string(column.type) and read_numbers(Writing(table), name) is None


def _is_distinct(table: Table, by: Sequence[str]) -> bool:
    keys = list(zip(*(table.columns[name].to_pylist() for name in by), strict=True))
    return len(set(keys)) == len(keys)


def _is_there(column: Any) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type):
        cells = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        return ~np.asarray(pc.is_in(pc.fill_null(cells, ""), pa.array(MISSING)).to_numpy(), bool)
    return np.asarray(pc.is_valid(column).to_numpy(), bool)


def _chunks(column: Any) -> list[Any]:
    import pyarrow as pa

    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]
