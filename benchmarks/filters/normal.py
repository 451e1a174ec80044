"""The learned normal: is the anomaly score as rare as it says, on streams that are not what the model expects?

    python -m rfa.benchmarks.filters.normal            writes results/filter-normal.json and prints a table

The bundles `linear` and `oscillator` in the service's runtime, 64 streams of the oscillator at its middle setting, with
noise of a quarter, once and four times what it expects (std); clean, and with one observation in twenty with ten times
the noise of its stream. In the middle the noise becomes four times as large, or a quarter where it was four times.

    gap       largest |share of scores up to a level - level| over eleven levels, after BURN_IN observations
    above     share of scores above 0.99 and 0.999: 0.01 and 0.001 if it is as rare as it says
    recall    share of the planted outliers that score above 0.99
    learned   observations after the change until the gap of windows of 25 stays below 0.06

each beside what the bundle's calibration alone says of the same observations. Constants were chosen on other seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.filters.normal_rows import learn
from rfa.measured import RESULTS, origin, write_result
from rfa.runtime.bundle.bundle import open_bundle
from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.interface import Row
from rfa.runtime.uncertainty.learned_normal import COLUMNS, MEMORY
from rfa.service.settings import BUNDLE_ROOT
from rfa.training.simulate import simulate_oscillator

Array = np.ndarray
OUT = RESULTS / "filter-normal.json"
BUNDLES, SCALES, SHARES = ("linear", "oscillator"), (0.25, 1.0, 4.0), {"clean": 0.0, "outliers": 0.05}
SETTING = (0.3, 0.5)
STREAMS, STEPS, BURN_IN, WINDOW, SEED = 64, 3_000, 200, 25, 4_000
OUTLIER_SCALE, CHANGE, LEARNED_GAP = 10.0, 4.0, 0.06
LEVELS = (0.05, *(0.1 * i for i in range(1, 10)), 0.95)


def observed(scale: float, share: float, seed: int) -> tuple[Array, Array, Array]:
    """Times `[streams, steps]`, observations `[streams, steps, 2]`, and which are outliers."""
    batch = simulate_oscillator(STREAMS, STEPS, settings=(SETTING,), seed=seed)
    assert batch.truth is not None
    rng = np.random.default_rng(seed + 1)
    is_outlier = rng.random((STREAMS, STEPS)) < share
    noise = np.where(is_outlier, OUTLIER_SCALE, 1.0) * scale * math.sqrt(SETTING[1])
    noise[:, STEPS // 2 :] *= 1 / CHANGE if scale > 1 else CHANGE
    return batch.times, batch.truth + noise[..., None] * rng.standard_normal(batch.truth.shape), is_outlier


def served(runtime: FilterRuntime, times: Array, values: Array) -> tuple[Array, Array]:
    """Anomaly score and nis of every observation, `[streams, steps]`."""
    pool = StatePool(runtime.state_fields, STREAMS)
    seats = [pool.acquire() for _ in range(STREAMS)]
    for seat in seats:
        runtime.put(pool, seat, runtime.start())
    readout = runtime.readout((0.9,), (), 0)
    scores, nis = np.empty((2, STREAMS, STEPS))
    for t in range(STEPS):
        rows = [Row(seat, float(times[i, t]), values[i, t].tolist(), 1.0, readout, 0) for i, seat in enumerate(seats)]
        for i, stepped in enumerate(runtime.advance(pool, rows)):
            assert stepped is not None
            scores[i, t], nis[i, t] = stepped.step.anomaly, stepped.step.nis
    return scores, nis


def without(calibration: Calibration, nis: Array) -> Array:
    """What the bundle alone says of observations of two components."""
    untaught = np.zeros((len(nis), COLUMNS), np.float32)
    seen, teaches = np.full(len(nis), 2), np.zeros(len(nis), bool)
    return np.stack(
        [learn(untaught, column, seen, 2, teaches, calibration.tables.rarity).share for column in nis.T], axis=1
    )


def worst_gap(scores: Array) -> float:
    """Of the shares, from their levels."""
    return max(abs(float((scores <= level).mean()) - level) for level in LEVELS)


def learned_after(scores: Array) -> int | None:
    """Observations after which no window strays any more; None if the last one does."""
    gaps = [worst_gap(scores[:, begin : begin + WINDOW]) for begin in range(0, scores.shape[1] - WINDOW + 1, WINDOW)]
    bad = [i for i, gap in enumerate(gaps) if gap > LEARNED_GAP]
    if not bad:
        return 0
    return None if bad[-1] == len(gaps) - 1 else WINDOW * (bad[-1] + 1)


def describe(scores: Array, is_outlier: Array) -> dict[str, Any]:
    """The figures of one way to score."""
    middle = STEPS // 2
    before = scores[:, BURN_IN:middle]
    marked = scores[is_outlier & (np.arange(STEPS) >= BURN_IN)]
    return {
        "gap": worst_gap(before),
        "gap_of_the_worst_stream": max(worst_gap(stream) for stream in before),
        "above_0.99": float((before > 0.99).mean()),
        "above_0.999": float((before > 0.999).mean()),
        "gap_after_the_change": worst_gap(scores[:, middle + BURN_IN :]),
        "recall": float((marked > 0.99).mean()) if len(marked) else None,
        "learned_after": learned_after(scores[:, middle:]),
    }


def run() -> dict[str, Any]:
    """Every bundle, scale and kind of stream."""
    rows: dict[str, Any] = {}
    cases = [(name, scale, kind) for name in BUNDLES for scale in SCALES for kind in SHARES]
    for name, scale, kind in tqdm(cases, unit="case", disable=None):
        bundle = open_bundle(BUNDLE_ROOT / name)
        times, values, is_outlier = observed(scale, SHARES[kind], SEED)
        scores, nis = served(FilterRuntime(bundle), times, values)
        plain = without(Calibration(bundle.calibration["recurrent"]), nis)
        rows[f"{name}, noise × {scale:g}, {kind}"] = {
            "learned": describe(scores, is_outlier),
            "bundle": describe(plain, is_outlier),
        }
    return rows


def markdown(rows: dict[str, Any]) -> str:
    """Learned / the bundle's alone."""
    lines = ["| stream | gap | worst stream | > 0.99 | > 0.999 | recall | change learned after |", "|---|" + "---|" * 6]
    for name, row in rows.items():
        pair = (row["learned"], row["bundle"])
        cells = [
            " / ".join("–" if one[key] is None else f"{one[key]:.3g}" for one in pair)
            for key in ("gap", "gap_of_the_worst_stream", "above_0.99", "above_0.999", "recall", "learned_after")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    rows = run()
    facts = {"streams": STREAMS, "steps": STEPS, "burn_in": BURN_IN, "memory": MEMORY}
    document = {**origin("python -m rfa.benchmarks.filters.normal"), **facts, "rows": rows}
    write_result(given.out, document)
    sys.stdout.write(markdown(rows) + "\n")


if __name__ == "__main__":
    main()
