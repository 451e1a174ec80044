"""What the other columns of a request are worth to `series`: the error of its next value, told what they did last.

    python -m rfa.benchmarks.series.related [--data DATA]     prints it, in some minutes of a core

The network tells each column by itself. Here the next error of each is foretold from the last errors of all of them, by
recursive least squares that begin at nothing (ridge of RIDGE rows), on errors in units of their running size and held
within LIMIT of them; beside it, as a control, from the column's own last error alone. Told are mean absolute errors of
rows from BURN_IN on over those of `series` by itself, geometric means over columns, with their standard errors over
SETS tables, each of COLUMNS columns: unrelated ones; one signal in each, behind noise of its own; a signal of all and
one of its own in equal parts; and a signal that each column shows a row after the one before it. Signals are synthetic,
of those kept for validation. DATA, a folder with ett/ETTh1.csv, adds one recorded table, by which nothing was chosen.
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
from rfa.training.synthetic import draw

Array = np.ndarray
SETS, COLUMNS, ROWS, BURN_IN, SEED = 24, 4, 1_500, 500, 11
NOISE, RIDGE, LIMIT, FORGET = 0.5, 50.0, 4.0, 0.98


class Gain(NamedTuple):
    """Mean absolute error over that of `series` by itself, told the own last error and told all; with their standard
    errors."""

    own: float
    own_error: float
    all: float
    all_error: float


def signals(index: int, count: int) -> Array:
    """`[count, ROWS]` synthetic signals without noise, mean 0 and deviation 1; none that never changes."""
    found: list[Array] = []
    while len(found) < count:
        truth = draw(SEED, 32, ROWS, index=index, split="validation").truth
        spread = np.std(np.diff(truth, axis=1), axis=1)
        found += [(one - one.mean()) / one.std() for one in truth[np.isfinite(spread) & (spread > 0)]]
        index += SETS
    return np.array(found[:count])


def tables(index: int) -> Iterator[tuple[str, Array]]:
    """Columns `[ROWS, COLUMNS]` of each kind."""
    rng = np.random.default_rng((SEED, index))
    own = signals(index, COLUMNS + 1)
    shared, own = own[0], own[1:]
    noise = NOISE * np.std(np.diff(shared)) * rng.standard_normal((COLUMNS, ROWS))
    yield "unrelated", (own + noise).T
    yield "one signal, own noise", (shared + noise).T
    yield "half one signal", ((shared + own) / 2**0.5 + noise).T
    yield "one row after the other", (np.array([np.roll(shared, lag) for lag in range(COLUMNS)]) + noise)[:, COLUMNS:].T


def errors(values: Array) -> Array:
    """`[N, P]` what came less what `series` had foretold, of each column by itself; 0 where nothing was foretold."""
    stream = rfa.Stream(values.shape[1], model="series")
    return np.nan_to_num(np.array([stream.update(None, row).innovation for row in values], float))


def foretold(targets: Array, regressors: Array) -> Array:
    """`[N]` of targets by their regressors `[N, M]`, each from the rows before it: ridge by recursive least squares."""
    count = regressors.shape[1]
    inverse, weights, told = np.eye(count) / RIDGE, np.zeros(count), np.zeros(len(targets))
    for row, (x, y) in enumerate(zip(regressors, targets, strict=True)):
        told[row] = weights @ x
        moved = inverse @ x
        gain = moved / (1 + x @ moved)
        weights += gain * (y - told[row])
        inverse -= np.outer(gain, moved)
    return told


def ratios(values: Array) -> Array:
    """`[P, 2]` error told the own last error, and told all, over that of `series`."""
    off = errors(values)
    size = np.empty_like(off)
    running = np.abs(off[:20]).mean(axis=0) + 1e-12
    for row, one in enumerate(np.abs(off)):
        size[row] = running
        running = FORGET * running + (1 - FORGET) * one
    scaled = np.clip(off / size, -LIMIT, LIMIT)
    before = np.vstack([np.zeros(off.shape[1]), scaled[:-1]])
    found = []
    for column in range(off.shape[1]):
        usual = np.abs(off[BURN_IN:, column]).mean()
        for regressors in (before[:, [column]], before):
            left = off[:, column] - size[:, column] * foretold(scaled[:, column], regressors)
            found.append(np.abs(left[BURN_IN:]).mean() / usual)
    return np.array(found).reshape(-1, 2)


def gain(found: Array) -> Gain:
    """Of ratios `[SETS, P, 2]`."""
    means = np.log(found).mean(axis=1)
    ratio, error = np.exp(means.mean(axis=0)), means.std(axis=0) / max(len(means) - 1, 1) ** 0.5
    return Gain(ratio[0], error[0], ratio[1], error[1])


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of recorded series")
    data = parser.parse_args().data
    found: dict[str, list[Array]] = {}
    for index in tqdm(range(SETS), unit="table of each kind", disable=None):
        for name, values in tables(index):
            found.setdefault(name, []).append(ratios(values))
    if data is not None:
        with (data / "ett" / "ETTh1.csv").open(newline="") as file:
            values = np.array([row[1:] for row in csv.reader(file)][1:], float)
        found["ETTh1"] = [ratios(values[:6_000])]
    sys.stdout.write(f"{'':26}{'own last error':>20}{'all last errors':>20}\n")
    for name, each in found.items():
        one = gain(np.array(each))
        sys.stdout.write(f"{name:26}{one.own:11.3f} ± {one.own_error:.3f}{one.all:12.3f} ± {one.all_error:.3f}\n")


if __name__ == "__main__":
    main()
