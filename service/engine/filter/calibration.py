"""From a filter's own numbers to calibrated ones, for many rows at once.

An interval's half width is std × multiplier(level, horizon). Between calibrated levels the ratio of the multiplier to
the normal quantile is interpolated (held constant outside); between horizons the multiplier is interpolated in log
time. export/filter_calibration.py fits the tables; service/engine/filter/adaptive.py adapts the forecasts' multipliers
to a stream.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from rfa.service.engine.filter.forecast_checks import PIT_LEVELS

Array = np.ndarray
_NORMAL = NormalDist()
# The log of the lag between two observations at the same time.
SHORTEST = 1e-300
# Where the normal tail is tabulated, in its standard deviations: its logarithm is interpolated to 2e-5, and constant
# behind FURTHEST, where it is 1e-300.
TAIL_GRID, FURTHEST = 0.01, 37.0


class Between(NamedTuple):
    """Multipliers of any levels as weighted sums of two calibrated ones.

    Attributes:
        columns: the calibrated levels below, then those above, `[2 levels]`.
        weights: theirs, `[horizon, 1, 2 levels]`.
    """

    columns: Array
    weights: Array

    def __call__(self, multipliers: Array) -> Array:
        """`[..., horizon, P, calibrated]` → `[..., horizon, P, levels]`."""
        parts = multipliers.take(self.columns, axis=-1) * self.weights
        levels = len(self.columns) // 2
        return parts[..., :levels] + parts[..., levels:]


class Rarity(NamedTuple):
    """The table of surprises: shares of smaller ones, and behind its end how much rarer they get, in e-folds."""

    surprises: Array
    shares: Array
    tail: Array
    folds: Array


class Calibration:
    """The calibration of one mode."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.levels: tuple[float, ...] = tuple(document["levels"])
        self.horizons = np.array(document["forecast"]["horizons"])
        self.state_scale: float = math.sqrt(document["state"]["variance_scale"])
        self._quantiles = np.array([_NORMAL.inv_cdf((1 + level) / 2) for level in self.levels])
        self._state = np.array(document["state"]["multipliers"])
        self._log_horizons = np.log(self.horizons)
        self._forecast = np.array(document["forecast"]["multipliers"])
        slopes = np.diff(self._forecast, axis=0, append=self._forecast[-1:])
        self._forecast_lines = np.stack([self._forecast, slopes], axis=1)  # [horizons, 2, calibrated]
        self._positions = np.arange(float(len(self.horizons)))
        self._forecast_scale = np.sqrt(np.array(document["forecast"]["variance_scale"]))
        self._rarity = _rarity(**document["anomaly"])
        self.beyond_table: float = 1 - document["anomaly"]["shares"][-1]
        confidence = document["confidence"]
        self._confidence = np.array(confidence["surprise"]), np.array(confidence["inside"])
        self.miss_rates = 1 - np.array(self.levels)
        self.pit = self.between(PIT_LEVELS, self.horizons[:1].tolist())

    def state(self, levels: Sequence[float]) -> Array:
        """Half widths of the state's intervals per model std, `[levels]`."""
        return self._multipliers(self._state, levels)

    def forecast(self, levels: Sequence[float], horizon: Sequence[float]) -> Array:
        """Half widths of the forecasts' intervals per model std, `[horizon, levels]`."""
        tables = self.at_horizons(horizon)
        return np.array([self._multipliers(table, levels) for table in tables]).reshape(len(horizon), len(levels))

    def at_horizons(self, horizon: Sequence[float]) -> Array:
        """The same at the calibrated levels, `[horizon, calibrated]`."""
        position = _log_time(horizon)
        return np.stack([np.interp(position, self._log_horizons, column) for column in self._forecast.T], axis=-1)

    def at_lags(self, lags: Array) -> Array:
        """The same for a lag per row, `[rows, calibrated]`."""
        position = np.interp(np.log(np.maximum(lags, SHORTEST)), self._log_horizons, self._positions)
        below = position.astype(np.int64)
        low, slope = self._forecast_lines[below].swapaxes(0, 1)
        multipliers: Array = low + (position - below)[:, None] * slope
        return multipliers

    def between(self, levels: Sequence[float], horizon: Sequence[float]) -> Between:
        """`forecast` as weighted sums of `at_horizons`, so that it can be had of adapted multipliers, too."""
        tables, wanted = self.at_horizons(horizon), self.forecast(levels, horizon)
        last = len(self.levels) - 1
        lower = [min(max(bisect.bisect_right(self.levels, level) - 1, 0), last) for level in levels]
        is_outside = [not self.levels[0] <= level < self.levels[last] for level in levels]
        upper = [i if outside else i + 1 for i, outside in zip(lower, is_outside, strict=True)]
        weights = np.zeros((2, len(horizon), len(levels)))
        for k, (i, j) in enumerate(zip(lower, upper, strict=True)):
            low, high = tables[:, i], tables[:, j]
            if i == j:
                weights[0, :, k] = _ratio(wanted[:, k], low, 1.0)
            else:
                weights[1, :, k] = _ratio(wanted[:, k] - low, high - low, 0.0)
                weights[0, :, k] = 1 - weights[1, :, k]
        return Between(np.array(lower + upper, np.int64), np.concatenate(weights, axis=-1)[:, None])

    def nearest(self, horizon: Sequence[float]) -> Array:
        """The calibrated lead that is nearest to each horizon in log time, `[horizon]`."""
        distance = np.abs(np.array(_log_time(horizon))[:, None] - self._log_horizons)
        return distance.argmin(axis=1)

    def forecast_scale(self, horizon: Sequence[float]) -> Array:
        """Calibrated std of the forecasts per model std, `[horizon]`."""
        return np.interp(_log_time(horizon), self._log_horizons, self._forecast_scale)

    def rarity(self, surprise: Array) -> tuple[Array, Array]:
        """How many surprises are smaller, by the empirical table, and how much rarer than `beyond_table` are those that
        lie behind its end: by so many e-folds, 0 within the table; a normal tail continues it."""
        known = self._rarity
        share = np.interp(surprise, known.surprises, known.shares, left=0.0)
        return share, np.interp(surprise, known.tail, known.folds)

    def confidence(self, surprise: Array) -> Array:
        """Probability that the next observation falls inside its 0.9 interval, given the running surprise."""
        surprises, inside = self._confidence
        return np.interp(surprise, surprises, inside)

    def _multipliers(self, table: Array, levels: Sequence[float]) -> Array:
        ratios = np.interp(levels, self.levels, table / self._quantiles)
        return ratios * np.array([_NORMAL.inv_cdf((1 + level) / 2) for level in levels])


def _rarity(quantiles: list[float], shares: list[float], tail_scale: float) -> Rarity:
    start = _NORMAL.inv_cdf(shares[-1])
    places = np.arange(start, FURTHEST, TAIL_GRID)
    tail = np.array([math.erfc(place / math.sqrt(2)) for place in places.tolist()])
    return Rarity(
        np.array(quantiles), np.array(shares), quantiles[-1] + (places - start) * tail_scale, np.log(tail[0] / tail)
    )


def _ratio(number: Array, size: Array, otherwise: float) -> Array:
    return np.divide(number, size, out=np.full_like(number, otherwise), where=size != 0)


def _log_time(horizon: Sequence[float]) -> list[float]:
    return [math.log(max(lead, SHORTEST)) for lead in horizon]
