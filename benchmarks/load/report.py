"""A run as a document compared with its budgets, and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rfa.benchmarks.load.controller import Run
from rfa.benchmarks.load.scenario import Scenario, latency_budget, to_table
from rfa.measured import origin

KINDS = ("text", "observation", "batch")


class BudgetMissed(ValueError):
    """A measured value is outside its budget, or an answer is wrong."""


@dataclass(frozen=True)
class Verdict:
    """One budget with its measured value. None was not measured, and does not meet the budget."""

    name: str
    budget: float
    actual: float | None
    met: bool


def describe(run: Run) -> dict[str, Any]:
    """Return the measurements of a run."""
    tally, seconds = run.tally, run.scenario.seconds
    counts = tally.counts
    unanswered = counts["observation.unanswered"] + counts["observation.unsent"]
    return {
        "latency_ms": {name: histogram.summary_ms() for name, histogram in sorted(tally.histograms.items())},
        "counts": dict(sorted(counts.items())),
        "throughput": {
            "tokens_per_second": round(counts["token.received"] / seconds, 2),
            "observations_per_second": round(counts["observation.answered"] / seconds, 2),
            "requests_per_second": round((counts["text.answered"] + counts["batch.answered"]) / seconds, 2),
        },
        "goodput": {
            kind: round(counts[f"{kind}.good"] / counts[f"{kind}.sent"], 6) for kind in KINDS if counts[f"{kind}.sent"]
        },
        "errors": dict(sorted(tally.errors.items())),
        "error_count": sum(tally.errors.values()) + unanswered,
        "wrong": dict(sorted(tally.wrong.items())),
        "wrong_count": sum(tally.wrong.values()),
        "wrong_examples": tally.examples,
        "generator_cpu_share": run.generator_cpu,
        "server": run.server,
    }


def document(scenario: Scenario, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result document: the scenario, the origin, and the budgets."""
    verdicts = judge(scenario, measured)
    return {
        "scenario": scenario.name,
        **origin("rfa bench load"),
        "settings": to_table(scenario),
        **measured,
        "budgets": [asdict(verdict) for verdict in verdicts],
        "passed": all(verdict.met for verdict in verdicts),
    }


def judge(scenario: Scenario, measured: Mapping[str, Any]) -> list[Verdict]:
    """Judge every budget of a scenario, and that no answer was wrong."""
    verdicts = [_verdict(name, limit, _actual(name, measured)) for name, limit in scenario.budget.items()]
    if "wrong_count" in measured:
        verdicts.append(_verdict("max_wrong", 0.0, float(measured["wrong_count"])))
    return verdicts


def _verdict(name: str, limit: float, actual: float | None) -> Verdict:
    available = actual is not None and math.isfinite(actual)
    met = actual is not None and available and (actual >= limit if name.startswith("min_") else actual <= limit)
    return Verdict(name, limit, actual if available else None, met)


def _actual(name: str, measured: Mapping[str, Any]) -> float | None:
    latency = latency_budget(name)
    if latency is not None:
        summary = measured.get("latency_ms", {}).get(latency[0])
        return None if summary is None else float(summary[latency[1]])
    if name == "max_errors":
        return float(measured["error_count"])
    if name == "min_goodput":
        return min(measured["goodput"].values(), default=None)
    if name == "max_rss_growth":
        server = measured.get("server")
        return None if server is None else float(server["rss_growth"])
    if name == "min_tokens_per_second":
        return float(measured["throughput"]["tokens_per_second"])
    value = measured.get(name.removeprefix("max_").removeprefix("min_"))
    return None if value is None else float(value)
