"""A small file with its right reading, and the values and times that such files share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

ROWS = 30
EPOCH = datetime(1970, 1, 1)
BEGIN = datetime(2024, 1, 1)
# Values with two digits after the point, none of them repeated far out.
VALUES = [round(20 + 7 * ((k * 37) % 11) / 11 + k / 100, 2) for k in range(ROWS)]
DAYS = [BEGIN + timedelta(days=k) for k in range(ROWS)]
HOURS = [BEGIN + timedelta(hours=k) for k in range(ROWS)]
MONTHS = [datetime(2022 + k // 12, k % 12 + 1, 1) for k in range(ROWS)]
QUARTERS = [datetime(2010 + k // 4, 3 * (k % 4) + 1, 1) for k in range(ROWS)]
WEEKS = [BEGIN + timedelta(days=7 * k) for k in range(ROWS)]
YEARS = [datetime(1990 + k, 1, 1) for k in range(ROWS)]
# Twice a day, beyond the twelfth.
SPREAD = [BEGIN + timedelta(hours=12 * k) for k in range(ROWS)]
SECONDS = [BEGIN + timedelta(seconds=k) for k in range(ROWS)]
MINUTES = [BEGIN + timedelta(minutes=k) for k in range(ROWS)]
TENS = [BEGIN + timedelta(minutes=10 * k) for k in range(ROWS)]
QUARTER_HOURS = [BEGIN + timedelta(minutes=15 * k) for k in range(ROWS)]
HALVES = [BEGIN + timedelta(minutes=30 * k) for k in range(ROWS)]
QUARTER_DAYS = [BEGIN + timedelta(hours=6 * k) for k in range(ROWS)]
# Hours of a day that is not a month.
LATE = [time + timedelta(days=20) for time in HOURS]
OTHERS = [round(40 + (k * 13) % 7 + k / 10, 1) for k in range(ROWS)]
COUNTS = [2000 + (37 * k) % 110 for k in range(ROWS)]
ALONE: tuple[str, ...] = ()
# Names of the months by language.
NAMES = {
    language: names.split()
    for language, names in {
        "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "nl": "januari februari maart april mei juni juli augustus september oktober november december",
        "en": "January February March April May June July August September October November December",
    }.items()
}


@dataclass
class Kind:
    """A file and its reading: for each key the times and the columns.

    Attributes:
        refused: part of the message, for a file that is refused.
        mended: the options that the message names, with which the file is read.
    """

    name: str
    content: bytes
    series: dict[Any, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    refused: str = ""
    mended: dict[str, Any] = field(default_factory=dict)


def seconds(times: list[datetime]) -> list[float]:
    return [(time - EPOCH).total_seconds() for time in times]


def table(header: list[str], *columns: Any, by: str = ",") -> bytes:
    rows = [by.join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([by.join(header), *rows]).encode()


def lines(header: list[str], rows: Iterable[tuple[Any, ...]]) -> bytes:
    """A table by rows."""
    return "\n".join(",".join(map(str, row)) for row in (header, *rows)).encode()


def dump(document: Any) -> bytes:
    return json.dumps(document).encode()


def plain(name: str, content: bytes, times: list[datetime], column: str = "y", **more: Any) -> Kind:
    values = more.pop("values", VALUES)
    return Kind(name, content, {ALONE: (seconds(times), {column: values})}, **more)


def clock(name: str, write: Any, times: list[datetime], *, header: str = "when", **more: Any) -> Kind:
    """A column of times and one of values."""
    by = more.pop("by", ";")
    return plain(name, table([header, "y"], [write(time) for time in times], VALUES, by=by), times, **more)


def decimal_comma(value: float) -> str:
    return f"{value:.2f}".replace(".", ",")


def rows_of(head: str, write: Callable[[int], str], tail: str = "") -> bytes:
    """The lines of a table below its first ones."""
    return (head + "".join(write(k) + "\n" for k in range(ROWS)) + tail).encode()


def series_of(
    name: str, content: bytes, times: list[datetime] | list[float], columns: dict[str, Any], **more: Any
) -> Kind:
    """One series, with its times as moments or as numbers."""
    shown = [(time - EPOCH).total_seconds() if isinstance(time, datetime) else time for time in times]
    return Kind(name, content, {ALONE: (shown, columns)}, **more)


class Row(NamedTuple):
    """Number, time, values and count of a row of an exported table."""

    k: int
    t: Any
    v: float
    o: float
    c: int

    @property
    def d(self) -> str:
        """The first value with a decimal comma."""
        return decimal_comma(self.v)


def export(name: str, times: list[Any], columns: dict[str, Any], head: str, write: Callable[[Row], str],
           *, tail: str = "", **more: Any) -> Kind:  # fmt: skip
    """A table that a program exported: the lines below `head` are written row by row."""
    rows = (Row(*row) for row in zip(range(ROWS), times, VALUES, OTHERS, COUNTS, strict=True))
    content = head + "".join(write(row) + "\n" for row in rows) + tail
    return series_of(name, content.encode(), times, columns, **more)


def needs_key(name: str, content: bytes, column: str) -> Kind:
    """A table whose rows differ in their meaning by a column, which is a key of the series."""
    return Kind(name, content, refused=f"--by '{column}'", mended={"by": [column]})


def both_of(name: str, content: bytes, keys: tuple[Any, Any], times: list[datetime], column: str, **more: Any) -> Kind:
    """Two series at the same times."""
    moments = seconds(times)
    return Kind(
        name, content, {(keys[0],): (moments, {column: VALUES}), (keys[1],): (moments, {column: OTHERS})}, **more
    )
