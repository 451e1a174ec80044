"""The series of the on-call benchmark have their labels in range, and alarms are counted as its rules say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from rfa.benchmarks.oncall import second
from rfa.benchmarks.oncall.__main__ import summarise
from rfa.benchmarks.oncall.incidents import INCIDENTS
from rfa.benchmarks.oncall.judge import judge_clean, judge_incident, judge_job
from rfa.benchmarks.oncall.ordinary import CLEAN, JOBS, ZONES, clock_change, with_job
from rfa.benchmarks.oncall.parts import DAY, Series

START = 1_777_852_800


def hourly(kind: str = "level shift", **fields: object) -> Series:
    """Ten days of hours."""
    times = START + 3600 * np.arange(240)
    return Series("x_0", kind, times, np.zeros(240), 3600, 10.0, **fields)  # type: ignore[arg-type]


def at(*hours: int) -> np.ndarray:
    return START + 3600 * np.array(hours, int)


def check_rows(series: Series) -> None:
    assert len(series.times) == len(series.values) and np.all(np.diff(series.times) >= series.step)
    assert series.times[-1] < series.times[0] + series.days * DAY


MAKERS = [*INCIDENTS, *(partial(second.incident, kind) for kind in (*second.KINDS, *second.SLOW))]


@pytest.mark.parametrize("make", MAKERS, ids=str)
def test_a_series_has_its_incident_and_is_repeatable(make: Callable[[int], Series]) -> None:
    series, again = make(2), make(2)
    assert np.array_equal(series.values, again.values, equal_nan=True)
    check_rows(series)
    assert series.begin is not None and series.end is not None
    assert series.times[0] + 3 * DAY < series.begin <= series.end <= series.times[-1]


@pytest.mark.parametrize(
    ("make", "least"),
    [*((partial(second.with_job, name), 3) for name in second.JOBS), *((partial(with_job, name), 6) for name in JOBS)],
    ids=str,
)
def test_a_series_has_the_occurrences_of_its_job(make: Callable[[], Series], least: int) -> None:
    series = make()
    check_rows(series)
    assert len(series.occurrences) >= least
    assert all(series.times[0] <= begin <= end <= series.times[-1] for begin, end in series.occurrences)


def test_other_series_have_no_incident() -> None:
    for series in (second.clean(1), *(make() for make in CLEAN), *(clock_change(zone) for zone in ZONES)):
        check_rows(series)
        assert series.begin is None
        assert (series.change is None) == (series.kind == "clean")
        assert series.change is None or series.change - series.times[0] > 13 * DAY


def test_an_incident_is_found_late_or_missed() -> None:
    series = hourly(begin=int(at(100)[0]), end=int(at(110)[0]))
    found = judge_incident(series, at(5, 103, 105, 120, 134, 135))
    assert found == {"found": "found", "delay": 3, "elsewhere": 2, "expected": pytest.approx(10 - 34 / 24)}
    late = judge_incident(series, at(113))
    assert (late["found"], late["delay"], late["elsewhere"]) == ("late", 13, 0)
    missed = judge_incident(series, at(99, 114))
    assert (missed["found"], missed["delay"], missed["elsewhere"]) == ("missed", None, 1)


def test_a_gap_is_found_in_the_two_rows_after_it() -> None:
    series = hourly("missing an hour", begin=int(at(100)[0]), end=int(at(101)[0]), within=3)
    assert [judge_incident(series, at(hour))["found"] for hour in (102, 103, 104)] == ["found", "found", "missed"]


def test_alarms_of_a_job_and_of_weeks() -> None:
    job = hourly("job", occurrences=tuple((int(at(hour)[0]), int(at(hour + 1)[0])) for hour in (20, 44)))
    assert judge_job(job, at(18, 19, 23, 24, 45)) == {"at_job": [2, 1], "elsewhere": 2, "expected": 10.0}
    clock = hourly("clock", change=int(at(168)[0]))
    assert judge_clean(clock, at(0, 167, 168, 239))["weeks"] == [0, 2, 2, 0]


def test_sums_of_a_made_up_reply() -> None:
    series = hourly(begin=int(at(216)[0]), end=int(at(220)[0]))
    document = summarise(
        {
            "level shift": {"x_0": judge_incident(series, at(1, 216)), "x_1": judge_incident(series, at(2))},
            "clean": {"c": judge_clean(hourly("clean"), at(1, 2))},
        }
    )
    assert (document["found"], document["late"], document["missed"], document["incidents"]) == (1, 0, 1, 2)
    assert document["kinds"]["level shift"]["delays"] == [0, None]
    assert document["elsewhere_over_expected"] == pytest.approx(4 / (9 + 9 + 10))
