"""Where the results of `rfa filter` go: a table or a document by the ending of its name."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rfa.cli.filter_run import LEVELS, Filtered

if TYPE_CHECKING:
    import pyarrow as pa

DOCUMENT = ".json"
TABLES = (".csv", ".parquet", ".arrow", ".jsonl")


def check_output(option: str, path: Path, endings: Sequence[str], sources: Sequence[str]) -> None:
    """Refuse what could not be written, before any work.

    Raises:
        ValueError: the ending is not known, there is no such folder, it may not be written, or it is a source.
    """
    if path.suffix.lower() not in endings:
        known = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise ValueError(f"{option} must end in {known}, got {path.name!r}")
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"{option}: there is no folder {str(folder)!r}")
    if path.is_dir():
        raise ValueError(f"{option}: {str(path)!r} is a folder: give a file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{option}: {str(path)!r} may not be written")
    files = (Path(source) for source in sources if "://" not in source and source != "-")
    if path.exists() and any(file.exists() and file.samefile(path) for file in files):
        raise ValueError(f"{option}: {str(path)!r} is the file to filter: give another name")


def write_table(table: pa.Table, path: Path) -> None:
    """A table as the ending of its name says."""
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
    """CSV; nothing where there is nothing."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    table = _plain(table)
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    for quoting in ("none", "needed"):  # which is every text, where one has a comma or a quote
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
    """A JSON object for each row."""
    table = _plain(table)
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return b"".join(
        orjson.dumps(dict(zip(table.column_names, row, strict=True)), default=str, option=orjson.OPT_APPEND_NEWLINE)
        for row in rows
    )


def _plain(table: pa.Table) -> pa.Table:
    """Dates, and what has no form of its own in text, as text."""
    import pyarrow as pa

    for k, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        if pa.types.is_temporal(field.type) or pa.types.is_dictionary(field.type):
            table = table.set_column(k, field.name, column.cast(pa.string()))
        elif pa.types.is_nested(field.type) or pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            texts = [None if cell is None else str(cell) for cell in column.to_pylist()]
            table = table.set_column(k, field.name, pa.array(texts, pa.string()))
    return table


def as_document(found: Filtered, flag: float) -> dict[str, Any]:
    """Everything, as JSON has it."""
    from rfa.runtime.filters.ahead import points

    leads = len(found.leads)
    steps = [
        {**vars(step), "forecast": [asdict(step.forecast[k]) for k in range(leads)], "samples": step.samples.tolist()}
        for step in found.result.steps
    ]
    smoothed, alarms = found.result.smoothed, found.checks.alarms
    return {
        "model": found.model,
        "columns": list(found.series.names),
        "steps": steps,
        "smoothed": None if smoothed is None else [asdict(state) for state in smoothed],
        "forecast": [] if found.forecast is None else [asdict(point) for point in points(found.forecast, LEVELS)],
        "log_likelihood": found.result.log_likelihood,
        "flag": flag,
        "outliers": found.outliers,
        "calibration": asdict(found.checks),
        "warnings": [asdict(warning) for warning in found.warnings],
        "alarms": None if alarms is None else asdict(alarms),
        "notes": list(found.series.notes),
    }


def as_documents(found: Sequence[Filtered], failed: dict[str, str], flag: float, by: Sequence[str]) -> dict[str, Any]:
    """Everything about several series."""
    return {
        "series": [
            {"file": one.file, "key": dict(zip(by, map(_shown, one.key), strict=True)), **as_document(one, flag)}
            for one in found
        ],
        "failed": failed,
    }


def _shown(cell: Any) -> Any:
    return cell if isinstance(cell, str | int | float | bool) else str(cell)
