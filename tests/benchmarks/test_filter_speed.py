"""The speed benchmark, shortened: every installed contestant agrees with the reference, and a wrong one is caught."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from rfa.benchmarks.filters import speed as filter_speed
from rfa.benchmarks.filters.speed import measure, ratios
from rfa.benchmarks.filters.speed_job import make_job, reference
from rfa.benchmarks.filters.speed_rivals import ROWS
from rfa.benchmarks.results_page.page import tables_of


@pytest.mark.slow
def test_every_row_is_measured_or_says_why_not(tmp_path, monkeypatch):
    kept = tuple(row for row in ROWS if "dynamax" not in row.name)
    absent = dataclasses.replace(kept[0], name="absent", packages=("no-such-package",))
    monkeypatch.setattr(filter_speed, "ROWS", (*kept, absent))
    out = tmp_path / "speed.json"
    document = filter_speed.write_speed(out, streams=3, steps=40, online_steps=50, runs=1)
    assert json.loads(out.read_text()) == document
    assert len(document["rows"]) == len(kept) + 1
    by_name = {(row["job"], row["name"]): row for row in document["rows"]}
    for job in ("online", "batch"):
        for name in ("rfa Kalman", "rfa robust", "rfa robust, follows jumps"):
            row = by_name[job, name]
            assert 0 < row["p20_us"] <= row["us_per_step"] <= row["p80_us"]
    assert by_name["online", "absent"]["not_run"] == "no-such-package is not installed"
    measured = [row for row in document["rows"] if "not_run" not in row]
    assert len(tables_of("filter-speed", document)) == 4 + len(measured)


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
