"""The typical lag between two rows of a stream: the length of a step without the gaps."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import inline_jit

# Maximum number of lags in the mean of the typical lag.
LAGS_COUNTED = 1000.0
# Maximum difference of a gap from a multiple of the typical lag, in typical lags. The hour of a clock change is within
# that of a day. Random gaps are rarely within it, so the mean of irregular lags does not shrink.
MULTIPLE = 0.05


@inline_jit
def _is_multiple(lag, step):
    """Return whether a lag is a multiple of a step, of at least two steps."""
    count = np.rint(lag / step)
    return count >= 2 and abs(lag - count * step) <= MULTIPLE * step


@inline_jit
def single_lag(lag, typical):
    """Return the length of one step in a lag, for the mean of the typical lag.

    A gap of several steps, such as the nights of opening hours or the weekends of working days, contains steps of the
    typical lag. Other lags are clipped to the range from half to twice the typical lag.
    """
    if _is_multiple(lag, typical):
        return lag / np.rint(lag / typical)
    return min(max(lag, typical / 2), 2 * typical)


@inline_jit
def typical_step(step, lag, count):
    """Update the running mean of a stream's lags, and return it.

    Args:
        step: Mean of the previous lags, or 0 before the first lag.
        lag: Time since the previous row. If it is not positive, the mean does not change.
        count: Number of previous rows.
    """
    if lag <= 0:
        return step
    # The first lag may be a gap.
    if step == 0 or (count == 2 and _is_multiple(step, lag)):
        return lag
    return step + (single_lag(lag, step) - step) / min(count + 1, LAGS_COUNTED)
