"""Lines of labelled cells, such as `ts=2024-01-01T00:00:00Z level=info ms=12`, as logs have them."""

from __future__ import annotations

import re
from typing import Any, Final

from rfa.data.json_values import Rows

# `::` separates names and values in Nagios' performance data, whose limits follow a value after a semicolon.
CELL: Final = re.compile(r'(?<![^\s|;,:])([A-Za-z_][\w./%-]*)(?:=|::)("[^"]*"|[^\s;="]*(?=[\s;]|$))?')
PREVIEW: Final = 20
FEWEST_CELLS: Final = 2
MOST_CHARACTERS: Final = 2**28


def read_labelled(text: str) -> Rows | None:
    """The rows of a file whose first lines consist of labelled cells; None for others.

    Raises:
        ValueError: the file is too large.
    """
    first = [line for line in text[:100_000].splitlines()[:PREVIEW] if line.strip()]
    if not first or not all(map(_is_labelled, first)):
        return None
    if len(text) > MOST_CHARACTERS:
        raise ValueError("lines of labelled cells may have 256 MiB at most: split the file, or save it as CSV")
    rows: list[dict[str, str]] = []
    for line in text.splitlines():
        cells = {name: value.strip('"') for name, value in CELL.findall(line) if value}
        if cells:
            rows.append(cells)
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    found = Rows(note="lines of labelled cells")
    found.add({}, **columns)
    return found


def _is_labelled(line: str) -> bool:
    """Whether a line begins with a labelled cell and has several."""
    return CELL.match(line) is not None and len(CELL.findall(line)) >= FEWEST_CELLS
