"""Files of several series, and files of programs."""

from __future__ import annotations

import io
import json
import sqlite3
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tests.data.kind import (
    DAYS,
    HOURS,
    MONTHS,
    NAMES,
    QUARTERS,
    ROWS,
    SPREAD,
    VALUES,
    YEARS,
    Kind,
    decimal_comma,
    plain,
    seconds,
    table,
)


def long() -> Iterator[Kind]:
    """Tables of several series."""
    labels = [("b", 0), ("a", 100)]
    both = {(name,): (seconds(DAYS), {"y": [round(v + more, 2) for v in VALUES]}) for name, more in labels}
    dates = [str(t.date()) for t in DAYS]
    rows = [(name, date, round(v + more, 2)) for name, more in labels for date, v in zip(dates, VALUES, strict=True)]
    mixed = sorted(rows, key=lambda row: row[1])
    for shape, chosen in (("blocks", rows), ("mixed", mixed)):
        for key, when, y in (("unique_id", "ds", "y"), ("device", "time", "y"), ("city", "date", "y")):
            yield Kind(
                f"{shape} by {key}",
                table([key, when, y], *map(list, zip(*chosen, strict=True))),
                both,
                note=f"series: column '{key}'",
            )
    yield Kind(
        "target of GluonTS",
        table(
            ["item_id", "timestamp", "target", "price"],
            *map(list, zip(*rows, strict=True)),
            [k % 7 for k in range(2 * ROWS)],
        ),
        {key: (times, {"target": columns["y"]}) for key, (times, columns) in both.items()},
        note="not the target",
    )
    yield plain(
        "target of Prophet",
        table(["ds", "y", "cap", "floor"], dates, VALUES, range(ROWS), range(ROWS)),
        DAYS,
        note="not the target: 'cap', 'floor'",
    )
    yield Kind(
        "two labels",
        table(
            ["shop", "item", "date", "y"],
            *map(
                list,
                zip(
                    *(
                        (shop, item, date, value + 10 * k)
                        for k, (shop, item) in enumerate((s, i) for s in "xy" for i in "pq")
                        for date, value in zip(dates, VALUES, strict=True)
                    ),
                    strict=True,
                ),
            ),
        ),
        {
            (shop, item): (seconds(DAYS), {"y": [value + 10 * k for value in VALUES]})
            for k, (shop, item) in enumerate((s, i) for s in "xy" for i in "pq")
        },
    )
    yield Kind(
        "numbered shops",
        table(
            ["date", "shop", "y"],
            *map(
                list,
                zip(
                    *(
                        (date, shop, value + shop)
                        for date, value in zip(dates, VALUES, strict=True)
                        for shop in (1, 2, 3)
                    ),
                    strict=True,
                ),
            ),
        ),
        {(str(shop),): (seconds(DAYS), {"y": [value + shop for value in VALUES]}) for shop in (1, 2, 3)},
    )
    uneven = [("t", [t + timedelta(minutes=7 * k % 5) for k, t in enumerate(HOURS)]), ("h", HOURS[5:])]
    yield Kind(
        "blocks of their own times",
        table(
            ["entity_id", "state", "last_changed"],
            *map(
                list,
                zip(
                    *(
                        (f"sensor.{name}", VALUES[k], f"{t.isoformat()}Z")
                        for name, times in uneven
                        for k, t in enumerate(times)
                    ),
                    strict=True,
                ),
            ),
        ),
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
        note="left out, identifiers: 'product_id'",
    )
    yield plain("labels that are no series", table(["date", "weather", "y"], dates, ["sun", "rain"] * 15, VALUES), DAYS)
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
        across = [float(k % 7 + k) for k in range(len(dates_across))]
        yield Kind(
            f"{name} across",
            table(
                ["name", *[write.format(t, t.month // 3 + 1) for t in dates_across]],
                ["p", "q"],
                *[[v, v] for v in across],
            ),
            {(key,): (seconds(dates_across), {"value": across}) for key in "pq"},
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


def _influx(*tables: tuple[str, str, list[Any]]) -> bytes:
    text = ""
    for number, (name, host, values) in enumerate(tables):
        header = f",result,table,_start,_time,_value,_field,{name}"
        text += "#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,double,string,string\n#default,_result,,,,,,\n"
        rows = [
            f",,{number},2024-01-01T00:00:00Z,{t.isoformat()}Z,{v},cpu,{host}"
            for t, v in zip(HOURS, values, strict=True)
        ]
        text += "\n".join([header, *rows]) + "\n\n"
    return text.encode()


def formats() -> Iterator[Kind]:
    """Files of programs."""
    times = seconds(HOURS)
    stamps = [int(time) for time in times]
    pairs = list(zip(stamps, map(str, VALUES), strict=True))
    two = {(name,): (times, {"value": VALUES}) for name in ("a", "b")}

    def dump(document: Any) -> bytes:
        return json.dumps(document).encode()

    yield Kind(
        "Prometheus",
        dump(
            {
                "status": "success",
                "data": {
                    "resultType": "matrix",
                    "result": [{"metric": {"__name__": "up", "job": name}, "values": pairs} for name in "ab"],
                },
            }
        ),
        two,
    )
    yield Kind(
        "Graphite",
        dump([{"target": name, "datapoints": [[v, t] for t, v in zip(stamps, VALUES, strict=True)]} for name in "ab"]),
        two,
    )
    yield Kind(
        "OpenTSDB",
        dump(
            [
                {"metric": "m", "tags": {"host": name}, "dps": {str(t): v for t, v in zip(stamps, VALUES, strict=True)}}
                for name in "ab"
            ]
        ),
        two,
    )
    yield Kind(
        "InfluxDB 1",
        dump(
            {
                "results": [
                    {
                        "series": [
                            {
                                "name": "cpu",
                                "tags": {"host": name},
                                "columns": ["time", "value"],
                                "values": [list(pair) for pair in zip(stamps, VALUES, strict=True)],
                            }
                            for name in "ab"
                        ]
                    }
                ]
            }
        ),
        two,
    )
    states = [
        [
            {"entity_id": f"sensor.{name}", "state": str(v), "last_changed": f"{t.isoformat()}+00:00"}
            if not k
            else {"state": str(v), "last_changed": f"{t.isoformat()}+00:00"}
            for k, (t, v) in enumerate(zip(HOURS, VALUES, strict=True))
        ]
        for name in "ab"
    ]
    yield Kind("Home Assistant's history", dump(states), {(f"sensor.{n}",): (times, {"state": VALUES}) for n in "ab"})
    yield Kind(
        "Home Assistant's statistics",
        dump(
            {
                f"sensor.{n}": [
                    {"start": t * 1000, "end": t * 1000 + 3600000, "mean": v}
                    for t, v in zip(stamps, VALUES, strict=True)
                ]
                for n in "ab"
            }
        ),
        {(f"sensor.{n}",): (times, {"mean": VALUES}) for n in "ab"},
    )
    yield Kind(
        "GluonTS",
        b"\n".join(dump({"item_id": n, "start": "2024-01-01 00:00:00", "freq": "H", "target": VALUES}) for n in "ab"),
        {(n,): (times, {"target": VALUES}) for n in "ab"},
    )
    yield plain("rows of JSON", dump([{"t": t, "y": v} for t, v in zip(stamps, VALUES, strict=True)]), HOURS)
    yield plain(
        "rows in an object",
        dump(
            {
                "meta": {"n": 30},
                "data": {"items": [{"time": t.isoformat(), "y": v} for t, v in zip(HOURS, VALUES, strict=True)]},
            }
        ),
        HOURS,
    )
    yield plain("columns of JSON", dump({"time": stamps, "y": VALUES}), HOURS)
    yield plain(
        "columns in an object",
        dump(
            {
                "latitude": 52.5,
                "hourly_units": {"y": "°C"},
                "hourly": {"time": [t.isoformat()[:16] for t in HOURS], "y": VALUES},
            }
        ),
        HOURS,
    )
    yield plain("pairs of JSON", dump([[t, v] for t, v in zip(stamps, VALUES, strict=True)]), HOURS, "value")
    yield plain(
        "pairs of JSON, values first", dump([[v, t] for t, v in zip(stamps, VALUES, strict=True)]), HOURS, "value"
    )
    yield plain(
        "split frame of pandas",
        dump({"columns": ["y"], "index": [t.isoformat() for t in HOURS], "data": [[v] for v in VALUES]}),
        HOURS,
    )
    yield plain(
        "frame of pandas",
        dump({"time": {str(k): t for k, t in enumerate(stamps)}, "y": {str(k): v for k, v in enumerate(VALUES)}}),
        HOURS,
    )
    yield plain(
        "rows by their times",
        dump(
            {
                "Meta": {"symbol": "X"},
                "Series (Daily)": {str(t.date()): {"y": str(v)} for t, v in zip(DAYS, VALUES, strict=True)},
            }
        ),
        DAYS,
    )
    lines = [
        dump({"ts": f"{t.isoformat()}Z", "y": v, "tags": {"room": "x"}}) for t, v in zip(HOURS, VALUES, strict=True)
    ]
    yield plain("lines of JSON", b"\n".join(lines), HOURS)
    yield plain(
        "JSON with NaN",
        b"[" + b",".join(lines[:-1]).replace(b"20.0,", b"NaN,") + b"]",
        HOURS[:-1],
        values=[None if v == 20.0 else v for v in VALUES[:-1]],
    )
    yield Kind(
        "annotated CSV with other labels",
        _influx(("host", "a", VALUES), ("room", "b", VALUES)),
        {(n,): (times, {"_value": VALUES}) for n in ("a", "none")},
    )
    yield Kind(
        "annotated CSV",
        _influx(*(("host", n, VALUES) for n in "abc")),
        {(n,): (times, {"_value": VALUES}) for n in "abc"},
    )
    yield plain(
        "Grafana with sep",
        b"sep=,\n" + table(["Time", "y"], [f"{t:%Y-%m-%d %H:%M:%S}" for t in HOURS], [f'"{v} ms"' for v in VALUES]),
        HOURS,
        "y (ms)",
    )
    yield Kind(
        "Grafana's long format",
        table(
            ["Time", "Metric", "Value"],
            [f"{t:%Y-%m-%d %H:%M:%S}" for t in HOURS] * 2,
            ["a"] * ROWS + ["b"] * ROWS,
            VALUES * 2,
        ),
        {(n,): (times, {"Value": VALUES}) for n in "ab"},
    )
    german = table(
        ["Zeit", "Außen °C"], [f"{t:%d.%m.%Y %H:%M}" for t in SPREAD], [decimal_comma(v) for v in VALUES], by=";"
    )
    yield plain("Latin-1", german.decode().encode("latin-1"), SPREAD, "Außen °C", note="Windows-1252")
    yield plain("UTF-16", german.decode().encode("utf-16"), SPREAD, "Außen °C")
    yield from files()


def files() -> Iterator[Kind]:
    """Binary files."""
    from pyarrow import feather, orc, parquet

    frame = pa.table({"time": HOURS, "y": VALUES})
    for name, write in (("Parquet", parquet.write_table), ("ORC", orc.write_table), ("Feather", feather.write_feather)):
        buffer = io.BytesIO()
        write(frame, buffer)
        yield plain(name, buffer.getvalue(), HOURS)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README.txt", "made up")
        archive.writestr("data/values.csv", table(["time", "y"], [t.isoformat() for t in HOURS], VALUES))
        archive.writestr("logo.png", b"\x89PNG")
    yield plain("ZIP with one table", buffer.getvalue(), HOURS)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.db"
        connection = sqlite3.connect(path)
        connection.execute("create table readings (time text, y real)")
        rows = [(t.isoformat(), v) for t, v in zip(HOURS, VALUES, strict=True)]
        connection.executemany("insert into readings values (?, ?)", rows)
        connection.commit()
        one = path.read_bytes()
        connection.execute("create table rooms (name text)")
        connection.commit()
        connection.close()
        several = path.read_bytes()
    yield plain("SQLite", one, HOURS)
    yield Kind("SQLite with tables", several, refused="--query 'SELECT * FROM readings'",
               mended={"query": "SELECT * FROM readings"})  # fmt: skip
    yield plain("SQLite with a query", several, HOURS, options={"query": "SELECT * FROM readings"})
