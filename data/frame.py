"""Read the series of a table: determine its time column, its value columns, and the rows of each series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rfa.data.checks import check_clock
from rfa.data.clock import CLOCK_FACE, AmbiguousDates, Clock
from rfa.data.clock_choice import date_columns
from rfa.data.clock_layout import Layout, find_layout, hours_from_unix
from rfa.data.clock_numbers import time_unit
from rfa.data.clock_parts import calendar_columns
from rfa.data.columns import ValueColumns, leave_out_counters, read_values
from rfa.data.covariates import read_covariates, split_covariates
from rfa.data.day_first import choose_format
from rfa.data.days_across import melt_days
from rfa.data.hours_across import melt_hours
from rfa.data.keys import cell_codes, find_keys, group_rows
from rfa.data.local_time import local_seconds
from rfa.data.marks import OFF, MissingRule
from rfa.data.months_across import melt_months
from rfa.data.read_options import ReadOptions
from rfa.data.row_times import Groups, count_rows, read_times
from rfa.data.selection import resample, select_range, step_seconds
from rfa.data.series import Key, Series, key_name
from rfa.data.table import Table
from rfa.data.table_checks import check_epoch, check_header, check_labels, check_signs, check_units
from rfa.data.utc_offsets import UTC, UtcOffsets, shown_offsets
from rfa.data.wide import VALUE, melt_wide, wide_keys

if TYPE_CHECKING:
    import pyarrow as pa

Refuse = Callable[[Key, ValueError], None]
Refused = Callable[[Key, ValueError], object]
# Columns of the tables of Nixtla, Prophet and GluonTS, and the column to forecast.
TARGETS: Final = (({"ds", "y"}, "y"), ({"item_id", "target"}, "target"), ({"timestamp", "target"}, "target"))


@dataclass(frozen=True)
class Frame:
    """A table and the series that it contains.

    Attributes:
        table: The table, with one row per value, and with units in the names of its columns.
        by: Names of the key columns, which were specified or detected.
        series: Series by key. The key is () if there is only one series.
    """

    table: Table
    by: tuple[str, ...]
    series: dict[Key, Series]


def read_frame(table: pa.Table | Table, *, refused: Refused | None = None, **options: Any) -> dict[Key, Series]:
    """Read the series of a table. The result contains one series with the key (), or one for each key, in order of
    appearance.

    Args:
        table: An Arrow table, or the result of `load_table`.
        refused: Function that is called with a series that cannot be read, which is then left out. Without it, the
            first such series raises an error.
        time: Name of the time column. The default is the first column with a usual name or with dates. If there is
            none, the times are 0, 1, 2, …
        columns: Names of the value columns. The default is all columns of numbers.
        by: Names of the key columns, whose cells together are the key of a row. Rows without a key are left out. The
            default is the columns that label series, if times repeat.
        zone: Time zone of times without a time zone.
        time_format: Format of the times, as for `datetime.strptime`.
        strict: Whether to raise an error for decreasing times and cells that are not numbers. Otherwise, rows are
            sorted and such cells are missing.
        start, end: Range of rows, as ISO dates, or as numbers if the times are numbers. It does not include `end`.
        every: Regular step, such as 5min, to which each series is resampled by the mean of its observations.
        missing: Additional words and numbers that mark missing values. With "none", no numbers mark missing values.
        known: Names of columns whose future values are known. They continue after the last value of the other columns.

    Raises:
        ValueError: If a row, cell or series cannot be read. The message names it and says what to do.
    """
    return read_all(table, ReadOptions(**options), refused).series


def read_all(table: pa.Table | Table, options: ReadOptions, refused: Refused | None = None) -> Frame:
    """Read the series of a table. Unlike `read_frame`, return also the table and the key columns.

    Raises:
        ValueError: If a row, cell or series cannot be read. The message names it and says what to do.
    """
    if options.every is not None:
        step_seconds(options.every)
    table = table if isinstance(table, Table) else Table.of(table)
    if OFF not in options.missing:
        options = replace(options, missing=(*options.missing, *table.marks))
    table, by, whole, groups, refuse, known = _read_rows(table, options, refused)
    shown = _shown_offsets(table, whole, options.zone)
    found: dict[Key, Series] = {}
    for key, rows in groups.items():
        try:
            selected = _select_rows(whole, rows, table.first_row, options.strict)
            if shown is not None:
                selected = replace(selected, utc_offsets=UtcOffsets.of_rows(selected.times, shown[selected.rows]))
            series = select_range(selected, options.start, options.end, options.zone)
            series = series if options.every is None else resample(series, options.every, options.zone)
            found[key] = split_covariates(series, known) if known else series
        except ValueError as error:
            refuse(key, error)
    return Frame(table, tuple(by), found)


def _shown_offsets(table: Table, whole: Series, zone: str) -> np.ndarray | None:
    """Return the UTC offsets of all rows if the times are written with offsets and `zone` is UTC. Otherwise, return
    None."""
    column = table.columns.get(whole.clock or "")
    return shown_offsets(column) if zone == "UTC" and whole.is_dated and column is not None else None


def _zone_offsets(column: Any, zone: str) -> UtcOffsets:
    """Return the offsets of `zone` or, if it is UTC, of the time zone in the type of the time column."""
    import pyarrow as pa

    if zone == "UTC" and pa.types.is_timestamp(column.type) and column.type.tz is not None:
        zone = column.type.tz
    try:
        return UtcOffsets.of_zone(zone)
    except ValueError:  # the zone is a fixed offset such as +01:00
        return UTC


def _make_refuse(by: Sequence[str], refused: Callable[[Key, ValueError], object] | None) -> Refuse:
    """Return a function that raises the error of a series, or passes it to `refused`."""

    def refuse(key: Key, error: ValueError) -> None:
        if not by:
            raise error
        named = ValueError(f"series {key_name(key)!r}: {error}")
        if refused is None:
            raise named from error
        refused(key, named)

    return refuse


def _read_rows(
    table: Table, options: ReadOptions, refused: Refused | None
) -> tuple[Table, Sequence[str], Series, Groups, Refuse, int]:
    """Return the table, the key columns, all rows as one series, the rows of each key, the function that reports
    errors, and the number of known covariates."""
    _check_names(table, options)
    is_chosen = bool(options.columns or options.time or options.known)
    by = options.by or ([] if is_chosen else wide_keys(table))
    if by and not options.by:
        options = replace(options, columns=(VALUE,))
    table = melt_wide(table, by) if by or is_chosen else melt_hours(melt_days(melt_months(table)))
    layout = find_layout(table, by, options)
    table, clock, parts = layout.table, layout.clock, layout.parts
    times, by, groups, read, notes, refuse = _read_series(table, layout.rest, clock, by, layout.options, refused)
    if clock is not None and read.is_dated and layout.options.zone == "UTC":
        times, layout, read = _shift_to_unix(layout, times, read)
    if options.time is None and options.time_format is None:
        _check_times(layout, by, times, len(groups), read)
    values = _value_columns(layout, by, times, groups, is_dated=read.is_dated)
    known = read_covariates(table, options.known, MissingRule.of(options.missing), strict=options.strict)
    renamed = {values.units.get(name, name): column for name, column in table.columns.items()}
    zone = layout.options.zone
    whole = Series(
        times,
        np.stack([*values.values.values(), *known.values()], axis=1),
        (*(values.units.get(name, name) for name in values.values), *known),
        clock,
        read.is_dated,
        (*table.notes, *([parts.note] if parts else []), read.note, *notes, *layout.notes, *values.notes),
        clock_columns=tuple(parts.columns.values()) if parts else () if clock is None else (clock,),
        clock_parts=parts,
        zone=zone,
        form=read.form,
        utc_offsets=_zone_offsets(None if clock is None else layout.rest.get(clock), zone) if read.is_dated else UTC,
    )
    return replace(table, columns=renamed), by, whole, groups, refuse, len(known)


def _check_names(table: Table, options: ReadOptions) -> None:
    """Raise ValueError if a table has no rows, or if a name in the options is not the name of a column or is given
    twice."""
    if not len(table):
        raise ValueError("the table has no rows, but at least one is needed")
    named = [*options.columns, *options.by, *options.known, *([] if options.time is None else [options.time])]
    for name in named:
        if name not in table.columns:
            raise ValueError(f"no column is called {name!r}; the columns are {', '.join(map(repr, table.columns))}")
    for name in set(options.columns) & set(options.known):
        raise ValueError(f"column {name!r} is specified with both --column and --known; remove it from one of them")


def _shift_to_unix(layout: Layout, times: np.ndarray, read: Clock) -> tuple[np.ndarray, Layout, Clock]:
    """Convert local times to UTC if a column of Unix times shows that the times are local. Return the times, the layout
    with the time zone of the times, and a description of the times."""
    others = {name: column for name, column in layout.rest.items() if name != layout.clock}
    if (found := hours_from_unix(others, times)) is None:
        return times, layout, read
    hours, name = found
    zone = f"Etc/GMT{-hours:+d}"
    note = f"times are in zone {zone}, as their difference from column {name!r} shows"
    layout = replace(layout, options=replace(layout.options, zone=zone), notes=(*layout.notes, note))
    return times - 3600 * hours, layout, replace(read, note=read.note.replace("taken as UTC", f"taken as {zone}"))


def _check_times(layout: Layout, by: Sequence[str], times: np.ndarray, groups: int, read: Clock) -> None:
    """Raise ValueError if the times of a column that was detected from its name or values are implausible."""
    clock = layout.clock
    if clock is None:
        return
    if groups == 1:
        first_row = layout.table.first_row
        check_clock(layout.rest, clock, times, by, is_dated=read.is_dated, first_row=first_row)
        if not (by or layout.options.columns):
            check_labels(layout.rest, clock)
    if read.form == 1.0 and (read.is_dated or time_unit(clock) is None):
        check_epoch(clock, times[~np.isnan(times)], is_dated=read.is_dated)


def _value_columns(
    layout: Layout, by: Sequence[str], times: np.ndarray, groups: Groups, *, is_dated: bool
) -> ValueColumns:
    """Return the columns of numbers that are not the time or a key."""
    table, options, clock = layout.table, layout.options, layout.clock
    names = [name for name in layout.rest if name != clock and name not in options.known]
    if not options.columns:
        check_header([name for name in names if name in table.columns], table.columns)
        check_units(table.columns, by)
    others = () if options.columns or clock is None else date_columns({name: layout.rest[name] for name in names})
    names = [name for name in names if name not in (*by, *others)]
    values = _read_values(table, options, names, by, is_dated=is_dated)
    if not options.columns:
        check_signs({name: column for name, column in table.columns.items() if name not in by}, values.values.values())
        is_local = is_dated and options.zone != "UTC" and not np.isnan(times).any()
        shown = local_seconds(times, options.zone) if is_local else times
        leave_out_counters(values, shown, groups.values(), is_dated=is_dated)
    return values


def _read_series(
    table: Table, rest: dict[str, Any], clock: str | None, by: Sequence[str], options: ReadOptions,
    refused: Refused | None,
) -> tuple[np.ndarray, Sequence[str], Groups, Clock, list[str], Refuse]:  # fmt: skip
    """Read the times of a table, and detect the key columns if `by` is empty. Return the times, the key columns, the
    rows of each series, a description of the times, notes, and the function that reports errors."""

    def read(groups: Groups, refuse: Refuse) -> tuple[np.ndarray, Groups, Clock]:
        if clock is None:
            return count_rows(groups, len(table))
        how: Any = {"zone": options.zone, "first_row": table.first_row}
        try:
            return read_times(rest[clock], clock, groups, refuse, time_format=options.time_format, **how)
        except AmbiguousDates as error:
            chosen = choose_format(table, clock, rest[clock], error.formats)
            if chosen is None:
                raise
            times, groups, made = read_times(rest[clock], clock, groups, refuse, time_format=chosen[0], **how)
            return times, groups, replace(made, note=f"{made.note}; {chosen[1]}")

    notes, problem, found, alone = [], None, None, _make_refuse((), None)
    if not by:
        try:
            found = read({(): np.arange(len(table))}, alone)
            order = None if clock is None else found[0]
        except ValueError as error:
            problem, order = error, cell_codes(rest[str(clock)])
        by = find_keys(table, order, [name for name in rest if name not in (clock, *options.columns, *options.known)])
        if problem is not None and not by:
            raise problem
        if by:
            notes.append(f"series: one for each key in column {' and '.join(map(repr, by))}")
    if options.time is None and clock is not None and len(others := date_columns(rest)) > 1:
        more_dates = ", ".join(repr(name) for name in others if name != clock)
        notes.append(f"times: other columns with dates are {more_dates}; --time chooses the time column")
    groups, more = group_rows(table, by)
    refuse = _make_refuse(by, refused) if by else alone
    is_of_day = found is not None and bool(by) and found[2].form == CLOCK_FACE  # midnights of each series
    if found is None or clock is None or found[2].zone is not None or is_of_day:
        times, groups, made = read(groups, refuse)
    else:
        times, _, made = found
    return times, by, groups, made, [*notes, *more], refuse


def _read_values(
    table: Table, options: ReadOptions, names: Sequence[str], by: Sequence[str], *, is_dated: bool
) -> ValueColumns:
    rule, notes = MissingRule.of(options.missing), []
    if not options.columns:
        target = next((name for others, name in TARGETS if others <= set(table.columns)), None)
        calendar = calendar_columns({name: table.columns[name] for name in names}) if is_dated else []
        left = [name for name in names if (name in calendar or (target and name != target))]
        if left and len(left) < len(names):
            names = [name for name in names if name not in left]
            notes.append(
                f"left out {'because they are not the target' if target else 'as calendar columns'}: "
                f"{', '.join(map(repr, left))}"
            )
    found = read_values(
        table, options.columns or names, rule, is_chosen=bool(options.columns), is_long=bool(by), strict=options.strict
    )
    return replace(found, notes=[*notes, *found.notes])


def _select_rows(whole: Series, rows: np.ndarray, first_row: int, strict: bool) -> Series:
    """Return one series with its rows sorted by time.

    Raises:
        ValueError: If the series has no value, or its times decrease and `strict` is set.
    """
    times = whole.times[rows]
    is_whole, steps = len(rows) == len(whole.times), np.diff(times)
    notes = []
    if is_back := bool((steps < 0).any()):
        at = int(np.argmax(steps < 0)) + 1
        row = first_row + int(rows[at])
        if strict:
            raise ValueError(f"row {row}: times decrease; sort the rows, or leave out --strict")
        backwards = int((steps < 0).sum())
        notes.append(
            "rows were in reverse order"
            if backwards == len(steps)
            else f"times decrease {backwards} times (first at row {row}): rows were sorted"
        )
        order = np.argsort(times, kind="stable")
        times, rows = times[order], rows[order]
        steps = np.diff(times)
    if repeated := int((steps == 0).sum()):
        notes.append(f"{repeated} rows have the same time as the row before")
    values = whole.values if is_whole and not is_back else whole.values[rows]
    if np.isnan(values).all():
        raise ValueError("the value columns are empty")
    return replace(whole, times=times, values=values, rows=rows, notes=(*whole.notes, *notes))
