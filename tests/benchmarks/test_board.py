"""The board of public series: simple forecasts use the past alone, and scores are right."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.series.board import Forecasts, scores, simple
from rfa.benchmarks.series.board_data import BoardSeries

rng = np.random.default_rng(0)


def seasonal(rows: int = 200, season: int = 12) -> np.ndarray:
    """A line and a season without noise."""
    t = np.arange(rows)
    return 50 + 0.3 * t + 10 * np.sin(2 * np.pi * t / season)


@pytest.mark.parametrize("season", [1, 12])
def test_forecasts_do_not_see_what_comes(season: int) -> None:
    values = seasonal() + rng.normal(size=200)
    other = values.copy()
    other[120:] = rng.normal(size=80) * 1_000
    other[110] = values[110] = np.nan
    one, two = (BoardSeries("x", "test", some, season) for some in (values, other))
    for name, forecasts in simple(one).items():
        assert forecasts.median[:120].tolist() == simple(two)[name].median[:120].tolist()


def test_scores_by_hand() -> None:
    one = BoardSeries("x", "test", np.arange(10.0) + 1, 1)
    median = np.repeat(one.values[:, None], 6, axis=1)
    found = scores(one, Forecasts(median, median, median + 3))
    # Rows 6 to 9 are scored: leads 1, 2 and 3 have 3, 2 and 1 of them, and the last value is as far off as the lead.
    assert found["mae"] == pytest.approx((3 * 1 + 2 * 2 + 1 * 3) / 6)
    assert found["inside"] == 1.0
