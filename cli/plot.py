"""The picture of filtered series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from rfa.cli.filter_run import Filtered

ENDINGS: Final = (".png", ".svg", ".pdf", ".jpg")
# Panels of one picture, and inches of each: the more there are the lower they are.
MOST_PANELS: Final = 64
WIDTH, TALLEST, LOWEST = 11.0, 2.8, 1.3
# Points of a line, beyond which it is thinned: an image has no more columns.
POINTS: Final = 20_000
LEVELS: Final = (("0.9", 0.15), ("0.5", 0.3))
# Units as names have them: `latency (ms)`, `power [kW]`, `temp_c`.
IN_BRACKETS: Final = re.compile(r"^(.*?)[ _]*[(\[]([^()\[\]]{1,12})[)\]]$")
UNITS: Final = {
    "c": "°C", "degc": "°C", "celsius": "°C", "f": "°F", "degf": "°F", "fahrenheit": "°F", "k": "K", "ms": "ms",
    "us": "µs", "s": "s", "seconds": "s", "min": "min", "pct": "%", "percent": "%", "w": "W", "kw": "kW", "mw": "MW",
    "kwh": "kWh", "v": "V", "a": "A", "hz": "Hz", "rpm": "rpm", "bar": "bar", "pa": "Pa", "hpa": "hPa", "kpa": "kPa",
    "mm": "mm", "m": "m", "km": "km", "kg": "kg", "bytes": "B", "kb": "kB", "mb": "MB", "gb": "GB", "mbps": "Mbit/s",
    "usd": "USD", "eur": "EUR",
}  # fmt: skip


def draw(found: Sequence[Filtered], path: Path, *, title: str) -> None:
    """A panel for every column of every series: measurements, estimate and its bands, outliers, alarms, spans without a
    measurement, and the forecast as a fan at the end.

    The format follows the suffix of `path`.

    Raises:
        ValueError: there are more than `MOST_PANELS` columns.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    count = sum(len(one.series.names) for one in found)
    if count > MOST_PANELS:
        raise ValueError(f"--plot draws up to {MOST_PANELS} columns, these are {count}: choose some with --column")
    height = max(LOWEST, min(TALLEST, 40 / count))
    figure, grid = pyplot.subplots(
        count, 1, sharex=len(found) == 1, squeeze=False, figsize=(WIDTH, 1.2 + height * count), layout="constrained"
    )
    panels = iter(grid[:, 0])
    for one in found:
        for k in range(len(one.series.names)):
            axes = next(panels)
            _panel(axes, one, k)
            axes.set_ylabel(labelled(one.series.names[k]))
            axes.grid(alpha=0.3)
            axes.margins(x=0.01)
            if len(found) > 1 and k == 0:
                axes.set_title(one.label, fontsize="medium", loc="left")
        axes.set_xlabel("UTC" if one.series.is_dated else one.series.clock or "row")
    figure.suptitle(title)
    shown: dict[str, Any] = {}
    for axes in grid[:, 0]:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def labelled(name: str) -> str:
    """A column's name with its unit, where it says one."""
    if found := IN_BRACKETS.match(name):
        return f"{found[1]} [{found[2]}]"
    stem, _, unit = name.rpartition("_")
    return f"{stem} [{UNITS[unit.lower()]}]" if stem and unit.lower() in UNITS else name


def _panel(axes: Any, one: Filtered, k: int) -> None:
    series, columns, name = one.series, one.columns, one.series.names[k]
    every = slice(None, None, max(1, len(series.times) // POINTS))
    times = series.moments(series.times)
    values = series.values[:, k]
    for level, alpha in LEVELS:
        low, high = (columns[f"{end}.{level}.{name}"][every] for end in ("lower", "upper"))
        label = f"{float(level):.0%} interval"
        axes.fill_between(times[every], low, high, color="tab:blue", alpha=alpha, linewidth=0, label=label)
    axes.plot(times[every], columns[f"mean.{name}"][every], color="tab:blue", linewidth=1.2, label="estimate")
    axes.plot(times[every], values[every], ".", color="0.35", markersize=3, label="measured")
    for number, (begin, end) in enumerate(gaps(np.isnan(values))):
        axes.axvspan(
            times[begin], times[end], color="0.85", linewidth=0, label="nothing measured" if not number else None
        )
    if one.outliers:
        where = np.array(one.outliers)
        axes.plot(times[where], values[where], "o", color="tab:red", fillstyle="none", label="outlier")
    alarms = np.flatnonzero(columns["alarm"] == 1)
    if len(alarms):
        axes.plot(times[alarms], values[alarms], "v", color="tab:orange", markersize=8, label="alarm")
    for number, lead in enumerate(one.leads):
        ahead = series.moments(series.times + lead)
        mean = columns[f"forecast.{lead!r}.mean.{name}"]
        axes.plot(
            ahead[every], mean[every], "--", linewidth=0.9, color=f"C{number + 2}", label=f"forecast {lead:g} ahead"
        )
    if len(one.ahead):
        _fan(axes, one, k)


def _fan(axes: Any, one: Filtered, k: int) -> None:
    """The rows that come next."""
    times = one.series.moments(one.ahead)
    for level, alpha in LEVELS:
        mean, _, low, high = one.ahead_of(level)[k]
        axes.fill_between(
            times, low, high, color="tab:green", alpha=alpha, linewidth=0, label=f"forecast, {float(level):.0%}"
        )
    axes.plot(times, mean, color="tab:green", linewidth=1.2, label="forecast")


def gaps(is_missing: np.ndarray) -> list[tuple[int, int]]:
    """Spans without a measurement: the rows before and after each, or the first and last of all."""
    edges = np.diff(np.concatenate(([False], is_missing, [False])).astype(np.int8))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    last = len(is_missing) - 1
    return [(max(int(begin) - 1, 0), min(int(end), last)) for begin, end in zip(begins, ends, strict=True)]
