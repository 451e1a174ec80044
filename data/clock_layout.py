"""Find the time column of a table, or the columns that are joined to one, and the rows that have a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import SAMPLED, clock_column, epoch_column, is_unix, numeric_sample, refuse_unknown_times
from rfa.data.clock_numbers import unix_seconds, with_points, words_of
from rfa.data.clock_parts import JOINED, ClockParts, find_parts
from rfa.data.epochs import parse_form
from rfa.data.number_forms import SEPARATORS_WITH_DECIMAL_COMMA
from rfa.data.read_options import ReadOptions
from rfa.data.table import Table, unique_names
from rfa.data.table_checks import zone_of
from rfa.data.table_ends import timed_rows, untimed_rows
from rfa.data.units import TIMES

# Words in names of columns of times since 1970, the largest UTC offset, and the tolerance of a minute in hours.
UNIX_NAMES: Final = frozenset(("unix", "unixtime", "epoch", "timestamp", "utc"))
MOST_HOURS, NEAR = 14, 1 / 60


@dataclass(frozen=True)
class Layout:
    """Columns of a table, and the time column among them.

    Attributes:
        table: Table from which the columns are read.
        rest: Columns other than the keys, including the joined time column if there is one.
        clock: Name of the time column. None if there is none.
        parts: Columns that were joined to the time column. None if none were joined.
        options: Options for reading, with the detected format and time zone.
        notes: Notes on how the time zone was found.
    """

    table: Table
    rest: dict[str, Any]
    clock: str | None
    parts: ClockParts | None
    options: ReadOptions
    notes: tuple[str, ...] = ()


def find_layout(table: Table, by: Sequence[str], options: ReadOptions) -> Layout:
    """Find the time column of a table, leave out rows without a time at the beginning and the end of the table, and
    return the layout of the table.

    Args:
        table: The table.
        by: Names of the key columns.
        options: Options for reading the table.

    Raises:
        ValueError: If no column is the time and cells look like times, or a column has several time zones.
    """
    rest = _without_keys(table, by)
    parts = find_parts(rest) if options.time is None else None
    layout = _single_column(table, rest, options) if parts is None else _joined(table, rest, parts, options)
    rest, clock = layout.rest, layout.clock
    if clock is None:
        return layout
    if table.separator is not None and not options.strict:
        table, rest = _cut_ends(layout.table, rest, clock)
        layout = replace(layout, table=table, rest=rest)
    names = tuple(parts.columns.values()) if parts is not None else ()
    zone = zone_of(clock, rest, names) if options.zone == "UTC" else None
    if zone is None:
        return layout
    return replace(
        layout,
        options=replace(layout.options, zone=zone[0]),
        notes=(f"times are in zone {zone[0]}, as stated {zone[1]}",),
    )


def _joined(table: Table, rest: dict[str, Any], parts: ClockParts, options: ReadOptions) -> Layout:
    """Join the columns that are parts of the time to one time column."""
    rest = {name: column for name, column in rest.items() if name not in parts.columns.values()}
    clock = unique_names([*rest, JOINED])[-1]
    rest[clock] = parts.cells(table.columns)
    if merged := parts.merged(table.columns):
        note = f"empty cells of {', '.join(map(repr, merged))} are filled with the value above"
        table = replace(table, notes=(*table.notes, note))
    options = replace(options, time_format=options.time_format or parts.time_format)
    return Layout(table, rest, clock, parts, options)


def _single_column(table: Table, rest: dict[str, Any], options: ReadOptions) -> Layout:
    free = {name: column for name, column in rest.items() if name not in options.columns}
    clock = options.time if options.time is not None else clock_column(free)
    epoch = table.epoch if options.time_format is None else parse_form(options.time_format)
    if epoch is not None and epoch not in TIMES:
        counted = epoch_column(free if options.time is None else {options.time: rest[options.time]}, epoch)
        if counted is not None and (clock is None or counted == clock):
            clock, options = counted, replace(options, time_format=epoch)
    if clock is None and not options.columns:
        refuse_unknown_times(rest)
    return Layout(table, rest, clock, None, options)


def _without_keys(table: Table, by: Sequence[str]) -> dict[str, Any]:
    """Return the columns other than keys. In the first one, which may be the time column, decimal commas become decimal
    points."""
    rest = {name: column for name, column in table.columns.items() if name not in by}
    if table.separator in SEPARATORS_WITH_DECIMAL_COMMA and rest:
        first = next(iter(rest))
        rest[first] = with_points(rest[first])
    return rest


def _cut_ends(table: Table, rest: dict[str, Any], clock: str) -> tuple[Table, dict[str, Any]]:
    """Return the table and its columns without rows at the beginning and end that have no time."""
    rows = timed_rows(rest[clock])
    if (left := len(table) - (rows.stop - rows.start)) == 0:
        return _cut_sums(table, rest, clock)
    columns, rest = ({name: column[rows] for name, column in each.items()} for each in (table.columns, rest))
    note = f"{left} rows at the {'beginning' if rows.start else 'end'} have no time and are left out"
    return _cut_sums(Table(columns, table.separator, table.first_row + rows.start, (*table.notes, note)), rest, clock)


def _cut_sums(table: Table, rest: dict[str, Any], clock: str) -> tuple[Table, dict[str, Any]]:
    """Return the table and its columns without rows that contain words instead of a time, such as rows with sums."""
    if (left := untimed_rows(rest[clock])) is None:
        return table, rest
    word = str(rest[clock][int(left[0])].as_py())[:40]
    kept = np.setdiff1d(np.arange(len(table)), left)
    columns, rest = ({name: column.take(kept) for name, column in each.items()} for each in (table.columns, rest))
    place = f"{word!r} in row {table.first_row + int(left[0])}"
    note = f"{len(left)} rows with text instead of a time are left out, such as {place}"
    return replace(table, columns=columns, notes=(*table.notes, note)), rest


def hours_from_unix(columns: dict[str, Any], times: np.ndarray) -> tuple[int, str] | None:
    """Return the UTC offset of local times in hours, and the name of the column from which it was determined. This
    column contains the Unix times of the same rows. Return None if the table has no column of Unix times.

    Args:
        columns: Columns of the table other than the time column.
        times: Local times in seconds, interpreted as UTC.
    """
    for name, column in columns.items():
        numbers = numeric_sample(column) if words_of(name) & UNIX_NAMES else None
        if numbers is None or not is_unix(numbers) or np.isnan(times).any():
            continue
        rows = np.unique(np.linspace(0, len(column) - 1, SAMPLED).astype(np.int64))
        if len(numbers) != len(rows):
            continue  # empty cells
        hours = (times[rows] - unix_seconds(numbers)[0]) / 3600
        whole = int(np.rint(hours[0]))
        if 0 < abs(whole) <= MOST_HOURS and bool((np.abs(hours - whole) < NEAR).all()):
            return whole, name
    return None
