"""Crowds that leave at once or fall silent: short forms of `python -m tests.soak.faults storm` and `half-open`.

How much slower good clients get is judged by the command alone, on a machine of its own.
"""

from __future__ import annotations

import pytest

from tests.soak.faults.half_open import KINDS, HalfOpenPlan, run_half_open
from tests.soak.faults.storm import StormPlan, run_storm

pytestmark = pytest.mark.slow


def test_slots_come_back_when_a_crowd_leaves_at_once() -> None:
    plan = StormPlan(clients=100, good_streams=2, good_rate=5, window=1, longest=60, settle=1)
    verdict = run_storm(plan, progress=lambda: None)
    assert {bar for bar in verdict.missed if "p99" not in bar and "second" not in bar} == set(), verdict.measured


def test_clients_that_fall_silent_are_seen_off() -> None:
    # What only the closing handshake and the pings of WebSockets end takes longer than a test may.
    quick = tuple(kind for kind in KINDS if kind not in ("wordless", "gone"))
    plan = HalfOpenPlan(
        clients=5 * len(quick), timeout=1, good_streams=2, good_rate=5, window=1, longest=60, kinds=quick
    )
    verdict = run_half_open(plan, progress=lambda: None)
    assert {bar for bar in verdict.missed if "p99" not in bar} == set(), verdict.measured
    # Crawling and headless ones are told why, silent ones are not.
    assert verdict.measured["ended_by"]["header_timeout"] == 10, verdict.measured
