"""Checks that reject tables whose times, time zones, units or series are ambiguous."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from zoneinfo import available_timezones

import numpy as np

from rfa.data.clock_choice import numeric_sample, sample
from rfa.data.clock_numbers import words_of
from rfa.data.epochs import other_forms
from rfa.data.keys import UNIT_NAMES
from rfa.data.zone_columns import ZONES, is_local, zone_minutes

FEWEST_ROWS: Final = 8
# Seconds since 1970 in the years 1985 to 1999, or after 2071. If they count from another year, they may be dates in
# this century.
OTHER_EPOCHS: Final = (
    (4.9e8, 9.2e8, ("seconds since 2001-01-01",)),
    (3.2e9, 4.2e9, ("seconds since 1904-01-01", "seconds since 1900-01-01")),
)
# A name of a column that is probably a value, and a name with a time zone.
DECIMAL_NAME: Final = re.compile(r"[+-]?\d+[.,]\d+([eE][+-]?\d+)?|1\d{9}(?:\d{3}){0,3}")
HEADER_ZONE: Final = re.compile(r"\b(?:UTC|GMT) ?([+-]) ?0?(\d{1,2})(?::?00)?\b|\b([A-Z][a-z]+/[A-Z][A-Za-z_]+)\b")
# Abbreviations in brackets behind the name of a time column, and the time zones with both of them.
BRACKETED: Final = re.compile(r"[(\[]([A-Z]{3,4})(?:/([A-Z]{3,4}))?[)\]]\s*$")
# Minutes from local time to UTC behind the name of a time zone, as Windows writes them.
BIAS: Final = re.compile(r"\([^()]* Time\)\((-?\d{1,3})\)\s*$")
BOTH: Final = {
    ("CET", "CEST"): "CET", ("MEZ", "MESZ"): "CET", ("EET", "EEST"): "EET", ("WET", "WEST"): "WET",
    ("EST", "EDT"): "EST5EDT", ("CST", "CDT"): "CST6CDT", ("MST", "MDT"): "MST7MDT", ("PST", "PDT"): "PST8PDT",
}  # fmt: skip
# Names of labels, their maximum number, and the minimum fraction of rows with another label than the previous row.
LABEL_WORDS: Final = frozenset((
    "band", "filter", "sensor", "channel", "device", "metric", "station", "parameter", "variable", "location", "site",
    "room", "host", "meter", "symbol", "ticker", "kanal", "gerät", "standort", "capteur", "dispositivo",
))  # fmt: skip
MOST_LABELS, ALTERNATING = 20, 0.3
# Pairs of words in a column next to amounts, such as debit and credit, that say whether money was paid or received.
SIGNS: Final = (
    ("af", "bij"), ("s", "h"), ("soll", "haben"), ("debit", "credit"), ("d", "c"), ("dr", "cr"), ("dbit", "crdt"),
    ("débit", "crédit"), ("cargo", "abono"), ("dare", "avere"), ("débito", "crédito"), ("wn", "ma"), ("in", "out"),
    ("expense", "income"), ("gasto", "ingreso"), ("ausgabe", "einnahme"), ("withdrawal", "deposit"), ("sell", "buy"),
    ("支出", "收入"),
)  # fmt: skip
# Names of the time zones of the United States.
WORDED_ZONES: Final = {"eastern": "America/New_York", "central": "America/Chicago", "mountain": "America/Denver",
                       "pacific": "America/Los_Angeles"}  # fmt: skip
WORDED_ZONE: Final = re.compile(
    rf"(?:\(.*\) ?)?({'|'.join(WORDED_ZONES)})(?: standard| daylight)? time(?: \(us.*\))?", re.IGNORECASE
)
ZONE_WORDS: Final = frozenset(("tz", "timezone", "zone", "zeitzone"))
ZONE_NAMES: Final = ZONE_WORDS | {"time"}


def check_epoch(clock: str, times: np.ndarray, *, is_dated: bool) -> None:
    """Check that numbers that were read as seconds are unlikely to count another unit since a date.

    Args:
        clock: Name of the time column.
        times: Times of the rows `[N]`.
        is_dated: Whether the numbers were read as seconds since 1970.

    Raises:
        ValueError: If the numbers may count another unit. The message names the options that select a unit.
    """
    least, most = float(times.min()), float(times.max())
    if len(times) < FEWEST_ROWS:
        return
    others: tuple[str, ...]
    usual = f"--time {clock!r} if they are seconds"
    if is_dated:
        others = next((forms for low, high, forms in OTHER_EPOCHS if low <= least and most <= high), ())
        usual += " since 1970"
    else:
        others = tuple(other_forms(times))
    if others:
        choices = " or ".join(f"--time-format {word!r}" for word in others)
        raise ValueError(
            f"column {clock!r}: numbers from {least:.10g} to {most:.10g} may be dates; specify {choices}, or {usual}"
        )


def check_header(columns: Sequence[str], table: Mapping[str, Any]) -> None:
    """Check that the first row was not mistaken for the header of a table.

    Raises:
        ValueError: If a column of numbers is named by a number. Several numbers that increase from column to column are
            allowed.
    """
    named = [name for name in columns if DECIMAL_NAME.fullmatch(name.strip())]
    numbers = [float(name.replace(",", ".")) for name in named]
    if named and numeric_sample(table[named[0]]) is not None and (len(named) == 1 or numbers != sorted(numbers)):
        header = ",".join(f"column{k}" for k in range(1, len(table) + 1))
        raise ValueError(
            f"the name of column {named[0]!r} is a number; if the file has no header, add one such as {header!r} as "
            f"its first line, otherwise choose columns with --column {named[0]!r}"
        )


def check_units(columns: Mapping[str, Any], by: Sequence[str]) -> None:
    """Check that each series has one unit, if a column of the table contains the units of the values.

    Raises:
        ValueError: If there are several units. The message names the column.
    """
    for name, column in columns.items():
        if name in by or name.strip().lower() not in UNIT_NAMES or numeric_sample(column) is not None:
            continue
        found = sample(column).unique().to_pylist()
        keys = list(zip(*(columns[key].to_pylist() for key in by), strict=True)) if by else [()] * len(column)
        is_determined = len({*zip(keys, column.to_pylist(), strict=True)}) == len({*keys})
        if 1 < len(found) <= len(column) // 2 and not is_determined:
            shown = " and ".join(repr(str(cell)) for cell in found[:2])
            raise ValueError(
                f"column {name!r} contains the units {shown}, but a series must have one unit; specify --by {name!r}"
            )


def check_labels(columns: Mapping[str, Any], clock: str) -> None:
    """Check that no column of labels alternates between several labels in the rows of one series.

    Raises:
        ValueError: If a column alternates. The message names the column.
    """
    for name, column in columns.items():
        if name == clock or not words_of(name.replace("_", " ")) & LABEL_WORDS or numeric_sample(column) is not None:
            continue
        cells = np.asarray(column.to_pylist(), object)
        counts = Counter(cells.tolist())
        changes = int((cells[1:] != cells[:-1]).sum())
        if (
            1 < len(counts) <= MOST_LABELS
            and min(counts.values()) >= FEWEST_ROWS
            and changes > ALTERNATING * len(cells)
        ):
            shown = " and ".join(repr(str(cell)) for cell in list(counts)[:2])
            raise ValueError(
                f"column {name!r} alternates between {shown}; specify --by {name!r} if it labels several series, or "
                f"--time {clock!r} if the rows are one series"
            )


def check_signs(columns: Mapping[str, Any], values: Iterable[np.ndarray]) -> None:
    """Check that no column contains words for the signs of positive values, such as "paid" and "received".

    Raises:
        ValueError: If there is such a column. The message names it.
    """
    if any((found < 0).any() for found in values):
        return
    for name, column in columns.items():
        cells = [str(cell) for cell in sample(column).unique().to_pylist()]
        if len(cells) == 2 and any({cell.lower() for cell in cells} == {*pair} for pair in SIGNS):
            raise ValueError(
                f"column {name!r} contains {cells[0]!r} and {cells[1]!r}, which may indicate the signs of the values; "
                f"use --by {name!r} to read one series for each of them, or specify the value columns with --column"
            )


def _abbreviated(name: str, other: str | None) -> str | None:
    """Return the time zone that one or two abbreviations denote. A single abbreviation, such as CET, denotes a fixed
    offset. Return None for unknown abbreviations."""
    if (both := BOTH.get((name, str(other)))) is not None:
        return both
    minutes = {ZONES[each] for each in (name, other) if each in ZONES}
    hours, rest = divmod(minutes.pop(), 60) if len(minutes) == 1 else (0, 1)
    return None if rest or not hours else f"Etc/GMT{-hours:+d}"


def zone_of(clock: str, columns: Mapping[str, Any], names: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return the time zone of all rows, and a description of where the table specifies it.

    The time zone is specified by the name of the time column or by another column. Return None if the table specifies
    no time zone.

    Args:
        clock: Name of the time column.
        columns: Columns of the table.
        names: Columns that were joined to the time column.

    Raises:
        ValueError: If a column has several time zones, or offsets that do not belong to the times.
    """
    if (found := HEADER_ZONE.search(clock)) is not None:
        if found[3] in available_timezones():
            return found[3], f"in the name of column {clock!r}"
        if found[1]:  # the signs of these names are reversed
            zone = f"Etc/GMT{'-' if found[1] == '+' else '+'}{int(found[2])}"
            return (zone, f"in the name of column {clock!r}") if zone in available_timezones() else None
    if (bias := BIAS.search(clock)) is not None and (hours := int(bias[1]) / 60) % 1 == 0 and abs(hours) <= 14:
        return (f"Etc/GMT{int(hours):+d}" if hours else "UTC"), f"in the name of column {clock!r}"
    for name in names or (clock,):
        if (bracketed := BRACKETED.search(name)) is not None and (short := _abbreviated(*bracketed.groups())):
            return short, f"in the name of column {name!r}"
    for name, column in columns.items():
        words = words_of(name.replace("_", " "))
        cells = [str(cell) for cell in sample(column).unique().to_pylist()] if words & ZONE_WORDS else []
        if len(cells) == 1 and (worded := WORDED_ZONE.fullmatch(cells[0])) is not None:
            return WORDED_ZONES[worded[1].lower()], f"in column {name!r}"
        if cells and all(cell in available_timezones() and ("/" in cell or cell == "UTC") for cell in cells):
            if len(cells) > 1:
                raise ValueError(
                    f"column {name!r} has several time zones, such as {cells[0]!r} and {cells[1]!r}; write the times "
                    f"in UTC; if all times are in {cells[0]!r}, specify --by {name!r} and --tz {cells[0]!r}"
                )
            return cells[0], f"in column {name!r}"
        if len(cells) == 1 and words <= ZONE_NAMES and is_local(columns[clock]) and not zone_minutes(column):
            raise ValueError(
                f"column {name!r}: {cells[0]!r} is not a known name of a time zone; specify --tz and its name, such as "
                "--tz 'Europe/Berlin', or --tz 'Etc/UTC'"
            )
    return None
