"""What the series network sees: against sums written out, and laws of units, levels and what came before."""

import math

import numpy as np
import pytest

from rfa.runtime.series import config as seen
from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.tokens_numba import FARTHEST_ZERO

END = 640
LEADS = np.array([1, 7, 24, 64, 200, 767])


def described(values, ends, leads=LEADS):
    """Tokens, centres, scales and paths of a series."""
    requested = np.tile(leads, (len(ends), 1))
    tokens = SeriesTokens.allocate(requested.shape)
    describe(values, np.asarray(ends), requested, tokens)
    return tokens


def seasonal(length=END, seed=0, gaps=0.0):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    x = 50 + 3 * np.sin(2 * np.pi * t / 24) + 0.01 * t + 0.4 * rng.standard_normal(length)
    x[rng.random(length) < gaps] = np.nan
    x[0] = 50.0
    return x


def oracle(x):
    """Scale, mean error and pairs of every lag after a gapless series, in float64; nothing is capped in it."""
    n = len(x)
    keep = 1 - 1 / seen.REACH
    mean, pairs = np.full(seen.REACH, np.nan), np.zeros(seen.REACH, int)
    for k in range(1, min(n, seen.REACH)):
        away = np.abs(x[k:] - x[:-k])
        weights = keep ** np.arange(len(away) - 1, -1, -1)
        mean[k], pairs[k] = (weights * away).sum() / weights.sum(), len(away)
    return np.nanmean(mean[1 : seen.WINDOW + 1]), mean, pairs


def test_scale_centre_and_lags_are_what_the_page_says():
    x = seasonal()
    scale, mean, pairs = oracle(x)
    _, centres, scales, path = described(x, [END])
    assert scales[0] == pytest.approx(scale, rel=1e-4)
    assert centres[0] == pytest.approx(x[-8:].mean(), rel=1e-6)
    score = mean * (1 + 1 / np.sqrt(np.maximum(pairs, 1)))
    k = np.arange(seen.REACH)
    for band, (low, high) in enumerate(zip(seen.BANDS[:-1], seen.BANDS[1:], strict=True)):
        may = (k >= low) & (k < min(high, END)) & (pairs >= 8) & (2 * pairs >= k)
        if not may.any():
            assert band == 3 and (path[0, :, [band, seen.LAGS + band]] == 0).all()
            continue
        p = int(np.nanargmin(np.where(may, score, np.nan)))
        if band == 1:
            assert p in (24, 48)
        ahead = np.array([x[END - 1 + h - math.ceil(h / p) * p] for h in LEADS])
        expected = np.arcsinh((ahead - centres[0]) / scales[0])
        np.testing.assert_allclose(path[0, :, band], expected, atol=2e-4)
        above = np.mean([x[END - 1 - i] - x[END - 1 - i - p] for i in range(8)])
        expected = np.arcsinh((ahead + above - centres[0]) / scales[0])
        np.testing.assert_allclose(path[0, :, seen.LAGS + band], expected, atol=2e-4)
    persistence = np.arcsinh((x[-1] - centres[0]) / scales[0])
    np.testing.assert_allclose(path[0, :, 2 * seen.LAGS], persistence, atol=2e-4)


def test_the_window_and_the_blocks_are_of_the_last_cells():
    x = seasonal()
    rows, centres, scales, _ = described(x, [END])
    np.testing.assert_allclose(rows[0, : seen.WINDOW], np.arcsinh((x[-32:] - centres[0]) / scales[0]), atol=2e-4)
    assert (rows[0, seen.WINDOW : 2 * seen.WINDOW] == 1).all()
    at = seen.BASE_FEATURES - seen.ABOUT - 64
    for block, first in ((8, at), (64, at + 32)):
        count = min(END // block, 32)
        means = x[END - count * block :].reshape(count, block).mean(axis=1)[::-1]
        np.testing.assert_allclose(
            rows[0, first : first + count], np.arcsinh((means - centres[0]) / scales[0]), atol=2e-4
        )
        assert (rows[0, first + count : first + 32] == 0).all()


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_tokens_see_nothing_that_comes_later(gaps):
    x = seasonal(gaps=gaps)
    ends = np.arange(16, END + 1, 16)
    whole = described(x, ends)
    cut = described(x[:320], ends[:20])
    for one, other in zip(whole, cut, strict=True):
        assert np.array_equal(one[:20], other)


@pytest.mark.parametrize("gaps", [0.0, 0.3])
@pytest.mark.parametrize(
    ("factor", "level"),
    [(4.0, 0.0), (0.125, 0.0), (1.0, 1024.0), (1.0, 2.0**30), (1e-12, 0.0), (1e12, 0.0)],
)
def test_units_and_levels_change_only_where_zero_is(gaps, factor, level):
    """By powers of two and levels that the values have digits for the numbers are the same but for rounding. Products
    with the level are the exception; far from zero they are the averages.
    """
    x = np.round(seasonal(gaps=gaps) * 64) / 64
    ends = np.arange(16, END + 1, 16)
    rows, centres, scales, path = described(x, ends)
    others = described(x * factor + level, ends)
    zero = seen.BASE_FEATURES - seen.ABOUT + 9
    keep = np.arange(seen.FEATURES) != zero
    np.testing.assert_allclose(others[0][:, keep], rows[:, keep], atol=2e-4)
    np.testing.assert_allclose(others[1], centres * factor + level, rtol=1e-6)
    np.testing.assert_allclose(others[2], scales * factor, rtol=1e-4)
    products = seen.BASE_PATHS + seen.LAGS + np.arange(seen.LAGS)
    fixed = np.setdiff1d(np.arange(seen.PATHS), products if level else [])
    np.testing.assert_allclose(others[3][..., fixed], path[..., fixed], atol=2e-4)
    if level:
        assert np.abs(others[0][5:, zero] - rows[5:, zero]).min() > 0.5
    if level > 1e6:
        assert (others[0][:, zero] == -FARTHEST_ZERO).all()
        np.testing.assert_allclose(others[3][..., products], path[..., products - seen.LAGS], atol=2e-4)


def test_an_empty_cell_is_filled_by_the_best_lag():
    x = seasonal()
    x[400:403] = np.nan
    rows, centres, scales, _ = described(x, [*range(16, 400, 16), 403])
    window = np.sinh(rows[-1, seen.WINDOW - 3 : seen.WINDOW].astype(float)) * scales[-1] + centres[-1]
    lags = [1, *np.arange(2, 400)]
    assert any(np.allclose(window[0], x[400 - k], atol=1e-3) for k in lags)
    assert (rows[-1, 2 * seen.WINDOW - 3 : 2 * seen.WINDOW] == 0).all()
    assert rows[-1, 2 * seen.WINDOW - 4] == 1
    # A season of 24: what fills the gap is near what was there.
    assert np.abs(window - seasonal()[400:403]).max() < 3


def test_a_stream_longer_than_its_reach_forgets():
    """What is beyond the ring is in sums alone: the last cells are told the same whatever came first."""
    x = seasonal(3 * seen.REACH)
    other = x.copy()
    other[:1000] = 50 + (other[:1000] - 50) * 3
    ends = [3 * seen.REACH]
    one, two = described(x, ends), described(other, ends)
    # The windows, in units of scales that differ, are the same cells.
    cells = [np.sinh(part[0][0, : seen.WINDOW].astype(float)) * part[2][0] + part[1][0] for part in (one, two)]
    np.testing.assert_allclose(cells[0], cells[1], atol=2e-3)
    assert two[2][0] > one[2][0]
