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
# Radii of forecasts that count as infinite, and the least one; 0 is a place where nothing waits.
_ALWAYS, _LEAST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
_SHIFT, _DUE, _MEAN, _RADIUS = FIELDS


class Horizons:
    """How the calibrated horizons of a bundle are followed.

    Args:
        horizons: of the horizons, in time units, ascending; the first is the step.

    Attributes:
        gamma: of each lead, `[horizons]`.
        places: forecasts that wait, of each lead but the first, `[horizons - 1]`.
        lead: that each place belongs to, `[all places]`; those of a lead lie side by side.
        near: how far from its time the observation may be that a forecast is scored by, `[all places]`.
    """

    def __init__(self, horizons: Sequence[float] | Array) -> None:
        times = np.array(horizons, np.float64)
        self.step = float(times[0])
        steps = np.clip(np.rint(times / self.step), 1, MAX_PENDING).astype(np.int64)
        self.gamma: Array = np.minimum(GAMMA, 1 / (4 * steps))
        self.gamma[0] = GAMMA
        self.places: Array = steps[1:]
        self.lead: Array = np.repeat(np.arange(1, len(times)), self.places)
        self.near: Array = np.minimum(TOLERANCE * times, self.step / 2)[self.lead]
        self._begin = np.cumsum(self.places) - self.places

    def __len__(self) -> int:
        return len(self.gamma)

    def place(self, lead: Array, horizon: Array, due: Array) -> Array:
        """The places of forecasts for the times `due`, `[n, k]`, so far ahead that they are followed as those of the
        horizons `lead`, `[k]`."""
        count = self.places[lead - 1]
        step = np.maximum(self.step, horizon / count)
        # The remainder is exact, and never infinite.
        number = np.floor(np.fmod(due, count * step) / step + EDGE).astype(np.int64)
        found: Array = self._begin[lead - 1] + number % count
        return found


class Arrived(NamedTuple):
    """Forecasts whose time has come, `[n]`, in the order of rows and places.

    Attributes:
        row, place: of each.
        is_met: whether there is an observation at their time.
        mean: what they said, `[n, P]`.
        radius: half widths of their intervals, `[n, P, levels]`.
    """

    row: Array
    place: Array
    is_met: Array
    mean: Array
    radius: Array


class Kept(NamedTuple):
    """Forecasts that will wait: `[n]`, `[n, P]` and `[n, P, levels]`."""

    row: Array
    place: Array
    due: Array
    mean: Array
    radius: Array


@dataclass(frozen=True)
class ConformalState:
    """What a step needs of the adaptive state of some rows of a pool, and changes of it, until it is committed.

    Attributes:
        index: the rows of the pool, `[rows]`.
        shift: v, `[rows or more, horizons, P, levels]`; its lead 0 is the step from one observation to the next.
        waiting: where a forecast waits whose time has not come, `[rows, all places]`.
        arrived: None where there are none.
    """

    index: Array
    shift: Array
    waiting: Array
    arrived: Arrived | None
    kept: list[Kept] = field(default_factory=list)


def adaptive_fields(horizons: Horizons, size: int, levels: int) -> dict[str, StateField]:
    """What a seat holds for observations of `size` components and `levels` levels: v, and of the forecasts that wait
    their times, what they said, and half widths of their intervals, below 0 where they count as empty, all 0 where none
    waits."""
    places = len(horizons.lead)
    shapes = ((len(horizons), size, levels), (places,), (places, size), (places, size, levels))
    kinds = (np.float32, np.float64, np.float64, np.float32)
    return {name: StateField(shape, kind) for name, shape, kind in zip(FIELDS, shapes, kinds, strict=True)}


def read_state(pool: StatePool, index: Array, times: Array, lags: Array, horizons: Horizons) -> ConformalState:
    """The adaptive state of rows of a pool when observations come.

    Args:
        index: rows of the pool; those after the first `len(times)` are there for `shift` alone.
        times: of the observations, `[rows]`.
        lags: since the observations before them, `[rows]`.
    """
    rows, shift = index[: len(times)], pool.arrays[_SHIFT].take(index, axis=0)
    waiting = pool.arrays[_RADIUS][:, :, 0, -1][rows] != 0
    if not waiting.any():
        return ConformalState(rows, shift, waiting, None)
    ahead = pool.arrays[_DUE].take(rows, axis=0) - times[:, None]
    near = np.minimum(horizons.near, lags[:, None] / 2)
    has_come = waiting & (ahead <= near)
    row, place = np.divmod(np.flatnonzero(has_come), len(horizons.lead))
    if not len(row):
        return ConformalState(rows, shift, waiting, None)
    waiting ^= has_come
    found, is_met = (rows[row], place), (ahead >= -near)[row, place]
    arrived = Arrived(row, place, is_met, pool.arrays[_MEAN][found], pool.arrays[_RADIUS][found])
    return ConformalState(rows, shift, waiting, arrived)


def write_state(pool: StatePool, state: ConformalState, rows: slice | Array) -> None:
    """Commit `rows` of `state`; the others stay as they were in the pool."""
    index, arrived = state.index, state.arrived
    pool.arrays[_SHIFT][index[rows]] = state.shift[: len(index)][rows]
    is_chosen = np.zeros(len(index), bool)
    is_chosen[rows] = True
    is_all = bool(is_chosen.all())
    if arrived is not None:
        done = slice(None) if is_all else is_chosen[arrived.row]
        pool.arrays[_RADIUS][index[arrived.row[done]], arrived.place[done]] = 0
    for kept in state.kept:
        chosen = slice(None) if is_all else is_chosen[kept.row]
        place = index[kept.row[chosen]], kept.place[chosen]
        for name, values in ((_DUE, kept.due), (_MEAN, kept.mean), (_RADIUS, kept.radius)):
            pool.arrays[name][place] = values[chosen]


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
    """Follow the one-step forecasts of rows.

    Args:
        shift: of the rows, as in `Tracks`; changed in place.
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
    """Follow the forecasts whose time has come; values and present are the observations, `[rows or more, P]`."""
    found = state.arrived
    if found is None:
        return
    missed = np.abs(values[found.row] - found.mean)[..., None] > found.radius
    counts = found.is_met[:, None] & present[found.row]
    lead = horizons.lead[found.place]
    change = horizons.gamma[lead, None, None] * np.where(counts[..., None], missed - rates, 0.0)
    # An observation may be near the times of several forecasts of a lead: they lie side by side.
    first = np.flatnonzero(np.diff(found.row * len(horizons) + lead, prepend=-1))
    sums = change if len(first) == len(change) else np.add.reduceat(change, first, axis=0)
    state.shift[found.row[first], lead[first]] += sums


def store_pending(
    state: ConformalState,
    horizons: Horizons,
    rows: Array,
    lead: Array,
    horizon: Array,
    due: Array,
    mean: Array,
    radius: Array,
) -> None:
    """Keep forecasts until their observation comes; where one waits in their place, they are not scored.

    Args:
        state: changed in place.
        rows: of `state`, `[n]`.
        lead, horizon: which horizons they are followed as, no two the same, and how far ahead they are, `[k]`.
        due, mean, radius: of each, `[n, k]`, `[n, k, P]` and `[n, k, P, levels]`.
    """
    place = horizons.place(lead, horizon, due)
    is_free = ~state.waiting[rows[:, None], place]
    place, column = place[is_free], np.broadcast_to(lead, is_free.shape)[is_free]
    row = np.repeat(rows, is_free.sum(axis=1))
    state.waiting[row, place] = True
    shift = state.shift[row, column]
    sent = np.clip(radius[is_free], _LEAST, _ALWAYS)
    counted = np.where(shift >= INFINITE, _ALWAYS, np.where(shift <= EMPTY, -sent, sent))
    state.kept.append(Kept(row, place, due[is_free], mean[is_free], counted))
