"""Files of observatories, and tables that languages print, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from tests.data.kind import (
    COUNTS,
    HOURS,
    MONTHS,
    OTHERS,
    QUARTERS,
    ROWS,
    SECONDS,
    VALUES,
    Kind,
    dump,
    rows_of,
    seconds,
    series_of,
)


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
