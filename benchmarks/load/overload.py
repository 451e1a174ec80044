"""Overload: admitted requests must stay fast, and the others must be rejected at once.

Closed loops measure the capacity; then an open loop offers `base` and `factor` times that capacity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rfa.benchmarks.load.controller import Generators, Run
from rfa.benchmarks.load.report import describe
from rfa.benchmarks.load.scenario import Scenario
from rfa.benchmarks.load.server import ServerError


async def run_overload(scenario: Scenario, generators: Generators) -> tuple[Run, dict[str, Any]]:
    """Run under overload, and return the run with its comparison with the calm run."""
    plan = scenario.overload
    closed = replace(
        scenario, seconds=plan.calibration_seconds, text=replace(scenario.text, streams=plan.streams, rate=0.0)
    )
    calibration = await generators.run(closed, "find the capacity")
    capacity = calibration.tally.counts["text.answered"] / plan.calibration_seconds
    if not capacity:
        raise ServerError(f"no request was answered in {plan.calibration_seconds:g} s of calibration")
    calm = await generators.run(_offering(scenario, plan.base * capacity), f"offer {plan.base:g} of the capacity")
    full = await generators.run(_offering(scenario, plan.factor * capacity), f"offer {plan.factor:g} of the capacity")
    measured = describe(full)
    base = describe(calm)
    measured |= {
        "capacity_requests_per_second": round(capacity, 3),
        "base_ms": base["latency_ms"].get("text"),
        "base_errors": base["errors"],
        "wrong_count": sum(describe(run)["wrong_count"] for run in (calibration, calm, full)),
        "admitted_slowdown": _slowdown(calm, full),
        "rejected_share": round(full.tally.counts["text.rejected"] / max(1, full.tally.counts["text.sent"]), 4),
    }
    return full, measured


def _offering(scenario: Scenario, rate: float) -> Scenario:
    return replace(scenario, text=replace(scenario.text, streams=0, rate=rate))


def _slowdown(calm: Run, full: Run) -> float | None:
    """Return the ratio of the 99th percentiles of the slowest admitted requests, start to end."""
    calm_text, full_text = (run.tally.histograms.get("text") for run in (calm, full))
    if calm_text is None or full_text is None:
        return None
    return round(full_text.percentile(99) / calm_text.percentile(99), 3)
