"""Services of weather, energy, and laboratories, written before anything was run on them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from tests.data.kind import (
    DAYS,
    HALVES,
    HOURS,
    MINUTES,
    OTHERS,
    ROWS,
    VALUES,
    Kind,
    both_of,
    decimal_comma,
    dump,
    rows_of,
    seconds,
    series_of,
)


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
        note="values are read from 60 of 60 lines",
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
        refused="50% of the rows repeat the time of another row",
        mended={"time": "time"},
    )
