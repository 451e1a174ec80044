"""Features of a lead: its distance, and the calendar there."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rfa.runtime.series.config import BANDS, LAGS

HOUR, DAY, WEEK, YEAR = 3_600.0, 86_400.0, 604_800.0, 365.2425 * 86_400.0
# Steps from which on an hour is no season; how near to a whole number of cells a season must be, of its length.
HOURLY_UNTIL, WHOLE = 300.0, 0.02
# Sine and cosine of day, week and year, and a one if there is a calendar.
CALENDAR: Final = 7
# The longest lead in training; longer ones have its features.
FARTHEST: Final = 768
WAVES: Final = 8
LEAD_NUMBERS: Final = 3 + WAVES


def lead_table() -> np.ndarray:
    """Features of leads 0 … FARTHEST, `[FARTHEST + 1, LEAD_NUMBERS]` float32: log, share of the farthest, share of 64
    up to one, and cosines of the log."""
    near = np.arange(FARTHEST + 1)
    along = np.log1p(near) / math.log1p(FARTHEST)
    waves = np.cos(math.pi * along[:, None] * np.arange(1, WAVES + 1))
    distances = np.stack([along, near / FARTHEST, np.minimum(near / 64, 1)], axis=1)
    return np.concatenate([distances, waves], axis=1).astype(np.float32)


def calendar_numbers(times: np.ndarray) -> np.ndarray:
    """Sine and cosine of day, week and year, and a one, at times `[...]` in seconds of the epoch, local time.

    Returns:
        `[..., CALENDAR]` float32; a series without a calendar has zeros instead.
    """
    angles = 2 * np.pi * np.stack([times / cycle % 1 for cycle in (DAY, WEEK, YEAR)], axis=-1)
    return np.concatenate([np.sin(angles), np.cos(angles), np.ones((*times.shape, 1))], axis=-1).astype(np.float32)


def clock_seasons(step: float) -> np.ndarray:
    """Seasons of a clock of `step` seconds, in cells: in each band the shortest of hour, day, week and year that is
    nearly whole, `[LAGS]` int64, 0 for none."""
    found = np.zeros(LAGS, np.int64)
    for cycle in ((HOUR,) if step < HOURLY_UNTIL else ()) + (DAY, WEEK, YEAR):
        lag = round(cycle / step)
        band = int(np.searchsorted(BANDS, lag, "right")) - 1
        if lag > 0 and 0 <= band < LAGS and abs(cycle / step - lag) <= WHOLE * lag and found[band] == 0:
            found[band] = lag
    return found
