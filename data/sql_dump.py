"""Read the rows of a SQL dump with INSERT statements, or with PostgreSQL's COPY."""

from __future__ import annotations

import re
from typing import Any, Final

from rfa.data.json_values import check_cells, table_of_columns
from rfa.data.table import Table, unique_names

NAME: Final = r'[`"\[]?[\w.`"\]\[]+[`"\]]?'
BEGIN: Final = re.compile(r"\s*(--|/\*|(SET|BEGIN|PRAGMA|DROP TABLE|CREATE TABLE|INSERT INTO)\b)", re.IGNORECASE)
INSERT: Final = re.compile(rf"INSERT\s+INTO\s+({NAME})\s*(\([^)]*\))?\s*VALUES\s*", re.IGNORECASE)
COPY: Final = re.compile(r"(?ims)^COPY\s+(\S+)\s*\(([^)]*)\)\s+FROM\s+stdin;\r?\n(.*?)^\\\.")
CREATE: Final = re.compile(rf"(?is)CREATE TABLE (?:IF NOT EXISTS )?({NAME})\s*\((.{{0,20000}}?)\)[^()]{{0,999}};")
CONSTRAINTS: Final = ("primary", "key", "unique", "constraint", "foreign", "index", "check", "fulltext")
CELL: Final = re.compile(r"\s*(?:'((?:[^'\\]|''|\\.)*)'|([^,()']+))\s*([,)])")
MOST_CHARACTERS: Final = 2**28


def read_dump(text: str) -> Table | None:
    """Return the rows of a dump in which exactly one table has rows. Return None if the text is not a SQL dump.

    Raises:
        ValueError: If several tables or none have rows, a row is damaged, or the file is too large.
    """
    if not BEGIN.match(text) or not (INSERT.search(text) or COPY.search(text)):
        return None
    if len(text) > MOST_CHARACTERS:
        raise ValueError("a SQL dump may have at most 256 MiB; load it into a database and save the rows as CSV")
    rows: dict[str, list[list[str | None]]] = {}
    names: dict[str, list[str]] = {_bare(name): _columns(body) for name, body in CREATE.findall(text)}
    for found in COPY.finditer(text):
        names[_bare(found[1])] = [_bare(name) for name in found[2].split(",")]
        cells = [[None if cell == "\\N" else cell for cell in line.split("\t")] for line in found[3].splitlines()]
        rows.setdefault(_bare(found[1]), []).extend(cells)
    for found in INSERT.finditer(text):
        if found[2]:
            names[_bare(found[1])] = [_bare(name) for name in found[2].strip("()").split(",")]
        rows.setdefault(_bare(found[1]), []).extend(_tuples(text, found.end()))
    if len(rows) != 1:
        listed = ", ".join(map(repr, rows))
        raise ValueError(f"the dump has rows of the tables {listed}; load it into SQLite, and choose rows with --query")
    ((name, cells),) = rows.items()
    width = len(cells[0]) if cells else 0
    if not cells or any(len(row) != width for row in cells):
        raise ValueError(f"table {name!r} has no rows, or rows of different lengths; save its rows as CSV")
    check_cells(len(cells) * width)
    header = names.get(name, [])
    header = header if len(header) == width else [f"column {k + 1}" for k in range(width)]
    columns: dict[str, Any] = {each: [row[k] for row in cells] for k, each in enumerate(unique_names(header))}
    return _with_note(table_of_columns(columns), name)


def _with_note(table: Table, name: str) -> Table:
    return Table(table.columns, notes=(f"SQL dump: table {name!r}",))


def _bare(name: str) -> str:
    return re.sub(r'[`"\[\]]', "", name).strip().rpartition(".")[2]


def _columns(body: str) -> list[str]:
    """Return the names of the columns in the definition of a table."""
    parts = re.sub(r"\([^()]*\)", "", body).split(",")
    words = [part.split()[0] for part in parts if part.split()]
    return [_bare(word) for word in words if word.lower() not in CONSTRAINTS]


def _tuples(text: str, begin: int) -> list[list[str | None]]:
    """Return the rows between VALUES and the semicolon at the end of an INSERT statement."""
    rows: list[list[str | None]] = []
    while text[begin : begin + 1] == "(":
        row: list[str | None] = []
        begin += 1
        while (found := CELL.match(text, begin)) is not None:
            quoted, bare, end = found.groups()
            text_of = re.sub(r"\\(.)|''", lambda each: each[1] or "'", quoted) if quoted is not None else bare.strip()
            row.append(None if quoted is None and text_of.upper() == "NULL" else text_of)
            begin = found.end()
            if end == ")":
                break
        else:
            raise ValueError(f"a row of the SQL dump is damaged: {text[begin : begin + 60]!r}")
        rows.append(row)
        begin += len(text[begin : begin + 100]) - len(text[begin : begin + 100].lstrip(", \r\n\t"))
    return rows
