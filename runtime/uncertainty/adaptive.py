"""Adaptive conformal intervals: how wide a stream's forecast intervals must be, learned from the stream itself.

The bundle's split-conformal multipliers are right while a stream resembles the data that they were fitted on. Each
multiplier is scaled by a factor per horizon, component and level. After each observation

    v ← v + γ (err − (1 − level))               err = 1 where the interval was missed, else 0
    factor(v) = ((1 + v) / (1 − v))³            1 at v = 0, unbounded towards v = 1

This is adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170, eq. 2) with v = α − α_t. An increasing
function of v replaces the quantile of past scores, so a stream stores one number and no window (the saturating
integrator of Angelopoulos, Candès and Tibshirani 2023, arXiv 2307.16895). An interval counts as infinite where v ≥ 1
and as empty where v ≤ −1/2, so v stays in [−1/2 − γ, 1 + γ] and the sum telescopes, whatever the data:

    |mean err − (1 − level)| = |v_T − v_0| / (γ T) ≤ (1 + γ) / (γ T)

The intervals that are sent are finite: the factor is bounded by 1/27 and 99³. Infinite and empty are exact for v; the
reported coverage counts the intervals that were sent.

Every observation scores the first horizon, at whatever lag, by the step's own innovation. A forecast at another horizon
is pending until an observation comes at its time. A step is the bundle's first calibrated horizon: the median step of
the data that it was fitted on. A horizon of h steps has h pending forecasts (at most MAX_PENDING). The index of a
forecast is the step that it is for, modulo their number; where one is pending already, the newer is not scored. So a
stream with the bundle's cadence has every forecast up to MAX_PENDING steps scored. Faster streams and longer horizons
are thinned evenly over all hours: a smaller buffer used whenever free would score the same hours every day.

An observation matches a forecast within a share TOLERANCE of the horizon, half a step, and half the lag since the
observation before it: of a faster stream only the observation that is due matches.

Where horizons count a stream's own steps (`auto`), a step is its typical lag, the share is STEP_TOLERANCE, and the
second horizon is one step again: errors after long lags do not show the error one typical lag ahead.

A change of v takes effect one horizon later, after up to h results of earlier forecasts. At 90 % the miss rate falls by
about 2 per unit of v. So γ_h = min(γ, 1 / (4 h)): one round of the loop undoes at most half of an error. With h results
outstanding v may move by h γ_h more, so after T scored forecasts

    |mean err − (1 − level)| ≤ (1 + h γ_h) / (γ_h T) = 1 / (γ_h T) + h / T

v is stored as float32: rounding adds at most 2⁻²⁴ / γ_h to the bound.
"""

# numba types its dispatchers by their first call, which mypy cannot follow.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.pool import StateField

Array = np.ndarray

# Chosen on simulated streams: with 0.02 the 300 forecasts after a change of the noise miss by 1.9
# points, with 0.025 by 1.5; clean intervals are 2.8 % and 3.5 % wider than they need be.
GAMMA = 0.025
EMPTY, INFINITE = -0.5, 1.0
# The v at which the factor is largest.
WIDEST = 0.98
# Pending forecasts of one horizon.
MAX_PENDING = 32
# How near an observation must be to the time of a forecast, as a share of the horizon in time, and in steps.
TOLERANCE = 0.05
STEP_TOLERANCE = 0.25
# How far steps / pending forecasts may exceed a whole number before fewer are scored: typical lags are rarely whole.
JITTER = 0.1
# The typical lag is a mean of at most so many.
LAGS = 1000.0
# Where a step begins, in steps: no clock ticks there, so that rounding does not put two ticks into one step.
EDGE = 0.382
FIELDS = tuple(f"adaptive.{name}" for name in ("shift", "due", "mean", "radius"))


class ConformalState(NamedTuple):
    """The adaptive state of all streams of a pool.

    Attributes:
        shift: v, `[streams, horizons, P, levels]`.
        due, mean: times and means of the pending forecasts, `[streams, pending]` and `[…, P]`.
        radius: half widths of their intervals, `[…, P, levels]`, or below and above, `[…, P, 2 levels]`. Negative
            for empty ones, 0 if nothing is pending.
    """

    shift: Array
    due: Array
    mean: Array
    radius: Array


class Horizons(NamedTuple):
    """How forecasts at the calibrated horizons are scored.

    Attributes:
        step: the first horizon, in time units.
        gamma: `[horizons]`.
        pending_count: pending forecasts of each horizon but the first, `[horizons - 1]`.
        pending_begin: index of the first of them, `[horizons - 1]`.
        pending_horizon: index of the horizon of each pending forecast, ascending, `[pending]`.
        tolerance: how far from its time an observation may be, `[pending]`.
        times: the horizons, `[horizons]`.
        in_steps: whether horizons count the stream's typical lags instead of time units.
    """

    step: float
    gamma: Array
    pending_count: Array
    pending_begin: Array
    pending_horizon: Array
    tolerance: Array
    times: Array
    in_steps: bool

    @classmethod
    def of(
        cls,
        horizons: Sequence[float] | Array,
        *,
        in_steps: bool = False,
        max_pending: int = MAX_PENDING,
        rate: float = 1.0,
    ) -> Horizons:
        """For ascending horizons; the first is the step.

        Args:
            rate: factor on γ of all but the first; below 1 where the model's own intervals are already good.
        """
        times = np.array(horizons, np.float64)
        step = float(times[0])
        steps = np.clip(np.rint(times / step), 1, max_pending).astype(np.int64)
        gamma: Array = rate * np.minimum(GAMMA, 1 / (4 * steps))
        gamma[0] = GAMMA
        counts = steps[1:]
        index = np.repeat(np.arange(1, len(times)), counts)
        tolerance: Array = np.minimum((STEP_TOLERANCE if in_steps else TOLERANCE) * times, step / 2)[index]
        return cls(step, gamma, counts, np.cumsum(counts) - counts, index, tolerance, times, in_steps)

    def fields(self, size: int, levels: int, sides: int = 1) -> dict[str, StateField]:
        """State fields of a stream of `size` components, see `ConformalState`; two `sides` where intervals are not
        symmetric."""
        pending = len(self.pending_horizon)
        shapes = ((len(self.gamma), size, levels), (pending,), (pending, size), (pending, size, sides * levels))
        kinds = (np.float32, np.float64, np.float64, np.float32)
        return {name: StateField(shape, kind) for name, shape, kind in zip(FIELDS, shapes, kinds, strict=True)}


@inline_jit
def typical_step(step, lag, count):
    """Running mean of a stream's lags, each clipped to half and twice the mean; 0 before the first."""
    if lag <= 0:
        return step
    if step == 0:
        return lag
    return step + (min(max(lag, step / 2), 2 * step) - step) / min(count + 1, LAGS)


@inline_jit
def _width_factor(shift):
    bounded = min(max(np.float64(shift), EMPTY), WIDEST)
    ratio = (1 + bounded) / (1 - bounded)
    return ratio * ratio * ratio


@inline_jit
def adapt_half_widths(multipliers, shift, out):
    """Half widths per model std `[levels]`, never smaller at a higher level."""
    for level in range(len(multipliers)):
        width = multipliers[level] * _width_factor(shift[level])
        out[level] = max(width, out[level - 1]) if level > 0 else width


@inline_jit
def _update_shift(shift, missed, rate):
    """v after an interval was missed or not; `rate` is 1 - level."""
    counted = (missed or shift <= EMPTY) and shift < INFINITE
    return shift + GAMMA * ((1.0 if counted else 0.0) - rate)


@inline_jit
def score_step(shift, widths, score, rates):
    """Update v `[levels]` of a component's one-step forecast, which was off by `score` model stds."""
    for level in range(len(rates)):
        shift[level] = _update_shift(np.float64(shift[level]), widths[level] < score, rates[level])
