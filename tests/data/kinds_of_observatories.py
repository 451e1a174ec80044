"""Files of observatories, and tables that languages print, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.data.kind import (
    COUNTS,
    DAYS,
    HOURS,
    MINUTES,
    MONTHS,
    OTHERS,
    QUARTERS,
    ROWS,
    SECONDS,
    VALUES,
    Kind,
    dump,
    export,
    rows_of,
    seconds,
    series_of,
)

WRITTEN = (
    # Files of observatories and agencies.
    export("BADC-CSV", HOURS, {"air_temperature": VALUES, "wind_speed": OTHERS},
           "Conventions,G,BADC-CSV,1\ntitle,G,midas-open\nlong_name,air_temperature,air temp,degC\n"
           "last_revised_date,G,2024-02-01\ndata\nob_time,id,id_type,air_temperature,wind_speed\n",
           lambda r: f"{r.t:%Y-%m-%d %H:%M:%S},3772,WMO,{r.v},{r.o}", tail="end data\n"),
    export("AERONET", HOURS, {"AOD_500nm": VALUES},
           "AERONET Version 3;\nCart_Site\nVersion 3: AOD Level 1.5\nContact: PI=Jane Doe\n"
           "Date(dd:mm:yyyy),Time(hh:mm:ss),Day_of_Year,AOD_500nm,AOD_440nm\n",
           lambda r: f"{r.t:%d:%m:%Y,%H:%M:%S},{1 + r.k // 24},{r.v},-999.000000"),
    export("PANGAEA", HOURS, {"T air [°C]": VALUES, "RH [%]": OTHERS},
           "/* DATA DESCRIPTION:\nCitation:\tDoe, J (2024): Temperature. PANGAEA\n"
           "Event(s):\tX1 * LATITUDE: 78.9 * DATE/TIME: 2024-01-01T00:00:00\n*/\nDate/Time\tT air [°C]\tRH [%]\n",
           lambda r: f"{r.t:%Y-%m-%dT%H:%M}\t{r.v}\t{r.o}"),
    export("IAGA-2002", MINUTES,
           {"BOUH": [20000 + v for v in VALUES], "BOUD": OTHERS, "BOUZ": [40000 + v for v in VALUES]},
           " Format                 IAGA-2002                                    |\n"
           " Station Name           Boulder                                      |\n"
           " IAGA CODE              BOU                                          |\n"
           "DATE       TIME         DOY     BOUH      BOUD      BOUZ      BOUF   |\n",
           lambda r: (f"{r.t:%Y-%m-%d %H:%M:%S.000} 001     {20000 + r.v:.2f}  {r.o:9.2f}  "
                      f"{40000 + r.v:.2f}  99999.00")),
    export("UNR tenv3", DAYS,
           {"week": [2295 + (k + 1) // 7 for k in range(ROWS)], "__east(m)": [round(v / 100, 4) for v in VALUES],
            "_north(m)": [round(v / 100, 4) for v in OTHERS]},
           "site YYMMMDD yyyy.yyyy __MJD week d reflon _e0(m) __east(m) ____n0(m) _north(m)\n",
           lambda r: (f"P123 {r.t:%y%b%d} {2024 + r.k / 366:.4f} {60310 + r.k} {2295 + (r.k + 1) // 7} {(r.k + 1) % 7} "
                      f"-119.0 1234 {r.v / 100:.4f} 4567 {r.o / 100:.4f}".upper())),
    # Tables that languages print.
    export("Octave text", [k / 10 for k in range(ROWS)], {"x": VALUES},
           "# Created by Octave 8.4.0, Mon Jan 01 00:00:00 2024 UTC\n# name: x\n# type: matrix\n# rows: 30\n"
           "# columns: 2\n",
           lambda r: f" {r.t} {r.v}"),
    export("tibble", DAYS, {"value": VALUES, "other": OTHERS},
           "# A tibble: 30 × 3\n   date       value other\n   <date>     <dbl> <dbl>\n",
           lambda r: f"{r.k + 1:2d} {r.t:%Y-%m-%d} {r.v:5.2f} {r.o:5.1f}"),
    export("pandas series", DAYS, {"column 2": VALUES}, "",
           lambda r: f"{r.t:%Y-%m-%d}    {r.v:.2f}", tail="Freq: D, Name: y, Length: 30, dtype: float64\n"),
    export("Julia frame", DAYS, {"y": VALUES, "z": OTHERS},
           "30×3 DataFrame\n Row │ date        y        z\n     │ Date        Float64  Float64\n"
           "─────┼────────────────────\n",
           lambda r: f" {r.k + 1:3d} │ {r.t:%Y-%m-%d}  {r.v:7.2f}  {r.o:7.1f}"),
    export("MLflow metric", SECONDS, {"column 2": VALUES}, "",
           lambda r: f"{1704067200000 + 1000 * r.k} {r.v} {r.k}"),
    export("TensorBoard", [t + timedelta(milliseconds=250) for t in SECONDS], {"Value": VALUES},
           "Wall time,Step,Value\n", lambda r: f"{1704067200 + r.k}.25,{100 * r.k},{r.v}"),
    export("Weights and Biases", [50.0 * k for k in range(ROWS)],
           {"run-1 - loss": VALUES, "run-1 - loss__MIN": VALUES, "run-1 - loss__MAX": VALUES},
           '"Step","run-1 - loss","run-1 - loss__MIN","run-1 - loss__MAX"\n',
           lambda r: f'"{50 * r.k}","{r.v}","{r.v}","{r.v}"'),
)  # fmt: skip


def observatories() -> Iterator[Kind]:
    """Files of observatories."""
    icartt = (
        "13, 1001\nDoe, Jane\nInstitute\nOzone\nCAMPAIGN\n1, 1\n2024, 01, 01, 2024, 02, 01\n1\nTime_Start, "
        "seconds\n1\n1\n"
        "-9999\nTime_Start, Ozone_ppbv\n"
    )
    values = [-9999 if k == 5 else v for k, v in enumerate(VALUES)]
    yield series_of(
        "ICARTT",
        rows_of(icartt, lambda k: f"{36000 + k}, {values[k]}"),
        [36000.0 + k for k in range(ROWS)],
        {"Ozone_ppbv": [None if v == -9999 else v for v in values]},
    )
    head = "TIMESERIES IU_ANMO_00_BHZ_R, 30 samples, 1 sps, 2024-01-01T00:00:00.000000, "
    yield series_of(
        "TSPAIR",
        rows_of(f"{head}TSPAIR, INTEGER, Counts\n", lambda k: f"{SECONDS[k]:%Y-%m-%dT%H:%M:%S.000000}  {COUNTS[k]}"),
        SECONDS,
        {"Counts": COUNTS},
    )
    slist = "".join(" ".join(map(str, COUNTS[k : k + 6])) + "\n" for k in range(0, ROWS, 6))
    yield series_of("SLIST", f"{head}SLIST, INTEGER, Counts\n{slist}".encode(), SECONDS, {"Counts": COUNTS})
    flagged = [v if k % 9 else None for k, v in enumerate(VALUES)]
    lcd = [
        (f"{t:%Y-%m-%dT%H:%M:%S}", "FM-15", f"{v}{'' if k % 9 else 's'}", "")
        for k, (t, v) in enumerate(zip(HOURS, VALUES, strict=True))
    ]
    lcd.insert(24, ("2024-01-01T23:59:00", "SOD  ", "", "31"))
    yield series_of(
        "NCEI LCD",
        "\n".join(
            [
                '"STATION","DATE","REPORT_TYPE","HourlyDryBulbTemperature","DailyMaximumDryBulbTemperature"',
                *(f'"72509014739","{t}","{kind}","{hour}","{day}"' for t, kind, hour, day in lcd),
            ]
        ).encode(),
        [*HOURS[:24], datetime(2024, 1, 1, 23, 59), *HOURS[24:]],
        {"HourlyDryBulbTemperature": [*flagged[:24], None, *flagged[24:]]},
        note="'20.0s' is not a number",
    )


def agencies() -> Iterator[Kind]:
    """Files of agencies, in JSON."""
    quakes = [
        {
            "type": "Feature",
            "properties": {
                "mag": v,
                "place": f"{k} km N",
                "time": 1704067200000 + 3600000 * k,
                "updated": 1704067900000 + 3600000 * k,
                "tz": None,
                "sig": c,
            },
            "id": f"ci{k}",
            "geometry": {"type": "Point", "coordinates": [-117.0, 33.0, o]},
        }
        for k, (v, c, o) in enumerate(zip(VALUES, COUNTS, OTHERS, strict=True))
    ][::-1]
    yield series_of(
        "USGS earthquakes",
        dump({"type": "FeatureCollection", "metadata": {"generated": 1704170000000}, "features": quakes}),
        HOURS,
        {"properties.mag": VALUES, "properties.sig": COUNTS},
    )
    stat = {
        "version": "2.0",
        "class": "dataset",
        "id": ["geo", "time"],
        "size": [2, 30],
        "dimension": {
            "geo": {"category": {"index": {"DE": 0, "FR": 1}, "label": {"DE": "Germany", "FR": "France"}}},
            "time": {"category": {"index": {f"{t:%Y-%m}": k for k, t in enumerate(MONTHS)}}},
        },
        "value": {str(k): v for k, v in enumerate([*VALUES, *OTHERS])},
    }
    yield Kind(
        "JSON-stat",
        dump(stat),
        {("DE",): (seconds(MONTHS), {"value": VALUES}), ("FR",): (seconds(MONTHS), {"value": OTHERS})},
    )


def printed() -> Iterator[Kind]:
    """Tables that languages print."""
    quarters = "".join(
        f"{2010 + y} " + " ".join(f"{v:5.2f}" for v in VALUES[4 * y : 4 * y + 4]) + "\n" for y in range(7)
    )
    yield series_of(
        "R quarters", f"      Qtr1  Qtr2  Qtr3  Qtr4\n{quarters}".encode(), QUARTERS[:28], {"value": VALUES[:28]}
    )
    history = [{"epoch": k / 10, "learning_rate": 5e-05, "loss": VALUES[k], "step": 10 * (k + 1)} for k in range(ROWS)]
    state = {"best_metric": None, "epoch": 3.0, "global_step": 300, "log_history": history}
    yield series_of("trainer_state.json", dump(state), [k / 10 for k in range(ROWS)], {"loss": VALUES})
