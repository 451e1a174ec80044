"""A picture of each family of synthetic series and of their mixture, and how fast they are drawn.

python -m rfa.experiments.series.families --out docs/figures     writes synthetic-*.png, prints series a second
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from rfa.training.synthetic import FAMILIES, draw
from rfa.training.synthetic.clocks import HOUR, even_clocks

SEED, SHOWN, COLUMNS, LENGTH = 3, 6, 3, 512
TIMED, BATCH, WHOLE = 1_024, 256, 1_088


def picture(values: np.ndarray, path: Path) -> None:
    """Small panels of series `[SHOWN, N]`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure: Any
    figure, axes = plt.subplots(SHOWN // COLUMNS, COLUMNS, figsize=(9, 2.4), layout="constrained")
    for y, panel in zip(values, axes.ravel(), strict=True):
        panel.plot(y, linewidth=0.6, color="tab:blue")
        panel.set(xticks=[], yticks=[])
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=72, pil_kwargs={"optimize": True})
    plt.close(figure)


def series_of(name: str) -> np.ndarray:
    """Of a family, by the hour; of "mixture" what training gets."""
    if name == "mixture":
        return draw(SEED, SHOWN, LENGTH).values
    rng = np.random.default_rng(SEED)
    found: np.ndarray = FAMILIES[name][0](rng, even_clocks(SHOWN, LENGTH, HOUR))
    return found


def rate(name: str) -> float:
    """Series of WHOLE values a second, in batches of BATCH, on the core that this runs on."""
    clocks, rng = even_clocks(BATCH, WHOLE), np.random.default_rng(SEED)
    spent = []
    for index in range(TIMED // BATCH + 1):
        start = time.process_time()
        if name == "mixture":
            draw(SEED, BATCH, WHOLE, index=index)
        else:
            FAMILIES[name][0](rng, clocks)
        spent.append(time.process_time() - start)
    return BATCH / float(np.median(spent[1:]))  # the first compiles


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the pictures; without it the speed alone is told")
    out = parser.parse_args().out
    for name in (*FAMILIES, "mixture"):
        if out is not None:
            picture(series_of(name), out / f"synthetic-{name.replace('_', '-')}.png")
        sys.stdout.write(f"{name:16}{rate(name):8,.0f} series a second\n")


if __name__ == "__main__":
    main()
