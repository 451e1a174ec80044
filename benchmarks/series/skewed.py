"""Forecasts of simulated skewed and intermittent series: sums of their means, and coverage of their intervals.

    python -m rfa.benchmarks.series.skewed

200 series of 600 rows, filtered by `rfa.Stream`'s model in process; forecasts of the last 400 rows count.

    sum      the forecasts' means over the values that came, all series of a kind together (scaled to mean 1)
    inside   fraction of the values inside the 90 % intervals
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.library.models import find_model
from rfa.measured import origin

Array = np.ndarray
LEADS: Final = (1.0, 7.0, 28.0)
ROWS, FIRST, EACH = 600, 200, 40


def _bursts(rng: np.random.Generator) -> Array:
    """Simulate demand on one day in eight, and ten times as much in bursts of some days."""
    is_demanded = rng.random(ROWS) < 0.12
    begins = rng.random(ROWS) < 0.01
    lasts = np.convolve(begins, np.ones(4))[:ROWS] > 0
    return np.where(lasts, rng.poisson(12, ROWS), is_demanded * (1 + rng.poisson(0.7, ROWS))).astype(np.float64)


KINDS: Final[dict[str, Callable[[np.random.Generator], Array]]] = {
    "lognormal": lambda rng: np.exp(rng.normal(0, rng.uniform(0.5, 1.2), ROWS)),
    "gamma": lambda rng: rng.gamma(rng.uniform(0.4, 2), 1.0, ROWS),
    "Poisson": lambda rng: rng.poisson(rng.uniform(0.1, 3), ROWS).astype(np.float64),
    "intermittent": lambda rng: (rng.random(ROWS) < rng.uniform(0.1, 0.4)) * (1.0 + rng.poisson(2, ROWS)),
    "bursts": _bursts,
}


def forecasts(values: Array) -> tuple[Array, Array]:
    """Return means `[rows, leads]` and 90 % intervals `[rows, leads, 2]` of the default model."""
    runtime = find_model(None, 1).runtime
    found = runtime.filter(list(map(float, range(ROWS))), values[:, None].tolist(), levels=(0.9,), horizon=LEADS)
    moments = np.concatenate([piece.outputs.moments for piece in found.pieces])
    bands = np.concatenate([piece.outputs.bands for piece in found.pieces])
    return moments[:, :, 0, 0], bands[:, :, 0, 0]


def measure() -> dict[str, Any]:
    """Return the sum of the means divided by that of the values, and the fraction inside, by kind and lead."""
    found: dict[str, Any] = {}
    for kind, make in tqdm(KINDS.items(), unit="kind", disable=None):
        sums, inside = np.zeros((len(LEADS), 2)), np.zeros(len(LEADS))
        for seed in range(EACH):
            values = make(np.random.default_rng(seed))
            means, bands = forecasts(values)
            for h, lead in enumerate(map(int, LEADS)):
                came, rows = values[FIRST + lead :], slice(FIRST, ROWS - lead)
                sums[h] += np.array([means[rows, h].mean(), came.mean()]) / values.mean()
                inside[h] += ((bands[rows, h, 0] <= came) & (came <= bands[rows, h, 1])).mean() / EACH
        found[kind] = {
            f"{lead:g}": {"sum": round(float(ratio), 4), "inside": round(float(share), 4)}
            for lead, ratio, share in zip(LEADS, sums[:, 0] / sums[:, 1], inside, strict=True)
        }
    return {"series": EACH * len(KINDS), "rows": ROWS, "kinds": found}


def main() -> None:
    """Run the benchmark, print the results and write them to a file."""
    given = parser(__doc__, "series-skewed").parse_args()
    here = origin("python -m rfa.benchmarks.series.skewed")
    finish("series-skewed", given.out, {**here, **measure()})


if __name__ == "__main__":
    main()
