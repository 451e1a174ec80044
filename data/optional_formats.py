"""Read file formats that need optional packages, which are Avro, NetCDF, HDF5 and DuckDB."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from rfa.data.json_values import check_cells, table_of_columns
from rfa.data.sqlite import choose_table, fetch
from rfa.data.table import Table

AVRO: Final = b"Obj\x01"
CLASSIC: Final = b"CDF"
# Lengths in seconds of the units of time axes in the CF conventions.
UNITS: Final = {
    "second": 1.0, "sec": 1.0, "s": 1.0, "minute": 60.0, "min": 60.0, "hour": 3600.0, "hr": 3600.0, "h": 3600.0,
    "day": 86400.0, "d": 86400.0, "millisecond": 1e-3, "msec": 1e-3, "microsecond": 1e-6,
}  # fmt: skip
ORIGIN: Final = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T]+(\d{1,2}):(\d{1,2})(?::(\d{1,2}(?:\.\d+)?))?)?")
CALENDARS: Final = ("standard", "gregorian", "proleptic_gregorian", "")


class Refusal(ValueError):
    """An error with a message of this module. Errors of the packages have other types."""


def read_optional(content: bytes) -> Table:
    """Return the table of an Avro, NetCDF or HDF5 file.

    Raises:
        ValueError: If the required package is not installed, or the file is damaged or has no table.
    """
    try:
        return _read_avro(content) if content.startswith(AVRO) else _read_netcdf(content)
    except Refusal:
        raise
    except Exception as error:  # each package has its own errors
        raise ValueError(f"the file cannot be read: {type(error).__name__}: {error}") from None


def read_duckdb(content: bytes, query: str | None) -> Table:
    """Return the rows of a query on a DuckDB database. Without a query, return the rows of its only table.

    Raises:
        ValueError: If duckdb is not installed, no query is given for several tables, or the query fails or returns no
            rows.
    """
    duckdb = _package("duckdb", "a DuckDB database")
    with tempfile.TemporaryDirectory(prefix="rfa-duckdb-") as folder:
        path = Path(folder) / "file.duckdb"
        try:
            path.write_bytes(content)
            with duckdb.connect(str(path), read_only=True, config={"enable_external_access": "false"}) as connection:
                names = [str(row[0]) for row in connection.execute("SHOW TABLES").fetchall()]
                return fetch(connection.execute(query if query is not None else choose_table(names)))
        except (duckdb.Error, OSError) as error:
            raise Refusal(f"DuckDB could not read the database or run the query: {error}") from None


def _package(name: str, kind: str) -> Any:
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise Refusal(
            f"reading {kind} needs {package}; install it with pip install {package}, or save the data as CSV or Parquet"
        ) from None


def _read_avro(content: bytes) -> Table:
    fastavro = _package("fastavro", "an Avro file")
    rows = []
    for row in fastavro.reader(io.BytesIO(content)):
        rows.append(row)
        check_cells(len(rows) * len(row))
    if not rows:
        raise Refusal("the file has no rows")
    return table_of_columns({str(name): [row.get(name) for row in rows] for name in rows[0]})


def _read_netcdf(content: bytes) -> Table:
    """Return the variables along the time axis. A time axis of the CF conventions becomes dates. A variable with
    further axes becomes one numbered column for each position on these axes."""
    if content.startswith(CLASSIC):
        netcdf = _package("scipy.io", "a NetCDF file")
        with netcdf.netcdf_file(io.BytesIO(content), mmap=False) as file:
            return _along_time(file.variables, lambda variable: dict(vars(variable)["_attributes"]))
    netcdf = _package("h5netcdf", "a NetCDF or HDF5 file")
    with netcdf.File(io.BytesIO(content), "r") as file:
        return _along_time(file.variables, lambda variable: dict(variable.attrs))


def _along_time(variables: Mapping[str, Any], attributes: Any) -> Table:
    units = {name: _text(attributes(variable).get("units", "")) for name, variable in variables.items()}
    time = next((name for name, unit in units.items() if " since " in unit), None)
    if time is None:
        raise Refusal("the file has no time axis with units such as 'hours since 1970-01-01'; save the data as CSV")
    axis, found = variables[time].dimensions[0], {}
    for name, variable in variables.items():
        if name == time or axis not in variable.dimensions:
            continue
        values = _unpacked(np.asarray(variable[:]), attributes(variable))
        values = np.moveaxis(values, variable.dimensions.index(axis), 0)
        values = values.reshape(len(values), -1)
        check_cells(values.size)
        for k, column in enumerate(values.T):
            found[f"{name} {k + 1}" if values.shape[1] > 1 else name] = column.tolist()
    if not found:
        raise Refusal(f"no variable depends on the time axis {time!r}; save the data as CSV")
    calendar = _text(attributes(variables[time]).get("calendar", ""))
    return table_of_columns({time: _cf_dates(np.asarray(variables[time][:]), units[time], calendar), **found})


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _unpacked(values: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """Return the numbers that stored numbers represent according to the CF conventions. Fill values become missing
    values, and the scale and the offset are applied."""
    fills: Sequence[Any] = [attributes[name] for name in ("_FillValue", "missing_value") if name in attributes]
    numbers = values.astype(np.float64)
    numbers[np.isin(values, np.ravel(fills))] = np.nan
    return numbers * float(attributes.get("scale_factor", 1.0)) + float(attributes.get("add_offset", 0.0))


def _cf_dates(numbers: np.ndarray, units: str, calendar: str) -> list[str]:
    unit, _, origin = units.partition(" since ")
    size = UNITS.get(unit.strip().lower()) or UNITS.get(unit.strip().lower().rstrip("s"))
    found = ORIGIN.match(origin.strip())
    if size is None or found is None or calendar.lower() not in CALENDARS:
        raise Refusal(
            f"times in {units!r} with the calendar {calendar or 'standard'!r} are not supported; save the data as CSV"
        )
    year, month, day, hour, minute = (int(part or 0) for part in found.groups()[:5])
    begin = np.datetime64(datetime(year, month, day, hour, minute), "us")
    microseconds = np.rint((numbers.astype(np.float64) * size + float(found[6] or 0)) * 1e6)
    return [f"{text}Z" for text in np.datetime_as_string(begin + microseconds.astype("timedelta64[us]"))]
