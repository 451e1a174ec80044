"""The series in a caller's data, and what is said of reading them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from rfa.data import Key, Series, future_times, key_name, read_frame, write_clock
from rfa.data import Table as LoadedTable
from rfa.library.frames import CLOCK_NAME, Clock, Data, data_of
from rfa.runtime.outputs import FilterWarning

# Beginnings of notes that need no attention, so they are no warnings.
PLAIN: Final = (
    "times: ", "no time column", "left out, not measurements", "rows were in reverse order", "date and time of day",
)  # fmt: skip

# Series whose doubts are told.
MOST_DOUBTED: Final = 5


@dataclass
class Table:
    """A caller's data with the series that are in it.

    Attributes:
        read: the same as the loader has it.
        series: by their keys; () where all rows are one.
        by: the columns that are keys.
        failed: the series that could not be had, and why.
        doubted: the series whose numbers should not be trusted, and why.
    """

    data: Data
    read: LoadedTable
    series: dict[Key, Series]
    by: tuple[str, ...]
    failed: dict[Key, str] = field(default_factory=dict)
    diagnostics: dict[Key, list[FilterWarning]] = field(default_factory=dict)

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
                found[key] = work(key, series)
            except ValueError as error:
                if not self.by:
                    raise
                self.failed[key] = str(error)
        if left_out := describe_failures({key_name(key): reason for key, reason in self.failed.items()}):
            if not found:
                raise ValueError(left_out)
            warnings.warn(f"left out: {left_out}", UserWarning, stacklevel=4)
        for number, (key, warnings_of_series) in enumerate(self.diagnostics.items()):
            if number == MOST_DOUBTED:
                warnings.warn(
                    f"and of {len(self.diagnostics) - number} more series: look at each by itself",
                    UserWarning,
                    stacklevel=4,
                )
                break
            for warning in warnings_of_series:
                text = f"series {key_name(key)!r}: {warning.message}" if key else warning.message
                warnings.warn(text, UserWarning, stacklevel=4)
        return found

    def future_times(self, series: Series, horizon: str) -> np.ndarray:
        """The times of the rows that come next; the errors are those of the loader's."""
        with _arguments():
            return future_times(series, horizon)

    def clock(self, series: Series, times: np.ndarray) -> Clock:
        """Times of a series as its clock is written; whole numbers where rows are counted."""
        if series.clock is None:
            return {CLOCK_NAME: np.rint(times).astype(np.int64)}
        return write_clock(self.read, series, times)


def describe_failures(failed: Mapping[str, str]) -> str:
    """The first of the series that failed, why, and how many more there are; nothing where there is none."""
    for name, reason in failed.items():
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"series {name!r}: {reason.removeprefix(f'series {name!r}: ')}{more}"
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
        source = LoadedTable.of(given.table)
        found = read_frame(
            source, time=given.time, columns=columns, by=by, zone=zone, time_format=time_format, strict=strict,
            refused=refused if by else None,
        )  # fmt: skip
    table = Table(given, source, found, by, {key: _in_python(text) for key, text in failed.items()})
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
