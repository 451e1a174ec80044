"""SIGKILL of server processes and supervisors under live clients: the short form of `python -m tests.soak.faults
kill`.
"""

from __future__ import annotations

import pytest

from tests.soak.faults.kill import KillPlan, run_kill


@pytest.mark.slow
@pytest.mark.parametrize(("texts", "truths"), [(0, "filter_truths"), (1, "all_truths")])
def test_nothing_acknowledged_is_lost_when_processes_are_killed(
    texts: int, truths: str, request: pytest.FixtureRequest
) -> None:
    plan = KillPlan(kills=2, supervisor_every=2, streams=8, texts=texts, quiet=0.3)
    verdict = run_kill(plan, lambda: None, request.getfixturevalue(truths))
    assert not verdict.missed, verdict.measured
