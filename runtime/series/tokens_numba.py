"""What the series network sees of a stream: running sums, and the tokens that are made of them.

A stream is cells of one nominal step; a cell holds a value or nothing. One pass keeps, for every lag k < `REACH`, the
discounted mean error of the forecast "as k cells ago",

    E_k ← g E_k + min(|x_t - x_{t-k}|, cap)          e_k = E_k / Σ g^i over the pairs seen          g = 1 - 1 / REACH

the discounted mean and variance of the values, and the last `REACH` cells (an empty one is filled with what its best
lag has; a value that cannot be is believed only so far, `belief_numba.py`). The scale s of a stream is the mean of
e_1 … e_32: what it moves by within a patch, whatever its level and trend. The centre c is the mean of what was seen in
the last 8 cells. In each of four bands of lags one is chosen, by the least e_k; what a stream did that many cells ago
is its seasonal path:

    path_j(h) = x at t + h - ceil(h / p_j) p_j          and that of persistence, x at t

A token is `FEATURES` numbers about a stream at one of its cells, all of them asinh((x - c) / s) or logs of ratios: a
stream in other units, at another level, has the same ones but for what tells where zero is, and that is told only as
far as sinh(`FARTHEST_ZERO`) scales. Few series of training are further from it, so that a network knows nothing of how
much further, and whatever it made of it would hang on the level alone. Both training and the compiled stream come
through here, cell by cell, so that a token is the same number in both.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.series.belief_numba import BELIEFS, FIRST_VALUES, believed, is_time_to_settle, settled
from rfa.runtime.series.config import AHEAD, BANDS, BLOCK_LENGTHS, BLOCKS, DIFFERENCES, LAGS, REACH, WINDOW

Array = np.ndarray
CENTRED = 8
_BANDS, _BLOCK_LENGTHS = np.array(BANDS), np.array(BLOCK_LENGTHS)
KEEP = 1 - 1 / REACH
# A move counts for at most so many scales once this many values were seen.
CAP, CAPPED_FROM = 20.0, 32
# Numbers of a stream.
(
    ORIGIN, MEAN, SQUARES, WEIGHT, SCALE, LAST, LOW, HIGH, REPEATS, ZEROS, EARLIER_CENTRE, EARLIER_SCALE, BENDS, BENT,
    LEAST, BELIEF,
) = range(16)  # fmt: skip
NUMBERS = BELIEF + BELIEFS
# Cells are float32 from the origin on, which moves along where two values in a row are so many scales away from it.
FAR = 1024.0
# Cells that a stream may have at most when it begins anew.
BEGUN = 62
# Where zero is at most, after asinh: 200 scales off. Of the synthetic series' tokens one in 170 is further.
FARTHEST_ZERO = 6.0
# What moves by less, of its value, is rounding; and what the scale is then.
RESOLUTION, STILL = 1e-14, 1e-9
# A mean error that nothing is known of.
UNKNOWN = 1e150
# Counts of a stream: cells, values seen, where its newest cell is in the ring, the lag that fills empty cells, and bits
# of its last cells, the newest lowest, set where there was a value.
CELLS, SEEN, HEAD, FILL, MASK = range(5)
COUNTS = 5
RING = 2 * REACH
NORMALISERS = ((1 - KEEP ** np.arange(8 * REACH)) / (1 - KEEP)).astype(np.float32)
# By how much an error of so many pairs is taken to be larger: by its standard error.
PENALTIES = 1 + 1 / np.sqrt(np.maximum(np.arange(8 * REACH), 1))
# What the error of a season that the clock gives counts for beside the best of its band, and its fewest pairs.
SEASON_SHARE, SEASON_PAIRS = 0.8, 2


@inline_jit
def begin(numbers, counts, ring, errors, since):
    """A stream that has seen nothing, in place."""
    for i in range(NUMBERS):
        numbers[i] = 0.0
    for i in range(COUNTS):
        counts[i] = 0
    counts[HEAD], counts[FILL] = RING, 1
    for k in range(RING):
        ring[k] = 0.0
    for k in range(REACH):
        errors[k], since[k] = 0.0, 0


@inline_jit
def _pairs(counts, since, lag):
    """The discounted number of pairs that a lag was seen in, as an index of its normaliser."""
    return min(counts[SEEN] - since[lag], len(NORMALISERS) - 1)


@inline_jit
def observe(x, numbers, counts, ring, errors, since):
    """One more cell, in place; x is NaN where it is empty. The first cell of a stream is not."""
    if x == x:
        x = believed(x, counts[SEEN], numbers, BELIEF)
    # Once, or for the first values again, as they are believed by now: the loop is there twice where it is written so.
    left, value, at, was_seen = np.int64(1), x, 0, np.int64(0)
    while left > 0:
        _observe(value, numbers, counts, ring, errors, since)
        left -= 1
        if was_seen == 0:
            count = counts[SEEN]
            if x == x and is_time_to_settle(count) and counts[CELLS] <= BEGUN and settled(count, numbers, BELIEF):
                left = counts[CELLS]
                was_seen = _forget(numbers, counts, errors, since)
        else:
            was_seen >>= 1
        if left > 0:
            value = np.nan
            if was_seen & 1:
                value = numbers[BELIEF + FIRST_VALUES + at]
                at += 1


@inline_jit
def _forget(numbers, counts, errors, since):
    """Begin anew but for what is believed; which of the cells there was something in, bits, the first one lowest."""
    cells, was_seen = counts[CELLS], np.int64(1)
    for k in range(cells - 1):  # the last one was
        was_seen = (was_seen << 1) | (1 if since[cells - 1 - k] > since[cells - 2 - k] else 0)
    for i in range(BELIEF):
        numbers[i] = 0.0
    for k in range(REACH):
        errors[k], since[k] = 0.0, 0
    counts[CELLS] = counts[SEEN] = counts[MASK] = 0
    counts[HEAD] += cells
    return was_seen


@inline_jit
def _observe(x, numbers, counts, ring, errors, since):
    n, head = counts[CELLS], counts[HEAD]
    is_seen = x == x
    if n == 0:
        numbers[ORIGIN] = x
        numbers[LOW] = x
        numbers[HIGH] = x
    elif is_seen:
        away = FAR * numbers[SCALE]
        if away > 0 and abs(x - numbers[ORIGIN]) > away and abs(numbers[LAST] - numbers[ORIGIN]) > away:
            _move_origin(x, numbers, counts, ring)
    if n < REACH:
        since[n] = counts[SEEN]
    value = np.float32(x - numbers[ORIGIN]) if is_seen else ring[head + min(counts[FILL], n) - 1]
    if is_seen:
        counts[SEEN] += 1
        keep = np.float32(KEEP)
        cap = np.float32(np.inf)
        if counts[SEEN] > CAPPED_FROM and numbers[SCALE] > 0:
            cap = np.float32(CAP * numbers[SCALE])
        # The newest cell is still the one before: lag k is at head + k - 1. Views whose indices cannot be negative are
        # what the compiler vectorises.
        most = min(n, REACH - 1)
        before, means = ring[head : head + most], errors[1 : most + 1]
        for k in range(most):
            means[k] = keep * means[k] + min(abs(value - before[k]), cap)
        if n > 1 and counts[MASK] & 3 == 3:
            bend = min(abs((value - ring[head]) - (ring[head] - ring[head + 1])), 2 * cap)
            numbers[BENDS], numbers[BENT] = KEEP * numbers[BENDS] + 1, KEEP * numbers[BENT] + bend
    if head == 0:
        for k in range(REACH):
            ring[REACH + k] = ring[k]
        head = REACH
    head -= 1
    ring[head] = value
    counts[HEAD] = head
    counts[CELLS] = n + 1
    counts[MASK] = ((counts[MASK] << 1) | (1 if is_seen else 0)) & ((1 << WINDOW) - 1)
    if not is_seen:
        return
    total = 0.0
    most = min(n, WINDOW)
    for k in range(1, most + 1):
        total += errors[k] / NORMALISERS[_pairs(counts, since, k)]
    if most:
        numbers[SCALE] = total / most
    numbers[WEIGHT] = KEEP * numbers[WEIGHT] + 1
    away = x - numbers[MEAN]
    if counts[SEEN] > CAPPED_FROM:
        limit = CAP * math.sqrt(numbers[SQUARES] / numbers[WEIGHT])
        if limit > 0:
            away = min(max(away, -limit), limit)
    rest = away * (1 - 1 / numbers[WEIGHT])
    numbers[MEAN] += away / numbers[WEIGHT]
    numbers[SQUARES] = KEEP * numbers[SQUARES] + away * rest
    rate = 1 / numbers[WEIGHT]
    numbers[REPEATS] += rate * ((1.0 if n > 0 and x == numbers[LAST] else 0.0) - numbers[REPEATS])
    numbers[ZEROS] += rate * ((1.0 if x == 0 else 0.0) - numbers[ZEROS])
    numbers[LAST] = x
    numbers[LOW] = min(numbers[LOW], x)
    numbers[HIGH] = max(numbers[HIGH], x)


@inline_jit
def _move_origin(x, numbers, counts, ring):
    """Tell the cells from x on."""
    by, head = x - numbers[ORIGIN], counts[HEAD]
    for k in range(min(counts[CELLS], REACH)):
        ring[head + k] = np.float32(ring[head + k] - by)
    numbers[ORIGIN] = x


@inline_jit
def centre(numbers, counts, ring):
    """The mean of what was seen in the last cells, else the last that was."""
    total, found = 0.0, 0
    for i in range(min(CENTRED, counts[CELLS])):
        if (counts[MASK] >> i) & 1:
            total += ring[counts[HEAD] + i]
            found += 1
    return numbers[ORIGIN] + total / found if found else numbers[LAST]


@inline_jit
def unit(numbers):
    """The scale, never zero: where nothing moved, a small share of the value."""
    usual = max(abs(numbers[LAST]), abs(numbers[MEAN]))
    scale = numbers[SCALE] if numbers[SCALE] > RESOLUTION * usual else STILL * usual
    return max(scale, 1e-300)


@inline_jit
def choose(numbers, counts, errors, since, seasons, lags):
    """The best lag of each band into `lags`, 0 where none was seen often enough, and the best of all, persistence
    among them. A lag of `seasons` `[LAGS]`, 0 for none, is taken from two pairs on unless another is a fifth better."""
    n = counts[CELLS]
    best_of_all = 1
    least_of_all = np.inf
    if n > 1:
        pairs = _pairs(counts, since, 1)
        least_of_all = errors[1] / NORMALISERS[pairs] * PENALTIES[pairs] if pairs > 0 else np.inf
    for band in range(LAGS):
        lags[band] = 0
        least = np.inf
        first, end = _BANDS[band], min(_BANDS[band + 1], n)
        if end > first:
            totals, before = errors[first:end], since[first:end]
            for i in range(len(totals)):
                pairs = min(counts[SEEN] - np.int64(before[i]), len(NORMALISERS) - 1)
                if pairs >= 8 and 2 * pairs >= first + i:
                    error = totals[i] / NORMALISERS[pairs] * PENALTIES[pairs]
                    if error < least:
                        least = error
                        lags[band] = first + i
        season = seasons[band]
        if 0 < season < n:
            pairs = _pairs(counts, since, season)
            if pairs >= SEASON_PAIRS:
                error = errors[season] / NORMALISERS[pairs] * PENALTIES[pairs]
                if SEASON_SHARE * error < least:
                    least = error
                    lags[band] = season
        if least < least_of_all:
            least_of_all = least
            best_of_all = lags[band]
    numbers[LEAST] = min(least_of_all, UNKNOWN)
    return best_of_all


@inline_jit
def noise_bound(numbers):
    """A bound on the variance of the noise of a value, from what noise does to differences however the stream moves:
    it doubles the square of the least of those between two, and has six times its own in second ones. Mean sizes are
    those of normal numbers."""
    bound = numbers[LEAST] * numbers[LEAST] / 2
    if numbers[BENDS] > 0:
        bent = numbers[BENT] / numbers[BENDS]
        bound = min(bound, bent * bent / 6)
    return math.pi / 2 * bound


@inline_jit
def _squashed(x, c, s):
    return np.float32(math.asinh((x - c) / s))


@inline_jit
def _zero(numbers, c, s):
    """Where zero is. Of a stream that stands still the unit is a share of its level, and tells nothing of it."""
    if s > numbers[SCALE]:
        return _squashed(0.0, c, s)
    return np.float32(min(max(math.asinh(-c / s), -FARTHEST_ZERO), FARTHEST_ZERO))


@inline_jit
def token(numbers, counts, ring, errors, since, seasons, lags, offsets, row):
    """The token of a stream at its newest cell into `row`; the lags of its paths and what it is above them now into
    `lags` and `offsets` `[LAGS]`.

    Returns:
        centre, scale, and the lag that is to fill empty cells.
    """
    c, s = centre(numbers, counts, ring), unit(numbers)
    n, head, origin = counts[CELLS], counts[HEAD], numbers[ORIGIN]
    # Cells are told from the origin on, which takes the level of the stream out of their float32.
    local = c - origin
    at = 0
    for i in range(WINDOW):
        there = WINDOW - 1 - i
        row[at + i] = _squashed(ring[head + there], local, s) if there < n else np.float32(0)
        row[at + WINDOW + i] = np.float32((counts[MASK] >> there) & 1)
    at += 2 * WINDOW
    fill = choose(numbers, counts, errors, since, seasons, lags)
    for band in range(LAGS):
        p = lags[band]
        offsets[band] = 0.0
        if p == 0:
            for i in range(DIFFERENCES + AHEAD + 4):
                row[at + i] = 0
            at += DIFFERENCES + AHEAD + 4
            continue
        above = 0.0
        for i in range(DIFFERENCES):
            difference = 0.0
            if i + p < n:
                difference = ring[head + i] - ring[head + i + p]
            if i < CENTRED:
                above += difference / CENTRED
            row[at + i] = np.float32(math.asinh(difference / s))
        offsets[band] = above
        for i in range(AHEAD):
            h = (i + 1) * 4
            row[at + DIFFERENCES + i] = _squashed(ring[head + _back(h, p)], local, s)
        at += DIFFERENCES + AHEAD
        pairs = _pairs(counts, since, p)
        row[at] = np.float32(1)
        row[at + 1] = np.float32(math.log2(p) / 8)
        row[at + 2] = np.float32(math.log(errors[p] / NORMALISERS[pairs] / s + 1e-3))
        row[at + 3] = np.float32(math.log(pairs) / 8)
        at += 4
    for block in _BLOCK_LENGTHS:
        for i in range(BLOCKS):
            there = i * block
            if there + block <= n and there + block <= REACH:
                total = 0.0
                for k in range(there, there + block):
                    total += ring[head + k]
                row[at + i] = _squashed(total / block, local, s)
            else:
                row[at + i] = np.float32(0)
        at += BLOCKS
    seen_now = 0
    for i in range(WINDOW):
        seen_now += (counts[MASK] >> i) & 1
    deviation = math.sqrt(max(numbers[SQUARES], 0.0) / numbers[WEIGHT])
    usual = errors[1] / NORMALISERS[_pairs(counts, since, 1)] if n > 1 and _pairs(counts, since, 1) > 0 else 0.0
    is_first = numbers[EARLIER_SCALE] == 0
    row[at] = np.float32(math.log(counts[SEEN] + 1) / 8)
    row[at + 1] = _squashed(c, numbers[MEAN], s)
    row[at + 2] = np.float32(math.log(deviation / s + 1e-3))
    row[at + 3] = np.float32(math.log(usual / s + 1e-3))
    row[at + 4] = np.float32(seen_now / WINDOW)
    row[at + 5] = np.float32(0 if is_first else math.asinh((c - numbers[EARLIER_CENTRE]) / s))
    row[at + 6] = np.float32(0 if is_first else min(max(math.log(s / numbers[EARLIER_SCALE]), -5.0), 5.0))
    row[at + 7] = _squashed(numbers[LOW], c, s)
    row[at + 8] = _squashed(numbers[HIGH], c, s)
    row[at + 9] = _zero(numbers, c, s)
    row[at + 10] = np.float32(numbers[REPEATS])
    row[at + 11] = np.float32(numbers[ZEROS])
    row[at + 12] = _squashed(numbers[LAST], c, s)
    return c, s, fill


@inline_jit
def _back(h, p):
    """How many cells before the newest the path of lag p is for h cells after it."""
    return ((h + p - 1) // p) * p - h


@inline_jit
def keep_token(numbers, counts, c, s, fill):
    """What the tokens after a whole patch go by, in place."""
    numbers[EARLIER_CENTRE] = c
    numbers[EARLIER_SCALE] = s
    counts[FILL] = fill


@inline_jit
def path(lead, gone, counts, ring, lags, offsets, c, s, origin, out):
    """What the seasonal paths of a token say at a lead, the same moved to where the stream was then, and its last
    value: the first PATHS of `out`. The ring has gone on by `gone` cells since, less than a patch."""
    local = c - origin
    head = counts[HEAD] + gone
    for band in range(LAGS):
        p = lags[band]
        if p == 0:
            out[band] = 0
            out[LAGS + band] = 0
        else:
            x = ring[head + _back(lead, p)]
            out[band] = _squashed(x, local, s)
            out[LAGS + band] = _squashed(x + offsets[band], local, s)
    out[2 * LAGS] = _squashed(ring[head], local, s)


def _describe(
    values, ends, leads, rows, centres, scales, told, numbers, counts, ring, errors, since, seasons, lags, offsets
):
    begin(numbers, counts, ring, errors, since)
    done = 0
    for i in range(len(ends)):
        if ends[i] > len(values):
            break
        for t in range(done, ends[i]):
            observe(values[t], numbers, counts, ring, errors, since)
        done = ends[i]
        c, s, fill = token(numbers, counts, ring, errors, since, seasons, lags, offsets, rows[i])
        for k in range(len(leads[i])):
            path(leads[i, k], 0, counts, ring, lags, offsets, c, s, numbers[ORIGIN], told[i, k])
        keep_token(numbers, counts, c, s, fill)
        centres[i], scales[i] = c, s


@functools.cache
def _kernel() -> Any:
    return kernel_jit()(_describe)


def describe(values: Array, ends: Array, leads: Array, rows: Array, centres: Array, scales: Array, told: Array) -> None:
    """The tokens of one whole series.

    Args:
        values: `[L]` float64, NaN where empty; the first is not.
        ends: `[N]` int64, after how many cells each token is made, increasing; beyond the series: no token.
        leads: `[N, K]` int64, cells ahead that are asked for, >= 1.
        rows, told: `[N, FEATURES]` and `[N, K, PATHS]` float32; centres, scales `[N]` float64: results.
    """
    _kernel()(
        values, ends, leads, rows, centres, scales, told, np.zeros(NUMBERS), np.zeros(COUNTS, np.int64),
        np.zeros(RING, np.float32), np.zeros(REACH, np.float32), np.zeros(REACH, np.uint16),
        np.zeros(LAGS, np.int64), np.zeros(LAGS, np.int64), np.zeros(LAGS),
    )  # fmt: skip
