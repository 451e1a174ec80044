"""A table from text: its encoding, its separator, what stands above the header, the header. pyarrow reads the cells."""

from __future__ import annotations

import csv
import re
from collections import Counter
from typing import Any, Final

from rfa.data.table import MISSING, Table, distinct

PREVIEW_LINES: Final = 50
# The rarer inside of a cell first.
SEPARATORS: Final = "\t;|,"
BOMS: Final = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
NUMBER: Final = re.compile(r"[+-]?(\d[\d.,']*|\.\d+)([eE][+-]?\d+)?%?")
DATE: Final = re.compile(r"\d{1,4}[-/.]\d{1,2}([-/.]\d{1,4})?([T ].*)?|\d{1,2}:\d{2}(:\d{2})?.*")
LINE_END: Final = re.compile(r"\r\n|\r|\n")
# Lines below a header that describe its columns: units, kinds.
MOST_DESCRIPTIONS: Final = 3


def decoded(content: bytes) -> tuple[str, tuple[str, ...]]:
    """The text of a file, and what is said of its encoding.

    Raises:
        ValueError: it is none.
    """
    for bom, encoding in BOMS.items():
        if content.startswith(bom):
            try:
                return content.decode(encoding), ()
            except UnicodeDecodeError:
                raise ValueError(f"the file begins as {encoding} and is not: save it as UTF-8") from None
    if b"\0" in content[:4096]:
        raise ValueError("this is neither text nor Parquet nor Arrow: save it as CSV")
    try:
        return content.decode(), ()
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace"), ("not UTF-8: read as Windows-1252",)


def read_text(text: str, notes: tuple[str, ...] = ()) -> Table:
    """A table from CSV in any dress.

    Raises:
        ValueError: it has no rows, or one has another number of cells than the header.
    """
    lines = _preview(text)
    if not lines:
        raise ValueError("the file is empty")
    separator, above = _separator([line[0] for line in lines])
    if above:
        notes += (f"{above} lines above the header: left out",)
    lines = lines[above:]
    header = _cells(lines[0][0], separator)
    start = lines[0].start()
    if not _is_data(header):
        start = lines[0].end()
        names = [name.strip() or f"column {k}" for k, name in enumerate(header, start=1)]
        described = _descriptions([_cells(line[0], separator) for line in lines[1 : MOST_DESCRIPTIONS + 2]])
        if described:
            start = lines[described].end()
            notes += (f"{described} lines below the header have no number: left out",)
    else:
        names = [f"column {k}" for k in range(1, len(header) + 1)]
        notes += ("no header: columns are called by their numbers",)
    if not text[start:].strip():
        raise ValueError("the file has a header and no rows: it needs at least one row")
    names = distinct(names)
    # The line that ends a header is its own.
    before = len(LINE_END.findall(text[:start])) + (LINE_END.match(text, start) is not None)
    columns = _arrow_columns(text[start:], names, separator, before)
    return Table(columns, separator, before + 1, notes)


def _arrow_columns(body: str, names: list[str], separator: str, before: int) -> dict[str, Any]:
    """The cells below a header that ends on line `before`, as text."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader((body + "\n").encode()),
            arrow_csv.ReadOptions(use_threads=False, column_names=names),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        if ragged:
            row = ragged[0]
            place = f"row {before + row.number}" if row.number else "a row"
            raise ValueError(
                f"{place} has {row.actual_columns} cells, the header has {row.expected_columns}: {row.text[:60]!r}"
            ) from None
        raise ValueError(f"the file cannot be read as CSV: {error}") from None
    return dict(zip(names, table.columns, strict=True))


def _preview(text: str) -> list[re.Match[str]]:
    """The first lines that are neither blank nor comments, nor Excel's word about its separator."""
    found: list[re.Match[str]] = []
    for line in re.finditer(r"[^\r\n]+", text):
        if line[0].strip() and (found or not (line[0].startswith("#") or re.fullmatch(r"sep=.", line[0].strip()))):
            found.append(line)
            if len(found) == PREVIEW_LINES:
                break
    return found


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error as error:
        raise ValueError(f"the file cannot be read as CSV: {error}") from None


def _separator(lines: list[str]) -> tuple[str, int]:
    """The separator that gives most lines as many cells as the header, and how many lines stand above it."""
    found = {separator: _fit([len(_cells(line, separator)) for line in lines]) for separator in SEPARATORS}
    best = max(share for share, _ in found.values())
    if best <= 0:
        return ",", 0
    separator = next(separator for separator in SEPARATORS if found[separator][0] == best)
    above = found[separator][1]
    # A row that has more cells than its header is no reason to drop the header.
    return separator, above if above < len(lines) - 1 and not _is_data(_cells(lines[above], separator)) else 0


def _fit(counts: list[int]) -> tuple[float, int]:
    """The share of lines that have as many cells as the first, or as the first of those that most have."""
    as_first = sum(count == counts[0] for count in counts) / len(counts) if counts[0] > 1 else 0.0
    usual, often = Counter(count for count in counts if count > 1).most_common(1)[0] if max(counts) > 1 else (0, 0)
    if often <= 1 or as_first >= 0.5:
        return as_first, 0
    above = counts.index(usual)
    return sum(count == usual for count in counts[above:]) / len(counts), above


def _descriptions(rows: list[list[str]]) -> int:
    """How many rows right below a header have no digit where the next one does, in its first cell too."""
    has_digit = [bool(re.search(r"\d", "".join(row))) for row in rows]
    count = has_digit.index(True) if True in has_digit else 0
    return count if count and re.search(r"\d", rows[count][0]) else 0


def _is_data(cells: list[str]) -> bool:
    """Whether a row is numbers and dates alone, as no header is."""
    filled = [cell.strip() for cell in cells if cell.strip().lower() not in MISSING]
    return bool(filled) and all(NUMBER.fullmatch(cell) or DATE.fullmatch(cell) for cell in filled)
