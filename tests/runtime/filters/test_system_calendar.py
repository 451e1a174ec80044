"""Systems with a calendar: the filter of what is left, with the pattern put back on."""

from typing import Any

import numpy as np
import pytest

from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.calendar import Calendar, Days
from rfa.runtime.filters.compiled_system import SystemRuntime
from rfa.runtime.filters.system import InvalidSystem, System
from rfa.runtime.uncertainty.alarms import alarm

PLAIN = {"preset": "level", "process_noise": 1e-4, "measurement_noise": 0.25}
RNG = np.random.default_rng(0)
CALENDAR = Calendar(Days("Europe/Berlin", 24, ("2024-03-29",)), RNG.normal(size=(1, 8, 24)))
WITH = {**PLAIN, "calendar": CALENDAR.to_document()}
# Over the change to summer time.
TIMES = 1711600000.0 + np.cumsum(RNG.uniform(600.0, 5400.0, 120))
LEADS = [1800.0, 86400.0]


def observations():
    values = np.cumsum(0.3 * RNG.normal(size=len(TIMES)))[:, None] + RNG.normal(size=(len(TIMES), 1))
    values[7] = np.nan
    return values


VALUES = observations()


def rows(values):
    return [[None if v != v else v for v in row] for row in values.tolist()]  # noqa: PLR0124


def moved(times):
    return CALENDAR.at(np.asarray(times))[:, 0]


def test_outputs_are_those_of_the_residuals_plus_the_pattern():
    own, plain = SystemRuntime(System.from_document(WITH)), SystemRuntime(System.from_document(PLAIN))
    options: dict[str, Any] = {"horizon": LEADS, "samples": 3, "smooth": True}
    found = own.filter(list(TIMES), rows(VALUES), **options)
    left = plain.filter(list(TIMES), rows(VALUES - CALENDAR.at(TIMES)), **options)
    pattern = moved(TIMES)
    assert found.log_likelihood == left.log_likelihood
    for step, other, at in zip(found.steps, left.steps, pattern, strict=True):
        assert step.mean[0] == pytest.approx(other.mean[0] + at, abs=1e-9) and step.std == other.std
        assert step.nis == other.nis and step.anomaly == other.anomaly
        assert np.allclose(step.interval["0.9"], np.add(other.interval["0.9"], at))
        assert np.allclose(step.samples, np.add(other.samples, at))
        for ahead, left_ahead in zip(step.forecast, other.forecast, strict=True):
            beside = moved([ahead.t])[0]
            assert ahead.mean[0] == pytest.approx(left_ahead.mean[0] + beside, abs=1e-9)
            assert ahead.std == left_ahead.std
            assert np.allclose(ahead.interval["0.9"], np.add(left_ahead.interval["0.9"], beside))
    assert found.smoothed is not None and left.smoothed is not None
    for late, before, at in zip(found.smoothed, left.smoothed, pattern, strict=True):
        assert late.mean[0] == pytest.approx(before.mean[0] + at, abs=1e-9) and late.std == before.std


def test_segments_are_the_whole_bit_for_bit():
    runtime = SystemRuntime(System.from_document(WITH))
    whole = runtime.filter(list(TIMES), rows(VALUES), horizon=LEADS)
    first = runtime.filter(list(TIMES[:50]), rows(VALUES[:50]), horizon=LEADS)
    second = runtime.filter(list(TIMES[50:]), rows(VALUES[50:]), horizon=LEADS, state=first.state)
    steps = [*first.steps, *second.steps]
    assert [step.mean for step in steps] == [step.mean for step in whole.steps]
    assert [step.forecast[1].mean for step in steps] == [step.forecast[1].mean for step in whole.steps]


def test_a_calendar_counts_for_what_states_belong_to():
    plain, own = System.from_document(PLAIN), System.from_document(WITH)
    assert plain.digest != own.digest and plain.config == own.config
    assert System.from_document(own.document).digest == own.digest


def test_invalid_requests_are_refused():
    runtime = SystemRuntime(System.from_document(WITH))
    for times in ([0.0, 1.0], [1.7e9, 1e15]):
        with pytest.raises(InvalidInput, match="seconds since 1970"):
            runtime.filter(times, [[0.0], [0.0]])
    with pytest.raises(InvalidInput, match=r"alarm\.range"):
        runtime.check_input(alarm(0.01, range=(None, 3.0)), None, is_given=False)
    with pytest.raises(InvalidInput, match="cannot be merged"):
        runtime.check_merges()
    for change, field in (
        ({"zone": "Mars"}, "system.calendar.zone"),
        ({"pattern": [[[0.0] * 24] * 8] * 2}, "system.calendar.pattern"),
        ({"slots": 25}, "system.calendar.pattern"),
    ):
        with pytest.raises(InvalidSystem) as refused:
            System.from_document({**PLAIN, "calendar": {**CALENDAR.to_document(), **change}})
        assert refused.value.field == field
