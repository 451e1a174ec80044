"""What `auto-joint` finds that the columns by themselves do not, and how often it raises an alarm in vain.

    python -m rfa.benchmarks.filters.auto_joint --data DATA     prints a table; DATA holds ett/ETTh1.csv

In a row of 50 one column is moved by 4 of the deviations of its steps (of its innovations, as `auto` tells them). Told
are the share of these rows whose anomaly score is above that of 99 of 100 others, without the three rows after each,
which are off as well; and alarms at a rate of 1 in 100 over those expected, of the rows as they are. The first 500 rows
teach. All is filtered by `rfa.filter`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

import rfa
from rfa.runtime.filters.auto import NAMES

Array = np.ndarray
ROWS, COLUMNS, SEED = 6_000, 4, 8
EVERY, SIZE, TAUGHT, AFTER, RATE = 50, 4.0, 500, 3, 0.01


def tables(data: Path | None) -> Iterator[tuple[str, Array]]:
    """Rows of several columns, by what they are."""
    rng = np.random.default_rng(SEED)
    walk = rng.standard_normal(ROWS).cumsum()
    yield "noisy looks at one walk", walk[:, None] + rng.standard_normal((ROWS, COLUMNS))
    yield "independent walks", rng.standard_normal((ROWS, COLUMNS)).cumsum(axis=0)
    yield "independent noise", rng.standard_normal((ROWS, COLUMNS))
    mixing = rng.standard_normal((COLUMNS, COLUMNS))
    yield "mixtures of walks", rng.standard_normal((ROWS, COLUMNS)).cumsum(axis=0) @ mixing
    if data is not None:
        with (data / "ett" / "ETTh1.csv").open(newline="") as file:
            yield "ETTh1", np.array([row[1:] for row in csv.reader(file)][1:], float)


class Found(NamedTuple):
    """Shares of moved rows that are found, and alarms over those expected, by model."""

    share: dict[str, float]
    alarms: dict[str, float]


def measure(values: Array, rng: np.random.Generator) -> Found:
    """Filter a table as it is, and with rows moved."""
    rows = np.arange(TAUGHT, len(values), EVERY)
    columns = rng.integers(0, values.shape[1], len(rows))
    told = rfa.filter(values)
    steps = values[1:] - np.stack([told[f"y{a}_mean"] for a in range(values.shape[1])], axis=1)[:-1]
    moved = values.copy()
    moved[rows, columns] += SIZE * np.std(steps[TAUGHT:], axis=0)[columns] * rng.choice([-1.0, 1.0], len(rows))
    usual = np.ones(len(values), bool)
    usual[:TAUGHT] = False
    for k in range(AFTER + 1):
        usual[np.minimum(rows + k, len(values) - 1)] = False
    share, alarms = {}, {}
    for name in NAMES:
        score = rfa.filter(moved, model=name)["anomaly"]
        share[name] = float(np.mean(score[rows] > np.quantile(score[usual], 1 - RATE)))
        found = rfa.detect(values, RATE, model=name)
        alarms[name] = found.raised / found.expected
    return Found(share, alarms)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of recorded series")
    rng = np.random.default_rng(SEED)
    lines = [f"{'':26}" + "".join(f"{name:>12}" for name in NAMES) + "   alarms over expected"]
    for name, values in tqdm(tables(parser.parse_args().data), unit="table", disable=None):
        found = measure(values, rng)
        told = "".join(f"{one:12.2f}" for one in found.share.values())
        lines.append(f"{name:26}{told}   {', '.join(f'{one:.2f}' for one in found.alarms.values())}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
