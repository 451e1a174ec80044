"""Files with times in every form."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.data.kind import (
    DAYS,
    EPOCH,
    HOURS,
    MONTHS,
    NAMES,
    QUARTERS,
    SPREAD,
    VALUES,
    WEEKS,
    YEARS,
    Kind,
    clock,
    plain,
    table,
)


def clocks() -> Iterator[Kind]:
    """Times in every form."""
    quarters = [t + timedelta(milliseconds=250) for t in HOURS]
    for name, digits in (("milliseconds", "250"), ("twelve digits", "250000000000")):
        cells = [f"{t.isoformat()}.{digits}Z" for t in HOURS]
        yield plain(f"ISO with {name}", table(["at", "y"], cells, VALUES), quarters)
    for unit, scale in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        for evidence, header in (("name", "unix_stamp"), ("value", "x")):
            yield clock(
                f"epoch in {unit} by {evidence}",
                lambda t, k=scale: int((t - EPOCH).total_seconds()) * k,
                HOURS,
                header=header,
                note="since 1970",
            )
    for form in ("Q{q} {y}", "{y}-Q{q}", "{y}Q{q}", "T{q} {y}", "{y} T{q}", "{q}. Quartal {y}"):
        yield clock(f"quarters {form}", lambda t, f=form: f.format(q=(t.month + 2) // 3, y=t.year), QUARTERS)
    for form in ("%G-W%V", "%GW%V", "W%V %G", "KW%V %G"):
        yield clock(f"weeks {form}", lambda t, f=form: t.strftime(f), WEEKS)


def months() -> Iterator[Kind]:
    """Names of months, and days without them."""
    for language, names in NAMES.items():
        yield clock(f"months in {language}", lambda t, n=names: f"{n[t.month - 1]} {t.year}", MONTHS)
        yield clock(f"days in {language}", lambda t, n=names: f"{t.day} {n[t.month - 1]} {t.year}", DAYS)
        yield clock(
            f"hours in {language}", lambda t, n=names: f"{t.day} {n[t.month - 1]} {t.year} {t.hour:02d}:00", HOURS
        )
    yield clock("German days with points", lambda t: f"{t.day}. {NAMES['de'][t.month - 1]} {t.year}", DAYS)
    yield clock("Spanish days with de", lambda t: f"{t.day} de {NAMES['es'][t.month - 1]} de {t.year}", DAYS)
    french = ["janv.", "févr.", "mars", "avr.", "mai", "juin", "juil.", "août", "sept.", "oct.", "nov.", "déc."]
    yield clock("abbreviated French months", lambda t: f"{french[t.month - 1]} {t.year}", MONTHS)
    yield clock("statistics months", lambda t: f"{t.year}M{t.month:02d}", MONTHS)
    yield clock("short months", lambda t: t.strftime("%b-%y"), MONTHS)
    yield clock("years", lambda t: t.year, YEARS, header="Jahr")
    yield clock("months without separators", lambda t: f"{t:%Y%m}", MONTHS, header="period")
    yield clock("days without separators", lambda t: f"{t:%Y%m%d}", DAYS, header="date")


def orders() -> Iterator[Kind]:
    """Days of Excel, days and months in either order, and intervals."""
    yield clock("days of Excel", lambda t: (t - datetime(1899, 12, 30)).days, DAYS, header="Date", note="Excel")
    yield clock(
        "hours of Excel",
        lambda t: round((t - datetime(1899, 12, 30)).total_seconds() / 86400, 9),
        HOURS,
        header="Fecha",
        note="Excel",
    )
    yield clock("day first by evidence", lambda t: f"{t:%d/%m/%Y}", DAYS, note="%d/%m/%Y")
    yield clock("month first by evidence", lambda t: f"{t:%m/%d/%Y}", DAYS, note="%m/%d/%Y")
    yield clock(
        "day first by order",
        lambda t: f"{t:%d/%m/%Y}",
        [datetime(2024, 10 + k // 12, k % 12 + 1) for k in range(24)] + [datetime(2025, 1, k + 1) for k in range(6)],
        note="would not be in order",
    )
    twelve = [datetime(2024, 1, k + 1) for k in range(12)]
    yield Kind(
        "days or months",
        table(["when", "y"], [f"{t:%d/%m/%Y}" for t in twelve], VALUES[:12]),
        refused="--time-format='%d/%m/%Y' or --time-format='%m/%d/%Y'",
        mended={"time_format": "%d/%m/%Y"},
    )
    yield plain(
        "days or months, chosen",
        table(["when", "y"], [f"{t:%d/%m/%Y}" for t in twelve], VALUES[:12]),
        twelve,
        values=VALUES[:12],
        options={"time_format": "%d/%m/%Y"},
    )
    yield clock(
        "intervals",
        lambda t: f"{t:%d.%m.%Y %H:%M} - {t + timedelta(hours=12):%d.%m.%Y %H:%M}",
        SPREAD,
        note="the start of each interval is read",
    )


def unknown() -> Iterator[Kind]:
    """Times in a form that an option names, and a time column that is not first."""
    yield Kind(
        "times in an unknown form",
        table(["stamp", "y"], [f"day {t:%j} of {t:%Y}" for t in DAYS], VALUES),
        refused="specify --time 'stamp' and --time-format",
        mended={"time": "stamp", "time_format": "day %j of %Y"},
    )
    yield plain(
        "times in a form that is given",
        table(["stamp", "y"], [f"day {t:%j} of {t:%Y}" for t in DAYS], VALUES),
        DAYS,
        options={"time": "stamp", "time_format": "day %j of %Y"},
    )
    yield plain("a clock that is not first", table(["y", "created_at"], VALUES, [t.isoformat() for t in HOURS]), HOURS)


def parts() -> Iterator[Kind]:
    """Clocks in several columns."""
    units = ("year", "month", "day", "hour")
    for header, times in (("Jahr Monat", MONTHS), ("year month day", DAYS), ("año mes día hora", HOURS)):
        names = header.split()
        columns = [[getattr(t, unit) for t in times] for unit in units[: len(names)]]
        yield plain(", ".join(units[: len(names)]), table([*names, "y"], *columns, VALUES), times)
    yield plain(
        "year and quarter",
        table(
            ["year", "quarter", "y"], [t.year for t in QUARTERS], [f"Q{(t.month + 2) // 3}" for t in QUARTERS], VALUES
        ),
        QUARTERS,
    )
    yield plain(
        "year and week",
        table(["year", "week", "y"], [t.isocalendar()[0] for t in WEEKS], [t.isocalendar()[1] for t in WEEKS], VALUES),
        WEEKS,
    )
    yield plain(
        "year and day of it",
        table(["year", "doy", "y"], [t.year for t in DAYS], [t.timetuple().tm_yday for t in DAYS], VALUES),
        DAYS,
    )


def hours() -> Iterator[Kind]:
    """Dates, and hours or times of day in a column of their own."""
    yield plain(
        "date and hour", table(["date", "hour", "y"], [t.date() for t in HOURS], [t.hour for t in HOURS], VALUES), HOURS
    )
    yield plain(
        "date and ending hour",
        table(["date", "HE", "y"], [t.date() for t in HOURS], [t.hour + 1 for t in HOURS], VALUES),
        HOURS,
        note="the hours 1 to 24 are read as 00:00 to 23:00",
    )
    for language, names in (
        ("es", ("Fecha", "Hora")),
        ("de", ("Datum", "Uhrzeit")),
        ("fr", ("Jour", "Heure")),
        ("it", ("Data", "Ora")),
        ("pt", ("Data", "Hora")),
    ):
        yield plain(
            f"date and time in {language}",
            table([*names, "y"], [f"{t:%d/%m/%Y}" for t in SPREAD], [f"{t:%H:%M}" for t in SPREAD], VALUES, by=";"),
            SPREAD,
            note="date and time of day are read from",
        )
