"""The series in a caller's data, and what is said of reading them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rfa.data import Key, Series, key_name, read_frame
from rfa.data.clock import local_seconds
from rfa.library.frames import CLOCK_NAME, Column, Data, data_of
from rfa.library.models import plain_errors
from rfa.service.schemas.replies import FilterWarning

# What is always said, and nothing to look into.
PLAIN: Final = ("times: ", "no column of times", "left out, as they hold no measurements", "rows were in reverse")

# Series whose doubts are told.
MOST_DOUBTED: Final = 5


@dataclass
class Table:
    """A caller's data with the series that are in it.

    Attributes:
        series: by their keys; () where all rows are one.
        by: the columns that are keys.
        failed: the series that could not be had, and why.
        doubted: the series whose numbers should not be trusted, and why.
    """

    data: Data
    series: dict[Key, Series]
    by: tuple[str, ...]
    zone: str
    failed: dict[Key, str] = field(default_factory=dict)
    doubted: dict[Key, list[FilterWarning]] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Of values; all series have the same."""
        return len(next(iter(self.series.values())).names)

    def each(self, work: Callable[[Key, Series], Any]) -> dict[Key, Any]:
        """What is made of each series; one that fails is said, and costs the others nothing, and so are doubts.

        Raises:
            ValueError: all of them failed.
        """
        found = {}
        for key, series in self.series.items():
            try:
                with plain_errors():
                    found[key] = work(key, series)
            except ValueError as error:
                if not self.by:
                    raise
                self.failed[key] = str(error)
        first = next(iter(self.failed.items()), None)
        if first is not None:
            told = f"series {key_name(first[0])!r}: {first[1].removeprefix(f'series {key_name(first[0])!r}: ')}"
            more = f" (and {len(self.failed) - 1} more)" if len(self.failed) > 1 else ""
            if not found:
                raise ValueError(told + more)
            warnings.warn(f"left out: {told}{more}", UserWarning, stacklevel=4)
        for number, (key, doubts) in enumerate(self.doubted.items()):
            if number == MOST_DOUBTED:
                warnings.warn(
                    f"and of {len(self.doubted) - number} more series: look at each by itself",
                    UserWarning,
                    stacklevel=4,
                )
                break
            for doubt in doubts:
                text = f"series {key_name(key)!r}: {doubt.message}" if key else doubt.message
                warnings.warn(text, UserWarning, stacklevel=4)
        return found

    def clock(self, series: Series, times: np.ndarray) -> tuple[str, Column]:
        """Times of a series as its clock has them: dates of the same kind and zone, numbers of the same size."""
        if series.clock is None:
            return CLOCK_NAME, np.rint(times).astype(np.int64)
        column = self.data.table[series.clock] if series.clock in self.data.table.column_names else None
        return series.clock, _as_clock(times, column, series, self.zone)


def read(
    data: Any,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    zone: str = "UTC",
    time_format: str | None = None,
    *,
    strict: bool = False,
) -> Table:
    """The series in data; what was decided in reading them is warned of where it may change their numbers.

    Raises:
        ValueError: what is wrong with which argument, column or row, and what to do.
    """
    columns, by = ((one,) if isinstance(one, str) else tuple(one) for one in (columns, by))
    given = data_of(data, time, by)
    failed: dict[Key, str] = {}

    def refused(key: Key, error: ValueError) -> None:
        failed[key] = str(error)

    with _arguments():
        found = read_frame(
            given.table, time=given.time, columns=columns, by=by, zone=zone, time_format=time_format, strict=strict,
            refused=refused if by else None,
        )  # fmt: skip
    table = Table(given, found, by, zone, {key: _in_python(text) for key, text in failed.items()})
    notes: dict[str, Key] = {}
    for key, series in found.items():
        for note in series.notes:
            if not note.startswith(PLAIN):
                notes.setdefault(note, key)
    for note, key in notes.items():
        warnings.warn(_in_python(note if not key else f"series {key_name(key)!r}: {note}"), UserWarning, stacklevel=4)
    return table


def _in_python(message: str) -> str:
    """What the loader says of options, said of arguments."""
    return re.sub(r"--(\w+)(-(\w+))?", lambda found: found[1] + (f"_{found[3]}" if found[3] else ""), message)


@contextmanager
def _arguments() -> Any:
    try:
        yield
    except ValueError as error:
        raise ValueError(_in_python(str(error))) from None


def _as_clock(times: np.ndarray, column: Any, series: Series, zone: str) -> Column:
    kind = None if column is None else column.type
    if kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        last = int(series.rows[-1]) if series.rows is not None else 0
        counts = times * _per_second(float(column[last].as_py()), float(series.times[-1]))
        if pa.types.is_integer(kind) and np.allclose(counts, np.rint(counts), rtol=0, atol=1e-3):
            return np.rint(counts).astype(np.int64)
        return counts
    if not series.is_dated:
        return times
    if kind is not None and pa.types.is_date(kind):
        days = local_seconds(times, zone) / 86_400
        if np.allclose(days, np.rint(days), rtol=0, atol=1e-6):
            return pa.array(np.rint(days).astype(np.int32), pa.int32()).cast(pa.date32())
    unit, shown = (kind.unit, kind.tz) if kind is not None and pa.types.is_timestamp(kind) else ("us", zone)
    seconds = local_seconds(times, zone) if shown is None and zone != "UTC" else times
    stamps = pa.array(np.rint(1e6 * seconds).astype(np.int64)).cast(pa.timestamp("us", shown))
    try:
        return stamps.cast(pa.timestamp(unit, shown))
    except pa.ArrowInvalid:  # whole seconds were enough for the rows that there are
        return stamps


def _per_second(written: float, seconds: float) -> float:
    """How many units of a clock of numbers are a second."""
    ratio = written / seconds if seconds else 1.0
    return float(10.0 ** (3 * round(np.log10(ratio) / 3))) if ratio > 1.5 else 1.0
