"""Read InfluxDB's annotated CSV with any number of tables, each with its annotations and header."""

from __future__ import annotations

import re
from typing import Any, Final

from rfa.data.table import Table

ANNOTATION: Final = re.compile(r"#(group|datatype|default)\b")
# Columns that describe the query rather than the series.
OF_QUERY: Final = ("column 1", "result", "table", "_start", "_stop")
# Value of a label in the rows of a table without this label.
NO_LABEL: Final = "none"


def is_annotated(text: str) -> bool:
    """Return whether text begins with an annotation."""
    return ANNOTATION.match(text.lstrip()) is not None


def split_tables(text: str) -> dict[str, str]:
    """Return the rows by header. Tables with the same header are joined."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"(?:^|\n)\s*(?:#[^\n]*\n\s*)+", text.replace("\r\n", "\n")):
        for piece in re.split(r"\n\s*\n", part):
            header, _, rows = piece.strip("\n").partition("\n")
            if rows.strip():
                found.setdefault(header, []).append(rows)
    return {header: "\n".join(rows) for header, rows in found.items()}


def join_tables(tables: list[Table]) -> Table:
    """Return one table with the rows of all tables.

    Raises:
        ValueError: If there are no rows, or the first table contains an error of the query.
    """
    import pyarrow as pa

    if not tables:
        raise ValueError("the file has annotations but no rows")
    if "error" in tables[0].columns:
        raise ValueError(f"InfluxDB returned an error: {tables[0].columns['error'][0].as_py()!r}")
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    names = [name for name in names if name not in OF_QUERY] or names

    def cells(table: Table, name: str) -> Any:
        fill = None if name == "_value" else NO_LABEL
        return table.columns.get(name, pa.chunked_array([pa.array([fill] * len(table), pa.string())]))

    columns = {name: pa.chunked_array([c for t in tables for c in cells(t, name).chunks]) for name in names}
    note = f"annotated CSV with {len(tables)} tables of different columns" if len(tables) > 1 else "annotated CSV"
    return Table(columns, ",", tables[0].first_row, (*tables[0].notes, note))
