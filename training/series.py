"""Recorded series: a numeric CSV with missing cells and an optional time column, and chronological splits."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from rfa.model.batch import Batch

TIME_NAMES = {"time", "t", "timestamp", "date", "datetime"}
MISSING = {"", "na", "nan", "null", "none", "-"}
# Chronological shares of training and validation; the rest is for tests.
SPLIT = (0.6, 0.2)


@dataclass(frozen=True)
class Series:
    """times `[N]` non-decreasing, values `[N, P]` (NaN = missing), names of the P columns; has_clock: times
    were given."""

    times: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    has_clock: bool = True


def _number(cell: str, row: int, name: str) -> float:
    if cell.strip().lower() in MISSING:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"row {row}, column {name!r}: not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"row {row}, column {name!r}: not finite")
    return value


def _time(cell: str, row: int, name: str) -> float:
    """A number, or an ISO date and time in seconds."""
    try:
        value = float(cell)
    except ValueError:
        try:
            value = datetime.fromisoformat(cell.strip()).timestamp()
        except ValueError:
            raise ValueError(f"row {row}, column {name!r}: neither a number nor an ISO date") from None
    if not math.isfinite(value):
        raise ValueError(f"row {row}, column {name!r}: not finite")
    return value


def _column(cells: Sequence[str], name: str, read: Callable[[str, int, str], float]) -> np.ndarray:
    """The numbers of a column: all at once where they are nothing else, else cell by cell."""
    try:
        plain = np.array(cells, np.float64)
    except ValueError:
        plain = np.array([math.nan])
    if np.isfinite(plain).all():
        return plain
    return np.array([read(cell, row, name) for row, cell in enumerate(cells, start=2)])


def load_csv(path: str | Path) -> Series:
    """Read a CSV with a header. Empty, NA, NaN and null cells are missing.

    The first column called time, t, timestamp, date or datetime is the times, else these are 0, 1, 2, … Dates become
    seconds.

    Raises:
        ValueError: no rows, no numeric column, a bad cell (row and column named) or times that decrease.
    """
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        raise ValueError("the CSV needs a header and at least one row")
    header, body = [name.strip() for name in rows[0]], rows[1:]
    for number, row in enumerate(body, start=2):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the header has {len(header)}")
    clock = next((i for i, name in enumerate(header) if name.lower() in TIME_NAMES), None)
    columns = [i for i in range(len(header)) if i != clock]
    if not columns:
        raise ValueError("the CSV has no column of values")
    values = np.stack([_column([row[i] for row in body], header[i], _number) for i in columns], axis=1)
    times = np.arange(len(body), dtype=np.float64)
    if clock is not None:
        times = _column([row[clock] for row in body], header[clock], _time)
    if (np.diff(times) < 0).any():
        raise ValueError(f"row {int(np.argmax(np.diff(times) < 0)) + 3}: times decrease")
    return Series(times, values, tuple(header[i] for i in columns), clock is not None)


def split(series: Series) -> tuple[Series, Series, Series]:
    """Training, validation and test part, in the order of time."""
    n = len(series.times)
    first, second = int(SPLIT[0] * n), int((SPLIT[0] + SPLIT[1]) * n)
    bounds = (slice(0, first), slice(first, second), slice(second, n))
    train, validation, test = (Series(series.times[b], series.values[b], series.names) for b in bounds)
    return train, validation, test


def windows(series: Series, length: int) -> Batch:
    """Overlapping windows (by half) as a batch; a series shorter than one window is one window."""
    n = len(series.times)
    if n < 2:
        raise ValueError(f"a split of the series has {n} rows; it needs at least 2")
    length = min(length, n)
    starts = range(0, n - length + 1, max(1, length // 2))
    return Batch(
        np.stack([series.times[s : s + length] for s in starts]),
        np.stack([series.values[s : s + length] for s in starts]),
    )
