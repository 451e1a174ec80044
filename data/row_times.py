"""Read the times of the rows of all series in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rfa.data.clock import AmbiguousDates, Clock, read_clock
from rfa.data.series import Key

Groups = dict[Key, np.ndarray]


def count_rows(groups: Groups, rows: int) -> tuple[np.ndarray, Groups, Clock]:
    """Number the rows of each series from 0, for a table without a time column. Return the numbers as times, the
    series, and a description of the times."""
    times = np.full(rows, np.nan)
    for chosen in groups.values():
        times[chosen] = np.arange(len(chosen))
    return times, groups, Clock(times, "no time column: rows are one second apart", is_dated=False)


def read_times(
    column: Any, name: str, groups: Groups, refuse: Callable[[Key, ValueError], None], *,
    zone: str, time_format: str | None, first_row: int,
) -> tuple[np.ndarray, Groups, Clock]:  # fmt: skip
    """Return the times of the rows, the series whose times can be read, and how the times were read.

    Args:
        column: Cells of all rows.
        name: Name of the column.
        groups: Rows of each series.
        refuse: Function that is called with each series whose times cannot be read, and the error.
        zone: Time zone of times without a time zone.
        time_format: Format of the times. The format is detected if None.
        first_row: Number of the first row in the file.

    Raises:
        ValueError: If the times of no series can be read.
    """

    def read(groups: Groups) -> Clock:
        order = next(iter(groups.values())) if len(groups) == 1 else np.concatenate(list(groups.values()))
        chosen = column if len(groups) == 1 and len(order) == len(column) else column.take(order)
        begins = np.cumsum([0, *(len(rows) for rows in groups.values())])[:-1]
        return read_clock(chosen, name, zone=zone, time_format=time_format, rows=first_row + order, begins=begins)

    try:
        clock = read(groups)
    except AmbiguousDates:
        raise
    except ValueError:
        groups = _readable(groups, read, refuse)
        clock = read(groups)
    times, begin = np.full(len(column), np.nan), 0
    for rows in groups.values():
        times[rows] = clock.seconds(slice(begin, begin + len(rows)))
        begin += len(rows)
    return times, groups, replace(clock, note=f"times: column {name!r}, {clock.note}")


def _readable(groups: Groups, read: Callable[[Groups], Clock], refuse: Callable[[Key, ValueError], None]) -> Groups:
    """Return the series whose times can be read. The times of each series are read separately, and `refuse` is called
    with each series whose times cannot be read."""
    found, last = {}, None
    for key, rows in groups.items():
        try:
            read({key: rows})
            found[key] = rows
        except ValueError as error:
            last = error
            refuse(key, error)
    if not found and last is not None:
        raise last
    return found
