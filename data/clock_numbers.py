"""Recognise times that are written as numbers, which are units since 1970, Excel days, years, or dates without
separators."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from rfa.data.epochs import DAY, DECIMAL_YEARS, EXCEL, MATLAB, ORIGINS, WORDS, form_in, to_seconds
from rfa.data.units import TIMES

# Smallest number that is read as a time since 1970 in a unit, number of units per second, and name of the unit. The
# smallest number is a time in 1973.
EPOCHS: Final = ((1e17, 1e9, "nanoseconds"), (1e14, 1e6, "microseconds"), (1e11, 1e3, "milliseconds"))
EPOCH_SECONDS: Final = 1e8
# Range of numbers that are read as units of 100 ns, from 2000 to 2100, the time of 1970 in seconds since their origin,
# and their name. As nanoseconds since 1970, all these numbers would be in the same year.
TICKS: Final = (
    (1.259e17, 1.575e17, 11_644_473_600, "units of 100 ns since 1601, as in Windows"),
    (6.308e17, 6.624e17, 62_135_596_800, "units of 100 ns since the year 1, as in .NET"),
)  # fmt: skip
PER_TICK: Final = 1e7
# Range of numbers that are read as seconds since 1970, from 2000 to 2040, if the name of the column does not indicate
# times.
EARLIEST_UNIX, LATEST_UNIX = 946_684_800.0, 2_208_988_800.0
# Words in the names of columns of days that are counted from another origin than those of Excel and Matlab.
JULIAN_WORDS: Final = {word.lower(): form for word, form in WORDS.items() if form not in (EXCEL, MATLAB)}
# Range of dates as days since 1970, from 1940 to 2100. Range of numbers that may be days since 1970 or Excel days.
DATED_DAYS: Final = (-10_958.0, 47_482.0)
EARLIEST_DAY, LATEST_1970 = -98_615.0, 25_567.0
YEAR_WORDS: Final = frozenset((
    "year", "yr", "years", "yy", "yyyy", "jahr", "année", "annee",
    "an", "anno", "anyo", "año", "ano", "jaar", "rok", "år", "aar", "vuosi",
))  # fmt: skip
# Formats of dates without separators whose year is at the end, and names of columns in which the day is first.
DAY_FIRST: Final = "%d%m%Y"
MONTH_FIRST: Final = "%m%d%Y"
DAY_FIRST_WORDS: Final = ("jjmmaaaa", "ttmmjjjj", "ddmmyyyy", "ddmmaaaa", "ggmmaaaa")
DATE_WORDS: Final = frozenset((
    "date", "datum", "day", "tag", "fecha", "dia", "día", "data", "jour", "giorno", "dag", "dato", "month", "monat",
    "mois", "mes", "mese", "mês", "maand", "period", "periode", "yearmonth", "yyyymm", "yyyymmdd", "ds", "datetime",
    "datenum", "serial", "matlab",
    "aaaammjj", "aaaammjjhh", "jjjjmmtt", "aaaammdd", "aaaamm",
    *DAY_FIRST_WORDS,
))  # fmt: skip
# Names of columns with the hour of a day.
HOUR_WORDS: Final = frozenset((
    "hour", "hr", "hh", "hour of day", "hour_of_day", "he", "hour ending", "hour_ending", "stunde", "heure", "hora",
    "ora", "uur", "timme",
))  # fmt: skip
# Words for elapsed time.
RUNNING_WORDS: Final = frozenset(("t", "time", "elapsed", "zeit", "temps", "tiempo", "tempo", "tijd", "czas", "tid"))
# Units of time at the end of a name, in words and as in `TimeInSeconds`.
UNITS: Final = {"milliseconds": "ms", "millisecond": "ms", "microseconds": "us", "microsecond": "us",
                "nanoseconds": "ns", "seconds": "s", "minutes": "min", "hours": "h", "days": "d"}  # fmt: skip
UNIT_WORD: Final = re.compile(rf"(?i)\b(?:in ?)?({'|'.join(UNITS)})\b")
UNIT_IN_NAME: Final = re.compile(r"([a-z])(?=(?:In)?(?:Milli|Micro|Nano)?[Ss]econds$)")
# Names of columns that may contain years.
PERIOD_WORDS: Final = frozenset(("date", "datum", "fecha", "data", "period", "periode"))
# Minimum number of dates without separators in a column whose name is not that of times, number of cells that are
# tested first, and formats of integers with their smallest number, largest number, and largest last two digits.
LEAST_DAYS: Final = 5
FIRST: Final = 100
DECIMAL_COMMA: Final = r"^\s*[+-]?\d+,\d+\s*$"
COMPACT: Final = (("%Y%m%d", 18_000_101, 21_001_231, 31), ("%Y%m", 180_001, 210_012, 12))
# Formats of dates without separators that are recognised in a column with any name, and the factor by which the day is
# multiplied.
LONG_COMPACT: Final = (("%Y%m%d", 1), ("%Y%m%d%H", 10**2), ("%Y%m%d%H%M", 10**4), ("%Y%m%d%H%M%S", 10**6))


def with_points(column: Any) -> Any:
    """Return a text column of numbers with decimal points instead of decimal commas. Other columns are unchanged."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type) or not len(column):
        return column
    parts = (column.slice(0, FIRST), column)
    if not all(pc.all(pc.match_substring_regex(part, DECIMAL_COMMA)).as_py() for part in parts):
        return column
    return pc.replace_substring(column, ",", ".")


def time_unit(name: str) -> tuple[str, float] | None:
    """Return the unit of time at the end of a column name, such as `Time (ms)`, `time/s`, `t_min` or `TimeUS`, and its
    length in seconds. Return None if the name has no unit."""
    name = UNIT_IN_NAME.sub(r"\1 ", name.strip())
    name = UNIT_WORD.sub(lambda word: UNITS[word[1].lower()], name)
    joined = re.fullmatch(r"(.*[a-z])(US|Us|MS|Ms|Sec)", name.strip())
    name = f"{joined[1]}_{joined[2].lower()}" if joined else name
    found = re.search(rf"[(\[/_ ]\s*({'|'.join(map(re.escape, TIMES))})\s*[)\]]?$", name.strip())
    return (found[1], TIMES[found[1]]) if found and words_of(name[: found.start()]) & {*RUNNING_WORDS, "x"} else None


def words_of(name: str) -> set[str]:
    """Return the words in the name of a column, in lower case."""
    return set(re.findall(r"[^\W\d_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()))


def calendar_form(numbers: np.ndarray, name: str) -> str | None:
    """Return the format of numbers that are years, Excel days, or dates without separators. Return None for other
    numbers."""
    words = words_of(name)
    is_whole = bool((numbers == np.rint(numbers)).all())
    for marks, least_year, most_year in ((YEAR_WORDS, 1500, 2200), (PERIOD_WORDS, 1900, 2100)):
        if words & marks and is_whole and numbers.min() >= least_year and numbers.max() <= most_year:
            return "%Y"
    if not is_whole and (words & YEAR_WORDS or words & {"decimal"}) and 1500 <= numbers.min() <= numbers.max() <= 2200:
        return DECIMAL_YEARS
    low, high = DATED_DAYS
    begin, end = float(numbers.min()), float(numbers.max())
    named = form_in(name) or next((form for word, form in JULIAN_WORDS.items() if word in words), None)
    if named is not None:
        ends = to_seconds(np.array([begin, end]), named) / DAY
        return named if ends[0] >= EARLIEST_DAY and ends[1] <= high else None
    if not words & (DATE_WORDS | YEAR_WORDS):
        return _long_compact(numbers) if is_whole else None
    if is_whole and words & {*DAY_FIRST_WORDS} and _are_dates(_year_first(numbers), 1):
        return DAY_FIRST
    if is_whole and (long := _long_compact(numbers) or _year_last(numbers)) is not None:
        return long
    for form, least, most, last in COMPACT if is_whole else ():
        parts = numbers % 100
        if least <= numbers.min() and numbers.max() <= most and parts.min() >= 1 and parts.max() <= last:
            return form
    if not words & DATE_WORDS or begin <= LATEST_1970:
        return None
    return next(
        (form for form in (EXCEL, MATLAB) if low <= begin + ORIGINS[form] and end + ORIGINS[form] <= high), None
    )


def _year_first(numbers: np.ndarray) -> np.ndarray:
    """Convert numbers such as 31122024 to numbers such as 20241231."""
    days, rest = np.divmod(numbers, 10**6)
    months, years = np.divmod(rest, 10**4)
    return np.asarray(10**4 * years + 100 * months + days)


def _year_last(numbers: np.ndarray) -> str | None:
    """Return the format of integers such as 31122024 or 12312024. Return None if the integers match both formats or
    neither."""
    if len(numbers) < LEAST_DAYS:
        return None
    dates = _year_first(numbers)
    fits = {DAY_FIRST: dates, MONTH_FIRST: dates - dates % 10**4 + 100 * (dates % 100) + dates // 100 % 100}
    forms = [form for form, found in fits.items() if _are_dates(found, 1)]
    return forms[0] if len(forms) == 1 else None


def _long_compact(numbers: np.ndarray) -> str | None:
    """Return the format of integers such as 20240131 or 2024013123. Return None for other numbers."""
    if len(numbers) < LEAST_DAYS:
        return None
    # The first few numbers are tested first, because they are sufficient to reject most columns.
    parts = (numbers[:FIRST], numbers)
    return next((form for form, factor in LONG_COMPACT if all(_are_dates(part, factor) for part in parts)), None)


def is_hour_name(name: str) -> bool:
    """Return whether the name of a column means hour (see `HOUR_WORDS`)."""
    return name.strip().lower() in HOUR_WORDS


def first_hour(numbers: np.ndarray) -> int | None:
    """Return 0 for consecutive hours from 0 to 23, and 1 for consecutive hours from 1 to 24. Return None for other
    numbers."""
    is_whole = len(numbers) > 1 and bool((numbers == np.rint(numbers)).all())
    if not is_whole or numbers.min() < 0 or numbers.max() > 24 or ((np.diff(numbers) - 1) % 24).any():
        return None
    return 1 if numbers.max() == 24 else 0


def are_dates(numbers: np.ndarray) -> bool:
    """Return whether all numbers are days such as 20240131."""
    return bool((numbers % 1 == 0).all()) and _are_dates(numbers, 1)


def are_times_of_day(numbers: np.ndarray) -> bool:
    """Return whether all numbers are hours and minutes such as 930, or hours, minutes and seconds such as 93000."""
    if (numbers % 1).any() or numbers.min() < 0:
        return False
    if numbers.max() <= 2400:
        return bool((numbers % 100 < 60).all())
    return bool((numbers < 240_000).all() and (numbers % 100 < 60).all() and (numbers // 100 % 100 < 60).all())


def _are_dates(numbers: np.ndarray, factor: int) -> bool:
    """Return whether all numbers are days, multiplied by `factor`, plus hours, minutes and seconds."""
    days, clocks = np.divmod(numbers, factor)
    limits = [(days, 19_000_101, 21_001_231), (days % 100, 1, 31), (days // 100 % 100, 1, 12)]
    while factor > 1:
        factor //= 100
        limits.append((clocks // factor % 100, 0, 23 if len(limits) == 3 else 59))
    return all(bool(((part >= least) & (part <= most)).all()) for part, least, most in limits)


def unix_seconds(numbers: np.ndarray) -> tuple[np.ndarray, str, float, bool]:
    """Convert numbers to seconds. Return the seconds, a description, the units per second, and whether the times are
    dates."""
    size = float(np.median(np.abs(numbers.astype(np.float64))))
    for low, high, origin, name in TICKS:
        if low <= size <= high:
            return (numbers - numbers.dtype.type(origin * PER_TICK)) / PER_TICK, name, PER_TICK, True
    for least, per_second, unit in EPOCHS:
        if size >= least:
            whole, part = np.divmod(numbers, numbers.dtype.type(per_second))  # exact for integers
            seconds = whole.astype(np.float64) + part.astype(np.float64) / per_second
            return seconds, f"{unit} since 1970", per_second, True
    is_dated = size >= EPOCH_SECONDS
    note = "seconds since 1970" if is_dated else "numbers, read as seconds"
    return numbers.astype(np.float64), note, 1.0, is_dated


def check_finite(numbers: Any, name: str, rows: np.ndarray) -> None:
    """Check that times are finite.

    Raises:
        ValueError: If a time is not finite. The message names its row.
    """
    if not np.isfinite(numbers).all():
        raise ValueError(f"row {rows[int(np.argmin(np.isfinite(numbers)))]}, column {name!r}: the time is not finite")
