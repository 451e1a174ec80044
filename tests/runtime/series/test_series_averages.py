"""Features and paths from averages over seasons, lines and means."""

import numpy as np
import pytest

from rfa.runtime.series.averages_numba import SeriesTokens, describe
from rfa.runtime.series.clock_numba import write_seasons
from rfa.runtime.series.config import BASE_PATHS, LAGS, LINES
from rfa.runtime.series.leads import clock_seasons
from tests.inlined import callable_from_python

seasons_of = callable_from_python(write_seasons)
LEADS = np.array([1, 5, 12, 24])
AVERAGE, PRODUCT, LINE = (slice(BASE_PATHS + a, BASE_PATHS + b) for a, b in ((0, 4), (4, 8), (8, 8 + len(LINES))))


def paths_of(values, end, seasons=(0, 0, 0, 0)):
    """What each path says at `LEADS` after `end` values, in their units."""
    tokens = SeriesTokens.allocate((1, len(LEADS)))
    describe(values, np.array([end]), LEADS[None], tokens, np.array(seasons))
    return tokens.centres[0] + tokens.scales[0] * np.sinh(tokens.paths[0].astype(float))


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
    off = [paths_of(values[:end], end, (0, 24, 0, 0))[:, [1, BASE_PATHS + 1]] for end in range(904, 1_000, 24)]
    alone, average = np.std(np.array(off) - true[:, None], axis=(0, 1))
    assert average < 0.8 * alone


def test_a_season_of_the_clock_is_recorded_before_it_was_seen_often():
    values = 10 + np.tile(np.random.default_rng(2).standard_normal(12), 3) + 0.01 * np.arange(36)
    paths = paths_of(values[:16], 16, clock_seasons(365.25 * 86_400 / 12))
    came = np.append(values[15 + LEADS[:3]], values[15 + 24 - 12] + 0.12)
    assert np.abs(paths[:, BASE_PATHS + 1] - came).max() < 0.05


def test_seasons_of_clocks():
    assert clock_seasons(3600.0).tolist() == [0, 24, 168, 0]
    assert clock_seasons(300.0).tolist() == [0, 0, 288, 2016]
    assert clock_seasons(86_400.0).tolist() == [7, 0, 365, 0]
    assert clock_seasons(365.25 * 86_400 / 4).tolist() == [4, 0, 0, 0]
    assert clock_seasons(1e12).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03])
def test_compiled_seasons_are_those_of_the_clock(share):
    rng = np.random.default_rng(3)
    cycles = rng.choice([3_600.0, 86_400.0, 604_800.0, 31_556_952.0], 2_000)
    steps = cycles / rng.integers(1, 2_100, 2_000) * (1 + share * rng.choice([-1, 1], 2_000))
    found = np.full((2_000, LAGS), -1)
    for step, row in zip(steps.tolist(), found, strict=True):
        seasons_of(step, row)
    assert np.array_equal(found, [clock_seasons(step) for step in steps.tolist()])
    assert (found > 0).any() and (found == 0).any()
