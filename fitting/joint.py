"""Compiled likelihood of several columns under their structural models and shared noise.

    d ∘ m, d dᵀ ∘ P + Q      e = y - C m - b,  S = C P Cᵀ + R         for the observed components
    T = C P Cᵀ + R / w        P - P Cᵀ T⁻¹ C P                         with one weight w per row

The state concatenates the states of the columns, in the coordinates of `scan.py`, in which F is diagonal. Therefore a
row takes two passes over P and one more per column. With a dense F, the work would grow with the cube of the number of
states. The results equal those of the linear filter (`rfa.model.recurrence.dense`) without jumps.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from rfa.fitting.maximum_likelihood import Column, Fit, Likelihood
from rfa.fitting.scan import LOG_2PI, Robust, compiled_jit


class _JointSystem(NamedTuple):
    """The models of all columns as one system with P columns and n states in total.

    Attributes:
        decay: Diagonal of F for every distinct lag, `[U, n]`.
        noise: Process noise Q for every distinct lag, `[U, n, n]`.
        prior: Prior covariance, `[n, n]`.
        sensor: Concatenated sensors of the columns at each row, `[N, n]`.
        first: Index of the first state of each column, and n, `[P + 1]`.
        offset: Offsets of the columns, `[P]`.
        measurement: Measurement noise R, `[P, P]`.
    """

    decay: np.ndarray
    noise: np.ndarray
    prior: np.ndarray
    sensor: np.ndarray
    first: np.ndarray
    offset: np.ndarray
    measurement: np.ndarray


@compiled_jit
def _solve(matrix, count, x):
    """Replace the lower triangle of a matrix by its Cholesky factor L, and x by L⁻¹ x. Return the log determinant of
    the matrix.
    """
    log_det = 0.0
    for j in range(count):
        for k in range(j):
            matrix[j, j] -= matrix[j, k] * matrix[j, k]
        matrix[j, j] = math.sqrt(matrix[j, j])
        log_det += 2 * math.log(matrix[j, j])
        for i in range(j + 1, count):
            for k in range(j):
                matrix[i, j] -= matrix[i, k] * matrix[j, k]
            matrix[i, j] /= matrix[j, j]
    for i in range(count):
        for k in range(i):
            x[i] -= matrix[i, k] * x[k]
        x[i] /= matrix[i, i]
    return log_det


@compiled_jit
def _row_weight(e, signal, noise, count, robust):
    """Return the robust weight of a row, eᵀS⁻¹e, and log det S."""
    inverse_nu, _, _, inner = robust
    nominal, x = np.empty((count, count)), e[:count].copy()
    for a in range(count):
        for b in range(count):
            nominal[a, b] = signal[a, b] + noise[a, b]
    log_det = _solve(nominal, count, x)
    nis = 0.0
    for a in range(count):
        nis += x[a] * x[a]
    gate, w = nis, 1.0
    weighted, z, left = np.empty((count, count)), np.empty(count), np.empty(count)
    for i in range(inner):
        if i > 0:
            # The residual after the update, (R/w) (C P Cᵀ + R/w)⁻¹ e, is compared with S.
            for a in range(count):
                z[a] = e[a]
                for b in range(count):
                    weighted[a, b] = signal[a, b] + noise[a, b] / w
            _solve(weighted, count, z)
            for back in range(count):
                a = count - 1 - back
                for b in range(a + 1, count):
                    z[a] -= weighted[b, a] * z[b]
                z[a] /= weighted[a, a]
            for a in range(count):
                left[a] = 0.0
                for b in range(count):
                    left[a] += noise[a, b] / w * z[b]
            gate = 0.0
            for a in range(count):
                for k in range(a):
                    left[a] -= nominal[a, k] * left[k]
                left[a] /= nominal[a, a]
                gate += left[a] * left[a]
        w = min(1.0, (1 + count * inverse_nu) / (1 + gate * inverse_nu))
    return w, nis, log_det


@compiled_jit
def _log_density(nis, log_det, count, robust):
    _, contamination, k, _ = robust
    base = -0.5 * (nis + log_det + count * LOG_2PI)
    if contamination <= 0:
        return base
    inlier = base + math.log1p(-contamination)
    outlier = base + 0.5 * nis * (1 - 1 / (k * k)) - count * math.log(k) + math.log(contamination)
    return max(inlier, outlier) + math.log1p(math.exp(-abs(inlier - outlier)))


@compiled_jit
def _seen_columns(row, seen):
    """Write the indices of the observed columns to `seen`. Return their number."""
    count = 0
    for a in range(len(row)):
        if not np.isnan(row[a]):
            seen[count] = a
            count += 1
    return count


@compiled_jit
def _innovate(system, row, sensor, seen, state, work):
    """Write the innovation e, C P, C P Cᵀ and R of the observed columns into `work`."""
    mean, covariance = state
    e, h, signal, noise = work
    first, count, n = system.first, len(seen), len(mean)
    for a in range(count):
        c = seen[a]
        e[a] = row[c] - system.offset[c]
        h[a] = 0.0
        for i in range(first[c], first[c + 1]):
            e[a] -= sensor[i] * mean[i]
            for j in range(n):
                h[a, j] += sensor[i] * covariance[i, j]
    for a in range(count):
        for b in range(count):
            c = seen[b]
            signal[a, b] = 0.0
            noise[a, b] = system.measurement[seen[a], c]
            for j in range(first[c], first[c + 1]):
                signal[a, b] += h[a, j] * sensor[j]


@compiled_jit
def _condition(count, w, state, work):
    """Update the mean and the covariance with a row. The covariance becomes P - (L⁻¹ C P)ᵀ (L⁻¹ C P)."""
    mean, covariance = state
    e, h, signal, noise = work
    n = len(mean)
    for a in range(count):
        for b in range(count):
            signal[a, b] += noise[a, b] / w
    _solve(signal, count, e)
    # Compute L⁻¹ C P row by row.
    for a in range(count):
        for b in range(a):
            for j in range(n):
                h[a, j] -= signal[a, b] * h[b, j]
        for j in range(n):
            h[a, j] /= signal[a, a]
        for i in range(n):
            mean[i] += h[a, i] * e[a]
            for j in range(n):
                covariance[i, j] -= h[a, i] * h[a, j]


@compiled_jit
def _joint_scan(y, step, system, robust):
    """Return the log-likelihood of each row, `[N]`."""
    length, p = y.shape
    n = len(system.prior)
    found, columns = np.zeros(length), np.zeros(p, np.int64)
    mean, covariance = np.zeros(n), system.prior.copy()
    work = np.zeros(p), np.zeros((p, n)), np.zeros((p, p)), np.zeros((p, p))
    for t in range(length):
        if t > 0:
            d, q = system.decay[step[t]], system.noise[step[t]]
            for i in range(n):
                mean[i] *= d[i]
                for j in range(n):
                    covariance[i, j] = d[i] * d[j] * covariance[i, j] + q[i, j]
        count = _seen_columns(y[t], columns)
        if count == 0:
            continue
        _innovate(system, y[t], system.sensor[t], columns[:count], (mean, covariance), work)
        w, nis, log_det = _row_weight(work[0], work[2], work[3], count, robust)
        found[t] = _log_density(nis, log_det, count, robust)
        _condition(count, w, (mean, covariance), work)
    return found


def joint_log_likelihood(
    columns: Sequence[Column],
    fits: Sequence[Fit],
    noises: tuple[np.ndarray, np.ndarray],
    robust: Robust,
    skip: int,
) -> float:
    """Return the log-likelihood of the rows from index `skip` on, in the units of the data.

    Args:
        columns, fits: Columns with equal times, and their fits.
        noises: Correlations of the measurement noises and of the level noises, `[P, P]` each.
        robust: Parameters of the robust update.
        skip: Number of rows at the start that are filtered, but whose likelihood is not included.
    """
    likelihoods = [Likelihood(column, fit.structure, robust.inner) for column, fit in zip(columns, fits, strict=True)]
    system = _join(likelihoods, fits, noises, columns[0].lags)
    y = np.stack([column.y for column in columns], axis=1)
    rows = _joint_scan(y, columns[0].step, system, tuple(robust))
    seen = [int(np.isfinite(column.y[skip:]).sum()) for column in columns]
    scale = sum(count * math.log(column.spread) for count, column in zip(seen, columns, strict=True))
    return float(rows[skip:].sum()) - scale


def _join(
    likelihoods: Sequence[Likelihood], fits: Sequence[Fit], noises: tuple[np.ndarray, np.ndarray], lags: np.ndarray
) -> _JointSystem:
    pairs = list(zip(likelihoods, fits, strict=True))
    tables = [one.system.tables(fit.raw) for one, fit in pairs]
    scalars = [one.system.measurement(fit.raw, one.inner) for one, fit in pairs]
    first = np.cumsum([0, *(len(table.prior) for table in tables)])
    n = int(first[-1])
    noise, prior = np.zeros((len(lags), n, n)), block_diag(*(np.diag(table.prior) for table in tables))
    for start, table in zip(first, tables, strict=False):
        states = slice(start, start + len(table.prior))
        noise[:, states, states] += table.noise[:, :, None] * np.eye(len(table.prior))
        if len(table.prior) > 1:
            noise[:, start, start + 1] = noise[:, start + 1, start] = table.cross
            prior[start, start + 1] = prior[start + 1, start] = table.prior_cross[0]
    levels = [one.system.level(fit.raw) for one, fit in pairs]
    for i, (rate, intensity) in enumerate(levels):
        for j, (other_rate, other_intensity) in enumerate(levels[:i]):
            total = rate + other_rate
            spans = lags if total == 0 else -np.expm1(-total * lags) / total
            shared = noises[1][i, j] * math.sqrt(intensity * other_intensity) * spans
            noise[:, first[i], first[j]] = noise[:, first[j], first[i]] = shared
    deviation = np.sqrt([one.variance for one in scalars])
    return _JointSystem(
        np.concatenate([table.decay for table in tables], axis=1),
        noise,
        prior,
        np.ascontiguousarray(np.concatenate([table.sensor for table in tables], axis=1)),
        first,
        np.array([one.offset for one in scalars]),
        noises[0] * deviation[:, None] * deviation[None, :],
    )
