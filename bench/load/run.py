"""Any scenario, from its name to its result."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.load.controller import Run, generators
from bench.load.generator import authorization
from bench.load.overhead import run_overhead
from bench.load.overload import run_overload
from bench.load.report import describe, document
from bench.load.scenario import Scenario
from bench.load.server import Target, check_models, started
from bench.load.sessions import run_sessions
from export.bundle import open_bundle


def run_scenario(
    scenario: Scenario, bundles: Sequence[Path], url: str | None = None, pid: int | None = None
) -> tuple[dict[str, Any], Run | None]:
    """Run a scenario; the result document, and the run behind it where there is one to draw.

    Args:
        bundles: of the server, for the truth.
        url: a running server; None starts one for the run.
        pid: its process, to watch its memory and processor time.

    Raises:
        ScenarioError, ServerError, GeneratorError
    """
    if scenario.kind == "idle-sessions":
        return document(scenario, run_sessions(scenario, bundles)), None
    if scenario.kind == "overhead":
        return document(scenario, asyncio.run(run_overhead(scenario, bundles))), None
    with _target(scenario, bundles, url, pid) as target:
        check_models(target.url, authorization(), {b.name: b.digest for b in map(open_bundle, bundles)})
        run, measured = asyncio.run(_offer(scenario, bundles, target))
    return document(scenario, measured), run


@contextlib.contextmanager
def _target(scenario: Scenario, bundles: Sequence[Path], url: str | None, pid: int | None) -> Iterator[Target]:
    if url is not None:
        yield Target(url.rstrip("/"), pid)
        return
    with started(bundles, scenario.server) as target:
        yield target


async def _offer(scenario: Scenario, bundles: Sequence[Path], target: Target) -> tuple[Run, dict[str, Any]]:
    async with generators(scenario, target, bundles) as processes:
        if scenario.kind == "overload":
            return await run_overload(scenario, processes)
        run = await processes.run(scenario, scenario.name)
        return run, describe(run)
