"""Data loggers, and programs that load machines, written before anything was run on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

from tests.data.kind import (
    BEGIN,
    COUNTS,
    DAYS,
    HOURS,
    LATE,
    MINUTES,
    OTHERS,
    QUARTER_HOURS,
    ROWS,
    SECONDS,
    TENS,
    VALUES,
    Kind,
    decimal_comma,
    rows_of,
    seconds,
    series_of,
)


def loggers() -> Iterator[Kind]:
    """Data loggers, meters and sensors."""
    yield series_of(
        "Wiener Netze",
        rows_of(
            "Datum;Zeit von;Zeit bis;Verbrauch [kWh] Zählpunkt AT001\n",
            lambda k: (
                f"{QUARTER_HOURS[k]:%d.%m.%Y;%H:%M:%S};{QUARTER_HOURS[k] + timedelta(minutes=15):%H:%M:%S};"
                f"{decimal_comma(VALUES[k])}"
            ),
        ),
        QUARTER_HOURS,
        {"Verbrauch [kWh] Zählpunkt AT001": VALUES},
    )
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
    yield series_of(
        "SMA Sunny Portal",
        rows_of(
            ";Anlage Dach / Gesamtertrag / Mittelwerte [kW]\n",
            lambda k: f"{k // 4:02d}:{k % 4 * 15:02d};{decimal_comma(VALUES[k])}",
        ),
        [900.0 * k for k in range(ROWS)],
        {"Anlage Dach / Gesamtertrag / Mittelwerte [kW]": VALUES},
    )
    yield series_of(
        "FusionSolar",
        rows_of(
            "Plant Report\nPlant Name:,Roof\n\nStatistical Period,PV Yield (kWh),Inverter Yield (kWh)\n",
            lambda k: f"{DAYS[k]:%Y-%m-%d},{VALUES[k]},{OTHERS[k]}",
        ),
        DAYS,
        {"PV Yield (kWh)": VALUES, "Inverter Yield (kWh)": OTHERS},
    )
    yield series_of(
        "SwitchBot",
        rows_of(
            "\ufeffDate,Temperature_Celsius(℃),Relative_Humidity(%),DPT_Celsius(℃)\n",
            lambda k: f"{MINUTES[k]:%Y/%m/%d %H:%M},{VALUES[k]},{COUNTS[k] // 50},{OTHERS[k]}",
        ),
        MINUTES,
        {"Temperature_Celsius(℃)": VALUES, "Relative_Humidity(%)": [c // 50 for c in COUNTS], "DPT_Celsius(℃)": OTHERS},
    )
    yield series_of(
        "Sensirion EDF",
        rows_of(
            "# EdfVersion=4.0 | Date=2024-01-01T00:00:00.000Z | DeviceName=SHT | Username=\n"
            "# Type=float,Format=.3f\t# Type=string\t# Type=float,Format=.2f,Unit=degC\n"
            "Epoch_UTC\tLocal_Date_Time\tT_SHT\tRH_SHT\n",
            lambda k: (
                f"{1704067200 + 60 * k}.000\t{MINUTES[k] + timedelta(hours=1):%Y-%m-%dT%H:%M:%S.000+01:00}\t"
                f"{VALUES[k]}\t{OTHERS[k]}"
            ),
        ),
        MINUTES,
        {"T_SHT": VALUES, "RH_SHT": OTHERS},
    )
    yield series_of(
        "Lascar",
        rows_of(
            "Cellar,Time,Celsius(°C),Humidity(%rh),Dew Point(°C),Serial Number\n",
            lambda k: (
                f"{k + 1},{TENS[k]:%Y-%m-%d %H:%M:%S},{VALUES[k]},{OTHERS[k]},{COUNTS[k] / 1000}"
                f"{',010023456' if not k else ''}"
            ),
        ),
        TENS,
        {"Celsius(°C)": VALUES, "Humidity(%rh)": OTHERS, "Dew Point(°C)": [c / 1000 for c in COUNTS]},
    )
    yield series_of(
        "Siglent scope",
        rows_of(
            "Record Length,Analog:30\nSample Interval,Analog:0.000002\nVertical Units,V\nVertical Scale,0.5\n"
            "Model Number,SDS1104\nSource,CH1\nSecond,Volt\n",
            lambda k: f"{(k - 15) * 2e-6:.8f},{VALUES[k]}",
        ),
        [(k - 15) * 2e-6 for k in range(ROWS)],
        {"Volt": VALUES},
    )
    yield series_of(
        "OBD Fusion",
        rows_of(
            "# StartTime = 01/31/2024 09:00:00.5000 AM\nTime (sec), Vehicle speed (MPH), Engine RPM (RPM)\n",
            lambda k: f"{k / 2}, {VALUES[k]}, {COUNTS[k]}",
        ),
        [k / 2 for k in range(ROWS)],
        {"Vehicle speed (MPH)": VALUES, "Engine RPM (RPM)": COUNTS},
    )
    yield series_of(
        "blackbox_decode",
        rows_of(
            "loopIteration, time (us), axisP[0], gyroADC[0]\n",
            lambda k: f"{8 * k}, {35104982 + 500 * k + k % 3}, {VALUES[k]}, {OTHERS[k]}",
        ),
        [(35104982 + 500 * k + k % 3) / 1e6 for k in range(ROWS)],
        {"axisP[0]": VALUES, "gyroADC[0]": OTHERS},
    )
    yield series_of(
        "ArduPilot",
        rows_of("TimeUS,Roll,Pitch\n", lambda k: f"{35104982 + 40000 * k + k % 3},{VALUES[k]},{OTHERS[k]}"),
        [(35104982 + 40000 * k + k % 3) / 1e6 for k in range(ROWS)],
        {"Roll": VALUES, "Pitch": OTHERS},
    )
    nmea = "".join(
        f"$GPGGA,{t:%H%M%S}.00,4807.038,N,01131.000,E,1,08,0.9,{o},M,46.9,M,,*47\n"
        f"$GPRMC,{t:%H%M%S}.00,A,4807.038,N,01131.000,E,{v},{o},{t:%d%m%y},003.1,W*6A\n"
        for t, v, o in zip(SECONDS, VALUES, OTHERS, strict=True)
    )
    yield series_of(
        "NMEA",
        nmea.encode(),
        SECONDS,
        {"altitude (m)": OTHERS, "speed (knots)": VALUES, "course (°)": OTHERS},
    )
    moving = "".join(
        f"$GNRMC,{t:%H%M%S},A,48{k:02d}.30,S,01131.00,W,,,{t:%d%m%y},,*00\n" for k, t in enumerate(MINUTES)
    )
    yield series_of(
        "NMEA to the south",
        moving.encode(),
        MINUTES,
        {"latitude": [round(-48 - (k + 0.3) / 60, 9) for k in range(ROWS)]},
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
        note="the bytes of the frames of a CAN bus",
    )
    yield series_of(
        "RTKLIB by week and seconds",
        rows_of(
            "% program   : RTKPOST ver.2.4.3\n% pos mode  : kinematic\n%\n"
            "%  GPST          latitude(deg) longitude(deg)  height(m)   Q  ns\n",
            lambda k: (
                f"2295 {86400 + k}.000   48.{100000 + 7 * k % 11}   11.{500000 + 13 * k % 17}   "
                f"{VALUES[k]:9.4f}   1  {8 + k % 3}"
            ),
        ),
        SECONDS,
        {
            "latitude(deg)": [float(f"48.{100000 + 7 * k % 11}") for k in range(ROWS)],
            "longitude(deg)": [float(f"11.{500000 + 13 * k % 17}") for k in range(ROWS)],
            "height(m)": VALUES,
            "ns": [8 + k % 3 for k in range(ROWS)],
        },
        note="GPS weeks, without leap seconds",
    )
    yield series_of(
        "Eve Home",
        rows_of(
            "Eve Room\nExported on 31/01/2024\n\nDate;Temperature in °C;Air Quality in ppb\n",
            lambda k: f"{TENS[k] + timedelta(days=20):%d/%m/%Y %H:%M:%S};{VALUES[k]};{COUNTS[k]}",
        ),
        [t + timedelta(days=20) for t in TENS],
        {"Temperature in °C": VALUES, "Air Quality in ppb": COUNTS},
    )


def load_tests() -> Iterator[Kind]:
    """Programs that watch or load machines."""
    hey = [
        f"{VALUES[k] / 1000:.4f},0.0010,0.0002,0.0001,{VALUES[k] / 1100:.4f},0.0001,200,{k * 7 % ROWS / 10:.4f}"
        for k in range(ROWS)
    ]
    head = "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n"
    yield Kind("hey", (head + "\n".join(hey)).encode(), refused="--time 'offset'", mended={"time": "offset"})
    yield series_of(
        "vegeta",
        rows_of(
            "", lambda k: f"{1704067200000000000 + 10**9 * k},200,{COUNTS[k] * 1000},0,1256,,attack,{k},GET,http://a/"
        ),
        SECONDS,
        {"column 3": [1000 * c for c in COUNTS]},
    )
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
        json.dumps({"sysstat": {"hosts": [host]}}).encode(),
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
        json.dumps({"sysstat": {"hosts": [{"nodename": "a", "statistics": disks}]}}).encode(),
        {("sda",): (late, {"r/s": VALUES, "w/s": OTHERS}), ("sdb",): (late, {"r/s": OTHERS, "w/s": VALUES})},
    )
    nmon = (
        "AAA,progname,nmon\nAAA,host,a\nCPU_ALL,CPU Total a,User%,Sys%,Wait%,Idle%,Busy,CPUs\nMEM,Memory "
        "MB a,memtotal,memfree\n"
    )
    nmon += "".join(
        f"ZZZZ,T{k + 1:04d},{TENS[k]:%H:%M:%S},{TENS[k]:%d-%b-%Y}\nCPU_ALL,T{k + 1:04d},{VALUES[k]},3.0,0.1,"
        f"{OTHERS[k]},,8\n"
        f"MEM,T{k + 1:04d},32000,{COUNTS[k]}\n"
        for k in range(ROWS)
    ).upper()
    yield series_of(
        "nmon",
        nmon.encode(),
        TENS,
        {"CPU_ALL User%": VALUES, "CPU_ALL Idle%": OTHERS, "MEM memfree": COUNTS},
    )
    yield series_of(
        "atop -P CPL",
        rows_of(
            "",
            lambda k: (
                f"CPL host {1704067200 + 600 * k} {TENS[k]:%Y/%m/%d %H:%M:%S} 600 8 "
                f"{VALUES[k]} {OTHERS[k]} 1.5 {COUNTS[k]} 900"
            ),
        ),
        TENS,
        {"column 7": VALUES, "column 8": OTHERS, "column 10": COUNTS},
    )
    yield series_of(
        "collectd",
        rows_of("epoch,value\n", lambda k: f"{1704067200 + 10 * k}.123,{VALUES[k]}"),
        [BEGIN + timedelta(seconds=10 * k, milliseconds=123) for k in range(ROWS)],
        {"value": VALUES},
    )
    gatling = "RUN\tsim.Basic\tbasic\t1704067200000\t \t3.9\n" + "".join(
        f"REQUEST\t\tlogin\t{1704067200000 + 1000 * k}\t{1704067200000 + 1000 * k + COUNTS[k]}\tOK\t \n"
        for k in range(ROWS)
    )
    yield series_of(
        "Gatling",
        gatling.encode(),
        SECONDS,
        {"duration (s)": [count / 1000 for count in COUNTS]},
        note="the time from each row's to it",
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
    yield series_of(
        "fping",
        rows_of(
            "",
            lambda k: f"[{1704067200 + k}.50000] 1.1.1.1 : [{k}], 64 bytes, {VALUES[k]} ms ({OTHERS[k]} avg, 0% loss)",
        ),
        [t + timedelta(milliseconds=500) for t in SECONDS],
        {"number 4 (ms)": VALUES, "avg": OTHERS},
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
        json.dumps({"start": {"timestamp": {"timesecs": 1704067200}}, "intervals": iperf, "end": {}}).encode(),
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
    yield series_of("ES|QL", json.dumps(esql).encode(), HOURS, {"cpu": VALUES})
    items = [
        {"ts": {"N": str(int(t))}, "temp": {"N": str(v)}, "room": {"S": "hall"}}
        for t, v in zip(seconds(HOURS), VALUES, strict=True)
    ]
    yield series_of("DynamoDB", json.dumps({"Items": items, "Count": 30}).encode(), HOURS, {"temp.N": VALUES})
    runs = [{"command": f"sleep {n}", "mean": 1.0, "times": v} for n, v in (("a", VALUES), ("b", OTHERS))]
    yield Kind(
        "hyperfine",
        json.dumps({"results": runs}).encode(),
        {(f"sleep {n}",): ([float(k) for k in range(ROWS)], {"value": v}) for n, v in (("a", VALUES), ("b", OTHERS))},
    )
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
        json.dumps({"aggregate": {"counters": {"http.requests": 9}}, "intermediate": periods}).encode(),
        [BEGIN + timedelta(seconds=10 * k) for k in range(ROWS)],
        {"counters.http.requests": COUNTS, "summaries.http.response_time.p95": VALUES},
    )
    candles = [[int(t), v - 1, v + 1, o, v, 100 * v] for t, v, o in zip(seconds(HOURS), VALUES, OTHERS, strict=True)]
    yield series_of(
        "Coinbase",
        json.dumps(candles[::-1]).encode(),
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
        json.dumps(beats).encode(),
        LATE,
        {"value.bpm": [c % 100 + 50 for c in COUNTS], "value.confidence": [k % 4 for k in range(ROWS)]},
    )
