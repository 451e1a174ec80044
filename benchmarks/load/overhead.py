"""What HTTP costs per token: the engine alone and the server take turns on the same core.

Both run the same generations, as many at a time, with one engine thread on one core; the load generators have the
other cores. Each round measures one after the other, so that a change of the machine's speed meets both; medians over
the rounds.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rfa.benchmarks.load import controller, server
from rfa.benchmarks.load.report import describe
from rfa.benchmarks.load.scenario import Scenario, ScenarioError, to_table


async def run_overhead(scenario: Scenario, bundles: Sequence[Path]) -> dict[str, Any]:
    """Tokens a second of both, the server's share, and the time that it takes more per token.

    Raises:
        ScenarioError: the scenario has no closed loop of text, or there is only one core.
        ServerError, GeneratorError
    """
    if not scenario.text.streams:
        raise ScenarioError(f"{scenario.name}.text.streams must be positive: the engine alone runs a closed loop")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ScenarioError("the overhead needs two cores: one that is measured, one for the load generator")
    measured, others = cores[:1], cores[1:]
    settings = {
        "processes": 1,
        "workers": 1,
        "max_running": scenario.text.streams,
        **scenario.server,
    }
    with server.started(bundles, settings, measured) as target:
        async with controller.generators(scenario, target, bundles, others) as generators:
            return await _take_turns(scenario, bundles, generators, measured)


async def _take_turns(
    scenario: Scenario, bundles: Sequence[Path], generators: controller.Generators, cores: Sequence[int]
) -> dict[str, Any]:
    engine = await controller.spawn("rfa.benchmarks.load.engine_alone", cores)
    try:
        await controller.write(
            engine,
            {"name": scenario.name, "scenario": to_table(scenario), "bundles": [str(bundle) for bundle in bundles]},
        )
        await controller.read(engine)
        alone, served, wrong, errors = [], [], 0, 0
        for number in tqdm(range(scenario.rounds), desc="rounds"):
            await controller.write(engine, {"warmup_seconds": scenario.warmup_seconds, "seconds": scenario.seconds})
            alone.append(float((await controller.read(engine))["tokens_per_second"]))
            run = describe(await generators.run(scenario, f"server, round {number + 1}"))
            served.append(float(run["throughput"]["tokens_per_second"]))
            wrong += run["wrong_count"]
            errors += run["error_count"]
    finally:
        await controller.stop(engine)
    return {**compare(alone, served), "wrong_count": wrong, "error_count": errors}


def compare(alone: Sequence[float], served: Sequence[float]) -> dict[str, Any]:
    """Medians of paired rounds, tokens a second.

    Raises:
        ValueError: a round without a token.
    """
    if not all((*alone, *served)):
        raise ValueError("a round gave no token, so there is nothing to compare")
    pairs = list(zip(alone, served, strict=True))
    return {
        "engine_tokens_per_second": round(statistics.median(alone), 2),
        "server_tokens_per_second": round(statistics.median(served), 2),
        "rounds": [[round(a, 2), round(s, 2)] for a, s in pairs],
        "server_share": round(statistics.median(s / a for a, s in pairs), 4),
        "overhead_us_per_token": round(1e6 * statistics.median(1 / s - 1 / a for a, s in pairs), 2),
    }
