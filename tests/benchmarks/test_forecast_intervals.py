"""The bench's intervals against those that the service answers, and what they may know."""

import numpy as np
import pytest

from rfa.benchmarks.forecasting.ett import worst_share
from rfa.benchmarks.forecasting.intervals import adaptive_widths
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


def test_the_worst_block_is_the_furthest_from_the_level():
    inside = np.ones(1000, bool)
    inside[500:600] = False
    inside[:30] = False
    assert worst_share(inside, 100) == 0.0
    assert worst_share(inside[:500], 100) == pytest.approx(0.7)
