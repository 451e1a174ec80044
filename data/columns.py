"""The value columns of a table as numbers, and which columns are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import ELAPSED_WORDS, UNIX_WORDS, is_unix
from rfa.data.clock_numbers import DAY, unix_seconds, words_of
from rfa.data.marks import MissingRule
from rfa.data.numbers import NumberFormat, parse_numbers, read_switches, report_unreadable
from rfa.data.table import Table
from rfa.data.units import named

# Columns that may number the rows of the exported table.
COUNTERS: Final = ("column 1", "unnamed: 0", "index", "")
COUNTER_WORDS: Final = UNIX_WORDS | ELAPSED_WORDS | {
    "record", "row", "nr", "no", "number", "index", "seq", "sequence", "nth", "key", "zeile", "lfd", "entry",
}  # fmt: skip
# The least rows for which a column of one value is a constant.
LEAST_ROWS: Final = 12
IDENTIFIERS: Final = frozenset(("id", "uuid", "guid", "zip", "plz", "postcode"))


@dataclass
class ValueColumns:
    """Columns of numbers by name, with notes. units: the new names of columns whose cells have a unit."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)


def read_values(
    table: Table, names: Sequence[str], rule: MissingRule, *, is_chosen: bool, is_long: bool, strict: bool
) -> ValueColumns:
    """The columns of numbers.

    Args:
        is_chosen: the columns were chosen: they must have numbers, and none is left out.
        is_long: the table has several series, and on and off may be among numbers.

    Raises:
        ValueError: there is none, or a cell is no number and `strict` is set.
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
        elif not is_chosen and name.lower() in COUNTERS and _counts_rows(values):
            skipped.append(name)
        else:
            found.values[name], notes = rule.apply(values, name)
            found.notes += notes
    if not found.values:
        _add_switches(found, writing, skipped)
    if skipped:
        found.notes.append(f"left out, not measurements: {', '.join(map(repr, skipped))}")
    if not found.values:
        reasons = [_refusal(table, name) for name in skipped[:1]]
        raise ValueError("; ".join(["the file has no value column", *found.notes[-1:], *reasons]))
    if not is_chosen:
        _leave_out(found, "constant", _is_constant)
        _leave_out(found, "identifiers", _is_identifier)
    return found


def _read_column(found: ValueColumns, writing: NumberFormat, name: str, strict: bool) -> np.ndarray | None:
    """The numbers of a column, None if it has none; adds notes and its unit."""
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
    values = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    is_infinite = np.isinf(values)
    if not is_infinite.any():
        return values, ""
    row, count = first_row + int(np.argmax(is_infinite)), int(is_infinite.sum())
    note = report_unreadable(name, row, "not finite", count, strict=strict)
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
    """Columns of on and off, where there are no numbers."""
    for name in list(skipped):
        values = _read_switches(found, writing, name)
        if values is not None and not np.isnan(values).all():
            found.values[name] = values
            skipped.remove(name)


def _leave_out(found: ValueColumns, kind: str, is_left_out: Callable[[str, np.ndarray], bool]) -> None:
    """Leave out columns of a kind, unless no other would remain."""
    left = [name for name, values in found.values.items() if is_left_out(name, values)]
    if left and len(left) < len(found.values):
        for name in left:
            del found.values[name]
            found.units.pop(name, None)
        found.notes.append(f"left out, {kind}: {', '.join(map(repr, left))}; --column chooses columns")


def leave_out_counters(found: ValueColumns, times: np.ndarray, *, is_dated: bool) -> None:
    """Leave out columns that number the rows or repeat the times, by their names and values."""
    clocks = (times, np.arange(float(len(times))))

    def counts(name: str, values: np.ndarray) -> bool:
        is_named = len(values) >= LEAST_ROWS and (name.strip() == "#" or bool(words_of(name) & COUNTER_WORDS))
        return is_named and any(_is_line(values, clock) for clock in clocks)

    if len(found.values) == 1 and counts(*next(iter(found.values.items()))):
        name = next(iter(found.values))
        raise ValueError(f"the only column of numbers, {name!r}, counts the rows: choose value columns with --column")
    _leave_out(found, "counts of rows or times", counts)
    if is_dated:
        _leave_out(found, "times", lambda _, values: _are_times(values, times))


def _are_times(values: np.ndarray, times: np.ndarray) -> bool:
    """Whether values are seconds or finer units since 1970 that follow the times, such as the ends of intervals."""
    seen = ~np.isnan(values)
    if seen.sum() < LEAST_ROWS or not is_unix(values[seen]):
        return False
    moments, clock = unix_seconds(values[seen])[0], times[seen]
    near = 2 * float(np.ptp(clock)) / (len(clock) - 1) + DAY
    return bool((np.abs(moments - clock) <= near).all() and np.corrcoef(moments, clock)[0, 1] > 0.99)


def _is_line(values: np.ndarray, clock: np.ndarray) -> bool:
    span, rise = clock[-1] - clock[0], values[-1] - values[0]
    if not rise * span > 0:
        return False
    return bool(np.allclose(values - values[0], rise * ((clock - clock[0]) / span), rtol=0, atol=1e-6 * abs(rise)))


def _is_constant(_: str, values: np.ndarray) -> bool:
    seen = values[~np.isnan(values)]
    return len(values) >= LEAST_ROWS and bool((seen == seen[:1]).all())


def _is_identifier(name: str, values: np.ndarray) -> bool:
    seen = values[~np.isnan(values)]
    words = words_of(name)
    return bool(words & IDENTIFIERS) and bool((seen == np.rint(seen)).all())


def _counts_rows(values: np.ndarray) -> bool:
    return len(values) > 2 and bool((np.diff(values) == 1).all())


def _refusal(table: Table, name: str) -> str:
    """What is wrong with a column without numbers; quotes its first cell."""
    import pyarrow.compute as pc

    cells = table.columns[name]
    there = pc.is_valid(cells).to_numpy(zero_copy_only=False) if len(cells) else np.empty(0, bool)
    if not there.any():
        return f"column {name!r} holds no numbers"
    row = int(np.argmax(there))
    cell = re.sub(r"\s+", " ", str(cells[row].as_py()))[:40]
    place = f"such as {cell!r} in row {table.first_row + row}"
    return f"column {name!r} holds no numbers, {place}; choose others with --column"
