"""Run a scenario given its name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rfa.benchmarks.load.controller import Run, generators
from rfa.benchmarks.load.generator import authorization
from rfa.benchmarks.load.overload import run_overload
from rfa.benchmarks.load.report import describe, document
from rfa.benchmarks.load.scenario import Scenario, ScenarioError
from rfa.benchmarks.load.server import Target, check_models, started
from rfa.benchmarks.load.sessions import run_sessions
from rfa.runtime.bundle.bundle import open_bundle


def run_scenario(
    scenario: Scenario, bundles: Sequence[Path], url: str | None = None, pid: int | None = None
) -> tuple[dict[str, Any], Run | None]:
    """Run a scenario and return the result document, with the run behind it if it can be drawn.

    url: a running server, or None to start one. pid: the process whose memory and processor time are measured.
    """
    opened = [open_bundle(bundle) for bundle in bundles]
    scenario = with_models(scenario, {bundle.name: bundle.kind for bundle in opened})
    if scenario.kind == "idle-sessions":
        return document(scenario, run_sessions(scenario, bundles)), None
    with _target(scenario, bundles, url, pid) as target:
        check_models(target.url, authorization(), {bundle.name: bundle.digest for bundle in opened})
        run, measured = asyncio.run(_offer(scenario, bundles, target))
    return document(scenario, measured), run


def with_models(scenario: Scenario, kinds: Mapping[str, str]) -> Scenario:
    """Return the scenario with a model named in every part. The default is the first bundle of its kind in `kinds`."""
    offers_text = scenario.text.streams or scenario.text.rate or scenario.kind == "overload"
    used = {
        "text": ("lm", bool(offers_text)),
        "live": ("filter", bool(scenario.live.streams) or scenario.kind == "idle-sessions"),
        "batch": ("filter", bool(scenario.batch.rate)),
    }
    named: dict[str, Any] = {}
    for part, (kind, is_used) in used.items():
        load = getattr(scenario, part)
        available = [name for name, found in kinds.items() if found == kind]
        if is_used and load.model is None and available:
            named[part] = replace(load, model=available[0])
        elif is_used and load.model not in available:
            name = "" if load.model is None else f" named {load.model!r}"
            raise ScenarioError(
                f"{scenario.name}.{part} needs a bundle of kind {kind!r}{name}; given are {', '.join(kinds)}"
            )
    return replace(scenario, **named)


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
