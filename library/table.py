"""Filter an Arrow table that contains rows of many series, with `rfa.filter_table`, and return the rows with estimates.

States are read from a column and returned in it, so an engine that distributes tables also distributes the states of
the filters. `TableFilter` filters a table in parts.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rfa.data.clock import read_clock
from rfa.data.table import combine_chunks, unique_names
from rfa.library.filtering import OUTLIER, beyond_gate
from rfa.library.many import Streams
from rfa.library.options import ends
from rfa.runtime.uncertainty.step_outputs import StepOutputs

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray
FIELDS: Final = (
    "mean", "std", "interval", "weight", "nis", "anomaly", "confidence", "alarm", "outlier", "forecast",
)  # fmt: skip
# Rows per call of `Streams.step`. Its outputs contain more arrays than are returned, so their memory must be bounded.
STEP_ROWS: Final = 65_536
# Column name of a pandas index without a name.
_INDEX: Final = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True)
class TableColumns:
    """Columns of the input, and names of the estimates to compute.

    Attributes:
        key: Names of the columns that identify the series.
        time: Name of the time column. Numbers are used unchanged, and dates are converted to seconds since 1970.
        values: Names of the columns to filter. () selects all numeric columns that are not the key, time or state.
        state: Name of the column that contains states. None if there is no such column.
        fields: Names of the estimates to return, from FIELDS.
        tz: Time zone of dates without a time zone.
    """

    key: tuple[str, ...]
    time: str
    values: tuple[str, ...] = ()
    state: str | None = None
    fields: tuple[str, ...] = FIELDS
    tz: str = "UTC"

    def of(self, schema: pa.Schema) -> TableColumns:
        """Return a copy whose value columns are taken from a schema.

        Raises:
            ValueError: If a column is missing, or a field is unknown. The message names it.
        """
        import pyarrow.types as kinds

        if unknown := [field for field in self.fields if field not in FIELDS]:
            raise ValueError(
                f"fields contains {unknown[0]!r}, which does not exist; the available fields are {', '.join(FIELDS)}"
            )
        if not self.key:
            raise ValueError("key must name at least one column")
        others = {*self.key, self.time, self.state}
        values = self.values or tuple(
            field.name
            for field in schema
            if field.name not in others and (kinds.is_integer(field.type) or kinds.is_floating(field.type))
        )
        for name in (*self.key, self.time, *values):
            if name not in schema.names:
                raise ValueError(f"there is no column {name!r}; the columns are {', '.join(map(repr, schema.names))}")
        if not values:
            raise ValueError("no column contains numbers to filter; specify a column in values")
        return TableColumns(self.key, self.time, values, self.state, self.fields, self.tz)


class TableFilter:
    """Filters tables that contain many series. A large table can be passed in parts.

    Args:
        columns: Columns of the table, including the value columns. See `TableColumns.of`.
        options: Options of `rfa.Streams`.

    Attributes:
        refused: Number of rows without estimates, because `rfa.Streams.step` rejected them, or because they have no key
            or time.
        alarms: Number of rows that raised an alarm.
    """

    def __init__(self, columns: TableColumns, **options: Any) -> None:
        self.columns = columns
        self.streams = Streams(len(columns.values), tz=columns.tz, **options)
        self.refused = self.alarms = 0

    def filter(self, table: Any, *, is_sorted: bool = False) -> pa.Table:
        """Filter a table, and return its rows with their estimates, in the same order.

        Args:
            table: A pyarrow table or record batch.
            is_sorted: Whether the rows of each series are sorted by time already. If so, rows that are out of order
                are rejected. Otherwise, each series of this table is sorted first.

        Raises:
            ValueError: If a column has the wrong type, or a state does not belong to this model.
            StreamsFull: If there are too many series.
        """
        import pyarrow as pa

        table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        columns, rows = self.columns, table.num_rows
        codes, keys = _keys(table, columns.key)
        if columns.state is not None and columns.state in table.column_names:
            self._restore(codes, keys, combine_chunks(table[columns.state]))
            table = table.drop_columns([columns.state])
        handles = self.streams.handles(keys)[codes] if rows else np.empty(0, np.int64)
        times = _seconds(combine_chunks(table[columns.time]), columns.time, columns.tz)
        for name in columns.key:
            times[np.asarray(combine_chunks(table[name]).is_null(), bool)] = np.nan
        values = np.stack([_numbers(table[name], name) for name in columns.values], axis=1)
        order = None if is_sorted else _order(codes, times)
        found = self._step(handles, times, values, order)
        names = unique_names([*table.column_names, *found])[len(table.column_names) :]
        for name, column in zip(names, found.values(), strict=True):
            table = table.append_column(name, _arrow(column))
        return table

    def state_column(self, table: pa.Table) -> pa.Array:
        """Return a column that contains the state of each series in its last row, and null in all other rows."""
        import pyarrow as pa

        codes, keys = _keys(table, self.columns.key)
        states: list[bytes | None] = [None] * len(codes)
        for code, back in zip(*np.unique(codes[::-1], return_index=True), strict=True):
            states[len(codes) - 1 - back] = self.streams.state(keys[code])
        return pa.array(states, pa.large_binary())

    def keys(self, table: pa.Table) -> list[Hashable]:
        """Return the key of each series that occurs in a table."""
        return _keys(table, self.columns.key)[1]

    def forget_all_but(self, table: pa.Table) -> None:
        """Remove the series that do not occur in the table from the pool."""
        keys = self.keys(table)
        self.streams.remove([key for key in self.streams if key not in keys])

    def _restore(self, codes: Array, keys: Sequence[Hashable], states: Any) -> None:
        """Start the series that are not in the pool yet, each from its first state in the table."""
        for row in np.flatnonzero(np.asarray(states.is_valid(), bool)).tolist():
            key = keys[codes[row]]
            if key not in self.streams:
                self.streams.restore(key, states[row].as_py())

    def _step(self, handles: Array, times: Array, values: Array, order: Array | None) -> dict[str, Array]:
        """Filter all rows, and return the estimates by name."""
        found: dict[str, Array] = {}
        for begin in range(0, max(len(handles), 1), STEP_ROWS):
            part = slice(begin, begin + STEP_ROWS)
            rows = part if order is None else order[part]
            outputs = self.streams.step(handles[rows], times[rows], values[rows])
            self.refused += int(np.count_nonzero(~outputs.is_good))
            self.alarms += int(np.count_nonzero(outputs.alarm == 1))
            for name, column in self._estimates(outputs, values[rows]).items():
                found.setdefault(name, np.empty(len(handles), column.dtype))[rows] = column
        return found

    def _estimates(self, outputs: StepOutputs, values: Array) -> dict[str, Array]:
        """Return the columns with estimates for the given rows. They have the same names as in `rfa.filter`."""
        fields, request = self.columns.fields, self.streams.request
        found: dict[str, Array] = {}
        for a, name in enumerate(self.columns.values):
            found |= {f"{name}_{part}": getattr(outputs, part)[:, a] for part in ("mean", "std") if part in fields}
            if "interval" in fields:
                for k, level in enumerate(request.levels):
                    found |= dict(zip(ends(name, level), outputs.interval[:, k, a].T, strict=True))
            for h, lead in enumerate(request.horizon if "forecast" in fields else ()):
                ahead = f"{name}_ahead{lead:g}"
                found |= {f"{ahead}_{part}": outputs.moments[:, h, k, a] for k, part in enumerate(("mean", "std"))}
                for k, level in enumerate(request.levels):
                    found |= dict(zip(ends(ahead, level), outputs.bands[:, h, k, a].T, strict=True))
        for name in ("weight", "nis", "anomaly", "confidence"):
            found |= {name: getattr(outputs, name)} if name in fields else {}
        if "alarm" in fields and request.alarm is not None:
            found["alarm"] = outputs.alarm == 1
        if "outlier" in fields:
            found["outlier"] = beyond_gate(outputs.nis, (~np.isnan(values)).sum(axis=1), OUTLIER)
        return found


def filter_table(
    table: Any,
    *,
    key: Sequence[str] | str,
    time: str,
    values: Sequence[str] | str = (),
    state: str | None = None,
    fields: Sequence[str] = FIELDS,
    tz: str = "UTC",
    **options: Any,
) -> pa.Table:
    """Filter all series in an Arrow table. Compiled code processes the rows of all series.

    The results of each series are the same, bit for bit, as those of `rfa.filter` for this series alone.

    Args:
        table: A pyarrow table or record batch, or an object with `__arrow_c_stream__`, such as a pandas or polars
            frame. Rows may be in any order, which the result preserves. Each series is filtered in chronological order.
        key: Columns that identify the series.
        time: Time column. Numbers are used unchanged, and dates are converted to seconds since 1970.
        values: Columns to filter. The default is all other numeric columns.
        state: Name of a column of states, as bytes. A series with states in the input continues from the first of
            them. Any other series is new. In the output, the last row of each series contains its state.
        fields: Estimates to return: "mean", "std", "interval", "weight", "nis", "anomaly", "confidence", "alarm",
            "outlier", "forecast".
        tz: Time zone of dates without a time zone, and of the days and weeks that models use.
        options: Options of `rfa.Streams`: model, levels, horizon, alarm, minimum, maximum, limit, threads.

    Returns:
        The table with the columns of `rfa.filter` for each column x. For each horizon, such as 3600, it also contains
        `x_ahead3600_mean`, `x_ahead3600_std` and the bounds of its intervals. The estimates of a row are null if its
        time, key or a value is missing or not finite, or if its time is before that of the state.

    Raises:
        ValueError: If an argument or a column is invalid. The message names it.
        StreamsFull: If there are more series than `limit`.
    """
    import pyarrow as pa

    if not isinstance(table, pa.Table | pa.RecordBatch):
        table = pa.table(table)
        table = table.drop_columns([name for name in table.column_names if _INDEX.fullmatch(name)])
    keys, chosen = ((one,) if isinstance(one, str) else tuple(one) for one in (key, values))
    columns = TableColumns(keys, time, chosen, state, tuple(fields), tz).of(table.schema)
    work = TableFilter(columns, **options)
    found = work.filter(table)
    return found if state is None else found.append_column(state, work.state_column(found))


def filter_batches(
    batches: Iterable[Any],
    *,
    key: Sequence[str] | str,
    time: str,
    values: Sequence[str] | str = (),
    fields: Sequence[str] = FIELDS,
    tz: str = "UTC",
    is_grouped: bool = False,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """Filter a table in batches with `filter_table`, and yield the filtered batches. Each batch continues the series of
    the earlier batches.

    If the time of a row is before the last time of its series in an earlier batch, its estimates are null.

    Args:
        batches: Record batches or tables with the same schema.
        is_grouped: Whether the rows of each series are consecutive, for example because the table is sorted by key and
            time. In that case, the number of series is not limited.
        key, time, values, fields, tz, options: See `filter_table`.

    Raises:
        ValueError: If an argument or a column is invalid. The message names it.
        StreamsFull: If there are more series than `limit`.
    """
    keys, chosen = ((one,) if isinstance(one, str) else tuple(one) for one in (key, values))
    work: TableFilter | None = None
    for batch in batches:
        if work is None:
            columns = TableColumns(keys, time, chosen, fields=tuple(fields), tz=tz).of(batch.schema)
            work = TableFilter(columns, **options)
        found = work.filter(batch)
        if is_grouped and batch.num_rows:
            work.forget_all_but(found[-1:])
        yield from found.combine_chunks().to_batches()


def _keys(table: pa.Table, names: Sequence[str]) -> tuple[Array, list[Hashable]]:
    """Return an integer for each row, and the key for each integer. A key is a value, or a tuple of the values of
    several columns."""
    import pyarrow.compute as pc

    codes, cells = np.zeros(table.num_rows, np.int64), []
    for name in names:
        encoded = pc.dictionary_encode(combine_chunks(table[name]), null_encoding="encode")
        indices = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
        cells.append((encoded.dictionary.to_pylist(), indices))
        codes = codes * max(1, len(encoded.dictionary)) + indices
        if len(names) > 1:
            _, codes = np.unique(codes, return_inverse=True)
    if len(names) == 1:
        return codes, cells[0][0]
    _, first = np.unique(codes, return_index=True)
    return codes, [tuple(texts[indices[row]] for texts, indices in cells) for row in first]


def _order(codes: Array, times: Array) -> Array | None:
    """Return the order that sorts the rows by series and time. It is stable for equal times. Return None if the rows
    are already sorted."""
    is_next = (codes[1:] > codes[:-1]) | ((codes[1:] == codes[:-1]) & ~(times[1:] < times[:-1]))
    return None if is_next.all() else np.lexsort((times, codes))


def _seconds(column: Any, name: str, tz: str) -> Array:
    """Return the times of a column as numbers, with NaN for missing times. The array is a copy."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ValueError(f"time: column {name!r} has type {kind}; cast it to numbers or timestamps")
    is_null = np.asarray(column.is_null(), bool)
    column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(kind)) if is_null.any() else column
    rows = np.arange(len(column))
    times = np.array(read_clock(column, name, zone=tz, time_format=None, rows=rows).seconds(slice(None)), np.float64)
    times[is_null] = np.nan
    return times


def _numbers(column: Any, name: str) -> Array:
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ValueError(f"values: column {name!r} has type {kind}; cast it to numbers")
    found: Array = combine_chunks(column.cast(pa.float64())).to_numpy(zero_copy_only=False)
    return found


def _arrow(column: Array) -> pa.Array:
    """Return an Arrow array with the values of a column. NaN becomes null."""
    import pyarrow as pa

    is_missing = column.dtype.kind == "f" and bool(np.isnan(column).any())
    return pa.array(np.ascontiguousarray(column), from_pandas=is_missing)
