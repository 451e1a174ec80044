"""`python -m tests.soak.reloads`; its figures go to results/reloads.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from rfa.measured import RESULTS, git_commit, origin, write_result
from tests.soak.reloads.run import Plan, run_reloads

RESULT = RESULTS / "reloads.json"


def main() -> int:
    """Reload, and store what came of it; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.reloads", description=__doc__)
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    commit = git_commit()
    with tqdm(total=arguments.rounds, desc="reloads") as bar:
        verdict = run_reloads(Plan(rounds=arguments.rounds), bar.update)
    for missed in verdict.missed:
        sys.stderr.write(f"missed: {missed}\n")
    document = {**origin("python -m tests.soak.reloads"), "commit": commit, **verdict.to_document()}
    write_result(arguments.out, document)
    return int(bool(verdict.missed))


if __name__ == "__main__":
    raise SystemExit(main())
