"""Tables of several series."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tests.data.kind import (
    DAYS,
    HOURS,
    MONTHS,
    NAMES,
    QUARTERS,
    ROWS,
    VALUES,
    YEARS,
    Kind,
    lines,
    plain,
    seconds,
    table,
)


def long() -> Iterator[Kind]:
    """Tables of several series, with a label in each row."""
    labels = [("b", 0), ("a", 100)]
    both = {(name,): (seconds(DAYS), {"y": [round(v + more, 2) for v in VALUES]}) for name, more in labels}
    dates = [str(t.date()) for t in DAYS]
    rows = [(name, date, round(v + more, 2)) for name, more in labels for date, v in zip(dates, VALUES, strict=True)]
    mixed = sorted(rows, key=lambda row: row[1])
    for shape, chosen in (("blocks", rows), ("mixed", mixed)):
        for key, when, y in (("unique_id", "ds", "y"), ("device", "time", "y"), ("city", "date", "y")):
            yield Kind(
                f"{shape} by {key}",
                lines([key, when, y], chosen),
                both,
                note=f"series: one for each key in column '{key}'",
            )
    yield Kind(
        "target of GluonTS",
        lines(["item_id", "timestamp", "target", "price"], [(*row, k % 7) for k, row in enumerate(rows)]),
        {key: (times, {"target": columns["y"]}) for key, (times, columns) in both.items()},
        note="not the target",
    )
    yield plain(
        "target of Prophet",
        table(["ds", "y", "cap", "floor"], dates, VALUES, range(ROWS), range(ROWS)),
        DAYS,
        note="not the target: 'cap', 'floor'",
    )


def labels() -> Iterator[Kind]:
    """Several labels, labels that are numbers, and columns that are not labels."""
    dates = [str(t.date()) for t in DAYS]
    days = list(zip(dates, VALUES, strict=True))
    pairs = list(enumerate((shop, item) for shop in "xy" for item in "pq"))
    rows: list[tuple[Any, ...]] = [(*pair, date, value + 10 * k) for k, pair in pairs for date, value in days]
    two = {pair: (seconds(DAYS), {"y": [value + 10 * k for value in VALUES]}) for k, pair in pairs}
    yield Kind("two labels", lines(["shop", "item", "date", "y"], rows), two)
    shops = (1, 2, 3)
    rows = [(date, shop, value + shop) for date, value in days for shop in shops]
    three = {(str(shop),): (seconds(DAYS), {"y": [value + shop for value in VALUES]}) for shop in shops}
    yield Kind("numbered shops", lines(["date", "shop", "y"], rows), three)
    uneven = [("t", [t + timedelta(minutes=7 * k % 5) for k, t in enumerate(HOURS)]), ("h", HOURS[5:])]
    rows = [(f"sensor.{name}", VALUES[k], f"{t.isoformat()}Z") for name, times in uneven for k, t in enumerate(times)]
    yield Kind(
        "blocks of their own times",
        lines(["entity_id", "state", "last_changed"], rows),
        {(f"sensor.{name}",): (seconds(times), {"state": VALUES[: len(times)]}) for name, times in uneven},
    )
    yield plain(
        "constants and identifiers",
        table(
            ["date", "store", "product_id", "y", "year"],
            dates,
            [3] * ROWS,
            [1000 + k % 4 for k in range(ROWS)],
            VALUES,
            [2024] * ROWS,
        ),
        DAYS,
        note="left out as identifiers: 'product_id'",
    )
    yield plain("labels that are no series", table(["date", "weather", "y"], dates, ["sun", "rain"] * 15, VALUES), DAYS)


def across() -> Iterator[Kind]:
    """Tables with a column for each time."""
    yield Kind(
        "years across",
        table(["country", *map(str, range(1990, 2020))], ["p", "q"], *[[v, v] for v in VALUES]),
        {(name,): (seconds(YEARS), {"value": VALUES}) for name in "pq"},
    )
    long_days = [DAYS[0] + timedelta(days=k) for k in range(60)]
    for name, dates_across, write in (
        ("days", long_days, "{:%Y-%m-%d}"),
        ("compact days", long_days, "{:%Y%m%d}"),
        ("months", MONTHS, "{:%b-%y}"),
        ("compact months", MONTHS, "{:%Y%m}"),
        ("quarters", QUARTERS, "{0:%Y}Q{1}"),
        ("days of one month", long_days[:31], "{:%Y-%m-%d}"),
    ):
        values = [float(k % 7 + k) for k in range(len(dates_across))]
        yield Kind(
            f"{name} across",
            table(
                ["name", *[write.format(t, t.month // 3 + 1) for t in dates_across]],
                ["p", "q"],
                *[[v, v] for v in values],
            ),
            {(key,): (seconds(dates_across), {"value": values}) for key in "pq"},
        )
    filled = [*map(str, VALUES), *[""] * 6]
    for language in ("en", "fr"):
        yield plain(
            f"months across in {language}",
            table(
                [{"en": "Year", "fr": "Année"}[language], *NAMES[language]],
                [2022, 2023, 2024],
                *[filled[k::12] for k in range(12)],
            ),
            MONTHS,
            "value",
            note="each row is a year",
        )
    yield Kind(
        "numbered steps",
        table(["id", *[f"d_{k}" for k in range(ROWS)]], ["p", "q"], *[[v, v] for v in VALUES]),
        {(name,): ([float(k) for k in range(ROWS)], {"value": VALUES}) for name in "pq"},
    )
