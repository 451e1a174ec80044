"""The clock of a stream, which counts cells of the typical lag between two rows.

    n = max(1, round(φ + lag / typical))          φ ← φ + lag / typical - n

With a local time zone, the lag is `local_span`, which is an hour longer or shorter where the offset from UTC changes.

The typical lag is the running mean of the lags without gaps (`typical_lag.single_lag`). It is the median of the first
lags, and is replaced by that of the last eight lags if these differ much from it. φ is the accumulated rounding error,
so that cells do not drift from the times.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.local_time_numba import utc_offset
from rfa.runtime.series.config import BANDS, LAGS, REACH
from rfa.runtime.series.leads import DAY, HOUR, HOURLY_UNTIL, WEEK, WHOLE, YEAR
from rfa.runtime.typical_lag import LAGS_COUNTED, single_lag

# A longer gap is treated as this number of empty cells, because no stored value reaches further back.
MOST_EMPTY = REACH
# Time of the last row, typical lag, number of rows, φ, number of lags in the typical lag, and the last lags.
TIME, LAG, ROWS, PHASE, LAGS_SEEN, LAST_LAGS = range(6)
LOOKED_BACK = 8
CLOCK = LAST_LAGS + LOOKED_BACK
# Ratio above which a lag differs much.
UNLIKE = 3.0
# Maximum number of cells of a week for which a repeated hour is treated as that of the next week. If a week has more
# cells, it is treated as that of the next day.
LONGEST_WEEK = 400
_BANDS, _CYCLES = np.array(BANDS), np.array((HOUR, DAY, WEEK, YEAR))


@inline_jit
def bounded(number, low, high):
    """Return a number clamped to [low, high]."""
    return min(max(number, low), high)


@inline_jit
def _median_lag(clock, count):
    """Return the median of the last `count` lags. If their number is even, it is the upper of the two middle ones, so
    that a stream with two lags has the longer one as its typical lag."""
    for i in range(count):
        lag, below = clock[LAST_LAGS + i], 0
        for j in range(count):
            other = clock[LAST_LAGS + j]
            below += 1 if other < lag or (other == lag and j < i) else 0
        if below == count // 2:
            return lag
    return clock[LAST_LAGS]


@inline_jit
def _is_unlike(clock, typical):
    """Return whether each of the last LOOKED_BACK lags is much longer, or each is much shorter than the typical lag."""
    longer, shorter = 0, 0
    for k in range(LOOKED_BACK):
        lag = clock[LAST_LAGS + k]
        longer += 1 if lag > UNLIKE * typical else 0
        shorter += 1 if lag * UNLIKE < typical else 0
    return longer == LOOKED_BACK or shorter == LOOKED_BACK


@inline_jit
def local_span(utc_offsets, now, span, typical):
    """Return the time that passes on a local clock during a span that begins at `now`.

    Cells cannot run backwards. Where an hour occurs twice, the second one is therefore treated as that of the next day
    or week, so that seasons stay aligned.
    """
    if len(utc_offsets) == 0 or not MOST_EMPTY * typical >= DAY:
        return span
    change = utc_offset(utc_offsets, now + span) - utc_offset(utc_offsets, now)
    if change == 0 or span <= 0:
        return span
    if span + change < typical / 2:
        change += WEEK if LONGEST_WEEK * typical >= WEEK else DAY
    return span + change


@inline_jit
def advance_clock(clock, now, utc_offsets):
    """Advance a clock to the time of a row, and return the number of cells since the previous row."""
    lag, typical = now - clock[TIME], clock[LAG]
    if clock[ROWS] == 0:
        lag = 0.0
    if lag > 0:
        clock[LAST_LAGS + np.int64(clock[LAGS_SEEN]) % LOOKED_BACK] = lag
        clock[LAGS_SEEN] += 1
        count = np.int64(min(clock[LAGS_SEEN], LOOKED_BACK))
        if count < LOOKED_BACK or _is_unlike(clock, typical):
            typical, clock[PHASE] = _median_lag(clock, count), 0.0
            if count == LOOKED_BACK:  # the mean starts again
                clock[LAGS_SEEN] = LOOKED_BACK + clock[LAGS_SEEN] % LOOKED_BACK
        else:
            typical += (single_lag(lag, typical) - typical) / min(clock[LAGS_SEEN] + 1, LAGS_COUNTED)
    span = local_span(utc_offsets, now - lag, lag, typical)
    to_pass = clock[PHASE] + (span / typical if typical > 0 else 1.0)
    count = bounded(np.rint(to_pass), 1.0, MOST_EMPTY + 1.0)
    clock[TIME], clock[LAG], clock[ROWS] = now, typical, clock[ROWS] + 1
    clock[PHASE] = bounded(to_pass - count, -MOST_EMPTY, 0.5) if clock[ROWS] > 1 else 0.0
    return np.int64(count)


@inline_jit
def write_seasons(typical, seasons):
    """Compute the same seasons as `leads.clock_seasons`, in cells, for the given typical lag. They are written to
    `seasons`, `[LAGS]`."""
    for band in range(LAGS):
        seasons[band] = 0
    for k in range(len(_CYCLES)):
        cells = _CYCLES[k] / typical if typical > 0 and (k > 0 or typical < HOURLY_UNTIL) else 0.0
        if not _BANDS[0] - 0.5 <= cells < _BANDS[LAGS]:
            continue
        lag = np.int64(np.rint(cells))
        for band in range(LAGS):
            is_in = _BANDS[band] <= lag < _BANDS[band + 1]
            if is_in and abs(cells - lag) <= WHOLE * lag and seasons[band] == 0:
                seasons[band] = lag
