"""Regression of one column on columns whose future values are known, such as prices, promotions and holidays.

Values and covariates are differenced with the same linear operator D, so that level, trend and season cancel:

    e = D y, z = D x, D v = v_t - mean of v at earlier rows      e = β z + D noise (Cochrane and Orcutt 1949)

D is the operator in OPERATORS with the smallest mean absolute residual so far. It uses the preceding rows, or rows
whole seasons before. β is a ridge regression of e on z over all rows. Each coefficient is then shrunk by the
non-negative garrote (Breiman 1995), which sets the coefficients of covariates that explain no more than chance to zero:

    β = (C + Λ)⁻¹ g        C = Σ (z - z̄)(z - z̄)ᵀ, g = Σ (z - z̄) (e - ē), Λ = diag(½ max z²)
    β_k ← β_k max(0, 1 - T / t_k²)                                       t_k² = β_k² / (s² [(C + Λ)⁻¹]_kk)

The model then filters y - β (x - x₀) with the β before the row, where x₀ are the covariates of the first row, and adds
β (x - x₀) to its estimates and forecasts. If x is missing, its mean is used.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np

from rfa.runtime.compiling import inline_jit, kernel_jit

# Maximum number of rows between a row and the earlier rows of a difference.
RING: Final = 52
# Operators: the distance between the earlier rows, and their number.
OPERATORS: Final = np.array([[1, 1], [1, 8], [5, 4], [7, 4], [12, 3], [24, 2], [52, 1]])
OPERATOR_COUNT: Final = len(OPERATORS)
# T of the garrote, the fraction of the largest square that the ridge adds, and the fraction of the mean residuals that
# remains after a row.
CHANCE, RIDGE, KEPT = 4.0, 0.5, 0.98
# Limit on a residual as a multiple of the mean residual. Coefficients are computed from FIRST_ROWS rows on, plus one
# per covariate.
FURTHEST_OFF, FIRST_ROWS = 20.0, 8
# Value that is stored for a missing number, because states must be finite.
MISSING: Final = 1e300
LARGEST_EFFECT: Final = 1e12
_TINY = 1e-300

# State of a stream, `[SHARED + K (3 + RING)]`: number of rows; then, for the covariates, their first values, their
# means, the numbers of values in the means, and the ring.
ROWS, SHARED = 0, 1
# State of a column, `[COLUMN + 5 K + K K]`: mean residual by operator, number of values and of integers among them, the
# smallest value, number of pairs, their mean e and Σ (e - ē)², mean size of the residuals, the ring; then, for the
# covariates, mean z, g, β, the shrunk β, the largest z², and C.
RESIDUALS = 0
SEEN = RESIDUALS + OPERATOR_COUNT
WHOLE, LEAST, PAIRS, MEAN, SQUARES, SIZE, VALUES = range(SEEN + 1, SEEN + 8)
COLUMN = VALUES + RING


def shared_size(count: int) -> int:
    """Return the size of the state of a stream with `count` covariates."""
    return SHARED + count * (3 + RING)


def column_size(count: int) -> int:
    """Return the size of the state of a column with `count` covariates."""
    return COLUMN + count * (5 + count)


@inline_jit
def _difference(ring, first, stride, row, value, operator):
    """Apply the difference operator D to the value of a row. Return MISSING if there are no earlier values.

    The earlier values are `ring[first + stride * (row % RING)]`.
    """
    distance, most = OPERATORS[operator, 0], OPERATORS[operator, 1]
    total, count = 0.0, 0
    for j in range(1, most + 1):
        if row - j * distance < 0:
            break
        before = ring[first + stride * ((row - j * distance) % RING)]
        if before != MISSING:
            total += before
            count += 1
    return value - total / count if count > 0 else MISSING


@inline_jit
def _factor(matrix, count):
    """Compute the Cholesky factor of a matrix in place, in its lower triangle."""
    for i in range(count):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= matrix[i, k] * matrix[j, k]
            if i == j:
                matrix[i, i] = np.sqrt(max(total, _TINY))
            else:
                matrix[i, j] = total / matrix[j, j]


@inline_jit
def _solve(factor, count, right, out):
    """Solve a system with a Cholesky factor."""
    for i in range(count):
        total = right[i]
        for k in range(i):
            total -= factor[i, k] * out[k]
        out[i] = total / factor[i, i]
    for i in range(count - 1, -1, -1):
        total = out[i]
        for k in range(i + 1, count):
            total -= factor[k, i] * out[k]
        out[i] = total / factor[i, i]


@inline_jit
def _fit(column, count, matrix, right, solved):
    """Compute the regression coefficients β, and the coefficients after shrinkage."""
    products, beta, shrunk = COLUMN + count, COLUMN + 2 * count, COLUMN + 3 * count
    largest, squares = COLUMN + 4 * count, COLUMN + 5 * count
    for i in range(count):
        for j in range(i + 1):
            matrix[i, j] = column[squares + i * count + j]
        # A covariate that never differed from its past does not have a coefficient.
        matrix[i, i] += RIDGE * column[largest + i] if column[largest + i] > 0 else 1.0
    _factor(matrix, count)
    _solve(matrix, count, column[products : products + count], column[beta : beta + count])
    explained = 0.0
    for i in range(count):
        explained += column[beta + i] * column[products + i]
    variance = max(column[SQUARES] - explained, 0.0) / max(column[PAIRS] - count - 1, 1.0)
    for i in range(count):
        for j in range(count):
            right[j] = 1.0 if i == j else 0.0
        _solve(matrix, count, right, solved)
        square = column[beta + i] * column[beta + i] / (variance * solved[i] + _TINY)
        trust = max(1 - CHANCE / square, 0.0) if square > 0 and column[PAIRS] >= FIRST_ROWS + count else 0.0
        column[shrunk + i] = trust * column[beta + i]


@inline_jit
def _learn(shared, column, count, x, value, z, matrix, right, solved):
    """Add a value of a column. `x` may be missing, but `value` must not be."""
    row = np.int64(shared[ROWS])
    first_ring, beta = SHARED + 3 * count, COLUMN + 2 * count
    best, least = -1, np.inf
    for k in range(OPERATOR_COUNT):
        e = _difference(column, VALUES, 1, row, value, k)
        if e == MISSING:
            continue
        for i in range(count):
            z[k, i] = _difference(shared, first_ring + i, count, row, x[i], k) if x[i] != MISSING else MISSING
            if z[k, i] == MISSING:
                z[k, i] = 0.0
            e -= column[beta + i] * z[k, i]
        before = column[RESIDUALS + k]
        column[RESIDUALS + k] = max(abs(e), column[SIZE]) if before == 0 else KEPT * before + (1 - KEPT) * abs(e)
        if column[RESIDUALS + k] < least and row >= OPERATORS[k, 0]:
            best, least = k, column[RESIDUALS + k]
    if best < 0:
        return
    explained = 0.0
    for i in range(count):
        explained += column[beta + i] * z[best, i]
    residual = _difference(column, VALUES, 1, row, value, best) - explained
    column[PAIRS] += 1
    pairs = column[PAIRS]
    if pairs > FIRST_ROWS:
        bound = FURTHEST_OFF * column[SIZE]
        residual = min(max(residual, -bound), bound) if bound > 0 else residual
    column[SIZE] += (abs(residual) - column[SIZE]) / min(pairs, 100.0)
    e = residual + explained
    off = e - column[MEAN]
    column[MEAN] += off / pairs
    column[SQUARES] += off * (e - column[MEAN])
    means, products, largest, squares = COLUMN, COLUMN + count, COLUMN + 4 * count, COLUMN + 5 * count
    for i in range(count):
        solved[i] = z[best, i] - column[means + i]  # before the mean changes
        column[means + i] += solved[i] / pairs
        column[products + i] += solved[i] * (e - column[MEAN])
        column[largest + i] = max(column[largest + i], z[best, i] * z[best, i])
    for i in range(count):
        for j in range(i + 1):
            column[squares + i * count + j] += solved[i] * (z[best, j] - column[means + j])
    _fit(column, count, matrix, right, solved)


@inline_jit
def _effect(shared, column, count, x):
    """Return the effect β (x - x₀) of the covariates x of a row. If a covariate is missing, its mean is used."""
    total = 0.0
    for i in range(count):
        covariates = x[i] if x[i] == x[i] else shared[SHARED + count + i]
        total += column[COLUMN + 3 * count + i] * (covariates - shared[SHARED + i])
    return min(max(total, -LARGEST_EFFECT), LARGEST_EFFECT)


@inline_jit
def _start(shared, x):
    """Set the reference x₀ of a stream to the covariates of its first row. A covariate that is missing there is set
    from the first row that contains it."""
    count = len(x)
    for i in range(count):
        if x[i] != x[i]:
            continue
        number = shared[SHARED + 2 * count + i] + 1
        if number == 1:
            shared[SHARED + i] = x[i]
        shared[SHARED + 2 * count + i] = number
        shared[SHARED + count + i] += (x[i] - shared[SHARED + count + i]) / number


@kernel_jit(allocates=True)
def regress_rows(shared, columns, inputs, values, count, seen, ahead, bounds):
    """Process the rows of one stream with the regressions of its columns.

    Args:
        shared: State of the stream. See `shared_size`.
        columns: State of its columns, `[P, column_size]`.
        inputs: Covariates of each row and at its horizons, `[R, K (1 + H)]`. Missing values are NaN.
        values: Values of each row, `[R, P]`. Missing values are NaN.
        count: Number K of covariates.
        seen: Output: effect at each row, from the rows before it, `[R, P]`.
        ahead: Output: effect at the horizons, from the rows up to this one, `[R, H, P]`.
        bounds: Output: smallest possible value, and whether all values were integers, `[R, P, 2]`.
    """
    z, matrix = np.zeros((OPERATOR_COUNT, count)), np.zeros((count, count))
    right, solved, x = np.zeros(count), np.zeros(count), np.zeros(count)
    for r in range(len(values)):
        now = inputs[r, :count]
        _start(shared, now)
        row = np.int64(shared[ROWS])
        for i in range(count):
            x[i] = now[i] if now[i] == now[i] else MISSING
        for a in range(values.shape[1]):
            column, value = columns[a], values[r, a]
            seen[r, a] = _effect(shared, column, count, now)
            if value == value:
                column[LEAST] = value if column[SEEN] == 0 else min(column[LEAST], value)
                column[SEEN] += 1
                column[WHOLE] += 1 if value == np.rint(value) else 0
                _learn(shared, column, count, x, value, z, matrix, right, solved)
            column[VALUES + row % RING] = value if value == value else MISSING
            for h in range(ahead.shape[1]):
                ahead[r, h, a] = _effect(shared, column, count, inputs[r, count * (1 + h) : count * (2 + h)])
            bounds[r, a, 0] = 0.0 if column[SEEN] > 0 and column[LEAST] >= 0 else -np.inf
            bounds[r, a, 1] = 1.0 if column[SEEN] >= FIRST_ROWS and column[WHOLE] == column[SEEN] else 0.0
        for i in range(count):
            shared[SHARED + 3 * count + (row % RING) * count + i] = x[i]
        shared[ROWS] = row + 1
