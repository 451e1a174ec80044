"""The usual model on streams that a tester broke it with: by `rfa.filter` and `rfa.forecast`."""

from typing import Any

import numpy as np
import pytest

import rfa

ROWS, AHEAD = 480, 24


def season(noise=0.5, rows=ROWS + AHEAD, seed=0):
    truth = 10 * np.sin(2 * np.pi * np.arange(rows) / 12)
    return truth, truth + noise * np.random.default_rng(seed).standard_normal(rows)


def missed(values):
    """Mean error of the rows to come, in units of what standing still has."""
    truth, _ = season()
    reported = rfa.forecast(values, AHEAD)["y_mean"]
    return np.abs(reported - truth[ROWS:]).mean() / np.abs(values[ROWS - 2] - truth[ROWS:]).mean()


def test_a_season_is_forecast():
    assert missed(season()[1][:ROWS]) < 0.1


# Every place, and both values.
IMPOSSIBLE = [(0, 1e12), (20, 1e3), (200, 1e12), (ROWS - 6, 1e3)]
OTHERS = [pytest.param(at, 1e15 / value, marks=pytest.mark.slow) for at, value in IMPOSSIBLE]


@pytest.mark.parametrize(("at", "value"), [*IMPOSSIBLE, *OTHERS])
def test_one_impossible_value_does_not_carry_a_forecast_away(at, value):
    values = season()[1][:ROWS]
    values[at] = value
    assert missed(values) < 0.2


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_estimates_are_better_than_measurements_and_know_it(noise):
    truth, values = season(noise, 1_500)
    found, late = rfa.filter(values, levels=(0.9,)), slice(500, None)
    off = (found["y_mean"] - truth)[late]
    assert np.sqrt(np.mean(off**2)) < noise
    inside = (found["y_low90"] <= truth) & (truth <= found["y_high90"])
    # A thousand rows whose errors hang together over a season.
    assert inside[late].mean() > 0.9 - 5 * np.sqrt(0.09 * 12 / 1_000)


def test_what_looks_back_stays_with_the_values_from_the_first_row_on():
    """Of rows before anything was seen it knows no more than the first value."""
    values = 100 + np.random.default_rng(1).standard_normal(60)
    values[:3] = np.nan
    found: Any = rfa.filter(values, smooth=True)
    assert np.abs(found["y_smooth_mean"] - 100).max() < 10
    assert (found["y_smooth_std"] < 100)[3:].all()
