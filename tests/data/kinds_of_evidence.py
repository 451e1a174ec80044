"""Files whose clock, zone, encoding or rows follow from what stands in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tests.data.kind import (
    BEGIN,
    DAYS,
    EPOCH,
    HOURS,
    LATE,
    MINUTES,
    OTHERS,
    QUARTER_DAYS,
    ROWS,
    VALUES,
    Kind,
    clock,
    plain,
    table,
)


def _lines(write: Any) -> bytes:
    return ("\n".join(write(k) for k in range(ROWS)) + "\n").encode()


def epochs() -> Iterator[Kind]:
    """Times in units since a date that a name, a comment or an option names."""
    days = [60310 + k / 4 for k in range(ROWS)]
    yield plain("MJD in a comment", b"# times are MJD (UTC)\n" + _lines(lambda k: f"{days[k]:.2f} {VALUES[k]}"),
                QUARTER_DAYS, "column 2")  # fmt: skip
    yield plain("MJD in a name", table(["mjd_start", "y"], days, VALUES), QUARTER_DAYS)
    yield plain("MJD by an option", table(["x", "y"], days, VALUES), QUARTER_DAYS,
                options={"time": "x", "time_format": "MJD"})  # fmt: skip
    hours = [1_086_960 + k for k in range(ROWS)]
    yield plain("hours since 1900", table(["time (hours since 1900-01-01 00:00:00.0)", "y"], hours, VALUES), HOURS)
    yield plain("days since 1970 by an option", table(["day", "y"], range(19723, 19723 + ROWS), VALUES), DAYS,
                options={"time_format": "days since 1970-01-01"})  # fmt: skip
    seconds = [725_760_000 - 18_144_000 + 18_000_000 + 192_000 + 60 * k for k in range(ROWS)]
    begin = BEGIN.replace(year=2001, month=1, day=1)
    yield plain("seconds since 2001 by an option", table(["date", "y"], seconds, VALUES),
                [begin + timedelta(seconds=s) for s in seconds],
                options={"time_format": "seconds since 2001-01-01"})  # fmt: skip


def hours() -> Iterator[Kind]:
    """Hours of consecutive days without a date."""
    times = [3600.0 * k for k in range(ROWS)]
    for first in (0, 1):
        cells = [k % 24 + first for k in range(ROWS)]
        yield Kind(f"hours from {first}", table(["hour", "y"], cells, VALUES), {(): (times, {"y": VALUES})},
                   note=f"hours of consecutive days, from {first}")  # fmt: skip
    lines = [f"{DAYS[k]:%Y-%m-%d},{VALUES[k]},{OTHERS[k]}\n" for k in range(15)]
    lines += [f"{DAYS[k]:%Y-%m-%d},{OTHERS[k]},{VALUES[k]}\n" for k in range(15, ROWS)]
    text = "date,temp,load\n" + "".join(lines[:15]) + "date,load,temp\n" + "".join(lines[15:])
    yield Kind("header in another order", text.encode(),
               {(): ([(day - EPOCH).total_seconds() for day in DAYS], {"temp": VALUES, "load": OTHERS})})  # fmt: skip
    yield plain("dates without separators, year last", table(["Fecha", "Hora", "y"], [f"{h:%d%m%Y}" for h in LATE],
                                                             [h.hour for h in LATE], VALUES), LATE)  # fmt: skip


def apart() -> Iterator[Kind]:
    """Dates and times of day without separators and without names."""
    rows = [HOURS[k].strftime("%Y%m%d %H%M%S") for k in range(ROWS)]
    yield Kind("UPS log", _lines(lambda k: f"{rows[k]} {VALUES[k]} {OTHERS[k]} [OL] NA 50.0"),
               {(): ([(each - BEGIN).total_seconds() + 1_704_067_200 for each in HOURS],
                     {"column 3": VALUES, "column 4": OTHERS})})  # fmt: skip
    ends = [BEGIN + timedelta(hours=k + 1) for k in range(ROWS)]
    yield plain("days and ends of hours",
                _lines(lambda k: f"{HOURS[k]:%Y%m%d} {100 * (HOURS[k].hour + 1):04d} {VALUES[k]}"), ends,
                "column 3")  # fmt: skip
    yield plain("MetaStock", table(["<TICKER>", "<PER>", "<DTYYYYMMDD>", "<TIME>", "<CLOSE>"], ["EUR"] * ROWS,
                                   ["60"] * ROWS, [f"{each:%Y%m%d}" for each in HOURS],
                                   [f"{each.hour * 10_000}" for each in HOURS], VALUES), HOURS, "<CLOSE>")  # fmt: skip


def zones() -> Iterator[Kind]:
    """Zones in the name of a column, and in a column."""
    yield clock("offset in a name", lambda each: f"{each + timedelta(hours=2):%Y-%m-%d %H:%M}", HOURS,
                header="time (UTC+2)", note="zone Etc/GMT-2")  # fmt: skip
    local = [f"{each + timedelta(hours=1):%Y-%m-%d %H:%M}" for each in HOURS]
    yield plain("zone in a column", table(["timestamp", "tz", "y"], local, ["Europe/Berlin"] * ROWS, VALUES), HOURS,
                note="zone Europe/Berlin")  # fmt: skip


def letters() -> Iterator[Kind]:
    """Words of languages whose letters Windows-1252 has not."""
    for encoding, time, name in (
        ("cp1250", "Čas měření", "Průměr"), ("cp1250", "Időpont", "Hőmérséklet"), ("cp1250", "Datum", "Spotřeba"),
        ("cp1250", "Vrijeme", "Količina"), ("cp1254", "Tarih", "Sıcaklık değeri"), ("cp1252", "Tid", "Måling ved søen"),
        ("cp1252", "Heure", "Débit première pièce"), ("cp1252", "Data", "Medições da manhã"),
        ("cp1252", "Aeg", "Õhurõhk"),
    ):  # fmt: skip
        content = "\n".join([f"{time};{name}", *(f"{day:%Y-%m-%d};{y}" for day, y in zip(DAYS, VALUES, strict=True))])
        yield plain(f"{name} in {encoding}", content.encode(encoding), DAYS, name)


def lines() -> Iterator[Kind]:
    """Lines that differ in their numbers."""
    rows = [f"{each:%Y-%m-%d %H:%M:%S},123 INFO sensor: hall" for each in MINUTES]
    yield plain("numbers in a log", _lines(lambda k: f"{rows[k]} {VALUES[k]} C"),
                [each + timedelta(milliseconds=123) for each in MINUTES], "hall (C)")  # fmt: skip


def broken() -> Iterator[Kind]:
    """A JSON object without its first bracket."""
    rows = ", ".join(f'{{"date": "{day:%Y-%m-%d}", "value": {value}}}' for day, value in zip(DAYS, VALUES, strict=True))
    yield Kind("broken JSON", f'"details": {{"values": [{rows}]}}}}'.encode(), refused="this is not valid JSON")


def several() -> Iterator[Kind]:
    """Two tables below each other without a blank line."""
    first = table(["date", "temp", "wind"], [f"{day:%Y-%m-%d}" for day in DAYS], VALUES, OTHERS)
    second = table(["date", "rain", "sun"], [f"{day:%Y-%m-%d}" for day in DAYS], OTHERS, VALUES)
    times = [(day - BEGIN).total_seconds() + 1_704_067_200 for day in DAYS]
    yield Kind("the second of two tables", first + b"\n" + second, {(): (times, {"rain": OTHERS, "sun": VALUES})},
               {"sheet": "table 2"})  # fmt: skip
