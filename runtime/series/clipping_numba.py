"""Clip values of a stream that are far outside its recent range.

A value affects scale, centre and seasonal paths from then on. It is therefore clipped to the recent range, which is
extended on both sides by its own width,

    x ← min(max(x, low - (high - low)), high + (high - low))

unless the next value is near it, which shows that the level has changed. low and high are the smallest and largest
clipped value. Each moves towards the newest value over `REACH` values.

There is no range before the first values. The first `EARLY` values are stored. After 8, 16 and all of them, values that
are more than `FENCE` interquartile ranges away are clipped to the extended range of the others, unless a neighbour is
far away on the same side. `tokens_numba.py` then restarts the stream with the stored values.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series.config import REACH

EARLY, FENCE = 32, 20.0
# Stored numbers: the range, the last value outside it, the side of that value (0 if there is none), and the first
# values.
FLOOR, CEILING, SUSPECT, SIDE, FIRST_VALUES = range(5)
CLIP_STATE = FIRST_VALUES + EARLY
# Number of values before the range applies. The next value is near a suspect one if their distance is at most NEAR
# times the distance of the suspect value from the range.
WARM_UP = 8
NEAR = 0.5


@inline_jit
def clip_value(x, seen, state, offset):
    """Return the clipped value, and update the range in place.

    Args:
        x: Value.
        seen: Number of values before it.
        state: Array that contains the `CLIP_STATE` numbers of the stream, beginning at index `offset`.
    """
    if seen == 0:
        state[offset + FLOOR] = state[offset + CEILING] = x
    low, high = state[offset + FLOOR], state[offset + CEILING]
    span = high - low
    side = 0.0
    if seen >= WARM_UP and span > 0:
        side = 1.0 if x > high + span else -1.0 if x < low - span else 0.0
    is_new_level = False
    if side != 0:
        suspect, edge = state[offset + SUSPECT], high if side > 0 else low
        is_new_level = side == state[offset + SIDE] and abs(x - suspect) <= NEAR * abs(suspect - edge)
        state[offset + SUSPECT] = x
        if not is_new_level:
            x = high + span if side > 0 else low - span
    state[offset + SIDE] = 0.0 if is_new_level else side
    state[offset + FLOOR] = min(x, low + (x - low) / REACH)
    state[offset + CEILING] = max(x, high + (x - high) / REACH)
    if seen < EARLY:
        state[offset + FIRST_VALUES + seen] = x
    return x


@inline_jit
def _ranked(rank, count, state, start):
    """Return the value of the given rank (0 is the smallest) among the first values of the stream. The state stores
    these values."""
    for i in range(count):
        x, below = state[start + i], 0
        for j in range(count):
            other = state[start + j]
            below += 1 if other < x or (other == x and j < i) else 0
        if below == rank:
            return x
    return state[start]


@inline_jit
def _beyond(x, low, high):
    return 1 if x > high else -1 if x < low else 0


@inline_jit
def is_recheck_due(seen):
    """Return whether the first values are clipped again after the given number of values."""
    return seen in (WARM_UP, 2 * WARM_UP, EARLY)


@inline_jit
def clip_first_values(count, state, offset):
    """Clip the first values to the range of the others, in place. Return whether a value changed."""
    start = offset + FIRST_VALUES
    low = _ranked(count // 4, count, state, start)
    high = _ranked(count - 1 - count // 4, count, state, start)
    fence = FENCE * (high - low)
    if not fence > 0:
        return False
    low, high = low - fence, high + fence
    least, most, is_changed = high, low, False
    for i in range(count):
        x = state[start + i]
        if _beyond(x, low, high) == 0:
            least, most = min(least, x), max(most, x)
    before = 0
    for i in range(count):
        x = state[start + i]
        side = _beyond(x, low, high)
        after = _beyond(state[start + i + 1], low, high) if i + 1 < count else 0
        if side != 0 and side != before and side != after:
            state[start + i] = 2 * most - least if side > 0 else 2 * least - most
            is_changed = True
        before = side
    return is_changed
