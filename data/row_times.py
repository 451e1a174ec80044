"""The times of the rows of a table's series. One rule applies to all series."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rfa.data.clock import AmbiguousDates, Clock, read_clock
from rfa.data.series import Key

Groups = dict[Key, np.ndarray]


def count_rows(groups: Groups, rows: int) -> tuple[np.ndarray, Groups, Clock]:
    """Return the times 0, 1, 2, … in each series of a table without a time column."""
    times = np.full(rows, np.nan)
    for chosen in groups.values():
        times[chosen] = np.arange(len(chosen))
    return times, groups, Clock(times, "no time column: rows are one second apart", is_dated=False)


def read_times(
    column: Any, name: str, groups: Groups, refuse: Callable[[Key, ValueError], None], *,
    zone: str, time_format: str | None, first_row: int,
) -> tuple[np.ndarray, Groups, Clock]:  # fmt: skip
    """Return the times of the rows, the series whose times can be read, and how they were read.

    Args:
        column: the cells of all rows.
        refuse: called with series whose times cannot be read.

    Raises:
        ValueError: If no series can be read.
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
    """Return the series whose times can be read. Each is tried separately, and the others are refused."""
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
