"""Tasks of GIFT-Eval (Aksu et al. 2024) from the files that `gift_sources` brings to a folder.

A task is a data set at a frequency and a horizon. The last tenth of each series, at most 20 windows, is forecast. M4 is
forecast on the last window of each series. Coarser frequencies are means or sums of blocks of rows or of calendar
periods, without an incomplete last one. With these rules the seasonal naive forecast has the published MASE and WQL of
every task to 0.1 %, so the series are those of GIFT-Eval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from rfa.benchmarks.series.files import read_m4, read_r_matrix

Array = np.ndarray
TEST_SHARE, MOST_WINDOWS = 0.1, 20
MONDAY: Final = np.datetime64("2024-01-01T00:00:00")
# Season and shortest horizon of each frequency, in rows.
FREQUENCIES: Final = {
    "10S": (360, 60), "5T": (288, 48), "10T": (144, 48), "15T": (96, 48), "H": (24, 48), "D": (1, 30), "W": (1, 8),
    "M": (12, 12),
}  # fmt: skip
# Horizons in multiples of the shortest one. Daily and coarser series have the short one only.
TERMS: Final = {"short": 1, "medium": 10, "long": 15}
COARSE: Final = ("D", "W", "M")
# The sets that were looked at while the models were developed.
SEEN: Final = ("m4_hourly", "m4_weekly", "ett1")


class Rows(NamedTuple):
    """Times `[N]` of the rows, and columns `[N]` by name. Missing values are NaN."""

    times: Array
    columns: Mapping[str, Array]


class Window(NamedTuple):
    """Known times `[N]` and values `[N]` of a series, and the times and values to forecast, `[h]`."""

    series: str
    times: Array
    history: Array
    future: Array
    came: Array


class Task(NamedTuple):
    """Windows of one task, and the season in rows that scales its errors.

    The windows of each series are in the order of their origins.
    """

    name: str
    season: int
    windows: list[Window]


def is_seen(task: str) -> bool:
    """Return whether the data set of a task was looked at while the models were developed."""
    return task.split("/", maxsplit=1)[0] in SEEN


def full_name(task: str) -> str:
    """Return GIFT-Eval's name of a task."""
    return {"m4_hourly": "m4_hourly/H/short", "m4_weekly": "m4_weekly/W/short"}.get(task, task)


def tasks(data: Path) -> Iterator[Task]:
    """Return the tasks whose files exist."""
    yield from m4_tasks(data)
    for name, (file, read) in SETS.items():
        if (data / file).is_file():
            for frequency, rows in read(data / file):
                season, shortest = FREQUENCIES[frequency]
                for term, factor in TERMS.items():
                    if term == "short" or frequency not in COARSE:
                        yield Task(f"{name}/{frequency}/{term}", season, last_windows(rows, factor * shortest))


def m4_tasks(data: Path) -> Iterator[Task]:
    """Return the tasks of M4. Its series have no dates: they begin on a Monday."""
    for often, season, step in (("Hourly", 24, 3_600), ("Weekly", 1, 604_800)):
        parts = [data / "m4" / f"{often}-{part}.csv.gz" for part in ("train", "test")]
        if all(part.is_file() for part in parts):
            history, came = map(read_m4, parts)
            windows = []
            for (name, before), after in zip(history.items(), came.values(), strict=True):
                times = MONDAY + np.timedelta64(step, "s") * np.arange(len(before) + len(after))
                windows.append(Window(name, times[: len(before)], before, times[len(before) :], after))
            yield Task(f"m4_{often.lower()}", season, windows)


def last_windows(rows: Rows, horizon: int) -> list[Window]:
    """Return the last windows of each column."""
    length = len(rows.times)
    count = min(max(1, math.ceil(TEST_SHARE * length / horizon)), MOST_WINDOWS)
    cuts = [length - horizon * k for k in range(count, 0, -1)]
    return [
        Window(name, rows.times[:cut], column[:cut], rows.times[cut : cut + horizon], column[cut : cut + horizon])
        for cut in cuts
        for name, column in rows.columns.items()
    ]


def blocks(rows: Rows, length: int, combine: Callable[..., Array] = np.mean) -> Rows:
    """Combine each `length` rows into one at the time of the first, without an incomplete last block."""
    count = len(rows.times) // length
    columns = {
        name: combine(column[: count * length].reshape(count, length), axis=1) for name, column in rows.columns.items()
    }
    return Rows(rows.times[: count * length : length], columns)


def periods(rows: Rows, rule: str, combine: str = "mean") -> Rows:
    """Combine the rows of each calendar period, at the time of its beginning. Periods without rows are missing.

    Args:
        rule: Frequency of the periods, as in pandas.
    """
    index = pd.DatetimeIndex(rows.times)
    found = pd.DataFrame(dict(rows.columns), index).resample(rule).agg(combine)
    return Rows(found.index.to_numpy("datetime64[s]"), {str(name): found[name].to_numpy() for name in found})


def read_table(path: Path, columns: Callable[[str], bool] = lambda name: True) -> Rows:
    """Read a CSV file whose first column holds times in UTC."""
    table = pd.read_csv(path, index_col=0, encoding="latin1")
    times = pd.to_datetime(table.index, utc=True).tz_localize(None).to_numpy("datetime64[s]")
    return Rows(times, {name: table[name].to_numpy(np.float64) for name in table if columns(name)})


Frequencies = Iterator[tuple[str, Rows]]


def _ett(path: Path) -> Frequencies:
    rows = read_table(path)
    yield "15T", rows
    yield from (("H", blocks(rows, 4)), ("D", blocks(rows, 96)), ("W", blocks(rows, 672)))


def _births(path: Path) -> Frequencies:
    table = pd.read_csv(path, parse_dates=["date"])
    rows = Rows(table["date"].to_numpy("datetime64[s]"), {"births": table["births"].to_numpy(np.float64)})
    yield from (("D", rows), ("W", blocks(rows, 7, np.sum)), ("M", periods(rows, "MS", "sum")))


def _saugeen(path: Path) -> Frequencies:
    (flow,) = read_r_matrix(path)
    days = np.datetime64("1915-01-01", "D") + np.arange(len(flow))
    rows = Rows(days.astype("datetime64[s]"), {"flow": flow})
    yield from (("D", rows), ("W", blocks(rows, 7)), ("M", periods(rows, "MS")))


def _monthly(path: Path, first: str) -> Frequencies:
    found = read_r_matrix(path)
    times = np.datetime64(first, "M") + np.arange(found.shape[1])
    yield "M", Rows(times.astype("datetime64[s]"), {f"{number}": series for number, series in enumerate(found)})


def _sales(path: Path) -> Frequencies:
    given = read_table(path, lambda name: name.startswith("QTY"))
    step = np.timedelta64(86_400, "s")
    times = np.arange(given.times[0], given.times[-1] + step, step)
    at = np.searchsorted(times, given.times)
    columns = {name: np.full(len(times), np.nan) for name in given.columns}
    for name, column in given.columns.items():
        columns[name][at] = column
    rows = Rows(times, columns)
    yield from (("D", rows), ("W", blocks(rows, 7, np.nansum)))


def _weather(path: Path) -> Frequencies:
    """Read the weather file, which lacks some rows, repeats one, and ends with the first row of another year."""
    rows = read_table(path)
    yield "10T", periods(rows, "10min")
    for frequency, rule in (("H", "h"), ("D", "D")):
        found = periods(rows, rule)
        yield frequency, Rows(found.times[:-1], {name: column[:-1] for name, column in found.columns.items()})


def _application(path: Path) -> Frequencies:
    yield "10S", read_table(path, lambda name: name.endswith((":latency.mean", ":calls.sum")))


def _orders(path: Path) -> Frequencies:
    rows = read_table(path, lambda name: name.startswith(("Weekly average", "activity")))
    yield from (("5T", rows), ("H", blocks(rows, 12)))


# The file of each set, and the function that reads it at each frequency.
SETS: Final[dict[str, tuple[str, Callable[[Path], Frequencies]]]] = {
    "ett1": ("ett/ETTm1.csv.gz", _ett),
    "ett2": ("ett/ETTm2.csv.gz", _ett),
    "jena_weather": ("gift/weather.csv.gz", _weather),
    "us_births": ("gift/Births.csv", _births),
    "saugeen": ("gift/SaugeenDay.rda", _saugeen),
    "hospital": ("gift/hospital.rda", lambda path: _monthly(path, "2000-01")),
    "car_parts": ("gift/carparts.rda", lambda path: _monthly(path, "1998-01")),
    "hierarchical_sales": ("gift/hierarchical_sales_data.csv", _sales),
    "bizitobs_application": ("gift/Application.csv", _application),
    "bizitobs_l2c": ("gift/L2C.csv", _orders),
}
