"""The pictures of the AFA experiment, after figures 1 to 3 of Adaptive Filter Attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = {"truth": "black", "measured": "tab:blue", "predicted": "tab:red"}
# Of the attention weights, over the largest of their row.
SMALLEST_SHOWN = 1e-3


@dataclass(frozen=True)
class Trajectory:
    """One series `[N, 2]` at `times` `[N]`: each prediction stands at the measurement that it is for (the first has
    none), with the deviation `[N]` of that measurement."""

    title: str
    times: np.ndarray
    truth: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray
    deviation: np.ndarray


@dataclass(frozen=True)
class Clouds:
    """Points `[row + 1, 2]` carried to each of the rows, and the path `[N, 2]` that they should meet."""

    title: str
    truth: np.ndarray
    rows: tuple[int, ...]
    points: list[np.ndarray]


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=75, pil_kwargs={"optimize": True})
    _pyplot().close(figure)


def draw_trajectories(shown: list[Trajectory], path: Path, *, width: float) -> None:
    """Above the plane of the state, below its first component over time with the band of `width` deviations."""
    figure, grid = _pyplot().subplots(
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
    _save(figure, path)


def draw_clouds(stages: list[Clouds], path: Path) -> None:
    """One panel a stage: the path, the rows' states on it, and around each the points carried there."""
    figure, grid = _pyplot().subplots(
        1, len(stages), sharex=True, sharey=True, squeeze=False, figsize=(4 * len(stages), 3.8), layout="constrained"
    )
    for axes, stage in zip(grid[0], stages, strict=True):
        axes.plot(*stage.truth.T, color=COLOURS["truth"], linewidth=1.2)
        for k, (row, points) in enumerate(zip(stage.rows, stage.points, strict=True)):
            axes.plot(*points.T, ".", color=f"C{k}", markersize=3, alpha=0.7)
            axes.plot(*stage.truth[row], "X", color=f"C{k}", markeredgecolor="black", markersize=9)
        axes.set(title=stage.title, xlabel="x₁")
    grid[0, 0].set_ylabel("x₂")
    _save(figure, path)


def draw_attention(matrices: dict[str, np.ndarray], path: Path) -> None:
    """One matrix `[N, N]` a panel, each row over its largest weight; what is hidden from a row is white."""
    pyplot = _pyplot()
    from matplotlib.colors import LogNorm

    figure, grid = pyplot.subplots(
        1, len(matrices), squeeze=False, figsize=(4 * len(matrices), 4.2), layout="constrained"
    )
    for axes, (title, weights) in zip(grid[0], matrices.items(), strict=True):
        shown = np.where(np.tri(len(weights), dtype=bool), weights / weights.max(axis=1, keepdims=True), np.nan)
        scale = LogNorm(SMALLEST_SHOWN, 1)
        image = axes.imshow(np.maximum(shown, SMALLEST_SHOWN), cmap="viridis", norm=scale, interpolation="nearest")
        axes.set(title=title, xlabel="key")
    grid[0, 0].set_ylabel("query")
    figure.colorbar(image, ax=grid[0], shrink=0.8, label="weight / largest of the row")
    _save(figure, path)
