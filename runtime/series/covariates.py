"""Columns whose future values are known, as inputs of a series model. See `regression_numba.py`.

The model filters the values minus the effect of these columns (covariates). Its outputs are then shifted by this
effect, as the outputs of a system with an input are (`driven_filter.py`). The inputs of a row are its own covariates
and the covariates at each of its horizons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rfa.runtime.filters.driven_filter import shift
from rfa.runtime.filters.steps import Batch, Traced
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.series.regression_numba import column_size, regress_rows, shared_size
from rfa.runtime.uncertainty.step_outputs import StepOutputs

Array = np.ndarray
SHARED, COLUMNS = "known.shared", "known.columns"
# Maximum distance between the time of a row and that of a horizon, in typical lags.
NEAR: Final = 0.5


@dataclass(frozen=True)
class CovariateInputs:
    """Inputs of the rows of a series. They are computed for a batch of rows at a time, because inputs at many horizons
    take much memory.

    Attributes:
        times: Times of the rows, and of the future rows, `[N]`.
        covariates: Covariates at these times, `[N, K]`. Missing values are NaN.
        horizon: Horizons of the forecasts, in the unit of the times.
        step: Typical lag between rows.
    """

    times: Array
    covariates: Array
    horizon: tuple[float, ...]
    step: float

    @property
    def nbytes(self) -> int:
        """Memory of the arrays in bytes."""
        return self.times.nbytes + self.covariates.nbytes

    def __getitem__(self, rows: int | slice) -> Array:
        """Return the inputs of several rows, `[R, K (1 + H)]`. For a single index, return those of one row,
        `[K (1 + H)]`."""
        times = self.times[rows]
        due = times[..., None] + np.array((0.0, *self.horizon))
        found = self.at(due)
        found[..., 0, :] = self.covariates[rows]
        return found.reshape(*times.shape, -1)

    def at(self, due: Array) -> Array:
        """Return the covariates `[…, K]` of the rows that are nearest to the times `due` `[…]`. They are NaN if no row
        is near."""
        last = len(self.times) - 1
        after = np.searchsorted(self.times, due).clip(max=last)
        before = (after - 1).clip(min=0)
        nearest = np.where(due - self.times[before] < self.times[after] - due, before, after)
        is_near = np.abs(self.times[nearest] - due) <= NEAR * self.step
        found: Array = np.where(is_near[..., None], self.covariates[nearest], np.nan)
        return found


def whole_numbers(bands: Array) -> Array:
    """Return the first and the last integer inside intervals `[…, 2]`. If there is none, return the integer nearest to
    the middle twice."""
    lower, upper = np.ceil(bands[..., 0]), np.floor(bands[..., 1])
    middle = np.rint(bands.mean(axis=-1))
    found: Array = np.where((lower > upper)[..., None], middle[..., None], np.stack((lower, upper), axis=-1))
    return found


@dataclass(frozen=True)
class Effect:
    """The effect of the covariates at each row.

    Attributes:
        inputs: Inputs of the rows, `[R, K (1 + H)]`.
        values: Values of the rows, `[R, P]`.
        seen: Effect at each row, `[R, P]`.
        ahead: Effect at the horizons, `[R, H, P]`.
        bounds: Smallest possible value, and whether all values are integers. See `regress_rows`.
    """

    inputs: Array
    values: Array
    seen: Array
    ahead: Array
    bounds: Array

    def hide(self, values: Array) -> Array:
        """Return values `[R, P]` minus the effect of the covariates."""
        return values - self.seen


class Regression:
    """Regression of each column on the covariates. It has the interface of `DrivenSystem`."""

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.fields: Mapping[str, StateField] = {
            SHARED: StateField((shared_size(count),), np.float64),
            COLUMNS: StateField((size, column_size(count)), np.float64),
        }

    def respond(self, pool: StatePool, batch: Batch, inputs: Array | None, horizon: tuple[float, ...]) -> Effect:
        """Return the effect at each row. See `DrivenSystem.respond`."""
        rows, size = batch.values.shape
        if inputs is None:
            inputs = np.full((rows, self.count * (1 + len(horizon))), np.nan)
        effect = Effect(
            inputs, batch.values, np.empty((rows, size)), np.empty((rows, len(horizon), size)),
            np.empty((rows, size, 2)),
        )  # fmt: skip
        for slot in np.unique(batch.slots):
            self._run(pool, effect, int(slot), np.flatnonzero(batch.slots == slot))
        return effect

    def keep(self, pool: StatePool, batch: Batch, effect: Effect, is_good: Array) -> None:
        """Store the state of the regressions after the accepted rows."""
        for slot in np.unique(batch.slots):
            rows = np.flatnonzero((batch.slots == slot) & is_good)
            shared, columns = self._run(pool, effect, int(slot), rows)
            pool.arrays[SHARED][slot], pool.arrays[COLUMNS][slot] = shared, columns

    def _run(self, pool: StatePool, effect: Effect, slot: int, rows: Array) -> tuple[Array, Array]:
        """Write the effect at the rows of a stream. Return the state of the stream after these rows: the numbers that
        its columns share, and the numbers of each column."""
        shared, columns = pool.arrays[SHARED][slot].copy(), pool.arrays[COLUMNS][slot].copy()
        seen, ahead, bounds = (part[rows] for part in (effect.seen, effect.ahead, effect.bounds))
        regress_rows(shared, columns, effect.inputs[rows], effect.values[rows], self.count, seen, ahead, bounds)
        effect.seen[rows], effect.ahead[rows], effect.bounds[rows] = seen, ahead, bounds
        return shared, columns

    def shift(self, out: StepOutputs, trace: Traced, effect: Effect) -> None:
        """Add the effect of covariates to the outputs and the trace, and limit the forecasts to possible values."""
        shift(out, effect.seen, effect.ahead)
        if len(trace.mean):
            trace.mean[:] += effect.seen
            trace.predicted_mean[:] += effect.seen
        low, is_whole = effect.bounds[:, None, :, 0], effect.bounds[:, None, :, 1] > 0
        median, bands = out.moments[:, :, 2], out.bands
        median[:] = np.where(is_whole, np.rint(median), median)
        whole = whole_numbers(bands)
        bands[:] = np.where(is_whole[:, :, None, :, None], whole, bands)
        for moment in (0, 2):
            np.maximum(out.moments[:, :, moment], low, out=out.moments[:, :, moment])
        np.maximum(bands, low[:, :, None, :, None], out=bands)
