"""Running sums of a stream, and the tokens that the series network reads.

A stream is a sequence of cells of one nominal step. A cell contains a value or is empty. For every lag k < `REACH`, one
pass maintains the discounted mean error of the forecast "as k cells ago",

    E_k ← g E_k + min(|x_t - x_{t-k}|, cap)         e_k = E_k / Σ g^i over the observed pairs        g = 1 - 1 / REACH

the discounted mean and variance of the values, and the last `REACH` cells. An empty cell is filled with the forecast of
the best lag. Values far outside the recent range are clipped (`clipping_numba.py`). The scale s is the mean of e_1 …
e_32, and the centre c is the mean of the values in the last 8 cells. In each of four bands of lags, the lag with the
smallest e_k is chosen. Its seasonal path (forecast), and that of persistence (x at t), are

    path_j(h) = x at t + h - ceil(h / p_j) p_j

A token consists of `FEATURES` numbers about a stream at one of its cells, asinh((x - c) / s) or logs of ratios. They do
not depend on the stream's unit and level, except for the number that represents zero. It is bounded to
sinh(`FARTHEST_ZERO`) scales, because few training series are further from zero. Training and the compiled stream both
call this code, so their tokens have the same bits.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.series.clipping_numba import CLIP_STATE, FIRST_VALUES, clip_first_values, clip_value, is_recheck_due
from rfa.runtime.series.config import AHEAD, BANDS, BLOCK_LENGTHS, BLOCKS, DIFFERENCES, LAGS, REACH, WINDOW
from rfa.runtime.series.squash_numba import squash

CENTRED = 8
_BANDS, _BLOCK_LENGTHS = np.array(BANDS), np.array(BLOCK_LENGTHS)
KEEP = 1 - 1 / REACH
# Limit on a difference in scales, and number of values from which it applies.
CAP, CAPPED_FROM = 20.0, 32
# Numbers of a stream.
(
    ORIGIN, MEAN, SQUARES, WEIGHT, SCALE, LAST, LOW, HIGH, REPEATS, ZEROS, EARLIER_CENTRE, EARLIER_SCALE, BENDS, BENT,
    LEAST, CLIP,
) = range(16)  # fmt: skip
NUMBERS = CLIP + CLIP_STATE
# Cells are float32 relative to the origin, which moves when two successive values are this number of scales away from
# it.
FAR = 1024.0
# Maximum number of cells with which a stream restarts.
RESTART_CELLS = 62
# Bound after asinh, equal to 200 scales. One in 170 tokens of synthetic series is further from zero.
FARTHEST_ZERO = 6.0
# A scale below the first fraction of the value is a rounding error and is replaced by the second fraction.
RESOLUTION, STILL = 1e-14, 1e-9
# Mean error if there are no pairs.
UNKNOWN = 1e150
# Counts of a stream: number of cells, number of values, index of the newest cell in the ring, the lag that fills empty
# cells, and bits of the last cells, set for cells with a value. The newest cell is the lowest bit.
CELLS, SEEN, HEAD, FILL, MASK = range(5)
COUNTS = 5
RING = 2 * REACH
NORMALISERS = ((1 - KEEP ** np.arange(8 * REACH)) / (1 - KEEP)).astype(np.float32)
# Errors are multiplied by this factor, one plus the standard error for this number of pairs.
PENALTIES = 1 + 1 / np.sqrt(np.maximum(np.arange(8 * REACH), 1))
# Factor on the error of a season that is known from the times when it is compared with other lags, and its minimum
# number of pairs.
SEASON_SHARE, SEASON_PAIRS = 0.8, 2


@inline_jit
def reset_stream(numbers, counts, ring, errors, since):
    """Reset a stream, in place."""
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
    """Return the number of pairs of values at a lag. It is limited to the indices of `NORMALISERS`."""
    return min(counts[SEEN] - since[lag], len(NORMALISERS) - 1)


@inline_jit
def observe(x, numbers, counts, ring, errors, since):
    """Add a cell, in place. x is NaN if the cell is empty. The first cell of a stream must not be empty."""
    if x == x:
        x = clip_value(x, counts[SEEN], numbers, CLIP)
    # The first values are observed again if they were clipped. There is one loop, because each call site of `_observe`
    # is compiled separately.
    left, value, offset, was_seen = np.int64(1), x, 0, np.int64(0)
    while left > 0:
        _observe(value, numbers, counts, ring, errors, since)
        left -= 1
        if was_seen == 0:
            count = counts[SEEN]
            is_due = x == x and is_recheck_due(count) and counts[CELLS] <= RESTART_CELLS
            if is_due and clip_first_values(count, numbers, CLIP):
                left = counts[CELLS]
                was_seen = _restart(numbers, counts, errors, since)
        else:
            was_seen >>= 1
        if left > 0:
            value = np.nan
            if was_seen & 1:
                value = numbers[CLIP + FIRST_VALUES + offset]
                offset += 1


@inline_jit
def _restart(numbers, counts, errors, since):
    """Reset a stream except for its clip state. Return a bit mask of the cells that had a value, whose lowest bit is
    that of the first cell."""
    cells, was_seen = counts[CELLS], np.int64(1)
    for k in range(cells - 1):  # the last cell had a value
        was_seen = (was_seen << 1) | (1 if since[cells - 1 - k] > since[cells - 2 - k] else 0)
    for i in range(CLIP):
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
        numbers[ORIGIN] = numbers[LOW] = numbers[HIGH] = x
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
        # The newest cell is still the previous one, so lag k is at head + k - 1. The compiler vectorises views whose
        # indices cannot be negative.
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
    """Make x the origin of the cells."""
    shift, head = x - numbers[ORIGIN], counts[HEAD]
    for k in range(min(counts[CELLS], REACH)):
        ring[head + k] = np.float32(ring[head + k] - shift)
    numbers[ORIGIN] = x


@inline_jit
def centre(numbers, counts, ring):
    """Return the mean of the values in the last cells. If all of them are empty, return the last value."""
    total, found = 0.0, 0
    for i in range(min(CENTRED, counts[CELLS])):
        if (counts[MASK] >> i) & 1:
            total += ring[counts[HEAD] + i]
            found += 1
    return numbers[ORIGIN] + total / found if found else numbers[LAST]


@inline_jit
def unit(numbers):
    """Return the scale of a stream, which is never zero. If it is below the rounding error, it is replaced by a small
    fraction of the value."""
    usual = max(abs(numbers[LAST]), abs(numbers[MEAN]))
    scale = numbers[SCALE] if numbers[SCALE] > RESOLUTION * usual else STILL * usual
    return max(scale, 1e-300)


@inline_jit
def choose_lags(numbers, counts, errors, since, seasons, lags):
    """Write the best lag of each band to `lags`, or 0 if none has enough pairs. Return the best lag of all, including
    1. A lag in `seasons` `[LAGS]` (0 if there is none) is chosen from two pairs on, unless another one is better by a
    fifth.
    """
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
    """Return an upper bound on the noise variance of a value.

    Regardless of the values, noise adds twice its variance to differences and six times its variance to second
    differences. Mean sizes are converted to variances as for normal numbers.
    """
    bound = numbers[LEAST] * numbers[LEAST] / 2
    if numbers[BENDS] > 0:
        bent = numbers[BENT] / numbers[BENDS]
        bound = min(bound, bent * bent / 6)
    return math.pi / 2 * bound


@inline_jit
def _zero(numbers, c, s):
    """Return the position of zero relative to the centre c, on the scale of the token. It is bounded, unless the scale
    was replaced by a fraction of the level."""
    if s > numbers[SCALE]:
        return squash(-c / s)
    return np.float32(min(max(math.asinh(-c / s), -FARTHEST_ZERO), FARTHEST_ZERO))


@inline_jit
def write_token(numbers, counts, ring, errors, since, seasons, lags, offsets, row):
    """Write the token of a stream's newest cell to `row`, the lags of its paths to `lags`, and the distance of the
    stream's level from them to `offsets`, `[LAGS]` each.

    Returns:
        The centre, the scale, and the lag that fills empty cells.
    """
    c, s = centre(numbers, counts, ring), unit(numbers)
    n, head, origin = counts[CELLS], counts[HEAD], numbers[ORIGIN]
    local = c - origin
    offset = 0
    for i in range(WINDOW):
        age = WINDOW - 1 - i
        row[offset + i] = squash((ring[head + age] - local) / s) if age < n else np.float32(0)
        row[offset + WINDOW + i] = np.float32((counts[MASK] >> age) & 1)
    offset += 2 * WINDOW
    fill = choose_lags(numbers, counts, errors, since, seasons, lags)
    for band in range(LAGS):
        p = lags[band]
        offsets[band] = 0.0
        if p == 0:
            for i in range(DIFFERENCES + AHEAD + 4):
                row[offset + i] = 0
            offset += DIFFERENCES + AHEAD + 4
            continue
        above = 0.0
        for i in range(DIFFERENCES):
            difference = 0.0
            if i + p < n:
                difference = ring[head + i] - ring[head + i + p]
            if i < CENTRED:
                above += difference / CENTRED
            row[offset + i] = squash(difference / s)
        offsets[band] = above
        for i in range(AHEAD):
            h = (i + 1) * 4
            row[offset + DIFFERENCES + i] = squash((ring[head + _cells_back(h, p)] - local) / s)
        offset += DIFFERENCES + AHEAD
        pairs = _pairs(counts, since, p)
        row[offset] = np.float32(1)
        row[offset + 1] = np.float32(math.log2(p) / 8)
        row[offset + 2] = np.float32(math.log(errors[p] / NORMALISERS[pairs] / s + 1e-3))
        row[offset + 3] = np.float32(math.log(pairs) / 8)
        offset += 4
    for block in _BLOCK_LENGTHS:
        for i in range(BLOCKS):
            age = i * block
            if age + block <= n and age + block <= REACH:
                total = 0.0
                for k in range(age, age + block):
                    total += ring[head + k]
                row[offset + i] = squash((total / block - local) / s)
            else:
                row[offset + i] = np.float32(0)
        offset += BLOCKS
    seen_now = 0
    for i in range(WINDOW):
        seen_now += (counts[MASK] >> i) & 1
    deviation = math.sqrt(max(numbers[SQUARES], 0.0) / numbers[WEIGHT])
    usual = errors[1] / NORMALISERS[_pairs(counts, since, 1)] if n > 1 and _pairs(counts, since, 1) > 0 else 0.0
    is_first = numbers[EARLIER_SCALE] == 0
    row[offset] = np.float32(math.log(counts[SEEN] + 1) / 8)
    row[offset + 1] = squash((c - numbers[MEAN]) / s)
    row[offset + 2] = np.float32(math.log(deviation / s + 1e-3))
    row[offset + 3] = np.float32(math.log(usual / s + 1e-3))
    row[offset + 4] = np.float32(seen_now / WINDOW)
    row[offset + 5] = np.float32(0) if is_first else squash((c - numbers[EARLIER_CENTRE]) / s)
    row[offset + 6] = np.float32(0 if is_first else min(max(math.log(s / numbers[EARLIER_SCALE]), -5.0), 5.0))
    row[offset + 7] = squash((numbers[LOW] - c) / s)
    row[offset + 8] = squash((numbers[HIGH] - c) / s)
    row[offset + 9] = _zero(numbers, c, s)
    row[offset + 10] = np.float32(numbers[REPEATS])
    row[offset + 11] = np.float32(numbers[ZEROS])
    row[offset + 12] = squash((numbers[LAST] - c) / s)
    return c, s, fill


@inline_jit
def _cells_back(h, p):
    """Return the number of cells between the newest cell and the cell that the path of lag p repeats at horizon h."""
    return ((h + p - 1) // p) * p - h


@inline_jit
def remember_patch(numbers, counts, c, s, fill):
    """Store the values with which later tokens are compared, in place."""
    numbers[EARLIER_CENTRE] = c
    numbers[EARLIER_SCALE] = s
    counts[FILL] = fill


@inline_jit
def write_paths(lead, cells_since, counts, ring, lags, offsets, c, s, origin, out):
    """Write the first PATHS elements of `out`: the seasonal paths at a horizon, the same paths shifted to the stream's
    level, and the last value. `cells_since` is the number of cells since the token, less than a patch."""
    local = c - origin
    head = counts[HEAD] + cells_since
    for band in range(LAGS):
        p = lags[band]
        if p == 0:
            out[band] = 0
            out[LAGS + band] = 0
        else:
            x = ring[head + _cells_back(lead, p)]
            out[band] = squash((x - local) / s)
            out[LAGS + band] = squash((x + offsets[band] - local) / s)
    out[2 * LAGS] = squash((ring[head] - local) / s)
