"""Adaptive conformal intervals: how wide a stream's forecast intervals must be, learned from the stream itself.

The bundle's split-conformal multipliers are right while a stream is like the data that they were fitted on. Here each
is multiplied by a factor that follows the stream, for every lead, component and level on its own. After each
observation

    v ← v + γ (err − (1 − level))               err = 1 where the interval was missed, else 0
    factor(v) = ((1 + v) / (1 − v))³            1 at v = 0, without bound towards v = 1

This is adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170, eq. 2) with v = α − α_t; the quantile of
past scores is replaced by an increasing function of v, so a stream keeps one number instead of a window of scores (the
saturating integrator of Angelopoulos, Candès and Tibshirani 2023, arXiv 2307.16895). An interval counts as infinite
where v ≥ 1 and as empty where v ≤ −1/2, so v stays in [−1/2 − γ, 1 + γ], and the sum telescopes: whatever the data,

    |mean err − (1 − level)| = |v_T − v_0| / (γ T) ≤ (1 + γ) / (γ T)

Nothing infinite is sent: the factor ends at 99³, and at 1/27 below. What counts as infinite or empty there is exact for
v; the coverage that is reported counts what was sent.

The first lead is scored by every observation, at whatever lag it comes, from the step's own innovation. The others are
scored when an observation comes at the time that a forecast was for: each keeps at most PLACES forecasts that wait. So
up to PLACES results are outstanding, which makes the bound (1 + PLACES γ) / (γ T), and T grows more slowly at a longer
lead.

All of it is elementwise and exactly rounded, so a row's numbers do not depend on its neighbours. v is kept as float32:
rounding adds at most 2⁻²⁴ / γ to the bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from service.engine.pool import StateField, StatePool

Array = np.ndarray

# Chosen by bench/filter_adaptive.py --tune: with 0.02 the 300 forecasts after a change of the noise miss by 1.9 points,
# with 0.025 by 1.5; clean intervals are 2.8 % and 3.5 % wider than they need be.
GAMMA = 0.025
EMPTY, INFINITE = -0.5, 1.0
# Where the factor ends.
WIDEST = 0.98
# Forecasts of one lead that wait for their observation.
PLACES = 2
# An observation this close to the time that a forecast was for, as a share of the lead, is the one it was for.
TOLERANCE = 0.05
# Radii of forecasts that count as infinite and as empty; 0 is a place where nothing waits.
_ALWAYS, _NEVER = float(np.finfo(np.float32).max), -1.0


class Tracks(NamedTuple):
    """The adaptive state of some rows, copied out of a pool; all but `shift` are without rows where nothing waits.

    Attributes:
        shift: v, `[rows, leads, P, levels]`; its lead 0 is the step from one observation to the next.
        due: `[rows, leads - 1, PLACES]`, the times of the forecasts that wait, of lead 1 and on.
        mean: `[rows, leads - 1, PLACES, P]`, what they said.
        radius: `[rows, leads - 1, PLACES, P, levels]`, half widths of their intervals; all 0 where none waits.
    """

    shift: Array
    due: Array
    mean: Array
    radius: Array


FIELDS = tuple(f"adaptive.{name}" for name in Tracks._fields)


def adaptive_fields(leads: int, size: int, levels: int) -> dict[str, StateField]:
    """What a slot holds for `leads` calibrated leads, observations of `size` components and `levels` levels."""
    waiting = (leads - 1, PLACES)
    shapes = ((leads, size, levels), waiting, (*waiting, size), (*waiting, size, levels))
    kinds = (np.float32, np.float64, np.float32, np.float32)
    return {name: StateField(shape, kind) for name, shape, kind in zip(FIELDS, shapes, kinds, strict=True)}


def read_tracks(pool: StatePool, index: Array, *, will_wait: bool) -> Tracks:
    """Copies of these rows of a pool; of what waits only where something does, or `will_wait`."""
    shift, *waiting = FIELDS
    is_needed = will_wait or pool.arrays["adaptive.radius"].take(index, axis=0)[..., 0, -1].any()
    rows = index if is_needed else index[:0]
    return Tracks(pool.arrays[shift].take(index, axis=0), *(pool.arrays[name].take(rows, axis=0) for name in waiting))


def write_tracks(pool: StatePool, index: Array, tracks: Tracks, rows: slice | Array) -> None:
    """Put `rows` of `tracks` into rows `index` of a pool."""
    for name, values in zip(FIELDS, tracks, strict=True):
        if len(values):
            pool.arrays[name][index] = values[rows]


def factor(shift: Array) -> Array:
    """What a multiplier is multiplied by."""
    bounded = np.minimum(np.maximum(shift, EMPTY, dtype=np.float64), WIDEST)
    ratio = (1 + bounded) / (1 - bounded)
    return ratio * ratio * ratio


def radii(multipliers: Array, shift: Array) -> Array:
    """Half widths per model std, `[..., levels]`, never smaller at a higher level."""
    widths: Array = multipliers * factor(shift)
    _nest(widths.T)
    return widths


def _nest(widths: Array) -> None:
    """Make `[levels, …]` grow with the level, where it is; `maximum.accumulate` is slow for few levels."""
    for level in range(1, len(widths)):
        np.maximum(widths[level - 1 : level], widths[level : level + 1], out=widths[level : level + 1])


def follow(shift: Array, missed: Array, rates: Array) -> Array:
    """v after intervals were missed or not; `rates` are 1 - level."""
    counted = (missed | (shift <= EMPTY)) & (shift < INFINITE)
    return shift + GAMMA * (counted - rates)


def score_step(tracks: Tracks, multipliers: Array, scores: Array, scored: Array, rates: Array) -> Array:
    """Follow the one-step forecasts of rows.

    Args:
        tracks: of the rows; changed in place.
        multipliers: the bundle's at the lags of the rows, `[rows, levels]`.
        scores: |innovation| per model std, `[rows, P]`.
        scored: which of them count, `[rows, P]`.

    Returns:
        the half widths per model std that the forecasts had, `[rows, P, levels]`.
    """
    # `[levels, P, rows]`: with the rows last, NumPy's inner loops are long.
    shift = np.ascontiguousarray(tracks.shift[:, 0].T, np.float64)
    widths = multipliers.T[:, None] * factor(shift)
    _nest(widths)
    after = follow(shift, widths < scores.T, rates[:, None, None])
    tracks.shift[:, 0] = np.where(scored.T, after, shift).T
    found: Array = widths.T
    return found


def score_waiting(tracks: Tracks, times: Array, values: Array, present: Array, horizons: Array, rates: Array) -> None:
    """Follow the forecasts whose time has come; `horizons` are the leads of `tracks.due`, in time units."""
    if not len(tracks.radius):
        return
    waiting = tracks.radius[..., 0, -1] != 0
    late = times[:, None, None] - tracks.due
    near = TOLERANCE * horizons[:, None]
    arrived = waiting & (late >= -near)
    met = arrived & (late <= near)
    shift = tracks.shift[:, 1:].astype(np.float64)
    for place in range(PLACES):
        error = np.abs(values[:, None] - tracks.mean[:, :, place])
        missed = error[..., None] > tracks.radius[:, :, place]
        scored = met[:, :, place, None] & present[:, None]
        shift = np.where(scored[..., None], shift + GAMMA * (missed - rates), shift)
    tracks.shift[:, 1:] = shift
    tracks.radius[arrived] = 0


def wait_for(tracks: Tracks, rows: Array, lead: int, due: Array, mean: Array, radius: Array) -> None:
    """Keep forecasts of a lead until their observation comes; where there is no place, they are not scored.

    Args:
        tracks: changed in place.
        rows: of `tracks`.
        due, mean, radius: of each, `[n]`, `[n, P]` and `[n, P, levels]`.
    """
    free = tracks.radius[rows, lead - 1, :, 0, -1] == 0
    has_place = free.any(axis=1)
    chosen, place = rows[has_place], free.argmax(axis=1)[has_place]
    shift = tracks.shift[chosen, lead]
    counted = np.where(shift >= INFINITE, _ALWAYS, np.where(shift <= EMPTY, _NEVER, radius[has_place]))
    tracks.due[chosen, lead - 1, place] = due[has_place]
    tracks.mean[chosen, lead - 1, place] = mean[has_place]
    tracks.radius[chosen, lead - 1, place] = np.minimum(counted, _ALWAYS)
