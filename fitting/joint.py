"""Likelihood of the rows of several columns under their structural models and what these share, compiled.

    d ∘ m, d dᵀ ∘ P + Q      e = y - C m - b,  S = C P Cᵀ + R         of the components seen
    T = C P Cᵀ + R / w        P - P Cᵀ T⁻¹ C P                         one weight w for the row

The state is that of the columns one after the other, each in the coordinates of `scan.py`, in which F is
diagonal. So a row costs two passes over P and one for each column, where matrices F would cost the cube of the states.
The numbers are those of the filter that is served (`rfa.model.recurrence.dense`) without its jumps.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from rfa.fitting.maximum_likelihood import Column, Fit, Likelihood
from rfa.fitting.scan import LOG_2PI, compiled


class Robust(NamedTuple):
    """1/nu, contamination ε, outlier_scale k and the passes K, of the row."""

    inverse_nu: float
    contamination: float
    outlier_scale: float
    inner: int


@compiled
def _solve(matrix, count, x):
    """L of matrix = L Lᵀ, into its lower triangle, and L⁻¹ x, in place; the log determinant."""
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


@compiled
def _row_weight(e, signal, noise, count, robust):
    """The weight of a row, and its e'S⁻¹e and log det S."""
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
            # The residual after the update, (R/w) (C P Cᵀ + R/w)⁻¹ e, against S.
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


@compiled
def _log_density(nis, log_det, count, robust):
    _, contamination, k, _ = robust
    base = -0.5 * (nis + log_det + count * LOG_2PI)
    if contamination <= 0:
        return base
    inlier = base + math.log1p(-contamination)
    outlier = base + 0.5 * nis * (1 - 1 / (k * k)) - count * math.log(k) + math.log(contamination)
    return max(inlier, outlier) + math.log1p(math.exp(-abs(inlier - outlier)))


@compiled
def _joint_scan(y, step, decay, noise, prior, sensor, first, offset, measurement, robust):
    """Log likelihood of every row `[N]`; `first` `[P + 1]`, where the states of each column begin."""
    length, p = y.shape
    n = len(prior)
    found = np.zeros(length)
    mean, covariance = np.zeros(n), prior.copy()
    seen, e = np.zeros(p, np.int64), np.zeros(p)
    h, signal, own = np.zeros((p, n)), np.zeros((p, p)), np.zeros((p, p))
    for t in range(length):
        if t > 0:
            d, q = decay[step[t]], noise[step[t]]
            for i in range(n):
                mean[i] *= d[i]
                for j in range(n):
                    covariance[i, j] = d[i] * d[j] * covariance[i, j] + q[i, j]
        count = 0
        for a in range(p):
            if not np.isnan(y[t, a]):
                seen[count] = a
                count += 1
        if count == 0:
            continue
        for a in range(count):
            c = seen[a]
            e[a] = y[t, c] - offset[c]
            h[a] = 0.0
            for i in range(first[c], first[c + 1]):
                e[a] -= sensor[t, i] * mean[i]
                for j in range(n):
                    h[a, j] += sensor[t, i] * covariance[i, j]
        for a in range(count):
            for b in range(count):
                c = seen[b]
                signal[a, b] = 0.0
                own[a, b] = measurement[seen[a], c]
                for j in range(first[c], first[c + 1]):
                    signal[a, b] += h[a, j] * sensor[t, j]
        w, nis, log_det = _row_weight(e, signal, own, count, robust)
        found[t] = _log_density(nis, log_det, count, robust)
        for a in range(count):
            for b in range(count):
                signal[a, b] += own[a, b] / w
        _solve(signal, count, e)
        # L⁻¹ C P, a row after the other: P - (L⁻¹ C P)ᵀ (L⁻¹ C P).
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
    return found


def joint_log_likelihood(
    columns: Sequence[Column],
    fits: Sequence[Fit],
    noises: tuple[np.ndarray, np.ndarray],
    robust: Robust,
    skip: int,
) -> float:
    """Log likelihood, in the units of the data, of the rows from `skip` on; those before are filtered too.

    Args:
        columns, fits: at the same times.
        noises: correlation of the measurement noises and of what drives the levels, `[P, P]` each.
    """
    systems = [Likelihood(column, fit.structure, robust.inner) for column, fit in zip(columns, fits, strict=True)]
    tables = [made.system.tables(fit.raw) for made, fit in zip(systems, fits, strict=True)]
    scalars = [made.system.measurement(fit.raw, robust.inner) for made, fit in zip(systems, fits, strict=True)]
    first = np.cumsum([0, *(len(table.prior) for table in tables)])
    lags, n = columns[0].lags, int(first[-1])
    noise, prior = np.zeros((len(lags), n, n)), block_diag(*(np.diag(table.prior) for table in tables))
    for at, table in zip(first, tables, strict=False):
        own = slice(at, at + len(table.prior))
        noise[:, own, own] += table.noise[:, :, None] * np.eye(len(table.prior))
        if len(table.prior) > 1:
            noise[:, at, at + 1] = noise[:, at + 1, at] = table.cross
            prior[at, at + 1] = prior[at + 1, at] = table.prior_cross[0]
    levels = [made.system.level(fit.raw) for made, fit in zip(systems, fits, strict=True)]
    for i, (rate, intensity) in enumerate(levels):
        for j, (other, beside) in enumerate(levels[:i]):
            total = rate + other
            spans = lags if total == 0 else -np.expm1(-total * lags) / total
            found = noises[1][i, j] * math.sqrt(intensity * beside) * spans
            noise[:, first[i], first[j]] = noise[:, first[j], first[i]] = found
    deviation = np.sqrt([one.variance for one in scalars])
    rows = _joint_scan(
        np.stack([column.y for column in columns], axis=1),
        columns[0].step,
        np.concatenate([table.decay for table in tables], axis=1),
        noise,
        prior,
        np.ascontiguousarray(np.concatenate([table.sensor for table in tables], axis=1)),
        first,
        np.array([one.offset for one in scalars]),
        noises[0] * deviation[:, None] * deviation[None, :],
        tuple(robust),
    )
    seen = [int(np.isfinite(column.y[skip:]).sum()) for column in columns]
    scale = sum(count * math.log(column.spread) for count, column in zip(seen, columns, strict=True))
    return float(rows[skip:].sum()) - scale


__all__ = ["Robust", "joint_log_likelihood"]
