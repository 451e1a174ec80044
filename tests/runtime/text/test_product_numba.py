"""Products with a matrix laid out once, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.runtime.text.product_numba import PANEL, TALL, WIDE, Matrix

EPS = float(np.finfo(np.float32).eps)
# Every kind of tile, and what is left over of rows and columns.
ROWS = (1, 2, 3, 4, 5, TALL - 1, TALL, TALL + 7, 3 * TALL + 6)


def problem(rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x, weight = draw.standard_normal((rows, depth)), draw.standard_normal((depth, columns))
    return x.astype(np.float32), weight.astype(np.float32)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("depth", "columns"), [(1, 1), (24, PANEL - 1), (33, WIDE * PANEL), (256, (WIDE + 2) * PANEL + 5)]
)
def test_products_are_exact_to_the_rounding_of_a_chain(rows: int, depth: int, columns: int) -> None:
    x, weight = problem(rows, depth, columns)
    found = Matrix.of(weight).times(x)
    assert found.shape == (rows, columns) and found.flags.c_contiguous and found.dtype == np.float32
    exact = x.astype(np.float64) @ weight.astype(np.float64)
    # Each of `depth` fused steps rounds once, half a unit of a partial sum, which is at most the sum of magnitudes.
    bound = depth * EPS / 2 * (np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64))
    assert np.all(np.abs(found - exact) <= bound)


def test_a_row_has_the_same_bits_in_any_company() -> None:
    x, weight = problem(max(ROWS), 100, (WIDE + 1) * PANEL - 6)
    matrix = Matrix.of(weight)
    alone = [matrix.times(x[row : row + 1])[0].tobytes() for row in range(len(x))]
    for rows in ROWS:
        for start in (0, 3):
            together = matrix.times(x[start : start + rows])
            assert [row.tobytes() for row in together] == alone[start : start + len(together)]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row(value: float) -> None:
    x, weight = problem(TALL + 3, 20, 40)
    matrix = Matrix.of(weight)
    expected = matrix.times(x)
    x[5, 7] = value
    found = matrix.times(x)
    assert not np.isfinite(found[5]).any()
    np.testing.assert_array_equal(np.delete(found, 5, 0), np.delete(expected, 5, 0))


@pytest.mark.parametrize("shape", [(2, 19), (2, 21), (20,)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"x must be \[n, 20\]"):
        Matrix.of(problem(1, 20, 40)[1]).times(np.zeros(shape, np.float32))
