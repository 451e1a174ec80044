"""Read the value columns of a table as numbers, and choose columns to leave out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import ELAPSED_WORDS, UNIX_WORDS, sample
from rfa.data.clock_numbers import are_dates, unix_seconds, words_of
from rfa.data.column_kinds import (
    LEAST_ROWS,
    are_times,
    counts_rows,
    counts_time,
    is_calendar,
    is_constant,
    is_elapsed,
    is_identifier,
    is_label,
    is_line,
)
from rfa.data.durations import elapsed
from rfa.data.marks import MissingRule
from rfa.data.numbers import NumberFormat, parse_numbers, report_unreadable
from rfa.data.switches import read_switches
from rfa.data.table import Table
from rfa.data.units import named

# Names of columns that may contain row numbers of an exported table.
COUNTERS: Final = ("column 1", "unnamed: 0", "index", "")
COUNTER_WORDS: Final = UNIX_WORDS | ELAPSED_WORDS | {
    "record", "row", "nr", "no", "number", "index", "seq", "sequence", "nth", "key", "zeile", "lfd", "entry", "obs",
    "iteration", "step",
}  # fmt: skip
DURATION_WORDS: Final = frozenset((
    "duration", "dauer", "durée", "duree", "duración", "duracion", "durata", "duração", "duur", "varighed", "varighet",
))  # fmt: skip
# Decimal number that is followed by words.
MEASURED: Final = re.compile(r"[+-]?\d+[.,]\d+\s?[^\W\d_][^.,:/]*$")
# Whole numbers of at least this size that increase with the times are not measurements.
LARGE: Final = 1e6
SAMPLED: Final = 1000
DURATION: Final = "duration (s)"


@dataclass
class ValueColumns:
    """Columns of numbers by name, with notes.

    Attributes:
        values: Numbers of each column.
        notes: Descriptions of how the columns were read.
        units: New names of columns whose cells have a unit.
        has_others: Whether columns of text were left out.
    """

    values: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    has_others: bool = False


def read_values(
    table: Table, names: Sequence[str], rule: MissingRule, *, is_chosen: bool, is_long: bool, strict: bool
) -> ValueColumns:
    """Read the value columns of a table as numbers.

    Args:
        table: The table.
        names: Names of the columns to read.
        rule: Rule for missing values.
        is_chosen: Whether the caller chose the columns. If so, each must contain numbers, and none is left out.
        is_long: Whether the table has several series, so that a column may contain both numbers and switches such as
            on.
        strict: Whether to raise an error for cells that are not numbers.

    Raises:
        ValueError: If there is no such column, or `strict` is set and a cell is not a number.
    """
    found = ValueColumns()
    skipped: list[str] = []
    writing = NumberFormat(table, rule.words, is_long)
    for name in names:
        values = _read_column(found, writing, name, strict)
        if values is None and is_chosen:
            values = _read_switches(found, writing, name)
        if values is None or (np.isnan(values).all() and not is_chosen):
            if is_chosen:
                raise ValueError(_refusal(table, name))
            skipped.append(name)
        elif not is_chosen and name.lower() in COUNTERS and counts_rows(values):
            skipped.append(name)
        else:
            found.values[name], notes = rule.apply(values, name)
            found.notes += notes
    if not found.values:
        _add_durations(found, table, skipped)
        _add_switches(found, writing, skipped)
    if skipped:
        found.has_others = True
        if not is_chosen:
            _refuse_units(table, skipped, found.values)
        found.notes.append(f"left out, because they are not measurements: {', '.join(map(repr, skipped))}")
    if not found.values:
        reasons = [_refusal(table, name) for name in skipped[:1]]
        raise ValueError("; ".join(["the file has no value column", *found.notes[-1:], *reasons]))
    if not is_chosen:
        _leave_out(found, "constant", is_constant)
        _leave_out_identifiers(found, table)
    return found


def _leave_out_identifiers(found: ValueColumns, table: Table) -> None:
    is_idle = {"us", "sy", "wa", "id"} <= set(table.columns)  # columns of vmstat
    _leave_out(
        found, "identifiers", lambda name, values: not (is_idle and name == "id") and is_identifier(name, values)
    )


def _refuse_units(table: Table, skipped: Sequence[str], read: Collection[str]) -> None:
    """Check that no column of measurements was left out. Its cells begin with decimal numbers, more than half of which
    differ.

    Raises:
        ValueError: If there is such a column. The message quotes a cell.
    """
    import pyarrow as pa

    for name in skipped if read else ():
        cells = sample(table.columns[name]).to_pylist() if pa.types.is_string(table.columns[name].type) else []
        if len(cells) >= LEAST_ROWS and all(map(MEASURED.match, cells)) and 2 * len({*cells}) > len(cells):
            raise ValueError(
                f"column {name!r}: {cells[0]!r} begins with a number but cannot be read; write only the number, or "
                f"choose other columns with --column {next(iter(read))!r}"
            )


def _read_column(found: ValueColumns, writing: NumberFormat, name: str, strict: bool) -> np.ndarray | None:
    """Return the numbers of a column. Also add the notes and the unit of the column to `found`. Return None if the
    column has no numbers."""
    import pyarrow as pa

    column = writing.table.columns[name]
    if not pa.types.is_string(column.type):
        values, note = _typed(column, name, writing.table.first_row, strict)
        found.notes += [note] if note else []
        return values
    read = parse_numbers(writing, name, strict=strict)
    if read is None:
        return None
    found.notes += read.notes
    if (new := named(name, read.unit)) != name:
        found.units[name] = new
    return read.values


def _typed(column: Any, name: str, first_row: int, strict: bool) -> tuple[np.ndarray | None, str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        return None, ""
    values = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    is_infinite = np.isinf(values)
    if not is_infinite.any():
        return values, ""
    row, count = first_row + int(np.argmax(is_infinite)), int(is_infinite.sum())
    note = report_unreadable(name, row, "the value is not finite", count, strict=strict)
    return np.where(is_infinite, np.nan, values), note


def _read_switches(found: ValueColumns, writing: NumberFormat, name: str) -> np.ndarray | None:
    import pyarrow as pa

    column = writing.table.columns[name]
    read = (
        read_switches(column, writing.missing)
        if pa.types.is_string(column.type) or pa.types.is_boolean(column.type)
        else None
    )
    if read is None:
        return None
    found.notes.append(f"column {name!r}: {read[1]}")
    return read[0]


def _add_switches(found: ValueColumns, writing: NumberFormat, skipped: list[str]) -> None:
    """Add columns of switches such as on and off. It is called if there are no numbers."""
    for name in list(skipped):
        values = _read_switches(found, writing, name)
        if values is not None and not np.isnan(values).all():
            found.values[name] = values
            skipped.remove(name)


def _add_durations(found: ValueColumns, table: Table, skipped: list[str]) -> None:
    """Add columns that are called duration and contain durations, in seconds. It is called if there are no numbers."""
    for name in [name for name in skipped if words_of(name) & DURATION_WORDS]:
        cells = [str(cell or "").strip() for cell in table.columns[name].to_pylist()]
        read = [elapsed(cell) if cell else math.nan for cell in cells]
        if any(cells) and None not in read:
            found.values[name] = np.array(read, np.float64)
            found.units[name] = named(name, "s")
            found.notes.append(f"column {name!r}: durations are converted to seconds")
            skipped.remove(name)


def _leave_out(found: ValueColumns, kind: str, is_left_out: Callable[[str, np.ndarray], bool]) -> None:
    """Leave out columns of a kind, unless no other column would remain."""
    left = [name for name, values in found.values.items() if is_left_out(name, values)]
    if left and len(left) < len(found.values):
        for name in left:
            del found.values[name]
            found.units.pop(name, None)
        found.notes.append(f"left out as {kind}: {', '.join(map(repr, left))}; --column chooses columns")


def leave_out_counters(
    found: ValueColumns, times: np.ndarray, groups: Collection[np.ndarray], *, is_dated: bool
) -> None:
    """Leave out columns that number the rows, repeat the times or label the series, as determined by their names and
    values.

    Args:
        found: The columns, which are modified.
        times: Times of all rows.
        groups: Row indices of each series.
        is_dated: Whether the times are dates.

    Raises:
        ValueError: If the only column of numbers contains times or row numbers.
    """
    clocks = (times, np.arange(float(len(times))))

    def counts(name: str, values: np.ndarray) -> bool:
        is_named = len(values) >= LEAST_ROWS and (name.strip() == "#" or bool(words_of(name) & COUNTER_WORDS))
        return is_named and any(is_line(values, clock) for clock in clocks)

    def is_row(values: np.ndarray) -> bool:
        return values[0] in (0.0, 1.0) and bool((np.diff(values) == 1).all())

    def counts_or_numbers(name: str, values: np.ndarray) -> bool:
        is_enough = len(values) >= LEAST_ROWS and bool((values == np.rint(values)).all())
        if is_dated and (counts_time(values, times) or is_elapsed(name, values, times)):
            return True
        is_large = is_enough and values.min() > LARGE and any(is_line(values, clock) for clock in clocks)
        return (is_enough and is_row(values)) or is_large or counts(name, values)

    only = next(iter(found.values.items())) if len(found.values) == 1 else None
    if is_dated and only is not None and found.has_others and are_times(only[1], times):
        _replace_by_durations(found, only[0], times)
        return
    if only is not None and (counts(*only) or (len(only[1]) >= LEAST_ROWS and is_row(only[1]) and found.has_others)):
        name = only[0]
        raise ValueError(
            f"the only column of numbers, {name!r}, contains row numbers; choose value columns with --column"
        )
    _leave_out(found, "row numbers or elapsed times", counts_or_numbers)
    if len(groups) > 1:
        order, ends = np.concatenate([*groups]), np.cumsum([len(rows) for rows in groups])[:-1]
        is_inside = ~np.isin(np.arange(1, len(order)), ends)
        _leave_out(found, "constant in each series", lambda _, values: is_label(values[order], is_inside))
    if is_dated:
        _leave_out_dates(found, times)


def _leave_out_dates(found: ValueColumns, times: np.ndarray) -> None:
    # Some rows are tested first, because they are sufficient to reject most columns.
    rows = np.unique(np.linspace(0, len(times) - 1, SAMPLED).astype(np.int64))

    def passes(test: Callable[[np.ndarray, np.ndarray], bool]) -> Callable[[str, np.ndarray], bool]:
        return lambda _, values: test(values[rows], times[rows]) and test(values, times)

    _leave_out(found, "calendar columns", passes(is_calendar))
    _leave_out(found, "times", passes(are_times))


def _replace_by_durations(found: ValueColumns, name: str, times: np.ndarray) -> None:
    """Replace the only column of numbers, which contains times, by the time in seconds between the time of each row and
    the time in this column.

    Raises:
        ValueError: If they do not vary, or are negative.
    """
    values = found.values[name]
    passed = values * np.nan if are_dates(values[~np.isnan(values)]) else unix_seconds(values)[0] - times
    seen = passed[~np.isnan(passed)]
    if not len(seen) or seen.min() < 0 or seen.min() == seen.max():
        raise ValueError(f"the only column of numbers, {name!r}, contains times; choose value columns with --column")
    del found.values[name]
    found.values[DURATION] = np.round(passed, 6)
    found.notes.append(
        f"column {name!r} contains times; {DURATION!r} is the number of seconds from the time of the row to this time"
    )


def _refusal(table: Table, name: str) -> str:
    """Return an error message about a column without numbers, which quotes its first cell."""
    import pyarrow.compute as pc

    cells = table.columns[name]
    there = pc.is_valid(cells).to_numpy(zero_copy_only=False) if len(cells) else np.empty(0, bool)
    if not there.any():
        return f"column {name!r} has no numbers"
    row = int(np.argmax(there))
    cell = re.sub(r"\s+", " ", str(cells[row].as_py()))[:40]
    place = f"but text such as {cell!r} in row {table.first_row + row}"
    return f"column {name!r} has no numbers, {place}; choose other columns with --column"
