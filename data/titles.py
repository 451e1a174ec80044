"""Read dates, markers of missing values and units of times from the lines above the header of a table."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from rfa.data.clock_choice import CLOCK_NAMES
from rfa.data.epochs import form_in
from rfa.data.marks import MARKS
from rfa.data.table import Table
from rfa.data.time_formats import candidate_formats, parse_moment

DATE: Final = re.compile(r"(?<![\d.:/-])(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?![\d:/-])")
TIMES: Final = ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p")
MARK: Final = re.compile(
    r"(?:missing|fehl(?:end|wert)|manquant|no[ _]?data|invalid|fill[ _]?value|rinval)[^\n]{0,120}?(-\d+(?:\.\d+)?)\b",
    re.IGNORECASE,
)
MOST_ROWS: Final = 1_000_000


def add_marks(table: Table, titles: str) -> Table:
    """Return the table with the markers of missing values and the unit of the times that the lines above its header
    specify."""
    found = [text for text in dict.fromkeys(MARK.findall(titles)) if float(text) in MARKS]
    notes = [f"{text} is a missing value, as the lines above the header state" for text in found]
    return replace(
        table, marks=(*table.marks, *found), notes=(*table.notes, *notes), epoch=table.epoch or form_in(titles)
    )


def add_date(table: Table, titles: str) -> Table:
    """Return the table with the date in the lines above its header added to the times of day in its first column. If
    these lines do not contain exactly one date, the table is returned unchanged.

    The next day begins where times decrease.
    """
    import pyarrow as pa

    name = next(iter(table.columns))
    if not titles or name.strip().lower() not in CLOCK_NAMES or len(table) > MOST_ROWS:
        return table
    cells = [(cell or "").strip() for cell in table.columns[name].to_pylist()]
    form = next((form for form in TIMES if cells and _moment(cells[0], form) is not None), None)
    dates = {text: candidate_formats(text) for text in DATE.findall(titles)}
    days = {_moment(text, made) for text, formats in dates.items() for made in formats}
    if form is None or len(days) != 1 or (first := days.pop()) is None:
        return table
    day, before, found = first, None, []
    for cell in cells:
        moment = _moment(cell, form)
        if moment is not None:
            day += timedelta(days=before is not None and moment < before)
            before = moment
        found.append(cell if moment is None else str(datetime.combine(day, moment.time())))
    columns: dict[str, Any] = {**table.columns, name: pa.chunked_array([pa.array(found, pa.string())])}
    note = f"the date {first:%Y-%m-%d} is read from the lines above the header"
    return replace(table, columns=columns, notes=(*table.notes, note))


def _moment(text: str, form: str) -> datetime | None:
    try:
        return parse_moment(text, form)
    except ValueError:
        return None
