"""Write the results of `rfa filter` as a table, a JSON document or a figure, depending on the extension of the file
name."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import typer

from rfa.cli.console import print_json
from rfa.cli.filter_run import LEVELS, Filtered, describe_coverage

if TYPE_CHECKING:
    import pyarrow as pa

    from rfa.cli.filter import FilterBatch

DOCUMENT = ".json"
TABLES = (".csv", ".parquet", ".arrow", ".jsonl")


def check_outputs(out: Path | None, plot: Path | None, sources: Sequence[str], plot_option: str = "--plot") -> None:
    """Check that all output files can be written, before any file is read.

    Raises:
        ValueError: See `check_output`.
    """
    if out is not None:
        check_output("--out", out, (*TABLES, DOCUMENT), sources)
    if plot is not None:
        from rfa.cli.plot import ENDINGS

        check_output(plot_option, plot, ENDINGS, sources)


def check_output(option: str, path: Path, endings: Sequence[str], sources: Sequence[str]) -> None:
    """Check that an output file can be written.

    Raises:
        ValueError: If the extension is unknown, the directory does not exist, permission is missing, or the file is
            also an input file.
    """
    if path.suffix.lower() not in endings:
        allowed = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise ValueError(f"{option} must end in {allowed}, got {path.name!r}; choose another file name")
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(
            f"{option}: the directory {str(folder)!r} does not exist; create it, or specify another directory"
        )
    if path.is_dir():
        raise ValueError(f"{option}: {str(path)!r} is a directory, but must be a file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{option}: no permission to write {str(path)!r}; specify another file")
    files = (Path(source) for source in sources if "://" not in source and source != "-")
    if path.exists() and any(file.exists() and file.samefile(path) for file in files):
        raise ValueError(f"{option}: {str(path)!r} is the input file; specify another file")


def write_outputs(batch: FilterBatch, out: Path | None, plot: Path | None, *, as_json: bool) -> None:
    """Write the file and the figure, and print the JSON document, the table or a summary."""
    flag, has_table = batch.task.flag, not as_json and out is None and plot is None

    def document() -> dict[str, Any]:
        return as_document(batch.results[0], flag) if batch.has_one_result else _documents(batch)

    if out is not None and out.suffix.lower() == DOCUMENT:
        out.write_text(json.dumps(document(), allow_nan=False) + "\n")
    elif out is not None:
        write_table(_join_tables(batch, batch.digits if out.suffix.lower() == ".csv" else None), out)
    if plot is not None:
        from rfa.cli.plot import draw

        files = [*dict.fromkeys(result.file for result in batch.results)]
        draw(batch.results, plot, title=" · ".join(files[:3]))
    if as_json:
        print_json(document())
    elif has_table:
        typer.echo(as_csv(_join_tables(batch, batch.digits)), nl=False)  # bytes are written without encoding them
    arrows = "".join(f" → {path}" for path in (out, plot) if path is not None)
    typer.echo(_summary(batch) + arrows, err=as_json or has_table)


def _join_tables(batch: FilterBatch, digits: int | None) -> pa.Table:
    """Concatenate the tables of all series, in the order of their files and keys."""
    import pyarrow as pa

    from rfa.cli.filter_table import as_table

    has_forecast = batch.task.horizon is not None
    parts = [
        as_table(frame, parts, batch.view, has_file=len(batch.sources) > 1, has_forecast=has_forecast, digits=digits)
        for frame, parts in zip(batch.frames, batch.by_series(), strict=True)
    ]
    try:
        return parts[0] if len(parts) == 1 else pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:  # a column is text in one file and numbers in another
        raise ValueError(
            f"the files cannot be combined into one table ({str(error).splitlines()[0]}); filter each file separately"
        ) from None


def _summary(batch: FilterBatch) -> str:
    from rfa.library.incidents import describe_incidents, plural

    results = batch.results
    parts = [] if batch.has_one_result else [f"{len(results)} series"]
    parts.append(plural(sum(len(result.series.times) for result in results), "row"))
    parts.append(plural(sum(len(result.outliers) for result in results), "outlier"))
    if alarms := [result.checks.alarms for result in results if result.checks.alarms is not None]:
        raised, expected = sum(each.raised for each in alarms), sum(each.expected for each in alarms)
        found = [result.sequence.incidents for result in results]
        parts.append(describe_incidents(sum(len(one.listed) + one.omitted for one in found), raised, expected))
    if rows := sum(len(result.future_times) for result in results):
        parts.append(f"{plural(rows, 'row')} ahead")
    if batch.has_one_result:
        likelihood = f"log-likelihood {results[0].sequence.log_likelihood:.6g}"
        return ", ".join([*parts, *describe_coverage(results[0].checks), likelihood])
    if warned := sum(bool(result.warnings) for result in results):
        parts.append(f"{warned} with warnings")
    if batch.failed:
        parts.append(f"{len(batch.failed)} failed")
    return ", ".join(parts)


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table. The extension of the file name selects the format."""
    import pyarrow as pa

    kind = path.suffix.lower()
    if kind == ".csv":
        path.write_bytes(as_csv(table))
    elif kind == ".jsonl":
        path.write_bytes(_as_lines(table))
    elif kind == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)


def as_csv(table: pa.Table) -> bytes:
    """Return the table as CSV. Missing values become empty cells."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    table = _plain(table)
    # For a first batch without rows, Arrow writes the undefined bytes of its buffer.
    table = pa.Table.from_batches([batch for batch in table.to_batches() if batch.num_rows], table.schema)
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    # "none" fails if a text needs quotes. "needed" quotes every text.
    for quoting in ("none", "needed"):
        buffer = io.BytesIO(header.getvalue().encode())
        buffer.seek(0, io.SEEK_END)
        try:
            arrow_csv.write_csv(table, buffer, arrow_csv.WriteOptions(include_header=False, quoting_style=quoting))
            break
        except pa.ArrowInvalid:
            if quoting == "needed":
                raise
    return buffer.getvalue()


def _as_lines(table: pa.Table) -> bytes:
    """Return the table as JSON Lines, with one object per row."""
    table = _plain(table)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return b"".join(
        orjson.dumps(dict(zip(table.column_names, row, strict=True)), default=str, option=orjson.OPT_APPEND_NEWLINE)
        for row in rows
    )


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with dates, nested values and binary values converted to text."""
    import pyarrow as pa

    for k, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_temporal(field.type) or pa.types.is_dictionary(field.type):
            table = table.set_column(k, field.name, column.cast(pa.string()))
        elif pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            texts = [None if cell is None else str(cell) for cell in column.to_pylist()]
            table = table.set_column(k, field.name, pa.array(texts, pa.string()))
    return table


def as_document(result: Filtered, flag: float) -> dict[str, Any]:
    """Return all results of one series as a dictionary of JSON types."""
    from rfa.runtime.filters.ahead import points

    sequence, leads = result.sequence, len(result.leads)
    steps = [
        {
            **vars(step),
            "raised": step.raised and asdict(step.raised),
            "samples": step.samples.tolist(),
            "forecast": [asdict(step.forecast[k]) for k in range(leads)],
        }
        for step in sequence.steps
    ]
    smoothed, alarms = sequence.smoothed, result.checks.alarms
    return {
        "model": result.model,
        "columns": list(result.series.names),
        "steps": steps,
        "smoothed": None if smoothed is None else [asdict(state) for state in smoothed],
        "forecast": [] if result.forecast is None else [asdict(point) for point in points(result.forecast, LEVELS)],
        **_weights(result),
        "log_likelihood": sequence.log_likelihood,
        "flag": flag,
        "outliers": result.outliers,
        "calibration": asdict(result.checks),
        "warnings": [asdict(warning) for warning in result.warnings],
        "alarms": None if alarms is None else asdict(alarms),
        "incidents": [asdict(incident) for incident in sequence.incidents.listed],
        "notes": list(result.series.notes),
    }


def _weights(result: Filtered) -> dict[str, Any]:
    """Return the weights of the models in the mixture for each row and column of the forecast, if they were
    requested."""
    found = result.forecast
    if found is None or not found.experts:
        return {}
    return {"weights": {name: found.weights[:, :, k].tolist() for k, name in enumerate(found.experts)}}


def _documents(batch: FilterBatch) -> dict[str, Any]:
    flag = batch.task.flag
    return {
        "series": [
            {
                "file": result.file,
                "key": dict(zip(frame.by, map(_json_cell, result.key), strict=True)),
                **as_document(result, flag),
            }
            for frame, parts in zip(batch.frames, batch.by_series(), strict=True)
            for result in parts
        ],
        "failed": batch.failed,
    }


def _json_cell(cell: Any) -> Any:
    return cell if isinstance(cell, str | int | float | bool) else str(cell)
