"""Forecasts of the experts of the mixture other than the network. See `mixture_numba.py`."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.profile_numba import UNSEEN, expected
from rfa.runtime.series.smoothing_numba import LARGEST_LOG, smoothed_forecast

# A trend may exceed the values by a multiple of their range, which grows with the horizon from NEAR to TRUSTED.
NEAR, TRUSTED = 0.5, 2.0


@inline_jit
def expert_forecasts(numbers, memory, weights, cells, moment, network, out):
    """Compute the forecasts of all experts at a horizon, `[EXPERT_COUNT]`. They are NaN for experts without a forecast.

    Args:
        cells, moment: Horizon in cells, and local time at the horizon.
        network: Forecast of the network.
        out: Output.
    """
    now, whole = np.int64(numbers[at.CELLS]), np.int64(np.rint(cells))
    season, latest = np.int64(numbers[at.SEASON]), numbers[at.LATEST]
    out[at.NETWORK], out[at.LAST] = network, latest
    # A trend does not continue for longer than it was observed, and exceeds the values by at most twice their range.
    reach = (numbers[at.LARGEST] - numbers[at.LEAST]) * min(NEAR + TRUSTED * cells / now, TRUSTED)
    low, high = numbers[at.LEAST] - reach, numbers[at.LARGEST] + reach
    smoothed = smoothed_forecast(numbers, memory, weights, 0, cells, now + whole)
    out[at.SMOOTHING] = out[at.SMOOTHING_OF_LOGS] = min(max(smoothed, low), high)
    if numbers[at.IS_POSITIVE] > 0:
        log = smoothed_forecast(numbers, memory, weights, 1, cells, now + whole) + np.log(numbers[at.FIRST])
        out[at.SMOOTHING_OF_LOGS] = min(np.exp(min(log, LARGEST_LOG)), high)
    before = now + whole - season * ((whole + season - 1) // season)
    out[at.SEASONAL] = latest
    if season > 1:
        out[at.SEASONAL] = numbers[at.VALUES + before % at.RING] if before > 0 else np.nan
    slope = (latest - numbers[at.FIRST]) / max(now - 1, 1)
    out[at.DRIFT] = min(max(latest + slope * cells, low), high)
    profile, here = expected(numbers, memory, moment), numbers[at.PROFILE_NOW]
    out[at.PROFILED] = out[at.MOVED_PROFILE] = np.nan
    if profile == profile and here != UNSEEN:
        out[at.PROFILED] = min(max(numbers[at.FIRST] + profile + numbers[at.PROFILE_LEVEL], low), high)
        out[at.MOVED_PROFILE] = min(max(latest + profile - here, low), high)
