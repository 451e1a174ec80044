"""Calibration of `precision`: precision × squared error of the state should be 1 on average.

    python -m rfa.benchmarks.filters.precision [--calibrate]

Each default bundle filters its own system: clean, with its own outliers, and with 5 % of the noises ×10. `--calibrate`
calibrates the bundles, on other seeds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.export.filter_calibration import evaluate, modes_of, precision_of
from rfa.export.writing import rewrite_bundle
from rfa.measured import origin
from rfa.model.batch import Batch
from rfa.model.loading import load_model
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.bundle.locate import BUNDLE_ROOT
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.interface import Row
from rfa.training.filter import joined
from rfa.training.simulate import NOISE_SETTINGS, OUTLIER_SCALE, Disturbance, simulate_oscillator

Array = np.ndarray
BAR = 0.05
MANY = 0.05
CALIBRATION_SEED, SEED = 510_000, 620_000
ROUND = 256


class System(NamedTuple):
    """The system on which a bundle is measured.

    Noises (sigma², eta²) of an oscillator, streams of each, their steps, and the number of steps that are not counted.
    """

    settings: tuple[tuple[float, float], ...]
    streams: int
    steps: int
    burn_in: int


SYSTEMS = {
    "linear": System(((0.3, 0.5),), 400, 200, 50),
    "oscillator": System(NOISE_SETTINGS, 400, 150, 50),
}
# In attention mode every step attends to all earlier ones, so streams are fewer and shorter.
ATTENTION_STREAMS, ATTENTION_STEPS = 40, 150
# Streams of the calibration, for each setting, clean and with outliers.
FIT_STREAMS, FIT_STEPS = {"linear": 1200, "oscillator": 600}, 150


class Outliers(NamedTuple):
    """Fraction of outliers, and the factor on their noise."""

    share: float
    scale: float


def stated(name: str) -> Outliers:
    """Return the outliers of a bundle's own model."""
    rule = load_model(BUNDLE_ROOT / name).robustness()
    return Outliers(float(rule.contamination.detach()), float(rule.outlier_scale.detach()))


def simulate(name: str, streams: int, steps: int, outliers: Outliers, seed: int) -> Iterator[tuple[str, Batch]]:
    """Simulate every setting of a bundle's system by name."""
    disturbance = Disturbance(outliers=outliers.share, outlier_scale=outliers.scale)
    for i, setting in enumerate(SYSTEMS[name].settings):
        batch = simulate_oscillator(streams, steps, settings=(setting,), disturbance=disturbance, seed=seed + i)
        yield f"({setting[0]:g}, {setting[1]:g})", batch


def served(runtime: FilterRuntime, batch: Batch) -> Array:
    """Return precision × squared error after every observation `[streams, steps]`, as batched by the server."""
    assert batch.truth is not None
    streams, steps = batch.times.shape
    pool = StatePool(runtime.state_fields, streams)
    slots = [pool.acquire() for _ in range(streams)]
    for slot in slots:
        runtime.put(pool, slot, runtime.start())
    readout = runtime.readout((0.9,), (), 0)
    found = np.empty((streams, steps))
    for t in range(steps):
        for first in range(0, streams, ROUND):
            rows = [
                Row(slots[i], float(batch.times[i, t]), batch.observations[i, t].tolist(), 1.0, readout, 0)
                for i in range(first, min(first + ROUND, streams))
            ]
            for i, stepped in enumerate(runtime.advance(pool, rows), first):
                assert stepped is not None
                error2 = ((np.array(stepped.step.mean) - batch.truth[i, t]) ** 2).mean()
                found[i, t] = stepped.step.precision * error2
    return found


def attended(runtime: FilterRuntime, batch: Batch) -> Array:
    """Return the same figures in attention mode, with one request per stream."""
    assert batch.truth is not None
    rows = []
    for times, values, truth in zip(batch.times, batch.observations, batch.truth, strict=True):
        steps = runtime.filter(times.tolist(), values.tolist(), levels=(0.9,), mode="attention").steps
        error2 = ((np.array([step.mean for step in steps]) - truth) ** 2).mean(axis=1)
        rows.append(np.array([step.precision for step in steps]) * error2)
    return np.array(rows)


def mean_of(products: list[Array], burn_in: int) -> dict[str, float]:
    """Return the mean over settings, streams and steps, and its standard error over the independent streams."""
    means = [rows[:, burn_in:].mean(axis=1) for rows in products]
    error2 = sum(float(part.var(ddof=1)) / len(part) for part in means) / len(means) ** 2
    return {"mean": float(np.mean([part.mean() for part in means])), "error": math.sqrt(error2)}


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Return the rows of a bundle."""
    runtime, system, own = FilterRuntime(open_bundle(BUNDLE_ROOT / name)), SYSTEMS[name], stated(name)
    kinds = {"clean": Outliers(0.0, 1.0), "its outliers": own, "1 in 20 × 10": Outliers(MANY, OUTLIER_SCALE)}
    for k, (kind, outliers) in enumerate(kinds.items()):
        for mode in runtime.modes:
            is_recurrent = mode == "recurrent"
            streams, steps = (system.streams, system.steps) if is_recurrent else (ATTENTION_STREAMS, ATTENTION_STEPS)
            products = {
                setting: served(runtime, batch) if is_recurrent else attended(runtime, batch)
                for setting, batch in simulate(name, streams, steps, outliers, SEED + 1_000 * k)
            }
            yield {
                "bundle": name,
                "mode": mode,
                "data": kind,
                "share": outliers.share,
                "scale": outliers.scale,
                "streams": streams,
                "steps": steps,
                "burn_in": system.burn_in,
                **mean_of(list(products.values()), system.burn_in),
                "settings": {setting: mean_of([rows], system.burn_in) for setting, rows in products.items()},
            }


def bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets: 1 ± 0.05 for every bundle, clean and with its outliers.

    Attention mode has too few streams to decide.
    """
    return [
        {
            "name": f"{row['bundle']}, {row['data']}",
            "value": row["mean"],
            "error": row["error"],
            "bar": BAR,
            "is_met": abs(row["mean"] - 1) <= BAR,
        }
        for row in rows
        if row["share"] != MANY and row["mode"] == "recurrent"
    ]


def calibrate(names: Iterable[str]) -> None:
    """Calibrate the precision of the default bundles on their systems, half clean and half with outliers."""
    for name in names:
        parts = [
            batch
            for k, outliers in enumerate((Outliers(0.0, 1.0), stated(name)))
            for _, batch in simulate(name, FIT_STREAMS[name], FIT_STEPS, outliers, CALIBRATION_SEED + 1_000 * k)
        ]
        path, simulated = BUNDLE_ROOT / name, joined(parts)
        assert simulated.truth is not None  # of simulated states
        bundle, model = open_bundle(path), load_model(path)
        calibration = dict(bundle.calibration)
        for mode in modes_of(model):
            tables = precision_of(evaluate(model, simulated, mode, ()), simulated.truth)
            calibration[mode] = {**calibration[mode], "precision": tables}
        sys.stdout.write(f"{name}: {rewrite_bundle(bundle, path, None, calibration).digest}\n")


def main() -> None:
    """Calibrate, or measure, print and write the file."""
    options = parser(__doc__, "filter-precision")
    options.add_argument("--calibrate", nargs="*", choices=SYSTEMS, help="calibrate these bundles; default all")
    given = options.parse_args()
    if given.calibrate is not None:
        calibrate(given.calibrate or SYSTEMS)
        return
    rows = [row for name in tqdm(SYSTEMS, unit="bundle", disable=None) for row in measure(name)]
    document = {**origin("python -m rfa.benchmarks.filters.precision"), "rows": rows, "bars": bars(rows)}
    finish("filter-precision", given.out, document)


if __name__ == "__main__":
    main()
