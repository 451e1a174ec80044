"""The robust filter of one column. The network's forecast of a row is the prior, and the row's value updates it.

With m and σ the middle and the width of the forecast,

    e = y - m        z = Φ⁻¹(F(y)), F: distribution of the quantiles        nis = z²
    w = min(1, (ν + 1) / (ν + z²))
    P⁻ = k c σ²      R = (1 - k) c σ²      mean = m + K e, K = w P⁻ / (w P⁻ + R)        P = P⁻ R / (w P⁻ + R)

k is the stream's own gain: the fraction of an innovation by which its forecasts change, Σ (change · e) / Σ e² over the
rows so far. It is at least the fraction that noise does not explain,

    k >= 1 - V / S        V: bound on the noise variance (`tokens_numba.py`); S: (π / 2) (mean |e|)²

because forecasts that are wrong change too little. c is the ratio of S and the mean forecast variance.

The network is not queried for a stream's second to fourth value. The last value is the forecast, with Student's t of
the differences so far. Before there is a difference, the deviation is a guess from the size of the value. It is neither
scored nor learned from, so no later row depends on the level of a stream.

The first `YOUNG` rows have w = 1, because so few values cannot distinguish an outlier from a change of level. For them,
the variance allows for both, with K as the probability of a change and w from the z² of a normal distribution, e² / (P⁻
+ R):

    P ← w P + (1 - w) max(P, K (1 - K) e²)
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters.student import normal_square, stretched, stretching, widening
from rfa.runtime.series.config import LEVELS as QUANTILES
from rfa.runtime.series.config import MEDIAN
from rfa.runtime.series.stream_arrays import FILTERED, FORESEEN, MISSED, MISSES, MOVED, SQUARED, VARIANCE
from rfa.runtime.series.tokens_numba import CAP, KEEP, RESOLUTION

_NORMAL = NormalDist()
# Normal scores of the quantiles, and the quantiles at the ends of the calibrated intervals. The ends of the first
# interval are between two quantiles.
SCORES = np.array([_NORMAL.inv_cdf(level) for level in QUANTILES])
_TENTH, _NINTH = QUANTILES.index(0.1), QUANTILES.index(0.9)
ENDS = np.array(
    [[QUANTILES.index(0.2), QUANTILES.index(0.3)]] + [[QUANTILES.index(q)] * 2 for q in (0.1, 0.05, 0.025, 0.005)]
)
_WIDTH = SCORES[_NINTH] - SCORES[_TENTH]
NU: Final = 4.0
# Number of values before the network is queried, and number of rows before the weight of outliers is reduced.
FIRST_WITH_NETWORK, YOUNG = 4, 20
# Initial gain of a stream, the number of innovations that it represents, and the decay of the sums of the gain.
FIRST_GAIN, FIRST_INNOVATIONS, KEPT_GAIN = 0.5, 4.0, 0.995
# Upper limit on the gain from the noise bound. With a gain of 1, the weight of outliers would have no effect.
MOST_BY_NOISE = 0.9
# Bounds on the ratio of the mean size of an innovation and its forecast deviation. The ratio is 0.8 for correct normal
# forecasts.
LEAST_MISS, LARGEST_MISS = 0.4, 3.2
# Limits, in deviations, on changes and innovations in the sums of the gain, and on an innovation.
BOUND, FURTHEST_OFF = 4.0, 1e3
# The guessed deviation before there is a difference, as a fraction of the value, and the smallest deviation.
FIRST_GUESS, TINY = 0.25, 1e-150
# Number of values before which a forecast is only a guess.
FIRST_WITH_FORECAST = 2
UNKNOWN_VARIANCE = 1e12


@inline_jit
def normal_score(y, quantiles, centre, scale):
    """Return the normal score of y under the distribution of the quantiles. The distribution is linear between the
    quantiles and extrapolated beyond them."""
    last = len(SCORES) - 1
    low, at_low = 0, centre + scale * quantiles[0]
    at_high = centre + scale * quantiles[1]
    while low < last - 1 and y > at_high:
        low += 1
        at_low, at_high = at_high, centre + scale * quantiles[low + 1]
    width = max(at_high - at_low, TINY)
    score = SCORES[low] + (y - at_low) / width * (SCORES[low + 1] - SCORES[low])
    return min(max(score, -FURTHEST_OFF), FURTHEST_OFF)


@inline_jit
def _least_deviation(y):
    """Return the smallest deviation of a number of the given size."""
    return RESOLUTION * abs(y) + TINY


@inline_jit
def _least_gain(numbers, noise):
    """Return the smallest gain: the fraction of the innovations that noise of the given variance does not explain."""
    if numbers[MISSES] < YOUNG:
        return 0.0
    missed = numbers[MISSED] / numbers[MISSES]
    explained = noise / (0.5 * np.pi * missed * missed) if missed > 0 else 1.0
    return min(1 - explained, MOST_BY_NOISE)


@inline_jit
def _variance_ratio(numbers):
    """Return the ratio of the observed variance of the innovations to the variance that the forecasts predict."""
    if numbers[MISSES] < YOUNG or not numbers[FORESEEN] > 0:
        return 1.0
    return 0.5 * np.pi * min(max(numbers[MISSED] / numbers[FORESEEN], LEAST_MISS), LARGEST_MISS) ** 2


@inline_jit
def _weight(square):
    """Return the robust weight of an innovation under Student's t. See docs/MATH.md."""
    return min(1.0, (NU + 1) / (NU + square))


@inline_jit
def _start_column(numbers, value, is_seen, out, inverse_dof, a):
    """Process the first value of a column, or a missing value before it."""
    out.innovation[a] = 0.0
    deviation = FIRST_GUESS * abs(value) + _least_deviation(value) if is_seen else np.sqrt(UNKNOWN_VARIANCE)
    mean = value if is_seen else 0.0
    # Smoothing does not have information before a stream's first value either.
    out.mean[a], out.predicted_mean[a], out.predicted_covariance[a, a] = mean, 0.0, UNKNOWN_VARIANCE
    out.covariance[a, a] = out.innovation_covariance[a, a] = deviation * deviation
    inverse_dof[0, a] = inverse_dof[1, a] = 1.0
    numbers[FILTERED], numbers[VARIANCE] = mean, deviation * deviation


@inline_jit
def _update_gain(numbers, moved, innovation, deviation):
    """Add an innovation, and the resulting change of the next forecast, to the sums of the gain."""
    moved, off = moved / deviation, innovation / deviation
    moved, off = min(max(moved, -BOUND), BOUND), min(max(off, -BOUND), BOUND)
    numbers[MOVED] = KEPT_GAIN * numbers[MOVED] + moved * off
    numbers[SQUARED] = KEPT_GAIN * numbers[SQUARED] + off * off
    numbers[MISSES] = KEEP * numbers[MISSES] + 1
    numbers[MISSED] = KEEP * numbers[MISSED] + min(abs(innovation), CAP * deviation)
    numbers[FORESEEN] = KEEP * numbers[FORESEEN] + deviation


@inline_jit
def update_column(numbers, rows, row, quantiles, value, noise, out, inverse_dof, a):
    """Update a column with a value, which is NaN if it is missing. Return nis, the weight, the log-determinant, and
    whether the value is scored."""
    is_seen, query = not np.isnan(value), rows.previous_query[row, a]
    c, s = rows.scales[row, a, 0], rows.scales[row, a, 1]
    seen = rows.seen[row, a]
    inverse_dof[0, a] = inverse_dof[1, a] = 0.0
    if query < 0:
        _start_column(numbers, value, is_seen, out, inverse_dof, a)
        return 0.0, 1.0, 0.0, False
    is_asked = seen >= FIRST_WITH_NETWORK
    middle = c + s * quantiles[query, MEDIAN] if is_asked else c
    if is_asked:
        width = s * (np.float64(quantiles[query, _NINTH]) - quantiles[query, _TENTH])
        deviation = max(width / _WIDTH, _least_deviation(middle))
    else:
        # Student's t of the differences so far. There is none for one value. For two or three, use their mean size.
        inverse_dof[0, a] = inverse_dof[1, a] = 1.0 / max(seen - 1, 1)
        deviation = FIRST_GUESS * abs(c) if seen < FIRST_WITH_FORECAST else 1.25 * s
        deviation = max(deviation, _least_deviation(middle)) * widening(1.0, inverse_dof[0, a])
    gain = (FIRST_GAIN * FIRST_INNOVATIONS + numbers[MOVED]) / (FIRST_INNOVATIONS + numbers[SQUARED])
    gain = min(max(gain, _least_gain(numbers, rows.noise[row, a]), 0.01), 1.0)
    innovation = value - middle if is_seen else 0.0
    spread = deviation * deviation
    total = spread * (gain + (1 - gain) * noise * noise)
    total = max(total, (innovation / FURTHEST_OFF) ** 2)
    spread *= _variance_ratio(numbers)
    prior, measurement = gain * spread, (1 - gain) * spread * noise * noise
    out.innovation[a], out.innovation_covariance[a, a] = innovation, total
    mean, variance, square, weight = middle, prior, 0.0, 1.0
    if is_seen:
        if is_asked and noise == 1:
            z = normal_score(value, quantiles[query], c, s)
            square = z * z
        else:
            square = innovation * innovation / total
        if seen > YOUNG:
            weight = _weight(square)
        kalman_gain = weight * prior / (weight * prior + measurement) if measurement > 0 else 1.0
        mean = middle + kalman_gain * innovation
        variance = prior * measurement / (weight * prior + measurement) if measurement > 0 else 0.0
        variance = max(variance, 1e-6 * spread) + weight * (1 - weight) * (kalman_gain * innovation) ** 2
        if seen <= YOUNG:
            odd = 1 - _weight(innovation * innovation / total)
            variance += odd * max(kalman_gain * (1 - kalman_gain) * innovation * innovation - variance, 0.0)
        if is_asked and rows.own_query[row, a] >= 0:
            now = rows.scales[row, a, 2] + rows.scales[row, a, 3] * quantiles[rows.own_query[row, a], MEDIAN]
            _update_gain(numbers, now - (c + s * quantiles[query + 1, MEDIAN]), innovation, deviation)
    out.mean[a], out.covariance[a, a] = mean, variance
    # At least as uncertain as the previous row, because smoothing treats the stream as a random walk.
    out.predicted_mean[a], out.predicted_covariance[a, a] = middle, max(prior, variance, numbers[VARIANCE])
    numbers[FILTERED], numbers[VARIANCE] = mean, variance
    log_det = np.log(total * stretching(square, inverse_dof[0, a]))
    return normal_square(square, inverse_dof[0, a]), weight, log_det, is_seen and seen >= FIRST_WITH_FORECAST


@inline_jit
def repeat_column(numbers, rows, row, out, inverse_dof, a):
    """Write the filtered state unchanged. The return values have the meaning of those of `update_column`."""
    out.innovation[a] = 0.0
    out.mean[a], variance = numbers[FILTERED], max(numbers[VARIANCE], 0.0)
    if rows.own_query[row, a] < 0:
        variance = UNKNOWN_VARIANCE
    inverse_dof[0, a] = inverse_dof[1, a] = (
        1.0 / max(rows.seen[row, a], 1) if rows.seen[row, a] < FIRST_WITH_NETWORK else 0.0
    )
    out.predicted_mean[a] = out.mean[a]
    out.covariance[a, a] = out.predicted_covariance[a, a] = out.innovation_covariance[a, a] = variance
    return 0.0, 1.0, 0.0, False


@inline_jit
def write_half_widths(forecast, half_widths):
    """Write the half-widths of the calibrated intervals of quantiles, `[2 * levels]`. Those below the median come
    first."""
    middle, last, levels = forecast[MEDIAN], len(SCORES) - 1, len(ENDS)
    least = _least_deviation(middle)
    for level in range(levels):
        one, other = ENDS[level, 0], ENDS[level, 1]
        below, above = forecast[one] + forecast[other], forecast[last - one] + forecast[last - other]
        half_widths[level] = max(middle - 0.5 * below, least)
        half_widths[levels + level] = max(0.5 * above - middle, least)


@inline_jit
def write_forecasts(rows, row, quantiles, leads, unit, posterior, forecast, a):
    """Write the mean, the variance and the half-widths of a column at the horizons. `forecast` is a buffer for
    quantiles."""
    levels, last = len(ENDS), len(SCORES) - 1
    if rows.own_query[row, a] < 0:
        for h in range(len(leads)):
            posterior.forecast_mean[h, a], posterior.forecast_covariance[h, a, a] = 0.0, UNKNOWN_VARIANCE
            for k in range(2 * levels):
                posterior.half_widths[h, a, k] = np.sqrt(UNKNOWN_VARIANCE) * SCORES[last]
        return
    c, s = rows.scales[row, a, 2], rows.scales[row, a, 3]
    seen = rows.seen[row, a] + 1
    for h in range(len(leads)):
        half_widths = posterior.half_widths[h, a]
        if seen < FIRST_WITH_NETWORK:
            inverse_dof = 1.0 / max(seen - 1, 1)
            deviation = max(FIRST_GUESS * abs(c) if seen < FIRST_WITH_FORECAST else 1.25 * s, _least_deviation(c))
            steps = leads[h] / unit if unit > 0 else 1.0
            deviation *= np.sqrt(max(steps, 1.0)) * widening(1.0, inverse_dof)
            posterior.forecast_mean[h, a], posterior.forecast_covariance[h, a, a] = c, deviation * deviation
            for level in range(levels):
                z = SCORES[last - ENDS[level, 0]]
                if level == 0:
                    z = -0.5 * (SCORES[ENDS[0, 0]] + SCORES[ENDS[0, 1]])
                half_widths[level] = half_widths[levels + level] = deviation * abs(z) * stretched(z * z, inverse_dof)
            continue
        first, second = rows.horizon_queries[row, a, h, 0], rows.horizon_queries[row, a, h, 1]
        share = rows.share[row, a, h]
        for q in range(len(SCORES)):
            forecast[q] = c + s * ((1 - share) * quantiles[first, q] + share * quantiles[second, q])
        middle = forecast[MEDIAN]
        write_half_widths(forecast, half_widths)
        # Use the variance of a normal distribution with the same middle 80 %.
        deviation = (half_widths[1] + half_widths[levels + 1]) / _WIDTH
        posterior.forecast_mean[h, a], posterior.forecast_covariance[h, a, a] = middle, deviation * deviation
