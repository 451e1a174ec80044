"""Draw the reliability diagram of `rfa.training.evaluate.confidence`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOURS = {"softmax": "0.6", "served": "C0"}
TITLES = {"top": "most likely token", "sampled": "token sampled from the model"}


def draw_reliability(document: Mapping[str, Any], path: str | Path) -> None:
    """Draw a grid of panels, with one row per mode and one column per kind of token.

    Args:
        document: Result of `confidence.report`.
        path: Path of the image. Its suffix selects the format.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    modes = document["modes"]
    size = (4.6 * len(TITLES), 4.4 * len(modes))
    figure, axes = pyplot.subplots(len(modes), len(TITLES), figsize=size, squeeze=False, layout="constrained")
    for panels, (mode, part) in zip(axes, modes.items(), strict=True):
        for panel, (rule, title) in zip(panels, TITLES.items(), strict=True):
            panel.plot([0, 1], [0, 1], color="0.3", linewidth=0.8)
            for stage, colour in COLOURS.items():
                found = part["calibration"]["rules"][rule][stage]
                bins = found["bins"]
                label = f"{'confidence as served' if stage == 'served' else stage}: ECE {100 * found['ece']:.2f} %"
                panel.plot(bins["confidence"], bins["accuracy"], "o-", color=colour, markersize=4, label=label)
            panel.set(title=f"{mode}, {title}", xlabel="stated probability", ylabel="fraction of correct tokens")
            panel.set_aspect("equal")
            panel.grid(alpha=0.3)
            panel.legend(fontsize="small", frameon=False, loc="upper left")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
