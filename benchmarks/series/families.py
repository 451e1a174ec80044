"""Pictures of the synthetic series that `rfa.training.synthetic` draws: one for each family, and three of the mixture.

python -m rfa.benchmarks.series.families --out docs/figures        writes synthetic-NAME.png, in half a minute
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from tqdm import tqdm

from rfa.benchmarks.figures import FIGURES, INK, panels, save
from rfa.training.synthetic.clock import DAY, HOUR, MINUTE, WEEK, Clock, regular_clock
from rfa.training.synthetic.mixture import FAMILIES, OBSERVED, draw, standard

SEED, LENGTH = 7, 1088
# The steps of the six series of a picture; 0 is none.
STEPS = (5 * MINUTE, HOUR, HOUR, DAY, WEEK, 0.0)
NAMES = {0.0: "steps", 1.0: "1 s", 10.0: "10 s", DAY: "1 d", WEEK: "1 w"}
MIXED = ("mixture-1", "mixture-2", "mixture-3")
TRUTH = "#d08c2f"


class Panel(NamedTuple):
    """A series of a picture: times in steps and values `[N]`, a title, and the truth if it is shown."""

    steps: np.ndarray
    values: np.ndarray
    title: str
    truth: np.ndarray | None = None


def clocks() -> Clock:
    """The six clocks, on which every family is drawn."""
    parts = [regular_clock(1, LENGTH, step) for step in STEPS]
    return Clock(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("times", "step", "has_calendar")))


def step_name(step: float, has_calendar: bool) -> str:
    """A step as one reads it."""
    if not has_calendar:
        return NAMES[0.0]
    return NAMES.get(step) or (f"{step / HOUR:.0f} h" if step >= HOUR else f"{step / MINUTE:.0f} min")


def panels_of(name: str) -> list[Panel]:
    """Six series of a family, or of the mixture."""
    if name in MIXED:
        drawn = draw(SEED, 12, LENGTH, index=MIXED.index(name))
        steps = (drawn.times - drawn.times[:, :1]) / drawn.step[:, None]
        titles = [
            f"{step_name(step, is_dated)}: {' + '.join(families)}"
            for step, is_dated, families in zip(drawn.step, drawn.has_calendar, drawn.families, strict=True)
        ]
        return list(map(Panel, steps, drawn.values, titles, drawn.truth))
    clock, rng = clocks(), np.random.default_rng(SEED)
    titles = [step_name(step, is_dated) for step, is_dated in zip(clock.step, clock.has_calendar, strict=True)]
    if name in OBSERVED:
        values, truth = OBSERVED[name](rng, standard(FAMILIES["calendar"](rng, clock)))
        return list(map(Panel, clock.steps, values, titles, truth))
    return list(map(Panel, clock.steps, FAMILIES[name](rng, clock), titles))


def draw_panels(shown: Sequence[Panel], path: Path) -> None:
    """Small multiples, three in a row, as a PNG of few colours."""
    rows = -(-len(shown) // 3)
    figure, grid = panels(rows, 3, (11, 1.5 * rows + 0.1))
    for axes, panel in zip(grid.flat, shown, strict=True):
        _draw(axes, panel)
    save(figure, path)


def _draw(axes: Any, panel: Panel) -> None:
    axes.plot(panel.steps, panel.values, color=INK, linewidth=0.5, zorder=3)
    if panel.truth is not None:
        axes.plot(panel.steps, panel.truth, color=TRUTH, linewidth=1.6)
        # What is far away is cut, so that the rest is seen.
        seen = panel.values[np.isfinite(panel.values)]
        low, high = np.quantile(np.concatenate([seen, panel.truth]), [0.002, 0.998])
        margin = 0.15 * (high - low) or 1.0
        axes.set_ylim(low - margin, high + margin)
    axes.set_title(panel.title, fontsize=7, color=INK, loc="left", pad=2)
    axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(3))
    axes.margins(x=0.01)


def pictures(out: Path) -> Iterator[Path]:
    """Draw all; gives each file when it is there."""
    for name in (*FAMILIES, *OBSERVED, *MIXED):
        path = out / f"synthetic-{name.replace('_', '-')}.png"
        draw_panels(panels_of(name), path)
        yield path


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIGURES)
    given = parser.parse_args()
    for path in tqdm(pictures(given.out), total=len(FAMILIES) + len(OBSERVED) + len(MIXED), disable=None):
        tqdm.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
