"""`python -m tests.soak.bundles`; its figures go to results/bundles.json.

Needs strace. Some 370 bundles, each in a process of its own and then offered to a server that serves: half an hour on
two cores that do nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from rfa.measured import RESULTS, git_commit, origin, write_result
from tests.soak.bundles.run import cases, run

RESULT = RESULTS / "bundles.json"


def main() -> int:
    """Try them, and store what came of it; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.bundles", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every so many-th, to see that it works")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if shutil.which("strace") is None:
        parser.error("strace is needed: what a runtime opens, no hook of the interpreter sees")
    commit, chosen = git_commit(), cases()[:: arguments.every]
    with tqdm(total=2 * len(chosen), desc="bundles") as bar:
        report = run(chosen, bar.update)
    for missed in report.missed:
        sys.stderr.write(f"missed: {missed}\n")
    document = {**origin("python -m tests.soak.bundles"), "commit": commit, **report.to_document()}
    write_result(arguments.out, document)
    return int(bool(report.missed))


if __name__ == "__main__":
    raise SystemExit(main())
