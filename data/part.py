"""A part of a series: from when to when, and on which clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from rfa.data.clock import local_seconds, utc_seconds, zone_of
from rfa.data.durations import SECONDS, duration
from rfa.data.series import Series

MOST_CELLS: Final = 20_000_000
HOUR, DAY, WEEK = SECONDS["h"], SECONDS["d"], SECONDS["w"]
# 1970 began on a Thursday: the first Monday is four days later.
FIRST_MONDAY: Final = 4 * DAY


def between(series: Series, start: str | None, end: str | None, zone: str) -> Series:
    """The rows from `start` on and before `end`.

    Raises:
        ValueError: a limit is no time of the series', or no row is left.
    """
    if start is None and end is None:
        return series
    low, high = (
        limit if text is None else _limit(text, series, zone) for text, limit in ((start, -np.inf), (end, np.inf))
    )
    chosen = (series.times >= low) & (series.times < high)
    if not chosen.any():
        first, last = (str(moment) for moment in series.moments(series.times[[0, -1]]))
        raise ValueError(
            f"no row lies from {start or 'the start'} to {end or 'the end'}: they go from {first} to {last}"
        )
    rows = None if series.rows is None else series.rows[chosen]
    return replace(series, times=series.times[chosen], values=series.values[chosen], rows=rows)


def _limit(text: str, series: Series, zone: str) -> float:
    try:
        if not series.is_dated:
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        told = "an ISO date such as 2024-03-31T12:00" if series.is_dated else "a number, as the series has no dates"
        raise ValueError(f"--from and --to take {told}, got {text!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone_of(zone))).timestamp()


def step_of(every: str) -> float:
    """The length of a cell in seconds.

    Raises:
        ValueError: it is no time above 0.
    """
    found = duration(every)
    if found is None or found[1] is None:
        raise ValueError(f"--every takes a time above 0 with its unit, such as 30s, 5min, 1h or 1d, got {every!r}")
    return found[0] * SECONDS[found[1]]


def regular(series: Series, every: str, zone: str) -> Series:
    """The series on a regular clock: the mean of what was observed in each cell, missing where nothing was.

    A cell has the time of its beginning. Cells begin at whole multiples of `every` on the clock that hangs in `zone`:
    those of days at midnight, of weeks on Mondays; where the times are numbers, at multiples of it from 0.

    Raises:
        ValueError: `every` is no time, or the cells would be too many.
    """
    step = step_of(every)
    if (series.times[-1] - series.times[0]) / step >= MOST_CELLS:
        raise ValueError(f"--every {every} would make more than {MOST_CELLS:,} rows: take a longer one")
    begins = FIRST_MONDAY if step % WEEK == 0 and series.is_dated else 0.0
    # A clock that is put back shows an hour twice: shorter cells keep both, longer ones keep to midnight.
    is_local = series.is_dated and step > HOUR and zone != "UTC"
    shift = begins - (0.0 if is_local or not series.is_dated else _offset(series.times[0], zone))
    shown = local_seconds(series.times, zone) if is_local else series.times
    cells = np.floor((shown - shift) / step).astype(np.int64)
    cells = np.maximum.accumulate(cells)  # of an hour that is shown twice, the second belongs to the later cell
    place = cells - cells[0]
    count = int(place[-1]) + 1
    values = np.full((count, series.values.shape[1]), np.nan)
    for k, column in enumerate(series.values.T):
        seen = ~np.isnan(column)
        number = np.bincount(place[seen], minlength=count)
        filled = number > 0
        # Less the first, so that a large level costs no digits.
        origin = column[seen][0] if seen.any() else 0.0
        total = np.bincount(place[seen], weights=column[seen] - origin, minlength=count)
        values[filled, k] = origin + total[filled] / number[filled]
    times = shift + step * (cells[0] + np.arange(count))
    times = utc_seconds(times, zone) if is_local else times
    empty = int(np.isnan(values).all(axis=1).sum())
    note = f"every {every}: the mean of what {len(series.times)} rows observed, {count} rows"
    note += f", {empty} of them without a value" if empty else ""
    return replace(series, times=times, values=values, rows=None, notes=(*series.notes, note))


def _offset(at: float, zone: str) -> float:
    """How far the clock of a zone was ahead of UTC."""
    offset = datetime.fromtimestamp(at, zone_of(zone)).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()
