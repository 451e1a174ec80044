"""From a filter's own numbers to calibrated ones, for many rows at once.

An interval's half width is std × multiplier(level, horizon). Between calibrated levels the ratio of the multiplier to
the normal quantile is interpolated (held constant outside); between horizons the multiplier is interpolated in log
time. export/filter_calibration.py fits the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

Array = np.ndarray
_NORMAL = NormalDist()


class Calibration:
    """The calibration of one mode."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.levels: tuple[float, ...] = tuple(document["levels"])
        self.state_scale: float = math.sqrt(document["state"]["variance_scale"])
        self._quantiles = np.array([_NORMAL.inv_cdf((1 + level) / 2) for level in self.levels])
        self._state = np.array(document["state"]["multipliers"])
        self._horizons = np.log(np.array(document["forecast"]["horizons"]))
        self._forecast = np.array(document["forecast"]["multipliers"])
        self._forecast_scale = np.sqrt(np.array(document["forecast"]["variance_scale"]))
        self._anomaly = document["anomaly"]
        self._confidence = document["confidence"]

    def state(self, levels: Sequence[float]) -> Array:
        """Half widths of the state's intervals per model std, `[levels]`."""
        return self._multipliers(self._state, levels)

    def forecast(self, levels: Sequence[float], horizon: Sequence[float]) -> Array:
        """Half widths of the forecasts' intervals per model std, `[horizon, levels]`."""
        position = _log_time(horizon)
        tables = np.stack([np.interp(position, self._horizons, column) for column in self._forecast.T], axis=-1)
        return np.array([self._multipliers(table, levels) for table in tables]).reshape(len(horizon), len(levels))

    def forecast_scale(self, horizon: Sequence[float]) -> Array:
        """Calibrated std of the forecasts per model std, `[horizon]`."""
        return np.interp(_log_time(horizon), self._horizons, self._forecast_scale)

    def anomaly(self, surprise: Array) -> Array:
        """1 - tail probability of a surprise: the empirical table, then a normal tail that continues it."""
        table, shares = self._anomaly["quantiles"], self._anomaly["shares"]
        scores = np.interp(surprise, table, shares, left=0.0)
        start = _NORMAL.inv_cdf(shares[-1])
        for i in np.flatnonzero(surprise > table[-1]):
            tail = start + (float(surprise[i]) - table[-1]) / self._anomaly["tail_scale"]
            scores[i] = min(1.0, _NORMAL.cdf(tail))
        return scores

    def confidence(self, surprise: Array) -> Array:
        """Probability that the next observation falls inside its 0.9 interval, given the running surprise."""
        return np.interp(surprise, self._confidence["surprise"], self._confidence["inside"])

    def _multipliers(self, table: Array, levels: Sequence[float]) -> Array:
        ratios = np.interp(levels, self.levels, table / self._quantiles)
        return ratios * np.array([_NORMAL.inv_cdf((1 + level) / 2) for level in levels])


def _log_time(horizon: Sequence[float]) -> list[float]:
    return [math.log(max(lead, 1e-300)) for lead in horizon]
