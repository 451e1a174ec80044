"""The bench's intervals against those that the service answers, and what they may know."""

import numpy as np
import pytest

from bench.forecast_ett import worst_share
from bench.forecast_intervals import adaptive_widths, all_scored_widths
from bench.forecast_plot import draw_week
from export.bundle import open_bundle
from export.filter_calibration import LEVELS
from service.engine.adaptive import GAMMA
from service.engine.filter_runtime import FilterRuntime

STEP, LEADS = 0.1, (1, 5)


def test_intervals_are_those_that_the_service_answers(linear_bundle):
    bundle = open_bundle(linear_bundle)
    runtime, calibration = FilterRuntime(bundle), bundle.calibration["recurrent"]["forecast"]
    rng = np.random.default_rng(0)
    y = rng.normal(size=(300, 2)) * np.where(np.arange(300) < 150, 1.0, 4.0)[:, None]
    answers = runtime.filter(
        (STEP * np.arange(300)).tolist(), y.tolist(), levels=LEVELS, horizon=[STEP * lead for lead in LEADS]
    )
    mean, deviation = ({lead: np.full((300, 2), np.nan) for lead in LEADS} for _ in range(2))
    answered = {lead: np.full((300, 2, len(LEVELS)), np.nan) for lead in LEADS}
    multipliers = {}
    for k, lead in enumerate(LEADS):
        place = [round(horizon / STEP) for horizon in calibration["horizons"]].index(lead)
        multipliers[lead] = np.tile(calibration["multipliers"][place], (2, 1))
        for row, step in enumerate(answers.steps[:-lead], start=lead):
            point = step.forecast[k]
            mean[lead][row] = point.mean
            deviation[lead][row] = np.array(point.std) / np.sqrt(calibration["variance_scale"][place])
            bands = np.array([point.interval[f"{level:g}"] for level in LEVELS])
            answered[lead][row] = (bands[:, :, 1] - bands[:, :, 0]).T / 2
    found = adaptive_widths(y, mean, deviation, multipliers, 1)
    for lead in LEADS:
        # float32 in the service's step and forecast; v is the same unless a miss is within rounding of a hit.
        assert np.allclose(found[lead][lead:], answered[lead][lead:], rtol=1e-4)
        factor = answered[lead][-1] / (deviation[lead][-1][:, None] * multipliers[lead])
        assert (factor > 1.2).all(), "they did not adapt, so nothing was compared"


def forecasts_of(y, leads=(1, 24)):
    """Zero, with the right deviation for the first half."""
    mean = {lead: np.where(np.arange(len(y))[:, None] < lead, np.nan, 0.0 * y) for lead in leads}
    return (
        mean,
        {lead: np.ones_like(y) for lead in leads},
        {lead: np.tile([0.67, 1.28, 1.64, 1.96], (y.shape[1], 1)) for lead in leads},
    )


@pytest.mark.parametrize("lead", [1, 24])
def test_an_interval_knows_nothing_that_came_after_its_origin(lead):
    y = np.random.default_rng(1).normal(size=(400, 3))
    changed = y.copy()
    changed[200:] *= 5
    before, after = (adaptive_widths(values, *forecasts_of(values), 100)[lead] for values in (y, changed))
    assert np.isnan(before[:100]).all()
    # Made at row 199 at the latest.
    assert np.array_equal(before[100 : 200 + lead], after[100 : 200 + lead])
    assert (after[399] > 1.5 * before[399]).all()


def test_coverage_is_restored_under_drift():
    """The noise grows fourfold at the start: fixed intervals cover 1 - 2 Φ(-1.64 / 4) = 32 %."""
    y = 4 * np.random.default_rng(2).normal(size=(3000, 4))
    widths = adaptive_widths(y, *forecasts_of(y), 100)
    for lead, scored in ((1, 2900), (24, 2 * 2900 / 24)):
        covered = (np.abs(y) <= widths[lead][..., LEVELS.index(0.9)])[100:].mean(axis=0)
        # What adaptive.py promises: (1 + outstanding γ) / (γ T), here of v at rest, 0.23; and 4 sampling errors.
        assert (np.abs(covered - 0.9) <= 0.23 / (0.025 * scored) + 4 * 0.3 / np.sqrt(scored)).all(), lead


@pytest.mark.parametrize("lead", [1, 24])
def test_every_forecast_may_teach(lead):
    y = 4 * np.random.default_rng(3).normal(size=(3000, 2))
    mean, deviation, multipliers = (parts[lead] for parts in forecasts_of(y))
    widths = all_scored_widths(y, mean, deviation, multipliers, 100, lead)
    covered = (np.abs(y) <= widths[..., LEVELS.index(0.9)])[100:].mean(axis=0)
    rate = min(GAMMA, 1 / (4 * lead))
    # v telescopes over what was scored; at the end it is about where it rests, 0.23.
    assert (np.abs(covered - 0.9) <= 0.23 / (rate * 2900) + 4 * 0.3 / np.sqrt(2900)).all()
    changed = y.copy()
    changed[200:] *= 5
    after = all_scored_widths(changed, mean, deviation, multipliers, 100, lead)
    assert np.isnan(after[:100]).all() and np.array_equal(widths[100 : 200 + lead], after[100 : 200 + lead])
    assert (after[400] > widths[400]).all()
    if lead == 1:
        # At one step the service scores every forecast: the same numbers, to the rounding of its float32.
        served = adaptive_widths(y, {1: mean}, {1: deviation}, {1: multipliers}, 100)[1]
        assert np.allclose(widths[100:], served[100:], rtol=1e-3)


def test_the_worst_block_is_the_furthest_from_the_level():
    inside = np.ones(1000, bool)
    inside[500:600] = False
    inside[:30] = False
    assert worst_share(inside, 100) == 0.0
    assert worst_share(inside[:500], 100) == pytest.approx(0.7)


def test_a_week_is_drawn(tmp_path):
    from matplotlib import image

    hours = np.arange(168)
    y = np.sin(2 * np.pi * hours / 24)
    y[100] = 3.0
    part = {
        "mean": (0.9 * y).tolist(),
        "low": (y - 0.5).clip(max=0.6).tolist(),
        "high": (y + 0.5).clip(max=1.6).tolist(),
    }
    week = {
        "start": "2018-01-01 00:00",
        "level": 0.9,
        "columns": {"load": {"y": y.tolist(), "leads": {"1": part, "24": part}}},
    }
    draw_week(week, tmp_path / "figures" / "week.png")
    pixels = image.imread(tmp_path / "figures" / "week.png")[..., :3]
    assert (pixels[..., 2] > pixels[..., 0] + 0.1).mean() > 0.01, "no interval is drawn"
    assert (pixels[..., 0] > pixels[..., 2] + 0.5).sum() > 20, "the miss is not marked"
