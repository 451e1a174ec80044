"""The numbers and paths of the second version of the series network's tokens."""

import numpy as np
import pytest

from rfa.runtime.series.config import FEATURES, LINES, PATHS
from rfa.runtime.series.extended_numba import SeriesTokens, describe
from rfa.runtime.series.leads import clock_seasons

LEADS = np.array([1, 5, 12, 24])
AVERAGE, PRODUCT, LINE = (slice(PATHS + a, PATHS + b) for a, b in ((0, 4), (4, 8), (8, 8 + len(LINES))))


def paths_of(values, end, seasons=(0, 0, 0, 0)):
    """What each path says at `LEADS` after `end` values, in their units."""
    tokens = SeriesTokens.allocate((1, len(LEADS)), version=2)
    describe(values, np.array([end]), LEADS[None], tokens, np.array(seasons))
    return tokens.centres[0] + tokens.scales[0] * np.sinh(tokens.paths[0].astype(float))


def test_the_first_numbers_and_paths_are_those_of_the_first_version():
    values = np.cumsum(np.random.default_rng(0).standard_normal(600))
    values[100:130] = np.nan
    ends, leads = np.arange(16, 601, 16), np.tile(LEADS, (37, 1))
    first, second = (SeriesTokens.allocate(leads.shape, version) for version in (1, 2))
    for tokens in (first, second):
        describe(values, ends, leads, tokens)
    assert np.array_equal(first[0], second[0][:, :FEATURES]) and np.array_equal(first[3], second[3][..., :PATHS])
    assert np.isfinite(second[0]).all() and np.isfinite(second[3]).all()


def test_lines_go_on_with_a_trend():
    values = 100 + 0.3 * np.arange(200.0)
    paths = paths_of(values, 200)
    assert np.allclose(paths[:, LINE], (values[-1] + 0.3 * LEADS)[:, None], rtol=1e-5)


@pytest.mark.parametrize("grows", [False, True])
def test_a_season_with_a_trend_goes_on_added_or_multiplied(grows):
    t = np.arange(144.0)
    season = np.sin(2 * np.pi * t / 12) + 0.5 * np.cos(4 * np.pi * t / 12)
    values = 100 * np.exp(0.004 * t) * (1 + 0.1 * season) if grows else 100 + 0.5 * t + 5 * season
    paths = paths_of(values[:120], 120)
    path = paths[:, PRODUCT if grows else AVERAGE][:, 1]
    assert np.abs(path - values[119 + LEADS]).max() < (0.5 if grows else 0.02)


def test_noise_is_averaged_over_seasons():
    rng = np.random.default_rng(1)
    t = np.arange(1_000)
    values = 10 * np.sin(2 * np.pi * t / 24) + rng.standard_normal(1_000)
    true = 10 * np.sin(2 * np.pi * (t[-1] + LEADS) / 24)
    off = [paths_of(values[:end], end, (0, 24, 0, 0))[:, [1, PATHS + 1]] for end in range(904, 1_000, 24)]
    alone, average = np.std(np.array(off) - true[:, None], axis=(0, 1))
    assert average < 0.8 * alone


def test_a_season_of_the_clock_is_recorded_before_it_was_seen_often():
    values = 10 + np.tile(np.random.default_rng(2).standard_normal(12), 3) + 0.01 * np.arange(36)
    paths = paths_of(values[:16], 16, clock_seasons(365.25 * 86_400 / 12))
    came = np.append(values[15 + LEADS[:3]], values[15 + 24 - 12] + 0.12)
    assert np.abs(paths[:, PATHS + 1] - came).max() < 0.05


def test_seasons_of_clocks():
    assert clock_seasons(3600.0).tolist() == [0, 24, 168, 0]
    assert clock_seasons(300.0).tolist() == [0, 0, 288, 2016]
    assert clock_seasons(86_400.0).tolist() == [7, 0, 365, 0]
    assert clock_seasons(365.25 * 86_400 / 4).tolist() == [4, 0, 0, 0]
    assert clock_seasons(1e12).tolist() == [0, 0, 0, 0]
