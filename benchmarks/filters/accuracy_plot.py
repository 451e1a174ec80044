"""Picture of `accuracy`: the error relative to the oracle by kind of noise, and the error after a jump."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rfa.benchmarks.figures import no_display, write

JUMP = "50"
SCENARIOS = ("clean", "5 % x10", "5 % x20", "Student-t", "mixture")
COLOURS = {"kalman": "0.6", "gate": "C4", "Student-t EM": "C2", "linear": "C0", "linear, learned": "C1"}
SHIFT_COLOURS = {**COLOURS, "linear, no re-acquisition": "C3"}


def draw_accuracy(document: Mapping[str, Any], path: Path) -> None:
    """Draw RMSE relative to the oracle (left) and the median error after a jump (right). The suffix sets the format."""
    pyplot = no_display()

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    width = 0.8 / len(COLOURS)
    for i, (name, colour) in enumerate(COLOURS.items()):
        rows = [document["tracking"][scenario] for scenario in SCENARIOS]
        excess = [100 * (row[name]["rmse"] / row["oracle"]["rmse"] - 1) for row in rows]
        places = [k + (i - (len(COLOURS) - 1) / 2) * width for k in range(len(SCENARIOS))]
        left.bar(places, excess, width, label=name, color=colour)
    left.set_xticks(range(len(SCENARIOS)), SCENARIOS)
    # Linear in the range of the robust filters, logarithmic in that of the Kalman filter.
    left.set_yscale("symlog", linthresh=10)
    left.set(ylabel="% above the oracle's RMSE", title="error by noise, WoLF's tracking setting")
    for name, row in document["level_shift"][JUMP].items():
        right.plot(range(len(row["error"])), row["error"], label=name, color=SHIFT_COLOURS[name])
    right.set(xlabel="observations after the jump", ylabel="median position error", title=f"a jump of {JUMP}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.legend(fontsize="small", frameon=False)
    write(figure, path, dpi=120)
