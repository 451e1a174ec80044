"""A filtered series as a table: what its file has, what is told about each row, and the rows that come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rfa.cli.filter_run import WIDE, Filtered
from rfa.data import Table, write_clock
from rfa.data.table import unique_names
from rfa.library.filtering import SCORES, each_own

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

# Parts of a table's columns, and what they are called in `Columns`.
PARTS = {"mean": "mean", "std": "std", "low90": f"lower.{WIDE}", "high90": f"upper.{WIDE}"}
FILE, KIND = "file", "kind"


def as_table(
    table: Table, parts: Sequence[Filtered], by: Sequence[str], *, names_file: bool, has_future: bool
) -> pa.Table:
    """The columns of the file as it has them, those that were filtered as numbers; then the estimate of each with its
    0.9 interval, the row's scores, forecasts of each row, and smoothed states. With `has_future` a column tells
    estimates from the forecasts of the rows that come next, which stand at the end.

    Args:
        parts: of a series; several where its columns were filtered each by itself, and then its scores are of each.
        by: the columns of its key.
        names_file: the first column is the file.
    """
    import pyarrow as pa

    found = parts[0]
    rows = [(_given(table, parts, by), _told_of(parts), "estimate")]
    if has_future:
        ahead = {name: column for part in parts for name, column in _told_ahead(part).items()}
        rows.append((_given_ahead(table, found, by), ahead, "forecast"))
    tables = []
    file = unique_names([*rows[0][0], FILE])[-1]
    for given, told, kind in rows:
        count = len(next(iter(told.values())))
        before = {file: pa.array([found.file] * count)} if names_file else {}
        after = {KIND: pa.array([kind] * count)} if has_future else {}
        tables.append(({**before, **given}, {**after, **told}))
    # What the file calls like a result keeps its name; the result gets a number.
    given, told = tables[0]
    names = unique_names([*given, *told])
    renamed = dict(zip(told, names[len(given) :], strict=True))
    return pa.concat_tables(
        [pa.table({**given, **{renamed[name]: column for name, column in told.items()}}) for given, told in tables],
        promote_options="default",
    )


def _given(table: Table, parts: Sequence[Filtered], by: Sequence[str]) -> dict[str, Any]:
    """The file's columns, in the order of the series' rows."""
    import numpy as np

    series = parts[0].series
    values = {
        name: numbers(column)
        for part in parts
        for name, column in zip(part.series.names, part.series.values.T, strict=True)
    }
    if series.rows is None:
        return {**_keys(table, parts[0], by, len(series.times)), **write_clock(table, series, series.times), **values}
    clock = {} if series.clock_columns else write_clock(table, series, series.times)
    is_whole = np.array_equal(series.rows, np.arange(len(table)))
    rest = {name: column if is_whole else column.take(series.rows) for name, column in table.columns.items()}
    return {**clock, **{name: values.get(name, column) for name, column in rest.items()}}


def _given_ahead(table: Table, found: Filtered, by: Sequence[str]) -> dict[str, Any]:
    return {**_keys(table, found, by, len(found.ahead)), **write_clock(table, found.series, found.ahead)}


def _keys(table: Table, found: Filtered, by: Sequence[str], count: int) -> dict[str, Any]:
    import pyarrow as pa

    return {name: pa.array([cell] * count, table.columns[name].type) for name, cell in zip(by, found.key, strict=True)}


def _told_of(parts: Sequence[Filtered]) -> dict[str, Any]:
    """What is told of each row; where parts are several, of their columns."""
    if len(parts) == 1:
        return _told(parts[0])
    return {name: told for part in parts for name, told in each_own(part.series.names[0], _told(part)).items()}


def _told(found: Filtered) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    columns, names = found.columns, found.series.names
    told = {f"{name}_{part}": columns[f"{key}.{name}"] for name in names for part, key in PARTS.items()}
    told |= {name: columns[name] for name in SCORES}
    arrays = {name: numbers(column) for name, column in told.items()}
    alarms = columns["alarm"]
    if not np.isnan(alarms).all():
        arrays["alarm"] = numbers(alarms).cast(pa.int8())
    is_outlier = np.zeros(len(found.series.times), np.int8)
    is_outlier[found.outliers] = 1
    arrays["outlier"] = pa.array(is_outlier)
    for lead in found.leads:
        for name in names:
            for part, key in PARTS.items():
                arrays[f"{name}_ahead{lead:g}_{part}"] = numbers(columns[f"forecast.{lead!r}.{key}.{name}"])
    if found.result.smoothed is not None:
        for name in names:
            arrays |= {f"{name}_smooth_{part}": numbers(columns[f"smoothed.{part}.{name}"]) for part in ("mean", "std")}
    return arrays


def _told_ahead(found: Filtered) -> dict[str, Any]:
    return {
        f"{name}_{part}": numbers(column)
        for name, parts in zip(found.series.names, found.ahead_of(WIDE), strict=True)
        for part, column in zip(PARTS, parts, strict=True)
    }


def numbers(column: np.ndarray) -> pa.Array:
    """As Arrow has them; NaN is what there is not."""
    import pyarrow as pa

    return pa.array(column, from_pandas=True)
