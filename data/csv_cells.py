"""The cells of CSV text, which pyarrow reads."""

from __future__ import annotations

from typing import Any, Final

# Files of at least this size are read by several threads.
LARGE: Final = 2**23


def read_cells(
    content: bytes, start: int, names: list[str], separator: str, before: int, *, is_large: bool | None = None
) -> dict[str, Any]:
    """Return the cells below a header as text columns. The header ends on line `before` and at byte `start`."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # With threads, rows are not counted and each line end must be the end of a row, so there must be no quotes.
    if is_large is None:
        is_large = len(content) >= LARGE and pa.cpu_count() > 1 and content.find(b'"', start) < 0
    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

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
        if ragged:
            row = ragged[0]
            place = f"row {before + row.number}" if row.number else "a row"
            raise ValueError(
                f"{place} has {row.actual_columns} cells, but the header has {row.expected_columns}: {row.text[:60]!r}"
            ) from None
        raise ValueError(f"the file cannot be read as CSV: {error}") from None
    return dict(zip(names, table.columns, strict=True))


def is_empty(column: Any) -> bool:
    """Return whether all cells of a column are blank."""
    import pyarrow.compute as pc

    return bool(pc.all(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py())
