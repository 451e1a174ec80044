"""The rows that would come next in a series: when, at its own pace."""

from __future__ import annotations

from typing import Final

import numpy as np

from rfa.data.clock import local_seconds, utc_seconds
from rfa.data.durations import SECONDS, duration
from rfa.data.series import Series

MOST_AHEAD: Final = 10_000
# Lags by which a series goes on.
OF_LATE: Final = 25
DAY: Final = SECONDS["d"]
# Rows in which no weekend was seen, from which on there will be none.
WORKING_DAYS: Final = 10


def horizon(text: str) -> tuple[int, float]:
    """How many rows ahead, or how many seconds; the other is 0.

    Raises:
        ValueError: it is neither.
    """
    found = duration(text)
    if found is not None and found[1] is not None:
        return 0, found[0] * SECONDS[found[1]]
    if found is None or not found[0].is_integer():
        raise ValueError(
            f"--horizon takes a number of rows such as 24, of months as well, or a time such as 30min, 6h, 2 days or "
            f"1w, got {text!r}"
        )
    if found[0] > MOST_AHEAD:
        raise ValueError(f"--horizon takes at most {MOST_AHEAD:,} rows, got {text!r}")
    return int(found[0]), 0.0


def usual_step(series: Series) -> float:
    """The usual time between two rows; 0 where none differ in time."""
    return usual_lag(series.times)


def usual_lag(times: np.ndarray) -> float:
    """How far apart rows at these times `[N]` usually are of late, for a clock may have changed; 0 where no two
    differ."""
    lags = np.diff(times)
    lags = lags[lags > 0][-OF_LATE:]
    return float(np.median(lags)) if len(lags) else 0.0


def times_ahead(series: Series, text: str) -> np.ndarray:
    """The times of the rows that come next, `[M]`: so many, or all up to so much later, at the usual step.

    Where days, weeks, months or years are between two rows, the calendar of the zone is gone on with, and weekends are
    left out where there were none.

    Raises:
        ValueError: no row comes so soon, or too many do.
    """
    rows, seconds = horizon(text)
    step = usual_step(series) or (1.0 if series.clock is None else 0.0)
    if not step:
        raise ValueError("--horizon needs two rows that differ in time, to know when the next ones come")
    if not rows:
        if seconds / step > MOST_AHEAD:
            raise ValueError(f"--horizon {text} is more than {MOST_AHEAD:,} rows, which are {step:g} s apart")
        rows = int(seconds / step + 1) + 1  # those of a calendar may come a little sooner
    found = _next(series, step, rows)
    if seconds:
        found = found[found <= series.times[-1] + seconds * (1 + 1e-9)]
        if not len(found):
            raise ValueError(f"--horizon {text} is shorter than the time between two rows, {step:g} s")
    return found


def _next(series: Series, step: float, count: int) -> np.ndarray:
    even = series.times[-1] + step * np.arange(1, count + 1)
    if not series.is_dated:
        return even
    shown = local_seconds(series.times, series.zone)
    months = _months_ahead(shown, count)
    if months is not None:
        return utc_seconds(months, series.zone)
    lags = np.diff(shown)
    lag = float(np.median(lags[lags > 0]))
    if lag % DAY:
        return even
    has_weekends = lag != DAY or len(shown) < WORKING_DAYS or _is_weekend(shown).any()
    # Of ten days in a row at least six are none of a weekend.
    ahead = shown[-1] + lag * np.arange(1, (count if has_weekends else 2 * count + 4) + 1)
    return utc_seconds(ahead if has_weekends else ahead[~_is_weekend(ahead)][:count], series.zone)


def _months_ahead(shown: np.ndarray, count: int) -> np.ndarray | None:
    """The next times of a clock that shows the same day of a month each time, or the last one; None: it does not."""
    days = np.floor(shown / DAY).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    lags = np.diff(months.astype(np.int64))
    if not len(lags) or lags.min() < 1 or np.ptp(shown % DAY) != 0:
        return None
    days_in = (months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")
    place = days - months.astype("datetime64[D]")
    is_end = bool((place + 1 == days_in).all())
    if not is_end and np.ptp(place) != 0:
        return None
    ahead = months[-1] + int(np.median(lags)) * np.arange(1, count + 1)
    last = (ahead + 1).astype("datetime64[D]") - 1
    found = last if is_end else np.minimum(ahead.astype("datetime64[D]") + place[-1], last)
    return found.astype(np.int64) * DAY + shown[-1] % DAY


def _is_weekend(shown: np.ndarray) -> np.ndarray:
    """Of seconds since 1970, which began on a Thursday."""
    return (np.floor(shown / DAY).astype(np.int64) + 3) % 7 >= 5
