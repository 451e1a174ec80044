"""Detect columns of numbers that are parts of dates, by the range and the order of the numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rfa.data.clock_choice import numeric_sample, sample, starts_with_number
from rfa.data.clock_numbers import are_dates, are_times_of_day
from rfa.data.month_names import LANGUAGES, names

# Default names of the first four columns of a file without a header, which may be year, month, day and hour.
UNNAMED: Final = tuple(f"column {k}" for k in range(1, 5))
# Maximum fraction of decreasing dates in columns that are detected as dates by their content alone.
MOST_BACK: Final = 0.1
MONTHS: Final = 12
# Number of first rows whose steps are examined.
FIRST: Final = 100
MONTH_CODE: Final = r"M(0[1-9]|1[0-2])"
TIME_OF_DAY: Final = (
    r"^\s*(\d{1,2}\s?[hH]\s?\d{2}|\d{1,2}:\d{2}(:\d{2}([.,]\d+|:\d{3})?)?(\s?[AaPp](\.?\s?[Mm]\.?)?)?|"
    r"\d{2}\.\d{2}\.\d{2}|([01]\d|2[0-3])[0-5]\d ?(UTC|GMT|Z))\s*$"
)
# A time of day with dots, after a date with dots.
DOTTED_TIME: Final = r"\.\d+,? \d{1,2}(\.\d\d){1,2}$"
# Dates with two-digit years, which look like times of day.
SHORT_DATE: Final = r"(0[1-9]|[12]\d|3[01])\.(0[1-9]|1[0-2])\.\d{2}"


def is_calendar(columns: Mapping[str, Any]) -> bool:
    """Return whether the first columns of a file without a header are the year, month, day and hour of increasing
    times."""
    if list(columns)[:4] != list(UNNAMED):
        return False
    parts = [numeric_sample(columns[name]) for name in UNNAMED]
    ranges = ((1900, 2100), (1, 12), (1, 31), (0, 23))
    for part, (least, most) in zip(parts, ranges, strict=True):
        if part is None or not ((part >= least) & (part <= most) & (part % 1 == 0)).all():
            return False
    if len({len(part) for part in parts if part is not None}) > 1:
        return False
    moments = sum(part * 100 ** (3 - k) for k, part in enumerate(parts))  # type: ignore[operator]
    return bool((np.diff(moments) > 0).all())


def is_year_and_hour(columns: Mapping[str, Any]) -> bool:
    """Return whether the first columns of a file without a header are the year, the day of the year and the hour of
    increasing times."""
    if list(columns)[:3] != list(UNNAMED[:3]):
        return False
    whole = [numeric_sample(columns[name]) for name in UNNAMED[:3]]
    first = [numeric_sample(columns[name].slice(0, FIRST)) for name in UNNAMED[:3]]
    ranges = ((1900, 2100), (1, 366), (0, 23))
    for part, (least, most) in zip((*whole, *first), ranges * 2, strict=True):
        if part is None or not ((part >= least) & (part <= most) & (part % 1 == 0)).all():
            return False
    rises = all(bool((np.diff(_hours(parts)) > 0).all()) for parts in (whole, first))
    is_hourly = len(np.unique(first[2])) > 2 and len(np.unique(first[1])) > 1  # type: ignore[arg-type]
    return rises and is_hourly and bool(np.median(np.diff(_hours(first))) < 24)


def _hours(parts: Sequence[np.ndarray | None]) -> np.ndarray:
    year, day, hour = (part for part in parts if part is not None)
    return np.asarray(24 * (366 * year + day) + hour)


def are_months(parts: Sequence[np.ndarray | None], rows: int) -> bool:
    """Return whether two columns contain the years and the months of consecutive months."""
    year, month = parts
    if year is None or month is None or not MONTHS <= len(year) == len(month) == rows:
        return False
    is_in_range = (year >= 1500) & (year <= 2100) & (month >= 1) & (month <= MONTHS)
    return bool(is_in_range.all() and (np.diff(MONTHS * year + month) == 1).all())


def days_of(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Return a number for each row that increases with its date, given the columns of the year, month and day. Return
    None if the columns are not such dates, or more than MOST_BACK of the dates decrease."""
    year, month, day = parts
    if year is None or month is None or day is None or not len(year) == len(month) == len(day) > 1:
        return None
    for part, least, most in ((year, 1800, 2100), (month, 1, MONTHS), (day, 1, 31)):
        if not ((part >= least) & (part <= most) & (part % 1 == 0)).all():
            return None
    moments = np.asarray((year - 1970) * 372 + (month - 1) * 31 + day - 1)
    is_calendar = len(np.unique(day)) > 1 and (np.diff(moments) < 0).mean() <= MOST_BACK
    return moments if is_calendar else None


def are_hours(hour: np.ndarray | None, rows: int) -> bool:
    """Return whether a column contains an hour of the day in each row, and at least three different hours."""
    if hour is None or len(hour) != rows or len(np.unique(hour)) < 3:
        return False
    return bool(((hour >= 0) & (hour <= 24) & (hour % 1 == 0)).all())


def compact_pair(columns: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first adjacent columns whose numbers are dates and times of day, such as 20240131 and 93000, that
    increase together. Return None if there are no such columns."""
    for date, clock in itertools.pairwise(columns):
        days, times = numeric_sample(columns[date]), numeric_sample(columns[clock])
        if days is None or times is None or not len(days) == len(times) > 2 or not are_dates(days):
            continue
        moments = days * 10**6 + times * (1 if times.max() > 2400 else 100)
        # Smaller numbers may be the hours or other parts of a day.
        if are_times_of_day(times) and times.max() >= 100 and (np.diff(moments) >= 0).all():
            return date, clock
    return None


def compact_hours(names: Sequence[str], columns: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns whose numbers are times of day without separators, such as 930."""
    numbers = {name: numeric_sample(columns[name]) for name in names}
    return [name for name, found in numbers.items()
            if found is not None and are_times_of_day(found) and found.max() >= 100]  # fmt: skip


def are_merged(part: Any, last: Any) -> bool:
    """Return whether most cells of a part of dates are empty, as in merged cells of a spreadsheet.

    Args:
        part: Column with a part of the dates, such as the year.
        last: Column with the finest part of the dates, which must not have empty cells.
    """
    return bool(part.null_count and 2 * part.null_count >= len(part) and not last.null_count and part[0].is_valid)


def padded(cells: Any) -> Any:
    """Return times of day that are integers, padded with zeros to four or six digits. Other cells are returned
    unchanged."""
    import pyarrow.compute as pc

    if not pc.all(pc.match_substring_regex(cells, r"^\d{1,6}$")).as_py():
        return cells
    width = 4 if pc.max(pc.utf8_length(cells)).as_py() <= 4 else 6
    return pc.utf8_lpad(cells, width, padding="0")


def half_hours(numbers: Any) -> Any:
    """Convert the half-hours of a day, which are counted from 1, to the times at which they begin, such as 00:30."""
    import pyarrow as pa

    texts = [None if n is None else f"{(n - 1) // 2:02d}:{30 * ((n - 1) % 2):02d}" for n in numbers.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def months_of(column: Any) -> dict[str, int]:
    """Return the month of each distinct cell of a column. The result is empty unless all cells are month names in one
    language, or codes such as M01."""
    import pyarrow as pa

    # The first cell suffices to reject columns of numbers, which are most.
    is_text = pa.types.is_string(column.type) and not starts_with_number(column)
    cells = sample(column).unique().to_pylist() if is_text else []
    if cells and all(re.fullmatch(MONTH_CODE, cell) for cell in cells):
        return {cell: int(cell[1:]) for cell in cells}
    for language in LANGUAGES if cells else ():
        numbers = {name: k for k, month in enumerate(names(language), start=1) for name in month}
        found = {cell: numbers.get(cell.strip(". ").lower(), 0) for cell in cells}
        if all(found.values()):
            return found
    return {}


def month_numbers(column: Any) -> Any:
    """Convert month names to numbers. Other columns are not changed."""
    import pyarrow as pa

    months = months_of(column)
    if not months:
        return column
    texts = (str(cell or "").strip() for cell in column.to_pylist())
    return pa.chunked_array([pa.array([str(months[text]) if text in months else None for text in texts], pa.string())])


def write_month(number: int, column: Any) -> str:
    """Return the name of a month as written in the column. If the month does not occur in it, return the number."""
    return next((cell for cell, month in months_of(column).items() if month == number), str(number))


def is_time_of_day(column: Any) -> bool:
    """Return whether all sampled cells are times of day."""
    import pyarrow as pa

    is_text = pa.types.is_string(column.type) and not starts_with_number(column)
    cells = sample(column).to_pylist() if is_text else []
    are_times = bool(cells) and all(re.match(TIME_OF_DAY, cell) for cell in cells)
    return are_times and not all(re.fullmatch(SHORT_DATE, cell) for cell in cells)


def has_time_of_day(column: Any) -> bool:
    """Return whether the sampled cells of a column of dates also contain times of day."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return True
    return not pa.types.is_date(column.type) and any(
        (":" in cell and not re.fullmatch(r"\d\d:\d\d:\d{4}", cell)) or re.search(DOTTED_TIME, cell)
        for cell in sample(column).to_pylist()
    )
