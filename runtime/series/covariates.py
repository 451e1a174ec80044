"""Columns that are known ahead, as inputs of a series model; see `regression_numba.py`.

The model filters the values less the effect of the columns, and its outputs are shifted by that effect, as those of a
system with an input (`driven_filter.py`). The inputs of a row are its own covariates and those at each of its leads.
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
# How near the time of a row must be to that of a lead, in usual lags.
NEAR: Final = 0.5


@dataclass(frozen=True)
class CovariateInputs:
    """The inputs of the rows of a series, made for some rows at a time: those at many leads take much memory.

    Attributes:
        times: of the rows, and of those to come, `[N]`.
        known: covariates at these times, NaN where missing, `[N, K]`.
        horizon: the leads.
        step: the usual lag between rows.
    """

    times: Array
    covariates: Array
    horizon: tuple[float, ...]
    step: float

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.times.nbytes + self.covariates.nbytes

    def __getitem__(self, rows: int | slice) -> Array:
        """The inputs of some rows, `[R, K (1 + H)]`, or of one, `[K (1 + H)]`."""
        times = self.times[rows]
        due = times[..., None] + np.array((0.0, *self.horizon))
        found = self.at(due)
        found[..., 0, :] = self.covariates[rows]
        return found.reshape(*times.shape, -1)

    def at(self, due: Array) -> Array:
        """The covariates at the rows nearest to some times `[…]`, NaN where none is near, `[…, K]`."""
        last = len(self.times) - 1
        after = np.searchsorted(self.times, due).clip(max=last)
        before = (after - 1).clip(min=0)
        nearest = np.where(due - self.times[before] < self.times[after] - due, before, after)
        is_near = np.abs(self.times[nearest] - due) <= NEAR * self.step
        found: Array = np.where(is_near[..., None], self.covariates[nearest], np.nan)
        return found


def whole_numbers(bands: Array) -> Array:
    """The first and the last whole number inside intervals `[…, 2]`, or the one nearest to the middle."""
    lower, upper = np.ceil(bands[..., 0]), np.floor(bands[..., 1])
    middle = np.rint(bands.mean(axis=-1))
    found: Array = np.where((lower > upper)[..., None], middle[..., None], np.stack((lower, upper), axis=-1))
    return found


@dataclass(frozen=True)
class Effect:
    """The effect of the covariates at each row.

    Attributes:
        seen: `[R, P]`. ahead: at the leads, `[R, H, P]`.
        bounds: see `regress_rows`.
    """

    inputs: Array
    values: Array
    seen: Array
    ahead: Array
    bounds: Array

    def hide(self, values: Array) -> Array:
        """Values `[R, P]` less the effect."""
        return values - self.seen


class Regression:
    """Regressions of each column on so many covariates; the interface is that of `DrivenSystem`."""

    def __init__(self, size: int, count: int) -> None:
        self.count = count
        self.fields: Mapping[str, StateField] = {
            SHARED: StateField((shared_size(count),), np.float64),
            COLUMNS: StateField((size, column_size(count)), np.float64),
        }

    def respond(self, pool: StatePool, batch: Batch, inputs: Array | None, horizon: tuple[float, ...]) -> Effect:
        """The effect at each row; see `DrivenSystem.respond`."""
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
        """Store the regressions of the rows that were accepted."""
        for slot in np.unique(batch.slots):
            rows = np.flatnonzero((batch.slots == slot) & is_good)
            shared, columns = self._run(pool, effect, int(slot), rows)
            pool.arrays[SHARED][slot], pool.arrays[COLUMNS][slot] = shared, columns

    def _run(self, pool: StatePool, effect: Effect, slot: int, rows: Array) -> tuple[Array, Array]:
        """Write the effect at the rows of a stream; returns its state after them."""
        shared, columns = pool.arrays[SHARED][slot].copy(), pool.arrays[COLUMNS][slot].copy()
        seen, ahead, bounds = (part[rows] for part in (effect.seen, effect.ahead, effect.bounds))
        regress_rows(shared, columns, effect.inputs[rows], effect.values[rows], self.count, seen, ahead, bounds)
        effect.seen[rows], effect.ahead[rows], effect.bounds[rows] = seen, ahead, bounds
        return shared, columns

    def shift(self, out: StepOutputs, trace: Traced, effect: Effect) -> None:
        """Add the effect to the outputs and to the trace, and keep forecasts where the values can be."""
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
