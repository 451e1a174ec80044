"""Data loggers, and programs that load machines, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from tests.data.kind import (
    BEGIN,
    COUNTS,
    HOURS,
    LATE,
    MINUTES,
    OTHERS,
    QUARTER_HOURS,
    ROWS,
    TENS,
    VALUES,
    Kind,
    decimal_comma,
    dump,
    rows_of,
    seconds,
    series_of,
)


def loggers() -> Iterator[Kind]:
    """Data loggers, meters and sensors."""
    both = [(code, k) for k in range(ROWS) for code in ("1-0:1.8.0", "1-0:2.8.0")]
    lines = "".join(
        f"{QUARTER_HOURS[k]:%d.%m.%Y %H:%M};{code};{decimal_comma((VALUES, OTHERS)[code[4] == '2'][k])};kWh\n"
        for code, k in both
    )
    yield Kind(
        "OBIS codes",
        f"Zeitstempel;OBIS;Wert;Einheit\n{lines}".encode(),
        {
            ("1-0:1.8.0",): (seconds(QUARTER_HOURS), {"Wert": VALUES}),
            ("1-0:2.8.0",): (seconds(QUARTER_HOURS), {"Wert": OTHERS}),
        },
    )
    yield Kind(
        "candump",
        rows_of("", lambda k: f"(17040672{k:02d}.123456) can0 1F{k % 4}#DEADBEEF0000{k:02X}FF"),
        {
            (f"0x1F{each}",): (
                [1704067200.123456 + k for k in range(each, ROWS, 4)],
                {"byte 6": [*range(each, ROWS, 4)]},
            )
            for each in range(4)
        },
        note="each row is a frame of a CAN bus with its bytes as values",
    )


def load_tests() -> Iterator[Kind]:
    """Programs that watch or load machines."""
    hey = [
        f"{VALUES[k] / 1000:.4f},0.0010,0.0002,0.0001,{VALUES[k] / 1100:.4f},0.0001,200,{k * 7 % ROWS / 10:.4f}"
        for k in range(ROWS)
    ]
    head = "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n"
    yield Kind("hey", (head + "\n".join(hey)).encode(), refused="--time 'offset'", mended={"time": "offset"})


def sysstat() -> Iterator[Kind]:
    """Programs of the package sysstat."""
    stats = [
        {
            "timestamp": {"date": f"{t:%Y-%m-%d}", "time": f"{t:%H:%M:%S}", "utc": 1, "interval": 600},
            "cpu-load": [{"cpu": "all", "user": v, "idle": o}],
        }
        for t, v, o in zip(TENS, VALUES, OTHERS, strict=True)
    ]
    host = {"nodename": "a", "sysname": "Linux", "number-of-cpus": 8, "file-date": "2024-01-01", "statistics": stats}
    yield series_of(
        "sadf -j",
        dump({"sysstat": {"hosts": [host]}}),
        TENS,
        {"cpu-load.user": VALUES, "cpu-load.idle": OTHERS},
    )
    disks = [
        {
            "timestamp": f"{t:%m/%d/%Y %I:%M:%S %p}",
            "disk": [{"disk_device": "sda", "r/s": v, "w/s": o}, {"disk_device": "sdb", "r/s": o, "w/s": v}],
        }
        for t, v, o in zip([t + timedelta(days=20) for t in TENS], VALUES, OTHERS, strict=True)
    ]
    late = seconds([t + timedelta(days=20) for t in TENS])
    yield Kind(
        "iostat -o JSON",
        dump({"sysstat": {"hosts": [{"nodename": "a", "statistics": disks}]}}),
        {("sda",): (late, {"r/s": VALUES, "w/s": OTHERS}), ("sdb",): (late, {"r/s": OTHERS, "w/s": VALUES})},
    )


def networks() -> Iterator[Kind]:
    """Programs of operators and developers."""
    mtr = "".join(
        f"MTR.0.95,{1704067200 + 60 * k},OK,example.com,{hop},10.0.0.{hop},0.00,1, ,{v},{v}\n"
        for k, (a, b) in enumerate(zip(VALUES, OTHERS, strict=True))
        for hop, v in ((1, a), (2, b))
    )
    yield Kind(
        "mtr",
        f"Mtr_Version,Start_Time,Status,Host,Hop,Ip,Loss%,Snt, ,Last,Avg\n{mtr}".encode(),
        {(h,): (seconds(MINUTES), {"Last": v, "Avg": v}) for h, v in (("1", VALUES), ("2", OTHERS))},
    )
    iperf = [
        {
            "streams": [{"socket": 5, "start": k, "end": k + 1, "seconds": 1.0001, "bits_per_second": 1e6 * v}],
            "sum": {"start": k, "end": k + 1, "seconds": 1.0001, "bytes": COUNTS[k], "bits_per_second": 1e6 * v},
        }
        for k, v in enumerate(VALUES)
    ]
    yield series_of(
        "iperf3 JSON",
        dump({"start": {"timestamp": {"timesecs": 1704067200}}, "intervals": iperf, "end": {}}),
        [float(k) for k in range(ROWS)],
        {
            "streams.bits_per_second": [1e6 * v for v in VALUES],
            "sum.bytes": COUNTS,
            "sum.bits_per_second": [1e6 * v for v in VALUES],
            "bits_per_second": [1e6 * v for v in VALUES],
        },
    )
    esql = {
        "took": 3,
        "columns": [{"name": "@timestamp", "type": "date"}, {"name": "cpu", "type": "double"}],
        "values": [[f"{t.isoformat()}.000Z", v] for t, v in zip(HOURS, VALUES, strict=True)],
    }
    yield series_of("ES|QL", dump(esql), HOURS, {"cpu": VALUES})
    items = [
        {"ts": {"N": str(int(t))}, "temp": {"N": str(v)}, "room": {"S": "hall"}}
        for t, v in zip(seconds(HOURS), VALUES, strict=True)
    ]
    yield series_of("DynamoDB", dump({"Items": items, "Count": 30}), HOURS, {"temp.N": VALUES})
    runs = [{"command": f"sleep {n}", "mean": 1.0, "times": v} for n, v in (("a", VALUES), ("b", OTHERS))]
    yield Kind(
        "hyperfine",
        dump({"results": runs}),
        {(f"sleep {n}",): ([float(k) for k in range(ROWS)], {"value": v}) for n, v in (("a", VALUES), ("b", OTHERS))},
    )


def services() -> Iterator[Kind]:
    """Services, in JSON."""
    periods = [
        {
            "period": str(1704067200000 + 10000 * k),
            "counters": {"http.requests": COUNTS[k]},
            "summaries": {"http.response_time": {"min": 1, "p95": VALUES[k]}},
        }
        for k in range(ROWS)
    ]
    yield series_of(
        "Artillery",
        dump({"aggregate": {"counters": {"http.requests": 9}}, "intermediate": periods}),
        [BEGIN + timedelta(seconds=10 * k) for k in range(ROWS)],
        {"counters.http.requests": COUNTS, "summaries.http.response_time.p95": VALUES},
    )
    candles = [[int(t), v - 1, v + 1, o, v, 100 * v] for t, v, o in zip(seconds(HOURS), VALUES, OTHERS, strict=True)]
    yield series_of(
        "Coinbase",
        dump(candles[::-1]),
        HOURS,
        {
            "column 2": [v - 1 for v in VALUES],
            "column 3": [v + 1 for v in VALUES],
            "column 4": OTHERS,
            "column 5": VALUES,
            "column 6": [100 * v for v in VALUES],
        },
    )
    beats = [
        {"dateTime": f"{t:%m/%d/%y %H:%M:%S}", "value": {"bpm": c % 100 + 50, "confidence": k % 4}}
        for k, (t, c) in enumerate(zip(LATE, COUNTS, strict=True))
    ]
    yield series_of(
        "Fitbit heart rate",
        dump(beats),
        LATE,
        {"value.bpm": [c % 100 + 50 for c in COUNTS], "value.confidence": [k % 4 for k in range(ROWS)]},
    )
