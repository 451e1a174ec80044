"""Compute the times of the next rows of a series."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from rfa.data.durations import SECONDS, duration
from rfa.data.local_time import local_seconds, utc_seconds
from rfa.data.series import Series
from rfa.data.weekly_times import weekly_times

MOST_AHEAD: Final = 10_000
# Number of the last time steps from which the typical step is computed.
OF_LATE: Final = 25
DAY: Final = SECONDS["d"]
# Maximum time step in seconds, and default number of rows to forecast. Default number if rows are numbered.
USUAL: Final = "usual"
USUAL_ROWS: Final = (
    (90.0, 60), (1.5 * SECONDS["h"], 24), (1.5 * DAY, 7), (8 * DAY, 8), (32 * DAY, 12), (93 * DAY, 4), (np.inf, 5),
)  # fmt: skip
UNDATED_ROWS: Final = 12


def parse_horizon(text: str) -> tuple[int, float]:
    """Parse a horizon. Return the number of rows and 0, or, for a duration, 0 and the seconds.

    Raises:
        ValueError: If the text is neither a number of rows nor a duration.
    """
    found = duration(text)
    if found is not None and found[1] is not None:
        return 0, found[0] * SECONDS[found[1]]
    if found is None or not found[0].is_integer():
        raise ValueError(
            "--horizon must be a number of rows such as 24, or a duration such as 30min, 6h, 2 days "
            f"or 1w, got {text!r}; if rows are months, specify a number of rows"
        )
    if found[0] > MOST_AHEAD:
        raise ValueError(f"--horizon must be at most {MOST_AHEAD:,} rows, got {text!r}")
    return int(found[0]), 0.0


def usual_step(series: Series) -> float:
    """Return the typical time between two rows, or 0 if all times are equal."""
    return usual_lag(series.times)


def usual_lag(times: np.ndarray) -> float:
    """Return the typical time step of times `[N]`, which is the median of the last OF_LATE positive steps, because the
    sampling rate may change. Return 0 if all times are equal."""
    lags = np.diff(times)
    lags = lags[lags > 0][-OF_LATE:]
    return float(np.median(lags)) if len(lags) else 0.0


def usual_rows(series: Series) -> int:
    """Return the default number of rows to forecast."""
    step = usual_step(series)
    return next(rows for most, rows in USUAL_ROWS if step <= most) if series.is_dated else UNDATED_ROWS


def future_times(series: Series, text: str) -> np.ndarray:
    """Return the times of the next rows up to a horizon, `[M]`. They are one typical time step apart.

    Steps of days, weeks, months or years follow the calendar of the time zone. Weekdays and times of day at which the
    series never has rows are skipped, such as closed days and nights. See `rfa.data.weekly_times`. If the table
    contains future rows, which have only values that are known ahead, the times begin with those of these rows.

    Args:
        series: The series.
        text: Number of rows or duration, as in `--horizon`, or USUAL for all future rows in the table. If it
            contains none, USUAL is the default number of rows.

    Raises:
        ValueError: If the horizon is invalid, ends before the next row, or has too many rows.
    """
    listed = _listed(series)
    if text == USUAL and len(listed):
        return listed
    rows, seconds = (usual_rows(series), 0.0) if text == USUAL else parse_horizon(text)
    step = usual_step(series) or (1.0 if series.clock is None else 0.0)
    if not step:
        raise ValueError("--horizon requires two rows with different times, which determine the step between rows")
    if not rows:
        if seconds / step > MOST_AHEAD:
            raise ValueError(f"--horizon {text} exceeds the limit of {MOST_AHEAD:,} rows, which are {step:g} s apart")
        rows = int(seconds / step + 1) + 1  # calendar steps may be slightly shorter
    known = replace(series, times=np.concatenate((series.times, listed)))
    found = np.concatenate((listed, _next(known, step, max(rows - len(listed), 0))))
    return _within(series, found, seconds, f"--horizon {text}", step) if seconds else found[:rows]


def _listed(series: Series) -> np.ndarray:
    """Return the times of the future rows in the table."""
    if series.covariates is None:
        return np.empty(0)
    times = np.unique(series.covariates.times)
    return times[times > series.times[-1]][:MOST_AHEAD]


def _within(series: Series, found: np.ndarray, seconds: float, horizon: str, step: float) -> np.ndarray:
    ahead = found[found <= series.times[-1] + seconds * (1 + 1e-9)]
    if len(ahead):
        return ahead
    if step > seconds:
        raise ValueError(f"{horizon} is shorter than the time between two rows, {step:g} s")
    begin = f"{found[0]:g}"
    if series.is_dated:
        begin = str(np.datetime64(round(local_seconds(found[:1], series.zone)[0]), "s")).replace("T", " ")
    raise ValueError(
        f"{horizon} ends before the next row, {begin}, because the series has no rows before this time; specify a "
        "longer horizon, or a number of rows"
    )


def _next(series: Series, step: float, count: int) -> np.ndarray:
    if not series.is_dated:
        return series.times[-1] + step * np.arange(1, count + 1)
    shown = local_seconds(series.times, series.zone)
    months = _months_ahead(shown, count)
    if months is not None:
        return utc_seconds(months, series.zone)
    lags = np.diff(shown)
    lag = float(np.median(lags[lags > 0]))
    is_daily = lag % DAY == 0
    weekly = weekly_times(series.utc_offsets.local(series.times), lag if is_daily else step)
    if weekly is not None:
        step = weekly.step
    steps = np.arange(1, (count if weekly is None else weekly.enough(count)) + 1)
    ahead = utc_seconds(shown[-1] + lag * steps, series.zone) if is_daily else series.times[-1] + step * steps
    return ahead if weekly is None else ahead[weekly.holds(series.utc_offsets.local(ahead))][:count]


def _months_ahead(shown: np.ndarray, count: int) -> np.ndarray | None:
    """Return the next local times of a series whose times are on the same day of each month, or on its last day. Return
    None for other series."""
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
