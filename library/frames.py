"""Convert pandas, polars, Arrow and NumPy data and files to one type of table, and results to the type of the input.

The results for a file are pandas frames, or Arrow tables if pandas is not installed. The order of the rows, labels,
index and time zones does not change. Only the library of the input data is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from rfa.data import Table, load_table

# Prefix of the column names of an array without fields, and name of the column with its times.
ARRAY_NAME: Final = "y"
CLOCK_NAME: Final = "t"

Column: TypeAlias = "np.ndarray | pa.Array"
New = Mapping[str, Column]
# The time columns. There are two if date and time of day are separate.
Clock = Mapping[str, Column]


class Data(Protocol):
    """Input data of one type, converted to a table.

    Attributes:
        table: Columns as an Arrow table, or the loaded `Table` if the input is a file.
        time: Name of the time column. If it is None, the loader finds the column.
    """

    table: pa.Table | Table
    time: str | None

    def joined(self, new: New, rows: np.ndarray | None = None) -> Any:
        """Return the data with additional columns. If `rows` is set, only these row numbers are returned."""
        ...

    def made(self, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> Any:
        """Return a table of new rows. They consist of the keys of the existing rows `rows`, the times in `clock` and
        the columns `new`."""
        ...


def data_of(data: Any, time: Any, by: Sequence[str]) -> Data:
    """Convert the data of a caller to a table.

    Args:
        data: A frame, table, array or path. See `rfa.filter`.
        time: Name of a column, or the times of the rows of an array, `[N]`.
        by: Names of the key columns.

    Raises:
        ValueError: If this type of data is not supported.
    """
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas is not None and isinstance(data, pandas.Series):
        data = data.to_frame(ARRAY_NAME if data.name is None else data.name)
    if polars is not None and isinstance(data, polars.Series):
        data = data.to_frame(data.name or ARRAY_NAME)
    if polars is not None and isinstance(data, polars.LazyFrame):
        raise ValueError("data is a LazyFrame; call collect() on it first")
    if isinstance(data, str | Path):
        return FileData(data, time)
    if not (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")):
        return ArrayData(data, time)
    if time is not None and not isinstance(time, str):
        raise ValueError(f"time must be the name of a column, got {type(time).__name__}")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return PandasData(data, time, by)
    if polars is not None and isinstance(data, polars.DataFrame):
        return PolarsData(data, time)
    return ArrowData(data, time)


def check_free(taken: Sequence[str], new: New) -> None:
    """Check that no new column has the same name as a column of the data.

    Raises:
        ValueError: If a new column has the name of an existing column. The message contains this name.
    """
    for name in new:
        if name in taken:
            raise ValueError(f"the data already contain a column {name!r}, which the result would add; rename it")


def column_of(values: Column) -> pa.Array:
    """Return a column as an Arrow array. NaN becomes null."""
    return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)


def concatenated(parts: Sequence[Column]) -> Column:
    """Concatenate columns, and return the resulting column."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return pa.concat_arrays(parts)


class ArrowData:
    """Input from Arrow: a table, a record batch, or an object with the Arrow PyCapsule interface. Results are Arrow
    tables."""

    def __init__(self, data: Any, time: str | None) -> None:
        self.time = time
        self.table: pa.Table = pa.table(data) if not isinstance(data, pa.RecordBatchReader) else data.read_all()

    def joined(self, new: New, rows: np.ndarray | None = None) -> pa.Table:
        check_free(self.table.column_names, new)
        table = self.table if rows is None else self.table.take(rows)
        for name, values in new.items():
            table = table.append_column(name, column_of(values))
        return table

    def made(self, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> pa.Table:
        return _made(self.table, keys, rows, clock, new)


class FileData:
    """Input from a file. Results are pandas data frames with the columns of the file as text, or Arrow tables if pandas
    is not installed."""

    def __init__(self, source: str | Path, time: Any) -> None:
        if time is not None and not isinstance(time, str):
            raise ValueError(f"time must be the name of a column, got {type(time).__name__}")
        self.time = time
        self.table = load_table(source)

    def use(self, table: Table) -> None:
        """Replace the table by the converted table of the loader. It has one row per value, and its column names
        contain the units."""
        self.table = table

    def joined(self, new: New, rows: np.ndarray | None = None) -> Any:
        return _as_frame(ArrowData(pa.table(self.table.columns), self.time).joined(new, rows))

    def made(self, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> Any:
        return _as_frame(ArrowData(pa.table(self.table.columns), self.time).made(keys, rows, clock, new))


def _as_frame(table: pa.Table) -> Any:
    try:
        import pandas  # noqa: F401
    except ModuleNotFoundError:
        return table
    return table.to_pandas()


class PolarsData:
    """Input from a polars data frame. Results are polars data frames."""

    def __init__(self, data: Any, time: str | None) -> None:
        self.time = time
        self._frame = data
        self.table: pa.Table = data.to_arrow()

    def joined(self, new: New, rows: np.ndarray | None = None) -> Any:
        import polars

        check_free(self._frame.columns, new)
        frame = self._frame if rows is None else self._frame[rows]
        return frame.hstack(polars.DataFrame(pa.table({name: column_of(values) for name, values in new.items()})))

    def made(self, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> Any:
        import polars

        made = polars.DataFrame(_made(self.table, [], rows, clock, new))
        return self._frame[rows].select(keys).hstack(made) if keys else made


class PandasData:
    """Input from a pandas data frame. Results are pandas data frames.

    An index level is treated as a column if `time` or `by` names it, or if it contains dates and no other column is the
    time. Such a level is also part of the index of the results.
    """

    def __init__(self, frame: Any, time: str | None, by: Sequence[str]) -> None:
        self._frame = frame
        self.time = time
        self._labels = {str(label): number for number, label in reversed(list(enumerate(frame.columns)))}
        self._levels = self._used_levels(by)
        columns = {name: self._level(name) for name in self._levels}
        columns |= {name: frame.iloc[:, number] for name, number in reversed(self._labels.items())}
        self.table = pa.table({name: _arrow_of(name, values) for name, values in columns.items()})

    def joined(self, new: New, rows: np.ndarray | None = None) -> Any:
        import pandas

        check_free(list(self._labels), new)
        frame = self._frame if rows is None else self._frame.iloc[rows]
        columns = {name: _pandas_of(values) for name, values in new.items()}
        return pandas.concat([frame, pandas.DataFrame(columns, index=frame.index)], axis=1)

    def made(self, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> Any:
        """Return a data frame of new rows. If the index of the data is a RangeIndex, the row numbers continue it."""
        import pandas

        columns: dict[str, Any] = {}
        for key in keys:
            values = self._level(key) if key in self._levels else self._frame.iloc[:, self._labels[key]]
            columns[key] = values.take(rows).array
        columns |= {name: _pandas_of(times) for name, times in clock.items()}
        check_free(list(columns), new)
        frame = pandas.DataFrame(columns | {name: _pandas_of(values) for name, values in new.items()})
        names = self._frame.index.names
        if levels := [level for level in self._levels if level in columns]:
            frame = frame.set_index(levels)
            frame.index.names = [names[self._levels[level]] for level in levels]
        elif (
            clock
            and not (clock.keys() & self._labels.keys())
            and not keys
            and isinstance(self._frame.index, pandas.RangeIndex)
        ):
            frame = frame.set_index(list(clock)).rename_axis(names[0])
        return frame

    def _used_levels(self, by: Sequence[str]) -> dict[str, int]:
        """Return a mapping from names to the index levels that are used as columns. If one is the time, set the time
        column."""
        import pandas

        index, used = self._frame.index, {}
        for number, label in enumerate(index.names):
            is_dated = isinstance(index.get_level_values(number), pandas.DatetimeIndex | pandas.PeriodIndex)
            name = next(free for free in ("time", "time_index") if free not in self._labels) if label is None else label
            is_clock = is_dated and self.time is None
            if is_clock or (label is not None and str(name) in (self.time, *by) and str(name) not in self._labels):
                used[str(name)] = number
                self.time = str(name) if is_clock else self.time
        if index.nlevels > 1 and len(used) < index.nlevels:
            left = [label for number, label in enumerate(index.names) if number not in used.values()]
            raise ValueError(
                f"the index has a level {left[0]!r} that is neither the time nor a key; add it to `by`, or use "
                "reset_index()"
            )
        return used

    def _level(self, name: str) -> Any:
        import pandas

        level = self._frame.index.get_level_values(self._levels[name])
        return level.to_timestamp() if isinstance(level, pandas.PeriodIndex) else level


class ArrayData:
    """Input from NumPy: an array of numbers, `[N]` or `[N, P]`, or a structured array. Results are structured arrays.
    Masked values are missing values.

    Args:
        data: The array.
        time: Numbers or dates of the rows, `[N]`, or the name of a field. If None, the loader finds the time field.
    """

    def __init__(self, data: Any, time: Any) -> None:
        array = data if isinstance(data, np.ma.MaskedArray) else np.asarray(data)
        self.time = time if isinstance(time, str) else None
        if array.dtype.names is None:
            array = _numbers(_unmasked(array))
            names = [ARRAY_NAME] if array.ndim == 1 else [f"{ARRAY_NAME}{k}" for k in range(array.shape[1])]
            fields = {name: array if array.ndim == 1 else array[:, k] for k, name in enumerate(names)}
        elif array.ndim == 1:
            fields = {name: _unmasked(array[name]) for name in array.dtype.names}
        else:
            raise ValueError(f"data has {array.ndim} dimensions, but a structured array must have one")
        if time is not None and not isinstance(time, str):
            clock = _unmasked(time)
            if clock.shape != array.shape[:1]:
                raise ValueError(
                    f"time has {clock.shape[0] if clock.ndim else 1} values, but data has {len(array)} rows; pass one "
                    "time per row"
                )
            check_free(list(fields), {CLOCK_NAME: clock})
            self.time, fields = CLOCK_NAME, {CLOCK_NAME: clock, **fields}
        self._fields = fields
        try:
            self.table = pa.table({name: column_of(np.ascontiguousarray(values)) for name, values in fields.items()})
        except pa.ArrowException as error:
            raise ValueError(f"the array has values that are neither numbers nor dates: {error}") from None

    def joined(self, new: New, rows: np.ndarray | None = None) -> np.ndarray:
        check_free(list(self._fields), new)
        chosen = {name: values if rows is None else values[rows] for name, values in self._fields.items()}
        return _structured({**chosen, **new})

    def made(self, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> np.ndarray:
        columns: dict[str, Any] = {key: self._fields[key][rows] for key in keys} | dict(clock)
        check_free(list(columns), new)
        return _structured({**columns, **new})


def _unmasked(values: Any) -> np.ndarray:
    """Return the values `[N]` or `[N, P]`. Masked values are replaced by missing values."""
    if not np.ma.is_masked(values):
        return np.asarray(values)
    kind = values.dtype.kind
    if kind in "mM":
        return np.asarray(values.filled(np.array("NaT", values.dtype)))
    number, missing = (np.float64, np.nan) if kind in "iufb" else (object, None)
    return np.asarray(values.astype(number).filled(missing))


def _numbers(array: np.ndarray) -> np.ndarray:
    if array.ndim not in (1, 2):
        raise ValueError(f"data has {array.ndim} dimensions; pass an array of shape [N] or [N, P], or a frame")
    if array.dtype.kind not in "iufbO":
        raise ValueError(f"data has dtype {array.dtype}; pass an array of numbers, or a frame")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError("data contains values that are not numbers; pass an array of numbers, or a frame") from None


def _structured(columns: New) -> np.ndarray:
    plain = {
        name: values if isinstance(values, np.ndarray) else values.to_numpy(zero_copy_only=False)
        for name, values in columns.items()
    }
    length = len(next(iter(plain.values())))
    found = np.empty(length, [(name, values.dtype) for name, values in plain.items()])
    for name, values in plain.items():
        found[name] = values
    return found


def _made(table: pa.Table, keys: Sequence[str], rows: np.ndarray, clock: Clock, new: New) -> pa.Table:
    columns = {key: table[key].take(rows) for key in keys}
    columns |= {name: column_of(times) for name, times in clock.items()}
    check_free(list(columns), new)
    return pa.table(columns | {name: column_of(values) for name, values in new.items()})


def _arrow_of(name: str, values: Any) -> pa.Array:
    """Convert a pandas column to an Arrow array. Objects that Arrow does not support, such as numbers mixed with text,
    are converted to text, as in a file."""
    if getattr(values.dtype, "kind", "") == "c":
        raise ValueError(
            f"column {name!r} contains complex numbers; pass the real and imaginary parts as separate columns"
        )
    try:
        found = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        is_missing = values.isna()
        found = pa.array([None if gone else str(x) for x, gone in zip(values, is_missing, strict=True)], pa.string())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _pandas_of(values: Column) -> Any:
    return values if isinstance(values, np.ndarray) else values.to_pandas().array
