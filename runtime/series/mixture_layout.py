"""Memory layout of the mixture of one column.

`numbers` are float64. `memory` is float32 and contains seasonal profiles, and forecasts relative to the value at the
time when they were made.

The members are models of exponential smoothing. A form is a transformation of the values: none, or the logarithm.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

# Horizons in cells for which weights are learned, and the number of pending forecasts for each. Experts have as many as
# conformal intervals have. The models of exponential smoothing have fewer, and only for the first MEMBER_LEADS
# horizons.
LEADS: Final = np.array([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 8192.0])
LEAD_COUNT: Final = len(LEADS)
EXPERT_PENDING: Final = np.array([1, 4, 16, 16, 16, 8, 8])
MEMBER_PENDING: Final = np.array([1, 2, 2, 2, 2])
MEMBER_LEADS: Final = len(MEMBER_PENDING)
EXPERT_SLOTS, MEMBER_SLOTS = int(EXPERT_PENDING.sum()), int(MEMBER_PENDING.sum())
FIRST_EXPERT_SLOT: Final = np.cumsum(EXPERT_PENDING) - EXPERT_PENDING
FIRST_MEMBER_SLOT: Final = np.cumsum(MEMBER_PENDING) - MEMBER_PENDING

# Experts, and their relative weights before the first value. The network has the largest weight, and simple experts
# have the smallest. The experts that use the profile have no forecast before the profile contains values.
EXPERTS: Final = (
    "network", "smoothing", "log_smoothing", "seasonal_naive", "last_value", "drift", "profile", "moved_profile",
)  # fmt: skip
NETWORK, SMOOTHING, SMOOTHING_OF_LOGS, SEASONAL, LAST, DRIFT, PROFILED, MOVED_PROFILE = range(len(EXPERTS))
EXPERT_COUNT: Final = len(EXPERTS)
PRIOR: Final = np.array([0.5, 0.2, 0.15, 0.05, 0.05, 0.05, 0.05, 0.05])

# Models of exponential smoothing (members), with columns α, β, φ. β = 0 means that there is no trend. There is one
# model for each combination with FORMS (values, and their logarithms) and PROFILES (no season, and seasonal profiles
# with different minimum weights of the last cycle).
GRID: Final = np.array(
    [
        (alpha, beta, damping)
        for alpha, beta in itertools.product((0.05, 0.2, 0.5, 0.9), (0.0, 0.05, 0.2))
        for damping in ((1.0,) if beta == 0 else (0.9, 1.0))
    ]
)
SEASON_WEIGHTS: Final = np.array([0.0, 0.2, 0.5])
# Damping of the models with a damped trend.
DAMPED: Final = float(GRID[:, 2].min())
FORMS, PROFILES, SIZE = 2, len(SEASON_WEIGHTS), len(GRID)
PER_FORM: Final = PROFILES * SIZE
MEMBERS: Final = FORMS * PER_FORM
# Longest season in cells, and number of last values in which a season is searched.
LONGEST, RING = 400, 1024
# Maximum number of bins of a day in its profile, and of each weekday in that of the week. See `profile_numba.py`.
DAY_BINS, SLOTS = 1440, 48


class _Fields:
    """Assigns indices to the fields of an array, one after another."""

    def __init__(self) -> None:
        self.size = 0

    def next(self, count: int = 1) -> int:
        """Reserve `count` numbers, and return the index of the first one."""
        first, self.size = self.size, self.size + count
        return first


_numbers = _Fields()
# Number of cells and of values; the first, last, smallest and largest value without outliers; and the smallest and
# largest value with outliers.
CELLS, SEEN, FIRST, LATEST, LEAST, LARGEST = (_numbers.next() for _ in range(6))
LEAST_OF_ALL, LARGEST_OF_ALL = (_numbers.next() for _ in range(2))
# Season in cells (1 if there is none), cell of the next search, and whether a search has found the season.
SEASON, NEXT_SEARCH, IS_FOUND = (_numbers.next() for _ in range(3))
# Whether all values were positive, whether all were integers, whether the last one was an outlier, and how often the
# largest value occurred.
IS_POSITIVE, IS_WHOLE, WAS_ODD, TOUCHES = (_numbers.next() for _ in range(4))
# By form: the mean absolute change, and the number of changes.
CHANGE, CHANGES = _numbers.next(FORMS), _numbers.next(FORMS)
# By member: level and trend; and the loss by horizon.
LEVEL, TREND, LOSS = _numbers.next(MEMBERS), _numbers.next(MEMBERS), _numbers.next(MEMBER_LEADS * MEMBERS)
# By horizon and expert: regret, sum of squared losses, and number of scored forecasts of the expert's own.
REGRET, SQUARES, OWN_SCORED = (_numbers.next(LEAD_COUNT * EXPERT_COUNT) for _ in range(3))
# By horizon: mean absolute errors of mixture and network; the mean and the mean square of the errors of the mixture's
# mean, and their number; the number of all errors; the last error of the mixture's mean; and the mean product of two
# successive errors of it.
MIXTURE_ERROR, NETWORK_ERROR = _numbers.next(LEAD_COUNT), _numbers.next(LEAD_COUNT)
OFFSET, SQUARED, OFFSET_COUNT, SCORED = (_numbers.next(LEAD_COUNT) for _ in range(4))
OFFSET_BEFORE, PRODUCT = _numbers.next(LEAD_COUNT), _numbers.next(LEAD_COUNT)
# Mean absolute value of the scored values.
MEAN_SIZE = _numbers.next()
# Errors one row ahead: the largest of the last ones, discounted; the same for those that were far larger than all
# before; and the largest of all.
RECENT, SURPRISE, LARGEST_ERROR = (_numbers.next() for _ in range(3))
# By slot: the cell that a forecast is for, or 0, and the value when it was made.
EXPERT_DUE, EXPERT_BASE = _numbers.next(EXPERT_SLOTS), _numbers.next(EXPERT_SLOTS)
MEMBER_DUE, MEMBER_BASE = _numbers.next(MEMBER_SLOTS), _numbers.next(FORMS * MEMBER_SLOTS)
# The last values.
VALUES = _numbers.next(RING)
# How often each integer occurred (large integers are counted in bins of their logarithm), and the number of values.
COUNT_BINS: Final = 64
COUNT, COUNTED = _numbers.next(COUNT_BINS), _numbers.next()
# Profile: its cycle in seconds (0 if there is none), its number of bins, and the local time when it began; its level,
# mean error and number of errors; the last bin, and the profile at the last value.
PROFILE_CYCLE, PROFILE_BINS, PROFILE_BEGAN = (_numbers.next() for _ in range(3))
PROFILE_LEVEL, PROFILE_ERROR, PROFILE_ERRORS = (_numbers.next() for _ in range(3))
LAST_BIN, PROFILE_NOW = (_numbers.next() for _ in range(2))
# By weekday: mean errors of the profile without and with the deviation of the weekday, and the number of errors.
DAY_ERROR, WEEK_ERROR, WEEKDAY_ERRORS = (_numbers.next(7) for _ in range(3))
# The last slot of a weekday, and the error at the last visit if the current error recurs, else 0.
LAST_SLOT, RECURRING = (_numbers.next() for _ in range(2))
PROFILE_END = NUMBERS = _numbers.size

_memory = _Fields()
# Logarithms of the last values relative to the first, and seasonal profiles by form.
LOGS, PROFILE = _memory.next(RING), _memory.next(FORMS * (PROFILES - 1) * LONGEST)
# Pending forecasts of the experts, followed by median and mean of the mixture, and of the members.
MIXED, MIXED_MEAN = EXPERT_COUNT, EXPERT_COUNT + 1
FORECASTS: Final = EXPERT_COUNT + 2
EXPERT_FORECAST, MEMBER_FORECAST = _memory.next(EXPERT_SLOTS * FORECASTS), _memory.next(MEMBER_SLOTS * MEMBERS)
# The profile of a day, the deviation of the last value of each bin from it, the profile of the week, and the error of
# each of its slots at the last visit.
DAY_PROFILE, DAY_LAST, WEEK_PROFILE = _memory.next(DAY_BINS), _memory.next(DAY_BINS), _memory.next(7 * SLOTS)
WEEK_LAST = _memory.next(7 * SLOTS)
MEMORY: Final = _memory.size
