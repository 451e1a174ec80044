"""The figure of a run: latency over time, and its distribution with the budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rfa.benchmarks.figures import no_display, write
from rfa.benchmarks.load.controller import Run
from rfa.benchmarks.load.histogram import UPPER_EDGES, Histogram
from rfa.benchmarks.load.scenario import latency_budget

LABELS = {
    "ttft": "first token",
    "itl": "between tokens",
    "observation": "observation",
    "batch": "filter request",
    "rejection": "rejection",
}


def draw_run(run: Run, path: Path) -> None:
    """Draw median and 99th percentile of every metric over time (left) and its distribution with budgets (right)."""
    pyplot = no_display()

    shown = {name: run.tally.histograms[name] for name in LABELS if name in run.tally.histograms}
    if not shown:
        raise ValueError("nothing was measured, so there is nothing to draw")
    figure, (over_time, distribution) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for position, (name, histogram) in enumerate(shown.items()):
        colour = f"C{position}"
        times = run.tally.slice_seconds * (np.arange(run.tally.slices) + 0.5)
        for percent, style in ((50, "-"), (99, "--")):
            values = 1e3 * np.array(histogram.over_time(percent))
            over_time.plot(times, values, style, color=colour, linewidth=1, label=f"{LABELS[name]} p{percent}")
        distribution.step(*_survival(histogram), where="post", color=colour, label=LABELS[name])
        for budget, limit in run.scenario.budget.items():
            if (bound := latency_budget(budget)) is not None and bound[0] == name:
                distribution.axvline(limit, color=colour, linestyle=":", linewidth=1)
                over_time.axhline(limit, color=colour, linestyle=":", linewidth=1)
    over_time.set(xlabel="s", ylabel="ms", yscale="log", title=f"{run.scenario.name}: latency from the scheduled time")
    distribution.set(xlabel="ms", ylabel="fraction that is slower", xscale="log", yscale="log", title="distribution")
    for axes in (over_time, distribution):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", frameon=False)
    write(figure, path, dpi=120)


def _survival(histogram: Histogram) -> tuple[Any, Any]:
    """Return latencies in milliseconds and the fraction of latencies above each."""
    counts = histogram.counts.sum(axis=0)
    used = np.flatnonzero(counts)
    above = 1 - np.cumsum(counts[used]) / counts.sum()
    # No latency exceeds the last one; the logarithmic axis shows it at half a latency.
    return 1e3 * UPPER_EDGES[used], np.maximum(above, 0.5 / counts.sum())
