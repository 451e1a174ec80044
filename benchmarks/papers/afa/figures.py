"""Figures of the AFA experiment, after figures 1 to 3 of Adaptive Filter Attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rfa.benchmarks.figures import no_display, write

COLOURS = {"truth": "black", "measured": "tab:blue", "predicted": "tab:red"}


@dataclass(frozen=True)
class Trajectory:
    """One series `[N, 2]` at `times` `[N]`.

    Each prediction is stored at the measurement that it predicts (the first has none), with the deviation `[N]`.
    """

    title: str
    times: np.ndarray
    truth: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    deviation: np.ndarray


def draw_trajectories(shown: list[Trajectory], path: Path, *, width: float) -> None:
    """Draw the state plane above and the first component over time below, with a band of `width` deviations."""
    figure, grid = no_display().subplots(
        2, len(shown), squeeze=False, figsize=(4 * len(shown), 6), height_ratios=(1.5, 1), layout="constrained"
    )
    for (plane, series), case in zip(grid.T, shown, strict=True):
        plane.plot(*case.measured.T, ".", color=COLOURS["measured"], markersize=3, label="measured")
        plane.plot(*case.truth.T, color=COLOURS["truth"], linewidth=1.2, label="truth")
        plane.plot(*case.predicted[1:].T, color=COLOURS["predicted"], linewidth=1.2, label="predicted, one step ahead")
        plane.set(title=case.title, xlabel="x₁", ylabel="x₂")
        mean, half = case.predicted[1:, 0], width * case.deviation[1:]
        series.fill_between(
            case.times[1:], mean - half, mean + half, color=COLOURS["predicted"], alpha=0.2, linewidth=0,
            label="90 % of the measurements",
        )  # fmt: skip
        series.plot(case.times, case.measured[:, 0], ".", color=COLOURS["measured"], markersize=3)
        series.plot(case.times, case.truth[:, 0], color=COLOURS["truth"], linewidth=1.2)
        series.plot(case.times[1:], mean, color=COLOURS["predicted"], linewidth=1.2)
        series.set(xlabel="time", ylabel="x₁")
    handles = [pair for axes in grid[:, 0] for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=4, frameon=False)
    write(figure, path, dpi=75)
