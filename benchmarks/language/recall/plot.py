"""The figure of `rfa bench recall`: accuracy by pairs, by length of a copied string, and by distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rfa.benchmarks.figures import no_display, write

ATTENTION_COLOURS = {"softmax": "0.5", "rfa": "black"}


def _lines(axes: Any, rows: Sequence[Mapping[str, Any]], across: str, chosen: Any, colours: Mapping[str, Any]) -> None:
    """Return one line per row over `across` ("size" or "filler") of the chosen cells, with their intervals."""
    for row in rows:
        cells = [cell for cell in row["scores"] if chosen(cell)]
        if not cells:
            continue
        x = [cell[across] for cell in cells]
        style = "--" if row["mode"] == "attention" else "-"
        colour = colours[row["setting"]]
        axes.plot(x, [cell["accuracy"] for cell in cells], style, marker="o", color=colour, label=row["title"])
        axes.fill_between(x, [cell["low"] for cell in cells], [cell["high"] for cell in cells], color=colour, alpha=0.2)


def draw_recall(document: Mapping[str, Any], path: Path) -> None:
    """Draw panels for pairs, copied strings and distance. The suffix sets the format."""
    pyplot = no_display()

    names = list(dict.fromkeys(row["setting"] for row in document["rows"]))
    recurrent = [name for name in names if name not in ATTENTION_COLOURS]
    shades = pyplot.get_cmap("viridis")
    colours = ATTENTION_COLOURS | {name: shades(i / max(len(recurrent), 1)) for i, name in enumerate(recurrent)}
    recall = [row for row in document["rows"] if row["task"] == "recall"]
    copy = [row for row in document["rows"] if row["task"] == "copy"]
    pairs = document["plan"]["filler_pairs"]
    panels = [
        (recall, "size", lambda cell: cell["filler"] == 0, "pairs", "associative recall"),
        (copy, "size", lambda cell: cell["filler"] == 0, "symbols", "copy"),
        (recall, "filler", lambda cell: cell["size"] == pairs, "filler between pairs and queries", f"{pairs} pairs"),
    ]
    drawn = [panel for panel in panels if panel[0]]  # omit a task that was not run
    figure, grid = pyplot.subplots(
        1, len(drawn), figsize=(4.4 * len(drawn), 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, (rows, across, chosen, label, title) in zip(grid[0], drawn, strict=True):
        _lines(axes, rows, across, chosen, colours)
        if across == "size":
            axes.set_xscale("log", base=2)
        else:  # without filler a place is needed too
            axes.set_xscale("symlog", base=2, linthresh=32)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set(xlabel=label, title=title)
        axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel("accuracy")
    grid[0, 0].legend(fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(figure, path, dpi=100)
