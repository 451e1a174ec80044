"""The pictures of the README, from what the commands answer.

    python -m rfa.bench.pictures        writes docs/figures/stream.png and docs/figures/tokens.png, in a minute

The stream is `rfa filter` on docs/oscillator.csv, the tokens are `rfa generate`: the interpreter's own `rfa`, with the
default bundles. Both have a light ground of their own, so that they can be read on a dark page too.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from rfa.measured import HOME

FIGURES = HOME / "docs" / "figures"
SERIES = HOME / "docs" / "oscillator.csv"
STREAM = ("filter", str(SERIES), "--bundle", "linear", "--horizon", "0.5")
PROMPT = "It was the"
TOKENS = ("generate", PROMPT, "--max-new-tokens", "110", "--seed", "7")
GROUND, INK, ALARM = "#fbfaf7", "#22252a", "#c2362b"
# Light to dark, never so dark that black text on it could not be read.
SHADES = "YlGnBu"
DARKEST = 0.55
# Characters in a line of text, and inches of one of them.
COLUMNS = 74
WIDTH, HEIGHT = 0.1, 0.27

Piece = tuple[int, int, str, float | None]


def answer(arguments: Sequence[str]) -> dict[str, Any]:
    """What a command of `rfa` prints with --json."""
    command = [sys.executable, "-m", "rfa", *arguments, "--json"]
    result = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def draw_stream(document: dict[str, Any], observed: np.ndarray, path: Path) -> None:
    """The first component of a filtered series: observations, estimate, 90 % interval, outliers, forecast.

    Args:
        document: the answer of `rfa filter --json`.
        observed: that component as it was measured [rows], NaN where nothing was.
        path: image to write.
    """
    from matplotlib import pyplot

    steps, outliers = document["steps"], document["outliers"]
    times = np.array([step["t"] for step in steps])
    low, high = np.array([step["interval"]["0.9"][0] for step in steps]).T
    last = steps[-1]["forecast"][0]
    figure, axes = pyplot.subplots(figsize=(9, 3.1), layout="constrained", facecolor=GROUND)
    axes.set_facecolor(GROUND)
    axes.fill_between(times, low, high, color="#8db8dc", linewidth=0, label="90 % interval")
    axes.plot(times, [step["mean"][0] for step in steps], color="#14508c", linewidth=1.4, label="estimate")
    axes.plot(times, observed, ".", color=INK, markersize=3.5, label="observed")
    axes.plot(
        times[outliers], observed[outliers], "o", color=ALARM, fillstyle="none", markersize=8, label="outlier in x or y"
    )
    below, above = last["interval"]["0.9"][0]
    mean = last["mean"][0]
    axes.errorbar(
        last["t"], mean, [[mean - below], [above - mean]], fmt="D", color="#b06a00", capsize=3, label="forecast"
    )
    gap = times[np.isnan(observed)]
    axes.annotate(
        "nothing measured:\nless sure",
        (gap.mean(), high[np.isnan(observed)].max()),
        ha="center",
        va="bottom",
        color=INK,
    )
    axes.set_xlabel("time", color=INK)
    axes.set_ylabel("x", color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=5, frameon=False, labelcolor=INK)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_tokens(prompt: str, tokens: Sequence[dict[str, Any]], path: Path) -> None:
    """A text with every generated token on a ground as dark as the model is sure of it."""
    from matplotlib import pyplot
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    shades = LinearSegmentedColormap.from_list("sure", mpl.colormaps[SHADES](np.linspace(0, DARKEST, 64)))
    pieces = list(laid_out([(prompt, None), *((token["text"], token["confidence"]) for token in tokens)]))
    lines = 1 + max(line for line, *_ in pieces)
    figure, axes = pyplot.subplots(figsize=(COLUMNS * WIDTH + 0.9, lines * HEIGHT + 0.3), layout="constrained")
    figure.set_facecolor(GROUND)
    axes.set(xlim=(0, COLUMNS), ylim=(lines, 0))
    axes.axis("off")
    for line, column, text, confidence in pieces:
        if confidence is not None:
            axes.add_patch(
                Rectangle((column, line + 0.05), len(text), 0.9, facecolor=shades(confidence), edgecolor=GROUND)
            )
        # One letter at a time: the places are those of the grid, whatever the font is.
        for place, letter in enumerate(text):
            axes.text(
                column + place + 0.5, line + 0.55, letter, ha="center", va="center", family="monospace", color=INK
            )
    bar = figure.colorbar(ScalarMappable(cmap=shades), ax=axes, fraction=0.02, ticks=[0, 0.5, 1])
    bar.set_label("confidence", color=INK)
    bar.ax.tick_params(colors=INK)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def laid_out(texts: Sequence[tuple[str, float | None]]) -> Iterator[Piece]:
    """Line, column, text and confidence of every piece; a line break is shown as a space, words may be parted."""
    line = column = 0
    for text, confidence in texts:
        shown = text.replace("\n", " ")
        if column + len(shown) > COLUMNS:
            line, column = line + 1, 0
        yield line, column, shown, confidence
        column += len(shown)


def first_column(path: Path) -> np.ndarray:
    """The first column of a CSV behind its clock [rows]; NaN where it is empty."""
    with path.open(newline="") as file:
        return np.array([float(row[1] or "nan") for row in list(csv.reader(file))[1:]])


def main() -> None:
    """Draw both."""
    mpl.use("Agg")
    draw_stream(answer(STREAM), first_column(SERIES), FIGURES / "stream.png")
    draw_tokens(PROMPT, answer(TOKENS)["tokens"], FIGURES / "tokens.png")


if __name__ == "__main__":
    main()
