"""Read lines of labelled cells, such as `ts=2024-01-01T00:00:00Z level=info ms=12`, and other logs with a fixed
structure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from rfa.data.first_lines import begins_with, check_size
from rfa.data.json_values import Rows
from rfa.data.table import unique_names

# In the performance data of Nagios, `::` separates name and value, and limits follow the value after a semicolon.
CELL: Final = re.compile(r'(?<![^\s|;,:])([A-Za-z_][\w./%-]*)(?:=|::)("[^"]*"|[^\s;="]*(?=[\s;]|$))?')
# The time at the beginning of a line, with or without brackets.
STAMP: Final = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\d{9,10}\.\d+)\]?\s")
TIME: Final = "time"
# Line above a record, and line with a cell of a record.
RECORD: Final = re.compile(r"(?m)^\s*(?:-\[ RECORD \d+ \][-+]*|\*{5,} \d+\. row \*{5,})\s*$")
RECORD_CELL: Final = re.compile(r"\s*([^|:]*?)\s*[|:](.*)")
# Comment with the names of the columns, as in W3C's extended log format and Zeek's logs.
FIELDS: Final = re.compile(r"(?mi)^#\s?fields\b[:\t ]\s*(\S.*)$")
# Line with host, time, request, status and bytes. If there is another number at the end, it is the duration.
ACCESS: Final = re.compile(r'(\S+) \S+ \S+ \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)(?: .*?)?(?: (\d+\.\d+))?$')
ACCESS_NAMES: Final = ("host", "time", "request", "status", "bytes", "duration")
# The time, frontend, server, durations in ms, status and bytes of a request, as HAProxy writes them.
PROXY: Final = re.compile(
    r"(?:.*?: )?\S+:\d+ \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\.\d{3})\] (\S+) (\S+) "
    r"(-?\d+)/(-?\d+)/(-?\d+)/(-?\d+)/\+?(\d+) (\d{3}|-1) \+?(\d+) "
)
PROXY_NAMES: Final = (
    "time", "frontend", "server", "request (ms)", "queue (ms)", "connect (ms)", "response (ms)", "total (ms)", "status",
    "bytes",
)  # fmt: skip
SEARCHED: Final = 4096
# Minimum fraction of the first lines that consist of labelled cells.
LABELLED_SHARE: Final = 0.9
FEWEST_CELLS: Final = 2


def read_labelled(text: str) -> Rows | None:
    """Return the rows of a file whose first lines consist of labelled cells, or None for other text.

    Raises:
        ValueError: If the file is too large.
    """
    if not begins_with(text, _is_labelled, LABELLED_SHARE):
        return None
    check_size(text, "a file of labelled lines may have at most 256 MiB; split it, or save it as CSV")
    rows: list[dict[str, str]] = []
    lines = [line for line in text.splitlines() if line.strip()]
    labelled = [line for line in lines if _is_labelled(line)]
    if 2 * len(labelled) < len(lines):
        return None  # the labelled lines are properties above a table
    for line in labelled:
        cells = {name: value.strip('"') for name, value in CELL.findall(line) if value}
        if (stamp := STAMP.match(line)) is not None:
            cells = {TIME: stamp[1].replace(",", "."), **{name if name != TIME else f"{TIME}_2": value
                                                          for name, value in cells.items()}}  # fmt: skip
        rows.append(cells)
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    found = Rows(note="each line names its cells")
    found.add({}, **columns)
    return found


def read_fields(text: str) -> Rows | None:
    """Return the rows of a log with a comment that begins with `Fields` and contains the names of the columns, or None
    for other text.

    Raises:
        ValueError: If the file is too large.
    """
    named = FIELDS.search(text, 0, SEARCHED) if text.startswith("#") else None
    if named is None:
        return None
    check_size(text, "a log may have at most 256 MiB; split the file, or save it as CSV")
    names = unique_names(named[1].split())
    separator = "\t" if "\t" in named[1].strip() else None
    lines = (line.split(separator) for line in text.splitlines() if line and line[0] != "#")
    rows = [cells for cells in lines if len(cells) == len(names)]
    if not rows:
        return None
    found = Rows(note="column names are read from a comment")
    found.add({}, **{name: [row[k] for row in rows] for k, name in enumerate(names)})
    return found


def read_access_log(text: str) -> Rows | None:
    """Return the rows of a web server's log in the common or combined format. Return None for other text.

    Raises:
        ValueError: If the file is too large.
    """
    return _read_requests(text, ACCESS, ACCESS_NAMES, "each row is a line of an access log")


def read_proxy_log(text: str) -> Rows | None:
    """Return the requests in an HTTP log of HAProxy, or None for other text. A phase that a request did not reach has
    no duration.

    Raises:
        ValueError: If the file is too large.
    """
    return _read_requests(text, PROXY, PROXY_NAMES, "each row is a line of a proxy's log")


def _read_requests(text: str, line: re.Pattern[str], names: Sequence[str], note: str) -> Rows | None:
    if not begins_with(text, lambda each: line.match(each) is not None, LABELLED_SHARE):
        return None
    check_size(text, "an access log may have at most 256 MiB; split the file, or save it as CSV")
    rows = [cells.groups() for each in text.splitlines() if (cells := line.match(each)) is not None]
    columns = {name: [None if row[k] == "-1" else row[k] for row in rows] for k, name in enumerate(names)}
    found = Rows(note=note)
    found.add({}, **columns)
    return found


def read_records(text: str) -> Rows | None:
    """Return the rows of a file with one line per cell, as in the expanded output of psql and mysql. Return None for
    other text.

    Raises:
        ValueError: If the file is too large.
    """
    if RECORD.match(text) is None:
        return None
    check_size(text, "records with one line per cell may have at most 256 MiB; split the file, or save it as CSV")
    rows: list[dict[str, str]] = []
    for record in RECORD.split(text)[1:]:
        cells = (RECORD_CELL.fullmatch(line) for line in record.splitlines())
        rows.append({cell[1]: cell[2].strip() for cell in cells if cell is not None})
    found = Rows(note="each record has one line per cell")
    found.add({}, **{name: [row.get(name) for row in rows] for name in dict.fromkeys(n for row in rows for n in row)})
    return found


def _is_labelled(line: str) -> bool:
    """Return whether a line begins with a labelled cell or a time, and contains several cells."""
    has_time = STAMP.match(line) is not None
    return (has_time or CELL.match(line) is not None) and len(CELL.findall(line)) + has_time >= FEWEST_CELLS
