"""Read CSV of Garmin's FIT tool. Each line is a message, which consists of triples of field, value and unit."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import UTC, datetime
from typing import Final

from rfa.data.json_values import Rows
from rfa.data.units import named

HEADER: Final = "Type,Local Number,Message,Field 1,Value 1,Units 1"
# Origin of the times in FIT files, 1989-12-31, in seconds since 1970.
ORIGIN: Final = 631_065_600
TIME: Final = "timestamp"


def read_fit(text: str) -> Rows | None:
    """Return the rows of the most frequent kind of message, or None for other text."""
    if not text.startswith(HEADER):
        return None
    lines = [row for row in csv.reader(text.splitlines()) if row[:1] == ["Data"] and len(row) > 5]
    usual = Counter(row[2] for row in lines).most_common(1)
    rows = []
    for row in lines:
        if row[2] == usual[0][0]:
            triples = zip(row[3::3], row[4::3], row[5::3], strict=False)
            rows.append({named(name, unit) if name != TIME else TIME: value for name, value, unit in triples if name})
    for cells in rows:
        if cells.get(TIME, "").isdigit() and len(cells[TIME]) < 11:
            cells[TIME] = datetime.fromtimestamp(ORIGIN + int(cells[TIME]), UTC).isoformat()
    names = dict.fromkeys(name for cells in rows for name in cells)
    found = Rows(note=f"only the messages {usual[0][0]!r} of the FIT file are read" if usual else "")
    found.add({}, **{name: [cells.get(name) for cells in rows] for name in names})
    return found if rows else None
