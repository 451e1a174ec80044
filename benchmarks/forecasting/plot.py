"""The picture of a week's forecasts: observations, forecasts and served intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rfa.benchmarks.figures import no_display, write


def draw_week(week: dict[str, Any], path: str | Path) -> None:
    """Draw a row of panels per column of the series and a column per horizon, from `week` of the document of `ett`."""
    pyplot = no_display()

    columns = week["columns"]
    leads = list(next(iter(columns.values()))["leads"])
    size = (5.5 * len(leads), 2.6 * len(columns) + 0.4)
    figure, axes = pyplot.subplots(len(columns), len(leads), figsize=size, sharex=True, sharey="row", squeeze=False)
    for panels, (name, shown) in zip(axes, columns.items(), strict=True):
        y = np.array(shown["y"])
        hours = np.arange(len(y))
        for panel, lead in zip(panels, leads, strict=True):
            mean, low, high = (np.array(shown["leads"][lead][part]) for part in ("mean", "low", "high"))
            is_outside = (y < low) | (y > high)
            label = f"{100 * week['level']:g} % interval"
            panel.fill_between(hours, low, high, color="tab:blue", alpha=0.2, linewidth=0, label=label)
            panel.plot(hours, mean, color="tab:blue", linewidth=1.2, label=f"forecast {lead} h ahead")
            panel.plot(hours, y, ".", color="black", markersize=3, label="observed")
            panel.plot(hours[is_outside], y[is_outside], "o", color="tab:red", markersize=4, fillstyle="none")
            panel.set_title(f"{name}, {lead} h ahead: {len(y) - is_outside.sum()} of {len(y)} inside", fontsize=10)
            panel.grid(alpha=0.3)
    axes[0, 0].legend(fontsize="small", frameon=False, ncols=3, loc="lower left")
    for panel in axes[-1]:
        panel.set_xlabel(f"hours after {week['start']}")
        panel.set_xticks(np.arange(0, len(y) + 1, 24))
    figure.tight_layout()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(figure, path, dpi=110)


__all__ = ["draw_week"]
