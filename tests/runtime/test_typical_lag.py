"""The typical lag of streams with gaps, in both clocks: that of the series network, and that of all other filters."""

import numpy as np
import pytest

from rfa.runtime.series.clock_numba import CLOCK, LAG, advance_clock
from rfa.runtime.typical_lag import typical_step
from tests.inlined import callable_from_python

advance, step_after = callable_from_python(advance_clock), callable_from_python(typical_step)
DAY, HOUR = 86_400.0, 3_600.0
MONDAY = 1_772_409_600.0


def typical_lags(times):
    """Return the typical lag of both clocks after the last time, and the cells of each row."""
    clock, step, before, cells = np.zeros(CLOCK), 0.0, None, []
    for count, now in enumerate(times):
        cells.append(advance(clock, now, np.empty((0, 2))))
        step = step_after(step, now - before if count else 0.0, count)
        before = now
    return clock[LAG], step, cells


@pytest.mark.parametrize("first", range(5))
def test_a_step_of_working_days_is_a_day(first):
    """Whichever day the series begins on, also on a Friday, whose first lag is the weekend."""
    days = np.arange(first, 400)
    times = MONDAY + DAY * days[days % 7 < 5]
    lag, step, cells = typical_lags(times)
    assert lag == step == DAY
    assert cells[10:] == (np.diff(times, prepend=0.0) / DAY)[10:].tolist()


@pytest.mark.parametrize(("unit", "hours"), [(HOUR, (9, 17)), (300.0, (9, 16)), (900.0, (6, 22))])
def test_a_step_of_opening_hours_is_one_row(unit, hours):
    moments = MONDAY + unit * np.arange(int(30 * DAY / unit))
    of_day = moments % DAY / HOUR
    times = moments[(of_day >= hours[0]) & (of_day < hours[1])]
    lag, step, _ = typical_lags(times)
    assert lag == step == unit


def test_a_clock_change_in_a_gap_does_not_matter():
    lags = np.tile([DAY, DAY, DAY, DAY, 3 * DAY], 40)
    lags[104] += HOUR
    lag, step, _ = typical_lags(MONDAY + np.cumsum(lags))
    assert lag == pytest.approx(DAY, rel=1e-3) and step == pytest.approx(DAY, rel=1e-3)


def test_the_step_of_irregular_rows_stays_near_their_mean():
    """Few of the gaps of a Poisson process are multiples of the mean, so they do not shorten it."""
    times = np.cumsum(np.random.default_rng(0).exponential(60.0, 5_000))
    lag, step, _ = typical_lags(times)
    assert 45 < lag < 75 and 45 < step < 75


def test_one_short_lag_does_not_begin_the_mean_again():
    lags = np.full(300, 60.0) + np.random.default_rng(1).uniform(-5, 5, 300)
    lags[250] = 1.0
    lag, _, _ = typical_lags(np.cumsum(lags))
    assert lag == pytest.approx(np.mean(lags), rel=0.01)
