"""A failing case without what it does not need, so that it can be read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tests.soak.wire.application import Truth
from tests.soak.wire.case import Case, Step
from tests.soak.wire.client import play
from tests.soak.wire.judge import Verdict, judge, read_case

SHRINK_SECONDS = 30.0
SILENCE_SECONDS = 3.0


async def replay(case: Case, port: int, truth: Truth, *, is_proxied: bool, patience: float) -> Verdict:
    """Play a case once more and judge it."""
    found = read_case(case)
    seen = await play(case, port, patience)
    return judge(case, seen, truth, found, is_proxied=is_proxied)


def shrunk(case: Case, kind: str, port: int, truth: Truth, *, is_proxied: bool) -> Case | None:
    """The smallest case found in half a minute that still has a problem of this kind; None where it does not recur."""
    deadline = time.monotonic() + SHRINK_SECONDS

    async def fails(candidate: Case) -> bool:
        if time.monotonic() > deadline:
            return False
        verdict = await replay(candidate, port, truth, is_proxied=is_proxied, patience=SILENCE_SECONDS)
        return any(problem.kind == kind for problem in verdict.problems)

    return asyncio.run(_shrink(case, fails))


async def _shrink(case: Case, fails: Callable[[Case], Awaitable[bool]]) -> Case | None:
    if not await fails(case):
        return None
    case = await _joined(case, fails)
    # First whole lines, then ever smaller pieces of the bytes of each step.
    for place, step in enumerate(case.steps):
        pieces = step.data.splitlines(keepends=True)
        while pieces:
            pieces = await _reduce(case, place, pieces, fails)
            case = _with(case, place, pieces)
            if all(len(piece) == 1 for piece in pieces):
                break
            pieces = [half for piece in pieces for half in _halves(piece)]
    return case


async def _joined(case: Case, fails: Callable[[Case], Awaitable[bool]]) -> Case:
    """All bytes in one step, where the client waits for nothing in between and it fails all the same."""
    if any(step.op in ("await", "deaf") for step in case.steps):
        return case
    ends = [step for step in case.steps if step.op in ("half-close", "reset", "leave")]
    joined = case.with_steps([Step("send", case.data), *ends])
    return joined if await fails(joined) else case


async def _reduce(
    case: Case, place: int, pieces: Sequence[bytes], fails: Callable[[Case], Awaitable[bool]]
) -> list[bytes]:
    """Delta debugging: leave out ever shorter runs of pieces while it still fails."""
    kept = list(pieces)
    size = max(len(kept) // 2, 1)
    while size:
        at = 0
        while at < len(kept):
            candidate = kept[:at] + kept[at + size :]
            if await fails(_with(case, place, candidate)):
                kept = candidate
            else:
                at += size
        size //= 2
    return kept


def _with(case: Case, place: int, pieces: Sequence[bytes]) -> Case:
    steps = list(case.steps)
    steps[place] = replace(steps[place], data=b"".join(pieces))
    return case.with_steps(steps)


def _halves(piece: bytes) -> list[bytes]:
    middle = len(piece) // 2
    return [piece[:middle], piece[middle:]] if middle else [piece]
