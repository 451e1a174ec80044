"""Determine whether the numbers of a column are counts, times, parts of dates, labels or identifiers."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from rfa.data.clock_choice import is_unix
from rfa.data.clock_numbers import DAY, are_dates, are_times_of_day, unix_seconds, words_of
from rfa.data.units import TIMES

# Minimum number of rows for a column with a single value to be a constant.
LEAST_ROWS: Final = 12
IDENTIFIERS: Final = frozenset(("id", "uuid", "guid", "zip", "plz", "postcode"))
# Names of document numbers, customer numbers and the like, and whole numbers too large for floats.
DOCUMENT: Final = re.compile(
    r"(order|invoice|transaction|account|serial|document|receipt|ticket|customer|batch)[ _]?(no|nr|num|number)\.?|"
    r"[a-zäöü]+(nummer|nr\.?)|.*(单号|编号|流水号|番号)|"
    r"(n[º°o]\.?(?! of )|núm\.?|numéro|numero) .*|iban", re.IGNORECASE,
)  # fmt: skip
INEXACT: Final = 2.0**53
# Numbers of at least this size that increase by 1 per unit of time count such units.
LARGE_COUNT: Final = 1000.0
LATEST_YEAR: Final = 2200
YEAR: Final = 365.2425 * DAY
UNIT_BEHIND: Final = re.compile(rf"[(\[_/ ]({'|'.join(TIMES)})[)\]]?\s*$")


def counts_time(values: np.ndarray, times: np.ndarray) -> bool:
    """Return whether numbers are large, and increase by 1 or by 1000 per unit of time, which is a second, minute, hour,
    day or year."""
    if len(values) < LEAST_ROWS or values.min() < LARGE_COUNT or not is_line(values, times):
        return False
    slope = (values[-1] - values[0]) / (times[-1] - times[0])
    return bool(np.isclose(slope * np.array([1.0, 1e-3, 60.0, 3600.0, DAY]), 1, rtol=1e-6, atol=0).any())


def is_elapsed(name: str, values: np.ndarray, times: np.ndarray) -> bool:
    """Return whether numbers are the time since the first row, in the unit of time that the name of the column
    contains."""
    found = UNIT_BEHIND.search(name.lower())
    if found is None or len(values) < LEAST_ROWS or not is_line(values, times):
        return False
    return bool(np.isclose((values[-1] - values[0]) * TIMES[found[1]], times[-1] - times[0], rtol=1e-6, atol=0))


def are_times(values: np.ndarray, times: np.ndarray) -> bool:
    """Return whether values are seconds or finer units since 1970 that follow the times, such as ends of intervals."""
    seen = ~np.isnan(values)
    if seen.sum() < LEAST_ROWS:
        return False
    clock = times[seen]
    if are_dates(values[seen]):
        days = values[seen].astype(np.int64).astype(str)
        moments = np.array([f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in days], "datetime64[s]").astype(np.float64)
    elif is_unix(values[seen]):
        moments = unix_seconds(values[seen])[0]
    else:
        return False
    is_compact = are_dates(values[seen])
    near = 2 * float(np.ptp(clock)) / (len(clock) - 1) + (2 if is_compact else 1) * DAY
    return bool((np.abs(moments - clock) <= near).all()) and (is_compact or np.corrcoef(moments, clock)[0, 1] > 0.99)


def is_calendar(values: np.ndarray, times: np.ndarray) -> bool:
    """Return whether numbers are the decimal year of the times, or a part of the times such as the hour, the day, the
    month or the year."""
    if (np.abs(values - 1970 - times / YEAR) < 0.1).all():
        return True
    if len(values) < LEAST_ROWS or np.isnan(values).any() or np.ptp(values) == 0:
        return False
    minutes = np.floor(times / 60)
    if are_times_of_day(values) and values.max() >= 100:
        shift = (60 * (values // 100) + values % 100 - minutes) % 1440
        if np.ptp(shift) == 0 and len(np.unique(values)) > 2:
            return True
    values = values - values[0] % 1
    if (values != np.rint(values)).any():
        return False
    if values.min() < 0 or values.max() > LATEST_YEAR:
        return False
    hours = np.floor(times / 3600)
    days = np.floor(times / DAY)
    dates = days.astype(np.int64).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    years = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    cycles = ((hours, 24), (days, 7), (months.astype(np.int64), 12), (np.floor(times / 60), 60),
              (np.floor(times / 1800), 48), (np.floor(times / 900), 96))  # fmt: skip
    if len(np.unique(values)) > 2:
        # Numbers that never decrease may merely increase at the same rate, unless they start with the part itself.
        begins = (0, 1) if (np.diff(values) >= 0).all() else range(96)
        offsets = ((values - part) % period for part, period in cycles if np.ptp(values) < period)
        if any(np.ptp(offset) == 0 and offset[0] in begins for offset in offsets):
            return True
    # The end of a day belongs to it.
    moments = (times.astype("datetime64[s]"), (times - 1).astype("datetime64[s]"))
    of_year = [(m.astype("datetime64[D]") - m.astype("datetime64[Y]")).astype(np.int64) + 1 for m in moments]
    if len(np.unique(values)) > 2 and any((values == numbers).all() for numbers in of_year):
        return True
    of_month = (dates - months).astype(np.int64) + 1
    # Local time is up to 14 hours ahead.
    ahead = (days + 1).astype(np.int64).astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64) + 1970
    is_year = ((values == years) | (values == ahead)).all()
    return bool(is_year or ((values == of_month).all() and len(np.unique(values)) > 2))


def is_label(values: np.ndarray, is_inside: np.ndarray) -> bool:
    """Return whether values, sorted by series, do not change within any series."""
    steps = np.diff(values)[is_inside]
    return len(steps) >= LEAST_ROWS and bool((steps == 0).all())


def is_line(values: np.ndarray, clock: np.ndarray) -> bool:
    """Return whether numbers are a linear function of the times that increases."""
    span, rise = clock[-1] - clock[0], values[-1] - values[0]
    if not rise * span > 0:
        return False
    return bool(np.allclose(values - values[0], rise * ((clock - clock[0]) / span), rtol=0, atol=1e-6 * abs(rise)))


def is_constant(_: str, values: np.ndarray) -> bool:
    """Return whether all numbers of a column are the same."""
    seen = values[~np.isnan(values)]
    return len(values) >= LEAST_ROWS and bool((seen == seen[:1]).all())


def is_identifier(name: str, values: np.ndarray) -> bool:
    """Return whether integers are identifiers, according to the name of the column or their size."""
    seen = values[~np.isnan(values)]
    if not len(seen) or (seen != np.rint(seen)).any():
        return False
    is_document = DOCUMENT.fullmatch(name.strip()) is not None and 2 * len(np.unique(seen)) > len(seen)
    is_inexact = (
        len(seen) >= LEAST_ROWS and seen.min() > INEXACT and seen.max() < 1e30 and seen.max() < 100 * seen.min()
    )
    return bool(words_of(name) & IDENTIFIERS) or is_document or bool(is_inexact)


def counts_rows(values: np.ndarray) -> bool:
    """Return whether numbers increase by 1."""
    return len(values) > 2 and bool((np.diff(values) == 1).all())
