"""Read the series in the data of a caller, and warn about decisions made while reading."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rfa.data import Key, ReadOptions, Series, future_times, key_name, read_all, write_clock
from rfa.data import Table as LoadedTable
from rfa.library.frames import CLOCK_NAME, Clock, Data, FileData, data_of
from rfa.runtime.outputs import FilterWarning

# Notes that begin with one of these texts, or end with HARMLESS_END, are not shown as warnings.
HARMLESS: Final = (
    "times: ", "no time column", "left out", "rows were in reverse order", "date and time of day", "series: ", "sheet ",
    "annotated CSV", "SQLite: ", "each row is a series", "the values of 'target'",
)  # fmt: skip
HARMLESS_END: Final = "are missing values"

# Maximum number of series whose diagnostics are shown as warnings.
MOST_WARNED: Final = 5


@dataclass
class Table:
    """The data of a caller and the series that they contain.

    Attributes:
        data: Data of the caller.
        read: Table that the loader returned.
        series: Series by key. If there is only one series, its key is ().
        by: Names of the key columns.
        failed: Error messages of series that could not be read or processed.
        diagnostics: Warnings about the results of series.
    """

    data: Data
    read: LoadedTable
    series: dict[Key, Series]
    by: tuple[str, ...]
    failed: dict[Key, str] = field(default_factory=dict)
    diagnostics: dict[Key, list[FilterWarning]] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Number of columns with values, which is the same in all series."""
        return len(next(iter(self.series.values())).names)

    def each(self, work: Callable[[Key, Series], Any]) -> dict[Key, Any]:
        """Call `work` for each series, and return the results by key. Warn about series that failed, and about
        diagnostics of the results.

        Raises:
            ValueError: If all series failed.
        """
        found = {}
        for key, series in self.series.items():
            try:
                found[key] = work(key, series)
            except ValueError as error:
                if not self.by:
                    raise
                self.failed[key] = str(error)
        if left_out := describe_failures({key_name(key): reason for key, reason in self.failed.items()}):
            if not found:
                raise ValueError(left_out)
            warnings.warn(f"some data is left out: {left_out}", UserWarning, stacklevel=stack_level())
        for number, (key, warnings_of_series) in enumerate(self.diagnostics.items()):
            if number == MOST_WARNED:
                warnings.warn(
                    f"{len(self.diagnostics) - number} more series have warnings; check each of them separately",
                    UserWarning,
                    stacklevel=stack_level(),
                )
                break
            for warning in warnings_of_series:
                text = f"series {key_name(key)!r}: {warning.message}" if key else warning.message
                warnings.warn(text, UserWarning, stacklevel=stack_level())
        return found

    def future_times(self, series: Series, horizon: str) -> np.ndarray:
        """Return the times of the future rows up to `horizon`.

        Raises:
            ValueError: If the horizon is invalid for this series.
        """
        with _arguments():
            return future_times(series, horizon)

    def clock(self, series: Series, times: np.ndarray) -> Clock:
        """Return times in the format of the time column of a series. If the rows of the series are numbered, return the
        times as integers."""
        if series.clock is None:
            return {CLOCK_NAME: np.rint(times).astype(np.int64)}
        return write_clock(self.read, series, times)


def stack_level() -> int:
    """Return the `stacklevel` for `warnings.warn` that refers to the first caller outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("rfa."):
        frame, level = frame.f_back, level + 1
    return level


def describe_failures(failed: Mapping[str, str], kind: str = "series") -> str:
    """Describe the first series or file that failed, with its error, and the number of others. Return an empty string
    if none failed."""
    for name, reason in failed.items():
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{kind} {name!r}: {reason.removeprefix(f'{kind} {name!r}: ')}{more}"
    return ""


def read(
    data: Any,
    time: Any = None,
    columns: Sequence[str] | str = (),
    by: Sequence[str] | str = (),
    zone: str = "UTC",
    time_format: str | None = None,
    *,
    strict: bool = False,
    missing: Sequence[str | float] | str | float = (),
    known: Sequence[str] | str = (),
) -> Table:
    """Read the series in the data of a caller. Warn about decisions made while reading that may change values.

    Raises:
        ValueError: If an argument, column or row is invalid. The message names it and says what to do.
    """
    columns, by, known = ((one,) if isinstance(one, str) else tuple(one) for one in (columns, by, known))
    source_data = data_of(data, time, by)
    failed: dict[Key, str] = {}

    def refused(key: Key, error: ValueError) -> None:
        failed[key] = str(error)

    with _arguments():
        loaded = source_data.table
        source = loaded if isinstance(loaded, LoadedTable) else LoadedTable.of(loaded)
        words = [str(value) for value in ((missing,) if isinstance(missing, str | float | int) else missing)]
        options = ReadOptions(source_data.time, columns, by, zone, time_format, strict, missing=words, known=known)
        frame = read_all(source, options, refused)
    found = frame.series
    if isinstance(source_data, FileData):
        source_data.use(frame.table)
    elif len(frame.table) != len(source):
        raise ValueError("each row of the data is a series; use one row per value, for example with pandas.melt")
    table = Table(source_data, frame.table, found, frame.by, {key: _in_python(text) for key, text in failed.items()})
    notes: dict[str, Key] = {}
    for key, series in found.items():
        for note in series.notes:
            if not note.startswith(HARMLESS) and not note.endswith(HARMLESS_END):
                notes.setdefault(note, key)
    for note, key in notes.items():
        warnings.warn(
            _in_python(note if not key else f"series {key_name(key)!r}: {note}"), UserWarning, stacklevel=stack_level()
        )
    return table


def _in_python(message: str) -> str:
    """Return a message of the loader, in which command-line options are replaced by Python arguments."""
    return re.sub(r"--(\w+)(-(\w+))?", lambda found: found[1] + (f"_{found[3]}" if found[3] else ""), message)


@contextmanager
def _arguments() -> Any:
    try:
        yield
    except ValueError as error:
        raise ValueError(_in_python(str(error))) from None
