"""Convert numbers of units since a date, such as modified Julian days, to times. The unit and the date are found in a
name, a text or an option."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import numpy as np

from rfa.data.units import TIMES

EXCEL, MATLAB = "days of Excel", "days of MATLAB"
JULIAN, MODIFIED = "Julian days", "modified Julian days"
# Origins in days since 1970. The origin of Excel is 1899-12-30, and that of MATLAB is year 0.
ORIGINS: Final = {EXCEL: -25_569, MATLAB: -719_529, JULIAN: -2_440_587.5, MODIFIED: -40_587}
DAY: Final = 86400.0
YEAR: Final = 365.2425 * DAY
# Rounding error of a day with five decimals, in seconds.
FIVE_DIGITS: Final = 0.45
DECIMAL_YEARS: Final = "decimal years"
# Abbreviations in names and texts. BTJD and BKJD are the Julian days of TESS and Kepler, which have their own origins.
WORDS: Final = {
    "MJD": MODIFIED, "JD": JULIAN, "BJD": JULIAN, "HJD": JULIAN, "BTJD": "days since 2014-12-08 12:00",
    "BKJD": "days since 2009-01-01 12:00", "Excel": EXCEL, "MATLAB": MATLAB,
}  # fmt: skip
# Numeric formats other than seconds that error messages suggest, as written in `--time-format`.
FORMS: Final = {
    **{word: form for word, form in WORDS.items() if not word.startswith(("B", "H"))},
    **{form: form for form in ("days since 1970-01-01", "days since 1900-01-01", "hours since 1900-01-01",
                               "hours since 1970-01-01", "minutes since 1970-01-01")},
}  # fmt: skip
# Days since 1970 from 1980 to 2040, and decimal years.
DATED: Final = (3652.0, 25_567.0)
YEARS: Final = (1900.0, 2100.0)
_LOWER: Final = {word.lower(): form for word, form in WORDS.items()}
_MONTHS: Final = {
    name: k
    for k, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], start=1
    )
}
_UNITS: Final = {"nanosecond": 1e-9, "microsecond": 1e-6, "millisecond": 1e-3, **TIMES}
_SINCE: Final = re.compile(
    r"\b([A-Za-zµ]+?)s? (?:since|after) (?:(\d{4})(?:[-/](\d{1,2})[-/](\d{1,2}))?|(\d{1,2}) ([A-Za-z]{3})[a-z]*,? "
    r"(\d{4})|([A-Za-z]{3})[a-z]* (\d{1,2}),? (\d{4})|(?:the )?(?:unix )?(epoch))(?:[T ](\d{2}:\d{2}(?::\d{2})?))?",
    re.IGNORECASE,
)
_JULIAN: Final = re.compile(
    r"(?i:(modified )?julian da(?:y|te)s?(?: numbers?)?)|\b([BH]?JD|MJD|BTJD|BKJD)\b(?! *[-\u2013] *\d)"
)
_OFFSET: Final = re.compile(r"\b[BH]?JD *[-\u2013] *(24\d{5}(?:\.\d+)?)")


@lru_cache(maxsize=1024)
def form_in(text: str) -> str | None:
    """Return the numeric time format that a text names, such as "days since 1900-01-01". Return None if the text names
    none or several."""
    found = {_form_since(match) for match in _SINCE.finditer(text)} - {None}
    for match in _OFFSET.finditer(text):
        moment = datetime.fromtimestamp((float(match[1]) + ORIGINS[JULIAN]) * DAY, UTC)
        found.add(f"days since {moment:%Y-%m-%d %H:%M}")
    if not found:
        for match in _JULIAN.finditer(text):
            found.add(WORDS[match[2]] if match[2] else MODIFIED if match[1] else JULIAN)
    return found.pop() if len(found) == 1 else None


def _form_since(match: re.Match[str]) -> str | None:
    unit = match[1].lower() if match[1].lower() in _UNITS else match[1]
    size = _UNITS.get(unit, _UNITS.get(f"{unit}s", 0.0))
    if not size:
        return None
    year, month, day = match[2], match[3] or 1, match[4] or 1
    if match[5] or match[8]:
        name = (match[6] or match[8]).lower()
        if name not in _MONTHS:
            return None
        year, month, day = match[7] or match[10], _MONTHS[name], match[5] or match[9]
    elif match[11]:
        year = "1970"
    clock = f" {match[12]}" if match[12] else ""
    plural = unit if unit.endswith("s") or len(unit) < 3 else f"{unit}s"
    return f"{plural} since {year}-{int(month):02d}-{int(day):02d}{clock}"


def parse_form(text: str) -> str | None:
    """Return the numeric time format in `--time-format`, which is MJD, JD, Excel, MATLAB, a unit, or a unit since a
    date. Return None for other text."""
    found = _LOWER.get(text.strip().lower())
    if found or text in (*ORIGINS, DECIMAL_YEARS):
        return found or text
    if text in TIMES:
        return text
    match = _SINCE.fullmatch(text.strip())
    return _form_since(match) if match else None


@lru_cache(maxsize=1024)
def origin_and_unit(form: str) -> tuple[float, float] | None:
    """Return the origin of a numeric time format in seconds since 1970, and its unit in seconds. Return None for other
    formats."""
    if form == DECIMAL_YEARS:
        return -1970 * YEAR, YEAR
    if form in ORIGINS:
        return ORIGINS[form] * DAY, DAY
    unit, since, moment = form.partition(" since ")
    if not since:
        return None
    try:
        origin = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    except ValueError:
        return None
    return origin.timestamp(), _UNITS.get(unit) or _UNITS[unit.removesuffix("s")]


def to_seconds(numbers: np.ndarray, form: str) -> np.ndarray:
    """Convert numbers to seconds since 1970. Days are rounded to the millisecond, or to the minute if all are close to
    a full minute."""
    if form == DECIMAL_YEARS:
        return _year_seconds(numbers)
    origin, unit = origin_and_unit(form) or (0.0, 1.0)
    seconds = numbers.astype(np.float64) * unit + origin
    if unit < DAY:
        return np.asarray(seconds)
    seconds = np.rint(seconds * 1e3) / 1e3
    minutes = 60 * np.rint(seconds / 60)
    return np.asarray(minutes if (np.abs(seconds - minutes) < FIVE_DIGITS).all() else seconds, np.float64)


def to_numbers(seconds: np.ndarray, form: str) -> np.ndarray:
    """Convert seconds since 1970 to numbers. This is the inverse of `to_seconds`."""
    if form == DECIMAL_YEARS:
        years = seconds.astype("datetime64[s]").astype("datetime64[Y]")
        begin, end = (each.astype("datetime64[s]").astype(np.float64) for each in (years, years + 1))
        return np.asarray(years.astype(np.int64) + 1970 + (seconds - begin) / (end - begin))
    origin, unit = origin_and_unit(form) or (0.0, 1.0)
    return np.asarray((seconds - origin) / unit, np.float64)


def _year_seconds(numbers: np.ndarray) -> np.ndarray:
    """Convert decimal years to seconds since 1970, rounded to the hour."""
    whole = np.floor(numbers)
    years = (whole.astype(np.int64) - 1970).astype("datetime64[Y]")
    begin, end = (each.astype("datetime64[s]").astype(np.float64) for each in (years, years + 1))
    return np.asarray(begin + 3600 * np.rint((end - begin) * (numbers - whole) / 3600))


def other_forms(numbers: np.ndarray) -> list[str]:
    """Return the numeric formats, as written in `--time-format`, in which the numbers would be dates from 1980 to
    2040."""
    least, most = float(numbers.min()), float(numbers.max())
    if most - least >= least:
        return []
    ends = {word: to_seconds(np.array([least, most]), form) / DAY for word, form in FORMS.items()}
    found = [word for word, (begin, end) in ends.items() if DATED[0] <= begin and end <= DATED[1]]
    are_years = YEARS[0] <= least and most <= YEARS[1] and bool((numbers % 1).any())
    return [DECIMAL_YEARS] if are_years else found
