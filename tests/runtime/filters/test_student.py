"""Student's t by a stretched normal, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, t

from rfa.runtime.filters.student import LEAST
from rfa.runtime.filters.student import normal_square as inlined_normal_square
from rfa.runtime.filters.student import stretched as inlined_stretched
from rfa.runtime.filters.student import stretching as inlined_stretching
from rfa.runtime.filters.student import widening as inlined_widening
from tests.inlined import callable_from_python

normal_square = callable_from_python(inlined_normal_square)
stretched = callable_from_python(inlined_stretched)
stretching = callable_from_python(inlined_stretching)
widening = callable_from_python(inlined_widening)


@pytest.mark.parametrize(("freedom", "near"), [(2, 0.02), (3, 0.006), (10, 0.002), (100, 1e-4), (999, 1e-5)])
def test_intervals_are_those_of_t(freedom: int, near: float) -> None:
    for level in (0.2, 0.5, 0.8, 0.9):
        normal, exact = norm.ppf((1 + level) / 2), t.ppf((1 + level) / 2, freedom)
        assert normal * widening(normal**2, 1 / freedom) == pytest.approx(exact, rel=near)


@pytest.mark.parametrize("freedom", [1, 2, 4])
def test_of_very_few_what_is_rare_is_never_too_narrow(freedom: int) -> None:
    for level in (0.9, 0.99, 0.999, 1 - 1e-9):
        normal = norm.ppf((1 + level) / 2)
        assert normal * widening(normal**2, 1 / freedom) >= t.ppf((1 + level) / 2, freedom)


@pytest.mark.parametrize(
    "few", [pytest.param(1.0, marks=pytest.mark.slow), pytest.param(0.3, marks=pytest.mark.slow), 0.02]
)
def test_there_and_back_and_a_density_between(few: float) -> None:
    squares = np.linspace(0.01, 30, 50)
    there = [square * widening(square, few) ** 2 for square in squares]
    np.testing.assert_allclose([normal_square(one, few) for one in there], squares, rtol=1e-12)
    places = np.linspace(-400, 400, 400_001) ** 3  # its tails are long
    density = [np.exp(-normal_square(x * x, few) / 2) / np.sqrt(2 * np.pi * stretching(x * x, few)) for x in places]
    assert np.trapezoid(density, places) == pytest.approx(1, abs=1e-4)


def test_a_certain_scale_stretches_nothing() -> None:
    for few in (0.0, LEAST):
        assert (widening(9.0, few), stretched(9.0, few), normal_square(9.0, few), stretching(9.0, few)) == (1, 1, 9, 1)
    assert stretched(1.0, 0.5) == 1 < stretched(2.7, 0.5)
