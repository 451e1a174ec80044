"""Streams of the series network between two calls: what they keep, and the tokens that their rows make.

A row comes at a time; in cells of the stream's typical lag, the running mean of its lags, each counted for half of it
to twice as much, and their median anew where the first ones or the last eight are nothing like it, it is

    n = max(1, round(φ + lag / unit)) cells after the row before             φ ← φ + lag / unit - n

on: every row has a cell of its own, the cells between are empty, and what rounding leaves is carried on, so that in the
long run cells keep time. Each row makes a token, in the frame of the patch that it lies in: it is read from the slots
as they were after the last whole patch, and only a token that completes a patch becomes part of them. So the rows of a
patch need nothing of each other, and the network takes them at once: a wave. A row of nothing at the time of the row
before is a look at the stream: no cell passes, and its leads are asked of the token that there is.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.series import belief_numba, config, leads, tokens_numba
from rfa.runtime.series.config import FEATURES, LAGS, PATCH, PATHS, REACH
from rfa.runtime.series.leads import FARTHEST, lead_table
from rfa.runtime.series.tokens_numba import (
    CELLS,
    COUNTS,
    FILL,
    HEAD,
    MASK,
    NUMBERS,
    ORIGIN,
    RING,
    SEEN,
    keep_token,
    noise_bound,
    observe,
    path,
    token,
)

Array = np.ndarray
# Files that kernels of this one are made of, beside it.
SOURCES = (belief_numba, config, leads, tokens_numba)
LEAD_TABLE = lead_table()
LEAD_NUMBERS = LEAD_TABLE.shape[1]
# Of a stream and column beside those of its tokens: the centre and scale of the last one; how a forecast moves with an
# innovation, sums of products and of squares; what the filter made of the last row, mean and variance; and how many
# innovations there were, and the sums of their sizes and of their foretold deviations, all discounted like the errors
# of lags.
CENTRE, UNIT, MOVED, SQUARED, FILTERED, VARIANCE, MISSES, MISSED, FORESEEN = range(NUMBERS, NUMBERS + 9)
KEPT_NUMBERS = NUMBERS + 9
# Counts that are kept: those of tokens but where the ring begins, and the cells up to the last token.
TOLD = COUNTS
KEPT_COUNTS = (CELLS, SEEN, FILL, MASK, TOLD)
_KEPT = np.array(KEPT_COUNTS)
# Streams are not told what seasons their clock has.
NO_SEASONS = np.zeros(LAGS, np.int64)
# A row after more empty cells than this goes on as after so many: nothing that is kept reaches further.
MOST_EMPTY = REACH
# Cells beyond which a lead is not told from others, and how near to a whole one it is taken for that.
FURTHEST = 1e9
NEAR_WHOLE = 0.25
LARGEST_VALUE = 1e140
# The clock of a stream: the time of its last row, the typical lag, the rows so far, φ, the lags that the typical one
# is of, and the last ones.
TIME, LAG, ROWS, PHASE, LAGS_SEEN, LAST_LAGS = range(6)
LOOKED_BACK = 8
CLOCK = LAST_LAGS + LOOKED_BACK
# Lags that the typical one is the mean of, at most; and how many times it, or which part of it, is nothing like it.
LAGS_COUNTED = 1000.0
UNLIKE = 3.0
MOST_LAGS = 1e15


class Kept(NamedTuple):
    """What the seats of a pool hold, `[R, P, …]`; clock `[R, CLOCK]`. seen: bits of the first REACH cells; hidden
    `[R, P, d]`: the state that the network gave the last token; means, precisions: the slots after the last patch."""

    clock: Array
    numbers: Array
    counts: Array
    ring: Array
    errors: Array
    seen: Array
    lags: Array
    offsets: Array
    hidden: Array
    means: Array
    precisions: Array


class Work(NamedTuple):
    """The same of the streams of a wave, as tokens are made of it: `[W, P, …]`."""

    clock: Array
    numbers: Array
    counts: Array
    ring: Array
    errors: Array
    since: Array
    seen: Array
    lags: Array
    offsets: Array


class Jobs(NamedTuple):
    """Tokens of a wave, `[J, …]`: numbers, cells up to each, cells since the last whole patch, the stream of the wave,
    the column, and whether it completes a patch."""

    tokens: Array
    ends: Array
    lags: Array
    stream: Array
    column: Array
    is_whole: Array


class Asks(NamedTuple):
    """What is asked of the network, `[A, …]`.

    Args:
        numbers: what the head sees.
        of: the job whose state it is about, or below 0 the state that stream · P + column had before, less one.
    """

    numbers: Array
    of: Array


class Rows(NamedTuple):
    """Rows of a wave, `[K, …]`; of each column the first of its asks, -1 where there are none.

    Args:
        at: row of the batch. stream: of the wave. is_look: whether no cell passed for it. unit: the typical lag at it,
            0 before there is one.
        before: two asks of the token before, for this cell and the next one; after: one of its own, for the next cell.
        ahead `[K, P, H, 2]`: the asks of its leads, the same twice where a lead is whole; share `[K, P, H]`: of the
            second.
        scales: centre and scale of the token before and of its own, `[K, P, 4]`.
        seen: values before it, and a bound on the variance of their noise, `[K, P]`.
    """

    at: Array
    stream: Array
    is_look: Array
    unit: Array
    before: Array
    after: Array
    ahead: Array
    share: Array
    scales: Array
    seen: Array
    noise: Array


def kept_shapes(columns: int, width: int, slots: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of what a seat holds, by the names of `Kept`.

    Args:
        width: of the network's states. slots: `[L, H, S, 4D]`.
    """
    return {
        "clock": ((CLOCK,), np.float64),
        "numbers": ((columns, KEPT_NUMBERS), np.float64),
        "counts": ((columns, len(KEPT_COUNTS)), np.int64),
        "ring": ((columns, REACH), np.float32),
        "errors": ((columns, REACH), np.float32),
        "seen": ((columns, REACH // 8), np.uint8),
        "lags": ((columns, LAGS), np.int64),
        "offsets": ((columns, LAGS), np.float64),
        "hidden": ((columns, width), np.float32),
        "means": ((columns, *slots), np.float32),
        "precisions": ((columns, *slots[:3]), np.float32),
    }


def kept_of(arrays: Mapping[str, Array], prefix: str) -> Kept:
    """Of the arrays of a pool."""
    return Kept(*(arrays[f"{prefix}{name}"] for name in Kept._fields))


def work_for(streams: int, columns: int) -> Work:
    """Room for the streams of a wave."""
    wide = (streams, columns)
    return Work(
        np.empty((streams, CLOCK)), np.empty((*wide, KEPT_NUMBERS)), np.empty((*wide, COUNTS + 1), np.int64),
        np.empty((*wide, RING), np.float32), np.empty((*wide, REACH), np.float32),
        np.empty((*wide, REACH), np.uint16), np.empty((*wide, REACH // 8), np.uint8),
        np.empty((*wide, LAGS), np.int64), np.empty((*wide, LAGS)),
    )  # fmt: skip


def jobs_for(count: int) -> Jobs:
    """Room for tokens."""
    return Jobs(
        np.empty((count, FEATURES), np.float32), np.empty(count, np.int64), np.empty(count, np.int64),
        np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_),
    )  # fmt: skip


def asks_for(count: int, asked: int) -> Asks:
    """Room for asks."""
    return Asks(np.zeros((count, asked), np.float32), np.empty(count, np.int64))


def rows_for(count: int, columns: int, horizon: int) -> Rows:
    """Room for rows."""
    wide = (count, columns)
    return Rows(
        np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_), np.empty(count),
        np.empty(wide, np.int64),
        np.empty(wide, np.int64),
        np.empty((*wide, horizon, 2), np.int64), np.empty((*wide, horizon)), np.empty((*wide, 4)),
        np.empty(wide, np.int64), np.empty(wide),
    )  # fmt: skip


@inline_jit
def _bounded(number, low, high):
    return min(max(number, low), high)


@inline_jit
def load(kept, seat, work, stream):
    """Have a stream at hand. What a state from elsewhere claims is bounded by what can be."""
    for k in range(CLOCK):
        work.clock[stream, k] = kept.clock[seat, k]
    work.clock[stream, LAGS_SEEN] = _bounded(work.clock[stream, LAGS_SEEN], 0.0, MOST_LAGS)
    for a in range(kept.numbers.shape[1]):
        for k in range(KEPT_NUMBERS):
            work.numbers[stream, a, k] = kept.numbers[seat, a, k]
        counts = work.counts[stream, a]
        for k in range(len(_KEPT)):
            counts[_KEPT[k]] = max(kept.counts[seat, a, k], 0)
        counts[SEEN] = min(counts[SEEN], counts[CELLS])
        counts[TOLD] = _bounded(counts[TOLD], max(counts[CELLS] - MOST_EMPTY, 0), counts[CELLS])
        counts[HEAD], counts[FILL] = RING - REACH, _bounded(counts[FILL], 1, REACH - 1)
        before = 0
        for k in range(REACH):
            work.ring[stream, a, RING - REACH + k] = kept.ring[seat, a, k]
            work.errors[stream, a, k] = kept.errors[seat, a, k]
            work.since[stream, a, k] = before
            before += (kept.seen[seat, a, k >> 3] >> (k & 7)) & 1
        for k in range(REACH // 8):
            work.seen[stream, a, k] = kept.seen[seat, a, k]
        for k in range(LAGS):
            lag = _bounded(kept.lags[seat, a, k], 0, REACH - PATCH)
            work.lags[stream, a, k] = min(lag, counts[CELLS])
            work.offsets[stream, a, k] = kept.offsets[seat, a, k]


@inline_jit
def store(work, stream, kept, seat):
    """The inverse of `load`."""
    for k in range(CLOCK):
        kept.clock[seat, k] = work.clock[stream, k]
    for a in range(kept.numbers.shape[1]):
        for k in range(KEPT_NUMBERS):
            kept.numbers[seat, a, k] = work.numbers[stream, a, k]
        counts = work.counts[stream, a]
        for k in range(len(_KEPT)):
            kept.counts[seat, a, k] = counts[_KEPT[k]]
        head = counts[HEAD]
        for k in range(REACH):
            kept.ring[seat, a, k] = work.ring[stream, a, head + k]
            kept.errors[seat, a, k] = work.errors[stream, a, k]
        for k in range(REACH // 8):
            kept.seen[seat, a, k] = work.seen[stream, a, k]
        for k in range(LAGS):
            kept.lags[seat, a, k] = work.lags[stream, a, k]
            kept.offsets[seat, a, k] = work.offsets[stream, a, k]


@inline_jit
def _take(work, stream, a, x):
    """One more cell of a column."""
    counts = work.counts[stream, a]
    n = counts[CELLS]
    if n < REACH and x == x:
        work.seen[stream, a, n >> 3] |= np.uint8(1 << (n & 7))
    observe(x, work.numbers[stream, a], counts, work.ring[stream, a], work.errors[stream, a], work.since[stream, a])


@inline_jit
def _make(work, stream, a, jobs, job):
    """The token of a column; whether it completes a patch."""
    numbers, counts = work.numbers[stream, a], work.counts[stream, a]
    lags, offsets = work.lags[stream, a], work.offsets[stream, a]
    c, s, fill = token(
        numbers, counts, work.ring[stream, a], work.errors[stream, a], work.since[stream, a], NO_SEASONS,
        lags, offsets, jobs.tokens[job],
    )  # fmt: skip
    cells = counts[CELLS]
    jobs.ends[job], jobs.lags[job] = cells, (cells - 1) % PATCH + 1
    jobs.stream[job], jobs.column[job], jobs.is_whole[job] = stream, a, cells % PATCH == 0
    numbers[CENTRE], numbers[UNIT], counts[TOLD] = c, s, cells
    if cells % PATCH == 0:
        keep_token(numbers, counts, c, s, fill)
    return cells % PATCH == 0


@inline_jit
def _ask(work, stream, a, lead, asks, ask, of):
    """Have a lead asked of the column's last token."""
    numbers, counts = work.numbers[stream, a], work.counts[stream, a]
    row = asks.numbers[ask]
    path(
        lead, counts[CELLS] - counts[TOLD], counts, work.ring[stream, a], work.lags[stream, a], work.offsets[stream, a],
        numbers[CENTRE], numbers[UNIT], numbers[ORIGIN], row,
    )  # fmt: skip
    near = min(lead, FARTHEST)
    for k in range(LEAD_NUMBERS):
        row[PATHS + k] = LEAD_TABLE[near, k]
    for k in range(PATHS + LEAD_NUMBERS, len(row)):
        row[k] = 0.0
    asks.of[ask] = of
    return ask + 1


@inline_jit
def _make_all(work, stream, columns, only_whole, jobs, job, last):
    """The tokens of the columns that have begun, or of those that complete a patch; how many, and whether one does."""
    is_whole = False
    for a in range(columns):
        cells = work.counts[stream, a, CELLS]
        if cells > 0 and (cells % PATCH == 0 or not only_whole):
            is_whole = _make(work, stream, a, jobs, job) or is_whole
            last[stream, a] = job
            job += 1
    return job, is_whole


@inline_jit
def _ask_before(work, stream, columns, asks, ask, rows, row, last):
    """Ask the last token of each column for this cell and the next one."""
    for a in range(columns):
        counts = work.counts[stream, a]
        rows.before[row, a], rows.seen[row, a] = -1, counts[SEEN]
        if counts[CELLS] > 0:
            of = last[stream, a] if last[stream, a] >= 0 else -1 - (stream * columns + a)
            lead = counts[CELLS] - counts[TOLD] + 1
            rows.before[row, a] = ask
            rows.scales[row, a, 0] = work.numbers[stream, a, CENTRE]
            rows.scales[row, a, 1] = work.numbers[stream, a, UNIT]
            rows.noise[row, a] = noise_bound(work.numbers[stream, a])
            ask = _ask(work, stream, a, lead, asks, ask, of)
            ask = _ask(work, stream, a, lead + 1, asks, ask, of)
    return ask


@inline_jit
def _ask_after(work, stream, columns, leads, unit, asks, ask, rows, row, last):
    """Ask the row's own token for the next cell and for the leads."""
    for a in range(columns):
        rows.after[row, a] = -1
        if work.counts[stream, a, CELLS] == 0:
            continue
        of = last[stream, a] if last[stream, a] >= 0 else -1 - (stream * columns + a)
        rows.after[row, a] = ask
        rows.scales[row, a, 2] = work.numbers[stream, a, CENTRE]
        rows.scales[row, a, 3] = work.numbers[stream, a, UNIT]
        ask = _ask(work, stream, a, 1, asks, ask, of)
        for h in range(len(leads)):
            cells = max(leads[h] / unit, 1.0) if unit > 0 else max(leads[h], 1.0)
            cells = min(cells, FURTHEST)
            first, share = np.int64(np.rint(cells)), 0.0
            if abs(cells - first) > NEAR_WHOLE:
                first = np.int64(np.floor(cells))
                share = cells - first
            rows.ahead[row, a, h, 0], rows.share[row, a, h] = ask, share
            ask = _ask(work, stream, a, first, asks, ask, of)
            rows.ahead[row, a, h, 1] = ask - 1
            if share > 0:
                rows.ahead[row, a, h, 1] = ask
                ask = _ask(work, stream, a, first + 1, asks, ask, of)
    return ask


@inline_jit
def _median_lag(clock, count):
    """Of the last `count` lags, the upper of two: a stream of two lags is taken to have begun with the longer."""
    for i in range(count):
        lag, below = clock[LAST_LAGS + i], 0
        for j in range(count):
            other = clock[LAST_LAGS + j]
            below += 1 if other < lag or (other == lag and j < i) else 0
        if below == count // 2:
            return lag
    return clock[LAST_LAGS]


@inline_jit
def _is_unlike(clock, count, typical):
    """Whether a typical lag is not one: each of the last `count` is longer by far, or each is shorter; of the first
    ones half are longer, or more are shorter."""
    longer, shorter = 0, 0
    for k in range(count):
        lag = clock[LAST_LAGS + k]
        longer += 1 if lag > UNLIKE * typical else 0
        shorter += 1 if lag * UNLIKE < typical else 0
    enough = (count + 1) // 2 if clock[LAGS_SEEN] < LOOKED_BACK else count
    return longer >= enough or shorter > count - enough


@inline_jit
def cells_to_pass(clock, now):
    """Move a clock to a row; how many cells it is after the one before."""
    lag, typical = now - clock[TIME], clock[LAG]
    if clock[ROWS] == 0:
        lag = 0.0
    if lag > 0:
        clock[LAST_LAGS + np.int64(clock[LAGS_SEEN]) % LOOKED_BACK] = lag
        clock[LAGS_SEEN] += 1
        count = np.int64(min(clock[LAGS_SEEN], LOOKED_BACK))
        if typical == 0 or _is_unlike(clock, count, typical):
            typical, clock[PHASE] = _median_lag(clock, count), 0.0
            if count == LOOKED_BACK:  # the mean begins again
                clock[LAGS_SEEN] = LOOKED_BACK + clock[LAGS_SEEN] % LOOKED_BACK
        else:
            typical += (_bounded(lag, typical / 2, 2 * typical) - typical) / min(clock[LAGS_SEEN] + 1, LAGS_COUNTED)
    to_pass = clock[PHASE] + (lag / typical if typical > 0 else 1.0)
    count = _bounded(np.rint(to_pass), 1.0, MOST_EMPTY + 1.0)
    clock[TIME], clock[LAG], clock[ROWS] = now, typical, clock[ROWS] + 1
    clock[PHASE] = _bounded(to_pass - count, -MOST_EMPTY, 0.5) if clock[ROWS] > 1 else 0.0
    return np.int64(count)


@inline_jit
def _is_look(work, stream, columns, now, values):
    """Whether a row is nothing at the time of the row before, where a column has begun."""
    begun = 0
    for a in range(columns):
        if values[a] == values[a]:
            return False
        begun += work.counts[stream, a, CELLS]
    return begun > 0 and now == work.clock[stream, TIME]


@kernel_jit(*SOURCES)
def wave(kept, seats, times, values, leads, cursors, ends, gone, most, work, jobs, asks, rows, last, was):
    """The next tokens of some streams, of each up to the first that completes a patch of a column.

    Args:
        kept: of the pool, which is read; `keep` keeps what `work` holds.
        seats, times, values: of the rows of a batch, `[N]`, `[N, P]`; NaN where nothing came.
        leads: `[H]` in units of time.
        cursors, ends: of each stream `[W]`, its rows in the batch that are still to come; cursors move on.
        gone: `[W]` empty cells before the next row that are behind it already; 0 at first.
        most: rows of a stream in this wave.
        work, jobs, asks, rows: results. last: `[W, P]` the last job of each column, -1 for none.
        was: room, `[CLOCK]`.

    Returns:
        how many jobs, asks and rows there are.
    """
    job = ask = row = 0
    columns = values.shape[1]
    for stream in range(len(cursors)):
        if cursors[stream] == ends[stream]:
            continue
        load(kept, seats[cursors[stream]], work, stream)
        for a in range(columns):
            last[stream, a] = -1
        is_whole, taken = False, 0
        while cursors[stream] < ends[stream] and not is_whole and taken < most:
            at = cursors[stream]
            rows.is_look[row] = _is_look(work, stream, columns, times[at], values[at])
            if rows.is_look[row]:
                rows.at[row], rows.stream[row], rows.unit[row] = at, stream, work.clock[stream, LAG]
                for a in range(columns):
                    rows.before[row, a], rows.seen[row, a] = -1, work.counts[stream, a, SEEN] - 1
                ask = _ask_after(work, stream, columns, leads, work.clock[stream, LAG], asks, ask, rows, row, last)
                cursors[stream] += 1
                row += 1
                taken += 1
                continue
            # The clock is looked at again in the next wave, if a patch ends before the row.
            for k in range(CLOCK):
                was[k] = work.clock[stream, k]
            count = cells_to_pass(work.clock[stream], times[at])
            while gone[stream] < count - 1 and not is_whole:
                gone[stream] += 1
                for a in range(columns):
                    if work.counts[stream, a, CELLS] > 0:
                        _take(work, stream, a, np.nan)
                job, is_whole = _make_all(work, stream, columns, True, jobs, job, last)
            if is_whole:
                for k in range(CLOCK):
                    work.clock[stream, k] = was[k]
                break
            rows.at[row], rows.stream[row], rows.unit[row] = at, stream, work.clock[stream, LAG]
            ask = _ask_before(work, stream, columns, asks, ask, rows, row, last)
            for a in range(columns):
                if work.counts[stream, a, CELLS] > 0 or values[at, a] == values[at, a]:
                    _take(work, stream, a, values[at, a])
            job, is_whole = _make_all(work, stream, columns, False, jobs, job, last)
            ask = _ask_after(work, stream, columns, leads, work.clock[stream, LAG], asks, ask, rows, row, last)
            gone[stream] = 0
            cursors[stream] += 1
            row += 1
            taken += 1
    return job, ask, row


@kernel_jit(*SOURCES, allocates=True)
def gather(kept, seats, jobs, count, means, precisions):
    """The slots of the streams of jobs into `[J, L, H, S, 4D]` and `[J, L, H, S]`."""
    for job in range(count):
        stream, a = jobs.stream[job], jobs.column[job]
        means[job] = kept.means[seats[stream], a]
        precisions[job] = kept.precisions[seats[stream], a]


@kernel_jit(*SOURCES, allocates=True)
def keep(kept, seats, is_kept, work, jobs, count, last, states, means, precisions):
    """Keep the streams of a wave that are to be kept: what was seen, the states of the last tokens, and the slots of
    those that completed a patch."""
    for stream in range(len(seats)):
        if is_kept[stream]:
            store(work, stream, kept, seats[stream])
            for a in range(last.shape[1]):
                if last[stream, a] >= 0:
                    for k in range(states.shape[1]):
                        kept.hidden[seats[stream], a, k] = states[last[stream, a], k]
    for job in range(count):
        stream, a = jobs.stream[job], jobs.column[job]
        if jobs.is_whole[job] and is_kept[stream]:
            kept.means[seats[stream], a] = means[job]
            kept.precisions[seats[stream], a] = precisions[job]
