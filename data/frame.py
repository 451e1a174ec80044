"""Series from a table: its time column, its value columns, and the rows of each series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rfa.data.clock import Clock, clock_column, read_clock
from rfa.data.numbers import NumberFormat, parse_numbers, report_unreadable
from rfa.data.selection import resample, select_range, step_seconds
from rfa.data.series import Series
from rfa.data.table import Table
from rfa.data.wide import melt_wide, refuse_wide

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]
Refuse = Callable[[Key, ValueError], None]
MOST_SERIES: Final = 100_000
DATE: Final = "date"  # name of a time column joined from date and time of day
# In a table of several series at most this share of the times is distinct.
MAX_DISTINCT: Final = 0.6
# Columns with the hour of a date in another column.
HOURS: Final = ("hour", "hr", "hh", "hour of day", "hour_of_day", "he", "hour ending", "stunde")
# Columns that may number the rows of the exported table.
COUNTERS: Final = ("column 1", "unnamed: 0", "index", "")


def key_name(key: Key) -> str:
    """A key as text."""
    return " / ".join(map(str, key))


def read_frame(
    table: pa.Table | Table,
    *,
    time: str | None = None,
    columns: Sequence[str] = (),
    by: Sequence[str] = (),
    zone: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
    start: str | None = None,
    end: str | None = None,
    every: str | None = None,
    refused: Callable[[Key, ValueError], object] | None = None,
) -> dict[Key, Series]:
    """Read the series of a table: one with the key (), or one for each key in `by`, in the order of appearance.

    Args:
        table: an Arrow table, or the result of `load_table`.
        time: time column; default: the first with a usual name, or the first column if it holds dates; else 0, 1, 2, …
        columns: value columns; default: every column of numbers.
        by: columns whose cells together are the key of a row; rows without a key are left out.
        zone: time zone of times that name none.
        time_format: format of the times, as for `datetime.strptime`.
        strict: refuse decreasing times and cells that are not numbers; otherwise rows are sorted and cells missing.
        start, end: range of rows, `end` exclusive: ISO dates, or numbers if the times are numbers.
        every: resample each series to a regular step such as 5min, by the mean of its observations.
        refused: called with a series that cannot be read, which is left out; without it the first such one raises.

    Raises:
        ValueError: If a row, cell or series cannot be read; the message names it and says what to do.
    """
    if every is not None:
        step_seconds(every)
    table = table if isinstance(table, Table) else Table.of(table)
    refuse = _make_refuse(by, refused)
    whole, groups = _read_all(
        table, refuse, time=time, columns=columns, by=by, zone=zone, time_format=time_format, strict=strict
    )
    found: dict[Key, Series] = {}
    for key, rows in groups.items():
        try:
            series = select_range(_select_rows(whole, rows, table.first_row, strict), start, end, zone)
            found[key] = series if every is None else resample(series, every, zone)
        except ValueError as error:
            refuse(key, error)
    return found


def _make_refuse(by: Sequence[str], refused: Callable[[Key, ValueError], object] | None) -> Refuse:
    """A function that raises the error of a series, or passes it to `refused`."""

    def refuse(key: Key, error: ValueError) -> None:
        if not by:
            raise error
        named = ValueError(f"series {key_name(key)!r}: {error}")
        if refused is None:
            raise named from error
        refused(key, named)

    return refuse


def _read_all(
    table: Table, refuse: Refuse, *, time: str | None, columns: Sequence[str], by: Sequence[str], zone: str,
    time_format: str | None, strict: bool,
) -> tuple[Series, dict[Key, np.ndarray]]:  # fmt: skip
    """All rows as one series, in the order of the table, and the rows of each key."""
    if not len(table):
        raise ValueError("the table has no rows: it needs at least one")
    _check_columns(table, [*columns, *by, *([time] if time is not None else [])])
    table = melt_wide(table, by)
    groups, notes = _group_rows(table, by)
    if not (by or columns):
        refuse_wide(table)
    joined = _split_clock(table) if time is None else ()
    table = _join_clock(table, joined) if joined else table
    rest = {name: column for name, column in table.columns.items() if name not in by}
    clock = time if time is not None else clock_column(rest)
    values, value_notes = _values(table, [name for name in columns or rest if name != clock], bool(columns), strict)
    times, groups, read = _times(table, clock, groups, zone, time_format, refuse)
    whole = Series(
        times,
        _stack(values),
        tuple(values),
        clock,
        read.is_dated,
        (*table.notes, read.note, *notes, *value_notes),
        clock_columns=joined if joined and clock == DATE else () if clock is None else (clock,),
        zone=zone,
        form=read.form,
    )
    if not by:
        _refuse_several(table, whole, values)
    return whole, groups


def _check_columns(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.columns:
            raise ValueError(f"no column is called {name!r}; there are {', '.join(map(repr, table.columns))}")


def _group_rows(table: Table, by: Sequence[str]) -> tuple[dict[Key, np.ndarray], list[str]]:
    """The rows of each key, in the order of appearance, and a note on rows without a key."""
    import pyarrow.compute as pc

    codes, cells = np.zeros(len(table), np.int64), []
    is_there = np.ones(len(table), bool)
    for name in by:
        encoded = pc.dictionary_encode(_combine_chunks(_key_column(table.columns[name])))
        is_there &= np.asarray(encoded.indices.is_valid().to_numpy(zero_copy_only=False), bool)
        cells.append(
            (encoded.dictionary.to_pylist(), np.asarray(pc.fill_null(encoded.indices, 0).to_numpy(), np.int64))
        )
        _, codes = np.unique(codes * max(1, len(encoded.dictionary)) + cells[-1][1], return_inverse=True)
    rows = np.flatnonzero(is_there)
    _, first, counts = np.unique(codes[rows], return_index=True, return_counts=True)
    if len(first) > MOST_SERIES:
        raise ValueError(f"--by {' '.join(by)} gives {len(first):,} series; the limit is {MOST_SERIES:,}")
    parts = np.split(rows[np.argsort(codes[rows], kind="stable")], np.cumsum(counts)[:-1])
    found = {tuple(texts[at[parts[k][0]]] for texts, at in cells): parts[k] for k in np.argsort(first)}
    if not found:
        raise ValueError(f"no row has a key: column {', '.join(map(repr, by))} is empty")
    lost = len(table) - len(rows)
    return found, [f"{lost} rows have no key: left out"] if lost else []


def _key_column(column: Any) -> Any:
    """Keys without surrounding spaces; empty cells are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return column
    cells = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)


def _combine_chunks(column: Any) -> Any:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _split_clock(table: Table) -> tuple[str, ...]:
    """The columns of date and time of day, if a table has them apart; else ()."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = {name.strip().lower(): name for name in table.columns}
    names = tuple(lower[name] for name in ("date", "time") if name in lower)
    if len(names) < 2 or not all(pa.types.is_string(table.columns[name].type) for name in names):
        return ()
    is_of_day = pc.match_substring_regex(table.columns[names[1]], r"^\s*\d{1,2}:\d{2}")
    return names if pc.all(is_of_day).as_py() else ()


def _join_clock(table: Table, names: tuple[str, ...]) -> Table:
    """Join date and time of day into one time column."""
    import pyarrow.compute as pc

    cells = pc.binary_join_element_wise(*(pc.utf8_trim_whitespace(table.columns[name]) for name in names), " ")
    rest = {name: column for name, column in table.columns.items() if name not in names}
    notes = (*table.notes, "date and time of day, in two columns, are joined")
    return replace(table, columns={DATE: cells, **rest}, notes=notes)


def _times(
    table: Table, name: str | None, groups: dict[Key, np.ndarray], zone: str, time_format: str | None,
    refuse: Refuse,
) -> tuple[np.ndarray, dict[Key, np.ndarray], Clock]:  # fmt: skip
    """The times of the rows, the series whose times can be read, and how: by one rule for all series."""
    times = np.full(len(table), np.nan)
    if name is None:
        for rows in groups.values():
            times[rows] = np.arange(len(rows))
        return times, groups, Clock(times, "no time column: rows are one second apart", is_dated=False)

    def read(groups: dict[Key, np.ndarray]) -> Clock:
        order = np.concatenate(list(groups.values()))
        column = (
            table.columns[name] if len(groups) == 1 and len(order) == len(table) else table.columns[name].take(order)
        )
        begins = np.cumsum([0, *(len(rows) for rows in groups.values())])[:-1]
        return read_clock(column, name, zone=zone, time_format=time_format, rows=table.first_row + order, begins=begins)

    try:
        clock = read(groups)
    except ValueError:
        groups = _readable(groups, read, refuse)
        clock = read(groups)
    begin = 0
    for rows in groups.values():
        times[rows] = clock.seconds(slice(begin, begin + len(rows)))
        begin += len(rows)
    return times, groups, replace(clock, note=f"times: column {name!r}, {clock.note}")


def _readable(
    groups: dict[Key, np.ndarray], read: Callable[[dict[Key, np.ndarray]], Clock],
    refuse: Refuse,
) -> dict[Key, np.ndarray]:  # fmt: skip
    """The series whose times can be read, each tried by itself; the others are refused."""
    found, last = {}, None
    for key, rows in groups.items():
        try:
            read({key: rows})
            found[key] = rows
        except ValueError as error:
            last = error
            refuse(key, error)
    if not found and last is not None:
        raise last
    return found


def _values(
    table: Table, names: Sequence[str], is_chosen: bool, strict: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The columns of numbers, and notes on all columns."""
    found: dict[str, np.ndarray] = {}
    notes: list[str] = []
    skipped: list[str] = []
    writing = NumberFormat(table)
    for name in names:
        values, note = _column(writing, name, strict)
        if note:
            notes.append(note)
        if values is None or (np.isnan(values).all() and not is_chosen):
            if is_chosen:
                raise ValueError(f"column {name!r} holds no numbers")
            skipped.append(name)
        elif not is_chosen and name.lower() in COUNTERS and _counts_rows(values):
            skipped.append(name)
        else:
            found[name] = values
    if skipped:
        notes.append(f"left out, not measurements: {', '.join(map(repr, skipped))}")
    if not found:
        raise ValueError("the file has no value column" + (f" ({notes[-1]})" if skipped else ""))
    return found, notes


def _counts_rows(values: np.ndarray) -> bool:
    return len(values) > 2 and bool((np.diff(values) == 1).all())


def _column(writing: NumberFormat, name: str, strict: bool) -> tuple[np.ndarray | None, str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = writing.table
    column: Any = table.columns[name]
    if pa.types.is_string(column.type):
        read = parse_numbers(writing, name, strict=strict)
        return (None, "") if read is None else (read.values, read.note)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return None, ""
    values = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    is_infinite = np.isinf(values)
    if not is_infinite.any():
        return values, ""
    row, count = table.first_row + int(np.argmax(is_infinite)), int(is_infinite.sum())
    note = report_unreadable(name, row, "not finite", count, strict=strict)
    return np.where(is_infinite, np.nan, values), note


def _stack(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack(list(values.values()), axis=1)


def _select_rows(whole: Series, rows: np.ndarray, first_row: int, strict: bool) -> Series:
    """One series, its rows sorted by time.

    Raises:
        ValueError: it has no value, or its times decrease and `strict` is set.
    """
    times = whole.times[rows]
    steps = np.diff(times)
    notes = []
    if (steps < 0).any():
        at = int(np.argmax(steps < 0)) + 1
        row = first_row + int(rows[at])
        if strict:
            raise ValueError(f"row {row}: times decrease; without --strict rows are sorted")
        backwards = int((steps < 0).sum())
        notes.append(
            "rows were in reverse order"
            if backwards == len(steps)
            else f"times decrease {backwards} times (first at row {row}): rows were sorted"
        )
    order = np.argsort(times, kind="stable")
    repeated = int((np.diff(times[order]) == 0).sum())
    if repeated:
        notes.append(f"{repeated} rows have the same time as the row before")
    rows = rows[order]
    values = whole.values[rows]
    if np.isnan(values).all():
        raise ValueError("no row has a value")
    return replace(whole, times=times[order], values=values, rows=rows, notes=(*whole.notes, *notes))


def _refuse_several(table: Table, series: Series, values: dict[str, np.ndarray]) -> None:
    """Refuse a table of several series whose times repeat for each value of a label column.

    Raises:
        ValueError: If a column separates such series; the message names it.
    """
    if series.clock is None or len(np.unique(series.times)) > MAX_DISTINCT * len(series.times):
        return
    _, counts = np.unique(series.times, return_counts=True)
    for name, column in table.columns.items():
        if name == series.clock or (name in values and not _are_labels(values[name], int(counts.max()))):
            continue
        groups, _ = _group_rows(table, (name,)) if column.null_count < len(column) else ({}, [])
        sizes = [len(rows) for rows in groups.values()]
        if len(sizes) > 1 and all(len(np.unique(series.times[rows])) == len(rows) for rows in groups.values()):
            if name.strip().lower() in HOURS:
                raise ValueError(
                    f"times repeat, and column {name!r} separates {len(sizes)} rows of each: write date and hour in "
                    "one column, such as 2024-03-31 13:00"
                )
            raise ValueError(
                f"times repeat, and column {name!r} separates {len(sizes)} series: give --by {name!r}, or select the "
                "rows of one"
            )


def _are_labels(values: np.ndarray, most: int) -> bool:
    """Whether numbers label series or hours: repeating integers, as many distinct ones as a time has rows."""
    kinds, counts = np.unique(values, return_counts=True)
    return len(kinds) == most and bool((counts > 1).all() and (kinds == np.rint(kinds)).all())
