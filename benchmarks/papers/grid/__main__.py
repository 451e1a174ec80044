"""Denoising and inpainting with error bars: `python -m rfa.benchmarks.papers.grid`. It needs scikit-image.

Writes results/papers-grid.json and docs/figures/paper-grid.png.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.figures import MANY, panels, save
from rfa.benchmarks.papers.grid.field import Field
from rfa.benchmarks.papers.grid.pictures import (
    METHODS,
    MISSING,
    PICTURES,
    TUNED_ON,
    Case,
    coverage,
    decibels,
    drawn,
    exact,
    measured,
    shipped,
)
from rfa.measured import origin

DRAWN = Field(0.04, (0.05, 0.15))


def rows_of(task: str, missing: float, rng: np.random.Generator) -> tuple[list[dict[str, Any]], Case]:
    """Return the row of each picture, and the case of the first."""
    tuning = measured(shipped(TUNED_ON), rng, missing)
    chosen = {
        name: max(values, key=lambda value: decibels(tuning, run(tuning, value))) if len(values) > 1 else values[0]
        for name, (run, values) in METHODS.items()
    }
    truths = {"drawn field": drawn(DRAWN, rng), **{name: shipped(name) for name in PICTURES}}
    cases = {name: measured(truth, rng, missing) for name, truth in truths.items()}
    rows = []
    for name, case in cases.items():
        row: dict[str, Any] = {"task": task, "picture": name, "psnr": {}, "coverage": {}, "seconds": {}}
        for method, (run, _) in METHODS.items():
            began = time.perf_counter()
            found = run(case, chosen[method])
            row["seconds"][method] = time.perf_counter() - began
            row["psnr"][method] = decibels(case, found)
            if (share := coverage(case, found)) is not None:
                row["coverage"][method] = share
        rows.append(row)
    return rows, cases[PICTURES[0]]


def draw(case: Case, path: Path) -> None:
    """Draw a picture with half of its pixels, its estimate and the standard deviations."""
    found = exact(case)
    shown = {"picture": case.truth, "measured": case.pixels, "estimate": found.mean, "deviation": found.deviation}
    figure, grid = panels(1, len(shown), (10, 2.7))
    for axes, (title, values) in zip(grid[0], shown.items(), strict=True):
        limits: dict[str, Any] = {"cmap": "magma"} if title == "deviation" else {"cmap": "gray", "vmin": 0, "vmax": 1}
        axes.imshow(values, **limits)
        axes.set(title=title, xticks=[], yticks=[])
    save(figure, path, MANY)


def main() -> None:
    options = parser(__doc__, "papers-grid", has_figures=True)
    given = options.parse_args()
    if not find_spec("skimage"):
        options.error("scikit-image is not installed: pip install scikit-image")
    rng = np.random.default_rng(0)
    denoised, _ = rows_of("denoising", 0.0, rng)
    inpainted, case = rows_of("inpainting", MISSING, rng)
    draw(case, given.figures / "paper-grid.png")
    finish("papers-grid", given.out, {**origin("python -m rfa.benchmarks.papers.grid"), "rows": denoised + inpainted})


if __name__ == "__main__":
    main()
