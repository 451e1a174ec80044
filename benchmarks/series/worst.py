"""Where `series` fails: the ten worst of GIFT-Eval's windows that are at hand, what went wrong in each, and a picture.

    python -m rfa.benchmarks.series.worst --data DATA

writes results/series-worst.json and docs/figures/series-worst.png. DATA is that of `rfa bench series`. The loss of a
window is in units of its usual change, as MASE's is:

    loss = mean over nine quantiles and all rows of 2 ρ_q(y - q) / u      u = mean |y_t - y_{t-s}| before the window

The worst windows are those where the loss of `series` is furthest above the lower one of the seasonal naive's and
`auto`'s, three of one series at most. Losses are kept in the file, task by task and model by model, with the commit
that measured them first: a run that was stopped goes on. What is told of a window is figures alone; the page of results
makes the sentence of them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tqdm import tqdm

from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.series.gift import MODELS, NAIVE, QUANTILES, Quantiles, Task, Window, naive, tasks
from rfa.benchmarks.series.pictures import FIGURES, INK, MANY, panels, save
from rfa.measured import origin, write_result

Array = np.ndarray
FIGURE: Final = FIGURES / "series-worst.png"
COMMAND: Final = "python -m rfa.benchmarks.series.worst --data DATA"
NETWORK, RIVALS = "series", (NAIVE, "auto")
COUNT, OF_ONE_SERIES = 10, 3
MEDIAN: Final = 4
# Intervals of 50 and 90 %, by their places among those that are told.
HALF, WIDE = 0, 2
# Rows before the window that a picture shows: as many as the window has, and up to five times as many of a short one.
SHOWN, TIMES = 168, 5
COLOURS: Final = {NETWORK: "#c2362b", NAIVE: "#9a9a93", "auto": "#4a90c2"}


class Place(NamedTuple):
    """A window by its task and its number there."""

    task: str
    number: int


def usual_change(window: Window, season: int) -> float:
    """u; NaN of a series that never changed from season to season, which no loss is measured by."""
    usual = float(np.abs(window.known[season:] - window.known[:-season]).mean())
    return usual if usual > 0 else math.nan


def loss(window: Window, forecast: Quantiles, season: int) -> float:
    """Scaled quantile loss of a window."""
    off = window.came[:, None] - forecast.quantiles
    return float(np.mean(2 * np.maximum(QUANTILES * off, (QUANTILES - 1) * off))) / usual_change(window, season)


def worst_places(tasks_of: Mapping[str, Task], losses: Mapping[str, Mapping[str, list[float | None]]]) -> list[Place]:
    """The places of the worst windows, the worst first."""
    excess = {
        Place(task, number): own - min(others)
        for task, kept in losses.items()
        for number, (own, *others) in enumerate(zip(*(kept[name] for name in (NETWORK, *RIVALS)), strict=True))
        if own is not None
    }
    chosen: list[Place] = []
    taken: Counter[tuple[str, str]] = Counter()
    for place in sorted(excess, key=excess.__getitem__, reverse=True):
        series = place.task, tasks_of[place.task].windows[place.number].series
        if taken[series] < OF_ONE_SERIES:
            taken[series] += 1
            chosen.append(place)
        if len(chosen) == COUNT:
            break
    return chosen


def errors(window: Window, forecast: Quantiles, season: int) -> dict[str, float]:
    """A forecast's figures, in usual changes: of its median the mean error, its sign, how much it grew along the
    window and what is left without a line; the mean width of the 90 % interval, and the rows above and below it."""
    usual, error = usual_change(window, season), window.came - forecast.quantiles[:, MEDIAN]
    rows = np.arange(len(error)) - (len(error) - 1) / 2
    slope = float(rows @ error / (rows @ rows))
    low, high = forecast.intervals[:, WIDE].T
    return {
        "absolute": float(np.abs(error).mean()) / usual,
        "level": float(error.mean()) / usual,
        "growth": slope * (len(error) - 1) / usual,
        "rest": float(np.std(error - slope * rows)) / usual,
        "width": float((high - low).mean()) / usual,
        "above": int((window.came > high).sum()),
        "below": int((window.came < low).sum()),
    }


def moved(values: Array, season: int, before: Array) -> float:
    """How far the mean of the first season of `values` is from that of the last one of `before`, in units of how far
    the means of two seasons in a row of `before` are apart, mean."""
    means = before[len(before) % season :].reshape(-1, season).mean(axis=1)
    usual = float(np.abs(np.diff(means)).mean())
    return float(values[:season].mean() - means[-1]) / usual if usual > 0 else 0.0


def told(task: Task, number: int, losses: Mapping[str, list[float]]) -> tuple[dict[str, Any], dict[str, Quantiles]]:
    """The figures of a window, and its forecasts."""
    window = task.windows[number]
    forecasts = {name: MODELS[name](window, task.season) for name in (NETWORK, *RIVALS)}
    rival = min(RIVALS, key=lambda name: losses[name][number])
    median = forecasts[NETWORK].quantiles[:, MEDIAN]
    spread = float(np.std(window.came))
    figures = {
        "task": task.name, "series": window.series, "window": number, "season": task.season, "rival": rival,
        "rows": len(window.came), "known": len(window.known), "loss": {name: losses[name][number] for name in losses},
        "own": errors(window, forecasts[NETWORK], task.season),
        "others": errors(window, forecasts[rival], task.season),
        "moved": moved(window.came, task.season, window.known),
        "foretold": moved(median, task.season, window.known),
        "moved_before": moved(window.known[-task.season :], task.season, window.known[: -task.season]),
        "swing": float(np.std(median)) / spread if spread else 0.0,
        "alike": float(np.corrcoef(median, window.came)[0, 1]) if spread and np.std(median) else 0.0,
    }  # fmt: skip
    return _rounded(figures), forecasts


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def measured_losses(task: Task, name: str) -> list[float | None]:
    """Of every window; None where nothing ever changed before it."""
    bar = tqdm(task.windows, desc=f"{task.name}, {name}", disable=None, leave=False)
    found = [loss(window, MODELS[name](window, task.season), task.season) for window in bar]
    return [round(one, 5) if math.isfinite(one) else None for one in found]


def write_worst(data: Path, out: Path, figure: Path) -> dict[str, Any]:
    """Measure the losses that the file does not have, then tell of the worst windows and draw them.

    Raises:
        ValueError: no task has its files.
    """
    document: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    found = {task.name: task for task in tasks(data)}
    if not found:
        raise ValueError(f"{data} has none of the tasks of `rfa bench series`")
    losses: dict[str, Any] = document.get("losses", {})
    here = origin(COMMAND)  # once, before a file of the checkout changes
    ranked = document.get("ranked") or {name: here[name] for name in ("commit", "hardware")}
    for name, task in found.items():
        kept = losses.setdefault(name, {})
        for model in (NAIVE, "auto", NETWORK):
            if model not in kept:
                kept[model] = measured_losses(task, model)
                write_result(out, {**here, "ranked": ranked, "losses": losses, "worst": []})
    rows, drawn = [], []
    for place in worst_places(found, losses):
        figures, forecasts = told(found[place.task], place.number, losses[place.task])
        rows.append(figures)
        drawn.append((found[place.task], figures, forecasts))
    document = {**here, "ranked": ranked, "losses": losses, "worst": rows}
    write_result(out, document)
    draw(drawn, document, figure)
    return document


def draw(
    drawn: list[tuple[Task, dict[str, Any], dict[str, Quantiles]]], document: Mapping[str, Any], path: Path
) -> None:
    """Two panels in a row: the last rows that were known, what came, the network's median and intervals of 50 and
    90 %, and the points of the naive."""
    figure, grid = panels(-(-len(drawn) // 2), 2, (11, 1.9 * -(-len(drawn) // 2)))
    for axes, (task, figures, forecasts) in zip(grid.flat, drawn, strict=True):
        window, horizon = task.windows[figures["window"]], figures["rows"]
        shown = min(max(horizon, min(TIMES * horizon, SHOWN)), len(window.known))
        ahead, told_of = np.arange(1, horizon + 1), forecasts[NETWORK]
        for level, opacity in ((WIDE, 0.2), (HALF, 0.4)):
            low, high = told_of.intervals[:, level].T
            axes.fill_between(ahead, low, high, color=COLOURS[NETWORK], alpha=opacity, linewidth=0)
        axes.plot(np.arange(1 - shown, 1), window.known[-shown:], color=INK, linewidth=0.6)
        axes.plot(ahead, window.came, color=INK, linewidth=1.2)
        axes.plot(ahead, told_of.quantiles[:, MEDIAN], color=COLOURS[NETWORK], linewidth=1.2)
        points = {NAIVE: naive(window, task.season).quantiles, "auto": forecasts["auto"].quantiles}
        for name in dict.fromkeys((NAIVE, figures["rival"])):
            axes.plot(ahead, points[name][:, MEDIAN], color=COLOURS[name], linewidth=0.9, linestyle="--")
        axes.axvline(0.5, color=INK, linewidth=0.4)
        axes.set_title(title(figures), fontsize=7, color=INK, loc="left", pad=2)
        axes.margins(x=0.01)
    handles = [
        grid[0, 0].plot([], [], color=colour, linestyle=style, label=label)[0]
        for label, colour, style in (
            ("known, and what came", INK, "-"), ("series: median, 50 and 90 %", COLOURS[NETWORK], "-"),
            ("seasonal naive", COLOURS[NAIVE], "--"), ("auto, where it was the better", COLOURS["auto"], "--"),
        )
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=7)
    save(figure, path, MANY, document)


def title(figures: Mapping[str, Any]) -> str:
    """A window by its task, series and number."""
    return f"{figures['task']}, {figures['series']}, window {figures['window']}"


def main() -> None:
    """Measure, write and draw."""
    given = parser(__doc__, "series-worst", needs_data=True).parse_args()
    finish("series-worst", given.out, write_worst(given.data, given.out, FIGURE))


if __name__ == "__main__":
    main()
