"""Products with a matrix laid out once, against float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rfa.runtime.text import product_numba
from rfa.runtime.text.product_numba import PANEL, TALL, WIDE, Format, Matrix, multiply, pack, product_of

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


@pytest.mark.parametrize("rows", [1, TALL, TALL + 1])
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (33, WIDE * PANEL), (255, (WIDE + 1) * PANEL + 3)])
def test_a_matrix_in_float16_gives_the_bits_of_float32(rows: int, depth: int, columns: int) -> None:
    x, weight = problem(rows, depth, columns)
    weight = weight.astype(np.float16).astype(np.float32)
    half = Matrix.of(weight)
    single = Matrix.of(np.pad(weight, ((0, 0), (0, 1)), constant_values=0.1))  # float16 cannot represent 0.1
    assert half.panels.shape[2] == PANEL and single.panels.shape[2] == 2 * PANEL
    assert half.times(x).tobytes() == single.times(x)[:, :columns].tobytes()


@pytest.mark.parametrize("load", [product_numba._load_half, product_numba._load_half_portably])
def test_every_finite_float16_is_converted_exactly(load: Callable[..., object]) -> None:
    """With and without an instruction of the processor."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    weight = every[np.isfinite(every)].astype(np.float32)[None]
    found = np.empty(weight.shape, np.float32)
    product_of(Format(1, load))(np.ones((1, 1), np.float32), pack(weight), found)
    np.testing.assert_array_equal(found, weight)


@pytest.mark.parametrize("value", [0.1, 65520.0, 2.0**-25, np.nan, np.inf])
def test_values_that_float16_cannot_represent_are_stored_in_float32(value: float) -> None:
    weight = problem(1, 20, 40)[1].astype(np.float16).astype(np.float32)
    assert pack(weight).shape == (3, 20, PANEL)
    weight[7, 30] = value
    panels = pack(weight)
    assert panels.shape == (3, 20, 2 * PANEL)
    np.testing.assert_array_equal(panels.view(np.float32)[1, :, 14], weight[:, 30])


def test_a_stack_of_matrices_has_one_format() -> None:
    weights = np.stack([problem(1, 20, 40)[1], np.ones((20, 40), np.float32)])
    x, found = np.ones((2, 20), np.float32), np.empty((2, 3 * PANEL), np.float32)
    for weight, panels in zip(weights, pack(weights), strict=True):
        multiply(x, panels, found)
        assert found[:, :40].tobytes() == Matrix.of(weight).times(x).tobytes()
