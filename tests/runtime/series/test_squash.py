"""asinh of the inputs of the series network, against numpy."""

from __future__ import annotations

import numpy as np

from rfa.runtime.compiling import kernel_jit
from rfa.runtime.series import squash_numba
from rfa.runtime.series.squash_numba import LARGE, squash


@kernel_jit(squash_numba)
def _squash_all(x, out):
    for i in range(x.size):
        out[i] = squash(x[i])


def test_it_is_asinh_of_numbers_of_any_size() -> None:
    sizes = np.concatenate(
        [np.logspace(-300, 300, 601), np.linspace(0, 30, 301), LARGE * (1 + np.arange(-3, 4) * 1e-9)]
    )
    x = np.concatenate([sizes, -sizes])
    found = np.empty(x.size, np.float32)
    _squash_all(x, found)
    exact = np.arcsinh(x)
    # The sum in the logarithm rounds three times, and the logarithm and its result once each.
    in_float64 = 5 * np.finfo(np.float64).eps * np.maximum(np.abs(exact), 1)
    assert np.all(np.abs(found - exact) <= in_float64 + np.finfo(np.float32).eps / 2 * np.abs(exact))
    np.testing.assert_array_equal(found[: sizes.size], -found[sizes.size :])


def test_what_is_no_number_stays() -> None:
    x = np.array([np.inf, -np.inf, np.nan])
    found = np.empty(3, np.float32)
    _squash_all(x, found)
    np.testing.assert_array_equal(found, x)
