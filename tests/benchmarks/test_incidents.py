"""The incidents of the benchmark: what counts as found, and as an alarm elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from rfa.benchmarks.incidents import DAY, DAYS, KINDS, Incident, job_nights, judge, nightly_job, simulate


@pytest.mark.parametrize("kind", KINDS)
def test_a_series_has_its_incident_and_is_repeatable(kind: str) -> None:
    first, again = simulate(kind, 3), simulate(kind, 3)
    assert np.array_equal(first.values, again.values, equal_nan=True) and len(first.values) == DAYS * DAY
    assert 8 * DAY - 20 <= first.begin < first.begin + first.within <= len(first.values)
    assert not np.array_equal(first.values, simulate(kind, 4).values, equal_nan=True)


def test_what_is_found_and_what_is_elsewhere() -> None:
    incident = Incident(np.zeros(DAYS * DAY), 12_000, 12_030)
    found = judge(incident, np.array([100, 5_000, 12_001, 12_050, 12_500]))
    assert found.found_at == 1 and found.elsewhere == 2
    assert found.expected == pytest.approx((13 * DAY - 90) / DAY)
    assert judge(incident, np.array([12_003])).found_at is None


def test_nights_of_the_job_are_counted_from_one() -> None:
    values = nightly_job(1)
    begins = np.flatnonzero(np.diff(values) > 20) + 1
    assert len(begins) >= DAYS and set(job_nights(begins)) == set(range(1, DAYS + 1))
    assert job_nights(np.array([500, 3 * DAY + 181])) == [4]
