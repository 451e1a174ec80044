"""kill -9 of server processes and supervisors under live clients: in short `python -m tests.soak.faults kill`."""

from __future__ import annotations

from tests.soak.faults.cast import Truths
from tests.soak.faults.kill import KillPlan, run_kill


def test_nothing_acknowledged_is_lost_when_processes_are_killed(all_truths: Truths) -> None:
    plan = KillPlan(kills=2, supervisor_every=2, streams=8, texts=1, quiet=0.3)
    verdict = run_kill(plan, lambda: None, all_truths)
    assert not verdict.missed, verdict.measured
