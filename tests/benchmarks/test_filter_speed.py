"""The speed benchmark: a row with other numbers than the reference is not timed, and ratios are of peers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.filters.speed import measure, ratios
from rfa.benchmarks.filters.speed_job import make_job, reference
from rfa.benchmarks.filters.speed_rivals import ROWS


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "other"), [("Kalman", "robust"), ("robust", "jumps"), ("jumps", "robust")])
def test_a_row_with_other_numbers_is_not_timed(rule, other):
    job = make_job(6, 120)
    # A true jump, without which two of the rules give the same numbers.
    job.y[0, 40:] += 300.0
    job.y[0, 100:] -= 300.0
    job = job.cut(6, 108)
    row = next(row for row in ROWS if row.rule == rule and row.job == "batch" and row.name.startswith("rfa "))
    assert measure(row, job, 1)["largest_error"] < 1e-9
    with pytest.raises(AssertionError, match="off the reference"):
        measure(dataclasses.replace(row, rule=other), job, 1)
    assert not np.allclose(reference(job, rule), reference(job, other))


def test_ratios_leave_out_peers_of_another_job():
    rows: list[dict[str, Any]] = [
        {"name": "rfa robust", "job": "batch", "us_per_step": 0.1},
        {"name": "fair", "job": "batch", "us_per_step": 0.5},
        {"name": "other", "job": "online", "us_per_step": 0.2},
        {"name": "gone", "job": "batch", "not_run": "not installed"},
    ]
    assert ratios(rows) == {"batch: rfa robust": {"fastest_peer": "fair", "times_slower": 5.0}}
