"""How far a stream of the series network believes a value: what its cells hold where something impossible came.

A cell goes into everything that is told of a stream afterwards: scale, centre, seasonal paths. So what lies further
beyond all that was seen lately than that spans is taken for its edge,

    x ← min(max(x, low - (high - low)), high + (high - low))

until a second value in a row lies there too: then the level has moved. low and high are the least and largest value
that was believed, each forgotten toward the newest one over `REACH` values.

What comes first has nothing to be held against, so the first `EARLY` values are kept, and after 8, 16 and all of them
those alone on their side of the quartiles, further than `FENCE` times these are apart, are taken for the edge of the
rest: `tokens_numba.py` has the stream begin anew with them.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series.config import REACH

EARLY, FENCE = 32, 20.0
# What is kept: the edges, a value beyond them that came just now and on which side it was, 0 for none, and the first
# values.
FLOOR, CEILING, DOUBTED, SIDE, FIRST_VALUES = range(5)
BELIEFS = FIRST_VALUES + EARLY
# Values before there are edges to speak of, and how near another one must be to a doubted one, of its way from there.
UNSETTLED = 8
NEAR = 0.5


@inline_jit
def believed(x, seen, kept, at):
    """What is believed of a value, and remembered of it, in place.

    Args:
        seen: values before it.
        kept: where `BELIEFS` numbers of the stream are kept from `at` on.
    """
    if seen == 0:
        kept[at + FLOOR] = kept[at + CEILING] = x
    low, high = kept[at + FLOOR], kept[at + CEILING]
    span = high - low
    side = 0.0
    if seen >= UNSETTLED and span > 0:
        side = 1.0 if x > high + span else -1.0 if x < low - span else 0.0
    is_moved = False
    if side != 0:
        doubted, edge = kept[at + DOUBTED], high if side > 0 else low
        is_moved = side == kept[at + SIDE] and abs(x - doubted) <= NEAR * abs(doubted - edge)
        kept[at + DOUBTED] = x
        if not is_moved:
            x = high + span if side > 0 else low - span
    kept[at + SIDE] = 0.0 if is_moved else side
    kept[at + FLOOR] = min(x, low + (x - low) / REACH)
    kept[at + CEILING] = max(x, high + (x - high) / REACH)
    if seen < EARLY:
        kept[at + FIRST_VALUES + seen] = x
    return x


@inline_jit
def _ranked(rank, count, kept, first):
    """The value of this rank among the first ones."""
    for i in range(count):
        x, below = kept[first + i], 0
        for j in range(count):
            other = kept[first + j]
            below += 1 if other < x or (other == x and j < i) else 0
        if below == rank:
            return x
    return kept[first]


@inline_jit
def _beyond(x, low, high):
    return 1 if x > high else -1 if x < low else 0


@inline_jit
def is_time_to_settle(seen):
    """Whether so many values are looked at again."""
    return seen in (UNSETTLED, 2 * UNSETTLED, EARLY)


@inline_jit
def settled(count, kept, at):
    """Take those of the first values that cannot be for the edge of the others, in place; whether one was."""
    first = at + FIRST_VALUES
    low = _ranked(count // 4, count, kept, first)
    high = _ranked(count - 1 - count // 4, count, kept, first)
    fence = FENCE * (high - low)
    if not fence > 0:
        return False
    low, high = low - fence, high + fence
    least, most, is_any = high, low, False
    for i in range(count):
        x = kept[first + i]
        if _beyond(x, low, high) == 0:
            least, most = min(least, x), max(most, x)
    before = 0
    for i in range(count):
        x = kept[first + i]
        side = _beyond(x, low, high)
        after = _beyond(kept[first + i + 1], low, high) if i + 1 < count else 0
        if side != 0 and side != before and side != after:
            kept[first + i] = 2 * most - least if side > 0 else 2 * least - most
            is_any = True
        before = side
    return is_any
