"""Figures of results/gift.json: the loss of every model by task, and the coverage of intervals.

python -m rfa.benchmarks.series.gift_figures        writes gift-wql.png and gift-coverage.png to docs/figures
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rfa.benchmarks.figures import FIGURES, INK, MANY, panels, save
from rfa.benchmarks.series.gift import ARIMA, COVERED, NAIVE
from rfa.measured import RESULTS

Document = dict[str, Any]
# Our models are last, so that they are drawn on top.
SHOWN: Final = {
    NAIVE: "#9a9a93", "AutoETS, run here": "#8fb8a0", "AutoTheta, run here": "#4a8f6d", ARIMA: "#c9a227",
    "auto": "#4a90c2", "series, as trained": "#e3a08a", "series": "#c2362b",
}  # fmt: skip
PUBLISHED_IN: Final = ("m4_hourly", "m4_weekly", "ett1/H/short")


class Point(NamedTuple):
    """The weighted quantile loss of a model on a task; `colour` is None for published results."""

    model: str
    wql: float
    colour: str | None


def points(document: Document, task: str) -> Iterator[Point]:
    """Return the measured and published results of a task.

    A result on fewer windows is scaled by the naive forecast of those windows, so that all results share an axis.
    """
    kept = document["tasks"][task]
    for name, colour in SHOWN.items():
        if one := kept.get(name):
            yield Point(name, one["wql"] * kept[NAIVE]["wql"] / one.get("naive", kept[NAIVE])["wql"], colour)
    if task in PUBLISHED_IN:
        for name, figures in document["published"].items():
            yield Point(name, figures[2 * PUBLISHED_IN.index(task) + 1], None)


def draw_losses(document: Document, path: Path) -> None:
    """Draw a panel for each task and a line for each model. Measured results are filled, published ones hollow."""
    names = [*document["published"], *SHOWN]
    figure, grid = panels(1, len(document["tasks"]), (11, 4.2), sharey=True)
    for axes, task in zip(grid.flat, document["tasks"], strict=True):
        naive = document["tasks"][task][NAIVE]["wql"]
        axes.axvline(naive, color=SHOWN[NAIVE], linewidth=0.8)
        for point in points(document, task):
            colour = point.colour or INK
            axes.plot(
                point.wql, names.index(point.model), "o", markersize=5, color=colour,
                markerfacecolor=colour if point.colour else "none",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_title(task, fontsize=8, color=INK, loc="left", pad=2)
        axes.grid(axis="y", linewidth=0.3)
        ticks = [naive / 2, naive, 2 * naive]
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.minorticks_off()
    labels = [f"{name}, published" if name in document["published"] else name for name in names]
    grid[0, 0].set_yticks(range(len(names)), labels, fontsize=7)
    figure.supxlabel("WQL, logarithmic; the line is the seasonal naive", fontsize=8, color=INK)
    save(figure, path, MANY, document)


def draw_coverage(document: Document, path: Path) -> None:
    """Draw a panel for each task: share inside minus the level, in points, for each level."""
    figure, grid = panels(1, len(document["tasks"]), (11, 2.9), sharey=True)
    places = range(len(COVERED))
    for axes, (task, kept) in zip(grid.flat, document["tasks"].items(), strict=True):
        axes.axhline(0, color=INK, linewidth=0.8)
        for name, colour in SHOWN.items():
            if name in kept:
                off = [100 * (share - level) for share, level in zip(kept[name]["inside"], COVERED, strict=True)]
                axes.plot(places, off, "o-", color=colour, markersize=3, linewidth=1.2, label=name)
        axes.set_xticks(places, [f"{level:.0%}" for level in COVERED])
        axes.set_title(task, fontsize=8, color=INK, loc="left", pad=2)
    grid[0, 0].set_ylabel("inside less the level, points", fontsize=7, color=INK)
    handles, names = max((axes.get_legend_handles_labels() for axes in grid.flat), key=lambda found: len(found[1]))
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=7)
    save(figure, path, MANY, document)


def main() -> None:
    """Draw both figures."""
    document = json.loads((RESULTS / "gift.json").read_text())
    draw_losses(document, FIGURES / "gift-wql.png")
    draw_coverage(document, FIGURES / "gift-coverage.png")


if __name__ == "__main__":
    main()
