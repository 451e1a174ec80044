"""Read a sheet of a workbook as a table. python-calamine reads the cells."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import replace
from datetime import date, datetime
from typing import Any, Final

from rfa.data.csv_text import read_text
from rfa.data.table import Table

OLD_WORKBOOK: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
PARTS: Final = ("xl/workbook.xml", "xl/workbook.bin", "content.xml")
# Maximum size of the decompressed file, because each cell becomes a Python object that is many times larger.
MOST_BYTES: Final = 2**29


def is_workbook(content: bytes) -> bool:
    """Return whether a file is an Excel (old or new) or OpenDocument workbook."""
    if content.startswith(OLD_WORKBOOK):
        return True
    if not content.startswith(b"PK\x03\x04"):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(part in archive.namelist() for part in PARTS)
    except zipfile.BadZipFile:
        return False


def read_workbook(content: bytes, sheet: str | None) -> Table:
    """Read a sheet of a workbook as a table, in the same way as a CSV file.

    Args:
        content: Content of the workbook.
        sheet: Name of the sheet. None selects the first sheet.

    Raises:
        ValueError: If there is no such sheet, the sheet is empty, the file is too large or damaged, or python-calamine
            is not installed.
    """
    _check_size(content)
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ModuleNotFoundError:
        raise ValueError(
            "reading a workbook needs python-calamine; install it with pip install python-calamine, or save the "
            "sheet as CSV"
        ) from None
    try:
        workbook = CalamineWorkbook.from_filelike(io.BytesIO(content))
        names = workbook.sheet_names
        if sheet is not None and sheet not in names:
            raise ValueError(f"there is no sheet {sheet!r}; the sheets are {', '.join(map(repr, names))}")
        chosen = sheet if sheet is not None else names[0]
        rows = workbook.get_sheet_by_name(chosen).to_python(skip_empty_area=False)
    except CalamineError as error:
        raise ValueError(f"the workbook cannot be read: {error}; save the sheet as CSV") from None
    try:
        table = read_text(_to_csv(rows))
    except ValueError as error:
        raise ValueError(f"sheet {chosen!r}: {error}") from None
    note = f"sheet {chosen!r}" + (f" of {len(names)}" if len(names) > 1 else "")
    return replace(table, notes=(note, *table.notes))


def _check_size(content: bytes) -> None:
    size = len(content)
    if not content.startswith(OLD_WORKBOOK):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(part.file_size for part in archive.infolist())
    if size > MOST_BYTES:
        raise ValueError("the workbook exceeds 512 MiB when decompressed; save the sheet as CSV")


def _to_csv(rows: list[list[Any]]) -> str:
    """Return the rows as CSV. Title rows, in which at most half of the cells are filled, end after their last filled
    cell."""
    width = max((_length(row) for row in rows), default=0)
    header = next((k for k, row in enumerate(rows) if 2 * sum(cell != "" for cell in row) > width), 0)
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(
        [_cell(cell) for cell in row[: width if k >= header else _length(row)]] for k, row in enumerate(rows)
    )
    return buffer.getvalue()


def _length(row: list[Any]) -> int:
    return max((k + 1 for k, cell in enumerate(row) if cell != ""), default=0)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    # Excel stores integers as floats.
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
