"""What the head sees of a lead: how far it is, and what the calendar says there."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rfa.runtime.series.config import BANDS, LAGS

HOUR, DAY, WEEK, YEAR = 3_600.0, 86_400.0, 604_800.0, 365.2425 * 86_400.0
# Steps in which an hour is a season; and how near to a whole number of cells one must be, of its own length.
HOURLY_UNTIL, WHOLE = 300.0, 0.02
# Sine and cosine of each of them, and a one where there is a calendar.
CALENDAR: Final = 7
# The longest lead that training asks for; beyond it a lead looks as far as that.
FARTHEST: Final = 768
WAVES: Final = 8
LEAD_NUMBERS: Final = 3 + WAVES


def lead_table() -> np.ndarray:
    """What the head sees of leads 0 … FARTHEST, `[FARTHEST + 1, LEAD_NUMBERS]` float32: log, share of the farthest,
    share of 64 up to one, and cosines of the log."""
    near = np.arange(FARTHEST + 1)
    along = np.log1p(near) / math.log1p(FARTHEST)
    waves = np.cos(math.pi * along[:, None] * np.arange(1, WAVES + 1))
    distances = np.stack([along, near / FARTHEST, np.minimum(near / 64, 1)], axis=1)
    return np.concatenate([distances, waves], axis=1).astype(np.float32)


def calendar_numbers(times: np.ndarray) -> np.ndarray:
    """Sine and cosine of the day, the week and the year at times `[...]`, seconds of the epoch on the clock of where
    the series is from, and a one: `[..., CALENDAR]` float32. A series without a calendar has zeros in their place."""
    angles = 2 * np.pi * np.stack([times / cycle % 1 for cycle in (DAY, WEEK, YEAR)], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles), np.ones((*times.shape, 1))], axis=-1).astype(np.float32)


def clock_seasons(step: float) -> np.ndarray:
    """The seasons that a clock of `step` seconds has, in cells: of each band the shortest of an hour, a day, a week and
    a year that is nearly whole, `[LAGS]` int64, 0 for none."""
    found = np.zeros(LAGS, np.int64)
    for cycle in ((HOUR,) if step < HOURLY_UNTIL else ()) + (DAY, WEEK, YEAR):
        lag = round(cycle / step)
        band = int(np.searchsorted(BANDS, lag, "right")) - 1
        if lag > 0 and 0 <= band < LAGS and abs(cycle / step - lag) <= WHOLE * lag and found[band] == 0:
            found[band] = lag
    return found
