"""Files of programs: JSON, CSV and binary formats."""

from __future__ import annotations

import io
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tests.data.kind import (
    DAYS,
    HOURS,
    ROWS,
    SPREAD,
    VALUES,
    Kind,
    decimal_comma,
    dump,
    plain,
    seconds,
    table,
)

TIMES = seconds(HOURS)
# Times in whole seconds, and values.
POINTS = [[int(time), value] for time, value in zip(TIMES, VALUES, strict=True)]


def _two(*names: str, column: str) -> dict[Any, Any]:
    return {(name,): (TIMES, {column: VALUES}) for name in names}


def _numbered(cells: list[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(k), cell) for k, cell in enumerate(cells))


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


def monitors() -> Iterator[Kind]:
    """Replies of monitors to queries, in JSON."""
    pairs = [(t, str(v)) for t, v in POINTS]
    results = [{"metric": {"__name__": "up", "job": name}, "values": pairs} for name in "ab"]
    prometheus = {"status": "success", "data": {"resultType": "matrix", "result": results}}
    graphite = [{"target": name, "datapoints": [[v, t] for t, v in POINTS]} for name in "ab"]
    points = {str(t): v for t, v in POINTS}
    opentsdb = [{"metric": "m", "tags": {"host": name}, "dps": points} for name in "ab"]
    columns = {"columns": ["time", "value"], "values": POINTS}
    influx = {"results": [{"series": [{"name": "cpu", "tags": {"host": name}, **columns} for name in "ab"]}]}
    for name, document in (
        ("Prometheus", prometheus), ("Graphite", graphite), ("OpenTSDB", opentsdb), ("InfluxDB 1", influx),
    ):  # fmt: skip
        yield Kind(name, dump(document), _two("a", "b", column="value"))


def homes() -> Iterator[Kind]:
    """History and statistics of homes, and series of GluonTS."""
    history = [
        [
            {"entity_id": f"sensor.{name}", "state": str(v), "last_changed": f"{t.isoformat()}+00:00"}
            if not k
            else {"state": str(v), "last_changed": f"{t.isoformat()}+00:00"}
            for k, (t, v) in enumerate(zip(HOURS, VALUES, strict=True))
        ]
        for name in "ab"
    ]
    yield Kind("Home Assistant's history", dump(history), _two("sensor.a", "sensor.b", column="state"))
    hours = [{"start": t * 1000, "end": t * 1000 + 3600000, "mean": v} for t, v in POINTS]
    statistics = {f"sensor.{name}": hours for name in "ab"}
    yield Kind("Home Assistant's statistics", dump(statistics), _two("sensor.a", "sensor.b", column="mean"))
    gluon = [dump({"item_id": n, "start": "2024-01-01 00:00:00", "freq": "H", "target": VALUES}) for n in "ab"]
    yield Kind("GluonTS", b"\n".join(gluon), _two("a", "b", column="target"))


def json_tables() -> Iterator[Kind]:
    """Rows, columns and pairs in JSON."""
    texts = [t.isoformat() for t in HOURS]
    stamps = [t for t, _ in POINTS]
    items = [{"time": t, "y": v} for t, v in zip(texts, VALUES, strict=True)]
    hourly = {"time": [text[:16] for text in texts], "y": VALUES}
    by_row = {"time": dict(_numbered(stamps)), "y": dict(_numbered(VALUES))}
    for name, document in (
        ("rows of JSON", [{"t": t, "y": v} for t, v in POINTS]),
        ("rows in an object", {"meta": {"n": 30}, "data": {"items": items}}),
        ("columns of JSON", {"time": stamps, "y": VALUES}),
        ("columns in an object", {"latitude": 52.5, "hourly_units": {"y": "°C"}, "hourly": hourly}),
        ("split frame of pandas", {"columns": ["y"], "index": texts, "data": [[v] for v in VALUES]}),
        ("frame of pandas", by_row),
    ):
        yield plain(name, dump(document), HOURS)
    yield plain("pairs of JSON", dump(POINTS), HOURS, "value")
    yield plain("pairs of JSON, values first", dump([[v, t] for t, v in POINTS]), HOURS, "value")
    days = {str(t.date()): {"y": str(v)} for t, v in zip(DAYS, VALUES, strict=True)}
    yield plain("rows by their times", dump({"Meta": {"symbol": "X"}, "Series (Daily)": days}), DAYS)
    lines = [
        dump({"ts": f"{t.isoformat()}Z", "y": v, "tags": {"room": "x"}}) for t, v in zip(HOURS, VALUES, strict=True)
    ]
    yield plain("lines of JSON", b"\n".join(lines), HOURS)
    content = b"[" + b",".join(lines[:-1]).replace(b"20.0,", b"NaN,") + b"]"
    values = [None if v == 20.0 else v for v in VALUES[:-1]]
    yield plain("JSON with NaN", content, HOURS[:-1], values=values)


def csv_tables() -> Iterator[Kind]:
    """CSV of InfluxDB and Grafana, and encodings."""
    tables = (("host", "a", VALUES), ("room", "b", VALUES))
    yield Kind("annotated CSV with other labels", _influx(*tables), _two("a", "none", column="_value"))
    three = {(n,): (TIMES, {"_value": VALUES}) for n in "abc"}
    yield Kind("annotated CSV", _influx(*(("host", n, VALUES) for n in "abc")), three)
    texts = [f"{t:%Y-%m-%d %H:%M:%S}" for t in HOURS]
    sep = b"sep=,\n" + table(["Time", "y"], texts, [f'"{v} ms"' for v in VALUES])
    yield plain("Grafana with sep", sep, HOURS, "y (ms)")
    long = table(["Time", "Metric", "Value"], texts * 2, ["a"] * ROWS + ["b"] * ROWS, VALUES * 2)
    yield Kind("Grafana's long format", long, _two("a", "b", column="Value"))
    german = table(
        ["Zeit", "Außen °C"], [f"{t:%d.%m.%Y %H:%M}" for t in SPREAD], [decimal_comma(v) for v in VALUES], by=";"
    )
    yield plain("Latin-1", german.decode().encode("latin-1"), SPREAD, "Außen °C", note="Windows-1252")
    yield plain("UTF-16", german.decode().encode("utf-16"), SPREAD, "Außen °C")


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
