"""SIGTERM under live streams and generations: a short form of `python -m bench.faults sigterm`."""

from __future__ import annotations

from bench.faults.cast import Truths
from bench.faults.sigterm import SigtermPlan, run_sigterm


def test_every_stream_is_handed_back_and_goes_on_with_the_next_server(all_truths: Truths) -> None:
    plan = SigtermPlan(rounds=2, streams=16, texts=2)
    verdict = run_sigterm(plan, lambda: None, all_truths)
    # How long the machine takes is not judged here.
    assert [bar for bar in verdict.missed if "grace" not in bar] == [], verdict.measured
