"""Cost of an ordered row of `rfa.Stream` with `late` against without, and against another commit.

    python -m rfa.benchmarks.late_rows [--model auto] [--before FOLDER]

Each stream runs in a process of its own. They take turns, in a changing order, at portions of rows; what is reported
is the median over the portions of the processor time of a row, and of its ratio to the stream without `late`.
FOLDER is a checkout of a commit to compare, such as one before late rows existed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

ROOT: Final = Path(__file__).resolve().parent.parent
PORTION, PORTIONS, WARM_UP = 200, 60, 600
# Takes numbers of rows on stdin, and answers with the processor time of a row in microseconds.
WORKER: Final = """
import json, sys, time
import numpy as np
import rfa
stream = rfa.Stream(1, model=sys.argv[1], **json.loads(sys.argv[2]))
draw, k = np.random.default_rng(0), 0
for line in sys.stdin:
    values = (10 + np.sin(np.arange(k, k + int(line)) / 9) + draw.normal(size=int(line))).tolist()
    begin = time.process_time()
    for value in values:
        stream.update(60.0 * k, value)
        k += 1
    print(1e6 * (time.process_time() - begin) / len(values), flush=True)
"""


class Worker:
    """A stream in a process of its own."""

    def __init__(self, folder: Path, model: str, options: dict[str, str]) -> None:
        command = [sys.executable, "-c", WORKER, model, json.dumps(options)]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )

    def take(self, rows: int) -> float:
        """Filter some rows; returns microseconds a row."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(model: str, before: Path | None, portions: int) -> dict[str, dict[str, float]]:
    """Return microseconds per row, and the ratio to the stream without `late`."""
    workers = {"without": Worker(ROOT, model, {}), "late": Worker(ROOT, model, {"late": "5min"})}
    if before is not None:
        workers["before"] = Worker(before.resolve(), model, {})
    for worker in workers.values():
        worker.take(WARM_UP)
    costs: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(portions):
        names = list(workers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            costs[name].append(workers[name].take(PORTION))
    for worker in workers.values():
        worker.close()
    base = np.array(costs["without"])
    return {
        name: {"us_per_row": float(np.median(found)), "of_without": float(np.median(np.array(found) / base))}
        for name, found in costs.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--portions", type=int, default=PORTIONS)
    given = parser.parse_args()
    found = measure(given.model, given.before, given.portions)
    sys.stdout.write(json.dumps({"model": given.model, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
