"""Forecasts of more than 100 public series at rolling origins: the models and simple forecasts.

    python -m rfa.benchmarks.series.board --data DATA --packages PACKAGES

PACKAGES holds the archives that `board_data.py` names; DATA holds m4 and ett. At every row each expert forecasts the
leads of the series; the models do so through `rfa.Stream`. Errors count from 40 % before the end on.

    relative MAE   mean absolute error divided by that of the seasonal naive, geometric mean over the series of a group
    behind         series on which a model is more than 2 % behind the best single expert, as a fraction
    inside         fraction of the values inside the 90 % intervals, of the models that have them
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tqdm import tqdm

import rfa
from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.series.board_data import BoardSeries, board
from rfa.measured import origin

Array = np.ndarray
MODELS: Final = ("default", "series", "auto")
NAIVE: Final = "seasonal naive"
SCORED_SHARE, BEHIND, FIRST_ROWS = 0.4, 1.02, 10


class Forecasts(NamedTuple):
    """medians `[N, leads]`, and the lower and upper ends of the 90 % intervals `[N, leads]` if available."""

    median: Array
    lower: Array | None = None
    upper: Array | None = None


def served(one: BoardSeries, model: str) -> Forecasts:
    """Return the forecasts of `rfa.Stream` at each row."""
    leads = [lead * one.step for lead in one.leads]
    stream = rfa.Stream(model=model, levels=(0.9,), horizon=leads)
    points = [
        [
            (point.median[0], *point.interval["0.9"][0])
            for point in stream.update(one.begin + row * one.step, None if np.isnan(value) else value).forecast
        ]
        for row, value in enumerate(one.values.tolist())
    ]
    found = np.array(points)
    return Forecasts(found[..., 0], found[..., 1], found[..., 2])


def simple(one: BoardSeries) -> dict[str, Forecasts]:
    """Return the seasonal naive forecast, the last value, and the line through the first and last value."""
    rows, leads = np.arange(len(one.values)), np.array(one.leads)
    seen = np.maximum.accumulate(np.where(np.isnan(one.values), 0, rows))
    filled = np.where(np.isnan(one.values[seen]), np.nanmean(one.values[:FIRST_ROWS]), one.values[seen])
    last = np.repeat(filled[:, None], len(leads), axis=1)
    slope = (filled - filled[0]) / np.maximum(rows, 1)
    before = rows[:, None] + leads - one.season * np.ceil(leads / one.season).astype(int)
    return {
        NAIVE: Forecasts(np.where(before >= 0, filled[np.maximum(before, 0)], last)),
        "last value": Forecasts(last),
        "drift": Forecasts(last + slope[:, None] * leads),
    }


def scores(one: BoardSeries, forecasts: Forecasts) -> dict[str, float]:
    """Return the mean absolute error over the scored rows and leads, and the fraction inside the intervals."""
    first = int(len(one.values) * (1 - SCORED_SHARE))
    errors, inside = [], []
    for j, lead in enumerate(one.leads):
        came, rows = one.values[first + lead :], slice(first, len(one.values) - lead)
        errors.append(np.abs(forecasts.median[rows, j] - came))
        if forecasts.lower is not None and forecasts.upper is not None:
            is_inside = (forecasts.lower[rows, j] <= came) & (came <= forecasts.upper[rows, j])
            inside.append(is_inside[~np.isnan(came)])
    found = {"mae": float(np.nanmean(np.concatenate(errors)))}
    return found | ({"inside": float(np.concatenate(inside).mean())} if inside else {})


def measure(series: list[BoardSeries]) -> dict[str, Any]:
    """Return the scores of the models and the simple forecasts, by series and by group."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for one in tqdm(series, unit="series", disable=None):
        forecasts = {name: served(one, name) for name in MODELS} | simple(one)
        rows[one.name] = {name: scores(one, made) for name, made in forecasts.items()}
    groups = {one.group: [other.name for other in series if other.group == one.group] for one in series}
    return {
        "groups": {group: _summary([rows[name] for name in names]) for group, names in groups.items()},
        "series": {
            name: {model: round(score["mae"] / max(row[NAIVE]["mae"], 1e-12), 4) for model, score in row.items()}
            for name, row in rows.items()
        },
    }


def _summary(rows: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {"series": len(rows), "models": {}}
    best = np.array([min(row[name]["mae"] for name in row if name != MODELS[0]) for row in rows])
    naive = np.array([max(row[NAIVE]["mae"], 1e-12) for row in rows])
    for name in rows[0]:
        errors = np.array([row[name]["mae"] for row in rows])
        found["models"][name] = {
            "mae": round(float(np.exp(np.log(np.maximum(errors, 1e-12) / naive).mean())), 4),
            "behind": round(float((errors > BEHIND * best).mean()), 3),
        }
        if "inside" in rows[0][name]:
            found["models"][name]["inside"] = round(float(np.mean([row[name]["inside"] for row in rows])), 4)
    found["best"] = round(float(np.exp(np.log(np.maximum(best, 1e-12) / naive).mean())), 4)
    return found


def main() -> None:
    """Measure, print and write the file."""
    options = parser(__doc__, "series-board", needs_data=True)
    options.add_argument("--packages", type=Path, required=True, help="folder of the archives of the packages")
    options.add_argument("--groups", nargs="+", help="measure these groups only; the others stay as in the file")
    given = options.parse_args()
    series = board(given.packages, given.data)
    found = measure([one for one in series if given.groups is None or one.group in given.groups])
    if given.groups is not None and given.out.is_file():
        kept = json.loads(given.out.read_text())
        found = {part: {**kept[part], **found[part]} for part in found}
    here = origin("python -m rfa.benchmarks.series.board --data DATA --packages PACKAGES")
    finish("series-board", given.out, {**here, **found})


if __name__ == "__main__":
    main()
