"""The bench's intervals against those that the service answers, and what they may know."""

import numpy as np
import pytest

from rfa.benchmarks.forecasting.ett import worst_share
from rfa.benchmarks.forecasting.intervals import adaptive_widths
from rfa.benchmarks.forecasting.plot import draw_week
from rfa.export.filter_calibration import LEVELS
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime

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


@pytest.mark.parametrize("lead", [1, 24])
def test_every_forecast_teaches_and_coverage_is_restored(lead):
    """The noise grows fourfold at the start: fixed intervals cover 1 - 2 Φ(-1.64 / 4) = 32 %."""
    y = 4 * np.random.default_rng(2).normal(size=(3000, 4))
    widths, start = adaptive_widths(y, *forecasts_of(y), 100)[lead], np.array([0.67, 1.28, 1.64, 1.96])
    covered = (np.abs(y) <= widths[..., LEVELS.index(0.9)])[100:].mean(axis=0)
    gamma = min(0.025, 1 / (4 * lead))
    # What adaptive.py promises, of v at rest, 0.23; and 4 sampling errors.
    assert (np.abs(covered - 0.9) <= 0.23 / (gamma * 2900) + lead / 2900 + 4 * 0.3 / np.sqrt(2900)).all()
    v, half = np.zeros((4, 4)), np.full((3000 + lead, 4, 4), np.nan)
    for row in range(100 - lead, 3000):
        if row >= 100:
            v += gamma * ((np.abs(y[row])[:, None] > half[row]) - (1 - np.array(LEVELS)))
        half[row + lead] = np.maximum.accumulate(start * ((1 + v) / (1 - v)) ** 3, axis=-1)
    # v is float32: off by at most 3000 roundings, times 6 / (1 - v²) in the logarithm of the width.
    assert np.allclose(widths[100:], half[100:3000], rtol=6 * 3000 * 2**-24 / (1 - np.abs(v).max() ** 2))


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
