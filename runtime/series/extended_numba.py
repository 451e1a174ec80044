"""What tokens and leads of the second version of the series network have beside those of the first.

A path is what a simple forecast says at a lead h. The first version has, for the lag p of each band, the value a season
before the lead, alone and moved to where the stream is, and the last value. The second has more. With w the mean of a
few cells now, and w_i the same i seasons ago,

    average_p(h)  = mean over i of x(t + h - i p) + w - w_i                    up to CYCLES seasons, plus their drift
    product_p(h)  = mean over i of x(t + h - i p) · w / w_i                    where all values are positive, and growth
    line_n(h)     = the least-squares line through the last n cells            n of LINES
    mean_n(h)     = the mean of the last n cells, and of all values            n of MEANS

Numbers beside: how well each lag's second multiple does, how the level moved over a season, the lines' slopes and
residuals, and the last moves in units of what the stream moves by in one cell, which are lost in those of a patch where
a stream is smooth.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.series import belief_numba, tokens_numba
from rfa.runtime.series.config import CYCLES, FEATURES, LAGS, LINES, MEANS, MOVES, PATCH, PATHS, REACH
from rfa.runtime.series.tokens_numba import (
    BENDS,
    BENT,
    CELLS,
    COUNTS,
    HEAD,
    LEAST,
    LOW,
    MEAN,
    NORMALISERS,
    NUMBERS,
    ORIGIN,
    RING,
    SEEN,
    begin,
    keep_token,
    observe,
    path,
    token,
)

Array = np.ndarray
SOURCES = (belief_numba, tokens_numba)
# The most cells of a mean at a season, and the fewest.
WIDEST, NARROWEST = 64, 8
# A line is followed for so many times its length, and seasons' drift for so many times those seen.
LINE_ENDS, DRIFT_ENDS = 8, 2
LARGEST_RATIO = 5.0
_LINES, _MEANS = np.array(LINES), np.array(MEANS)
# What paths need of a token, for each lag: the seasons averaged, the mean now, the means before, drift and log growth;
# then level and slope of each line, and the means.
NOW, DRIFT, GROWTH, THEN = range(4)
OF_LAG = THEN + CYCLES
SUMMARY = LAGS * OF_LAG + 2 * len(LINES) + len(MEANS)


@inline_jit
def _squash(x):
    """asinh, in half the time of the library's."""
    size = abs(x)
    return np.float32(math.copysign(math.log(size + math.sqrt(size * size + 1)), x))


@inline_jit
def _mean(ring, begin, count):
    total = 0.0
    for k in range(count):
        total += ring[begin + k]
    return total / count


@inline_jit
def _usable(counts):
    """Cells of the ring that are there as long as a token is asked: it goes on by less than a patch."""
    return min(counts[CELLS], REACH - PATCH)


@inline_jit
def _cycles(p, usable):
    """Cells of the means at seasons of lag p, and how many seasons there are: one at least."""
    width = min(max(p, NARROWEST), WIDEST)
    if p + width > usable:
        return max(min(width, usable - p), 1), 1
    return width, min((usable - width) // p, CYCLES)


@inline_jit
def _seasons(numbers, counts, ring, lags, summary):
    usable, head, origin = _usable(counts), counts[HEAD], numbers[ORIGIN]
    for band in range(LAGS):
        p, at = lags[band], band * OF_LAG
        if p == 0:
            continue
        width, count = _cycles(p, usable)
        now = _mean(ring, head, width)
        for i in range(count):
            summary[at + THEN + i] = _mean(ring, head + (i + 1) * p, width)
        first = summary[at + THEN + count - 1]
        summary[at + NOW], summary[at + DRIFT], summary[at + GROWTH] = now, (now - first) / count, 0.0
        if numbers[LOW] >= 0 and now + origin > 0 and first + origin > 0:
            summary[at + GROWTH] = math.log((now + origin) / (first + origin)) / count


@inline_jit
def _line(ring, head, count, summary, at):
    """Level and slope of the line through so many cells, at the newest; and the root mean square about it."""
    total, leaning = 0.0, 0.0
    middle = 0.5 * (count - 1)
    for k in range(count):
        total += ring[head + k]
        leaning += (middle - k) * ring[head + k]
    mean = total / count
    slope = 12 * leaning / (count * (np.float64(count) * count - 1)) if count > 1 else 0.0
    squares = 0.0
    for k in range(count):
        off = ring[head + k] - mean - (middle - k) * slope
        squares += off * off
    summary[at], summary[at + 1] = mean + middle * slope, slope
    return math.sqrt(squares / count)


@inline_jit
def _ratio(error, s, least):
    return np.float32(math.log(error / s + least))


@inline_jit
def more_numbers(numbers, counts, ring, errors, since, seasons, lags, c, s, summary, row):
    """The numbers of a token behind its first `FEATURES`, and what its paths need, `[SUMMARY]`."""
    n, head, local = counts[CELLS], counts[HEAD], c - numbers[ORIGIN]
    for k in range(SUMMARY):
        summary[k] = 0.0
    _seasons(numbers, counts, ring, lags, summary)
    at, usable = FEATURES, _usable(counts)
    for band in range(LAGS):
        p, of_lag = lags[band], band * OF_LAG
        for k in range(4):
            row[at + k] = 0
        if p > 0:
            twice = 2 * p
            if twice < min(n, REACH):
                pairs = min(counts[SEEN] - np.int64(since[twice]), len(NORMALISERS) - 1)
                row[at] = _ratio(errors[twice] / NORMALISERS[pairs], s, 1e-3) if pairs > 0 else np.float32(0)
            row[at + 1] = _squash((summary[of_lag + NOW] - summary[of_lag + THEN]) / s)
            row[at + 2] = np.float32(_cycles(p, usable)[1] / CYCLES)
            row[at + 3] = np.float32(1.0 if p == seasons[band] else 0.0)
        at += 4
    place = LAGS * OF_LAG
    for k in range(len(_LINES)):
        off = _line(ring, head, min(_LINES[k], n), summary, place)
        row[at], row[at + 1] = _squash(PATCH * summary[place + 1] / s), _ratio(off, s, 1e-4)
        at, place = at + 2, place + 2
    for k in range(len(_MEANS)):
        summary[place] = _mean(ring, head, min(_MEANS[k], usable, n))
        row[at] = _squash((summary[place] - local) / s)
        at, place = at + 1, place + 1
    first = n > 1 and counts[SEEN] > np.int64(since[1])
    usual = errors[1] / NORMALISERS[min(counts[SEEN] - np.int64(since[1]), len(NORMALISERS) - 1)] if first else 0.0
    usual = max(usual, 1e-6 * s)
    for k in range(MOVES):
        move = ring[head + k] - ring[head + k + 1] if k + 1 < n else np.float32(0)
        row[at + k] = _squash(move / usual)
    bent = numbers[BENT] / numbers[BENDS] if numbers[BENDS] > 0 else 0.0
    row[at + MOVES] = _ratio(bent, s, 1e-4)
    row[at + MOVES + 1] = _ratio(min(numbers[LEAST], 1e3 * s), s, 1e-3)


@inline_jit
def _of_season(h, p, head, origin, usable, ring, summary, at, is_positive):
    """What `average` and `product` say at a lead, from the origin on."""
    count = _cycles(p, usable)[1]
    periods = (h + p - 1) // p
    place, beyond = head + periods * p - h, min(periods - 1, DRIFT_ENDS * count)
    now, average, product = summary[at + NOW], 0.0, 0.0
    for i in range(count):
        x, then = np.float64(ring[place + i * p]), summary[at + THEN + i]
        average += x + now - then
        if is_positive and then + origin > 0 and now + origin > 0:
            ratio = (now + origin) / (then + origin)
            ratio = min(max(ratio, 1 / LARGEST_RATIO), LARGEST_RATIO)
            product += (x + origin) * ratio - origin
        else:
            product += x + now - then
    average, product = average / count, product / count
    if beyond > 0:
        average += beyond * summary[at + DRIFT]
        if is_positive:
            growth = min(max(beyond * summary[at + GROWTH], -2.0), 2.0)
            product = (product + origin) * math.exp(growth) - origin
        else:
            product = average
    return average, product


@inline_jit
def more_paths(lead, gone, numbers, counts, ring, lags, summary, c, s, out):
    """What the paths beside the first `PATHS` say at a lead, behind those in `out`; see `tokens_numba.path`."""
    origin = numbers[ORIGIN]
    local, head = c - origin, counts[HEAD] + gone
    usable = min(counts[CELLS] - gone, REACH - PATCH)
    is_positive = numbers[LOW] >= 0
    for band in range(LAGS):
        out[PATHS + band] = out[PATHS + LAGS + band] = 0
        if lags[band] > 0:
            average, product = _of_season(
                lead, lags[band], head, origin, usable, ring, summary, band * OF_LAG, is_positive
            )
            out[PATHS + band] = _squash((average - local) / s)
            out[PATHS + LAGS + band] = _squash((product - local) / s)
    at, place = PATHS + 2 * LAGS, LAGS * OF_LAG
    for k in range(len(_LINES)):
        out[at + k] = _squash((summary[place] + min(lead, LINE_ENDS * _LINES[k]) * summary[place + 1] - local) / s)
        place += 2
    at += len(_LINES)
    for k in range(len(_MEANS)):
        out[at + k] = _squash((summary[place + k] - local) / s)
    out[at + len(_MEANS)] = _squash((numbers[MEAN] - c) / s)


def _describe(
    values, ends, leads, seasons, rows, centres, scales, told, numbers, counts, ring, errors, since, lags, offsets,
    summary,
):  # fmt: skip
    begin(numbers, counts, ring, errors, since)
    done = 0
    for i in range(len(ends)):
        if ends[i] > len(values):
            break
        for t in range(done, ends[i]):
            observe(values[t], numbers, counts, ring, errors, since)
        done = ends[i]
        c, s, fill = token(numbers, counts, ring, errors, since, seasons, lags, offsets, rows[i])
        more_numbers(numbers, counts, ring, errors, since, seasons, lags, c, s, summary, rows[i])
        for k in range(len(leads[i])):
            path(leads[i, k], 0, counts, ring, lags, offsets, c, s, numbers[ORIGIN], told[i, k])
            more_paths(leads[i, k], 0, numbers, counts, ring, lags, summary, c, s, told[i, k])
        keep_token(numbers, counts, c, s, fill)
        centres[i], scales[i] = c, s


@functools.cache
def _kernel() -> Any:
    return kernel_jit(*SOURCES)(_describe)


def describe_all(
    values: Array, ends: Array, leads: Array, seasons: Array, rows: Array, centres: Array, scales: Array, told: Array
) -> None:
    """The tokens of one whole series, with all numbers and paths.

    Args:
        values, ends, leads, centres, scales: see `tokens_numba.describe`.
        seasons: `[LAGS]` int64 cells of a season that the clock gives, in the band that it lies in; 0 for none.
        rows, told: `[N, ALL_FEATURES]` and `[N, K, ALL_PATHS]` float32: results.
    """
    _kernel()(
        values, ends, leads, seasons, rows, centres, scales, told, np.zeros(NUMBERS), np.zeros(COUNTS, np.int64),
        np.zeros(RING, np.float32), np.zeros(REACH, np.float32), np.zeros(REACH, np.uint16), np.zeros(LAGS, np.int64),
        np.zeros(LAGS), np.zeros(SUMMARY),
    )  # fmt: skip
