"""The picture of a filtered series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rfa.data import Series
    from rfa.service.schemas.replies import FilterStepReply


def draw_series(series: Series, steps: list[FilterStepReply], outliers: list[int], path: Path, *, title: str) -> None:
    """One panel per component: observations, estimate, its 50 % and 90 % bands, outliers ringed, forecasts dashed.

    The format follows the suffix of `path`.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    count = len(series.names)
    figure, grid = pyplot.subplots(
        count, 1, sharex=True, squeeze=False, figsize=(11, 1.2 + 2.6 * count), layout="constrained"
    )
    times = series.moments(np.array([step.t for step in steps]))
    for k, (axes, name) in enumerate(zip(grid[:, 0], series.names, strict=True)):
        for level, alpha in (("0.9", 0.15), ("0.5", 0.3)):
            band = np.array([step.interval[level][k] for step in steps])
            label = f"{float(level):.0%} interval"
            axes.fill_between(times, band[:, 0], band[:, 1], color="tab:blue", alpha=alpha, linewidth=0, label=label)
        axes.plot(times, [step.mean[k] for step in steps], color="tab:blue", linewidth=1.2, label="estimate")
        axes.plot(times, series.values[:, k], ".", color="0.35", markersize=3, label="observed")
        axes.plot(times[outliers], series.values[outliers, k], "o", color="tab:red", fillstyle="none", label="outlier")
        for j, point in enumerate(steps[0].forecast):
            ahead = [step.forecast[j] for step in steps]
            label = f"forecast {point.t - steps[0].t:g} ahead"
            axes.plot(
                series.moments(np.array([p.t for p in ahead])),
                [p.mean[k] for p in ahead],
                "--",
                linewidth=0.9,
                color=f"C{j + 1}",
                label=label,
            )
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    grid[0, 0].set_title(title)
    grid[-1, 0].set_xlabel("UTC" if series.is_dated else series.clock or "row")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
