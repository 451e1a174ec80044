"""The wire fuzzer in small: a few hundred cases of its grammar against a real server, and nothing may be wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from rfa.benchmarks.load.truth import open_models
from tests.service.live import Live, running
from tests.soak.wire.application import BUNDLE, KEY, Truth, compute_truth
from tests.soak.wire.client import play
from tests.soak.wire.generator import unhurried_few
from tests.soak.wire.judge import judge, read_case
from tests.soak.wire.make_case import make_case
from tests.waiting import wait_until

CASES = 400
AT_ONCE = 16
SEED = 18
SERIES = 64
# Longer than the timeouts of the server below.
SILENCE_SECONDS = 10


async def wrong_answers(live: Live, truth: Truth) -> list[str]:
    """Play the cases, some at once; what must not have happened."""
    wrong: list[str] = []
    indices = iter(range(CASES))

    async def work() -> None:
        for index in indices:
            case = make_case(SEED, index, truth)
            found = read_case(case)
            case = unhurried_few(case, found)
            seen = await play(case, live.port, SILENCE_SECONDS)
            verdict = judge(case, seen, truth, found)
            wrong.extend(f"{index} {case.kind}: {problem.kind}: {problem.detail}" for problem in verdict.problems)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return wrong


def test_every_request_is_answered_once_to_the_one_who_sent_it() -> None:
    truth = compute_truth(SERIES)
    limits: dict[str, Any] = {"header_timeout_seconds": 5, "body_timeout_seconds": 5, "api_keys": KEY}
    with running(open_models([BUNDLE]), **limits) as live:
        wrong = asyncio.run(wrong_answers(live, truth))
        wait_until(lambda: live.server.open_connections() == 0)
        engine = live.app.state.engine
        wait_until(lambda: engine.pool_slots_in_use == 0 and engine._scheduler.streams == 0)
    assert not wrong
