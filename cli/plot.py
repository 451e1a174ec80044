"""Draw figures of filtered series."""

from __future__ import annotations

import html
import io
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

HTML: Final = ".html"
ENDINGS: Final = (".png", ".svg", ".pdf", ".jpg", HTML)
# Maximum number of panels in a figure.
MAX_PANELS: Final = 64
# Width of a figure and height of a panel in inches. The height decreases with the number of panels.
WIDTH, MAX_HEIGHT, MIN_HEIGHT = 11.0, 2.8, 1.3
# Longer lines are thinned to this many points, because an image does not have more columns.
MAX_POINTS: Final = 20_000
# A forecast with less than 1 / SHORT of the rows is drawn again in a second panel, with ZOOM_ROWS times as many of the
# last rows, and at least MIN_ZOOM_ROWS.
SHORT, ZOOM_ROWS, MIN_ZOOM_ROWS = 10, 4, 48
# Times are regular if the fraction REGULAR_SHARE of the steps differs from the median step by less than TOLERANCE of
# it. A gap is longer than GAP median steps, or IRREGULAR_GAP median steps if times are irregular.
TOLERANCE, REGULAR_SHARE, GAP, IRREGULAR_GAP = 0.05, 0.9, 1.5, 10.0
# Size of a mark: MARKS divided by the square root of their number, and at least MIN_MARK.
MIN_MARK, MARKS = 3.5, 60.0
# Intervals of the first FIRST_ROWS rows, or of FIRST_SHARE of all rows if that is less, may exceed the panel. A
# fraction MARGIN of the panel stays empty.
FIRST_ROWS, FIRST_SHARE, MARGIN = 20, 0.5, 0.05
# An outlier is marked in columns whose deviation is at least this fraction of the largest one.
DEVIATION_SHARE: Final = 0.5
WIDE: Final = "0.9"
LEVELS: Final = (("0.9", 0.15), ("0.5", 0.3))
MEASURED: Final[dict[str, Any]] = {"marker": ".", "linestyle": "none", "color": "0.35", "markersize": 3}
# Units in column names, as in `latency (ms)`, `power [kW]` or `temp_c`.
BRACKETED_UNIT: Final = re.compile(r"^(.*?)[ _]*[(\[]([^()\[\]]{1,12})[)\]]$")
UNITS: Final = {
    "c": "°C", "degc": "°C", "celsius": "°C", "f": "°F", "degf": "°F", "fahrenheit": "°F", "k": "K", "ms": "ms",
    "us": "µs", "s": "s", "seconds": "s", "min": "min", "pct": "%", "percent": "%", "w": "W", "kw": "kW", "mw": "MW",
    "kwh": "kWh", "v": "V", "a": "A", "hz": "Hz", "rpm": "rpm", "bar": "bar", "pa": "Pa", "hpa": "hPa", "kpa": "kPa",
    "mm": "mm", "m": "m", "km": "km", "kg": "kg", "bytes": "B", "kb": "kB", "mb": "MB", "gb": "GB", "mbps": "Mbit/s",
    "usd": "USD", "eur": "EUR",
}  # fmt: skip


def check_panels(count: int) -> None:
    """Check that one figure can show all columns, before they are filtered.

    Raises:
        ValueError: If there are more than `MAX_PANELS` columns.
    """
    if count > MAX_PANELS:
        raise ValueError(
            f"a figure shows up to {MAX_PANELS} columns, but there are {count:,}; choose columns with --column, or "
            "use fewer series"
        )


def draw(found: Sequence[Filtered], path: Path, *, title: str) -> None:
    """Draw one panel for each column, with its values, estimates, intervals, outliers, alarms, gaps and forecast.

    If the forecast is short compared with the series, a second panel shows only the last rows. The suffix of `path`
    selects the format.
    """
    count = sum(len(one.series.names) for one in found)
    has_ends = any(_zoom_begin(one) for one in found)
    height = max(MIN_HEIGHT, min(MAX_HEIGHT, 40 / count))
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
        is_largest = largest_deviations(one)
        for k in range(len(one.series.names)):
            row = next(panels)
            for axes, begin in zip(row, (0, _zoom_begin(one)), strict=False):
                _draw_panel(axes, one, k, begin, is_largest[:, k])
            row[0].set_ylabel(axis_label(one.series.names[k]))
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
    _save(figure, path, title)


def _save(figure: Figure, path: Path, title: str) -> None:
    if path.suffix.lower() != HTML:
        figure.savefig(path, dpi=120)
        return
    image = io.StringIO()
    figure.savefig(image, format="svg")
    svg = image.getvalue()[image.getvalue().index("<svg") :]
    page = f'<!doctype html>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n{svg}'
    path.write_text(page, encoding="utf-8")


def axis_label(name: str) -> str:
    """Return the label of an axis: the name of the column, with its unit in brackets if the name contains one."""
    if found := BRACKETED_UNIT.match(name):
        return f"{found[1]} [{found[2]}]"
    stem, _, unit = name.rpartition("_")
    return f"{stem} [{UNITS[unit.lower()]}]" if stem and unit.lower() in UNITS else name


def _zoom_begin(one: Filtered) -> int:
    """Return the first row of the second panel, or 0 if no second panel is needed."""
    rows, ahead = len(one.series.times), len(one.future_times)
    return max(0, rows - max(ZOOM_ROWS * ahead, MIN_ZOOM_ROWS)) if 0 < SHORT * ahead < rows else 0


def _draw_panel(axes: Any, one: Filtered, k: int, begin: int, is_largest: np.ndarray) -> None:
    """Draw a column from row `begin` on. Outliers and alarms are marked only where `is_largest` `[N]` is True."""
    series, outputs, name = one.series, one.outputs, one.series.names[k]
    rows = len(series.times)
    every = slice(begin, None, max(1, (rows - begin) // MAX_POINTS))
    times, values = series.moments(series.times), series.values[:, k]
    for level, alpha in LEVELS:
        low, high = (outputs[f"{end}.{level}.{name}"][every] for end in ("lower", "upper"))
        label = f"{float(level):.0%} interval"
        axes.fill_between(times[every], low, high, color="tab:blue", alpha=alpha, linewidth=0, label=label)
    axes.plot(times[every], outputs[f"mean.{name}"][every], color="tab:blue", linewidth=1.2, label="estimate")
    axes.plot(times[every], values[every], label="measured", **MEASURED)
    _shade(axes, times[begin:], gaps(series.times[begin:], np.isnan(values[begin:])))
    is_outlier = np.zeros(rows, bool)
    is_outlier[one.outliers] = True
    marks = (
        ("outlier", is_outlier, "o", "tab:red", "none", 6),
        ("alarm", outputs["alarm"] == 1, "v", "tab:orange", "full", 8),
    )
    for label, is_marked, marker, color, fill, largest in marks:
        where = begin + np.flatnonzero((is_marked & is_largest)[begin:])
        if len(where):
            axes.plot(times[where], values[where], **MEASURED)  # the line may have been thinned out
            size = min(largest, max(MIN_MARK, MARKS / len(where) ** 0.5))
            axes.plot(times[where], values[where], marker, color=color, fillstyle=fill, markersize=size, label=label)
    for number, (lead, text) in enumerate(zip(one.leads, one.lead_names, strict=True)):
        ahead = series.moments(series.times + lead)
        mean = outputs[f"forecast.{lead!r}.mean.{name}"]
        label = f"forecast {text} ahead"
        axes.plot(ahead[every], mean[every], "--", linewidth=0.9, color=f"C{number + 2}", label=label)
    if len(one.future_times):
        _draw_forecast(axes, one, k)
    axes.grid(alpha=0.3)
    axes.margins(x=0.01)
    axes.set_ylim(y_limits(one, k, begin))
    if series.is_dated:
        zone = get_zone(series.zone)
        locator = AutoDateLocator(zone)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, zone))


def y_limits(one: Filtered, k: int, begin: int) -> tuple[float, float]:
    """Return the lower and the upper limit of the value axis of column `k` from row `begin` on.

    The axis contains all values, estimates, forecasts and intervals, except the estimates and intervals of the first
    rows, which can be very wide.
    """
    outputs, name, values = one.outputs, one.series.names[k], one.series.values[:, k]
    seen = np.flatnonzero(~np.isnan(values))
    begin_bands = int(seen[min(FIRST_ROWS, int(FIRST_SHARE * len(seen)))]) if len(seen) else 0
    names = [f"{part}.{name}" for part in ("mean", f"lower.{WIDE}", f"upper.{WIDE}")]
    names += [f"forecast.{lead!r}.mean.{name}" for lead in one.leads]
    parts = [values[begin:], *(outputs[part][max(begin, begin_bands) :] for part in names)]
    if len(one.future_times):
        parts += [one.forecast_bands(WIDE)[k][at] for at in (0, 2, 3)]
    every = np.concatenate(parts)
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)
    margin = MARGIN * (high - low) or abs(low) or 1.0
    return low - margin, high + margin


def _draw_forecast(axes: Any, one: Filtered, k: int) -> None:
    """Draw the forecast, starting at the last estimate."""
    name, outputs = one.series.names[k], one.outputs
    times = one.series.moments(np.concatenate((one.series.times[-1:], one.future_times)))
    for level, alpha in LEVELS:
        last = (outputs[f"{part}.{name}"][-1:] for part in ("mean", f"lower.{level}", f"upper.{level}"))
        mean, low, high = (
            np.concatenate(parts)
            for parts in zip(last, (one.forecast_bands(level)[k][at] for at in (0, 2, 3)), strict=True)
        )
        axes.fill_between(
            times, low, high, color="tab:green", alpha=alpha, linewidth=0, label=f"forecast, {float(level):.0%}"
        )
    axes.plot(times, mean, color="tab:green", linewidth=1.2, label="forecast")


def _shade(axes: Any, times: np.ndarray, found: list[tuple[int, int]]) -> None:
    """Shade the gaps of a series over the full height of a panel."""
    if not found:
        return
    edges = times[np.array([(begin, end, end) for begin, end in found])].ravel()
    is_within = np.tile([True, True, False], len(found))
    across = axes.get_xaxis_transform()
    axes.fill_between(
        edges, 0, 1, where=is_within, transform=across, color="0.85", linewidth=0, label="nothing measured"
    )


def largest_deviations(one: Filtered) -> np.ndarray:
    """Return whether the deviation of each value is at least half of the largest one in its row, `[N, P]`. Deviations
    are divided by the median deviation of their column.

    Outliers and alarms refer to whole rows. This function selects the columns in which they are marked.
    """
    off = np.abs(np.stack([one.outputs[f"innovation.{name}"] for name in one.series.names], axis=1))
    usual = [float(np.median(column[~np.isnan(column)])) if not np.isnan(column).all() else 0.0 for column in off.T]
    off = np.nan_to_num(off / [scale or 1.0 for scale in usual])
    return np.asarray(off >= DEVIATION_SHARE * off.max(axis=1, keepdims=True))


def gaps(times: np.ndarray, is_missing: np.ndarray) -> list[tuple[int, int]]:
    """Return the long gaps in a column, as pairs of the last row before and the first row after a gap.

    Args:
        times: Time of each row, `[N]`.
        is_missing: Whether the value of each row is missing, `[N]`.
    """
    steps = np.diff(times)
    if not (steps > 0).any():
        return []
    usual = float(np.median(steps[steps > 0]))
    is_regular = np.mean(np.abs(steps - usual) < TOLERANCE * usual) > REGULAR_SHARE
    rows = np.unique(np.concatenate(([0], np.flatnonzero(~is_missing), [len(times) - 1])))
    is_long = np.diff(times[rows]) > (GAP if is_regular else IRREGULAR_GAP) * usual
    return [(int(rows[at]), int(rows[at + 1])) for at in np.flatnonzero(is_long)]
