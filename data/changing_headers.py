"""Read text in which each row has its own header. Some columns occur only in the headers of some rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from rfa.data.header import is_data

MOST_CHARACTERS: Final = 2**26
SEARCHED: Final = 100_000
FEWEST_ROWS, FEWEST_NAMES = 2, 3


def common_columns(text: str) -> tuple[str, str] | None:
    """Return the columns with which all headers begin, as CSV, and a note. Return None for other text."""
    if len(text) > MOST_CHARACTERS or not _repeats_names(text[:SEARCHED].splitlines()):
        return None
    try:
        rows = [cells for cells in csv.reader(io.StringIO(text)) if cells]
    except csv.Error:
        return None
    headers, records = rows[0::2], rows[1::2]
    if len(headers) != len(records) or len(records) < FEWEST_ROWS:
        return None
    if any(len(header) != len(record) for header, record in zip(headers, records, strict=True)):
        return None
    count = _common(headers)
    if count < FEWEST_NAMES or all(len(header) == count for header in headers):
        return None
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([headers[0][:count], *(record[:count] for record in records)])
    return (
        out.getvalue(),
        f"each row has its own header; only the first {count} columns, which are in all headers, are read",
    )


def _repeats_names(lines: Sequence[str]) -> bool:
    """Return whether the first and the third line begin with the same names."""
    if len(lines) < 3:
        return False
    first, third = (line.split(",")[:FEWEST_NAMES] for line in (lines[0], lines[2]))
    return first == third and len(first) == FEWEST_NAMES and not any(is_data([cell.strip(' "')]) for cell in first)


def _common(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of cells at the beginning of the rows that are the same in all rows."""
    columns = zip(*rows, strict=False)
    return next((k for k, cells in enumerate(columns) if len({*cells}) > 1), min(map(len, rows)))
