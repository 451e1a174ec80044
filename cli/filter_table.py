"""Convert a filtered series to a table. It contains the columns of the file, the results of each row, and the rows of
the forecast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rfa.cli.digits import round_estimates, round_score
from rfa.cli.filter_run import WIDE, Filtered
from rfa.data import Frame, Table, write_clock
from rfa.data.table import unique_names
from rfa.library.filtering import SCORES, rename_row_outputs
from rfa.library.frames import concatenated

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rfa.cli.filter import View

# Suffixes of the table's columns, and the names of these outputs in `Columns`.
PARTS = {"mean": "mean", "std": "std", "low90": f"lower.{WIDE}", "high90": f"upper.{WIDE}"}
FORECAST_PARTS = ("mean", "std", "median", "low90", "high90")
FILE, KIND = "file", "kind"


def as_table(
    frame: Frame,
    parts: Sequence[Filtered],
    view: View,
    *,
    has_file: bool,
    has_forecast: bool,
    digits: int | None = None,
) -> pa.Table:
    """Return a table with the columns of the file, followed by the estimates, scores, forecasts and smoothed estimates
    of each row.

    Args:
        parts: Results of one series. If its columns were filtered separately, there is one result per column, and each
            has its own scores.
        view: "rows" selects all rows, "forecast" only the forecast, "alarms" only the rows with alarms, and "incidents"
            one row per incident.
        has_file: Whether the first column is the name of the file.
        has_forecast: Whether the rows of the forecast are appended. The column `kind` then marks them.
        digits: Number of digits (see `round_estimates`). None disables rounding.
    """
    import pyarrow as pa

    table, by, first = frame.table, frame.by, parts[0]
    blocks: list[tuple[dict[str, Any], dict[str, Any], str]] = []
    if view == "incidents":
        count = sum(len(part.sequence.incidents.listed) for part in parts)
        blocks.append((_keys(table, first, by, count), _incident_columns(table, parts, digits), "incident"))
    elif view != "forecast":
        blocks.append((_source_columns(table, parts, by), _result_columns(parts, digits), "estimate"))
    if has_forecast:
        # Rows with estimates do not have a median.
        chosen = FORECAST_PARTS if view == "forecast" else tuple(PARTS)
        forecast = {name: column for part in parts for name, column in _forecast_columns(part, chosen, digits).items()}
        blocks.append((_future_columns(table, first, by), forecast, "forecast"))
    tables = []
    file = unique_names([*blocks[0][0], FILE])[-1]
    for source, results, kind in blocks:
        count = len(next(iter(results.values())))
        before = {file: pa.array([first.file] * count, pa.string())} if has_file else {}
        after = {KIND: pa.array([kind] * count, pa.string())} if len(blocks) > 1 else {}
        tables.append(({**before, **source}, {**after, **results}))
    found, renamed = _join_blocks(tables)
    alarms = [column for name, column in renamed.items() if name.endswith("alarm")]
    return _alarms(found, alarms) if view == "alarms" else found


def _join_blocks(tables: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[pa.Table, dict[str, str]]:
    """Join blocks of rows. Each block has columns of the file and columns of results. Return the table, and the names
    of its columns with results, by the names of the results.

    If a result has the same name as a column of the file, a number is appended.
    """
    import pyarrow as pa

    source, results = tables[0]
    names = unique_names([*source, *results])
    renamed = dict(zip(results, names[len(source) :], strict=True))
    blocks = [
        pa.table({**source, **{renamed[name]: column for name, column in results.items()}})
        for source, results in tables
    ]
    return pa.concat_tables(blocks, promote_options="default"), renamed


def _incident_columns(table: Table, parts: Sequence[Filtered], digits: int | None) -> dict[str, Any]:
    import numpy as np

    from rfa.library.incidents import incident_columns

    found = [
        incident_columns(part.series, part.sequence.incidents.listed, partial(write_clock, table, part.series))
        for part in parts
    ]
    joined = {name: concatenated([columns[name] for columns in found]) for name in found[0]}
    value, expected = np.asarray(joined["value"]), np.asarray(joined["expected"])
    rounded = round_estimates({"std": np.abs(value - expected), "expected": expected}, digits)
    probability = round_score(np.asarray(joined["probability"]), digits)
    return {**joined, "expected": numbers(rounded["expected"]), "probability": probability}


def _alarms(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows that raised an alarm."""
    import numpy as np

    raised = [table[name].to_numpy(zero_copy_only=False) == 1 for name in names]
    return table.take(np.flatnonzero(np.any(raised, axis=0))) if raised else table.slice(0, 0)


def _source_columns(table: Table, parts: Sequence[Filtered], by: Sequence[str]) -> dict[str, Any]:
    """Return the columns of the file, with the rows in the order of the series. Filtered columns contain numbers."""
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


def _future_columns(table: Table, result: Filtered, by: Sequence[str]) -> dict[str, Any]:
    count = len(result.future_times)
    return {**_keys(table, result, by, count), **write_clock(table, result.series, result.future_times)}


def _keys(table: Table, result: Filtered, by: Sequence[str], count: int) -> dict[str, Any]:
    import pyarrow as pa

    return {name: pa.array([cell] * count, table.columns[name].type) for name, cell in zip(by, result.key, strict=True)}


def _result_columns(parts: Sequence[Filtered], digits: int | None) -> dict[str, Any]:
    if len(parts) == 1:
        return _row_results(parts[0], digits)
    named = [rename_row_outputs(part.series.names[0], _row_results(part, digits)) for part in parts]
    return {name: column for outputs in named for name, column in outputs.items()}


def _row_results(result: Filtered, digits: int | None) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa

    outputs, names = result.outputs, result.series.names

    def estimates(before: str, keys: Mapping[str, str]) -> dict[str, Any]:
        return {
            f"{name}_{before}{part}": numbers(column)
            for name in names
            for part, column in round_estimates({p: outputs[f"{k}.{name}"] for p, k in keys.items()}, digits).items()
        }

    arrays = estimates("", PARTS)
    arrays |= {name: numbers(round_score(outputs[name], digits)) for name in SCORES}
    alarms = outputs["alarm"]
    if not np.isnan(alarms).all():
        arrays["alarm"] = numbers(alarms).cast(pa.int8())
    is_outlier = np.zeros(len(result.series.times), np.int8)
    is_outlier[result.outliers] = 1
    arrays["outlier"] = pa.array(is_outlier)
    for lead, text in zip(result.leads, result.lead_names, strict=True):
        arrays |= estimates(f"ahead{text}_", {part: f"forecast.{lead!r}.{key}" for part, key in PARTS.items()})
    if result.sequence.smoothed is not None:
        arrays |= estimates("smooth_", {part: f"smoothed.{part}" for part in ("mean", "std")})
    return arrays


def _forecast_columns(result: Filtered, chosen: Sequence[str], digits: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for k, (name, bands) in enumerate(zip(result.series.names, result.forecast_bands(WIDE), strict=True)):
        parts = dict(zip(PARTS, bands, strict=True)) | {"median": result.forecast_medians[:, k]}
        rounded = round_estimates(parts, digits)
        found |= {f"{name}_{part}": numbers(rounded[part]) for part in chosen}
        assert result.forecast is not None
        for expert, weights in zip(result.forecast.experts, result.forecast.weights[:, k].T, strict=True):
            found[f"{name}_weight_{expert}"] = numbers(round_score(weights, digits))
    return found


def numbers(column: np.ndarray) -> pa.Array:
    """Convert a NumPy array to an Arrow array. NaN becomes null."""
    import pyarrow as pa

    return pa.array(column, from_pandas=True)
