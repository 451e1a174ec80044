"""Whether the intervals of `auto` hold on the first rows of a series.

    python -m rfa.benchmarks.filters.auto_few     prints a table

Of every kind SERIES short series are simulated, of any scale and offset, and filtered by the runtime that the server
runs. After so many rows (AFTER) three intervals are held against what was drawn: of the next observation, of that 12
rows ahead, and of the level itself, where the kind has one. Told are the shares inside, how wide intervals are, and how
many rows of a hundred are called outliers. Nothing can foretell a step or a spike that is still to come.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.runtime.filters.auto import AutoRuntime
from rfa.runtime.uncertainty.forecast_checks import outlier_gate

Array = np.ndarray
SERIES, LENGTH, LONGEST_LEAD, SEED = 400, 60, 12, 5
LEVELS, LEADS = (0.5, 0.9, 0.99), (1.0, float(LONGEST_LEAD))
AFTER = (1, 2, 3, 5, 10, 20, 40)
# Of the noise of the other rows: what an outlier and a step of the level are off.
FAR = 10.0


class Simulated(NamedTuple):
    """values and level `[SERIES, LENGTH + LONGEST_LEAD]`; no level is NaN."""

    values: Array
    level: Array


def kinds(rng: np.random.Generator) -> Iterator[tuple[str, Simulated]]:
    """Numbers as users have them, by kind; a series in two is large beside its offset, the other small."""
    shape = (SERIES, LENGTH + LONGEST_LEAD)
    rows = np.arange(shape[1])

    def noise() -> Array:
        return rng.standard_normal(shape)

    def autoregression(share: float) -> Array:
        path, found = rng.standard_normal(SERIES) / np.sqrt(1 - share**2), []
        for one in noise().T:
            found.append(path)
            path = share * path + one
        return np.stack(found, axis=1)

    walk, slow = noise().cumsum(axis=1), 0.3 * noise().cumsum(axis=1)
    slope = rng.standard_normal((SERIES, 1)) * rows
    zero, none = np.zeros(shape), np.full(shape, np.nan)
    poisson = rng.poisson(rng.uniform(1, 40, (SERIES, 1)), shape).astype(float)
    jump = np.where(rows >= rng.integers(2, LENGTH, (SERIES, 1)), FAR * rng.choice([-1.0, 1.0], (SERIES, 1)), 0.0)
    spike = np.where(rows == rng.choice(AFTER, (SERIES, 1)) - 1, FAR * rng.choice([-1.0, 1.0], (SERIES, 1)), 0.0)
    found = {
        "white noise": (noise(), zero), "walk": (walk, none), "walk in noise": (slow + noise(), slow),
        "line in noise": (slope + noise(), slope), "autoregression .5": (autoregression(0.5), none),
        "autoregression .9": (autoregression(0.9), none), "t of 3": (rng.standard_t(3, shape), zero),
        "walk by t of 3": (rng.standard_t(3, shape).cumsum(axis=1), none),
        "step": (jump + noise(), jump), "spike": (spike + noise(), zero),
    }  # fmt: skip
    scale = 10.0 ** rng.uniform(-3, 3, (SERIES, 1))
    offset = scale * rng.standard_normal((SERIES, 1)) * rng.choice([1.0, 100.0], (SERIES, 1))
    for name, (values, level) in found.items():
        yield name, Simulated(offset + scale * values, offset + scale * level)
    yield "counts", Simulated(poisson, none)
    yield "numbers alike", Simulated(np.tile(rng.integers(0, 9, (SERIES, 1)), shape[1]).astype(float), none)


class Shares(NamedTuple):
    """inside `[3, after, levels]` of the next, of 12 ahead, of the level; width of the 0.9 interval of these over the
    mean step of the series, geometric mean `[3, after]`; outliers of a hundred rows `[after]`, from that row on up to
    the next."""

    inside: Array
    width: Array
    outliers: Array


def measure(series: Simulated) -> Shares:
    """Filter all series of a kind."""
    inside = np.zeros((3, len(AFTER), len(LEVELS)))
    logs, outliers = np.zeros((3, len(AFTER))), np.zeros(LENGTH)
    at, runtime = np.array(AFTER) - 1, AutoRuntime.of(1)
    times = list(range(LENGTH))
    for values, level in zip(series.values, series.level, strict=True):
        found = runtime.filter(times, values[:LENGTH, None].tolist(), horizon=LEADS, levels=LEVELS)
        told = [piece.told for piece in found.pieces]
        bands = np.concatenate([one.bands for one in told])[at, :, :, 0]
        states = np.concatenate([one.interval for one in told])[at, :, 0]
        unit = np.abs(np.diff(values)).mean() or 1.0
        after = [(bands[:, k], values[at + int(lead)]) for k, lead in enumerate(LEADS)]
        for k, (ends, truth) in enumerate([*after, (states, level[at])]):
            # Rounding of a number far from 0 is no error.
            near = 1e-9 * np.abs(values).max()
            inside[k] += (ends[..., 0] - near <= truth[:, None]) & (truth[:, None] <= ends[..., 1] + near)
            logs[k] += np.log((ends[:, 1, 1] - ends[:, 1, 0]) / unit + 1e-9)
        outliers += np.concatenate([one.nis for one in told]) > outlier_gate(1)
    ends = np.array([*AFTER, LENGTH])
    called = [100 * outliers[low:high].mean() / len(series.values) for low, high in itertools.pairwise(ends)]
    has_level = not np.isnan(series.level).any()
    inside /= len(series.values)
    return Shares(
        inside if has_level else np.concatenate([inside[:2], np.full_like(inside[:1], np.nan)]),
        np.exp(logs / len(series.values)), np.array(called),
    )  # fmt: skip


def table(found: dict[str, Shares]) -> str:
    """By what is foretold and after how many rows."""
    names = [*(f"{int(lead)} ahead" for lead in LEADS), "level"]
    lines = []
    for k, title in enumerate(names):
        for e, level in enumerate(LEVELS):
            lines.append(f"\n{title}, {level:.0%} interval, after rows".ljust(42) + "".join(f"{n:6d}" for n in AFTER))
            shares = {name: one.inside[k, :, e] for name, one in found.items() if not np.isnan(one.inside[k]).any()}
            shares["mean"] = np.mean(list(shares.values()), axis=0)
            lines += [f"  {name}".ljust(41) + _row(row) for name, row in shares.items()]
        lines.append("  width of 90 %, geometric mean".ljust(41) + _row(np.exp(np.mean(
            [np.log(one.width[k]) for name, one in found.items() if name != "numbers alike"], axis=0))))  # fmt: skip
    lines.append("\noutliers of a hundred rows".ljust(42))
    lines += [f"  {name}".ljust(41) + _row(one.outliers) for name, one in found.items()]
    return "\n".join(lines)


def _row(numbers: Sequence[float] | Array) -> str:
    return "".join(f"{number:6.2f}" if number < 99 else f"{number:6.0f}" for number in numbers)


def main() -> None:
    """Run and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rng = np.random.default_rng(SEED)
    found = {name: measure(one) for name, one in tqdm(kinds(rng), unit="kind", disable=None)}
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
