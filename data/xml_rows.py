"""Read XML and HTML as tables. The rows are the elements that repeat most often, or the rows of the
longest HTML table."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from typing import Any, Final
from xml.parsers import expat

from rfa.data.json_blocks import read_blocks
from rfa.data.json_values import check_cells, table_of_columns, table_of_rows
from rfa.data.table import Table

START: Final = re.compile(rb"\s*<(\?xml|!doctype|[A-Za-z])", re.IGNORECASE)
HTML: Final = re.compile(rb"<(html|table|!doctype html)\b", re.IGNORECASE)
# A tag of a table, another tag, or text.
TOKEN: Final = re.compile(r"<(/?)(table|tr|td|th)\b[^<>]*>|<[^<>]*>?|[^<]+", re.IGNORECASE)
# Parsed XML takes many times its size.
MOST_BYTES: Final = 2**27
MOST_DEPTH: Final = 40
TEXT: Final = "text"
# A text of several numbers, and a comment before a row that has its time, as rrdtool writes it.
NUMBERS: Final = re.compile(r"-?\d+(\.\d+)?( -?\d+(\.\d+)?)+")
COMMENTED: Final = re.compile(r".*/ (\d{9,10})\s*")
TIME: Final = "time"
# A row: a mapping from names to attributes and nested elements.
Row = dict[str, Any]


def is_xml(content: bytes) -> bool:
    """Return whether the content of a file begins like XML or HTML and ends with a tag."""
    begin, end = content[:256].removeprefix(b"\xef\xbb\xbf"), content[-64:].rstrip()
    return START.match(begin) is not None and end.endswith(b">")


def read_xml(content: bytes) -> Table:
    """Return the rows of XML or HTML.

    Raises:
        ValueError: If the file is damaged or too large, defines entities, or has no rows.
    """
    if len(content) > MOST_BYTES:
        raise ValueError("XML may have at most 128 MiB; split it, or save it as CSV or Parquet")
    if HTML.search(content[:4096]):
        return _read_html(content.decode("utf-8", "replace"))
    parser = _Elements()
    try:
        parser.expat.Parse(content, True)
    except expat.ExpatError as error:
        raise ValueError(f"line {error.lineno}: this is not valid XML ({error})") from None
    table = read_blocks(parser.rows, _rows)
    if table is None:
        raise ValueError("this XML has no elements that repeat; save the table as CSV or Parquet")
    return table


def _rows(value: Any) -> Table | None:
    if isinstance(value, dict) and (lists := _parallel(value)):
        return table_of_columns(lists)
    is_list = isinstance(value, list) and len(value) > 1 and all(isinstance(row, dict) for row in value)
    return table_of_rows(value) if is_list else None


def _parallel(element: Row) -> dict[str, list[str]]:
    """Return the texts of elements that repeat side by side, as in the tracks of KML. The result is empty if there are
    none.

    Texts of several numbers become several columns.
    """
    lists = {name: cells for name, cells in element.items() if isinstance(cells, list) and len(cells) > 1}
    are_texts = all(isinstance(cell, str) for cells in lists.values() for cell in cells)
    if len(lists) < 2 or not are_texts or len({*map(len, lists.values())}) > 1:
        return {}
    found: dict[str, list[str]] = {}
    for name, cells in lists.items():
        rows = [NUMBERS.fullmatch(cell) and cell.split() for cell in cells]
        counts = {len(row or ()) for row in rows}
        if len(counts) == 1 and max(counts) > 1:
            found |= {f"{name} {k}": list(each) for k, each in enumerate(zip(*rows, strict=True), start=1)}  # type: ignore[arg-type]
        else:
            found[name] = cells
    return found


class _Elements:
    """Converts the elements of a document to nested dictionaries.

    Each dictionary has the attributes and elements of one element. Elements with the same name form a list.
    """

    def __init__(self) -> None:
        self.rows: Row = {}
        self.expat = expat.ParserCreate()
        self.expat.StartElementHandler = self._begin
        self.expat.EndElementHandler = self._end
        self.expat.CharacterDataHandler = self._add_text
        self.expat.CommentHandler = self._comment
        self.expat.EntityDeclHandler = self._refuse_entity
        self._open: list[tuple[Row, list[str]]] = [(self.rows, [])]
        self._count = 0
        self._time = ""

    def _refuse_entity(self, *_: Any) -> None:
        raise ValueError("XML that defines entities is not supported; save the table as CSV or Parquet")

    def _comment(self, text: str) -> None:
        found = COMMENTED.fullmatch(text)
        self._time = found[1] if found else ""

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        if self._time:
            attributes, self._time = {TIME: self._time, **attributes}, ""
        self._count += 1 + len(attributes)
        check_cells(self._count)
        if len(self._open) > MOST_DEPTH:
            raise ValueError(f"this XML has elements nested deeper than {MOST_DEPTH} levels; save it as CSV")
        self._open.append(({key.rpartition(":")[2]: cell for key, cell in attributes.items()}, []))

    def _add_text(self, text: str) -> None:
        self._open[-1][1].append(text)

    def _end(self, name: str) -> None:
        (row, texts), name = self._open.pop(), name.rpartition(":")[2]
        text = "".join(texts).strip()
        value: Any = row | ({TEXT: text} if text else {}) if row else text
        around = self._open[-1][0]
        if name not in around:
            around[name] = value
        elif isinstance(around[name], list):
            around[name].append(value)
        else:
            around[name] = [around[name], value]


def _read_html(text: str) -> Table:
    from rfa.data.csv_text import read_text

    tables = _html_tables(text)
    if not any(tables):
        raise ValueError("this HTML has no table; save the table as CSV or Parquet")
    rows = max(tables, key=len)
    width = Counter(map(len, rows)).most_common(1)[0][0]
    lines = ["\t".join(re.sub(r"\s+", " ", unescape(cell)) for cell in row) for row in rows if len(row) == width]
    return read_text("\n".join(lines), (f"HTML: the longest of {len(tables)} tables",))


def _html_tables(text: str) -> list[list[list[str]]]:
    """Return the cells in each row of each table."""
    tables: list[list[list[str]]] = []
    is_cell = False
    for token in TOKEN.finditer(text):
        tag, is_end = (token[2] or "").lower(), bool(token[1])
        if tag:
            is_cell = tag in ("td", "th") and not is_end
        if not is_end and tag == "table":
            tables.append([])
        elif not is_end and tag == "tr" and tables:
            tables[-1].append([])
        elif is_cell and tables and tables[-1]:
            if tag:
                tables[-1][-1].append("")
            elif not token[0].startswith("<"):
                tables[-1][-1][-1] += token[0]
        else:
            is_cell = False
    return tables
