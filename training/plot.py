"""Plot training and validation loss of a run against tokens, with one line per mode."""

from __future__ import annotations

import json
import math
from pathlib import Path

METRICS_FILE = "metrics.jsonl"
PLOT_FILE = "metrics.png"


def plot_metrics(run: Path) -> Path:
    """Plot `metrics.jsonl` of a language run to `metrics.png` next to it, and return the path of the image.

    Raises:
        ValueError: If the run has no metrics.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [json.loads(line) for line in (run / METRICS_FILE).read_text().splitlines()]
    if not rows:
        raise ValueError(f"{METRICS_FILE} of {run.name} is empty")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    tokens = [row["tokens"] for row in rows]
    for color, mode in zip(("tab:blue", "tab:orange"), rows[-1]["valid"], strict=False):
        # A mode that is trained only in later steps has no training loss in the first rows.
        trained = [row["train"].get(mode, math.nan) for row in rows]
        axes.plot(tokens, trained, color=color, alpha=0.4, label=f"train, {mode}")
        axes.plot(tokens, [row["valid"][mode] for row in rows], color=color, marker=".", label=f"valid, {mode}")
    axes.set(xlabel="tokens seen", ylabel="nats per token", title=run.name)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(run / PLOT_FILE, dpi=120)
    pyplot.close(figure)
    return run / PLOT_FILE
