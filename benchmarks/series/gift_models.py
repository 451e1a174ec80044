"""The models that `gift` measures. Each returns a forecast for every window of a task."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

import rfa
from rfa.benchmarks.series.gift_data import Task, Window
from rfa.data.horizon import usual_lag
from rfa.library.models import find_model
from rfa.runtime.filters.ahead import followed
from rfa.runtime.outputs import ForecastPoint

Array = np.ndarray
QUANTILES: Final = np.arange(1, 10) / 10
COVERED: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
# Intervals bounded by quantiles other than the median.
LEVELS: Final = (0.2, 0.4, 0.6, 0.8)
REQUESTED: Final = sorted({*LEVELS, *COVERED})
# The rows seen by methods that are fitted to each window, as in GIFT-Eval.
LONGEST: Final = 1_000
# Rows of a series in one call.
ROWS_AT_ONCE: Final = 8_192
NAIVE: Final = "seasonal naive"
ARIMA: Final = "AutoARIMA, run here"
FITTED: Final = ("AutoETS, run here", "AutoTheta, run here", ARIMA)


class Quantiles(NamedTuple):
    """quantiles `[h, 9]` and the intervals `[h, 5, 2]` of COVERED."""

    quantiles: Array
    intervals: Array


Forecaster = Callable[[Task], Iterator[Quantiles]]


def filled(values: Array) -> Array:
    """Repeat the last value where values are missing, and the first one before it, as GIFT-Eval does."""
    is_known = ~np.isnan(values)
    if is_known.all() or not is_known.any():
        return np.nan_to_num(values)
    last = np.maximum.accumulate(np.where(is_known, np.arange(len(values)), int(is_known.argmax())))
    return values[last]


def naive(window: Window, season: int) -> Quantiles:
    """Repeat the last season, with intervals of width zero."""
    horizon = len(window.came)
    points = np.tile(filled(window.history)[-season:], horizon // season + 1)[:horizon]
    return Quantiles(np.repeat(points[:, None], 9, axis=1), np.repeat(points[:, None, None], 10, 1).reshape(-1, 5, 2))


def naive_normal(window: Window, season: int) -> Quantiles:
    """Repeat the last season, with the normal intervals of GIFT-Eval.

    The variance is that of a seasonal random walk: it grows by the variance of the seasonal errors with each season.
    """
    history, horizon = filled(window.history), len(window.came)
    points = np.tile(history[-season:], horizon // season + 1)[:horizon]
    error = np.sqrt(np.mean((history[season:] - history[:-season]) ** 2))
    spread = error * np.sqrt(np.arange(horizon) // season + 1)
    normal = NormalDist()
    z = np.array([normal.inv_cdf(q) for q in QUANTILES])
    half = np.array([normal.inv_cdf((1 + level) / 2) for level in COVERED])
    ends = spread[:, None] * half
    return Quantiles(
        points[:, None] + spread[:, None] * z,
        np.stack([points[:, None] - ends, points[:, None] + ends], axis=2),
    )


def served(task: Task, *, model: str) -> Iterator[Quantiles]:
    """Return the forecasts of a served model, which is not told the season.

    Each series is filtered once, and forecast at the origin of each of its windows from its state. The forecasts equal
    those of `rfa.forecast` on the whole history of each window, to the bit.
    """
    runtime = find_model(model, 1).runtime
    groups: dict[tuple[float, ...], rfa.Streams] = {}
    for window in task.windows:
        times = window.times.astype(np.int64).astype(np.float64)
        leads = (window.future.astype(np.int64) - times[-1]).tolist()
        # Horizons that calendar months change begin another state.
        horizon = tuple(followed(runtime, usual_lag(times) or 1.0, leads[-1]))
        if horizon not in groups:
            limit = len({one.series for one in task.windows})
            groups[horizon] = rfa.Streams(1, model=model, levels=REQUESTED, horizon=horizon, limit=limit)
        streams, key = groups[horizon], window.series
        begin = streams.count(key) if key in streams else 0
        for first in range(begin, len(times), ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            handles = np.repeat(streams.handles([key]), len(times[rows]))
            streams.step(handles, times[rows], window.history[rows])
        points = rfa.Stream.resume(streams.state(key)).forecast(leads)
        yield quantiles_of(np.array([point.median[0] for point in points]), partial(_ends, points))


def _ends(points: list[ForecastPoint], level: float) -> list[Array]:
    return list(np.array([point.interval[f"{level:.12g}"][0] for point in points]).T)


def quantiles_of(middle: Array, ends: Callable[[float], list[Array]]) -> Quantiles:
    """Return the quantiles of the median `[h]` and of the ends of intervals, `[h]` each, by level."""
    pairs = [ends(level) for level in LEVELS]
    lower, upper = [low for low, _ in pairs[::-1]], [high for _, high in pairs]
    intervals = np.stack([np.stack(ends(level), axis=1) for level in COVERED], axis=1)
    return Quantiles(np.stack([*lower, middle, *upper], axis=1), intervals)


def trained(window: Window, season: int) -> Quantiles:
    """Return the forecast of the network in its recurrent mode, without adaptation."""
    from rfa.benchmarks.series.network_forecast import forecast

    return Quantiles(*forecast(window.history, len(window.came)))


def fitted(window: Window, season: int, *, name: str) -> Quantiles:
    """Return the forecast of a statsforecast method."""
    import statsforecast.models as methods

    levels = [round(100 * level) for level in REQUESTED]
    options = {"approximation": True} if name == "AutoARIMA" and season > 1 else {}
    made = getattr(methods, name)(season_length=season, **options)
    with warnings.catch_warnings():  # hundreds of warnings of searches without convergence
        warnings.simplefilter("ignore", UserWarning)
        reply = made.forecast(y=filled(window.history[-LONGEST:]), h=len(window.came), level=levels)

    def ends(level: float) -> list[Array]:
        return [reply[f"{end}-{round(100 * level)}"] for end in ("lo", "hi")]

    return quantiles_of(reply["mean"], ends)


def each(forecast: Callable[[Window, int], Quantiles]) -> Forecaster:
    """Return the forecaster that applies a function to each window and the season."""
    return lambda task: (forecast(window, task.season) for window in task.windows)


MODELS: Final[dict[str, Forecaster]] = {
    NAIVE: each(naive_normal),
    "its points alone": each(naive),
    "series": partial(served, model="series"),
    "series, as trained": each(trained),
    "default": partial(served, model="default"),
    "auto": partial(served, model="auto"),
    **{name: each(partial(fitted, name=name.removesuffix(", run here"))) for name in FITTED},
}
