"""Load a series or a table from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rfa.data.file_formats import read_table
from rfa.data.frame import read_frame
from rfa.data.series import Series
from rfa.data.source import read_source
from rfa.data.table import Table


def load_table(source: str | Path, *, sheet: str | None = None, query: str | None = None) -> Table:
    """Load the table of a file. Its cells are not yet parsed.

    Args:
        source: Path of a file, "-" for standard input, or a URL that fsspec can read, such as https:// or s3://.
        sheet: Name of a sheet of a workbook. The default is the first sheet.
        query: Query on a SQLite or DuckDB database. The default is its only table.

    Raises:
        ValueError: If a row or the format cannot be read. The message names it and says what to do.
    """
    return read_table(read_source(source), sheet, query)


def load_series(source: str | Path, *, sheet: str | None = None, **options: Any) -> Series:
    """Load one recorded series. See `load_table` for files and `read_frame` for the options.

    Raises:
        ValueError: If a cell or the format cannot be read. The message names it and says what to do.
    """
    (series,) = read_frame(load_table(source, sheet=sheet), **options).values()
    return series
