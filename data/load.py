"""A series from a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rfa.data.clock import Clock, clock_column, read_clock, zone_of
from rfa.data.numbers import read_numbers
from rfa.data.series import Series
from rfa.data.table import MAX_BYTES, Table, read_table


def load_series(
    source: str | Path,
    *,
    time: str | None = None,
    columns: Sequence[str] = (),
    zone: str = "UTC",
    time_format: str | None = None,
    strict: bool = False,
    start: str | None = None,
    end: str | None = None,
) -> Series:
    """Read a recorded series: CSV in any dress, Parquet or Arrow, plain or packed.

    Args:
        source: a file, or "-" for standard input.
        time: the column of times; else the first that is called like one, or holds dates; else 0, 1, 2, …
        columns: the columns of values; else every column of numbers.
        zone: where the clock hung whose times name no zone.
        time_format: how times are written, as `datetime.strptime` has it.
        strict: refuse rows that run backwards; else they are sorted.
        start, end: only rows from the one on and before the other: ISO dates, or numbers where the times are numbers.

    Raises:
        ValueError: what the file is, or the row and column that cannot be read, and what to do.
    """
    table = read_table(_content(source))
    _known(table, [*columns, *([time] if time is not None else [])])
    if time is None:
        table = _dated(table)
    name = time if time is not None else clock_column(table.columns)
    values, notes = _values(table, [n for n in columns or table.columns if n != name], is_chosen=bool(columns))
    count = len(next(iter(values.values())))
    if name is None:
        notes.insert(0, "no column of times: rows are one second apart")
        series = Series(np.arange(count, dtype=np.float64), _stacked(values), tuple(values))
        return _part(replace(series, notes=(*table.notes, *notes)), start, end, zone)
    clock = read_clock(table.columns[name], name, zone=zone, time_format=time_format, first_row=table.first_row)
    notes.insert(0, f"times: column {name!r}, {clock.note}")
    order, said = _order(clock, table.first_row, strict=strict)
    series = Series(clock.seconds[order], _stacked(values)[order], tuple(values), name, clock.is_dated)
    return _part(replace(series, notes=(*table.notes, *notes, *said)), start, end, zone)


def _part(series: Series, start: str | None, end: str | None, zone: str) -> Series:
    """The rows from `start` on and before `end`."""
    if start is None and end is None:
        return series
    low, high = (
        limit if text is None else _limit(text, series, zone) for text, limit in ((start, -np.inf), (end, np.inf))
    )
    chosen = (series.times >= low) & (series.times < high)
    if not chosen.any():
        first, last = (str(moment) for moment in series.moments(series.times[[0, -1]]))
        raise ValueError(
            f"no row lies from {start or 'the start'} to {end or 'the end'}: they go from {first} to {last}"
        )
    return replace(series, times=series.times[chosen], values=series.values[chosen])


def _limit(text: str, series: Series, zone: str) -> float:
    try:
        if not series.is_dated:
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        told = "an ISO date such as 2024-03-31T12:00" if series.is_dated else "a number, as the series has no dates"
        raise ValueError(f"--from and --to take {told}, got {text!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone_of(zone))).timestamp()


def _content(source: str | Path) -> bytes:
    if str(source) == "-":
        return sys.stdin.buffer.read(MAX_BYTES)
    path = Path(source)
    if not path.exists():
        raise ValueError(f"file {str(path)!r} does not exist")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file")
    if path.stat().st_size >= MAX_BYTES:
        raise ValueError(f"{path.name} has 2 GiB or more: give a part of it")
    return path.read_bytes()


def _known(table: Table, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.columns:
            raise ValueError(f"no column is called {name!r}; there are {', '.join(map(repr, table.columns))}")


def _dated(table: Table) -> Table:
    """A date in one column and the time of day in another are one clock."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lower = {name.strip().lower(): name for name in table.columns}
    if not {"date", "time"} <= lower.keys():
        return table
    date, time = (table.columns[lower[name]] for name in ("date", "time"))
    if not (pa.types.is_string(date.type) and pa.types.is_string(time.type)):
        return table
    if not pc.all(pc.match_substring_regex(time, r"^\s*\d{1,2}:\d{2}")).as_py():
        return table
    joined = pc.binary_join_element_wise(pc.utf8_trim_whitespace(date), pc.utf8_trim_whitespace(time), " ")
    rest = {name: column for name, column in table.columns.items() if name not in (lower["date"], lower["time"])}
    notes = (*table.notes, "date and time of day are two columns: joined")
    return Table({"date": joined, **rest}, table.separator, table.first_row, notes)


def _values(table: Table, names: Sequence[str], *, is_chosen: bool) -> tuple[dict[str, np.ndarray], list[str]]:
    """The columns of numbers, and what is said of the others."""
    found: dict[str, np.ndarray] = {}
    notes: list[str] = []
    skipped: list[str] = []
    for name in names:
        values, note = _column(table, name)
        if note:
            notes.append(note)
        if values is None or (np.isnan(values).all() and not is_chosen):
            if is_chosen:
                raise ValueError(f"column {name!r} holds no numbers")
            skipped.append(name)
        elif not is_chosen and name.lower() in ("column 1", "unnamed: 0", "index", "") and _counts_rows(values):
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


def _column(table: Table, name: str) -> tuple[np.ndarray | None, str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    column: Any = table.columns[name]
    if pa.types.is_string(column.type):
        read = read_numbers(column, name, table.separator, table.first_row)
        return (None, "") if read is None else (read.values, read.note)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return None, ""
    values = np.asarray(pc.cast(column, pa.float64()).to_numpy(), np.float64)
    if np.isinf(values).any():
        raise ValueError(f"row {int(np.argmax(np.isinf(values))) + 1}, column {name!r}: not finite")
    return values, ""


def _stacked(values: dict[str, np.ndarray]) -> np.ndarray:
    return np.stack(list(values.values()), axis=1)


def _order(clock: Clock, first_row: int, *, strict: bool) -> tuple[np.ndarray, list[str]]:
    """The order of the rows by their times, and what is said of it."""
    steps = np.diff(clock.seconds)
    notes = []
    if (steps < 0).any():
        row = first_row + int(np.argmax(steps < 0)) + 1
        if strict:
            raise ValueError(f"row {row}: times decrease; without --strict rows are sorted")
        backwards = int((steps < 0).sum())
        notes.append(
            "rows were in reverse"
            if backwards == len(steps)
            else f"times ran backwards in {backwards} places (first at row {row}): rows were sorted"
        )
    order = np.argsort(clock.seconds, kind="stable")
    repeated = int((np.diff(clock.seconds[order]) == 0).sum())
    if repeated:
        notes.append(f"{repeated} rows have the time of the row before")
    return order, notes
