"""Convert tables with one row per year and one column per month or quarter."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import numeric_sample
from rfa.data.clock_numbers import YEAR_WORDS
from rfa.data.month_names import LANGUAGES, names
from rfa.data.table import Table
from rfa.data.wide import VALUE, YEAR_NAME, is_there

MONTHS, QUARTERS = 12, 4
QUARTER: Final = re.compile(r"(?:Q|T|K|Qtr|Quarter|Quartal|Trim\.?|Trimestre)[ ]?[1-4]", re.IGNORECASE)
YEAR, MONTH = "year", "month"
FEWEST_YEARS: Final = 2


def melt_months(table: Table) -> Table:
    """Convert a table with a row for each year and a column for each month or quarter to one row per value. A table
    with a row for each month and a column for each year is converted as well. Other tables are unchanged."""
    import pyarrow as pa

    table = _with_years_down(table)
    year = next((name for name in table.columns if name.strip().lower() in YEAR_WORDS), None) or _first_years(table)
    others = [name for name in table.columns if name != year]
    months = _month_columns(others)
    quarters = [name for name in others if QUARTER.fullmatch(name.strip())]
    are_quarters = not months and [name.strip()[-1] for name in quarters] == list("1234")
    months = quarters if are_quarters else months
    if year is None or not months:
        return table
    rows, count = len(table), len(months)
    cells: list[Any] = [table.columns[name].cast(pa.string()) for name in months]
    stacked = pa.chunked_array([chunk for column in cells for chunk in column.chunks])
    order = np.arange(count * rows).reshape(count, rows).T.ravel()  # ordered by year, then by month
    there = np.flatnonzero(np.stack([is_there(table.columns[name]) for name in months]).T.ravel())
    order = order[: there[-1] + 1] if len(there) else order
    columns = {
        YEAR: table.columns[year].take(order % rows),
        "quarter" if are_quarters else MONTH: pa.chunked_array([pa.array(order // rows + 1)]),
        VALUE: stacked.take(order),
    }
    note = f"each row is a year with its months in the columns {months[0]!r} to {months[-1]!r}"
    return Table(columns, table.separator, table.first_row, (*table.notes, note))


def _with_years_down(table: Table) -> Table:
    """Return the transpose of a table with a row for each month and a column for each year, which has a row for each
    year. Other tables are returned unchanged."""
    import pyarrow as pa

    (first, months), *years = table.columns.items()
    numbers = [int(name) for name, _ in years if YEAR_NAME.fullmatch(name.strip())]
    if len(numbers) < FEWEST_YEARS or len(numbers) < len(years) or (np.diff(numbers) != 1).any():
        return table
    names = [str(cell or "").strip() for cell in months.to_pylist()]
    names = names[:MONTHS] if len(names) == MONTHS + 1 else names  # the last row is a total
    if len(names) != MONTHS or not _month_columns(names):
        return table
    rows = zip(*(column.cast(pa.string()).to_pylist() for _, column in years), strict=True)
    cells = {name: pa.chunked_array([pa.array(row, pa.string())]) for name, row in zip(names, rows, strict=False)}
    columns = {YEAR: pa.chunked_array([pa.array(list(map(str, numbers)))]), **cells}
    note = f"each column is a year, and each row is a month, named in column {first!r}"
    return Table(columns, table.separator, table.first_row, (*table.notes, note))


def _first_years(table: Table) -> str | None:
    """Return the first column of a table of months or quarters if the column has no name and contains consecutive
    years. Otherwise, return None."""
    name = next(iter(table.columns))
    numbers = (
        numeric_sample(table.columns[name]) if len(table.columns) in (QUARTERS + 1, MONTHS + 1, MONTHS + 2) else None
    )
    if name != "column 1" or numbers is None or len(numbers) < 2 or numbers.min() < 1500 or numbers.max() > 2200:
        return None
    return name if bool((np.diff(numbers) == 1).all()) else None


def _month_columns(columns: list[str]) -> list[str]:
    """Return twelve consecutive columns whose names are the months in one language, or numbers. The result is empty if
    there are none."""
    if columns in ([f"column {k + 2}" for k in range(MONTHS)], [str(k + 1) for k in range(MONTHS)]):
        return columns
    lower = [name.strip().lower().rstrip(".") for name in columns]
    for language in LANGUAGES:
        for start in range(len(columns) - MONTHS + 1):
            if all(text in month for text, month in zip(lower[start:], names(language), strict=False)):
                return columns[start : start + MONTHS]
    return []
