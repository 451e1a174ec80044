"""Figures of results/gift.json: the loss of every model by task, and the coverage of intervals.

python -m rfa.benchmarks.series.gift_figures        writes gift-wql.png and gift-coverage.png to docs/figures
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from rfa.benchmarks.figures import FIGURES, INK, MANY, panels, save
from rfa.benchmarks.results_page.network import models, over_naive, ratios, unseen
from rfa.measured import RESULTS

Document = dict[str, Any]
# Our models are last, so that they are drawn on top.
SHOWN: Final = {
    "auto": "#4a90c2", "default": "#7a5ea8", "series, as trained": "#e3a08a", "series": "#c2362b",
}  # fmt: skip
PUBLISHED_COLOUR: Final = "#b9b9b2"
# The coverage of which intervals is drawn, by their position in a row.
COVERAGE: Final = {2: "90 %", 0: "50 %"}


class Point(NamedTuple):
    """The weighted quantile loss of a model on a task, relative to the seasonal naive forecast."""

    model: str
    wql: float
    colour: str


def points(document: Document, task: str) -> Iterator[Point]:
    """Return the published results of a task, and our own."""
    for name, colour in {**dict.fromkeys(document["published"].get("models", {}), PUBLISHED_COLOUR), **SHOWN}.items():
        if found := ratios(document, task, name):
            yield Point(name, found[1], colour)


def _names(document: Document) -> list[str]:
    others = unseen(document)
    return [task + ("" if task in others else " *") for task in document["tasks"]]


def _loss_axis(axes: Any, title: str) -> None:
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(0.15, 4)
    axes.set_xticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.grid(axis="y", linewidth=0.3)
    axes.set_title(title, fontsize=8, color=INK, loc="left", pad=2)


def draw_losses(document: Document, path: Path) -> None:
    """Draw a line for each task with a point for each model, and the geometric means of the models."""
    count = len(document["tasks"])
    figure, grid = panels(1, 2, (11, 1.6 + 0.16 * max(count, 20)))
    left, right = grid.flat
    for place, task in enumerate(document["tasks"]):
        for point in points(document, task):
            left.plot(min(max(point.wql, 0.15), 4), place, "o", markersize=4, color=point.colour, label=point.model)
    _loss_axis(left, "WQL relative to the seasonal naive, by task; * looked at while developing")
    left.set_yticks(range(count), _names(document), fontsize=6)
    others = unseen(document)
    means = {name: over_naive(document, name) for name in models(document)}
    ranked = sorted((found[1], name) for name, found in means.items() if found)
    for place, (wql, name) in enumerate(ranked):
        colour = SHOWN.get(name, INK)
        right.plot(wql, place, "o", markersize=5, color=colour)
        if others and (found := over_naive(document, name, others)):
            right.plot(found[1], place, "o", markersize=5, color=colour, markerfacecolor="none")
    _loss_axis(right, f"geometric means: {count} tasks, and hollow {len(others)} that were never looked at")
    published = document["published"].get("models", {})
    labels = [f"{name}, published" if name in published else name for _, name in ranked]
    right.set_yticks(range(len(ranked)), labels, fontsize=6)
    for axes in (left, right):
        axes.invert_yaxis()
    _legend(figure, left)
    save(figure, path, MANY, document)


def draw_coverage(document: Document, path: Path) -> None:
    """Draw a line for each task and a point for each model: the fraction inside intervals."""
    count = len(document["tasks"])
    figure, grid = panels(1, len(COVERAGE), (11, 1.4 + 0.16 * count), sharey=True)
    for axes, (position, title) in zip(grid.flat, COVERAGE.items(), strict=True):
        axes.axvline(float(title.split()[0]), color=INK, linewidth=0.8)
        for place, kept in enumerate(document["tasks"].values()):
            for name, colour in SHOWN.items():
                if name in kept:
                    share = 100 * kept[name]["inside"][position]
                    axes.plot(share, place, "o", markersize=4, color=colour, label=name)
        axes.grid(axis="y", linewidth=0.3)
        axes.set_title(f"percent inside {title} intervals", fontsize=8, color=INK, loc="left", pad=2)
    grid[0, 0].set_yticks(range(count), _names(document), fontsize=6)
    grid[0, 0].invert_yaxis()
    _legend(figure, grid[0, 0])
    save(figure, path, MANY, document)


def _legend(figure: Any, axes: Any) -> None:
    handles = {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True) if name in SHOWN}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(SHOWN), frameon=False, fontsize=7)


def main() -> None:
    """Draw both figures."""
    document = json.loads((RESULTS / "gift.json").read_text())
    draw_losses(document, FIGURES / "gift-wql.png")
    draw_coverage(document, FIGURES / "gift-coverage.png")


if __name__ == "__main__":
    main()
