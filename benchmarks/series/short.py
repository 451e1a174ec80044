"""Forecasts from short histories of public series: the models and AutoETS.

    python -m rfa.benchmarks.series.short --data DATA --packages PACKAGES

PACKAGES and DATA are those of `board.py`. Of each yearly, quarterly and monthly series, the rows before its last H are
forecast from CONTEXTS rows, H as in M4: 6, 8 and 18. A series is omitted where it is
too short, has missing values, or has no seasonal differences.

    MASE     mean |y - forecast| / mean |y_t - y_{t-s}| over the context, s the season

The models are called by `rfa.forecast`, without the season; AutoETS (statsforecast) knows it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from tqdm import tqdm

import rfa
from rfa.benchmarks.command import finish, parser
from rfa.benchmarks.series.board_data import BoardSeries, board
from rfa.measured import origin

Array = np.ndarray
CONTEXTS: Final = (24, 48, 96)
HORIZONS: Final = {1: 6, 4: 8, 12: 18}
OFTEN: Final = {1: "yearly", 4: "quarterly", 12: "monthly"}
COMMAND: Final = "python -m rfa.benchmarks.series.short --data DATA --packages PACKAGES"


def served(one: BoardSeries, history: Array, begin: float, *, model: str) -> Array:
    """Return the median of a served model."""
    times = begin + one.step * np.arange(len(history))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        reply = rfa.forecast(history, HORIZONS[one.season], time=times, levels=(0.9,), model=model)
    return np.asarray(reply["y_median"], float)


def ets(one: BoardSeries, history: Array, begin: float) -> Array:
    """Return the mean of AutoETS."""
    from statsforecast.models import AutoETS

    with warnings.catch_warnings():  # of searches without convergence
        warnings.simplefilter("ignore")
        found = AutoETS(season_length=one.season).forecast(y=history, h=HORIZONS[one.season])
    return np.asarray(found["mean"], float)


def naive(one: BoardSeries, history: Array, begin: float) -> Array:
    """Repeat the last season."""
    return np.resize(history[-one.season :], HORIZONS[one.season])


MODELS: Final[dict[str, Callable[[BoardSeries, Array, float], Array]]] = {
    "default": functools.partial(served, model="default"),
    "series": functools.partial(served, model="series"),
    "auto": functools.partial(served, model="auto"),
    "AutoETS": ets,
    "seasonal naive": naive,
}


def cut(one: BoardSeries, context: int) -> tuple[Array, Array, float] | None:
    """Return the history, the values to forecast, and the time of the first row; None if the series is too short, has
    a missing value there, or no seasonal differences.
    """
    ahead = HORIZONS.get(one.season, 0)
    first = len(one.values) - ahead - context
    if not ahead or first < 0 or np.isnan(one.values[first:]).any():
        return None
    history, came = one.values[first : first + context], one.values[first + context :]
    if np.abs(history[one.season :] - history[: -one.season]).mean() == 0:
        return None
    return history, came, one.begin + first * one.step


def mase(one: BoardSeries, history: Array, came: Array, forecast: Array) -> float:
    """Return the mean absolute error relative to that of the seasonal naive forecast within the history."""
    usual = np.abs(history[one.season :] - history[: -one.season]).mean()
    return float(np.abs(came - forecast).mean() / usual)


def measure(series: list[BoardSeries]) -> dict[str, Any]:
    """Return mean and median MASE by context, frequency and model."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for context in CONTEXTS:
        for one in tqdm(series, desc=f"{context} rows", disable=None):
            parts = cut(one, context)
            if parts is None:
                continue
            history, came, begin = parts
            rows = found.setdefault(str(context), {}).setdefault(OFTEN[one.season], {})
            for name, forecast in MODELS.items():
                rows.setdefault(name, []).append(mase(one, history, came, forecast(one, history, begin)))
    return {"contexts": {context: _with_all(by_often) for context, by_often in found.items()}}


def _with_all(by_often: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    together = {name: [x for rows in by_often.values() for x in rows[name]] for name in MODELS}
    return {often: _summary(rows) for often, rows in {**by_often, "all": together}.items()}


def _summary(rows: dict[str, list[float]]) -> dict[str, Any]:
    return {
        name: {
            "series": len(errors),
            "mase": round(float(np.mean(errors)), 4),
            "median": round(float(np.median(errors)), 4),
        }
        for name, errors in rows.items()
    }


def main() -> None:
    """Measure, print and write the file."""
    options = parser(__doc__, "series-short", needs_data=True)
    options.add_argument("--packages", type=Path, required=True, help="folder of the archives of the packages")
    given = options.parse_args()
    finish("series-short", given.out, {**origin(COMMAND), **measure(board(given.packages, given.data))})


if __name__ == "__main__":
    main()
