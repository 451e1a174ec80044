"""The board of public series: its experts forecast from the past alone, and the mixture keeps up with the best."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.series.aggregation import aggregate
from rfa.benchmarks.series.board import Forecasts, scores, simple
from rfa.benchmarks.series.board_data import BoardSeries
from rfa.benchmarks.series.smoothing_numba import smooth

LEADS = np.array([1, 2, 6])
rng = np.random.default_rng(0)


def seasonal(rows: int = 200, season: int = 12) -> np.ndarray:
    """A line and a season without noise."""
    t = np.arange(rows)
    return 50 + 0.3 * t + 10 * np.sin(2 * np.pi * t / season)


def test_smoothing_reaches_a_line_with_a_season() -> None:
    values = seasonal()
    forecasts = smooth(values, 12, LEADS)
    for j, lead in enumerate(LEADS):
        errors = np.abs(forecasts[100:-lead, j] - values[100 + lead :])
        assert errors.mean() < 0.05 * np.abs(values[100 + lead :] - values[100:-lead]).mean()


@pytest.mark.parametrize("season", [1, 12])
def test_forecasts_do_not_see_what_comes(season: int) -> None:
    values = seasonal() + rng.normal(size=200)
    other = values.copy()
    other[120:] = rng.normal(size=80) * 1_000
    other[110] = values[110] = np.nan
    assert smooth(values, season, LEADS)[:120].tolist() == smooth(other, season, LEADS)[:120].tolist()
    one, two = (BoardSeries("x", "test", some, season) for some in (values, other))
    for name, forecasts in simple(one).items():
        assert forecasts.median[:120].tolist() == simple(two)[name].median[:120].tolist()


def test_mixture_follows_the_best_expert_and_the_past_alone() -> None:
    values = rng.normal(size=600)
    forecasts = np.stack([np.full((600, 3), level) for level in (0.0, 3.0, -5.0)])
    prior = np.array([0.1, 0.6, 0.3])
    mixture, weights = aggregate(forecasts, values, LEADS, prior)
    assert (np.argsort(weights[0], axis=0) == np.argsort(prior)[:, None]).all()
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert np.abs(mixture[300:]).max() < 0.5  # the others are off by 3 and 5
    other = values.copy()
    other[300:] += 3
    moved, _ = aggregate(forecasts, other, LEADS, prior)
    assert moved[:300].tolist() == mixture[:300].tolist()
    assert np.abs(moved[-1] - 3).max() < np.abs(mixture[-1] - 3).min()


def test_scores_by_hand() -> None:
    one = BoardSeries("x", "test", np.arange(10.0) + 1, 1)
    median = np.repeat(one.values[:, None], 6, axis=1)
    found = scores(one, Forecasts(median, median, median + 3))
    # Rows 6 to 9 are scored: leads 1, 2 and 3 have 3, 2 and 1 of them, and the last value is as far off as the lead.
    assert found["mae"] == pytest.approx((3 * 1 + 2 * 2 + 1 * 3) / 6)
    assert found["inside"] == 1.0
