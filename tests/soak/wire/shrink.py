"""A failing case without what it does not need, so that it can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tests.soak.wire.application import Truth
from tests.soak.wire.case import Case, Step
from tests.soak.wire.client import play
from tests.soak.wire.judge import Verdict, judge, read_case

ATTEMPTS = 120
PATIENCE_SECONDS = 8.0
SMALLEST_PIECE = 1


async def replay(case: Case, port: int, truth: Truth, *, is_proxied: bool, patience: float) -> Verdict:
    """Play a case once more and judge it."""
    found = read_case(case)
    seen = await play(case, port, patience)
    return judge(case, seen, truth, found, is_proxied=is_proxied)


def shrunk(case: Case, kind: str, port: int, truth: Truth, *, is_proxied: bool) -> Case | None:
    """The smallest case found that still has a problem of this kind; None where it does not come again."""

    async def fails(candidate: Case) -> bool:
        verdict = await replay(candidate, port, truth, is_proxied=is_proxied, patience=PATIENCE_SECONDS)
        return any(problem.kind == kind for problem in verdict.problems)

    return asyncio.run(_shrink(case, fails))


async def _shrink(case: Case, fails: Callable[[Case], Awaitable[bool]]) -> Case | None:
    if not await fails(case):
        return None
    left = ATTEMPTS
    joined = case.with_steps(
        [Step("send", case.data), *(s for s in case.steps if s.op in ("half-close", "reset", "leave"))]
    )
    waits = any(step.op in ("await", "deaf") for step in case.steps)
    if not waits and len(case.steps) > len(joined.steps) and await fails(joined):
        case = joined
    # First whole lines, then ever smaller pieces of the bytes of each step.
    for place, step in enumerate(case.steps):
        pieces = step.data.splitlines(keepends=True)
        while step.op == "send" and left > 0:
            kept, left = await _reduce(case, place, pieces, fails, left)
            is_fine = all(len(piece) <= SMALLEST_PIECE for piece in kept)
            case = _with(case, place, kept)
            if is_fine:
                break
            pieces = [half for piece in kept for half in _halves(piece)]
    return case


async def _reduce(
    case: Case, place: int, pieces: Sequence[bytes], fails: Callable[[Case], Awaitable[bool]], left: int
) -> tuple[list[bytes], int]:
    """Delta debugging: leave out ever shorter runs of pieces while it still fails."""
    kept = list(pieces)
    size = max(len(kept) // 2, 1)
    while size and left > 0:
        at = 0
        while at < len(kept) and left > 0:
            candidate = kept[:at] + kept[at + size :]
            left -= 1
            if await fails(_with(case, place, candidate)):
                kept = candidate
            else:
                at += size
        size //= 2
    return kept, left


def _with(case: Case, place: int, pieces: Sequence[bytes]) -> Case:
    steps = list(case.steps)
    steps[place] = replace(steps[place], data=b"".join(pieces))
    return case.with_steps(steps)


def _halves(piece: bytes) -> list[bytes]:
    middle = len(piece) // 2
    return [piece[:middle], piece[middle:]] if middle else [piece]
