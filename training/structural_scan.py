"""Exact likelihood of one series under a structural model, with its gradient by the adjoint of the filter.

    m⁻ = F m,  P⁻ = F P Fᵀ + Q          e = y - cᵀm⁻ - b,  s = cᵀP⁻c,  S = s + r
    W = s + r/w,  h = P⁻c               m = m⁻ + h e/W,    P = P⁻ - h hᵀ/W
    log p(y) = log[(1 - ε) N(e; 0, S) + ε N(e; 0, k² S)]

w is the capped Student-t weight (docs/MATH.md §2, K passes), so this is the filter that is served, in float64: with
1/nu = 0 and ε = 0 the Kalman filter and its likelihood. A missing value is a prediction without an update. F and Q are
block-diagonal with blocks of one or two states, so three diagonals of F and two of Q hold them and a step costs O(n²).

The gradient runs the same equations backwards once (reverse mode): its cost does not grow with the number of
parameters, unlike that of forward sensitivities or differences.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

LOG_2PI = math.log(2 * math.pi)


class Bands(NamedTuple):
    """F and Q of every distinct lag, `[U, n]` each: F's diagonal, F[i, i + 1], F[i + 1, i], Q's diagonal, Q[i, i + 1].

    The last column of the off-diagonals is zero. prior `[n]`: variances before the first value, whose mean is zero.
    """

    diagonal: np.ndarray
    upper: np.ndarray
    lower: np.ndarray
    noise: np.ndarray
    noise_upper: np.ndarray
    prior: np.ndarray


class Measurement(NamedTuple):
    """sensor c `[n]`, offset b, variance r, 1/nu, contamination ε, outlier_scale k and the passes K."""

    sensor: np.ndarray
    offset: float
    variance: float
    inverse_nu: float
    contamination: float
    outlier_scale: float
    inner: int


class Scan(NamedTuple):
    """Per value `[N]`: log_likelihood (0 where missing), innovation e, total S, weight w; predicted m⁻ `[N, n]` and P⁻
    `[N, n, n]`."""

    log_likelihood: np.ndarray
    innovation: np.ndarray
    total: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


class Gradient(NamedTuple):
    """Derivatives of the sum of the log likelihoods; bands like `Bands`, scalars (b, r, 1/nu, ε, k) `[5]`."""

    bands: Bands
    scalars: np.ndarray


@njit(cache=True)
def _weight(e, s, r, a, inner):  # type: ignore[no-untyped-def]
    """w of the capped rule with a = 1/nu, and its derivatives by e, s, r and a."""
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


@njit(cache=True)
def _density(e, total, contamination, k):  # type: ignore[no-untyped-def]
    """The log density, and its derivatives by nis = e²/S (S in the determinant apart), ε and k."""
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


@njit(cache=True)
def _times_band(x, d, u, l, out):  # type: ignore[no-untyped-def]  # noqa: E741
    """out = x Fᵀ of a symmetric or square x `[n, n]`; with u and l exchanged, x F."""
    n = len(d)
    for i in range(n):
        for j in range(n):
            out[i, j] = x[i, j] * d[j]
        for j in range(n - 1):
            out[i, j] += x[i, j + 1] * u[j]
        for j in range(n - 1):
            out[i, j + 1] += x[i, j] * l[j]


@njit(cache=True)
def _band_times(x, d, u, l, out):  # type: ignore[no-untyped-def]  # noqa: E741
    """out = F x of x `[n, n]`; with u and l exchanged, Fᵀ x."""
    n = len(d)
    for i in range(n):
        for j in range(n):
            out[i, j] = d[i] * x[i, j]
        if i > 0 and l[i - 1] != 0:
            for j in range(n):
                out[i, j] += l[i - 1] * x[i - 1, j]
        if i < n - 1 and u[i] != 0:
            for j in range(n):
                out[i, j] += u[i] * x[i + 1, j]


@njit(cache=True)
def _band_vector(x, d, u, l, out):  # type: ignore[no-untyped-def]  # noqa: E741
    n = len(d)
    for i in range(n):
        out[i] = d[i] * x[i]
        if i > 0:
            out[i] += l[i - 1] * x[i - 1]
        if i < n - 1:
            out[i] += u[i] * x[i + 1]


@njit(cache=True, fastmath={"reassoc", "contract"})
def _dot(x, y):  # type: ignore[no-untyped-def]
    """Inline: at these sizes a call of BLAS costs more than the sum."""
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@njit(cache=True)
def _apply(matrix, x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = _dot(matrix[i], x)


@njit(cache=True)
def _condition(mean, covariance, h, e, wide, mean_out, covariance_out):  # type: ignore[no-untyped-def]
    """The update with innovation e, variance W = wide and h = P⁻c."""
    n = len(mean)
    for i in range(n):
        mean_out[i] = mean[i] + h[i] * e / wide
        for j in range(n):
            covariance_out[i, j] = covariance[i, j] - h[i] * h[j] / wide


@njit(cache=True)
def _scan(y, step, bands, measurement):  # type: ignore[no-untyped-def]
    d, u, l, noise, noise_upper, prior = bands  # noqa: E741
    sensor, offset, r, a, contamination, k, inner = measurement
    length, n = len(y), len(prior)
    values, innovations, totals, weights = np.zeros(length), np.zeros(length), np.ones(length), np.ones(length)
    means, covariances = np.zeros((length, n)), np.zeros((length, n, n))
    mean, covariance, half, h = np.zeros(n), np.diag(prior), np.zeros((n, n)), np.zeros(n)
    for i in range(length):
        if i == 0:
            covariances[0] = covariance
        else:
            g = step[i]
            _band_vector(mean, d[g], u[g], l[g], means[i])
            _band_times(covariance, d[g], u[g], l[g], half)
            _times_band(half, d[g], u[g], l[g], covariances[i])
            for j in range(n):
                covariances[i, j, j] += noise[g, j]
                if j < n - 1:
                    covariances[i, j, j + 1] += noise_upper[g, j]
                    covariances[i, j + 1, j] += noise_upper[g, j]
        if np.isnan(y[i]):
            mean[:] = means[i]
            covariance[:] = covariances[i]
            continue
        _apply(covariances[i], sensor, h)
        e = y[i] - _dot(sensor, means[i]) - offset
        s = _dot(sensor, h)
        w = _weight(e, s, r, a, inner)[0]
        values[i] = _density(e, s + r, contamination, k)[0]
        innovations[i], totals[i], weights[i] = e, s + r, w
        _condition(means[i], covariances[i], h, e, s + r / w, mean, covariance)
    return values, innovations, totals, weights, means, covariances


@njit(cache=True)
def _adjoint(y, step, bands, measurement, scan):  # type: ignore[no-untyped-def]
    d, u, l, noise, _, prior = bands  # noqa: E741
    sensor, _, r, a, contamination, k, inner = measurement
    _, innovations, totals, weights, means, covariances = scan
    length, n = len(y), len(prior)
    by_d, by_u, by_l = np.zeros_like(d), np.zeros_like(d), np.zeros_like(d)
    by_noise, by_noise_upper, scalars = np.zeros_like(noise), np.zeros_like(noise), np.zeros(5)
    mean_bar, next_mean_bar = np.zeros(n), np.zeros(n)
    bar, half = np.zeros((n, n)), np.zeros((n, n))
    mean, covariance = np.zeros(n), np.zeros((n, n))
    h, v = np.zeros(n), np.zeros(n)
    for i in range(length - 1, -1, -1):
        if not np.isnan(y[i]):
            e, total = innovations[i], totals[i]
            s = total - r
            w, w_e, w_s, w_r, w_a = _weight(e, s, r, a, inner)
            _, by_nis, by_contamination, by_k = _density(e, total, contamination, k)
            wide = s + r / w
            _apply(covariances[i], sensor, h)
            _apply(bar, h, v)
            along = _dot(mean_bar, h)
            by_wide = (_dot(h, v) - along * e) / (wide * wide)
            by_w = -by_wide * r / (w * w)
            by_total = -0.5 / total - by_nis * e * e / (total * total)
            by_e = along / wide + by_w * w_e + by_nis * 2 * e / total
            by_s = by_wide + by_w * w_s + by_total
            scalars[0] -= by_e
            scalars[1] += by_wide / w + by_w * w_r + by_total
            scalars[2] += by_w * w_a
            scalars[3] += by_contamination
            scalars[4] += by_k
            h_bar = mean_bar * e / wide - 2 * v / wide + by_s * sensor
            for p in range(n):
                mean_bar[p] -= by_e * sensor[p]
                for q in range(n):
                    bar[p, q] += 0.5 * (h_bar[p] * sensor[q] + sensor[p] * h_bar[q])
        if i == 0:
            break
        # The posterior before the transition, from what the scan kept.
        if np.isnan(y[i - 1]):
            mean[:] = means[i - 1]
            covariance[:] = covariances[i - 1]
        else:
            before = totals[i - 1] - r + r / weights[i - 1]
            _apply(covariances[i - 1], sensor, h)
            _condition(means[i - 1], covariances[i - 1], h, innovations[i - 1], before, mean, covariance)
        g = step[i]
        # half = P Fᵀ, so that the rows of bar and half give the entries of 2 bar F P that F has.
        _times_band(covariance, d[g], u[g], l[g], half)
        for p in range(n):
            by_noise[g, p] += bar[p, p]
            by_d[g, p] += 2 * _dot(bar[p], half[p]) + mean_bar[p] * mean[p]
            # Between two blocks, and at lag 0, nothing depends on a parameter.
            if p < n - 1 and (u[g, p] != 0 or l[g, p] != 0):
                by_noise_upper[g, p] += 2 * bar[p, p + 1]
                by_u[g, p] += 2 * _dot(bar[p], half[p + 1]) + mean_bar[p] * mean[p + 1]
                by_l[g, p] += 2 * _dot(bar[p + 1], half[p]) + mean_bar[p + 1] * mean[p]
        _band_vector(mean_bar, d[g], l[g], u[g], next_mean_bar)
        mean_bar[:] = next_mean_bar
        _band_times(bar, d[g], l[g], u[g], half)
        _times_band(half, d[g], l[g], u[g], bar)
    return by_d, by_u, by_l, by_noise, by_noise_upper, np.diag(bar).copy(), scalars


def scan_series(y: np.ndarray, step: np.ndarray, bands: Bands, measurement: Measurement) -> Scan:
    """Filter a series.

    Args:
        y: values `[N]`, NaN where missing.
        step: `[N]`, which row of the bands is the lag before each value; the first is not used.
    """
    return Scan(*_scan(y, step, tuple(bands), tuple(measurement)))


def gradient(y: np.ndarray, step: np.ndarray, bands: Bands, measurement: Measurement, scan: Scan) -> Gradient:
    """Derivatives of `scan.log_likelihood.sum()`."""
    *parts, scalars = _adjoint(y, step, tuple(bands), tuple(measurement), tuple(scan))
    return Gradient(Bands(*parts), scalars)


__all__ = ["Bands", "Gradient", "Measurement", "Scan", "gradient", "scan_series"]
