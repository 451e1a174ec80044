"""How many synthetic series of 1,088 values a core draws in a second: of each family, and of the mixture.

    python -m rfa.benchmarks.series.speed        prints a table, in half a minute

Time is the processor's, of one thread; the median of `REPEATS` calls after one that compiles.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from rfa.measured import git_commit, hardware
from rfa.training.synthetic import FAMILIES, OBSERVED, draw
from rfa.training.synthetic.clock import draw_clock
from rfa.training.synthetic.mixture import standard

LENGTH, COUNT, REPEATS, SEED = 1088, 128, 15, 0
MIXED = (48, 128, 256)


def rate(count: int, call: Callable[[int], object]) -> float:
    """Series a second of a call that draws `count`; it is given its number."""
    call(0)
    took = []
    for k in range(1, REPEATS + 1):
        begin = time.process_time()
        call(k)
        took.append(time.process_time() - begin)
    return count / float(np.median(took))


def rates() -> dict[str, float]:
    """Series a second, by what is drawn."""
    rng = np.random.default_rng(SEED)
    clock = draw_clock(rng, COUNT, LENGTH)
    latent = standard(FAMILIES["calendar"](rng, clock))
    found = {f"mixture, {n} in a batch": rate(n, lambda k, n=n: draw(SEED, n, LENGTH, index=k)) for n in MIXED}  # type: ignore[misc]
    found |= {name: rate(COUNT, lambda _, one=one: one(rng, clock)) for name, one in FAMILIES.items()}  # type: ignore[misc]
    return found | {name: rate(COUNT, lambda _, one=one: one(rng, latent)) for name, one in OBSERVED.items()}  # type: ignore[misc]


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    lines = ["| drawn | series a second |", "| --- | ---: |"]
    lines += [f"| {name} | {found:,.0f} |" for name, found in rates().items()]
    machine = hardware()
    lines += ["", f"Commit {git_commit()}, one core of {machine['cpu']}, {machine['date']}."]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
