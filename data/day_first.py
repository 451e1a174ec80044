"""Decide whether the day or the month is first in dates such as 1/2/2024, from other evidence in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock import AmbiguousDates, read_clock
from rfa.data.clock_choice import SAMPLED, date_columns, numeric_sample, sample
from rfa.data.clock_numbers import DAY, words_of
from rfa.data.number_forms import SEPARATORS_WITH_DECIMAL_COMMA
from rfa.data.numbers import NumberFormat
from rfa.data.table import Table

# Words in headers in languages in which the day is written first.
WORDS: Final = frozenset((
    "datum", "zeit", "wert", "betrag", "buchungstag", "fecha", "hora", "valor", "importe", "heure", "valeur", "montant",
    "jour", "giorno", "ora", "valore", "importo", "tijd", "waarde", "bedrag", "dato", "beløb", "belopp", "kwota",
))  # fmt: skip
# Date pattern in a header, such as dd/MM/yyyy.
PATTERN: Final = re.compile(r"\bdd?\W+mm?\b|\bmm?\W+dd?\b", re.IGNORECASE)
CURRENCIES: Final = ("€", "£")
# Minimum number of time steps from which a regular format is detected, and tolerance relative to the typical step,
# because months differ by a tenth.
FEWEST_STEPS: Final = 6
NEAR: Final = 0.1
LEAST_YEAR: Final = 300 * DAY


def choose_format(table: Table, clock: str, cells: Any, formats: Sequence[str]) -> tuple[str, str] | None:
    """Return the date format that other evidence in the file supports, and the reason. Return None if there is no
    evidence.

    The evidence is another column of dates, the name of the time column, equal steps between the times, or the decimal
    marks, separators, header words and currencies of the table.

    Args:
        table: The table.
        clock: Name of the time column.
        cells: Cells of the time column, as text.
        formats: Formats that match all cells.
    """
    for name in date_columns({name: column for name, column in table.columns.items() if name != clock}):
        form = _format_of(table.columns[name], name)
        if form is not None and form in formats:
            return form, f"as in column {name!r}"
    if (order := PATTERN.search(clock)) is not None:
        first, second = ("%d", "%m") if order[0][0].lower() == "d" else ("%m", "%d")
        fits = [form for form in formats if 0 <= form.find(first) < form.find(second)]
        if len(fits) == 1:
            return fits[0], f"in the order of {clock!r}"
    if (numbered := _only_numbered(table, cells, formats)) is not None:
        return numbered
    if (regular := _only_regular(cells, formats)) is not None:
        return regular
    day_first = [form for form in formats if 0 <= form.find("%d") < form.find("%m")]
    reason = _reason(table)
    return (day_first[0], f"day first, because {reason}") if len(day_first) == 1 and reason else None


def _only_numbered(table: Table, cells: Any, formats: Sequence[str]) -> tuple[str, str] | None:
    """Return the only format for which a column of numbers is the day of the year, and the reason. Return None if there
    is not exactly one."""
    sampled = {name: numeric_sample(column) for name, column in table.columns.items()}
    rows = np.unique(np.linspace(0, len(cells) - 1, SAMPLED).astype(np.int64))
    found: dict[str, str] = {}
    for form in formats:
        times = read_clock(cells, "", zone="UTC", time_format=form, rows=np.arange(len(cells))).stamps
        days = np.asarray(times, np.float64)[rows].astype("datetime64[s]").astype("datetime64[D]")
        numbers = (days - days.astype("datetime64[Y]")).astype(np.int64) + 1
        same = (name for name, given in sampled.items() if given is not None and np.array_equal(given, numbers))
        if np.ptp(numbers) and (name := next(same, None)) is not None:
            found[form] = name
    if len(found) != 1:
        return None
    ((chosen, column),) = found.items()
    return chosen, f"because column {column!r} is the day of the year"


def _only_regular(column: Any, formats: Sequence[str]) -> tuple[str, str] | None:
    """Return the only format for which all steps between different times are about equal, and the reason. Steps of days
    are preferred to steps of years. Return None if there is not exactly one."""
    found: dict[str, float] = {}
    for form in formats:
        times = read_clock(column, "", zone="UTC", time_format=form, rows=np.arange(len(column))).stamps
        steps = np.diff(np.unique(np.asarray(times, np.float64)))
        usual = float(np.median(steps)) if len(steps) >= FEWEST_STEPS else 0.0
        if usual and (np.abs(steps - usual) <= NEAR * usual).all():
            found[form] = usual
    days = [form for form, usual in found.items() if usual < LEAST_YEAR]
    chosen = days or list(found)
    if len(chosen) != 1:
        return None
    reason = "the steps between rows would differ" if len(found) == 1 else "rows would be years apart"
    return chosen[0], f"otherwise {reason}"


def _format_of(column: Any, name: str) -> str | None:
    try:
        found = read_clock(column, name, zone="UTC", time_format=None, rows=np.arange(len(column)))
    except (AmbiguousDates, ValueError):
        return None
    return found.form if isinstance(found.form, str) else None


def _reason(table: Table) -> str:
    if NumberFormat(table).decimal_marks == {","}:
        return "the file has decimal commas"
    if table.separator == SEPARATORS_WITH_DECIMAL_COMMA[0]:
        return "semicolons separate the cells"
    words = [word for name in table.columns for word in sorted(words_of(name) & WORDS)]
    if words:
        return f"the header has the word {words[0]!r}"
    return "the file has € or £" if _has_currency(table.columns) else ""


def _has_currency(columns: Mapping[str, Any]) -> bool:
    texts = [*columns, *(str(cell) for column in columns.values() for cell in sample(column).to_pylist()[:1])]
    return any(sign in text for text in texts for sign in CURRENCIES)
