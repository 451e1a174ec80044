"""The regression on columns that are known ahead: against a reference, and the same however a series is cut."""

from itertools import pairwise

import numpy as np
import pytest

from rfa.runtime.filters.steps import Batch
from rfa.runtime.pool import StatePool
from rfa.runtime.series import regression_numba as kernel
from rfa.runtime.series.covariates import COLUMNS, SHARED, CovariateInputs, Regression

RNG = np.random.default_rng(0)
ROWS = 90


def differences(values, row, operator):
    """D of the last of the values of a row, without those before the first."""
    distance, most = kernel.OPERATORS[operator]
    earlier = [values[row - j * distance] for j in range(1, most + 1) if row >= j * distance]
    earlier = [value for value in earlier if not np.isnan(value).any()]
    return values[row] - np.mean(earlier, axis=0) if earlier else np.full_like(values[row], np.nan)


def reference(y, x):
    """The shrunk β after all rows; values may be missing, covariates are not."""
    count = x.shape[1]
    beta, residuals, pairs, size = np.zeros(count), np.zeros(len(kernel.OPERATORS)), [], 0.0
    shrunk = np.zeros(count)
    for row in range(len(y)):
        if np.isnan(y[row]):
            continue
        found = {}
        for k in range(len(kernel.OPERATORS)):
            e, z = differences(y, row, k), differences(x, row, k)
            if np.isnan(e):
                continue
            off = abs(e - beta @ z)
            first = max(off, size)
            residuals[k] = first if residuals[k] == 0 else kernel.KEPT * residuals[k] + (1 - kernel.KEPT) * off
            found[k] = e, z
        if not found:
            continue
        e, z = found[min(found, key=lambda k: residuals[k])]
        pairs.append((e, z))
        size += (abs(e - beta @ z) - size) / min(len(pairs), 100)
        es, zs = np.array([e for e, _ in pairs]), np.array([z for _, z in pairs])
        centred = zs - zs.mean(axis=0)
        largest = (zs**2).max(axis=0)
        inverse = np.linalg.inv(centred.T @ centred + np.diag(np.where(largest > 0, kernel.RIDGE * largest, 1.0)))
        products = centred.T @ (es - es.mean())
        beta = inverse @ products
        variance = max(((es - es.mean()) ** 2).sum() - beta @ products, 0) / max(len(pairs) - count - 1, 1)
        squares = beta**2 / (variance * np.diag(inverse) + 1e-300)
        is_enough = len(pairs) >= kernel.FIRST_ROWS + count
        shrunk = beta * np.maximum(1 - kernel.CHANCE / np.maximum(squares, 1e-300), 0) if is_enough else 0 * beta
    return shrunk


def series(count):
    """A week's season, a trend and an effect of the first covariate."""
    t = np.arange(ROWS)
    x = np.stack([RNG.random(ROWS) < 0.2, *RNG.normal(size=(count - 1, ROWS))], axis=1).astype(float)
    y = 40 + 0.1 * t + 8 * np.sin(2 * np.pi * t / 7) + 15 * x[:, 0] + RNG.normal(size=ROWS)
    return y, x


def run(regression, pool, row, y, inputs, cuts):
    """Effects at rows and leads, in pieces."""
    parts = []
    for begin, end in pairwise(cuts):
        times = np.arange(begin, end, dtype=float)
        batch = Batch(np.full(end - begin, row), times, y[begin:end, None], np.ones(end - begin))
        effect = regression.respond(pool, batch, inputs[begin:end], inputs.horizon)
        regression.keep(pool, batch, effect, np.ones(end - begin, bool))
        parts.append((effect.seen, effect.ahead, effect.bounds))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def fresh(count):
    regression = Regression(1, count)
    pool = StatePool(dict(regression.fields), 1)
    return regression, pool, int(pool.rows([pool.acquire()])[0])


@pytest.mark.parametrize("count", [1, 4])
def test_coefficients_are_those_of_the_reference(count):
    y, x = series(count)
    y[[5, 40]] = np.nan
    regression, pool, row = fresh(count)
    run(regression, pool, row, y, CovariateInputs(np.arange(ROWS + 0.0), x, (), 1.0), [0, ROWS])
    column = pool.arrays[COLUMNS][row, 0]
    found = column[kernel.COLUMN + 3 * count : kernel.COLUMN + 4 * count]
    np.testing.assert_allclose(found, reference(y, x), rtol=1e-9, atol=1e-12)
    assert found[0] == pytest.approx(15, abs=2.5)


def test_effects_are_the_same_however_a_series_is_cut():
    """To the bit, with covariates that are missing now and then."""
    y, x = series(3)
    x[RNG.random(x.shape) < 0.1] = np.nan
    states, outputs = [], []
    for cuts in ([0, ROWS], [0, 1, 2, 30, 31, ROWS]):
        regression, pool, row = fresh(3)
        inputs = CovariateInputs(np.arange(ROWS + 0.0), x, (1.0, 7.0), 1.0)
        outputs.append(run(regression, pool, row, y, inputs, cuts))
        states.append([pool.arrays[name][row].tobytes() for name in (SHARED, COLUMNS)])
        assert np.isfinite(pool.arrays[COLUMNS][row]).all()
    assert states[0] == states[1]
    assert all(np.array_equal(one, other) for one, other in zip(*outputs, strict=True))


def test_the_effect_of_a_row_is_what_was_learned_before_it():
    y, x = series(1)
    regression, pool, row = fresh(1)
    (seen, ahead, bounds) = run(
        regression, pool, row, y, CovariateInputs(np.arange(ROWS + 0.0), x, (1.0,), 1.0), [0, ROWS]
    )
    on = x[1:, 0] == 1
    assert not seen[: kernel.FIRST_ROWS].any()
    assert (seen[-20:, 0][x[-20:, 0] == 0] == 0).all() or x[0, 0] == 1
    assert np.allclose(ahead[40:-1, 0, 0][on[40:]], 15, atol=3) or x[0, 0] == 1
    assert (bounds[:, 0, 0] == 0).all() and (bounds[:, 0, 1] == 0).all()


def test_inputs_are_the_nearest_rows():
    inputs = CovariateInputs(np.array([0.0, 60, 120, 190]), np.arange(4.0)[:, None], (60.0, 300.0), 60.0)
    assert inputs[0:2][:, :2].tolist() == [[0, 1], [1, 2]]
    assert np.isnan(inputs[0:2][:, 2]).all() and np.array_equal(inputs[1], inputs[1:2][0], equal_nan=True)
    assert inputs.at(np.array([180.0]))[0, 0] == 3
