"""Select a range of a series, or resample a series to a regular step."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

import numpy as np

from rfa.data.clock import get_zone
from rfa.data.durations import SECONDS, duration
from rfa.data.local_time import local_seconds, utc_seconds
from rfa.data.series import Series

MOST_CELLS: Final = 20_000_000
HOUR, DAY, WEEK = SECONDS["h"], SECONDS["d"], SECONDS["w"]
# 1970-01-01 was a Thursday.
FIRST_MONDAY: Final = 4 * DAY


def select_range(series: Series, start: str | None, end: str | None, zone: str) -> Series:
    """Return the rows from `start` up to, but not including, `end`.

    Raises:
        ValueError: If a limit does not fit the times of the series, or no row is left.
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
            f"no rows between {start or 'the start'} and {end or 'the end'}; the rows range from {first} to {last}"
        )
    rows = None if series.rows is None else series.rows[chosen]
    return replace(series, times=series.times[chosen], values=series.values[chosen], rows=rows)


def _limit(text: str, series: Series, zone: str) -> float:
    try:
        if not series.is_dated:
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = (
            "an ISO date such as 2024-03-31T12:00" if series.is_dated else "a number, because the times are numbers"
        )
        raise ValueError(f"--from and --to must be {expected}, got {text!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=get_zone(zone))).timestamp()


def step_seconds(every: str) -> float:
    """Return the length of the resampling step `every` in seconds.

    Raises:
        ValueError: If `every` is not a positive duration with a unit.
    """
    found = duration(every)
    if found is None or found[1] is None:
        raise ValueError(
            f"--every must be a positive duration with its unit, such as 30s, 5min, 1h or 1d, got {every!r}"
        )
    return found[0] * SECONDS[found[1]]


def resample(series: Series, every: str, zone: str) -> Series:
    """Return a series that is resampled to a regular step by the mean of the observations in each interval. The value
    of an empty interval is missing.

    The time of an interval is its beginning, a multiple of `every` in the local time of `zone`. Days begin at midnight,
    and weeks on Mondays. If the times are numbers, intervals begin at multiples of the step from 0.

    Raises:
        ValueError: If `every` is not a duration, or gives too many rows.
    """
    step = step_seconds(every)
    if (series.times[-1] - series.times[0]) / step >= MOST_CELLS:
        raise ValueError(f"--every {every} gives more than {MOST_CELLS:,} rows, which is the limit; use a longer step")
    begins = FIRST_MONDAY if step % WEEK == 0 and series.is_dated else 0.0
    # In autumn an hour repeats. Intervals of up to an hour keep both, and longer ones are aligned to local midnight.
    is_local = series.is_dated and step > HOUR and zone != "UTC"
    shift = begins - (0.0 if is_local or not series.is_dated else _offset(series.times[0], zone))
    shown = local_seconds(series.times, zone) if is_local else series.times
    cells = np.floor((shown - shift) / step).astype(np.int64)
    cells = np.maximum.accumulate(cells)  # the second occurrence of a repeated hour belongs to the later interval
    place = cells - cells[0]
    count = int(place[-1]) + 1
    values = np.full((count, series.values.shape[1]), np.nan)
    for k, column in enumerate(series.values.T):
        seen = ~np.isnan(column)
        number = np.bincount(place[seen], minlength=count)
        filled = number > 0
        # Sums of differences to the first value do not lose digits to a large level.
        origin = column[seen][0] if seen.any() else 0.0
        total = np.bincount(place[seen], weights=column[seen] - origin, minlength=count)
        values[filled, k] = origin + total[filled] / number[filled]
    times = shift + step * (cells[0] + np.arange(count))
    times = utc_seconds(times, zone) if is_local else times
    empty = int(np.isnan(values).all(axis=1).sum())
    note = f"every {every}: {len(series.times)} rows averaged to {count} rows"
    note += f", {empty} of them empty" if empty else ""
    return replace(series, times=times, values=values, rows=None, notes=(*series.notes, note))


def _offset(at: float, zone: str) -> float:
    """Return the UTC offset of a time zone in seconds."""
    offset = datetime.fromtimestamp(at, get_zone(zone)).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()
