"""The picture of filtered series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from rfa.data.clock import get_zone

if TYPE_CHECKING:
    from rfa.cli.filter_run import Filtered

ENDINGS: Final = (".png", ".svg", ".pdf", ".jpg")
# Panels of one picture, and inches of each: the more there are the lower they are.
MOST_PANELS: Final = 64
WIDTH, TALLEST, LOWEST = 11.0, 2.8, 1.3
# Points of a line, beyond which it is thinned: an image has no more columns.
POINTS: Final = 20_000
# A forecast that has less than such a part of the rows is drawn again, after so many times its rows, or so many rows.
SHORT, BEFORE, FEWEST = 10, 4, 48
# A clock is even where most steps are as long as the usual one; a gap has as many usual steps, more on an uneven clock.
EVEN, MOSTLY, LONGER, LONGER_BY_FAR = 0.05, 0.9, 1.5, 10.0
# Sizes of marks: smaller the more there are.
SMALLEST, CROWD = 3.5, 60.0
# Rows, and at most such a part of them, whose intervals rest on so few that a panel may end before they do; and the
# part of it that is empty above and below.
FIRST_ROWS, AT_MOST, EMPTY = 20, 0.5, 0.05
# A column is marked that is off by such a part of what the furthest is.
AS_FAR = 0.5
WIDE: Final = "0.9"
LEVELS: Final = (("0.9", 0.15), ("0.5", 0.3))
MEASURED: Final[dict[str, Any]] = {"marker": ".", "linestyle": "none", "color": "0.35", "markersize": 3}
# Units as names have them: `latency (ms)`, `power [kW]`, `temp_c`.
IN_BRACKETS: Final = re.compile(r"^(.*?)[ _]*[(\[]([^()\[\]]{1,12})[)\]]$")
UNITS: Final = {
    "c": "°C", "degc": "°C", "celsius": "°C", "f": "°F", "degf": "°F", "fahrenheit": "°F", "k": "K", "ms": "ms",
    "us": "µs", "s": "s", "seconds": "s", "min": "min", "pct": "%", "percent": "%", "w": "W", "kw": "kW", "mw": "MW",
    "kwh": "kWh", "v": "V", "a": "A", "hz": "Hz", "rpm": "rpm", "bar": "bar", "pa": "Pa", "hpa": "hPa", "kpa": "kPa",
    "mm": "mm", "m": "m", "km": "km", "kg": "kg", "bytes": "B", "kb": "kB", "mb": "MB", "gb": "GB", "mbps": "Mbit/s",
    "usd": "USD", "eur": "EUR",
}  # fmt: skip


def check_panels(count: int) -> None:
    """Refuse more columns than a picture can show, before they are filtered.

    Raises:
        ValueError: there are more than `MOST_PANELS`.
    """
    if count > MOST_PANELS:
        raise ValueError(
            f"--plot draws up to {MOST_PANELS} columns, these are {count:,}: choose some with --column, or fewer series"
        )


def draw(found: Sequence[Filtered], path: Path, *, title: str) -> None:
    """A panel for every column of every series: measurements, estimate and its bands, outliers, alarms, spans without a
    measurement, and the forecast as a fan at the end, beside which the last rows stand alone where it is short.

    The format follows the suffix of `path`.
    """
    count = sum(len(one.series.names) for one in found)
    has_ends = any(_end(one) for one in found)
    height = max(LOWEST, min(TALLEST, 40 / count))
    figure = Figure(figsize=(WIDTH + has_ends * WIDTH / 2, 1.2 + height * count), layout="constrained")
    grid = figure.subplots(
        count,
        1 + has_ends,
        sharex="col" if len(found) == 1 else "none",
        squeeze=False,
        gridspec_kw={"width_ratios": (2, 1)[: 1 + has_ends]},
    )
    panels = iter(grid)
    for one in found:
        is_off = furthest_off(one)
        for k in range(len(one.series.names)):
            row = next(panels)
            for axes, begin in zip(row, (0, _end(one)), strict=False):
                _panel(axes, one, k, begin, is_off[:, k])
            row[0].set_ylabel(labelled(one.series.names[k]))
            if len(found) > 1 and k == 0:
                row[0].set_title(one.label, fontsize="medium", loc="left")
        for axes in row:
            axes.set_xlabel(one.series.zone if one.series.is_dated else one.series.clock or "row")
    figure.suptitle(title)
    shown: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=120)


def labelled(name: str) -> str:
    """A column's name with its unit, where it says one."""
    if found := IN_BRACKETS.match(name):
        return f"{found[1]} [{found[2]}]"
    stem, _, unit = name.rpartition("_")
    return f"{stem} [{UNITS[unit.lower()]}]" if stem and unit.lower() in UNITS else name


def _end(one: Filtered) -> int:
    """The row from which on the end is drawn again, so that a short forecast can be seen; 0: it can be."""
    rows, ahead = len(one.series.times), len(one.ahead)
    return max(0, rows - max(BEFORE * ahead, FEWEST)) if 0 < SHORT * ahead < rows else 0


def _panel(axes: Any, one: Filtered, k: int, begin: int, is_off: np.ndarray) -> None:
    """A column of a series from a row on; outliers and alarms are marked where it is off."""
    series, columns, name = one.series, one.columns, one.series.names[k]
    rows = len(series.times)
    every = slice(begin, None, max(1, (rows - begin) // POINTS))
    times, values = series.moments(series.times), series.values[:, k]
    for level, alpha in LEVELS:
        low, high = (columns[f"{end}.{level}.{name}"][every] for end in ("lower", "upper"))
        label = f"{float(level):.0%} interval"
        axes.fill_between(times[every], low, high, color="tab:blue", alpha=alpha, linewidth=0, label=label)
    axes.plot(times[every], columns[f"mean.{name}"][every], color="tab:blue", linewidth=1.2, label="estimate")
    axes.plot(times[every], values[every], label="measured", **MEASURED)
    _spans(axes, times[begin:], gaps(series.times[begin:], np.isnan(values[begin:])))
    is_outlier = np.zeros(rows, bool)
    is_outlier[one.outliers] = True
    marks = (
        ("outlier", is_outlier, "o", "tab:red", "none", 6),
        ("alarm", columns["alarm"] == 1, "v", "tab:orange", "full", 8),
    )
    for label, is_marked, marker, color, fill, largest in marks:
        where = begin + np.flatnonzero((is_marked & is_off)[begin:])
        if len(where):
            axes.plot(times[where], values[where], **MEASURED)  # where there are many not all are drawn
            size = min(largest, max(SMALLEST, CROWD / len(where) ** 0.5))
            axes.plot(times[where], values[where], marker, color=color, fillstyle=fill, markersize=size, label=label)
    for number, lead in enumerate(one.leads):
        ahead = series.moments(series.times + lead)
        mean = columns[f"forecast.{lead!r}.mean.{name}"]
        label = f"forecast {lead:g} ahead"
        axes.plot(ahead[every], mean[every], "--", linewidth=0.9, color=f"C{number + 2}", label=label)
    if len(one.ahead):
        _fan(axes, one, k)
    axes.grid(alpha=0.3)
    axes.margins(x=0.01)
    axes.set_ylim(reach(one, k, begin))
    if series.is_dated:
        zone = get_zone(series.zone)
        locator = AutoDateLocator(zone)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, zone))


def reach(one: Filtered, k: int, begin: int) -> tuple[float, float]:
    """From where to where a panel goes that shows a column from a row on: all of its values and forecasts, and the
    intervals but of the first rows, which are as wide as so few rows leave open."""
    columns, name, values = one.columns, one.series.names[k], one.series.values[:, k]
    seen = np.flatnonzero(~np.isnan(values))
    settled = int(seen[min(FIRST_ROWS, int(AT_MOST * len(seen)))]) if len(seen) else 0
    told = [f"{part}.{name}" for part in ("mean", f"lower.{WIDE}", f"upper.{WIDE}")]
    told += [f"forecast.{lead!r}.mean.{name}" for lead in one.leads]
    parts = [values[begin:], *(columns[part][max(begin, settled) :] for part in told)]
    if len(one.ahead):
        parts += [one.ahead_of(WIDE)[k][at] for at in (0, 2, 3)]
    every = np.concatenate(parts)
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    room = EMPTY * (high - low) or abs(low) or 1.0
    return low - room, high + room


def _fan(axes: Any, one: Filtered, k: int) -> None:
    """The rows that come next, from the last estimate on."""
    name, columns = one.series.names[k], one.columns
    times = one.series.moments(np.concatenate((one.series.times[-1:], one.ahead)))
    for level, alpha in LEVELS:
        last = (columns[f"{part}.{name}"][-1:] for part in ("mean", f"lower.{level}", f"upper.{level}"))
        mean, low, high = (
            np.concatenate(parts) for parts in zip(last, (one.ahead_of(level)[k][at] for at in (0, 2, 3)), strict=True)
        )
        axes.fill_between(
            times, low, high, color="tab:green", alpha=alpha, linewidth=0, label=f"forecast, {float(level):.0%}"
        )
    axes.plot(times, mean, color="tab:green", linewidth=1.2, label="forecast")


def _spans(axes: Any, times: np.ndarray, found: list[tuple[int, int]]) -> None:
    """Spans between rows, from the top of a panel to its bottom."""
    if not found:
        return
    edges = times[np.array([(begin, end, end) for begin, end in found])].ravel()
    is_within = np.tile([True, True, False], len(found))
    across = axes.get_xaxis_transform()
    axes.fill_between(
        edges, 0, 1, where=is_within, transform=across, color="0.85", linewidth=0, label="nothing measured"
    )


def furthest_off(one: Filtered) -> np.ndarray:
    """Whether a column is among those furthest off in a row, by what each is off by usually, `[N, P]`: outliers and
    alarms are of rows."""
    off = np.abs(np.stack([one.columns[f"innovation.{name}"] for name in one.series.names], axis=1))
    usual = [float(np.median(column[~np.isnan(column)])) if not np.isnan(column).all() else 0.0 for column in off.T]
    off = np.nan_to_num(off / [scale or 1.0 for scale in usual])
    return np.asarray(off >= AS_FAR * off.max(axis=1, keepdims=True))


def gaps(times: np.ndarray, is_missing: np.ndarray) -> list[tuple[int, int]]:
    """Spans without a measurement, each by the rows at its ends: longer than the usual step, where nearly all are as
    long, else longer by far."""
    steps = np.diff(times)
    if not (steps > 0).any():
        return []
    usual = float(np.median(steps[steps > 0]))
    is_even = np.mean(np.abs(steps - usual) < EVEN * usual) > MOSTLY
    rows = np.unique(np.concatenate(([0], np.flatnonzero(~is_missing), [len(times) - 1])))
    is_long = np.diff(times[rows]) > (LONGER if is_even else LONGER_BY_FAR) * usual
    return [(int(rows[at]), int(rows[at + 1])) for at in np.flatnonzero(is_long)]
