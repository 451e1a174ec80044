"""`python -m tests.budget DURATIONS`: list tests and files that exceed their time limits.

DURATIONS is the output of `make test PYTEST_FLAGS="--durations=0 --durations-min=0.01"`. A test may take 1 s and a file
10 s, on two cores without compiled kernels. tests/budget.json has the exceptions, with their seconds and reasons.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

BUDGET = Path(__file__).with_name("budget.json")
TEST_SECONDS, FILE_SECONDS = 1.0, 10.0
# A tolerance for other and busy machines.
TOLERANCE = 1.5
LINE = re.compile(r"^\s*([\d.]+)s (?:setup|call|teardown)\s+(\S+\.py)(::.*)$")


def seconds(durations: str) -> tuple[Counter[str], Counter[str]]:
    """Return the seconds of each test and of each file, including set-up."""
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for line in durations.splitlines():
        if match := LINE.match(line):
            took, file, test = float(match[1]), match[2], match[3]
            tests[file + test] += took  # type: ignore[assignment]
            files[file] += took  # type: ignore[assignment]
    return tests, files


def findings(durations: str, budget: dict[str, Any]) -> list[str]:
    """Return tests and files above their limits, and files of the budget that were not run."""
    tests, files = seconds(durations)
    found = [f"{file}: in the budget, but not in the durations" for file in budget if file not in files]
    for file, took in files.items():
        allowed = budget[file]["seconds"] if file in budget else FILE_SECONDS
        if took > TOLERANCE * allowed:
            found.append(f"{file}: {took:.1f} s of {allowed:g} s")
    for test, took in tests.items():
        file = test.partition("::")[0]
        if took > TOLERANCE * TEST_SECONDS and file not in budget:
            found.append(f"{test}: {took:.1f} s of {TEST_SECONDS:g} s")
    return found


def main() -> int:
    """Return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.budget", description=__doc__)
    parser.add_argument("durations", type=Path, help="output of pytest with --durations=0")
    found = findings(parser.parse_args().durations.read_text(), json.loads(BUDGET.read_text()))
    for line in found:
        print(line)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
