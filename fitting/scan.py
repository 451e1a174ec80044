"""Compute the exact likelihood of one series under a structural model, and its gradient by the adjoint of the filter.

    m⁻ = d ∘ m,  P⁻ = d dᵀ ∘ P + Q      e = y - cᵀm⁻ - b,  s = cᵀP⁻c,  S = s + r
    W = s + r/w,  h = P⁻c               m = m⁻ + h e/W,    P = P⁻ - h hᵀ/W
    log p(y) = log[(1 - ε) N(e; 0, S) + ε N(e; 0, k² S)]

w is the capped Student-t weight (docs/MATH.md §2, K passes), so this is the linear filter in float64. With 1/nu = 0 and
ε = 0, it is the Kalman filter. There is no update for a missing value. F is diagonal in these coordinates
(`structural_model.py`), because the coordinates of an oscillator rotate with it, and so does the sensor c. A step
therefore takes two passes over P.

The gradient is computed backwards (reverse mode), so its cost does not grow with the number of parameters. The
covariances of `SEGMENT` rows fit into the cache of the processor. Each segment recomputes them from its first row.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

LOG_2PI = math.log(2 * math.pi)
# Number of rows whose covariances are stored at a time.
SEGMENT = 32

# `reassoc` permits sums in any order. `nnan` is not set, because missing values are NaN.
compiled_jit = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz", "reassoc"})


class Tables(NamedTuple):
    """Matrices of the system at every row.

    Attributes:
        decay: Diagonal d of F for every distinct lag, `[U, n]`.
        noise: Diagonal of Q for every distinct lag, `[U, n]`.
        cross: Element Q[0, 1] for every distinct lag, `[U]`.
        prior, prior_cross: Variances `[n]` and covariance [0, 1] `[1]` before the first value. The prior mean is zero.
        sensor: Vector c at every row, `[N, n]`.
    """

    decay: np.ndarray
    noise: np.ndarray
    cross: np.ndarray
    prior: np.ndarray
    prior_cross: np.ndarray
    sensor: np.ndarray


class Robust(NamedTuple):
    """Parameters of the robust update.

    Attributes:
        inverse_nu: Inverse 1/nu of the degrees of freedom.
        contamination: Fraction ε of outliers.
        outlier_scale: Factor k by which the standard deviation of outliers is larger.
        inner: Number of reweighting passes K.
    """

    inverse_nu: float
    contamination: float
    outlier_scale: float
    inner: int


class Measurement(NamedTuple):
    """Offset b and measurement variance r of the values, and parameters of the robust update."""

    offset: float
    variance: float
    robust: Robust


class Scan(NamedTuple):
    """Results of the filter for each value, `[N]` each.

    Attributes:
        log_likelihood: Log-likelihood. It is 0 for missing values.
        innovation, total: Innovation e and its variance S.
        weight: Robust weight w.
    """

    log_likelihood: np.ndarray
    innovation: np.ndarray
    total: np.ndarray
    weight: np.ndarray


class Gradient(NamedTuple):
    """The sum of the log-likelihoods, and its derivatives.

    Attributes:
        log_likelihood: Sum of the log-likelihoods.
        tables: Derivatives with respect to `Tables`. The derivatives with respect to the sensor are only those of the
            last `turning` states.
        scalars: Derivatives with respect to b, r, 1/nu, ε and k, `[5]`.
    """

    log_likelihood: float
    tables: Tables
    scalars: np.ndarray


@compiled_jit
def _weight(e, s, r, a, inner):
    """Return the robust weight w with a = 1/nu, and its derivatives with respect to e, s, r and a."""
    w, w_e, w_s, w_r, w_a = 1.0, 0.0, 0.0, 0.0, 0.0
    for i in range(inner):
        residual, by_e, by_s, by_r, by_a = e, 1.0, 0.0, 0.0, 0.0
        if i > 0:
            # The posterior residual e r / (w s + r).
            d = w * s + r
            by_w = -e * r * s / (d * d)
            residual = e * r / d
            by_e = r / d + by_w * w_e
            by_s = -e * r * w / (d * d) + by_w * w_s
            by_r = e * w * s / (d * d) + by_w * w_r
            by_a = by_w * w_a
        gate = residual * residual / (s + r)
        factor = 2 * residual / (s + r)
        own = gate / (s + r)
        bottom = 1 + a * gate
        w = (1 + a) / bottom
        if w >= 1:
            w, w_e, w_s, w_r, w_a = 1.0, 0.0, 0.0, 0.0, 0.0
            continue
        slope = -(1 + a) * a / (bottom * bottom)
        w_e = slope * factor * by_e
        w_s = slope * (factor * by_s - own)
        w_r = slope * (factor * by_r - own)
        w_a = slope * factor * by_a + 1 / bottom - (1 + a) * gate / (bottom * bottom)
    return w, w_e, w_s, w_r, w_a


@compiled_jit
def _density(e, total, contamination, k):
    """Return the log density, and its derivatives with respect to nis = e²/S, ε and k. The derivative with respect to
    nis is taken at a constant determinant."""
    nis = e * e / total
    base = -0.5 * (nis + math.log(total) + LOG_2PI)
    if contamination == 0:
        return base, -0.5, 0.0, 0.0
    inlier = base + math.log1p(-contamination)
    outlier = base + 0.5 * nis * (1 - 1 / (k * k)) - math.log(k) + math.log(contamination)
    top = max(inlier, outlier)
    value = top + math.log(math.exp(inlier - top) + math.exp(outlier - top))
    share = math.exp(outlier - value)
    by_nis = -0.5 * ((1 - share) + share / (k * k))
    by_k = share * (nis / (k * k * k) - 1 / k)
    return value, by_nis, share / contamination - (1 - share) / (1 - contamination), by_k


@compiled_jit
def _first(prior, prior_cross, mean, covariance):
    n = len(prior)
    for i in range(n):
        mean[i] = 0.0
        for j in range(n):
            covariance[i, j] = 0.0
        covariance[i, i] = prior[i]
    if n > 1:
        covariance[0, 1] = prior_cross[0]
        covariance[1, 0] = prior_cross[0]


@compiled_jit
def _observe(mean, covariance, sensor, y, measurement, h, outputs):
    """Compute h = P c and the outputs of a row: log-likelihood, e, S, w and W."""
    offset, r, robust = measurement
    a, contamination, k, inner = robust
    n = len(mean)
    h[:] = 0.0
    for i in range(n):
        c = sensor[i]
        for j in range(n):
            h[j] += c * covariance[i, j]
    e, s = y - offset, 0.0
    for i in range(n):
        e -= sensor[i] * mean[i]
        s += sensor[i] * h[i]
    w = _weight(e, s, r, a, inner)[0]
    outputs[0] = _density(e, s + r, contamination, k)[0]
    outputs[1] = e
    outputs[2] = s + r
    outputs[3] = w
    outputs[4] = s + r / w


@compiled_jit
def _move(decay, noise, cross, h, along, wide, mean, covariance):
    """Update the mean to m + h · along and the covariance to P - h hᵀ / wide, then predict both over the lag. If wide
    is 0, P is not updated."""
    n = len(mean)
    inverse = 1 / wide if wide > 0 else 0.0
    for i in range(n):
        mean[i] = decay[i] * (mean[i] + h[i] * along)
        own, part = decay[i], h[i] * inverse
        for j in range(n):
            covariance[i, j] = own * decay[j] * (covariance[i, j] - part * h[j])
        covariance[i, i] += noise[i]
    if n > 1:
        covariance[0, 1] += cross
        covariance[1, 0] += cross


@compiled_jit
def _scan(y, step, tables, measurement, starts):
    """Return the outputs of all rows. Unless `starts` is empty, also write the predicted means and covariances at the
    first row of each segment into it.
    """
    decay, noise, cross, prior, prior_cross, sensor = tables
    means, covariances = starts
    length, n = len(y), len(prior)
    outputs = np.zeros((length, 5))
    mean, covariance, h = np.zeros(n), np.zeros((n, n)), np.zeros(n)
    _first(prior, prior_cross, mean, covariance)
    for t in range(length):
        if t > 0:
            g = step[t]
            wide = outputs[t - 1, 4]
            along = outputs[t - 1, 1] / wide if wide > 0 else 0.0
            _move(decay[g], noise[g], cross[g], h, along, wide, mean, covariance)
        if t % SEGMENT == 0 and len(means) > 0:
            means[t // SEGMENT] = mean
            covariances[t // SEGMENT] = covariance
        if np.isnan(y[t]):
            h[:] = 0.0
            outputs[t, 2] = 1.0
            outputs[t, 3] = 1.0
        else:
            _observe(mean, covariance, sensor[t], y[t], measurement, h, outputs[t])
    return outputs


@compiled_jit
def _adjoint(y, step, tables, measurement, turning):
    decay, noise, cross, prior, _, sensor = tables
    _, r, robust = measurement
    a, contamination, k, inner = robust
    length, n = len(y), len(prior)
    segments = (length + SEGMENT - 1) // SEGMENT
    starts = np.empty((segments, n)), np.empty((segments, n, n))
    outputs = _scan(y, step, tables, measurement, starts)
    by_decay, by_noise, by_cross = np.zeros_like(decay), np.zeros_like(noise), np.zeros_like(cross)
    by_sensor, scalars = np.zeros((length, turning)), np.zeros(5)
    mean_bar, bar, h_bar, v = np.zeros(n), np.zeros((n, n)), np.zeros(n), np.zeros(n)
    means, covariances, hs = np.empty((SEGMENT, n)), np.empty((SEGMENT, n, n)), np.empty((SEGMENT, n))
    for segment in range(segments - 1, -1, -1):
        first = segment * SEGMENT
        stop = min(first + SEGMENT, length)
        means[0] = starts[0][segment]
        covariances[0] = starts[1][segment]
        for t in range(first, stop):
            at = t - first
            if t > first:
                g = step[t]
                wide = outputs[t - 1, 4]
                along = outputs[t - 1, 1] / wide if wide > 0 else 0.0
                means[at] = means[at - 1]
                covariances[at] = covariances[at - 1]
                _move(decay[g], noise[g], cross[g], hs[at - 1], along, wide, means[at], covariances[at])
            hs[at] = 0.0
            if not np.isnan(y[t]):
                for i in range(n):
                    c = sensor[t, i]
                    for j in range(n):
                        hs[at, j] += c * covariances[at, i, j]
        for t in range(stop - 1, first - 1, -1):
            mean, covariance, h, c = means[t - first], covariances[t - first], hs[t - first], sensor[t]
            is_seen = outputs[t, 4] > 0
            wide = outputs[t, 4] if is_seen else 1.0
            along_h = outputs[t, 1] / wide if is_seen else 0.0
            v[:] = 0.0
            if t + 1 < length:
                # Go back over the lag: compute the adjoints of P and m here from those of the next prediction.
                d = decay[step[t + 1]]
                g = step[t + 1]
                if n > 1:
                    by_cross[g] += 2 * bar[0, 1]
                for i in range(n):
                    own, part, total = d[i], h[i] / wide, 0.0
                    by_noise[g, i] += bar[i, i]
                    for j in range(n):
                        x = bar[i, j] * d[j]
                        total += x * (covariance[i, j] - part * h[j])
                        bar[i, j] = x * own
                    by_decay[g, i] += 2 * total + mean_bar[i] * (mean[i] + h[i] * along_h)
                for i in range(n):
                    mean_bar[i] *= d[i]
                    for j in range(n):
                        v[j] += h[i] * bar[i, j]
            if not is_seen:
                continue
            e, total_variance = outputs[t, 1], outputs[t, 2]
            s = total_variance - r
            w, w_e, w_s, w_r, w_a = _weight(e, s, r, a, inner)
            _, by_nis, by_contamination, by_k = _density(e, total_variance, contamination, k)
            along, squared = 0.0, 0.0
            for i in range(n):
                along += mean_bar[i] * h[i]
                squared += h[i] * v[i]
            by_wide = (squared - along * e) / (wide * wide)
            by_w = -by_wide * r / (w * w)
            by_total = -0.5 / total_variance - by_nis * e * e / (total_variance * total_variance)
            by_e = along / wide + by_w * w_e + by_nis * 2 * e / total_variance
            by_s = by_wide + by_w * w_s + by_total
            scalars[0] -= by_e
            scalars[1] += by_wide / w + by_w * w_r + by_total
            scalars[2] += by_w * w_a
            scalars[3] += by_contamination
            scalars[4] += by_k
            for i in range(n):
                h_bar[i] = mean_bar[i] * along_h - 2 * v[i] / wide
            for i in range(turning):
                p = n - turning + i
                found = 2 * by_s * h[p] - by_e * mean[p]
                for j in range(n):
                    found += covariance[p, j] * h_bar[j]
                by_sensor[t, i] = found
            for i in range(n):
                h_bar[i] += by_s * c[i]
            for i in range(n):
                mean_bar[i] -= by_e * c[i]
                left, right = 0.5 * h_bar[i], 0.5 * c[i]
                for j in range(n):
                    bar[i, j] += left * c[j] + right * h_bar[j]
    by_prior, by_prior_cross = np.zeros(n), np.zeros(1)
    for i in range(n):
        by_prior[i] = bar[i, i]
    if n > 1:
        by_prior_cross[0] = 2 * bar[0, 1]
    return outputs, (by_decay, by_noise, by_cross, by_prior, by_prior_cross, by_sensor), scalars


def scan_series(y: np.ndarray, step: np.ndarray, tables: Tables, measurement: Measurement) -> Scan:
    """Filter a series, and return the results for each value.

    Args:
        y: Values `[N]`. Missing values are NaN.
        step: Index in the tables of the lag before each value, `[N]`. The first index is not used.
        tables: Matrices of the system.
        measurement: Parameters of the measurement.
    """
    n = len(tables.prior)
    outputs = _scan(y, step, tuple(tables), tuple(measurement), (np.empty((0, n)), np.empty((0, n, n))))
    return Scan(*(np.ascontiguousarray(outputs[:, i]) for i in range(4)))


def gradient(y: np.ndarray, step: np.ndarray, tables: Tables, measurement: Measurement, turning: int = 0) -> Gradient:
    """Return the log-likelihood of a series and its derivatives.

    Args:
        y, step, tables, measurement: See `scan_series`.
        turning: Number of states at the end for which the derivatives with respect to the sensor are computed.
    """
    outputs, parts, scalars = _adjoint(y, step, tuple(tables), tuple(measurement), turning)
    return Gradient(float(outputs[:, 0].sum()), Tables(*parts), scalars)
