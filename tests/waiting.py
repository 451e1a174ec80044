"""How tests wait for what other tasks, threads and processes do.

No test says how fast something is. So patience is only the time after which what never comes counts as a failure: long
enough for a slow machine that others use too, and shorter than pytest's own limit, whose error would not say what was
awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator

PATIENCE = 120.0
# Between two looks: what comes soon is seen soon, and what takes long is not held up by who looks.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05


class TooLate(AssertionError):
    """What was awaited did not come; says by its source what that was."""


def wait_until(claim: Callable[[], object]) -> None:
    """Look again and again, in this thread, until the claim is true.

    Raises:
        TooLate: it did not come true within `PATIENCE`.
    """
    for pause in _pauses(claim):
        time.sleep(pause)


async def until(claim: Callable[[], object]) -> None:
    """Look again and again, between the other tasks of the event loop, until the claim is true.

    Raises:
        TooLate: it did not come true within `PATIENCE`.
    """
    for pause in _pauses(claim):
        await asyncio.sleep(pause)


def _pauses(claim: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> Iterator[float]:
    # The clock is bound here once and for all: a test may put another one in its place.
    end, pause = clock() + PATIENCE, FIRST_PAUSE
    while not claim():
        if clock() > end:
            raise TooLate(f"not within {PATIENCE:g} s: {_source(claim)}")
        yield pause
        pause = min(1.2 * pause, LONGEST_PAUSE)


def _source(claim: Callable[[], object]) -> str:
    """The lines that the claim stands in."""
    try:
        return inspect.getsource(claim).strip()
    except (OSError, TypeError):  # of code without a file, and of what is no function
        return repr(claim)
