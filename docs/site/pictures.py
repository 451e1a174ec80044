"""Draw the pictures of the README and the text guide from output of the commands and the server.

python -m docs.site.pictures     writes stream.png, tokens.png and samples.png of docs/figures
"""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import matplotlib as mpl
import numpy as np

from rfa.benchmarks.load.server import started
from rfa.measured import HOME

FIGURES = HOME / "docs" / "figures"
SERIES = HOME / "docs" / "oscillator.csv"
STREAM = ("filter", str(SERIES), "--bundle", "linear", "--lead", "0.5")
PROMPT = "It was the"
TOKENS = ("generate", PROMPT, "--max-new-tokens", "110", "--seed", "7")
BUNDLE = HOME / "bundles" / "books"
# Number of positions whose latents are shown, samples per position, and alternatives requested for each sample.
POSITIONS, SAMPLES, ALTERNATIVES = 24, 16, 32
ANSWER_SECONDS = 60
GROUND, INK, ALARM = "#fbfaf7", "#22252a", "#c2362b"
# From light to dark, but never too dark for black text.
SHADES = "YlGnBu"
DARKEST = 0.55
# Characters per line, and inches per character.
COLUMNS = 74
WIDTH, HEIGHT = 0.1, 0.27

Piece = tuple[int, int, str, float | None]


def answer(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the document that an `rfa` command prints with --json."""
    command = [sys.executable, "-m", "rfa", *arguments, "--json"]
    result = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def draw_stream(document: dict[str, Any], observed: np.ndarray, path: Path) -> None:
    """Draw the first component of a filtered series: observations, estimate, 90 % interval, outliers, forecast.

    document: reply of `rfa filter --json`. observed: the component `[rows]`, NaN if missing.
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
    """Draw a text with each generated token on a background that is darker for higher confidence."""
    from matplotlib import pyplot
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    shades = LinearSegmentedColormap.from_list("sure", mpl.colormaps[SHADES](np.linspace(0, DARKEST, 64)))
    pieces = list(layout_pieces([(prompt, None), *((token["text"], token["confidence"]) for token in tokens)]))
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
        # Draw one letter at a time, so that positions follow the grid in any font.
        for place, letter in enumerate(text):
            axes.text(
                column + place + 0.5, line + 0.55, letter, ha="center", va="center", family="monospace", color=INK
            )
    bar = figure.colorbar(ScalarMappable(cmap=shades), ax=axes, fraction=0.02, ticks=[0, 0.5, 1])
    bar.set_label("confidence", color=INK)
    bar.ax.tick_params(colors=INK)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


@dataclass(frozen=True)
class Position:
    """The next token of a text for the mean of the last layer's latent, and for samples of it.

    text, probability: the most probable token by the mean. sampled: its probability by each sample. is_chosen: whether
    a sample prefers it too. latent, latents: first number of the first head, by the mean and the samples.
    """

    text: str
    probability: float
    sampled: Sequence[float]
    is_chosen: Sequence[bool]
    latent: float
    latents: Sequence[float]

    @classmethod
    def after(cls, url: str, prompt: str, seed: int) -> Position:
        """Request the next token of a prompt from a server."""
        (mean,) = next_token(url, prompt, seed, latent_noise=0, n=1)
        samples = next_token(url, prompt, seed, latent_noise=1, n=SAMPLES)
        (token,) = mean["tokens"]
        return cls(
            text=token["text"],
            probability=math.exp(token["logprob"]),
            sampled=[probability_of(token["id"], sample) for sample in samples],
            is_chosen=[sample["tokens"][0]["id"] == token["id"] for sample in samples],
            latent=mean["latents"][0][0][0],
            latents=[sample["latents"][0][0][0] for sample in samples],
        )


def next_token(url: str, prompt: str, seed: int, **parameters: float) -> list[dict[str, Any]]:
    """Return the details of the next token of each continuation: the most probable token, alternatives and latent."""
    options = {"max_new_tokens": 1, "do_sample": False, "top_n_tokens": ALTERNATIVES, "return_latents": True}
    body = {"inputs": prompt, "parameters": {**options, "seed": seed, **parameters}}
    request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=ANSWER_SECONDS) as response:
        reply = json.load(response)
    return [continuation["details"] for continuation in reply["continuations"] or [reply]]


def probability_of(token: int, details: dict[str, Any]) -> float:
    """Return the probability of a token that is among the alternatives."""
    return next(math.exp(reply["logprob"]) for reply in details["top_tokens"][0] if reply["id"] == token)


def positions_of(url: str) -> list[Position]:
    """Continue the prompt with the most probable tokens, and return the positions requested on the way."""
    text, found = PROMPT, []
    for seed in range(POSITIONS):  # with one seed for all positions, they would share the noise of their samples
        found.append(Position.after(url, text, seed))
        text += found[-1].text
    return found


def draw_samples(positions: Sequence[Position], path: Path) -> None:
    """Draw a latent component along a text, and the probability of each token, for the mean and for every sample."""
    from matplotlib import pyplot

    figure, (latents, probabilities) = pyplot.subplots(
        2, 1, figsize=(9, 5), sharex=True, layout="constrained", facecolor=GROUND
    )
    for place, position in enumerate(positions):
        # Side by side in increasing order, so that equal values do not hide each other.
        places = place + np.linspace(-0.3, 0.3, len(position.sampled))
        colours = ["#4a90c2" if is_chosen else ALARM for is_chosen in position.is_chosen]
        latents.scatter(places, position.latents, s=6, c=colours, linewidths=0)
        probabilities.scatter(places, position.sampled, s=6, c=colours, linewidths=0)
        for axes, mean in ((latents, position.latent), (probabilities, position.probability)):
            axes.hlines(mean, place - 0.4, place + 0.4, color=INK, linewidth=1.4)
    latents.set_ylabel("latent: head 0, number 0", color=INK)
    probabilities.set_ylabel("probability of the token", color=INK)
    probabilities.set_yscale("log")
    probabilities.set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    probabilities.set_xticks(
        range(len(positions)), [shown_token(position.text) for position in positions], rotation=60, ha="right",
        rotation_mode="anchor",
    )  # fmt: skip
    for axes in (latents, probabilities):
        axes.set_facecolor(GROUND)
        axes.tick_params(colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
    latents.hlines([], 0, 0, color=INK, linewidth=1.6, label="mean of the latent")
    latents.scatter([], [], s=14, c="#4a90c2", label="sample: the same token is most probable")
    latents.scatter([], [], s=14, c=ALARM, label="sample: another is")
    figure.legend(loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def shown_token(text: str) -> str:
    """Return a token as a label without its leading space, and with a symbol for a line break."""
    return text.strip(" ").replace("\n", "↵")


def layout_pieces(texts: Sequence[tuple[str, float | None]]) -> Iterator[Piece]:
    """Return line, column, text and confidence of every piece. A line break becomes a space, and words may be split."""
    line = column = 0
    for text, confidence in texts:
        shown = text.replace("\n", " ")
        if column + len(shown) > COLUMNS:
            line, column = line + 1, 0
        yield line, column, shown, confidence
        column += len(shown)


def first_column(path: Path) -> np.ndarray:
    """Return the first column of a CSV after its time column, as [rows]. Empty cells are NaN."""
    with path.open(newline="") as file:
        return np.array([float(row[1] or "nan") for row in list(csv.reader(file))[1:]])


def main() -> None:
    """Draw all pictures."""
    mpl.use("Agg")
    draw_stream(answer(STREAM), first_column(SERIES), FIGURES / "stream.png")
    draw_tokens(PROMPT, answer(TOKENS)["tokens"], FIGURES / "tokens.png")
    with started([BUNDLE], {"processes": 1}) as server:
        draw_samples(positions_of(server.url), FIGURES / "samples.png")


if __name__ == "__main__":
    main()
