"""The profile of the local day, week and year: against its reference, and through the model of any series."""

import numpy as np
import pytest

from rfa.data.utc_offsets import UTC, UtcOffsets
from rfa.runtime.filters.sequence import FilteredSequence
from rfa.runtime.series import mixture_layout as at
from rfa.runtime.series.clock_numba import local_span
from rfa.runtime.series.filter import SeriesRuntime
from rfa.runtime.series.leads import DAY, HOUR, WEEK
from rfa.runtime.uncertainty.interface import FilterOptions
from tests.inlined import callable_from_python
from tests.runtime.series.profile_reference import Profile
from tests.runtime.series.series_streams import decoder, network
from tests.runtime.series.test_mixture import Driven, expert_forecasts

# A Monday, and the clock change of spring in Berlin.
MONDAY, CHANGE = 1_772_409_600.0, 1_774_746_000.0
BERLIN = UtcOffsets.of_zone("Europe/Berlin")
span_of = callable_from_python(local_span)


@pytest.fixture(scope="module")
def mixture():
    return SeriesRuntime("series", "0" * 64, decoder(network())).mixed()


def metric(moments, rng):
    """A level by time of day, lower at weekends, with a job at three from the tenth day on."""
    tod, is_weekend = moments % DAY / DAY, (moments // DAY + 3) % 7 >= 5
    level = (50 + 20 * np.exp(-(((tod - 0.5) / 0.15) ** 2))) * np.where(is_weekend, 0.6, 1.0)
    has_job = (np.abs(tod - 3 / 24) < 0.01) & (moments > moments[0] + 10 * DAY)
    return level + 60 * has_job + rng.normal(size=len(moments))


@pytest.mark.parametrize(("unit", "days"), [(1_800.0, 24), (300.0, 16), (4 * HOUR, 40), (DAY, 900)])
def test_the_profile_is_that_of_the_reference(unit, days):
    moments = MONDAY + unit * np.arange(int(days * DAY / unit))
    values, driven, profile = metric(moments, np.random.default_rng(0)), Driven(), Profile(unit)
    if unit == DAY:
        values += 30 * np.sin(2 * np.pi * moments / (365.25 * DAY))
    for t, (moment, value) in enumerate(zip(moments.tolist(), values.tolist(), strict=True)):
        driven.add(value, np.zeros(2), (moment, moment + unit, moment + 4 * unit), unit)
        profile.add(moment, value, is_odd=driven.numbers[at.LATEST] != value)
        if t > 2 * at.SLOTS and t % 17 == 0:
            out = np.empty(at.FORECASTS)
            ahead = moment + 7 * DAY
            expert_forecasts(driven.numbers, driven.memory, driven.work.weights[0], 1.0, ahead, 0.0, out)
            expected = profile.forecast(ahead)
            assert np.isnan(out[at.PROFILED]) == np.isnan(expected)
            np.testing.assert_allclose(out[at.PROFILED], expected, rtol=0, atol=0.01)


def test_rows_that_are_counted_have_no_profile():
    driven = Driven()
    for t in range(100):
        driven.add(float(t % 24), np.zeros(2), (t * HOUR, (t + 1) * HOUR, (t + 4) * HOUR), HOUR)
    assert driven.numbers[at.PROFILE_CYCLE] == 0


def run(model, moments, rows, horizon, zone=UTC, state=None):
    options = FilterOptions(moments, rows, np.ones(len(moments)), (0.9,), horizon, state=state, utc_offsets=zone)
    return FilteredSequence.collect(model.work(options))


def forecasts_of(model, moments, values, lead, zone=UTC):
    steps = run(model, moments, values[:, None], (lead,), zone).steps
    return np.array([step.forecast[0].median[0] for step in steps])


def test_a_week_of_minutes_is_forecast_better_with_the_profile(mixture):
    """Five days ahead, where weekends follow weekdays: by moments, and by rows that are counted."""
    unit, lead, first = 300.0, 5 * 288, 21 * 288
    moments = MONDAY + unit * np.arange(35 * 288)
    values = metric(moments, np.random.default_rng(1))
    errors = [
        np.abs(forecasts_of(mixture, times, values, lead * unit)[first:-lead] - values[first + lead :]).mean()
        for times in (moments, moments - MONDAY)
    ]
    assert errors[0] < 0.9 * errors[1]


def test_what_recurs_is_in_the_profile_after_three_times():
    """A job each night, of which smoothing and the seasonal naive of a day know nothing: rows are minutes apart."""
    unit = 300.0
    moments = MONDAY + unit * np.arange(14 * 288)
    values = 20 + np.random.default_rng(2).normal(size=len(moments))
    is_job = (moments % DAY < 600) & (moments > MONDAY + 6 * DAY)
    values[is_job] += 100
    driven, learned = Driven(), np.flatnonzero(is_job)[5:]  # the first night began late
    for t, (moment, value) in enumerate(zip(moments.tolist(), values.tolist(), strict=True)):
        if t in learned:
            assert abs(driven.work.forecasts[0, 0, at.PROFILED] - value) < 20
        driven.add(value, np.zeros(2), (moment, moment + unit, moment + 4 * unit), unit)


@pytest.mark.parametrize("unit", [300.0, 900.0, HOUR])
def test_a_closed_sunday_is_in_the_profile_after_four_weeks(unit):
    """A shop is closed at night, so all first values are zero, and on Sundays. Monday is like the other days."""
    moments = MONDAY + unit * np.arange(int(28 * DAY / unit))
    hour, is_sunday = moments % DAY / HOUR, (moments // DAY + 3) % 7 == 6
    usual = np.where((hour >= 9) & (hour < 20), 60 * np.exp(-(((hour - 15) / 5) ** 2)), 0.0)
    driven, rng = Driven(), np.random.default_rng(7)
    for moment, value in zip(moments.tolist(), rng.poisson(usual * ~is_sunday).tolist(), strict=True):
        driven.add(float(value), np.zeros(2), (moment, moment + unit, moment + 4 * unit), unit)
    out, errors = np.empty(at.FORECASTS), {6: [], 0: []}
    for day, found in errors.items():
        for moment, expected in zip(moments[: int(DAY / unit)] + (28 + day) * DAY, usual, strict=False):
            expert_forecasts(driven.numbers, driven.memory, driven.work.weights[0], 1.0, moment, 0.0, out)
            found.append(abs(out[at.PROFILED] - (0.0 if day == 6 else expected)))
    # Without the weekday, the errors of a Sunday would be the usual values. Those of a Monday are due to chance.
    assert np.mean(errors[6]) < 0.2 * usual.mean()
    assert np.mean(errors[0]) < 0.2 * usual.mean()


def test_a_shift_by_whole_weeks_changes_nothing(mixture):
    moments = MONDAY + HOUR * np.arange(600)
    values = metric(moments, np.random.default_rng(3))
    one, other = (forecasts_of(mixture, moments + weeks * WEEK, values, DAY) for weeks in (0, 8))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("cut", [1, 333, 599])
def test_cut_restored_and_in_company_a_stream_is_the_same(mixture, cut):
    """Bit for bit, through a clock change."""
    moments = CHANGE - 400 * HOUR + HOUR * np.arange(600)
    values, rng = metric(moments + 3600, np.random.default_rng(4)), np.random.default_rng(5)
    horizon = (HOUR, DAY)
    whole = run(mixture, moments, values[:, None], horizon, BERLIN)
    first = run(mixture, moments[:cut], values[:cut, None], horizon, BERLIN)
    state = mixture.unpack(mixture.pack(first.state))
    rest = run(mixture, moments[cut:], values[cut:, None], horizon, BERLIN, state)
    both = run(mixture.sized(2), moments, np.stack([rng.normal(size=600), values], axis=1), horizon, BERLIN)
    for one, (again, second) in zip(
        whole.steps, zip([*first.steps, *rest.steps], both.steps, strict=True), strict=True
    ):
        assert [point.median for point in one.forecast] == [point.median for point in again.forecast]
        assert [point.median[0] for point in one.forecast] == [point.median[1] for point in second.forecast]
        assert one.anomaly == again.anomaly


@pytest.mark.parametrize(("unit", "cells"), [(HOUR, 1), (1_800.0, 2), (60.0, 60), (15 * 60.0, 4)])
def test_a_local_clock_skips_the_hour_of_spring_and_repeats_that_of_autumn_a_day_later(unit, cells):
    autumn = 1_792_890_000.0
    offsets = BERLIN.array()
    assert span_of(offsets, CHANGE - unit, unit, unit) == (1 + cells) * unit
    back = span_of(offsets, autumn - unit, unit, unit)
    cycle = WEEK if unit >= 1_800 else DAY
    assert back == cycle + unit - HOUR
    # Two hours ahead of it, one of them comes twice.
    assert span_of(offsets, autumn - unit, 2 * HOUR, unit) == HOUR
    assert span_of(offsets, autumn, unit, unit) == span_of(UTC.array(), autumn, unit, unit) == unit


@pytest.mark.parametrize("unit", [HOUR, 1_800.0])
def test_seasons_follow_the_wall_clock(mixture, unit):
    """In the day after a change of the clock forecasts err as much as before, without the zone more."""
    rows = int(DAY / unit)
    for change in (CHANGE, 1_792_890_000.0):
        moments = change - 28 * DAY + unit * np.arange(35 * rows)
        offsets = np.array([BERLIN.seconds[np.searchsorted(BERLIN.begins, t, "right") - 1] for t in moments])
        tod = (moments + offsets) % DAY / DAY
        values = 50 + 40 * (tod > 0.3) - 30 * (tod > 0.7) + np.random.default_rng(6).normal(size=len(moments))
        steps = [forecasts_of(mixture, moments, values, unit, zone) for zone in (BERLIN, UTC)]
        after = slice(28 * rows + rows // 8, 29 * rows)
        before = slice(21 * rows, 28 * rows)
        local, plain = (np.abs(forecasts[:-1] - values[1:]) for forecasts in steps)
        assert local[after].mean() < 1.5 * local[before].mean() < plain[after].mean()
