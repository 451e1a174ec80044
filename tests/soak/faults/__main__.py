"""`python -m tests.soak.faults SCENARIO|all`: run the long scenarios and write results/faults.json."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from rfa.measured import RESULTS, origin, write_result
from tests.soak.faults.kill import KillPlan, run_kill
from tests.soak.faults.sigterm import SigtermPlan, run_sigterm
from tests.soak.faults.storm import StormPlan, run_storm
from tests.soak.faults.verdict import Verdict

RESULT = RESULTS / "faults.json"


@dataclass(frozen=True)
class Scenario:
    """A scenario by name, and the number of its progress reports."""

    steps: int
    run: Callable[[Callable[[], None]], Verdict]


SCENARIOS = {
    "kill": Scenario(KillPlan.kills, lambda progress: run_kill(KillPlan(), progress)),
    "sigterm": Scenario(SigtermPlan.rounds, lambda progress: run_sigterm(SigtermPlan(), progress)),
    "storm": Scenario(StormPlan.clients, lambda progress: run_storm(StormPlan(), progress)),
}


def run(name: str) -> dict[str, Any]:
    """Run a scenario and return its entry in the results."""
    scenario = SCENARIOS[name]
    with tqdm(total=scenario.steps, desc=name) as bar:
        verdict = scenario.run(lambda: _count(bar))
    for missed in verdict.missed:
        print(f"{name}: missed: {missed}", file=sys.stderr)
    return {**origin("python -m tests.soak.faults"), **verdict.to_document()}


def _count(bar: tqdm) -> None:
    bar.update()


def main() -> int:
    """Run scenarios and store their results. Return 1 if a requirement is not met."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.faults", description=__doc__)
    parser.add_argument("scenario", choices=[*SCENARIOS, "all"])
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON; entries of other scenarios there stay")
    arguments = parser.parse_args()
    names = list(SCENARIOS) if arguments.scenario == "all" else [arguments.scenario]
    results = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    for name in names:
        results[name] = run(name)
        write_result(arguments.out, results)
    return int(not all(results[name]["passed"] for name in names))


if __name__ == "__main__":
    raise SystemExit(main())
