"""Memory layout of `auto`: the positions of the values of a column in its state, its memory and the scratch arrays.

A state consists of SMALL values and the due times of pending forecasts. The kernels update a copy of the values, which
is stored when the observation is accepted. A memory contains profiles, pending forecasts and the last observations,
which `remember` changes once the observation is accepted.

The bank has BANK filters, one for each combination of a kind of filter and a profile. Each filter has a lane, which is
an index in all arrays of the bank. Loops over adjacent lanes without branches become vector instructions. The scratch
arrays and the copy of the state are parts of one array, so the compiler can determine that they do not overlap. Values
of a profile are repeated for each of its lanes.
"""

from __future__ import annotations

import numpy as np

# Horizons in typical lags, in ascending order. The first is one.
LEADS = np.array([1.0, 4.0, 12.0, 24.0, 48.0, 168.0, 336.0])
LEAD_COUNT, MOST_PENDING = len(LEADS), 16
STRIDES = np.maximum(np.ceil(LEADS / MOST_PENDING), 1).astype(np.int64)
# Kinds of filters: the drifts of the levels, followed by the gains and the damping of the trends.
DRIFTS = np.array([1e-5, 3e-4, 0.01, 0.1, 1.0, 100.0])
TREND_LEVEL, TREND_SLOPE, DAMPING = np.array([0.7, 0.25]), np.array([0.15, 0.02]), np.array([0.9, 0.98])
LOG_DAMPING = np.log(DAMPING)
LEVELS, TRENDS = len(DRIFTS), len(DAMPING)
KINDS = LEVELS + TRENDS
# Kind of level that the values of a profile are relative to.
GROUND = 3
NO_SEASON, DAY, WEEK, FOUND = range(4)
PROFILES = 4
BANK = PROFILES * KINDS
SLOTS = np.array([0, 720, 1008, 512])
RING = 1024
# Number of rows after which the typical lag determines the profiles, and the minimum number of slots of a profile.
SET_UP, FEWEST_SLOTS = 16, 4.0
# Number of errors up to which the errors of a filter or the mixture are not bounded, and outliers have full weight.
YOUNG = 20.0
# Minimum error, as a fraction of |y|.
RESOLUTION, TINY = 1e-12, 1e-150
# Value of a missing forecast.
ABSENT = 3e38
# Variance of a column without observations. Its mean is 0.
UNKNOWN_VARIANCE = 1e12

# Layout of a state.
COUNT, ROWS, ORIGIN, ELAPSED, DEVIATION, CENTRE, GAIN, NEXT_SEARCH, LARGEST, VARIANCE, FIT = range(11)
PERIOD = 11
USED = PERIOD + PROFILES  # number of slots of a profile; 0 if it is not used
IS_COMPLETE = USED + PROFILES  # whether a whole period has passed
SPREAD = IS_COMPLETE + PROFILES
BASE = SPREAD + BANK  # level or trend of each lane
SLOPE = BASE + BANK
ERROR = SLOPE + BANK
SCORED = ERROR + LEAD_COUNT * BANK
MIXTURE = SCORED + LEAD_COUNT * PROFILES
MIXED = MIXTURE + LEAD_COUNT
FIRST_PENDING = MIXED + LEAD_COUNT
PENDING_COUNT = FIRST_PENDING + LEAD_COUNT
SMALL = -(-(PENDING_COUNT + LEAD_COUNT) // KINDS) * KINDS
DUE = SMALL  # due times of the pending forecasts, which are not copied
STATE = DUE + LEAD_COUNT * MOST_PENDING
# Layout of a memory: profiles with the number of visits to each slot, the last observations, and the pending forecasts.
PROFILE = np.concatenate(([0], 2 * np.cumsum(SLOTS)))[:-1]
LAST = int(2 * SLOTS.sum())
PENDING = LAST + RING
MEMORY = PENDING + (LEAD_COUNT - 1) * MOST_PENDING * (BANK + 1)
# Layout of the scratch, which follows the copy of a state. It contains, by lane: forecasts, weights, the season, the
# part of a slope, and operands; by kind: sums; by profile: its season and its previous level. The value and the
# observations of a search follow, and then zeros.
FORECASTS = SMALL
WEIGHTS, ADDED, REACH, ONE, TWO, THREE, FOUR = (FORECASTS + k * BANK for k in range(1, 8))
SUM = FORECASTS + 8 * BANK
SEASON = SUM + 2 * KINDS
LEVEL_BEFORE = SEASON + PROFILES
VALUE = LEVEL_BEFORE + PROFILES
SEARCHED = VALUE + 1
LAGS_AT_ONCE = 8
WORK = SEARCHED + RING + LAGS_AT_ONCE
