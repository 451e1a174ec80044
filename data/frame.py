"""Series from a table: its clock, its columns of numbers, and which rows belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rfa.data.clock import Clock, clock_column, read_clock
from rfa.data.numbers import Writing, odd_cells, read_numbers
from rfa.data.part import between, regular, step_of
from rfa.data.series import Series
from rfa.data.table import Table
from rfa.data.wide import refuse_rows_of_series, unfolded

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]
MOST_SERIES: Final = 100_000
DATE: Final = "date"  # what a clock of two columns is called
# Share of rows whose times differ, at most, where a table has several series.
MOST_DISTINCT: Final = 0.6
# Columns that have the hour of a date that stands in another one.
HOURS: Final = ("hour", "hr", "hh", "hour of day", "hour_of_day", "he", "hour ending", "stunde")
# Columns that number the rows of the table they were written from.
COUNTERS: Final = ("column 1", "unnamed: 0", "index", "")


def key_name(key: Key) -> str:
    """A key as it is shown."""
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
    """The series of a table: one of all rows, by the key (), or one of each key that `by` finds, as they first appear.

    Args:
        table: of Arrow's, or what `load_table` read.
        time: the column of times; else the first that is called like one, or holds dates; else 0, 1, 2, …
        columns: the columns of values; else every column of numbers.
        by: the columns whose cells together are the key of a row's series; rows without one are left out.
        zone: where the clock hung whose times name no zone.
        time_format: how times are written, as `datetime.strptime` has it.
        strict: refuse rows that run backwards and cells that are no numbers; else they are sorted, and missing.
        start, end: only rows from the one on and before the other: ISO dates, or numbers where the times are numbers.
        every: put each series on a regular clock of such steps, such as 5min, by the mean of what was observed.
        refused: is told of a series that cannot be had, which is left out; without it the first such one raises.

    Raises:
        ValueError: the row and column that cannot be read, or the series, and what to do.
    """
    if every is not None:
        step_of(every)
    table = table if isinstance(table, Table) else Table.of(table)
    if not len(table):
        raise ValueError("the table has no rows: it needs at least one")
    _known(table, [*columns, *by, *([time] if time is not None else [])])

    def refuse(key: Key, error: ValueError) -> None:
        if not by:
            raise error
        told = ValueError(f"series {key_name(key)!r}: {error}")
        if refused is None:
            raise told from error
        refused(key, told)

    table = unfolded(table, by)
    groups, notes = _groups(table, by)
    if not (by or columns):
        refuse_rows_of_series(table)
    joined = _dated(table) if time is None else ()
    table = _joined(table, joined) if joined else table
    rest = {name: column for name, column in table.columns.items() if name not in by}
    clock = time if time is not None else clock_column(rest)
    values, said = _values(table, [name for name in columns or rest if name != clock], bool(columns), strict)
    times, groups, told = _times(table, clock, groups, zone, time_format, refuse)
    notes = [*table.notes, told.note, *notes, *said]
    whole = Series(
        times,
        _stacked(values),
        tuple(values),
        clock,
        told.is_dated,
        tuple(notes),
        clock_columns=joined if joined and clock == DATE else () if clock is None else (clock,),
        zone=zone,
        form=told.form,
    )
    if not by:
        _refuse_several(table, whole, values)
    found: dict[Key, Series] = {}
    for key, rows in groups.items():
        try:
            series = between(_chosen(whole, rows, table.first_row, strict), start, end, zone)
            found[key] = series if every is None else regular(series, every, zone)
        except ValueError as error:
            refuse(key, error)
    return found


def _known(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.columns:
            raise ValueError(f"no column is called {name!r}; there are {', '.join(map(repr, table.columns))}")


def _groups(table: Table, by: Sequence[str]) -> tuple[dict[Key, np.ndarray], list[str]]:
    """The rows of each key, in the order in which keys first appear; and how many rows have none."""
    import pyarrow.compute as pc

    codes, cells = np.zeros(len(table), np.int64), []
    is_there = np.ones(len(table), bool)
    for name in by:
        encoded = pc.dictionary_encode(_combined(_key_column(table.columns[name])))
        is_there &= np.asarray(encoded.indices.is_valid().to_numpy(zero_copy_only=False), bool)
        cells.append(
            (encoded.dictionary.to_pylist(), np.asarray(pc.fill_null(encoded.indices, 0).to_numpy(), np.int64))
        )
        _, codes = np.unique(codes * max(1, len(encoded.dictionary)) + cells[-1][1], return_inverse=True)
    rows = np.flatnonzero(is_there)
    _, first, counts = np.unique(codes[rows], return_index=True, return_counts=True)
    if len(first) > MOST_SERIES:
        raise ValueError(
            f"--by {' '.join(by)} makes {len(first):,} series, at most {MOST_SERIES:,} are taken at a time"
        )
    parts = np.split(rows[np.argsort(codes[rows], kind="stable")], np.cumsum(counts)[:-1])
    found = {tuple(texts[at[parts[k][0]]] for texts, at in cells): parts[k] for k in np.argsort(first)}
    if not found:
        raise ValueError(f"no row has a key: {', '.join(map(repr, by))} are empty everywhere")
    lost = len(table) - len(rows)
    return found, [f"{lost} rows have no key: left out"] if lost else []


def _key_column(column: Any) -> Any:
    """Keys without spaces around them; empty cells are no keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return column
    cells = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)


def _combined(column: Any) -> Any:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _dated(table: Table) -> tuple[str, ...]:
    """A date in one column and the time of day in another; nothing where there are not both."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = {name.strip().lower(): name for name in table.columns}
    names = tuple(lower[name] for name in ("date", "time") if name in lower)
    if len(names) < 2 or not all(pa.types.is_string(table.columns[name].type) for name in names):
        return ()
    is_of_day = pc.match_substring_regex(table.columns[names[1]], r"^\s*\d{1,2}:\d{2}")
    return names if pc.all(is_of_day).as_py() else ()


def _joined(table: Table, names: tuple[str, ...]) -> Table:
    """Date and time of day as one clock."""
    import pyarrow.compute as pc

    cells = pc.binary_join_element_wise(*(pc.utf8_trim_whitespace(table.columns[name]) for name in names), " ")
    rest = {name: column for name, column in table.columns.items() if name not in names}
    notes = (*table.notes, "date and time of day are two columns: joined")
    return replace(table, columns={DATE: cells, **rest}, notes=notes)


def _times(
    table: Table, name: str | None, groups: dict[Key, np.ndarray], zone: str, time_format: str | None,
    refuse: Callable[[Key, ValueError], None],
) -> tuple[np.ndarray, dict[Key, np.ndarray], Clock]:  # fmt: skip
    """The times of the rows, the series whose clock can be read, and how it was: by one rule for all."""
    times = np.full(len(table), np.nan)
    if name is None:
        for rows in groups.values():
            times[rows] = np.arange(len(rows))
        return times, groups, Clock(times, "no column of times: rows are one second apart", is_dated=False)

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
    refuse: Callable[[Key, ValueError], None],
) -> dict[Key, np.ndarray]:  # fmt: skip
    """The series whose clocks can be read each by itself; the others are refused."""
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
    """The columns of numbers, and what is said of the others."""
    found: dict[str, np.ndarray] = {}
    notes: list[str] = []
    skipped: list[str] = []
    writing = Writing(table)
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
        notes.append(f"left out, as they hold no measurements: {', '.join(map(repr, skipped))}")
    if not found:
        raise ValueError("the file has no column of values" + (f" ({notes[-1]})" if skipped else ""))
    return found, notes


def _counts_rows(values: np.ndarray) -> bool:
    return len(values) > 2 and bool((np.diff(values) == 1).all())


def _column(writing: Writing, name: str, strict: bool) -> tuple[np.ndarray | None, str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = writing.table
    column: Any = table.columns[name]
    if pa.types.is_string(column.type):
        read = read_numbers(writing, name, strict=strict)
        return (None, "") if read is None else (read.values, read.note)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return None, ""
    values = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    is_infinite = np.isinf(values)
    if not is_infinite.any():
        return values, ""
    row, count = table.first_row + int(np.argmax(is_infinite)), int(is_infinite.sum())
    note = odd_cells(name, row, "not finite", count, strict=strict)
    return np.where(is_infinite, np.nan, values), note


def _stacked(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack(list(values.values()), axis=1)


def _chosen(whole: Series, rows: np.ndarray, first_row: int, strict: bool) -> Series:
    """One series, its rows in the order of time.

    Raises:
        ValueError: it has no value, or its times decrease and that is refused.
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
            "rows were in reverse"
            if backwards == len(steps)
            else f"times ran backwards in {backwards} places (first at row {row}): rows were sorted"
        )
    order = np.argsort(times, kind="stable")
    repeated = int((np.diff(times[order]) == 0).sum())
    if repeated:
        notes.append(f"{repeated} rows have the time of the row before")
    rows = rows[order]
    values = whole.values[rows]
    if np.isnan(values).all():
        raise ValueError("no row has a value")
    return replace(whole, times=times[order], values=values, rows=rows, notes=(*whole.notes, *notes))


def _refuse_several(table: Table, series: Series, values: dict[str, np.ndarray]) -> None:
    """Refuse a table whose times come again for every one of several series, which one of its columns names.

    Raises:
        ValueError: it is one; the message has the column.
    """
    if series.clock is None or len(np.unique(series.times)) > MOST_DISTINCT * len(series.times):
        return
    _, counts = np.unique(series.times, return_counts=True)
    for name, column in table.columns.items():
        if name == series.clock or (name in values and not _are_labels(values[name], int(counts.max()))):
            continue
        groups, _ = _groups(table, (name,)) if column.null_count < len(column) else ({}, [])
        sizes = [len(rows) for rows in groups.values()]
        if len(sizes) > 1 and all(len(np.unique(series.times[rows])) == len(rows) for rows in groups.values()):
            if name.strip().lower() in HOURS:
                raise ValueError(
                    f"times repeat, and column {name!r} tells {len(sizes)} rows of each apart: write both in one "
                    "column, such as 2024-03-31 13:00"
                )
            raise ValueError(
                f"times repeat, and column {name!r} tells {len(sizes)} series apart: give --by {name!r}, or filter the "
                "rows of one"
            )


def _are_labels(values: np.ndarray, most: int) -> bool:
    """Whether numbers are of series or hours: whole ones that come again, as many different ones as a time has rows."""
    kinds, counts = np.unique(values, return_counts=True)
    return len(kinds) == most and bool((counts > 1).all() and (kinds == np.rint(kinds)).all())
