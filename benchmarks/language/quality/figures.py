"""The figure of `rfa bench quality`: perplexity against the length of the window."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from rfa.benchmarks.figures import no_display, write
from rfa.benchmarks.language.quality.bars import DAMPINGS, Case, cases, losses
from rfa.benchmarks.language.quality.scores import WINDOWS

SHOWN = "M2"
# Maximum characters of a legend below the curves.
LABEL = 64


def draw_quality(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the table into a folder and return the files; none without runs."""
    folder.mkdir(parents=True, exist_ok=True)
    return [draw_lengths(document, folder / "quality-length.png")] if document["runs"] else []


def groups(found: list[Case]) -> dict[str, list[Case]]:
    """Return the curves of each panel. M2 is in every panel."""
    reference = Case(SHOWN)
    panels: dict[str, list[Case]] = {}
    for case in found:
        if case != reference:
            panels.setdefault(_panel(case.variant), [reference] if reference in found else []).append(case)
    return panels or {"models": [reference]}


def _panel(variant: str) -> str:
    if variant in DAMPINGS:
        return "damping of SC-RFA"
    if variant.endswith("-h8"):
        return "eight heads"
    if variant.startswith(SHOWN):
        return "ablations of SC-RFA"
    if variant.startswith("recipe") and "-both" in variant:
        return "one checkpoint, by recipe"
    starts = {"slots": "slots alone", "both": "attention and slots", "recipe": "recipes"}
    return next((title for start, title in starts.items() if variant.startswith(start)), "models")


def draw_lengths(document: Mapping[str, Any], path: Path) -> Path:
    """Draw perplexity against the length of the window: the mean over the seeds and the range."""
    panels = groups(cases(document))
    figure, grid = no_display().subplots(
        len(WINDOWS), len(panels), figsize=(4.2 * len(panels), 9.5), sharex=True, squeeze=False, layout="constrained"
    )
    lengths = [factor * document["context"] for factor in document["factors"]]
    for axes_of_kind, windows in zip(grid, WINDOWS, strict=True):
        for axes, (title, curves) in zip(axes_of_kind, panels.items(), strict=True):
            variants = list(dict.fromkeys(case.variant for case in curves if case != Case(SHOWN)))
            for case in curves:
                values = [list(losses(document, case, windows, factor).values()) for factor in document["factors"]]
                curve = [(length, np.exp(nats)) for length, nats in zip(lengths, values, strict=True) if nats]
                x = [length for length, _ in curve]
                label = shorten(f"{case}: {document['variants'][case.variant]['title']}", LABEL, placeholder=" …")
                colour = "black" if case == Case(SHOWN) else f"C{variants.index(case.variant) % 10}"
                style = ".--" if case.mode == "recurrent" else ".-"
                axes.plot(x, [p.mean() for _, p in curve], style, color=colour, linewidth=1.3, label=label)
                low, high = [p.min() for _, p in curve], [p.max() for _, p in curve]
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.set(xscale="log", yscale="log", title=f"{title}, {windows} windows")
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.minorticks_off()
            axes.yaxis.set_major_locator(_ticks())
            axes.yaxis.set_major_formatter("{x:g}")
            axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("perplexity")
    for axes in grid[-1]:
        axes.set_xlabel(f"tokens of a window (trained at {document['context']})")
        axes.legend(fontsize="x-small", frameon=False, loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0)
    return write(figure, path)


def _ticks() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10, subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
