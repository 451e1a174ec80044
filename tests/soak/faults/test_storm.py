"""Clients that disconnect at once: the short form of `python -m tests.soak.faults storm`.

Only the command judges the latency of well-behaved clients, on an idle machine.
"""

from __future__ import annotations

import pytest

from tests.soak.faults.storm import StormPlan, run_storm

pytestmark = pytest.mark.slow


def test_slots_come_back_when_a_crowd_leaves_at_once() -> None:
    plan = StormPlan(clients=100, good_streams=2, good_rate=5, window=1, longest=60, settle=1)
    verdict = run_storm(plan, progress=lambda: None)
    assert {bar for bar in verdict.missed if "p99" not in bar and "second" not in bar} == set(), verdict.measured
