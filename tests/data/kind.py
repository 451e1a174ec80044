"""A small file with its right reading, and the values and times that such files share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

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
ALONE: tuple[str, ...] = ()
NAMES = {
    "de": [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ],
    "fr": [
        "janvier",
        "février",
        "mars",
        "avril",
        "mai",
        "juin",
        "juillet",
        "août",
        "septembre",
        "octobre",
        "novembre",
        "décembre",
    ],
    "es": [
        "enero",
        "febrero",
        "marzo",
        "abril",
        "mayo",
        "junio",
        "julio",
        "agosto",
        "septiembre",
        "octubre",
        "noviembre",
        "diciembre",
    ],
    "it": [
        "gennaio",
        "febbraio",
        "marzo",
        "aprile",
        "maggio",
        "giugno",
        "luglio",
        "agosto",
        "settembre",
        "ottobre",
        "novembre",
        "dicembre",
    ],
    "pt": [
        "janeiro",
        "fevereiro",
        "março",
        "abril",
        "maio",
        "junho",
        "julho",
        "agosto",
        "setembro",
        "outubro",
        "novembro",
        "dezembro",
    ],
    "nl": [
        "januari",
        "februari",
        "maart",
        "april",
        "mei",
        "juni",
        "juli",
        "augustus",
        "september",
        "oktober",
        "november",
        "december",
    ],
    "en": [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
}


@dataclass
class Kind:
    """A file and its reading: for each key the times and the columns."""

    name: str
    content: bytes
    series: dict[Any, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    refused: str = ""


def seconds(times: list[datetime]) -> list[float]:
    return [(time - EPOCH).total_seconds() for time in times]


def table(header: list[str], *columns: Any, by: str = ",") -> bytes:
    rows = [by.join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([by.join(header), *rows]).encode()


def plain(name: str, content: bytes, times: list[datetime], column: str = "y", **more: Any) -> Kind:
    values = more.pop("values", VALUES)
    return Kind(name, content, {ALONE: (seconds(times), {column: values})}, **more)


def clock(name: str, write: Any, times: list[datetime], *, header: str = "when", **more: Any) -> Kind:
    """A column of times and one of values."""
    by = more.pop("by", ";")
    return plain(name, table([header, "y"], [write(time) for time in times], VALUES, by=by), times, **more)


def decimal_comma(value: float) -> str:
    return f"{value:.2f}".replace(".", ",")
