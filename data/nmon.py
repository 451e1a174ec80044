"""Read nmon files, whose lines begin with the name of their table, as one table."""

from __future__ import annotations

import csv
import re
from typing import Final

from rfa.data.json_values import Rows, check_cells

MARKED: Final = re.compile(r"(?m)^ZZZZ,T\d+,", re.IGNORECASE)
SNAPSHOT: Final = re.compile(r"T\d{4,}", re.IGNORECASE)
TIMES: Final = "ZZZZ"
# Tables that describe the machine.
OTHERS: Final = frozenset(("AAA", "BBB", "BBBP", "TOP", "UARG"))
TIME: Final = "time"
SEARCHED: Final = 2**20


def read_snapshots(text: str) -> Rows | None:
    """Return the tables of an nmon file side by side, with one row per snapshot. Return None for other text.

    Raises:
        ValueError: If there are too many values.
    """
    if text[:4].upper() != "AAA," or MARKED.search(text, 0, SEARCHED) is None:
        return None
    names: dict[str, list[str]] = {}
    times: dict[str, str] = {}
    values: dict[str, dict[str, list[str]]] = {}
    for kind, *cells in csv.reader(line for line in text.splitlines() if line.count(",") > 1):
        if kind in OTHERS or len(cells) < 2:
            continue
        if kind.upper() == TIMES and len(cells) > 2:
            times[cells[0]] = f"{cells[2]} {cells[1]}".title()
        elif SNAPSHOT.fullmatch(cells[0]):
            values.setdefault(kind, {})[cells[0]] = cells[1:]
        else:
            names.setdefault(kind, cells[1:])
    tables = [kind for kind in values if kind in names]
    check_cells(len(times) * sum(len(names[kind]) for kind in tables))
    columns: dict[str, list[str | None]] = {TIME: list(times.values())}
    for kind in tables:
        rows = [values[kind].get(mark, []) for mark in times]
        for k, name in enumerate(names[kind]):
            column = [row[k] if k < len(row) else None for row in rows]
            if any(column):
                columns[f"{kind} {name}"] = column
    found = Rows(note=f"nmon: the columns of the tables {', '.join(tables)} are combined")
    found.add({}, **columns)
    return found
