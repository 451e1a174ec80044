"""One value far outside a stream's range is clipped, two are a new level; start and level cost no digits."""

import numpy as np
import pytest

from rfa.runtime.series import config as seen
from tests.runtime.series.test_series_tokens import described, seasonal

ZERO = seen.FEATURES - seen.ABOUT + 9
REST = np.arange(seen.FEATURES) != ZERO


def spoilt(at, value):
    x = seasonal()
    x[at] = value
    return x


@pytest.mark.parametrize("at", [0, 5, 20, 31, 40, 400])
def test_one_impossible_value_counts_for_so_much_and_no_more(at):
    """Whether it is 1e4, 1e6 or 1e12, what is seen of the stream from its 32nd value on is the same."""
    ends = [k for k in (48, 128, 512, 640) if k > at + 1]
    first = described(spoilt(at, 1e4), ends)
    for value in (1e6, 1e12):
        for one, other in zip(first, described(spoilt(at, value), ends), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("at", [0, 20, 400])
def test_the_scale_after_an_impossible_value_is_nearly_what_it_was(at):
    _, centres, scales, _ = described(spoilt(at, -1e9), [640])
    _, clean_centres, clean_scales, _ = described(seasonal(), [640])
    assert centres[0] == pytest.approx(clean_centres[0], rel=1e-6)
    # A move of at most the span and as much again, to it and back, among so many.
    x = seasonal()
    assert abs(scales[0] - clean_scales[0]) <= 2 * 2 * np.ptp(x) / 32


def test_a_second_value_there_is_a_new_level():
    x = seasonal()
    x[300:] += 1e5
    _, centres, _, path = described(x, [302, 310])
    assert centres[1] == pytest.approx(x[302:310].mean(), rel=1e-6)
    # The last value's path: all of it, from the second one on.
    _, scales = described(x, [302])[1:3]
    assert np.sinh(path[0, 0, seen.BASE_PATHS - 1]) * scales[0] + centres[0] == pytest.approx(x[301], rel=1e-6)


def test_two_impossible_values_apart_are_no_level():
    both = seasonal()
    both[[300, 302]] = 1e6
    higher = seasonal()
    higher[[300, 302]] = 1e9
    for one, other in zip(described(both, [400]), described(higher, [400]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_began_with_an_impossible_value_begins_anew_with_its_gaps():
    x = seasonal(gaps=0.2)
    x[0] = 1e7
    clean = seasonal(gaps=0.2)
    rows, _, scales, _ = described(x, [60, 640])
    others, _, clean_scales, _ = described(clean, [60, 640])
    window = slice(seen.WINDOW, 2 * seen.WINDOW)  # what was seen
    np.testing.assert_array_equal(rows[:, window], others[:, window])
    assert scales[1] < 1.5 * clean_scales[1]


@pytest.mark.parametrize("jump", [1e6, 2.0**30])
def test_a_level_that_is_far_from_where_a_stream_began_costs_no_digits(jump):
    """A patch after the last cell of the old level has left the window, tokens are those of a stream without the jump
    in all that looks no further back: float32 cells told from the first value would be 64 apart at 2^30."""
    x = np.round(seasonal() * 64) / 64
    jumped = x.copy()
    jumped[100:] += jump
    rows, centres, scales, _ = described(jumped, [640])
    window = np.sinh(rows[0, : seen.WINDOW].astype(float)) * scales[0] + centres[0] - jump
    # float32 rounds asinh((x - c) / s), at most 2, and the level's own float64.
    np.testing.assert_allclose(window, x[-seen.WINDOW :], atol=scales[0] * 4 * 2.0**-22 + jump * 2.0**-50)


def test_a_stream_that_stands_still_may_move():
    x = np.full(200, 5.0)
    x[100:] = 7.0
    _, centres, _, _ = described(x, [101, 120])
    assert centres[1] == 7.0
    assert centres[0] == pytest.approx((7 * 5.0 + 7.0) / 8)
