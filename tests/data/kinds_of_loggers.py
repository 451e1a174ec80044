"""Data loggers, and programs that load machines, written before anything was run on them."""

from __future__ import annotations

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
    dump,
    export,
    rows_of,
    seconds,
    series_of,
)

WRITTEN = (
    # Data loggers, meters and sensors.
    export("Wiener Netze", QUARTER_HOURS, {"Verbrauch [kWh] Zählpunkt AT001": VALUES},
           "Datum;Zeit von;Zeit bis;Verbrauch [kWh] Zählpunkt AT001\n",
           lambda r: f"{r.t:%d.%m.%Y;%H:%M:%S};{r.t + timedelta(minutes=15):%H:%M:%S};{r.d}"),
    export("SMA Sunny Portal", [900.0 * k for k in range(ROWS)],
           {"Anlage Dach / Gesamtertrag / Mittelwerte [kW]": VALUES},
           ";Anlage Dach / Gesamtertrag / Mittelwerte [kW]\n", lambda r: f"{r.k // 4:02d}:{r.k % 4 * 15:02d};{r.d}"),
    export("FusionSolar", DAYS, {"PV Yield (kWh)": VALUES, "Inverter Yield (kWh)": OTHERS},
           "Plant Report\nPlant Name:,Roof\n\nStatistical Period,PV Yield (kWh),Inverter Yield (kWh)\n",
           lambda r: f"{r.t:%Y-%m-%d},{r.v},{r.o}"),
    export("SwitchBot", MINUTES,
           {"Temperature_Celsius(℃)": VALUES, "Relative_Humidity(%)": [c // 50 for c in COUNTS],
            "DPT_Celsius(℃)": OTHERS},
           "\ufeffDate,Temperature_Celsius(℃),Relative_Humidity(%),DPT_Celsius(℃)\n",
           lambda r: f"{r.t:%Y/%m/%d %H:%M},{r.v},{r.c // 50},{r.o}"),
    export("Sensirion EDF", MINUTES, {"T_SHT": VALUES, "RH_SHT": OTHERS},
           "# EdfVersion=4.0 | Date=2024-01-01T00:00:00.000Z | DeviceName=SHT | Username=\n"
           "# Type=float,Format=.3f\t# Type=string\t# Type=float,Format=.2f,Unit=degC\n"
           "Epoch_UTC\tLocal_Date_Time\tT_SHT\tRH_SHT\n",
           lambda r: (f"{1704067200 + 60 * r.k}.000\t{r.t + timedelta(hours=1):%Y-%m-%dT%H:%M:%S.000+01:00}\t"
                      f"{r.v}\t{r.o}")),
    export("Lascar", TENS,
           {"Celsius(°C)": VALUES, "Humidity(%rh)": OTHERS, "Dew Point(°C)": [c / 1000 for c in COUNTS]},
           "Cellar,Time,Celsius(°C),Humidity(%rh),Dew Point(°C),Serial Number\n",
           lambda r: (f"{r.k + 1},{r.t:%Y-%m-%d %H:%M:%S},{r.v},{r.o},{r.c / 1000}"
                      f"{',010023456' if not r.k else ''}")),
    export("Siglent scope", [(k - 15) * 2e-6 for k in range(ROWS)], {"Volt": VALUES},
           "Record Length,Analog:30\nSample Interval,Analog:0.000002\nVertical Units,V\nVertical Scale,0.5\n"
           "Model Number,SDS1104\nSource,CH1\nSecond,Volt\n",
           lambda r: f"{(r.k - 15) * 2e-6:.8f},{r.v}"),
    export("OBD Fusion", [k / 2 for k in range(ROWS)], {"Vehicle speed (MPH)": VALUES, "Engine RPM (RPM)": COUNTS},
           "# StartTime = 01/31/2024 09:00:00.5000 AM\nTime (sec), Vehicle speed (MPH), Engine RPM (RPM)\n",
           lambda r: f"{r.t}, {r.v}, {r.c}"),
    export("blackbox_decode", [(35104982 + 500 * k + k % 3) / 1e6 for k in range(ROWS)],
           {"axisP[0]": VALUES, "gyroADC[0]": OTHERS},
           "loopIteration, time (us), axisP[0], gyroADC[0]\n",
           lambda r: f"{8 * r.k}, {35104982 + 500 * r.k + r.k % 3}, {r.v}, {r.o}"),
    export("ArduPilot", [(35104982 + 40000 * k + k % 3) / 1e6 for k in range(ROWS)], {"Roll": VALUES, "Pitch": OTHERS},
           "TimeUS,Roll,Pitch\n", lambda r: f"{35104982 + 40000 * r.k + r.k % 3},{r.v},{r.o}"),
    export("RTKLIB by week and seconds", SECONDS,
           {"latitude(deg)": [float(f"48.{100000 + 7 * k % 11}") for k in range(ROWS)],
            "longitude(deg)": [float(f"11.{500000 + 13 * k % 17}") for k in range(ROWS)], "height(m)": VALUES,
            "ns": [8 + k % 3 for k in range(ROWS)]},
           "% program   : RTKPOST ver.2.4.3\n% pos mode  : kinematic\n%\n"
           "%  GPST          latitude(deg) longitude(deg)  height(m)   Q  ns\n",
           lambda r: (f"2295 {86400 + r.k}.000   48.{100000 + 7 * r.k % 11}   11.{500000 + 13 * r.k % 17}   "
                      f"{r.v:9.4f}   1  {8 + r.k % 3}"), note="GPS weeks, without leap seconds"),
    export("Eve Home", [t + timedelta(days=20) for t in TENS],
           {"Temperature in °C": VALUES, "Air Quality in ppb": COUNTS},
           "Eve Room\nExported on 31/01/2024\n\nDate;Temperature in °C;Air Quality in ppb\n",
           lambda r: f"{r.t:%d/%m/%Y %H:%M:%S};{r.v};{r.c}"),
    # Programs that watch or load machines.
    export("vegeta", SECONDS, {"column 3": [1000 * c for c in COUNTS]}, "",
           lambda r: f"{1704067200000000000 + 10**9 * r.k},200,{r.c * 1000},0,1256,,attack,{r.k},GET,http://a/"),
    export("atop -P CPL", TENS, {"column 7": VALUES, "column 8": OTHERS, "column 10": COUNTS}, "",
           lambda r: f"CPL host {1704067200 + 600 * r.k} {r.t:%Y/%m/%d %H:%M:%S} 600 8 {r.v} {r.o} 1.5 {r.c} 900"),
    export("collectd", [BEGIN + timedelta(seconds=10 * k, milliseconds=123) for k in range(ROWS)], {"value": VALUES},
           "epoch,value\n", lambda r: f"{1704067200 + 10 * r.k}.123,{r.v}"),
    # Programs of operators and developers.
    export("fping", [t + timedelta(milliseconds=500) for t in SECONDS], {"number 4 (ms)": VALUES, "avg": OTHERS}, "",
           lambda r: f"[{1704067200 + r.k}.50000] 1.1.1.1 : [{r.k}], 64 bytes, {r.v} ms ({r.o} avg, 0% loss)"),
)  # fmt: skip


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


def load_tests() -> Iterator[Kind]:
    """Programs that watch or load machines."""
    hey = [
        f"{VALUES[k] / 1000:.4f},0.0010,0.0002,0.0001,{VALUES[k] / 1100:.4f},0.0001,200,{k * 7 % ROWS / 10:.4f}"
        for k in range(ROWS)
    ]
    head = "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n"
    yield Kind("hey", (head + "\n".join(hey)).encode(), refused="--time 'offset'", mended={"time": "offset"})
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
