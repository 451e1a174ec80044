"""Read the cells of CSV text with pyarrow."""

from __future__ import annotations

import re
from typing import Any, Final

# Files of at least this size are read by several threads.
LARGE: Final = 2**23
# Beginning of a line among the rows that is a remark, such as those of data loggers. It has only one cell, whereas rows
# have at least FEWEST_CELLS cells. A file is rejected if it has more remarks than the limits.
REMARK: Final = re.compile(r"\W*[^\W\d_]{2}")
FEWEST_CELLS: Final = 3
MOST_REMARKS, MOST_REMARK_SHARE = 100, 0.1


def read_cells(
    content: bytes, start: int, names: list[str], separator: str, before: int, *, is_large: bool | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the cells below a header that ends on line `before` and at byte `start`, as text columns.

    Also return a note on lines that are not rows.

    Raises:
        ValueError: If a row and the header have different numbers of cells.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # With threads, rows are not counted and each line end must be the end of a row, so there must be no quotes.
    if is_large is None:
        is_large = len(content) >= LARGE and pa.cpu_count() > 1 and content.find(b'"', start) < 0
    ragged: list[Any] = []
    remarks: list[Any] = []

    def refuse(row: Any) -> str:
        is_remark = row.actual_columns == 1 and len(names) >= FEWEST_CELLS and REMARK.match(row.text) is not None
        (remarks if is_remark else ragged).append(row)
        return "skip" if is_remark and len(remarks) <= MOST_REMARKS else "error"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(memoryview(content)[start:])),
            arrow_csv.ReadOptions(use_threads=is_large, column_names=names),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=not is_large, invalid_row_handler=refuse),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        if is_large:
            return read_cells(content, start, names, separator, before, is_large=False)
        if ragged or len(remarks) > MOST_REMARKS:
            raise ValueError(_too_few([*ragged, *remarks][0], before)) from None
        raise ValueError(f"the file cannot be read as CSV: {error}") from None
    if not remarks:
        return dict(zip(names, table.columns, strict=True)), ()
    if len(remarks) > MOST_REMARK_SHARE * len(table):
        raise ValueError(_too_few(remarks[0], before))
    note = f"{len(remarks)} lines without a separator, such as {remarks[0].text[:40]!r}, are left out"
    return dict(zip(names, table.columns, strict=True)), (note,)


def _too_few(row: Any, before: int) -> str:
    place = f"row {before + row.number}" if row.number else "a row"
    return f"{place} has {row.actual_columns} cells, but the header has {row.expected_columns}: {row.text[:60]!r}"


def is_empty(column: Any) -> bool:
    """Return whether all cells of a column are blank."""
    import pyarrow.compute as pc

    return bool(pc.all(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py())
