"""SIGTERM under live streams and generations: the short form of `python -m tests.soak.faults sigterm`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.faults.cast import Truths
from tests.soak.faults.findings import Findings
from tests.soak.faults.sigterm import SigtermPlan, judge, run_sigterm


@pytest.mark.slow
def test_every_stream_is_handed_back_and_goes_on_with_the_next_server(all_truths: Truths) -> None:
    plan = SigtermPlan(rounds=2, streams=16, texts=2)
    verdict = run_sigterm(plan, lambda: None, all_truths)
    # Durations are not judged here.
    assert [bar for bar in verdict.missed if "grace" not in bar] == [], verdict.measured


@pytest.mark.parametrize(
    ("outcomes", "is_met"),
    [
        ({"drained": 8}, True),
        ({"drained": 7, "refused": 1}, True),  # it arrived between two series
        ({"drained": 7, "lost": 1}, False),
        ({"drained": 7}, False),
    ],
)
def test_a_stream_that_ends_without_a_word_is_noticed(outcomes: dict[str, int], is_met: bool) -> None:
    verdict = judge(SigtermPlan(rounds=2, streams=4), Findings(), Counter(outcomes), [(0, 0.5)], set())
    assert ("every stream drained, each time" not in verdict.missed) == is_met


@pytest.mark.parametrize(
    ("resumed", "outcomes", "is_met"),
    [
        (4, {"drained": 8}, True),
        (3, {"drained": 8}, False),
        (3, {"drained": 7, "refused": 1}, True),  # it had no state to resume from
    ],
)
def test_a_stream_that_does_not_go_on_is_noticed(resumed: int, outcomes: dict[str, int], is_met: bool) -> None:
    findings = Findings()
    findings.counts["resumed"] = resumed
    verdict = judge(SigtermPlan(rounds=2, streams=4), findings, Counter(outcomes), [(0, 0.5)], set())
    assert ("every stream resumed, each time" not in verdict.missed) == is_met
