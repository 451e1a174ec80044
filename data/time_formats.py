"""Detect time formats of `datetime.strptime` from cells, and parse a column in one format quickly.

Formats may contain %q for a quarter from 1 to 4. They may begin with the language of their month names, as in
`de:%d %B %Y`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

from rfa.data.month_names import LANGUAGES, from_english, languages_of, names, text_to_english, to_english

DATE_FORMATS: Final = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d", "%Y-%m", "%Y/%m", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y",
    "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y",
    "%b %d, %Y", "%b %d %Y", "%d %B %Y", "%B %d, %Y", "%d/%b/%Y", "%a, %d %b %Y", "%a %b %d %Y",
    "%b-%y", "%b %y", "%b-%Y", "%b %Y", "%b/%Y", "%B %Y", "%B-%Y", "%Y-%b", "%Y %b", "%Y %B", "%b'%y", "%Y-%b-%d",
    "%d %b %y", "%d/%b/%y", "%d%b%Y", "%d%b%y", "%y%b%d", "%d:%m:%Y", "%m/%Y", "%m.%Y",
    "%Y.%m.%d.", "%Y. %m. %d.", "%Y. %m. %d", "%Y-%j",
    "%YM%m", "%d. %m. %Y", "%Y年%m月%d日", "%Y年%m月", "%Y년 %m월 %d일",
)  # fmt: skip
# Formats of C and the command `date`, which have the year at the end.
YEAR_LAST: Final = tuple(f"%a %b %d %H:%M:%S{zone} %Y" for zone in ("", " UTC", " GMT", " GMT%z"))
# Formats of Db2 and Oracle, and dates with an hour.
OTHER_JOINTS: Final = (
    "%Y-%m-%d-%H.%M.%S.%f", "%Y-%m-%d-%H.%M.%S", "%d-%b-%y %I.%M.%S.%f %p", "%d-%b-%y %H.%M.%S.%f",
    "%m/%d/%Y %H", "%d/%m/%Y %H", "%Y-%m-%d %H", "%d.%m.%Y %H", "%Y/%m/%d %H",
)  # fmt: skip
# Formats of dates that may have a time of day after them.
DAY_FORMATS: Final = tuple(form for form in DATE_FORMATS if "%d" in form or "%j" in form)
# Halves of the day in Spanish, such as "a. m.".
HALF: Final = "[ \u00a0\u202f]?([aApP])[.][ \u00a0\u202f]?[mM][.]?$"
# Halves of the day before the time, as in East Asian languages.
MORNING: Final = r"(?:上午|오전|午前)\s*(\d{1,2}:\d{2}(?::\d{2})?)"
AFTERNOON: Final = r"(?:下午|오후|午後)\s*(\d{1,2}:\d{2}(?::\d{2})?)"
# The name of a weekday before or after a numeric date.
WEEKDAY: Final = r"^\pL{2,10}\.?,? +(\d{1,4}[./-]\d{1,2}[./-]\d{1,4}.*)$"
WEEKDAY_BEHIND: Final = r"^(\d{1,4}[./-]\d{1,2}[./-]\d{1,4}),? ?\(?\pL{1,3}\)?( \d{1,2}:.*)?$"
# Unambiguous abbreviations of time zones with or without daylight saving time, which follow a time of day, and their
# offsets.
ABBREVIATED: Final = {
    "EST": "-0500", "EDT": "-0400", "CDT": "-0500", "MST": "-0700", "MDT": "-0600", "PST": "-0800", "PDT": "-0700",
    "CET": "+0100", "CEST": "+0200", "MEZ": "+0100", "MESZ": "+0200", "EET": "+0200", "EEST": "+0300",
}  # fmt: skip
# An offset in brackets behind a time of day.
BRACKETED: Final = r"(:\d\d) \(([+-]\d\d):?(?:00)?\)$"
# Replacements for the text that a pattern matches.
PLAIN_TEXT: Final = (
    (r"[*†]+$", ""),
    ("[\u00a0\u2007\u202f]", " "), (r"(:\d\d:\d\d):(\d{3})$", r"\1.\2"),
    (r"^(\d{4})\.(\d\d)\.(\d\d)D(\d\d:)", r"\1-\2-\3 \4"),
    (r"^(\d\d:\d\d:\d\d(?:\.\d+)?)[+-]\d\d:\d\d$", r"\1"),
    (r"(:\d\d ?[AaPp][Mm]) (?:GMT|UTC)$", r"\1 +0000"), (BRACKETED, r"\1\2:00"),
    *((rf"(:\d\d(?:\.\d+)?(?: ?[AaPp][Mm])?) {name}$", rf"\1 {offset}") for name, offset in ABBREVIATED.items()),
    (HALF, r" \1m"), (MORNING, r"\1 AM"), (AFTERNOON, r"\1 PM"), (WEEKDAY, r"\1"), (WEEKDAY_BEHIND, r"\1\2"),
    (r"([:.]\d{2}) ?Uhr$", r"\1"), (r"^/Date\((-?\d+)(?:[+-]\d{4})?\)/$", r"\1"),
    (r"^(\d{4}-\d\d-\d\d)_(\d\d:)", r"\1 \2"), (r"(\.\d{6})\d{1,3}( [AaPp][Mm])$", r"\1\2"),
)  # fmt: skip
# Directives for quarters and weeks. Weeks begin on Mondays.
PERIOD_FORMATS: Final = (
    "%YQ%q", "%Y-Q%q", "%Y Q%q", "%Y/Q%q", "%Y.Q%q", "%Y:Q%q", "Q%q %Y", "Q%q-%Y", "Q%q/%Y", "Q%q %y", "Q%q-%y",
    "Q%q.%Y", "Q%q'%y", "%q. Quartal %Y", "%qQ%Y", "%qQ%y", "%YT%q", "%Y-T%q", "%Y T%q", "T%q %Y", "T%q-%Y", "T%q/%Y",
    "%qT %Y", "%YK%q", "%YKV%q", "%Y-K%q", "K%q %Y",
    "%G-W%V", "%GW%V", "%G W%V", "%G-W%V-%u", "%G/W%V", "W%V %G", "W%V-%G", "W%V/%G", "KW%V %G", "KW %V %G", "KW%V/%G",
    "%V. KW %G", "%G KW%V", "%G-KW%V", "%G KW %V", "S%V %G", "%G-S%V", "%GS%V",
)  # fmt: skip
QUARTER: Final = "%q"
TIME_FORMATS: Final = (
    "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M:%S.%f %p", "%I:%M%p",
    "%H%M", "%H%M%S", "%H.%M.%S", "%Hh%M",
)  # fmt: skip
# Hours and minutes with a dot follow only dates with dots, and the minutes have two digits: 8.5 may be 08:30.
DOTTED: Final = "%H.%M"
DOTTED_END: Final = re.compile(r"\.\d\d$")
JOINTS: Final = (" ", "T", ":", ", ", " @ ")
ZONES: Final = ("", "%z", " %z", " GMT%z")
# The text that each date directive may match.
LOOKS: Final = {
    "Y": r"\d{4}", "y": r"\d{2}", "m": r"\d{1,2}", "d": r"\d{1,2}", "j": r"\d{3}", "b": r"\pL+", "B": r"\pL+",
    "a": r"\pL+", "A": r"\pL+",
}  # fmt: skip
# The text that each directive may match, for Python's regular expressions. All other directives are one or two digits.
SHAPES: Final = {
    "Y": r"\d{4}", "G": r"\d{4}", "j": r"\d{3}", "f": r"\d{1,6}", "z": r".+",
    **dict.fromkeys("bBaAp", r"[^\W\d_]+"),
}  # fmt: skip
OF_DAY: Final = re.compile("%[HIMSpfzZ]")
MIDNIGHT: Final = datetime(1900, 1, 1)  # strptime's default for a format without a date
MICROSECOND: Final = timedelta(microseconds=1)


@lru_cache(maxsize=4096)
def candidate_formats(cell: str) -> tuple[str, ...]:
    """Return the formats that a cell may have. A format consists of one for the date and, if there is one, the time of
    day."""
    if cell.startswith("[") and cell.endswith("]"):  # as in the logs of web servers
        return tuple(f"[{made}]" for made in candidate_formats(cell[1:-1]))
    found = list(_fitting(cell, (*DATE_FORMATS, *PERIOD_FORMATS, *YEAR_LAST, *OTHER_JOINTS)))
    for joint in JOINTS:
        for at in (match.start() for match in re.finditer(joint, cell)):
            times = [f"{time}{zone}" for time, zone in itertools.product(TIME_FORMATS, ZONES)]
            dotted = [DOTTED] if DOTTED_END.search(cell) else []
            for date in _fitting(cell[:at], DAY_FORMATS):
                forms = times + dotted if "." in date else times
                found += [f"{date}{joint}{time}" for time in _fitting(cell[at + len(joint) :], forms)]
    return tuple(dict.fromkeys(found or _time_first(cell))) or _with_language(cell)


def _time_first(cell: str) -> list[str]:
    """Return the formats of a time of day before a date."""
    time, _, date = cell.partition(" ")
    dates = list(_fitting(date, DAY_FORMATS)) if ":" in time else []
    return [f"{of_day} {made}" for made in dates for of_day in _fitting(time, TIME_FORMATS)]


def _with_language(cell: str) -> tuple[str, ...]:
    """Return the formats of a cell whose month name is in a language other than English, or in an unusual English
    form."""
    found: list[str] = []
    for language in languages_of(cell):
        english = text_to_english(cell, language)
        if english != cell:
            is_full = any(month[0] in cell.lower() for month in names(language) if len(month) > 1)
            formats = [made.replace("%b", "%B") if is_full else made for made in candidate_formats(english)]
            found += [f"{language}:{made}" for made in formats]
    return tuple(dict.fromkeys(found))


def split_language(time_format: str) -> tuple[str, str]:
    """Split a format with a language prefix, such as "de:%d. %B", into language and format. Without a prefix, the
    language is ""."""
    language, colon, rest = time_format.partition(":")
    return (language, rest) if colon and language in LANGUAGES else ("", time_format)


def parse_moment(text: str, time_format: str) -> datetime:
    """Return the time in a text. The time of a quarter or week is its first day.

    Raises:
        ValueError: If the text is not in the format.
    """
    if QUARTER in time_format:
        pattern = re.escape(time_format).replace("%Y", r"(?P<Y>\d{4})").replace("%y", r"(?P<y>\d{2})")
        found = re.fullmatch(pattern.replace(QUARTER, "(?P<q>[1-4])"), text, re.IGNORECASE)
        if found is None:
            raise ValueError(f"{text!r} does not match {time_format}")
        parts = found.groupdict()
        year = parts.get("Y") or datetime.strptime(parts["y"], "%y").strftime("%Y")
        return datetime(int(year), 3 * int(parts["q"]) - 2, 1)
    if "%V" in time_format and "%u" not in time_format:
        return datetime.strptime(f"{text} 1", f"{time_format} %u")
    return datetime.strptime(text, time_format)


def write_moment(moment: datetime, time_format: str) -> str:
    """Return a time as text in a format."""
    language, plain = split_language(time_format)
    text = moment.strftime(plain.replace(QUARTER, str((moment.month + 2) // 3)))
    return from_english(text, language) if language else text


def _fitting(text: str, formats: Iterable[str]) -> Iterator[str]:
    for made in formats:
        if _shape(made).fullmatch(text) is None:  # much faster than strptime
            continue
        try:
            year = parse_moment(text, made).year
        except ValueError:
            continue
        if 1900 <= year < 2200:  # a time of day alone has the year 1900
            yield made


@cache
def _shape(time_format: str) -> re.Pattern[str]:
    """Return a pattern that matches text in a format."""
    found, two = "", r"\d{2}" if re.search("%[HMS]%[HMS]", time_format) else r"\d{1,2}"
    for spaces, directive, literal in re.findall(r"(\s+)|%(.)|([^%\s]+)", time_format):
        found += (
            r"\s+"
            if spaces
            else SHAPES.get(directive, two if directive in "HMS" else r"\d{1,2}")
            if directive
            else re.escape(literal)
        )
    return re.compile(found, re.IGNORECASE)


def parse(cells: Any, time_format: str, name: str, rows: np.ndarray) -> Any:
    """Return the timestamps of text in one format. They are in UTC if the format states a time zone.

    Args:
        cells: Chunked text.
        time_format: Format of the cells, which may begin with a language.
        name: Name of the column, for messages.
        rows: Row numbers in the file.

    Raises:
        ValueError: If a cell is not in the format. The message names its row.
    """
    language, time_format = split_language(time_format)
    if language:
        cells, time_format = to_english(cells, language), time_format.replace("%B", "%b")
    found = _parse_parts(cells, time_format)
    return _parse_cells(cells, time_format, name, rows) if found is None else found


def _parse_parts(cells: Any, time_format: str) -> Any:
    """Parse each distinct date and time of day once.

    Return None if the format has no date before its time, or a cell does not match.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    at = OF_DAY.search(time_format)
    look = None if at is None else _pattern(time_format[: at.start()])
    if at is None or look is None or "%Y" in time_format[at.start() :]:
        return None
    parts = pc.extract_regex(cells, f"^(?P<date>{look})(?P<time>.*)$").combine_chunks()
    if parts.null_count:
        return None
    dates, times = (parts.field(name).dictionary_encode() for name in ("date", "time"))
    try:
        days = [datetime.strptime(text, time_format[: at.start()]) - MIDNIGHT for text in dates.dictionary.to_pylist()]
        moments = [datetime.strptime(text, time_format[at.start() :]) for text in times.dictionary.to_pylist()]
    except ValueError:
        return None
    # Local time minus its offset is UTC.
    in_day = [moment.replace(tzinfo=None) - MIDNIGHT - (moment.utcoffset() or timedelta()) for moment in moments]
    counts = _counts(days)[dates.indices.to_numpy()] + _counts(in_day)[times.indices.to_numpy()]
    is_zoned = moments[0].tzinfo is not None
    origin = (MIDNIGHT - datetime(1970, 1, 1)) // MICROSECOND
    return pa.array(counts + origin).cast(pa.timestamp("us", "UTC" if is_zoned else None))


def _pattern(date_format: str) -> str | None:
    """Return a regular expression for a date format, or None for an unsupported directive."""
    found = ""
    for literal, directive in re.findall(r"([^%\s]+|\s+)|%(.)", date_format):
        if directive and directive not in LOOKS:
            return None
        found += LOOKS[directive] if directive else r"\s+" if literal.isspace() else re.escape(literal)
    return found or None


def _counts(spans: list[timedelta]) -> np.ndarray:
    return np.array([span // MICROSECOND for span in spans], np.int64)


def _parse_cells(cells: Any, time_format: str, name: str, rows: np.ndarray) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = cells.combine_chunks().dictionary_encode()
    found = []
    for k, cell in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(parse_moment(cell, time_format))
        except ValueError:
            row = rows[pc.index(encoded.indices, pa.scalar(k, encoded.indices.type)).as_py()]
            raise ValueError(f"row {row}, column {name!r}: {cell!r} does not match {time_format}") from None
    is_zoned = found[0].tzinfo is not None
    return pa.array(found, pa.timestamp("us", "UTC" if is_zoned else None)).take(encoded.indices)
