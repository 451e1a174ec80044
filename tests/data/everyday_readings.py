"""The right reading of each file in `everyday`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

EVERYDAY = Path(__file__).parent / "everyday"
HOUR = 3600.0
BERLIN = {"zone": "Europe/Berlin"}


def start(text: str) -> float:
    """Seconds since 1970 of a date in UTC."""
    return float(np.datetime64(text, "s").astype(np.int64))


# File: options, the keys, the names, the first times of the first series, its first values, and a note.
RIGHT: dict[str, tuple[dict[str, Any], list[tuple], list[str], list[float], list[float], str]] = {
    "all_zero.csv": ({}, [()], ["errors"], [start("2026-01-01"), start("2026-01-01T01")], [0, 0], "'time'"),
    "array.json": ({}, [()], ["value"], [1767225600, 1767225660], [10.02, 9.72], "seconds since 1970"),
    "autumn_local.csv": (
        BERLIN, [()], ["load"], [start("2026-10-21T22"), start("2026-10-21T23")], [495.2, 529.3], "Europe/Berlin"),
    "brackets.csv": (
        {}, [()], ["Revenue", "Profit"], [start("2025-01-13"), start("2025-01-14")], [9474.16, 8664.5], "brackets"),
    "constant_columns.csv": (
        {}, [()], ["units"], [start("2025-01-01"), start("2025-01-02")], [35, 32], "constant: 'store', 'item'"),
    "error_burst.csv": ({}, [()], ["errors"], [0, 60], [0, 0], "numbers"),
    "falling.csv": ({}, [()], ["users"], [start("2026-01-01"), start("2026-01-02")], [480, 488], "'date'"),
    "grafana_latency.csv": (
        {}, [()], ["p99 (ms)"], [start("2026-05-04T06"), start("2026-05-04T06:01")], [199, 487], "in ms; cells in s"),
    "grafana_network.csv": (
        {}, [()], ["eth0 received (B/s)"], [start("2026-05-04T06"), start("2026-05-04T06:01")], [331090, 149240],
        "in B/s"),
    "grafana_temperature.csv": (
        {}, [()], ["Value (°C)"], [start("2026-05-04T06"), start("2026-05-04T06:01")], [48.1, 48.2], "in °C"),
    "home_assistant.csv": (
        {}, [()], ["state"], [start("2026-03-01T00:02:36") + 0.257, start("2026-03-01T00:10:30") + 0.686], [19.2, 19.2],
        "'unavailable', 'unknown' are missing"),
    "home_assistant_several.csv": (
        {}, [("sensor.hall_temperature",), ("sensor.garden_humidity",), ("binary_sensor.back_door",)], ["state"],
        [start("2026-03-01T00:02:36") + 0.257, start("2026-03-01T00:10:30") + 0.686], [19.2, 19.2], "on and off"),
    "influx_hosts.csv": (
        {}, [("db01",), ("db02",)], ["_value"], [start("2026-02-01"), start("2026-02-01") + 20], [24.664, 24.7785],
        "series: one for each key in column 'host'"),
    "influx_tables.csv": (
        {}, [("usage_user",), ("running",)], ["_value"], [start("2026-02-01"), start("2026-02-01") + 20],
        [23.4835, 24.6129], "series: one for each key in column '_field'"),
    "lastgang.csv": (
        {}, [()], ["Verbrauch in kWh", "Außentemperatur (°C)"], [start("2026-01-01"), start("2026-01-01T01")],
        [1325.75, 1429.92], "Windows-1252"),
    "lines.jsonl": ({}, [()], ["bar"], [start("2026-03-01"), start("2026-03-01") + 300], [4.059, 3.988], "'device'"),
    "month_names.csv": ({}, [()], ["sales"], [start("2012-01-01"), start("2012-02-01")], [100, 116], "%b-%y"),
    "nightly_job.csv": ({}, [()], ["load"], [0, 300], [51.5, 50.7], "numbers"),
    "prometheus_range.json": (
        {}, [("a:9100",), ("b:9100",)], ["value"], [1767225600, 1767225630], [1.8304, 2.1515], "'NaN' are missing"),
    "quarters.csv": ({}, [()], ["gdp"], [start("1996-01-01"), start("1996-04-01")], [99.6, 104.1], "%YQ%q"),
    "sentinels.csv": (
        {}, [()], ["wind"], [start("2026-01-01"), start("2026-01-01T01")], [5.3, 7.2], "-999 (7 cells), 9999 (1"),
    "share.csv": (
        {}, [()], ["cpu_percent"], [start("2026-05-04T06"), start("2026-05-04T06:01")], [88.9, 86.1], "'time'"),
    "skewed.csv": ({}, [()], ["amount"], [start("2025-01-01"), start("2025-01-02")], [0.64, 3.285], "'date'"),
    "spare_parts.csv": ({}, [()], ["demand"], [start("2025-01-01"), start("2025-01-02")], [0, 0], "'date'"),
    "spring_utc.csv": (
        BERLIN, [()], ["load"], [start("2026-03-08"), start("2026-03-08T01")], [20.74, 19.08], "ISO dates"),
    "unix_ms.csv": ({}, [()], ["value"], [1767225600, 1767225615], [49.25, 47.09], "milliseconds since 1970"),
    "year_month.csv": (
        {}, [()], ["passengers"], [start("2012-01-01"), start("2012-02-01")], [198, 220], "'year' and 'month'"),
    "young_jump.csv": ({}, [()], ["y"], [0, 1], [0, 0], "no time column"),
}  # fmt: skip
