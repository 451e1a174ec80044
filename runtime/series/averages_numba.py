"""Compute features of tokens and paths from averages over seasons, regression lines and means, and the tokens of whole
series.

A path is a simple forecast at a horizon h, which is an input of the network. `tokens_numba.py` computes the value a
season of lag p before the horizon (as it is, and shifted to the stream's level), and the last value. Let w be the mean
of a few cells now, and w_i the mean of the same cells i seasons ago. This module adds

    average_p(h)  = mean over i of x(t + h - i p) + w - w_i                    up to CYCLES seasons, plus their drift
    product_p(h)  = mean over i of x(t + h - i p) · w / w_i                    if all values are positive, and growth
    line_n(h)     = the least-squares line through the last n cells            n in LINES
    mean_n(h)     = the mean of the last n cells, and of all values            n in MEANS

Its features are the error at twice each lag, the change of the level over a season, slopes and residuals of the lines,
and the last differences in units of the mean difference per cell.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit
from rfa.runtime.series import clipping_numba, squash_numba, tokens_numba
from rfa.runtime.series.config import (
    BASE_FEATURES,
    BASE_PATHS,
    CYCLES,
    FEATURES,
    LAGS,
    LINES,
    MEANS,
    MOVES,
    PATCH,
    PATHS,
    REACH,
)
from rfa.runtime.series.squash_numba import squash
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
    observe,
    remember_patch,
    reset_stream,
    write_paths,
    write_token,
)

Array = np.ndarray
SOURCES = (clipping_numba, squash_numba, tokens_numba)
# Largest and smallest number of cells of a mean at a season.
WIDEST, NARROWEST = 64, 8
# Lines are extended by at most this multiple of their length, and the drift of seasons by at most this multiple of the
# observed seasons.
LINE_ENDS, DRIFT_ENDS = 8, 2
LARGEST_RATIO = 5.0
_LINES, _MEANS = np.array(LINES), np.array(MEANS)
# Numbers of a token from which paths are computed. For each lag, they are the mean now, drift, log growth, and the
# means of earlier seasons. They are followed by the level and the slope of each line, and by the means.
NOW, DRIFT, GROWTH, THEN = range(4)
OF_LAG = THEN + CYCLES
SUMMARY = LAGS * OF_LAG + 2 * len(LINES) + len(MEANS)


@inline_jit
def _mean(ring, start, count):
    total = 0.0
    for k in range(count):
        total += ring[start + k]
    return total / count


@inline_jit
def _usable(cells):
    """Return the number of cells of the ring buffer that remain valid while a token is queried. The buffer advances by
    less than a patch in this time."""
    return min(cells, REACH - PATCH)


@inline_jit
def _cycles(p, usable):
    """Return the number of cells in the means at seasons of lag p, and the number of seasons, which is at least one."""
    width = min(max(p, NARROWEST), WIDEST)
    if p + width > usable:
        return max(min(width, usable - p), 1), 1
    return width, min((usable - width) // p, CYCLES)


@inline_jit
def _write_seasons(head, usable, numbers, ring, lags, summary):
    origin = numbers[ORIGIN]
    for band in range(LAGS):
        p, offset = lags[band], band * OF_LAG
        if p == 0:
            continue
        width, count = _cycles(p, usable)
        now = _mean(ring, head, width)
        for i in range(count):
            summary[offset + THEN + i] = _mean(ring, head + (i + 1) * p, width)
        oldest = summary[offset + THEN + count - 1]
        summary[offset + NOW], summary[offset + DRIFT], summary[offset + GROWTH] = now, (now - oldest) / count, 0.0
        if numbers[LOW] >= 0 and now + origin > 0 and oldest + origin > 0:
            summary[offset + GROWTH] = math.log((now + origin) / (oldest + origin)) / count


@inline_jit
def _line(ring, head, count):
    """Return the level and the slope of the regression line through the last cells."""
    total, leaning = 0.0, 0.0
    middle = 0.5 * (count - 1)
    for k in range(count):
        total += ring[head + k]
        leaning += (middle - k) * ring[head + k]
    slope = 12 * leaning / (count * (np.float64(count) * count - 1)) if count > 1 else 0.0
    return total / count + middle * slope, slope


@inline_jit
def _residual(ring, head, count, level, slope):
    """Return the root mean square residual of a regression line."""
    squares = 0.0
    for k in range(count):
        off = ring[head + k] - level + k * slope
        squares += off * off
    return math.sqrt(squares / count)


@inline_jit
def write_summary(cells_since, numbers, counts, ring, lags, summary):
    """Write the numbers that the paths of a stream's last token need to `summary` `[SUMMARY]`.

    Args:
        cells_since: Number of empty cells since the token, less than a patch.
    """
    n, head = counts[CELLS] - cells_since, counts[HEAD] + cells_since
    usable = _usable(n)
    for k in range(SUMMARY):
        summary[k] = 0.0
    _write_seasons(head, usable, numbers, ring, lags, summary)
    at = LAGS * OF_LAG
    for k in range(len(_LINES)):
        summary[at], summary[at + 1] = _line(ring, head, min(_LINES[k], n))
        at += 2
    for k in range(len(_MEANS)):
        summary[at + k] = _mean(ring, head, min(_MEANS[k], usable))


@inline_jit
def _ratio(error, s, least):
    return np.float32(math.log(error / s + least))


@inline_jit
def write_averages(numbers, counts, ring, errors, since, seasons, lags, c, s, summary, row):
    """Write the features of a token after the first `BASE_FEATURES`. Write the numbers that its paths need to `summary`
    `[SUMMARY]`."""
    n, head, local = counts[CELLS], counts[HEAD], c - numbers[ORIGIN]
    write_summary(0, numbers, counts, ring, lags, summary)
    offset, usable = BASE_FEATURES, _usable(n)
    for band in range(LAGS):
        p, of_lag = lags[band], band * OF_LAG
        for k in range(4):
            row[offset + k] = 0
        if p > 0:
            twice = 2 * p
            if twice < min(n, REACH):
                pairs = min(counts[SEEN] - np.int64(since[twice]), len(NORMALISERS) - 1)
                row[offset] = _ratio(errors[twice] / NORMALISERS[pairs], s, 1e-3) if pairs > 0 else np.float32(0)
            row[offset + 1] = squash((summary[of_lag + NOW] - summary[of_lag + THEN]) / s)
            row[offset + 2] = np.float32(_cycles(p, usable)[1] / CYCLES)
            row[offset + 3] = np.float32(1.0 if p == seasons[band] else 0.0)
        offset += 4
    at = LAGS * OF_LAG
    for k in range(len(_LINES)):
        off = _residual(ring, head, min(_LINES[k], n), summary[at], summary[at + 1])
        row[offset], row[offset + 1] = squash(PATCH * summary[at + 1] / s), _ratio(off, s, 1e-4)
        offset, at = offset + 2, at + 2
    for k in range(len(_MEANS)):
        row[offset + k] = squash((summary[at + k] - local) / s)
    offset += len(_MEANS)
    is_seen = n > 1 and counts[SEEN] > np.int64(since[1])
    usual = errors[1] / NORMALISERS[min(counts[SEEN] - np.int64(since[1]), len(NORMALISERS) - 1)] if is_seen else 0.0
    usual = max(usual, 1e-6 * s)
    for k in range(MOVES):
        move = ring[head + k] - ring[head + k + 1] if k + 1 < n else np.float32(0)
        row[offset + k] = squash(move / usual)
    bent = numbers[BENT] / numbers[BENDS] if numbers[BENDS] > 0 else 0.0
    row[offset + MOVES] = _ratio(bent, s, 1e-4)
    row[offset + MOVES + 1] = _ratio(min(numbers[LEAST], 1e3 * s), s, 1e-3)


@inline_jit
def _seasonal_forecasts(h, p, head, origin, usable, ring, summary, offset, is_positive):
    """Return the paths `average` and `product` at a horizon, relative to the origin."""
    count = _cycles(p, usable)[1]
    periods = (h + p - 1) // p
    at, beyond = head + periods * p - h, min(periods - 1, DRIFT_ENDS * count)
    now, average, product = summary[offset + NOW], 0.0, 0.0
    for i in range(count):
        x, then = np.float64(ring[at + i * p]), summary[offset + THEN + i]
        average += x + now - then
        if is_positive and then + origin > 0 and now + origin > 0:
            ratio = (now + origin) / (then + origin)
            ratio = min(max(ratio, 1 / LARGEST_RATIO), LARGEST_RATIO)
            product += (x + origin) * ratio - origin
        else:
            product += x + now - then
    average, product = average / count, product / count
    if beyond > 0:
        average += beyond * summary[offset + DRIFT]
        if is_positive:
            growth = min(max(beyond * summary[offset + GROWTH], -2.0), 2.0)
            product = (product + origin) * math.exp(growth) - origin
        else:
            product = average
    return average, product


@inline_jit
def write_average_paths(lead, cells_since, numbers, counts, ring, lags, summary, c, s, out):
    """Write the paths after the first `BASE_PATHS` to `out`. See `tokens_numba.write_paths`."""
    origin = numbers[ORIGIN]
    local, head = c - origin, counts[HEAD] + cells_since
    usable = _usable(counts[CELLS] - cells_since)
    is_positive = numbers[LOW] >= 0
    for band in range(LAGS):
        out[BASE_PATHS + band] = out[BASE_PATHS + LAGS + band] = 0
        if lags[band] > 0:
            average, product = _seasonal_forecasts(
                lead, lags[band], head, origin, usable, ring, summary, band * OF_LAG, is_positive
            )
            out[BASE_PATHS + band] = squash((average - local) / s)
            out[BASE_PATHS + LAGS + band] = squash((product - local) / s)
    offset, at = BASE_PATHS + 2 * LAGS, LAGS * OF_LAG
    for k in range(len(_LINES)):
        out[offset + k] = squash((summary[at] + min(lead, LINE_ENDS * _LINES[k]) * summary[at + 1] - local) / s)
        at += 2
    offset += len(_LINES)
    for k in range(len(_MEANS)):
        out[offset + k] = squash((summary[at + k] - local) / s)
    out[offset + len(_MEANS)] = squash((numbers[MEAN] - c) / s)


class SeriesTokens(NamedTuple):
    """Tokens of one series.

    Attributes:
        features: Features, `[N, FEATURES]` float32.
        centres, scales: Centre and scale of each token, `[N]` float64.
        paths: Paths at K horizons, `[N, K, PATHS]` float32.
    """

    features: Array
    centres: Array
    scales: Array
    paths: Array

    @classmethod
    def allocate(cls, shape: tuple[int, ...]) -> SeriesTokens:
        """Allocate tokens. `shape` is `[…, N, K]`, with N tokens and K horizons."""
        tokens = shape[:-1]
        return cls(
            np.zeros((*tokens, FEATURES), np.float32), np.zeros(tokens), np.ones(tokens),
            np.zeros((*shape, PATHS), np.float32),
        )  # fmt: skip


def _describe(values, ends, leads, seasons, out, work):
    numbers, counts, ring, errors, since, lags, offsets, summary = work
    reset_stream(numbers, counts, ring, errors, since)
    done = 0
    for i in range(len(ends)):
        if ends[i] > len(values):
            break
        for t in range(done, ends[i]):
            observe(values[t], numbers, counts, ring, errors, since)
        done = ends[i]
        row = out.features[i]
        c, s, fill = write_token(numbers, counts, ring, errors, since, seasons, lags, offsets, row)
        write_averages(numbers, counts, ring, errors, since, seasons, lags, c, s, summary, row)
        for k in range(len(leads[i])):
            write_paths(leads[i, k], 0, counts, ring, lags, offsets, c, s, numbers[ORIGIN], out.paths[i, k])
            write_average_paths(leads[i, k], 0, numbers, counts, ring, lags, summary, c, s, out.paths[i, k])
        remember_patch(numbers, counts, c, s, fill)
        out.centres[i], out.scales[i] = c, s


@functools.cache
def _kernel() -> Any:
    return kernel_jit(*SOURCES)(_describe)


def describe(values: Array, ends: Array, leads: Array, out: SeriesTokens, seasons: Array | None = None) -> None:
    """Compute the tokens of one whole series.

    Args:
        values: Values of the cells, `[L]` float64. Empty cells are NaN. The first cell must not be empty.
        ends: Number of cells after which each token is created, `[N]` int64, increasing. Tokens beyond the series are
            not created.
        leads: Horizons in cells, `[N, K]` int64 >= 1.
        out: Arrays that receive the tokens.
        seasons: Season in cells that is known from the times, for each band of lags, `[LAGS]` int64. 0 if there is
            none.
    """
    work = (
        np.zeros(NUMBERS), np.zeros(COUNTS, np.int64), np.zeros(RING, np.float32), np.zeros(REACH, np.float32),
        np.zeros(REACH, np.uint16), np.zeros(LAGS, np.int64), np.zeros(LAGS), np.zeros(SUMMARY),
    )  # fmt: skip
    _kernel()(values, ends, leads, np.zeros(LAGS, np.int64) if seasons is None else seasons, out, work)
