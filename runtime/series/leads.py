"""Features of a horizon, and the seasons of a clock.

A band is a range of lags. See `rfa.runtime.series.config`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rfa.runtime.series.config import BANDS, LAGS

HOUR, DAY, WEEK, YEAR = 3_600.0, 86_400.0, 604_800.0, 365.2425 * 86_400.0
# Smallest step in seconds for which an hour is not a season, and the maximum distance of a season from an integer
# number of cells, relative to its length.
HOURLY_UNTIL, WHOLE = 300.0, 0.02
# Longest horizon in training. Longer horizons have the features of this horizon.
FARTHEST: Final = 768
WAVES: Final = 8
LEAD_NUMBERS: Final = 3 + WAVES


def lead_table() -> np.ndarray:
    """Return the features of the horizons from 0 to FARTHEST, `[FARTHEST + 1, LEAD_NUMBERS]` float32.

    For a horizon h, they are a = log(1 + h) / log(1 + FARTHEST), h / FARTHEST, min(h / 64, 1), and cos(π k a) for k = 1
    … WAVES.
    """
    near = np.arange(FARTHEST + 1)
    along = np.log1p(near) / math.log1p(FARTHEST)
    waves = np.cos(math.pi * along[:, None] * np.arange(1, WAVES + 1))
    distances = np.stack([along, near / FARTHEST, np.minimum(near / 64, 1)], axis=1)
    return np.concatenate([distances, waves], axis=1).astype(np.float32)


def clock_seasons(step: float) -> np.ndarray:
    """Return the seasons of a series whose rows are `step` seconds apart, in numbers of rows, `[LAGS]` int64.

    There is one season for each band of lags. It is the shortest of hour, day, week and year that lies in the band and
    is nearly an integer number of rows. If none of these periods qualifies, the season is 0.
    """
    found = np.zeros(LAGS, np.int64)
    for cycle in ((HOUR,) if step < HOURLY_UNTIL else ()) + (DAY, WEEK, YEAR):
        lag = round(cycle / step)
        band = int(np.searchsorted(BANDS, lag, "right")) - 1
        if lag > 0 and 0 <= band < LAGS and abs(cycle / step - lag) <= WHOLE * lag and found[band] == 0:
            found[band] = lag
    return found
