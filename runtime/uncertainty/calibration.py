"""Calibration of a bundle, which consists of the multipliers of its intervals and the tables of its scores.

The half-width of an interval is std × multiplier(level, horizon). Between calibrated levels, the ratio of the
multiplier and the normal quantile is interpolated. Beyond them, it is constant. Between horizons, the multiplier is
interpolated in log time. export/filter_calibration.py fits the tables, and runtime/uncertainty/adaptive.py adapts the
multipliers of the forecasts to a stream.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from rfa.runtime.uncertainty.forecast_checks import PIT_LEVELS

Array = np.ndarray
_NORMAL = NormalDist()
# Value that replaces the lag between two observations at the same time, whose logarithm is infinite.
SHORTEST = 1e-300
# Exponent of the ratio of miss rates by which intervals beyond the calibrated levels are wider than those of a normal
# distribution. For normal, Student-t, exponential and Laplace noise with levels up to 95 %, 99 % intervals then contain
# 98.3 to 99.2 % of the values.
HEAVIER = 0.06
# The normal tail is tabulated in steps of its standard deviation. Its logarithm is interpolated to 2e-5, and is
# constant beyond FURTHEST, where the tail is 1e-300.
TAIL_GRID, FURTHEST = 0.01, 37.0


def normal_quantiles(levels: Sequence[float]) -> Array:
    """Return the normal quantile at the upper end of the central interval of each level, such as 1.645 for the level
    0.9."""
    return np.array([_NORMAL.inv_cdf((1 + level) / 2) for level in levels])


def normal_squares(levels: Sequence[float]) -> Array:
    """Return the squares of the normal quantiles. They are computed with Python's power operator, because replies
    depend on the last bit."""
    return np.array([quantile**2 for quantile in normal_quantiles(levels).tolist()])


class TailModel(NamedTuple):
    """Distribution of the novelty z in the calibration data.

    Attributes:
        quantiles, shares: Values of z, and the fraction of the data below each.
        tail, folds: Values of z beyond the last quantile, and the negative logarithm of the ratio of the normal tail
            probabilities there and at the last quantile.
        beyond: Fraction of the data above the last quantile.
    """

    quantiles: Array
    shares: Array
    tail: Array
    folds: Array
    beyond: float


class PrecisionTable(NamedTuple):
    """Ratio of the calibrated variance of the state to the variance that the model reports. It is the product of a
    function of the gain and a function of the running mean of the novelty. `export/precision_calibration.py` fits both.

    Attributes:
        gain, novelty: Grid points, `[G]` and `[N]`.
        by_gain, by_novelty: Factors at the grid points, `[G]` and `[N]`.
    """

    gain: Array
    by_gain: Array
    novelty: Array
    by_novelty: Array


class Tables(NamedTuple):
    """Calibration tables for compiled code.

    Attributes:
        log_horizons: Logarithms of the calibrated horizons.
        lines: Multipliers of the forecasts, in standard deviations of the model. They are piecewise linear in log time:
            value and slope from each horizon on, `[horizons, 2, levels]`.
        miss_rates: Values of 1 - level for the calibrated levels.
        squares: Squares of the normal quantiles at the calibrated levels.
        pit_columns, pit_weights, pit_squares: Results of `level_weights` and squares of the normal quantiles, for the
            intervals of a step at PIT_LEVELS.
        tail_model: Distribution of the novelty.
        novelty, confidence: Confidence as a function of the running mean of the novelty.
        precision: See `PrecisionTable`.
    """

    log_horizons: Array
    lines: Array
    miss_rates: Array
    squares: Array
    pit_columns: Array
    pit_weights: Array
    pit_squares: Array
    tail_model: TailModel
    novelty: Array
    confidence: Array
    precision: PrecisionTable


class Calibration:
    """The calibration of one mode.

    Args:
        document: Entry of the mode in calibration.json.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.levels: tuple[float, ...] = tuple(document["levels"])
        self.horizons = np.array(document["forecast"]["horizons"])
        self.state_scale: float = math.sqrt(document["state"]["variance_scale"])
        self._quantiles = normal_quantiles(self.levels)
        self._state = np.array(document["state"]["multipliers"])
        self._log_horizons = np.log(self.horizons)
        self._forecast = np.array(document["forecast"]["multipliers"])
        slopes = np.diff(self._forecast, axis=0, append=self._forecast[-1:])
        self._forecast_scale = np.sqrt(np.array(document["forecast"]["variance_scale"]))
        pit_columns, pit_weights = self.level_weights(PIT_LEVELS, self.horizons[:1].tolist())
        confidence = document["confidence"]
        self.tables = Tables(
            self._log_horizons,
            np.stack([self._forecast, slopes], axis=1),
            1 - np.array(self.levels),
            self._quantiles**2,
            pit_columns,
            pit_weights[0],
            normal_squares(PIT_LEVELS),
            _tail_model(**document["anomaly"]),
            np.array(confidence["surprise"], np.float64),
            np.array(confidence["inside"], np.float64),
            _precision_table(document.get("precision"), document["state"]["variance_scale"]),
        )

    def state(self, levels: Sequence[float]) -> Array:
        """Return the half-widths of the state's intervals in standard deviations of the model, `[levels]`."""
        return self._multipliers(self._state, levels)

    def forecast(self, levels: Sequence[float], horizon: Sequence[float]) -> Array:
        """Return the half-widths of the forecasts' intervals in standard deviations of the model,
        `[horizon, levels]`."""
        tables = self.at_horizons(horizon)
        return np.array([self._multipliers(table, levels) for table in tables]).reshape(len(horizon), len(levels))

    def at_horizons(self, horizon: Sequence[float]) -> Array:
        """Return the half-widths at the calibrated levels in standard deviations of the model,
        `[horizon, calibrated]`."""
        position = _log_time(horizon)
        return np.stack([np.interp(position, self._log_horizons, column) for column in self._forecast.T], axis=-1)

    def level_weights(self, levels: Sequence[float], horizon: Sequence[float]) -> tuple[Array, Array]:
        """Return the weights that express `forecast` as weighted sums of two calibrated levels. They also apply to
        adapted multipliers.

        Levels beyond the last calibrated one are extrapolated from two adapted levels, and widened for heavier tails.

        Returns:
            The columns of `at_horizons` `[2 * levels]` (first the lower one for each level, then the upper ones), and
            their weights `[horizon, 2 levels]`.
        """
        tables, target = self.at_horizons(horizon), self.forecast(levels, horizon)
        last = len(self.levels) - 1
        lower = [min(max(bisect.bisect_right(self.levels, level) - 1, 0), last) for level in levels]
        is_outside = [not self.levels[0] <= level < self.levels[last] for level in levels]
        upper = [i if outside else i + 1 for i, outside in zip(lower, is_outside, strict=True)]
        weights = np.zeros((2, len(horizon), len(levels)))
        for k, level in enumerate(levels):
            if last >= 2 and level > self.levels[last]:
                lower[k] = last - 2
                target[:, k] *= ((1 - self.levels[last]) / (1 - level)) ** HEAVIER
        for k, (i, j) in enumerate(zip(lower, upper, strict=True)):
            low, high = tables[:, i], tables[:, j]
            if i == j:
                weights[0, :, k] = _ratio(target[:, k], low, 1.0)
            else:
                weights[1, :, k] = _ratio(target[:, k] - low, high - low, 0.0)
                weights[0, :, k] = 1 - weights[1, :, k]
        return np.array(lower + upper, np.int64), np.concatenate(weights, axis=-1)

    def nearest(self, horizon: Sequence[float]) -> Array:
        """Return the index of the calibrated horizon nearest to each horizon in log time, `[horizon]`."""
        distance = np.abs(np.array(_log_time(horizon))[:, None] - self._log_horizons)
        return distance.argmin(axis=1)

    def forecast_scale(self, horizon: Sequence[float]) -> Array:
        """Return the ratio of the calibrated standard deviation of the forecasts and that of the model, `[horizon]`."""
        return np.interp(_log_time(horizon), self._log_horizons, self._forecast_scale)

    def _multipliers(self, table: Array, levels: Sequence[float]) -> Array:
        ratios = np.interp(levels, self.levels, table / self._quantiles)
        return ratios * normal_quantiles(levels)


def _tail_model(quantiles: list[float], shares: list[float], tail_scale: float) -> TailModel:
    start = _NORMAL.inv_cdf(shares[-1])
    grid = np.arange(start, FURTHEST, TAIL_GRID)
    tail = np.array([math.erfc(z / math.sqrt(2)) for z in grid.tolist()])
    return TailModel(
        np.array(quantiles, np.float64),
        np.array(shares, np.float64),
        quantiles[-1] + (grid - start) * tail_scale,
        np.log(tail[0] / tail),
        1 - shares[-1],
    )


def _precision_table(tables: dict[str, list[float]] | None, variance_scale: float) -> PrecisionTable:
    """Return the precision table from the bundle's calibration. If it has none, return a table with which the precision
    is the inverse of the mean of `std` squared over the components."""
    found = tables or {"gain": [1.0], "by_gain": [1.0], "surprise": [0.0], "by_surprise": [variance_scale]}
    names = ("gain", "by_gain", "surprise", "by_surprise")
    return PrecisionTable(*(np.array(found[name], np.float64) for name in names))


def _ratio(number: Array, size: Array, otherwise: float) -> Array:
    return np.divide(number, size, out=np.full_like(number, otherwise), where=size != 0)


def _log_time(horizon: Sequence[float]) -> list[float]:
    return [math.log(max(time, SHORTEST)) for time in horizon]
