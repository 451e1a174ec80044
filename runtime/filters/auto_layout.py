"""The memory of `auto`: where each number of a column lies in its state, its memory and the scratch.

A state has SMALL numbers, which an observation changes in a copy until it is accepted, and the times that pending
forecasts are for. A memory has profiles, pending forecasts and the last observations, which `remember` changes once the
observation is accepted.

The bank has BANK lanes, KINDS for each profile. Loops over adjacent lanes without a branch become vector instructions.
So scratch lies behind the copy of the state, in one array, whose parts the compiler knows not to overlap; and a number
of a profile is repeated for each of its lanes.
"""

from __future__ import annotations

import numpy as np

# Leads in typical lags, ascending; the first is one.
LEADS = np.array([1.0, 4.0, 12.0, 24.0, 48.0, 168.0, 336.0])
LEAD_COUNT, MOST_PENDING = len(LEADS), 16
STRIDES = np.maximum(np.ceil(LEADS / MOST_PENDING), 1).astype(np.int64)
# Kinds of filters: the drift of the levels; then the gains and the damping of the trends.
DRIFTS = np.array([1e-5, 3e-4, 0.01, 0.1, 1.0, 100.0])
TREND_LEVEL, TREND_SLOPE, DAMPING = np.array([0.7, 0.25]), np.array([0.15, 0.02]), np.array([0.9, 0.98])
LOG_DAMPING = np.log(DAMPING)
LEVELS, TRENDS = len(DRIFTS), len(DAMPING)
KINDS = LEVELS + TRENDS
# The level that a profile is relative to.
GROUND = 3
NO_SEASON, DAY, WEEK, FOUND = range(4)
PROFILES = 4
BANK = PROFILES * KINDS
SLOTS = np.array([0, 720, 1008, 512])
RING = 1024
# Rows from which the typical lag is trusted to set up the profiles; fewest slots of one.
SET_UP, FEWEST_SLOTS = 16, 4.0
# Errors up to which a filter or the mixture counts as young.
YOUNG = 20.0
# Least error, as a share of |y|.
RESOLUTION, TINY = 1e-12, 1e-150
# Marks a forecast that there was none of.
ABSENT = 3e38
# Variance of a column without observations, at 0.
UNKNOWN_VARIANCE = 1e12

# A state.
COUNT, ROWS, ORIGIN, ELAPSED, DEVIATION, CENTRE, GAIN, NEXT_SEARCH, LARGEST, VARIANCE, FIT = range(11)
PERIOD = 11
USED = PERIOD + PROFILES  # slots of a profile; 0 is none
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
DUE = SMALL  # times of the pending forecasts, which are not copied
STATE = DUE + LEAD_COUNT * MOST_PENDING
# A memory: profiles with the visits of their slots, the last observations, the pending forecasts.
PROFILE = np.concatenate(([0], 2 * np.cumsum(SLOTS)))[:-1]
LAST = int(2 * SLOTS.sum())
PENDING = LAST + RING
MEMORY = PENDING + (LEAD_COUNT - 1) * MOST_PENDING * (BANK + 1)
# Scratch behind the copy of a state. By lane: forecasts, weights, the season, the part of a slope, and operands. By
# kind: sums. By profile: its season, and its level before. Then the value, and a search's observations before zeros.
FORECASTS = SMALL
WEIGHTS, ADDED, REACH, ONE, TWO, THREE, FOUR = (FORECASTS + k * BANK for k in range(1, 8))
SUM = FORECASTS + 8 * BANK
SEASON = SUM + 2 * KINDS
LEVEL_BEFORE = SEASON + PROFILES
VALUE = LEVEL_BEFORE + PROFILES
SEARCHED = VALUE + 1
LAGS_AT_ONCE = 8
WORK = SEARCHED + RING + LAGS_AT_ONCE
