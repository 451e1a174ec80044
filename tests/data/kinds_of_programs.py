"""Files as programs, instruments and offices export them."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from tests.data.kind import (
    DAYS,
    HOURS,
    MONTHS,
    NAMES,
    QUARTERS,
    SPREAD,
    VALUES,
    YEARS,
    Kind,
    decimal_comma,
    dump,
    plain,
    seconds,
)

# All of them on days that may be months.
EARLY = [datetime(2024, k + 2, 1) for k in range(10)]


def rows(write: Callable[[Any, float], str], times: list[datetime]) -> str:
    return "\n".join(write(t, v) for t, v in zip(times, VALUES, strict=True))


def drawn() -> Iterator[Kind]:
    """Tables drawn as text."""
    line = "-" * 30
    sap = f"{line}\n|Buchungsdat.|Menge     |ME |\n{line}\n" + rows(
        lambda t, v: f"|{t:%d.%m.%Y}  |{decimal_comma(v):>10}|KG |", DAYS
    )
    yield plain("SAP list", f"{sap}\n{line}\n".encode(), DAYS, "Menge", note="border lines")
    psql = "         time          | y \n-----------------------+---\n" + rows(
        lambda t, v: f" {t:%Y-%m-%d %H:%M:%S}+00 | {v}", HOURS
    )
    yield plain("psql", f"{psql}\n(30 rows)\n".encode(), HOURS)
    box = "+---------------------+-------+"
    mysql = f"{box}\n| ts                  | y     |\n{box}\n" + rows(lambda t, v: f"| {t} | {v} |", HOURS)
    yield plain("mysql", f"{mysql}\n{box}\n30 rows in set (0.00 sec)\n".encode(), HOURS)
    yield plain("Markdown", ("| date | y |\n|:--|--:|\n" + rows(lambda t, v: f"| {t:%F} | {v} |", DAYS)).encode(), DAYS)
    fred = "Title:               Unemployment\nSeries ID:           UNRATE\n\nDATE         VALUE\n"
    yield plain("FRED's text", (fred + rows(lambda t, v: f"{t:%F}   {v:7.2f}", MONTHS)).encode(), MONTHS, "VALUE")
    ruled = "day         y\n----------  -----\n" + rows(lambda t, v: f"{t:%F}  {v:5.2f}", DAYS)
    yield plain("aligned below dashes", ruled.encode(), DAYS)


def exports() -> Iterator[Kind]:
    """CSV and JSON of programs."""
    lab = "Instrument:,UV-1800\nSample:,A12\nOperator:,mk\n\nTime (min),Absorbance\n(min),(AU)\n"
    yield Kind(
        "instrument with properties",
        (lab + "\n".join(f"{k / 2},{v}" for k, v in enumerate(VALUES))).encode(),
        {(): ([30.0 * k for k in range(len(VALUES))], {"Absorbance": VALUES})},
        note="numbers in min",
    )
    dwd = "STATIONS_ID;MESS_DATUM;QN_9;TT_TU;eor\n" + rows(lambda t, v: f"   1048;{t:%Y%m%d%H};  3;{v:8.2f};eor", HOURS)
    yield plain("hours without separators", dwd.encode(), HOURS, "TT_TU", note="dates as %Y%m%d%H")
    yield plain(
        "minutes without separators", ("x,y\n" + rows(lambda t, v: f"{t:%Y%m%d%H%M},{v}", HOURS)).encode(), HOURS
    )
    yield plain(
        "days without separators and name", ("x,y\n" + rows(lambda t, v: f"{t:%Y%m%d},{v}", DAYS)).encode(), DAYS
    )
    total = "# Audience Overview\n# 20240101-20240130\n\nDay Index,Users\n" + rows(
        lambda t, v: f"{t.month}/{t.day}/{t:%y},{v}", DAYS
    )
    yield plain("total below", f"{total}\n,187234\n".encode(), DAYS, "Users", note="1 rows at the end have no time")
    total = rows(lambda t, v: f"{t:%d.%m.%Y};{decimal_comma(v)}", DAYS)
    yield plain(
        "sum in words",
        f"Datum;Wert\n{total}\nSumme;1.234,5\n".encode(),
        DAYS,
        "Wert",
        note="rows at the end have no time",
    )
    cloud = "Label,CPU\n,i-0abc\n" + rows(lambda t, v: f"{t:%Y/%m/%d %H:%M:%S},{v}", HOURS)
    yield plain("label below the header", cloud.encode(), HOURS, "CPU", note="1 lines below the header are names")
    nth = "# Users\n# ------\nNth day,y\n" + "\n".join(f"{k:04d},{v}" for k, v in enumerate(VALUES))
    yield Kind("numbered days", nth.encode(), {(): ([float(k) for k in range(len(VALUES))], {"y": VALUES})})
    plc = "Record,Date,UTC Time,y\n" + "\n".join(
        f"{k},{t.month}/{t.day}/{t.year},{t:%H:%M:%S},{v}"
        for k, (t, v) in enumerate(zip([t + timedelta(days=20) for t in HOURS], VALUES, strict=True))
    )
    yield plain(
        "numbered records", plc.encode(), [t + timedelta(days=20) for t in HOURS],
        note="left out as row numbers or elapsed times: 'Record'",
    )  # fmt: skip


def wide() -> Iterator[Kind]:
    """Tables of statistics, dates of languages, and JSON of monitors."""
    names = (("Germany", "DEU"), ("France", "FRA"))
    bank = '"Data Source","World Development Indicators",\n\n"Country Name","Country Code","Indicator Name",'
    bank += ",".join(f'"{t.year}"' for t in YEARS) + ",\n"
    bank += "\n".join(f'"{n}","{c}","GDP",' + ",".join(f'"{v}"' for v in VALUES) + "," for n, c in names)
    yield Kind("World Bank", bank.encode(), {(n,): (seconds(YEARS), {"value": VALUES}) for n, _ in names})
    euro = "freq,geo\\TIME_PERIOD\t" + "\t".join(f"{t.year}-Q{t.month // 3 + 1} " for t in QUARTERS) + "\n"
    euro += "\n".join(f"Q,{g}\t" + "\t".join(f"{v} " for v in VALUES) for g in ("DE", "FR"))
    yield Kind("Eurostat", euro.encode(), {(f"Q,{g}",): (seconds(QUARTERS), {"value": VALUES}) for g in ("DE", "FR")})
    for name, write, times in (
        ("Czech", lambda t: f"{t.day}. {t.month}. {t.year}", DAYS),
        ("Japanese", lambda t: f"{t.year}年{t.month}月{t.day}日", DAYS),
        ("Korean", lambda t: f"{t.year}년 {t.month}월 {t.day}일", DAYS),
        ("JavaScript", lambda t: f"{t:%a %b %d %Y %H:%M:%S} GMT+0000", HOURS),
    ):
        table = "\n".join(f"{write(t)};{v}" for t, v in zip(times, VALUES, strict=True))
        yield plain(f"{name} dates", f"d;y\n{table}".encode(), times)
    e = [int(t) for t in seconds(HOURS)]
    buckets = [
        {"key_as_string": f"{t.isoformat()}.000Z", "key": 1000 * k, "doc_count": v}
        for k, t, v in zip(e, HOURS, VALUES, strict=True)
    ]
    document = {"aggregations": {"per_hour": {"buckets": buckets}}}
    yield plain("Elasticsearch", dump(document), HOURS, "doc_count", note="row numbers or elapsed times: 'key'")
    datapoints = [{"Timestamp": f"{t.isoformat()}Z", "Average": v} for t, v in zip(HOURS, VALUES, strict=True)]
    yield plain("CloudWatch", dump({"Label": "CPU", "Datapoints": datapoints[::-1]}), HOURS, "Average")


def parts() -> Iterator[Kind]:
    """Times in several columns, and labels beside and below them."""
    yield plain(
        "time of day with points",
        ("Data;Ora;y\n" + rows(lambda t, v: f"{t:%d/%m/%Y};{t:%H.%M.%S};{decimal_comma(v)}", SPREAD)).encode(),
        SPREAD,
    )
    yield plain(
        "Stooq",
        ("<TICKER>,<DATE>,<TIME>,<CLOSE>\n" + rows(lambda t, v: f"X.US,{t:%Y%m%d},{t:%H%M%S},{v}", HOURS)).encode(),
        HOURS,
        "<CLOSE>",
    )
    for name, year, names in (("Destatis", "Zeit", NAMES["de"]), ("years and months by name", "Year", NAMES["en"])):
        table = "\n".join(
            f"{t:%Y};{names[t.month - 1]};{decimal_comma(v)}" for t, v in zip(MONTHS, VALUES, strict=True)
        )
        yield plain(name, f"{year};Label;y\n{table}".encode(), MONTHS)
    ons = '"Title","Index"\n"CDID","D7BT"\n"Release date","20-03-2024"\n' + rows(
        lambda t, v: f'"{t:%Y} {t:%b}","{v}"'.upper(), MONTHS
    )
    yield plain("ONS", ons.encode(), MONTHS, "Index", note="2 lines below the header")
    usgs = "# USGS\nagency_cd\tsite_no\tdatetime\ty\n5s\t15s\t20d\t14n\n" + rows(
        lambda t, v: f"USGS\t0164\t{t:%Y-%m-%d %H:%M}\t{v}", HOURS
    )
    yield plain("USGS", usgs.encode(), HOURS)
    log = "time,y\n" + rows(lambda t, v: f"[{t:%d/%b/%Y:%H:%M:%S} +0000],{v}", HOURS)
    yield plain("times of web servers", log.encode(), HOURS)
    wide = "Province,Country,Lat," + ",".join(f"{t.month}/{t.day}/{t:%y}" for t in DAYS)
    wide += "".join(f"\n,{name},{k}.5," + ",".join(map(str, VALUES)) for k, name in enumerate("ab"))
    yield Kind("days across with places", wide.encode(), {(n,): (seconds(DAYS), {"value": VALUES}) for n in "ab"})
    nodes = [{"from": f"{t.isoformat()}Z", "used": v} for t, v in zip(HOURS, VALUES, strict=True)]
    homes = {"data": {"viewer": {"homes": [{"consumption": {"nodes": nodes}}]}}}
    yield plain("answer of GraphQL", dump(homes), HOURS, "used")
    points = [[1000 * t, v] for t, v in zip(seconds(HOURS), VALUES, strict=True)]
    series = [{"metric": "cpu", "scope": name, "pointlist": points} for name in "ab"]
    two = {(name,): (seconds(HOURS), {"value": VALUES}) for name in "ab"}
    yield Kind("Datadog", dump({"status": "ok", "series": series}), two)


def agencies() -> Iterator[Kind]:
    """Files of agencies, and of programs that write a point a line."""
    kibana = '"@timestamp per hour","y"\n' + rows(
        lambda t, v: f'"{t:%b} {t.day}, {t:%Y} @ {t:%H:%M:%S}.000","{v}"', HOURS
    )
    yield plain("Kibana", kibana.encode(), HOURS)
    yield plain("short years", ("DATE,y\n" + rows(lambda t, v: f"{t:%d %b %y},{v}", DAYS)).encode(), DAYS)
    bls = "Series ID,Year,Period,Value\n" + rows(lambda t, v: f"CUUR0,{t.year},M{t.month:02d},{v}", MONTHS)
    yield plain("BLS", bls.encode(), MONTHS, "Value")
    eia = "Back to Contents,Data 1\nSourcekey,WCEST\nDate,Stocks\n" + rows(lambda t, v: f"{t:%b-%Y},{v}", MONTHS)
    yield plain("EIA", eia.encode(), MONTHS, "Stocks")
    nasa = "-BEGIN HEADER-\nNASA/POWER Hourly Data\n-END HEADER-\nYEAR,MO,DY,HR,T2M\n" + rows(
        lambda t, v: f"{t.year},{t.month},{t.day},{t.hour},{v}", HOURS
    )
    yield plain("NASA POWER", nasa.encode(), HOURS, "T2M")
    co2 = "# CO2\nyear,month,decimal date,average\n" + rows(
        lambda t, v: f"{t.year},{t.month},{t.year + (t.month - 0.5) / 12:.4f},{v}", MONTHS
    )
    yield plain("decimal dates", co2.encode(), MONTHS, "average", note="calendar columns: 'decimal date'")
    two = {f"servers.{name}": (seconds(HOURS), {"value": VALUES}) for name in "ab"}
    points = [(name, int(t), v) for t, v in zip(seconds(HOURS), VALUES, strict=True) for name in "ab"]
    text = "\n".join(f"servers.{name} {v} {t}" for name, t, v in points)
    yield Kind("Graphite's plain text", text.encode(), {(name,): reading for name, reading in two.items()})
    text = "\n".join(f'cpu,host={name} used={v},on=t,text="a, b" {t}000000000' for name, t, v in points)
    lines = {(name,): (seconds(HOURS), {"used": VALUES}) for name in "ab"}
    yield Kind("line protocol", text.encode(), lines)


def ambiguous() -> Iterator[Kind]:
    """Days and months that other parts of the file tell apart."""
    values = VALUES[: len(EARLY)]
    day_first = [f"{t.day}/{t.month}/{t.year}" for t in EARLY]

    def made(name: str, header: str, write: Callable[[str, float], str], column: str, note: str) -> Kind:
        text = header + "\n" + "\n".join(write(t, v) for t, v in zip(day_first, values, strict=True))
        return plain(
            f"day first by {name}", text.encode(), EARLY, column, values=values, note=f"day first, because {note}"
        )

    yield made("decimal commas", "at;y", lambda t, v: f"{t};{decimal_comma(v)}", "y", "the file has decimal commas")
    yield made("semicolons", "at;y", lambda t, v: f"{t};{v}", "y", "semicolons separate")
    yield made("a word", "fecha,y", lambda t, v: f"{t},{v}", "y", "the header has the word 'fecha'")
    yield made("a currency", "at,y", lambda t, v: f"{t},£{v}", "y", "the file has € or £")
    pairs = enumerate(zip(day_first, values, strict=True))
    text = "at,until,y\n" + "\n".join(f"{t},{20 + k}/12/2024,{v}" for k, (t, v) in pairs)
    yield plain("day first by another column", text.encode(), EARLY, values=values, note="as in column 'until'")


def packed() -> Iterator[Kind]:
    """Compressed files and archives."""
    text = ("time,y\n" + rows(lambda t, v: f"{t.isoformat()},{v}", SPREAD)).encode()
    yield plain("xz", lzma.compress(text), SPREAD)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data/first.csv.gz", gzip.compress(text))
        archive.writestr("second.csv", "time,y\n2024-01-01,1\n")
    yield plain("chosen table of a ZIP", buffer.getvalue(), SPREAD, options={"sheet": "first.csv.gz"})
    cells = [f"{v}p" if k == 3 else str(v) for k, v in enumerate(VALUES)]
    one = ("at,y\n" + "\n".join(f"{t.isoformat()},{cell}" for t, cell in zip(HOURS, cells, strict=True))).encode()
    values = [None if k == 3 else v for k, v in enumerate(VALUES)]
    yield plain("a multiple without evidence", one, HOURS, values=values, note="p' is not a number (cells in total: 1)")
