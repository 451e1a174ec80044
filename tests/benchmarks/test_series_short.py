"""Forecasts from short histories: what is cut, and the error by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.series.board_data import STEPS, BoardSeries
from rfa.benchmarks.series.short import HORIZONS, cut, ets, mase, naive, served

LINE = BoardSeries("line", "test", np.arange(100.0), 12, begin=1e9)


def test_a_history_ends_before_what_is_forecast() -> None:
    parts = cut(LINE, 48)
    assert parts is not None
    history, came, begin = parts
    assert came.tolist() == LINE.values[-18:].tolist()
    assert history.tolist() == LINE.values[-66:-18].tolist()
    assert begin == 1e9 + 34 * STEPS[12]


@pytest.mark.parametrize(
    "values", [np.arange(60.0), np.ones(100), np.where(np.arange(100) == 70, np.nan, np.arange(100.0))]
)
def test_series_without_a_score_are_omitted(values: np.ndarray) -> None:
    assert cut(LINE._replace(values=values), 48) is None


def test_the_error_is_relative_to_the_seasonal_differences() -> None:
    history, came, begin = cut(LINE, 48) or (np.empty(0), np.empty(0), 0.0)
    # Each row is 12 above that a season ago; the naive forecast is 12, then 24 below.
    assert mase(LINE, history, came, naive(LINE, history, begin)) == pytest.approx((12 * 12 + 6 * 24) / 18 / 12)


def test_models_forecast_a_season_from_short_histories() -> None:
    values = 100 + 0.01 * np.arange(120) + 10 * np.tile(np.sin(2 * np.pi * np.arange(12) / 12), 10)
    one = LINE._replace(values=values)
    history, came, begin = cut(one, 96) or (np.empty(0), np.empty(0), 0.0)
    found = served(one, history, begin, model="series")
    assert found.shape == (HORIZONS[12],)
    assert np.abs(found - came).mean() < 2


def test_ets_forecasts_a_line() -> None:
    pytest.importorskip("statsforecast")
    history, came, begin = cut(LINE._replace(season=1), 24) or (np.empty(0), np.empty(0), 0.0)
    assert np.abs(ets(LINE._replace(season=1), history, begin) - came).max() < 0.1
