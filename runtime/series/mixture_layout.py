"""The memory of the mixture of one column: where each number lies.

`numbers` are float64; `memory` is float32: seasonal profiles, and forecasts relative to the value when they were made.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

# Leads that weights are learned for, in cells, and the forecasts of each that wait for their value: of experts as many
# as the conformal intervals follow, of the members of exponential smoothing fewer.
LEADS: Final = np.array([1.0, 4.0, 16.0, 64.0, 256.0])
LEAD_COUNT: Final = len(LEADS)
EXPERT_PENDING: Final = np.array([1, 4, 16, 16, 16])
MEMBER_PENDING: Final = np.array([1, 2, 2, 2, 2])
EXPERT_SLOTS, MEMBER_SLOTS = int(EXPERT_PENDING.sum()), int(MEMBER_PENDING.sum())
FIRST_EXPERT_SLOT: Final = np.cumsum(EXPERT_PENDING) - EXPERT_PENDING
FIRST_MEMBER_SLOT: Final = np.cumsum(MEMBER_PENDING) - MEMBER_PENDING

# Experts, and their weights before the first value: the network first, then smoothing, simple ones as a reserve.
EXPERTS: Final = ("network", "smoothing", "smoothing of logs", "seasonal naive", "last value", "drift")
NETWORK, SMOOTHING, SMOOTHING_OF_LOGS, SEASONAL, LAST, DRIFT = range(len(EXPERTS))
EXPERT_COUNT: Final = len(EXPERTS)
PRIOR: Final = np.array([0.5, 0.2, 0.15, 0.05, 0.05, 0.05])

# Members of exponential smoothing: columns α, β, φ; no trend is β = 0. Each in FORMS (values and their logarithms) and
# with PROFILES (no season, and the least weights of the last cycle in a seasonal profile).
GRID: Final = np.array(
    [
        (alpha, beta, damping)
        for alpha, beta in itertools.product((0.05, 0.2, 0.5, 0.9), (0.0, 0.05, 0.2))
        for damping in ((1.0,) if beta == 0 else (0.9, 1.0))
    ]
)
SEASON_WEIGHTS: Final = np.array([0.0, 0.2, 0.5])
# The damping of those that have one.
DAMPED: Final = float(GRID[:, 2].min())
FORMS, PROFILES, SIZE = 2, len(SEASON_WEIGHTS), len(GRID)
PER_FORM: Final = PROFILES * SIZE
MEMBERS: Final = FORMS * PER_FORM
# The longest season, and the last values that a season is searched in.
LONGEST, RING = 400, 1024

# Of `numbers`: cells, values, the first and the last one, the least and the largest, without odd ones; the least
# and the largest value with them; the season in cells (1 is none), the cell of the next search, whether a search
# has found it, whether all values were positive, and whole, whether the last value was odd, and how often the largest
# came; then by form the mean absolute change and its count; by lead, of the experts.
(
    CELLS, SEEN, FIRST, LATEST, LEAST, LARGEST, LEAST_OF_ALL, LARGEST_OF_ALL, SEASON, NEXT_SEARCH,
    IS_FOUND, IS_POSITIVE, IS_WHOLE, WAS_ODD, TOUCHES,
) = range(15)  # fmt: skip
CHANGE = TOUCHES + 1
CHANGES = CHANGE + FORMS
LEVEL = CHANGES + FORMS
TREND = LEVEL + MEMBERS
LOSS = TREND + MEMBERS
REGRET = LOSS + LEAD_COUNT * MEMBERS
SQUARES = REGRET + LEAD_COUNT * EXPERT_COUNT
# By lead: mean absolute errors of mixture and network, the mean error of the mixture's mean, its mean square and
# their number, and the number of all errors.
MIXTURE_ERROR = SQUARES + LEAD_COUNT * EXPERT_COUNT
NETWORK_ERROR = MIXTURE_ERROR + LEAD_COUNT
OFFSET = NETWORK_ERROR + LEAD_COUNT
SQUARED = OFFSET + LEAD_COUNT
OFFSET_COUNT = SQUARED + LEAD_COUNT
SCORED = OFFSET_COUNT + LEAD_COUNT
# By slot: the cell that a forecast is for, 0 for none, and the value when it was made.
EXPERT_DUE = SCORED + LEAD_COUNT
EXPERT_BASE = EXPERT_DUE + EXPERT_SLOTS
MEMBER_DUE = EXPERT_BASE + EXPERT_SLOTS
MEMBER_BASE = MEMBER_DUE + MEMBER_SLOTS
VALUES = MEMBER_BASE + FORMS * MEMBER_SLOTS
# How often each whole number came, large ones by their logarithm, and how many numbers there were.
COUNT_BINS: Final = 64
COUNT = VALUES + RING
COUNTED = COUNT + COUNT_BINS
NUMBERS: Final = COUNTED + 1

# Of `memory`: logarithms of the last values over the first, seasonal profiles, and pending forecasts.
LOGS = 0
PROFILE = LOGS + RING
EXPERT_FORECAST = PROFILE + FORMS * (PROFILES - 1) * LONGEST
# Behind the experts' forecasts the median and the mean of the mixture.
MIXED, MIXED_MEAN = EXPERT_COUNT, EXPERT_COUNT + 1
FORECASTS: Final = EXPERT_COUNT + 2
MEMBER_FORECAST = EXPERT_FORECAST + EXPERT_SLOTS * FORECASTS
MEMORY: Final = MEMBER_FORECAST + MEMBER_SLOTS * MEMBERS
