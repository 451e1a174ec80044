"""Services of weather, energy, and laboratories, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.data.kind import (
    COUNTS,
    DAYS,
    HALVES,
    HOURS,
    LATE,
    MINUTES,
    OTHERS,
    ROWS,
    SECONDS,
    VALUES,
    Kind,
    both_of,
    decimal_comma,
    dump,
    export,
    rows_of,
    seconds,
    series_of,
)

WRITTEN = (
    # Services of weather and water.
    export("SYNOP of Meteo-France", HOURS,
           {"pmer": [None if k == 4 else 101000 + c for k, c in enumerate(COUNTS)],
            "t": [round(273.15 + v, 2) for v in VALUES], "ff": OTHERS},
           "numer_sta;date;pmer;t;ff\n",
           lambda r: f"07005;{r.t:%Y%m%d%H%M%S};{'mq' if r.k == 4 else 101000 + r.c};{273.15 + r.v:.2f};{r.o}"),
    export("Environment Canada", HOURS, {"Temp (°C)": VALUES, "Wind Spd (km/h)": OTHERS},
           '"Longitude (x)","Latitude (y)","Station Name","Climate ID","Date/Time (LST)","Year","Month","Day",'
           '"Time (LST)","Temp (°C)","Temp Flag","Wind Spd (km/h)"\n',
           lambda r: (f'"-75.67","45.32","OTTAWA","6106001","{r.t:%Y-%m-%d %H:%M}","2024","{r.t:%m","%d","%H:%M}",'
                      f'"{r.v}","","{r.o}"')),
    export("SNOTEL", DAYS,
           {"Snow Water Equivalent (in) Start of Day Values": VALUES,
            "Air Temperature Average (degF)": [None if k == 6 else o for k, o in enumerate(OTHERS)]},
           "#------------------------------------------------- WARNING --------\n#\n"
           "# The data have been quality checked\n#\n"
           "Date,Snow Water Equivalent (in) Start of Day Values,Air Temperature Average (degF)\n",
           lambda r: f"{r.t:%Y-%m-%d},{r.v},{r.o if r.k != 6 else ''}"),
    export("CDEC", HOURS, {"VALUE": [None if k == 7 else v for k, v in enumerate(VALUES)]},
           "STATION_ID,DURATION,SENSOR_NUMBER,SENSOR_TYPE,DATE TIME,OBS DATE,VALUE,DATA_FLAG,UNITS\n",
           lambda r: f"SHA,H,15,STORAGE,{r.t:%Y%m%d %H%M},{r.t:%Y%m%d %H%M},{'---' if r.k == 7 else r.v},,AF"),
    # Markets and homes.
    export("NESO demand", HALVES, {"ND": [10 * c for c in COUNTS], "TSD": [11 * c for c in COUNTS]},
           "SETTLEMENT_DATE,SETTLEMENT_PERIOD,ND,TSD\n",
           lambda r: f"{r.t:%d-%b-%Y},{r.t.hour * 2 + r.t.minute // 30 + 1},{r.c * 10},{r.c * 11}".upper()),
    export("OMIE", HOURS, {"column 5": VALUES, "column 6": OTHERS}, "MARGINALPDBC;\n",
           lambda r: f"2024;01;{r.t.day:02d};{r.t.hour + 1};{r.v};{r.o};", tail="*\n"),
    export("InTouch", LATE, {"Pump.Flow": VALUES, "Tank.Level": OTHERS},
           "$Date,$Time,Pump.Flow,Tank.Level\n", lambda r: f"{r.t:%m/%d/%y,%H:%M:%S},{r.v},{r.o}"),
    # Instruments and simulators.
    export("Arduino monitor", [k + 0.123 for k in range(ROWS)], {"column 2": VALUES, "column 3": OTHERS}, "",
           lambda r: f"{SECONDS[r.k]:%H:%M:%S}.123 -> {r.v},{r.o}"),
    export("Igor text", [k / 10 for k in range(ROWS)], {"wave0": VALUES},
           "IGOR\nWAVES/D\ttime0, wave0\nBEGIN\n", lambda r: f"\t{r.t}\t{r.v}", tail="END\n"),
    export("MassHunter", [6.0 * k + 3 for k in range(ROWS)], {"Y(Counts)": VALUES},
           '#"+ESI TIC Scan"\n#Point,X(Minutes),Y(Counts)\n', lambda r: f"{r.k},{r.k / 10 + 0.05:.4f},{r.v}"),
    export("Gen5 plate reader", [900.0 * k for k in range(ROWS)],
           {"T° 600": [37 + k % 3 / 10 for k in range(ROWS)], "A1": VALUES, "A2": OTHERS},
           "Software Version\t3.11\n\nExperiment File Path:\tC:\\a.xpt\n\n600\n\nTime\tT° 600\tA1\tA2\n",
           lambda r: f"{r.k // 4}:{r.k % 4 * 15:02d}:00\t37.{r.k % 3}\t{r.v}\t{r.o}"),
    export("Chromeleon", [0.6 * k for k in range(ROWS)], {"Value (mAU)": VALUES},
           "URL\tchrom://a\nInjection\tStd 1\n\nChromatogram Data:\nTime (min)\tStep (s)\tValue (mAU)\n",
           lambda r: f"{r.k / 100:.6f}\t{'0.60' if r.k else 'n.a.'}\t{r.v}".replace(".", ",").replace("n,a,", "n.a.")),
    export("Wireshark", [k * 0.25 + k * k % 7 / 100 for k in range(ROWS)], {"Length": COUNTS},
           '"No.","Time","Source","Destination","Protocol","Length","Info"\n',
           lambda r: f'"{r.k + 1}","{r.t:.6f}","10.0.0.{r.k % 3}","10.0.0.9","TCP","{r.c}","{r.k} > 80"'),
    export("GoldenCheetah", [float(k) for k in range(ROWS)],
           {"km": [round(k * 0.008, 3) for k in range(ROWS)], "power": [c // 10 for c in COUNTS],
            "hr": [100 + k % 7 for k in range(ROWS)], "cad": [80 + k % 5 for k in range(ROWS)], "alt": VALUES},
           "secs,km,power,hr,cad,alt\n",
           lambda r: f"{r.k},{r.k * 0.008:.3f},{r.c // 10},{100 + r.k % 7},{80 + r.k % 5},{r.v}"),
)  # fmt: skip


def weather() -> Iterator[Kind]:
    """Services of weather and water."""
    aemet = [
        {
            "fecha": f"{t:%Y-%m-%d}",
            "indicativo": "3195",
            "nombre": "MADRID",
            "tmed": decimal_comma(v),
            "prec": "Ip" if k % 9 == 4 else decimal_comma(o),
            "horatmin": "07:10",
        }
        for k, (t, v, o) in enumerate(zip(DAYS, VALUES, OTHERS, strict=True))
    ]
    rain = [None if k % 9 == 4 else o for k, o in enumerate(OTHERS)]
    yield series_of("AEMET", dump(aemet), DAYS, {"tmed": VALUES, "prec": rain})
    frost = [
        {
            "sourceId": "SN18700:0",
            "referenceTime": f"{t.isoformat()}.000Z",
            "observations": [
                {"elementId": "air_temperature", "value": v, "unit": "degC"},
                {"elementId": "wind_speed", "value": o, "unit": "m/s"},
            ],
        }
        for t, v, o in zip(HOURS, VALUES, OTHERS, strict=True)
    ]
    yield both_of(
        "Frost",
        dump({"@type": "ObservationResponse", "data": frost}),
        ("air_temperature", "wind_speed"),
        HOURS,
        "value",
    )


def stations() -> Iterator[Kind]:
    """Observations of stations, the newest first."""
    nws = [
        {
            "type": "Feature",
            "geometry": {"type": "Point", "coordinates": [-97, 39]},
            "properties": {
                "timestamp": f"{t.isoformat()}+00:00",
                "textDescription": "Clear",
                "temperature": {"unitCode": "wmoUnit:degC", "value": None if k == 3 else v, "qualityControl": "V"},
                "windSpeed": {"unitCode": "wmoUnit:km_h-1", "value": o, "qualityControl": "V"},
            },
        }
        for k, (t, v, o) in enumerate(zip(HOURS, VALUES, OTHERS, strict=True))
    ]
    yield series_of(
        "NWS observations",
        dump({"type": "FeatureCollection", "features": nws[::-1]}),
        HOURS,
        {
            "properties.temperature.value": [None if k == 3 else v for k, v in enumerate(VALUES)],
            "properties.windSpeed.value": OTHERS,
        },
    )


def forecasts() -> Iterator[Kind]:
    """Forecasts of weather and of solar power."""
    days = [
        {
            "date": f"2024-01-0{d + 1}",
            "date_epoch": 1704067200 + 86400 * d,
            "day": {"maxtemp_c": 30.5 + d},
            "hour": [
                {
                    "time_epoch": 1704067200 + 86400 * d + 3600 * h,
                    "time": f"2024-01-0{d + 1} {h:02d}:00",
                    "temp_c": VALUES[24 * d + h],
                    "wind_kph": OTHERS[24 * d + h],
                }
                for h in range(24 if not d else 6)
            ],
        }
        for d in range(2)
    ]
    yield series_of(
        "WeatherAPI",
        dump({"location": {"name": "Paris"}, "forecast": {"forecastday": days}}),
        HOURS,
        {
            "date_epoch": [1704067200 + 86400 * (k // 24) for k in range(ROWS)],
            "day.maxtemp_c": [30.5 + k // 24 for k in range(ROWS)],
            "temp_c": VALUES,
            "wind_kph": OTHERS,
        },
    )
    watts = {str(t): round(v) for t, v in zip(HALVES, VALUES, strict=True)}
    sums = {str(t): 1000 + 7 * k + k % 3 for k, t in enumerate(HALVES)}
    yield series_of(
        "Forecast.Solar",
        dump({"result": {"watts": watts, "watt_hours": sums}, "message": {"code": 0}}),
        HALVES,
        {"watts": [round(v) for v in VALUES], "watt_hours": list(sums.values())},
    )


def energy() -> Iterator[Kind]:
    """Markets and homes."""
    paris = [datetime(2024, 10, 26, 20) + timedelta(hours=k) for k in range(ROWS)]
    shown = [t + timedelta(hours=2 if t < datetime(2024, 10, 27, 1) else 1) for t in paris]
    yield series_of(
        "Tesla",
        rows_of(
            "Date time,Home (kW),From Powerwall (kW)\n",
            lambda k: f"{shown[k].isoformat()}+0{(shown[k] - paris[k]).seconds // 3600}:00,{VALUES[k]},{OTHERS[k]}",
        ),
        paris,
        {"Home (kW)": VALUES, "From Powerwall (kW)": OTHERS},
    )
    sense = "".join(
        f"{did},{name},{kind},,,{t:%Y-%m-%d %H:%M:%S},{v},{v / 1000}\n"
        for t, v, o in zip(HOURS, VALUES, OTHERS, strict=True)
        for did, name, kind, v in (("mains", "Total Usage", "", v), ("a1b2", "Fridge", "Fridge", o))
    )
    yield Kind(
        "Sense",
        f"Device ID,Name,Device Type,Device Make,Device Model,DateTime,Avg Wattage,kWh\n{sense}".encode(),
        {
            (n,): (seconds(HOURS), {"Avg Wattage": v, "kWh": [x / 1000 for x in v]})
            for n, v in (("mains", VALUES), ("a1b2", OTHERS))
        },
    )
    esphome = "".join(
        f"[{t:%H:%M:%S}][D][sensor:094]: 'Temperature': Sending state {v:.5f} °C with 1 decimals of accuracy\n"
        f"[{t:%H:%M:%S}][D][sensor:094]: 'Humidity': Sending state {o:.5f} % with 1 decimals of accuracy\n"
        for t, v, o in zip(MINUTES, VALUES, OTHERS, strict=True)
    )
    yield Kind(
        "ESPHome log",
        esphome.encode(),
        {
            (name,): ([60.0 * k for k in range(ROWS)], {"value": values})
            for name, values in (("Temperature (°C)", VALUES), ("Humidity (%)", OTHERS))
        },
        note="the values in 60 of 60 lines",
    )
    rtl = b"".join(
        dump({"time": str(t), "model": m, "id": i, "battery_ok": 1, "temperature_C": v}) + b"\n"
        for t, a, b in zip(MINUTES, VALUES, OTHERS, strict=True)
        for m, i, v in (("Acurite-Tower", 12, a), ("Nexus-TH", 77, b))
    )
    yield both_of("rtl_433", rtl, ("Acurite-Tower", "Nexus-TH"), MINUTES, "temperature_C")


def laboratories() -> Iterator[Kind]:
    """Instruments and simulators."""
    yield series_of(
        "ngspice",
        rows_of(
            "                                   * rc circuit\n                     Transient Analysis  Mon "
            "Jan  1 00:00:00  2024\n"
            + "-" * 60
            + "\nIndex   time            v(out)          v(in)\n"
            + "-" * 60
            + "\n",
            lambda k: f"{k}\t{k * 1e-6:.6e}\t{VALUES[k]:.6e}\t{OTHERS[k]:.6e}",
        ),
        [k * 1e-6 for k in range(ROWS)],
        {"v(out)": VALUES, "v(in)": OTHERS},
    )
    blocks = "\n\n".join(
        f'# "{n}"\n' + "\n".join(f"{k / 10} {v}" for k, v in enumerate(values))
        for n, values in (("first", VALUES), ("second", OTHERS))
    )
    yield Kind(
        "gnuplot blocks",
        f"# time value\n{blocks}\n".encode(),
        refused="50% of the rows repeat a time",
        mended={"time": "time"},
    )
