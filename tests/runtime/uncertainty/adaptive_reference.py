"""The adaptive intervals of runtime/uncertainty/adaptive.py for many streams at once, in NumPy.

Equations and names are the same. Experiments run thousands of series side by side with it; tests compare the compiled
code with it: every number of a row is elementwise and exactly rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty.adaptive import (
    EDGE,
    EMPTY,
    FIELDS,
    GAMMA,
    INFINITE,
    MAX_PENDING,
    TOLERANCE,
    WIDEST,
)

Array = np.ndarray
# The largest half width, which counts as infinite, and the least; 0 is for none pending.
_ALWAYS, _LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
_SHIFT, _DUE, _MEAN, _RADIUS = FIELDS


class Horizons:
    """As in adaptive.py, for horizons in time units, ascending; the first is the step."""

    def __init__(self, horizons: Sequence[float] | Array) -> None:
        times = np.array(horizons, np.float64)
        self.step = float(times[0])
        steps = np.clip(np.rint(times / self.step), 1, MAX_PENDING).astype(np.int64)
        self.gamma: Array = np.minimum(GAMMA, 1 / (4 * steps))
        self.gamma[0] = GAMMA
        self.pending_count: Array = steps[1:]
        self.pending_horizon: Array = np.repeat(np.arange(1, len(times)), self.pending_count)
        self.tolerance: Array = np.minimum(TOLERANCE * times, self.step / 2)[self.pending_horizon]
        self._begin = np.cumsum(self.pending_count) - self.pending_count

    def __len__(self) -> int:
        return len(self.gamma)

    def pending_index(self, index: Array, horizon: Array, due: Array) -> Array:
        """Indices of pending forecasts for the times `due`, `[n, k]`, scored as horizons `index`, `[k]`."""
        count = self.pending_count[index - 1]
        step = np.maximum(self.step, horizon / count)
        # The remainder is exact, and never infinite.
        number = np.floor(np.fmod(due, count * step) / step + EDGE).astype(np.int64)
        found: Array = self._begin[index - 1] + number % count
        return found


class Arrived(NamedTuple):
    """Pending forecasts that end, `[n]`, in order.

    Attributes:
        row, index: of each.
        is_met: whether there is an observation at their time.
        mean: `[n, P]`.
        radius: half widths of their intervals, `[n, P, levels]`.
    """

    row: Array
    index: Array
    is_met: Array
    mean: Array
    radius: Array


class Pending(NamedTuple):
    """New pending forecasts: `[n]`, `[n, P]` and `[n, P, levels]`."""

    row: Array
    index: Array
    due: Array
    mean: Array
    radius: Array


@dataclass(frozen=True)
class ConformalState:
    """Adaptive state of some rows of a pool, and its changes until they are committed.

    Attributes:
        index: rows of the pool, `[rows]`.
        shift: v, `[rows or more, horizons, P, levels]`.
        pending: where a forecast is pending whose time has not come, `[rows, pending]`.
    """

    index: Array
    shift: Array
    pending: Array
    arrived: Arrived | None
    added: list[Pending] = field(default_factory=list)


def adaptive_fields(horizons: Horizons, size: int, levels: int) -> dict[str, StateField]:
    """State fields, see adaptive.py."""
    pending = len(horizons.pending_horizon)
    shapes = ((len(horizons), size, levels), (pending,), (pending, size), (pending, size, levels))
    kinds = (np.float32, np.float64, np.float64, np.float32)
    return {name: StateField(shape, kind) for name, shape, kind in zip(FIELDS, shapes, kinds, strict=True)}


def read_state(pool: StatePool, index: Array, times: Array, lags: Array, horizons: Horizons) -> ConformalState:
    """State of rows of a pool at observations `times` and `lags`, `[rows]`; further rows are only in `shift`."""
    rows, shift = index[: len(times)], pool.arrays[_SHIFT].take(index, axis=0)
    pending = pool.arrays[_RADIUS][:, :, 0, -1][rows] != 0
    if not pending.any():
        return ConformalState(rows, shift, pending, None)
    ahead = pool.arrays[_DUE].take(rows, axis=0) - times[:, None]
    tolerance = np.minimum(horizons.tolerance, lags[:, None] / 2)
    has_come = pending & (ahead <= tolerance)
    row, k = np.divmod(np.flatnonzero(has_come), len(horizons.pending_horizon))
    if not len(row):
        return ConformalState(rows, shift, pending, None)
    pending ^= has_come
    found, is_met = (rows[row], k), (ahead >= -tolerance)[row, k]
    arrived = Arrived(row, k, is_met, pool.arrays[_MEAN][found], pool.arrays[_RADIUS][found])
    return ConformalState(rows, shift, pending, arrived)


def write_state(pool: StatePool, state: ConformalState, rows: slice | Array) -> None:
    """Commit `rows` of `state`; the others stay as they were in the pool."""
    index, arrived = state.index, state.arrived
    pool.arrays[_SHIFT][index[rows]] = state.shift[: len(index)][rows]
    is_chosen = np.zeros(len(index), bool)
    is_chosen[rows] = True
    is_all = bool(is_chosen.all())
    if arrived is not None:
        done = slice(None) if is_all else is_chosen[arrived.row]
        pool.arrays[_RADIUS][index[arrived.row[done]], arrived.index[done]] = 0
    for added in state.added:
        chosen = slice(None) if is_all else is_chosen[added.row]
        where = index[added.row[chosen]], added.index[chosen]
        for name, values in ((_DUE, added.due), (_MEAN, added.mean), (_RADIUS, added.radius)):
            pool.arrays[name][where] = values[chosen]


def width_factor(shift: Array) -> Array:
    """What a multiplier is multiplied by."""
    bounded = np.minimum(np.maximum(shift, EMPTY, dtype=np.float64), WIDEST)
    ratio = (1 + bounded) / (1 - bounded)
    return ratio * ratio * ratio


def adapt_half_widths(multipliers: Array, shift: Array) -> Array:
    """Half widths per model std, `[..., levels]`, never smaller at a higher level."""
    widths: Array = multipliers * width_factor(shift)
    _nest(widths.T)
    return widths


def _nest(widths: Array) -> None:
    """Make `[levels, …]` grow with the level, where it is; `maximum.accumulate` is slow for few levels."""
    for level in range(1, len(widths)):
        np.maximum(widths[level - 1 : level], widths[level : level + 1], out=widths[level : level + 1])


def update_shift(shift: Array, missed: Array, rates: Array) -> Array:
    """v after intervals were missed or not; `rates` are 1 - level."""
    counted = (missed | (shift <= EMPTY)) & (shift < INFINITE)
    return shift + GAMMA * (counted - rates)


def score_step(shift: Array, multipliers: Array, scores: Array, scored: Array, rates: Array) -> Array:
    """Score the one-step forecasts of rows.

    Args:
        shift: of the rows, as in `ConformalState`; changed in place.
        multipliers: the bundle's at the lags of the rows, `[rows, levels]`.
        scores: |innovation| per model std, `[rows, P]`.
        scored: which of them count, `[rows, P]`.

    Returns:
        the half widths per model std that the forecasts had, `[rows, P, levels]`.
    """
    # `[levels, P, rows]`: with the rows last, NumPy's inner loops are long.
    before = np.ascontiguousarray(shift[:, 0].T, np.float64)
    widths = multipliers.T[:, None] * width_factor(before)
    _nest(widths)
    after = update_shift(before, widths < scores.T, rates[:, None, None])
    shift[:, 0] = np.where(scored.T, after, before).T
    found: Array = widths.T
    return found


def score_pending(state: ConformalState, values: Array, present: Array, horizons: Horizons, rates: Array) -> None:
    """Score the forecasts that are due; values and present are the observations, `[rows or more, P]`."""
    found = state.arrived
    if found is None:
        return
    missed = np.abs(values[found.row] - found.mean)[..., None] > found.radius
    counts = found.is_met[:, None] & present[found.row]
    index = horizons.pending_horizon[found.index]
    change = horizons.gamma[index, None, None] * np.where(counts[..., None], missed - rates, 0.0)
    # An observation may match several forecasts of a horizon, which are adjacent.
    first = np.flatnonzero(np.diff(found.row * len(horizons) + index, prepend=-1))
    sums = change if len(first) == len(change) else np.add.reduceat(change, first, axis=0)
    state.shift[found.row[first], index[first]] += sums


class Forecasts(NamedTuple):
    """Forecasts of rows: calibrated horizons, no two the same, and distances, `[k]`; due `[n, k]`, mean `[n, k, P]` and
    radius `[n, k, P, levels]`."""

    index: Array
    horizon: Array
    due: Array
    mean: Array
    radius: Array


def store_pending(state: ConformalState, horizons: Horizons, rows: Array, forecasts: Forecasts) -> None:
    """Store forecasts of `rows` where nothing is pending at their index."""
    index, horizon, due, mean, radius = forecasts
    k = horizons.pending_index(index, horizon, due)
    is_free = ~state.pending[rows[:, None], k]
    k, column = k[is_free], np.broadcast_to(index, is_free.shape)[is_free]
    row = np.repeat(rows, is_free.sum(axis=1))
    state.pending[row, k] = True
    shift = state.shift[row, column]
    sent = np.clip(radius[is_free], _LEAST, _ALWAYS)
    counted = np.where(shift >= INFINITE, _ALWAYS, np.where(shift <= EMPTY, -sent, sent))
    state.added.append(Pending(row, k, due[is_free], mean[is_free], counted))
