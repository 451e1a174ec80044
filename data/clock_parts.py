"""Find and join the columns of times that are split into several columns, such as date and time of day, date and hour,
or year and month, day, quarter or week."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rfa.data.calendar_columns import (
    UNNAMED,
    are_hours,
    are_merged,
    are_months,
    compact_hours,
    compact_pair,
    days_of,
    half_hours,
    has_time_of_day,
    is_calendar,
    is_time_of_day,
    is_year_and_hour,
    month_numbers,
    months_of,
    padded,
    write_month,
)  # fmt: skip
from rfa.data.clock_choice import date_columns, numeric_sample, sample
from rfa.data.clock_numbers import DAY_FIRST, HOUR_WORDS, MONTH_FIRST, YEAR_WORDS, calendar_form, words_of
from rfa.data.counted_pairs import GPS_WEEK, SECOND, find_pair, join_pair, split_pair
from rfa.data.time_formats import HALF
from rfa.data.zone_columns import is_local, unzoned, zone_cells, zone_minutes, zone_offsets

# Time zone after the name of a column, as in `Hour (PST)`, and time of day such as 0930 with a time zone.
ZONE_BEHIND: Final = re.compile(r" \((?:[A-Z]{1,3}[SD]?T|UTC|GMT)\)$")
COMPACT_UTC: Final = r"^([01]\d|2[0-3])([0-5]\d) ?(?:UTC|GMT|Z)$"
DECIMAL_DATE: Final = r"(decimal[ _]?(date|year)|(date|year)[ _]?decimal)"
# Formats of dates and times without separators in columns named date and time.
COMPACT_TIME: Final = r"([01]\d|2[0-3])[0-5]\d([0-5]\d)?"
COMPACT_FORMS: Final = ("%Y%m%d", DAY_FIRST, MONTH_FIRST)
COMPACT_DATE: Final = r"(19|20)\d{6}"
# Names of columns that may contain the year if another column contains month names.
PERIOD_NAMES: Final = ("zeit", "time", "period", "periode", "date", "datum")
# Number of the half-hour of a day, counted from 1, as in electricity markets.
HALF_HOUR: Final = "half_hour"
# Names and range of the numbers of each part.
NUMBERED: Final[dict[str, tuple[frozenset[str], int, int]]] = {
    "year": (YEAR_WORDS, 1500, 2200),
    "month": (
        frozenset(("month", "mon", "mm", "mo", "monat", "mois", "mes", "mês", "mese", "maand", "månad", "måned")),
        1, 12,
    ),
    "day": (frozenset(("day", "dd", "dy", "dom", "day_of_month", "tag", "jour", "día", "dia", "giorno", "dag")), 1, 31),
    "quarter": (frozenset(("quarter", "qtr", "quartal", "trimestre", "trimester", "kwartaal", "q")), 1, 4),
    "week": (
        frozenset((
            "week", "wk", "isoweek", "iso_week", "week_of_year", "woche", "kw", "semaine", "semana", "settimana",
        )), 1, 53,
    ),
    "day_of_year": (frozenset(("doy", "day_of_year", "yday", "julian_day", "jday", "dayofyear")), 1, 366),
    "hour": (HOUR_WORDS, 0, 24),
    "minute": (frozenset(("minute", "minuten", "minuto", "min", "mn")), 0, 59),
    HALF_HOUR: (frozenset(("settlement period", "settlement_period", "settlementperiod", "sp")), 1, 48),
    "millisecond": (frozenset(("millisecond", "milliseconds", "millitm", "millis", "msec", "ms")), 0, 999),
}  # fmt: skip
# Parts in addition to the year, format string that joins them, and format of the joined text. The first match is used.
AFTER_YEAR: Final = (
    (("month", "day", "hour", "minute"), "{}-{}-{} {}:{}", None),
    (("month", "day", "hour"), "{}-{}-{} {}:00", None),
    (("month", "day"), "{}-{}-{}", None),
    (("day_of_year", "hour", "minute"), "{}-{} {}:{}", "%Y-%j %H:%M"),
    (("day_of_year", "hour"), "{}-{} {}:00", "%Y-%j %H:%M"),
    (("day_of_year",), "{}-{}", "%Y-%j"),
    (("month",), "{}-{}", "%Y-%m"),
    (("quarter",), "{}Q{}", "%YQ%q"),
    (("week",), "{}-W{}", "%G-W%V"),
)
# Positions of the parts in joined text.
PLACES: Final = {
    "year": r"^(\d{4})", "month": r"^\d{4}-(\d{2})", "day": r"^\d{4}-\d{2}-(\d{2})", "quarter": r"Q(\d)$",
    "week": r"W(\d{2})$", "day_of_year": r"^\d{4}-(\d{3})", "hour": r" (\d{2}):", "minute": r":(\d{2})$",
    "millisecond": r"\.(\d{3})\d*$",
}  # fmt: skip
WIDTHS: Final = {"year": 4, "day_of_year": 3, "quarter": 1, "millisecond": 3}
ENDING: Final = "hour_ending"
JOINED: Final = "date"
# Minimum number of different dates in columns that are detected as dates by their content alone.
FEWEST_DAYS: Final = 5


@dataclass(frozen=True)
class ClockParts:
    """Columns that together contain the time of a row.

    Attributes:
        columns: Name of each column, by the part that it contains: a key of `NUMBERED`, "date", "clock" (time of day)
            or "hour_ending".
        join: Format string that joins the cells of a row.
        time_format: Format of the joined text. If None, it is detected from the text.
    """

    columns: Mapping[str, str]
    join: str
    time_format: str | None = None

    @property
    def note(self) -> str:
        """Description of the columns that are joined."""
        if "zone" in self.columns:
            return f"the UTC offsets of the times are read from column {self.columns['zone']!r}"
        named = " and ".join(repr(name) for name in self.columns.values())
        if SECOND in self.columns:
            kind = "GPS weeks, not corrected for leap seconds," if GPS_WEEK in self.columns else "modified Julian days"
            return f"{kind} and seconds are read from the columns {named}"
        ending = "; the hours 1 to 24 are read as 00:00 to 23:00" if ENDING in self.columns else ""
        return f"date and time of day are read from the columns {named}{ending}"

    def cells(self, columns: Mapping[str, Any]) -> Any:
        """Return the joined text of each row. It is null if a part is missing or not a number."""
        import pyarrow.compute as pc

        if SECOND in self.columns:
            return join_pair(next(iter(self.columns)), *(columns[name] for name in self.columns.values()))
        parts = [_part_text(kind, columns[name]) for kind, name in self.columns.items()]
        parts = [pc.fill_null_forward(part) if are_merged(part, parts[-1]) else part for part in parts]
        texts = re.split(r"\{\}", self.join)
        found = pc.binary_join_element_wise(parts[0], texts[1], "")
        for part, text in zip(parts[1:], texts[2:], strict=True):
            found = pc.binary_join_element_wise(found, part, text, "")
        return found

    def merged(self, columns: Mapping[str, Any]) -> list[str]:
        """Return the columns whose empty cells repeat the cell above, as in merged cells of a spreadsheet."""
        if SECOND in self.columns:
            return []
        parts = [_part_text(kind, columns[name]) for kind, name in self.columns.items()]
        return [name for part, name in zip(parts, self.columns.values(), strict=True) if are_merged(part, parts[-1])]

    def split(self, texts: list[str], columns: Mapping[str, Any]) -> dict[str, Any]:
        """Split joined texts into the cells of each column, in the types and widths of the columns. This is the inverse
        of `cells`."""
        if "zone" in self.columns:
            moment, zone = self.columns.values()
            return {moment: unzoned(texts), zone: zone_cells(texts, columns[zone])}
        if SECOND in self.columns:
            cells = split_pair(next(iter(self.columns)), texts, *(columns[name] for name in self.columns.values()))
            return dict(zip(self.columns.values(), cells, strict=True))
        whole = [text.partition(".")[0] for text in texts] if "millisecond" in self.columns else texts
        return {
            name: _part_cells(kind, texts if kind == "millisecond" else whole, columns[name])
            for kind, name in self.columns.items()
        }


def find_parts(columns: Mapping[str, Any]) -> ClockParts | None:
    """Return the columns that together contain the times of a table. Return None if one column contains them, or
    none."""
    lower = {ZONE_BEHIND.sub("", name).strip(" <>").lower(): name for name in reversed(list(columns))}
    if {"MM", "mm"} <= columns.keys():
        lower["minute"] = "mm"
    dates = [name for name in date_columns(dict(columns)) if not has_time_of_day(columns[name])]
    zones = (name for name in columns if zone_minutes(columns[name]))
    moments = [name for name in date_columns(dict(columns)) if is_local(columns[name])]
    if moments and (zone := next(zones, None)) is not None:
        return ClockParts({"moment": moments[0], "zone": zone}, "{}{}")
    clocks = [name for name in columns if is_time_of_day(columns[name])]
    if (
        "date" in lower
        and "time" in lower
        and not has_time_of_day(columns[lower["date"]])
        and (
            lower["time"] in clocks
            or (_match(columns[lower["date"]], COMPACT_DATE) and _match(columns[lower["time"]], COMPACT_TIME))
        )
    ):
        return _with_milliseconds({"date": lower["date"], "clock": lower["time"]}, lower, columns)
    hours = _numbered("hour", lower, columns) or _numbered(HALF_HOUR, lower, columns)
    dates, clocks = (sorted(each, key=lambda name: not words_of(name) & {"utc", "gmt"}) for each in (dates, clocks))
    clocks += [] if clocks or hours else compact_hours([lower[text] for text in lower if text in HOUR_WORDS], columns)
    if dates and (clocks or hours) and _repeats(columns[dates[0]]):
        if clocks:
            return _with_milliseconds({"date": dates[0], "clock": clocks[0]}, lower, columns)
        if hours == _numbered(HALF_HOUR, lower, columns):
            return ClockParts({"date": dates[0], HALF_HOUR: str(hours)}, "{} {}")
        return ClockParts({"date": dates[0], _hour_kind(columns[str(hours)]): str(hours)}, "{} {}:00")
    if (compact := _compact_parts(columns, hours)) is not None:
        return compact
    if (pair := find_pair(columns)) is not None:
        return ClockParts(pair, "")
    if is_calendar(columns):
        return ClockParts(dict(zip(("year", "month", "day", "hour"), UNNAMED, strict=True)), "{}-{}-{} {}:00")
    if is_year_and_hour(columns):
        named = dict(zip(("year", "day_of_year", "hour"), UNNAMED, strict=False))
        return ClockParts(named, "{}-{} {}:00", "%Y-%j %H:%M")
    if not dates and (found := _by_content(columns, clocks)) is not None:
        return found
    return _after_year(lower, columns)


def _after_year(lower: Mapping[str, str], columns: Mapping[str, Any]) -> ClockParts | None:
    """Return the column of years and the columns of the parts that follow it, such as month and day, according to their
    names. Return None if there are no such columns, or another column contains dates."""
    year = _numbered("year", lower, columns)
    if year is None and _month_names("month", columns) is not None:
        named = [lower[name] for name in PERIOD_NAMES if name in lower]
        year = _numbered("year", {"year": named[0]} if named else {}, columns)
    if year is None or date_columns(dict(columns)):
        return None
    for kinds, join, time_format in AFTER_YEAR:
        names = [_numbered(kind, lower, columns) or _month_names(kind, columns) for kind in kinds]
        if None not in names:
            parts = {kind: str(name) for kind, name in zip(kinds, names, strict=True)}
            if "hour" in parts:
                parts = {_hour_kind(columns[name]) if k == "hour" else k: name for k, name in parts.items()}
            return ClockParts({"year": year, **parts}, join, time_format)
    return None


def _compact_parts(columns: Mapping[str, Any], hours: str | None) -> ClockParts | None:
    """Return a column of dates such as 20240131 and a column of times of day such as 93000 that increase together, or a
    column of dates such as 31012024 and a column of hours. Return None if there are no such columns."""
    if (pair := compact_pair(columns)) is not None:
        return ClockParts(dict(zip(("date", "clock"), pair, strict=True)), "{} {}")
    name = next(iter(columns)) if hours is not None else None
    numbers = None if name is None else numeric_sample(columns[name])
    form = None if numbers is None else calendar_form(numbers, str(name))
    if name is None or form not in COMPACT_FORMS or name == hours:
        return None
    return ClockParts({"date": name, _hour_kind(columns[str(hours)]): str(hours)}, "{} {}:00", f"{form} %H:%M")


def _with_milliseconds(parts: dict[str, str], lower: Mapping[str, str], columns: Mapping[str, Any]) -> ClockParts:
    """Return the columns of the date and the time of day. If the times have whole seconds and there is a column of
    milliseconds, it is included."""
    name = _numbered("millisecond", lower, columns)
    if name is None or not _match(columns[parts["clock"]], r".*:\d\d:\d\d"):
        return ClockParts(parts, "{} {}")
    return ClockParts({**parts, "millisecond": name}, "{} {}.{}")


def calendar_columns(columns: Mapping[str, Any]) -> list[str]:
    """Return the columns that repeat a part of the times, such as a column with the year or the hour of each date."""
    lower = {name.strip().lower(): name for name in reversed(list(columns))}
    found = [_numbered(kind, lower, columns) for kind in NUMBERED]
    decimal = [name for text, name in lower.items() if re.fullmatch(DECIMAL_DATE, text)]
    return [name for name in (*found, *decimal) if name is not None]


def is_part(column: Any) -> bool:
    """Return whether a column contains times of day or time zones, so that it does not label series."""
    return is_time_of_day(column) or bool(zone_minutes(column))


def _numbered(kind: str, lower: Mapping[str, str], columns: Mapping[str, Any]) -> str | None:
    names, least, most = NUMBERED[kind]
    for name in (lower[text] for text in lower if text in names):
        numbers = numeric_sample(_bare(kind, columns[name]))
        if numbers is not None and bool(((numbers >= least) & (numbers <= most) & (numbers % 1 == 0)).all()):
            return name
    return None


def _month_names(kind: str, columns: Mapping[str, Any]) -> str | None:
    """Return the first column that contains the names of months, or None if there is none."""
    found = (name for name, column in columns.items() if kind == "month" and len(months_of(column)) > 1)
    return next(found, None)


def _match(column: Any, pattern: str) -> bool:
    import pyarrow as pa

    cells = sample(column).to_pylist() if pa.types.is_string(column.type) else []
    return bool(cells) and all(re.fullmatch(pattern, cell) for cell in cells)


def _bare(kind: str, column: Any) -> Any:
    """Return quarters and weeks without the letter before the number, as in Q1, and names of months as numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind == "month":
        return month_numbers(column)
    if kind not in ("quarter", "week") or not pa.types.is_string(column.type):
        return column
    return pc.replace_substring_regex(column, r"^\s*(Q|T|W|KW ?)(\d)", r"\2")


def _hour_kind(column: Any) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pc.min_max(pc.cast(pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column, "double"))
    return ENDING if ends["max"].as_py() == 24 and ends["min"].as_py() >= 1 else "hour"


def _part_text(kind: str, column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    is_text = pa.types.is_string(column.type)
    if kind == "zone":
        return zone_offsets(column)
    if kind == "moment":
        return pc.utf8_trim_whitespace(column)
    if kind in ("date", "clock"):
        if pa.types.is_integer(column.type):
            column, is_text = pc.cast(column, pa.string()), True
        cells = pc.utf8_trim_whitespace(column) if is_text else pc.strftime(column, format="%Y-%m-%d")
        cells = pc.replace_substring_regex(cells, r"^(\d{7})$", r"0\1") if kind == "date" else cells
        if kind == "clock":
            cells = pc.replace_substring_regex(padded(cells), COMPACT_UTC, r"\1:\2Z")
            cells = pc.replace_substring_regex(cells, r"(:\d{2}):(\d{3})$", r"\1.\2")
            cells = pc.replace_substring_regex(cells, r"(\d)( ?[aApP])$", r"\1\2m")
            cells = pc.replace_substring_regex(cells, HALF, r" \1m")
        return pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
    cells = pc.utf8_trim_whitespace(_bare(kind, column)) if is_text else column
    cells = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells) if is_text else cells
    try:
        numbers = pc.cast(pc.cast(cells, pa.float64()), pa.int64())
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"the {kind} of a time is not a number: {error}; specify the time column with --time"
        ) from None
    if kind == HALF_HOUR:
        return half_hours(numbers)
    numbers = pc.subtract(numbers, 1) if kind == ENDING else numbers
    return pc.utf8_lpad(pc.cast(numbers, pa.string()), WIDTHS.get(kind, 2), padding="0")


def _part_cells(kind: str, texts: list[str], column: Any) -> Any:
    import pyarrow as pa

    if kind in ("date", "clock"):
        spaces = str(column[0]).strip().count(" ") + 1 if kind == "date" else None
        split = [text.split(" ") for text in texts]
        if spaces is None:
            if (compact := re.fullmatch(COMPACT_UTC, str(column[0]).strip())) is not None:
                behind = compact[0][4:]
                return pa.array([re.sub(r"(\d\d):(\d\d).*", rf"\1\2{behind}", text[-1]) for text in split])
            is_half = [text[-1].strip(".").lower() in ("am", "pm", "a.m", "p.m") for text in split]
            return pa.array([" ".join(text[-1 - half :]) for half, text in zip(is_half, split, strict=True)])
        return pa.array([" ".join(text[:spaces]) for text in split]).cast(column.type)
    found = [re.search(PLACES["hour" if kind in (ENDING, HALF_HOUR) else kind], text) for text in texts]
    numbers = [int(match[1]) + (kind == ENDING) for match in found if match]
    if kind == HALF_HOUR:
        numbers = [2 * hour + ("30" in text[-5:]) + 1 for hour, text in zip(numbers, texts, strict=True)]
    if not pa.types.is_string(column.type):
        return pa.array(numbers).cast(column.type)
    if kind == "month" and months_of(column):
        return pa.array([write_month(number, column) for number in numbers])
    cells = sample(column).to_pylist()
    letters = re.match(r"\D*", cells[0])
    width = max(map(len, cells)) - len(letters[0]) if letters and min(map(len, cells)) == max(map(len, cells)) else 1
    return pa.array([f"{letters[0] if letters else ''}{number:0{width}d}" for number in numbers])


def _by_content(columns: Mapping[str, Any], clocks: Sequence[str]) -> ClockParts | None:
    """Return adjacent columns that are the year and month of consecutive months, or the year, month and day of
    increasing dates, which a time of day or an hour may follow. Return None if there are none."""
    names = list(columns)
    samples = [numeric_sample(columns[name]) for name in names]
    for k in range(len(names) - 1):
        if are_months(samples[k : k + 2], len(columns[names[k]])):
            return ClockParts({"year": names[k], "month": names[k + 1]}, "{}-{}", "%Y-%m")
    for k in range(len(names) - 2):
        moments = days_of(samples[k : k + 3])
        if moments is None:
            continue
        after = names[k + 3] if k + 3 < len(names) else ""
        is_hour = bool(after) and are_hours(samples[k + 3], len(moments)) and len(np.unique(moments)) < len(moments)
        if len(np.unique(moments)) < (2 if after in clocks or is_hour else FEWEST_DAYS):
            continue
        found = dict(zip(("year", "month", "day"), names[k : k + 3], strict=True))
        if after in clocks:
            return ClockParts({**found, "clock": after}, "{}-{}-{} {}")
        if is_hour:
            return ClockParts({**found, _hour_kind(columns[after]): after}, "{}-{}-{} {}:00")
        return ClockParts(found, "{}-{}-{}")
    return None


def _repeats(column: Any) -> bool:
    import pyarrow.compute as pc

    return len(column) < 2 or pc.count_distinct(column).as_py() < len(column)
