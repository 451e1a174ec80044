"""Read JSON and JSON Lines as tables. Supported are lists of rows, columns by name, pairs of time and value, and the
output of monitoring programs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rfa.data.clock_numbers import EARLIEST_UNIX, LATEST_UNIX, unix_seconds
from rfa.data.json_blocks import OFFSET, named_cells, parallel_lists, read_blocks
from rfa.data.json_shapes import gluonts, graphite, home_assistant, influx, json_stat, opentsdb, prometheus, rrdtool
from rfa.data.json_values import Rows, table_of_columns, table_of_rows
from rfa.data.table import Table

# Beginning of an object without its bracket.
MEMBER: Final = re.compile(rb"[\[\s]*\"?[\w .-]{1,40}\"\s*:\s*[\[{\"\d-]")
# Labels such as {job="a"}, which are not JSON.
LABELS: Final = re.compile(rb"\{\s*\w+\s*=")
# Beginning of an array. `[2024-01-01` in a log does not match.
ARRAY: Final = re.compile(rb"\[\s*(?:[\[{\"\]tfn]|-?\d[\d.eE+-]*\s*(?:,|\]\s*(?:[\r\n,\]]|$)|$))")
# Maximum number of digits of keys that are elapsed seconds. Times since 1970 have more digits.
LONGEST_OFFSET: Final = 8
# Maximum size of JSON, because the parsed document takes many times its size.
MOST_BYTES: Final = 2**28
SHAPES: Final[tuple[Callable[[Any], Rows | None], ...]] = (
    prometheus, influx, json_stat, rrdtool, graphite, opentsdb, gluonts, home_assistant,
)  # fmt: skip


def is_json(content: bytes) -> bool:
    """Return whether a file begins like a JSON array or object, or like the members of an object whose opening bracket
    is missing."""
    start = content[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    return (start[:1] == b"{" and not LABELS.match(start)) or bool(ARRAY.match(start) or MEMBER.match(start))


def read_json(content: bytes) -> Table:
    """Return a table from JSON or JSON Lines.

    Raises:
        ValueError: If the text is damaged, too large, or has no rows.
    """
    if len(content) > MOST_BYTES:
        raise ValueError("JSON may have at most 256 MiB; split it, or save it as CSV or Parquet")
    content = content.removeprefix(b"\xef\xbb\xbf")
    document = _parse(content)
    try:
        found = read_blocks(document, _read)
    except (AttributeError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"a row or series of this JSON differs in form from the others ({type(error).__name__}: {error}); use an "
            'array of objects such as [{"time": …, "value": …}], or CSV'
        ) from None
    if found is None:
        raise ValueError('this JSON has no rows; use an array of objects such as [{"time": …, "value": …}], or CSV')
    return found


def _parse(content: bytes) -> Any:
    import orjson

    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        lines = content.splitlines()
        if len(lines) > 1 and error.lineno <= 2:
            return _parse_lines(lines)
        return _parse_python(content, 1 if error.lineno is None else error.lineno)


def _parse_python(content: bytes, line: int) -> Any:
    """Parse JSON that may contain NaN and Infinity, as in the output of Python."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {line}: this is not valid JSON ({error})") from None


def _parse_lines(lines: Sequence[bytes]) -> list[Any]:
    import orjson

    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                rows.append(_parse_python(line, number))
    return rows


def _read(document: Any) -> Table | None:
    """Return the table that a parsed JSON value represents as a whole. Tables that are nested in the value are not
    considered. Return None if the value is not a table."""
    for shape in SHAPES:
        found = shape(document)
        if found is not None:
            return found.table()
    if isinstance(document, list):
        return _read_list(document)
    return _read_columns(document) if isinstance(document, Mapping) else None


def _read_list(document: list[Any]) -> Table | None:
    if not document:
        return None
    if all(isinstance(row, Mapping) for row in document):
        table = table_of_rows(document)
        lists = [
            name for name, cell in document[0].items()
            if isinstance(cell, list) and not any(other.startswith(f"{name}.") for other in table.columns)
        ]  # fmt: skip
        note = f"lists inside the rows are left out: {', '.join(map(repr, lists))}"
        return replace(table, notes=(note,)) if lists else table
    if all(isinstance(row, list) for row in document):
        first = document[0]
        has_header = all(isinstance(cell, str) for cell in first) and len(document) > 1
        names = (
            first
            if has_header
            else _names_of_pairs(document)
            if len(first) == 2
            else [f"column {k + 1}" for k in range(len(first))]
        )
        rows = document[1:] if has_header else document
        if any(len(row) != len(names) for row in rows):
            raise ValueError(f"the rows differ in length; each row must have {len(names)} values, like the first row")
        return table_of_columns({str(name): [row[k] for row in rows] for k, name in enumerate(names)})
    return None if any(isinstance(row, list | Mapping) for row in document) else table_of_columns({"value": document})


def _names_of_pairs(pairs: list[list[Any]]) -> list[str]:
    """Return the names of pairs. The time is first, unless only the second numbers have the size of times since 1970,
    as in Graphite."""
    first, second = (np.array([pair[k] for pair in pairs if len(pair) == 2]) for k in (0, 1))
    return ["value", "time"] if _are_epochs(second) and not _are_epochs(first) else ["time", "value"]


def _are_epochs(numbers: np.ndarray) -> bool:
    if numbers.dtype.kind not in "iuf":
        return False
    seconds = unix_seconds(numbers)[0]
    return bool((seconds >= EARLIEST_UNIX).all() and (seconds <= LATEST_UNIX).all())


def _read_columns(document: Mapping[str, Any]) -> Table | None:
    """Return the table in an object of columns of equal length, an object that pandas' `to_json` wrote, or an object of
    rows by their times. Return None for other objects."""
    if {"columns", "data"} <= document.keys() and isinstance(document["columns"], list):
        names = [str(name) for name in document["columns"]]
        index = document.get("index")
        columns = {"index": index} if isinstance(index, list) and any(isinstance(cell, str) for cell in index) else {}
        return table_of_columns(columns | {name: [row[k] for row in document["data"]] for k, name in enumerate(names)})
    if (named := named_cells(document)) is not None:
        return table_of_columns(named)
    lists = parallel_lists(document)
    if len(lists) > 1:
        return table_of_columns(lists)
    if document and all(isinstance(cells, Mapping) for cells in document.values()):
        keys = [tuple(cells) for cells in document.values()]
        are_plain = not any(isinstance(cell, list | Mapping) for cells in document.values() for cell in cells.values())
        if are_plain and len({*keys}) == 1 and len(keys[0]) > 2 and len(keys[0]) >= len(keys):
            return table_of_columns(
                {"time": list(keys[0])} | {n: list(cells.values()) for n, cells in document.items()}
            )
        if len(document) > 2 and all(name[:1].isdigit() for name in document):
            return table_of_rows([{"time": name, **cells} for name, cells in document.items()])
        if are_plain and len({*keys}) == 1 and 1 < len(keys[0]) < len(keys):
            return table_of_rows([{"key": name, **cells} for name, cells in document.items()])
    are_numbers = all(cell is None or isinstance(cell, int | float | str) for cell in document.values())
    if len(document) > 2 and are_numbers and all(name[:1].isdigit() for name in document):
        are_offsets = all(name.isdigit() and len(name) <= LONGEST_OFFSET for name in document)
        name = OFFSET if are_offsets else "time"
        return table_of_columns({name: list(document), "value": list(document.values())})
    return None
