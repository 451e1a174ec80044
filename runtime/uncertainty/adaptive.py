"""Adaptive conformal intervals. The width of a stream's forecast intervals is learned from the stream itself.

The bundle's split-conformal multipliers are correct while a stream resembles the data that they were fitted to. Each
multiplier is scaled by a factor per horizon, component and level. After each observation,

    v ← v + γ (err − (1 − level))               err = 1 if the interval missed the value, else 0
    factor(v) = ((1 + v) / (1 − v))³            1 at v = 0, unbounded towards v = 1

This is adaptive conformal inference (Gibbs and Candès 2021, arXiv 2106.00170, eq. 2) with v = α − α_t. An increasing
function of v replaces the quantile of past scores, so a stream stores one number and no window (the saturating
integrator of Angelopoulos, Candès and Tibshirani 2023, arXiv 2307.16895). An interval is treated as infinite if v ≥ 1
and as empty if v ≤ −1/2, so v stays in [−1/2 − γ, 1 + γ], and summing the updates gives, for any data,

    |mean err − (1 − level)| = |v_T − v_0| / (γ T) ≤ (1 + γ) / (γ T)

The intervals in replies are finite, because the factor is bounded by 1/27 and 99³. The bound holds if an interval with
v ≥ 1 is treated as infinite and one with v ≤ −1/2 as empty. The reported coverage is that of the intervals in replies.

The one-step forecast is scored against each observation, regardless of the lag since the previous one. A forecast at
another horizon is pending until an observation arrives at its time. A step is the bundle's first calibrated horizon,
which is the median step of the data that it was fitted to. A horizon of h steps has h pending forecasts (at most
MAX_PENDING). A forecast for step s is stored at index s modulo the size of the buffer. If a forecast is already pending
at that index, the newer one is not scored. In a stream with the bundle's time step, all forecasts up to MAX_PENDING
steps ahead are therefore scored. For faster streams and longer horizons, only some forecasts are scored, evenly spread
over the hours of the day. If forecasts were stored whenever a slot of a smaller buffer is free, the same hours would be
scored every day.

An observation matches a forecast if their times differ by at most the smallest of TOLERANCE times the horizon, half a
step, and half the lag since the previous observation. In a faster stream, only the observation that is due matches.

If horizons are in steps of the stream (`auto`), a step is its typical lag, TOLERANCE is replaced by STEP_TOLERANCE, and
the second horizon is also one step. The first one is scored after any lag, and errors after long lags do not represent
the error one typical lag ahead.

A change of v takes effect one horizon later, after up to h results of earlier forecasts. For 90 % intervals, the
derivative of the miss rate with respect to v is about −2. Therefore γ_h = min(γ, 1 / (4 h)), so that updates during one
horizon correct at most half of an error. With h results outstanding, v may change by another h γ_h. After T scored
forecasts,

    |mean err − (1 − level)| ≤ (1 + h γ_h) / (γ_h T) = 1 / (γ_h T) + h / T

v is stored as float32, whose rounding adds at most 2⁻²⁴ / γ_h to the bound.
"""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.pool import StateField

Array = np.ndarray

# The rate was chosen on simulated streams. With 0.02, the coverage of the 300 forecasts after a change of the noise is
# off by 1.9 points; with 0.025, by 1.5 points. Without a change, intervals are 2.8 % and 3.5 % wider than necessary.
GAMMA = 0.025
EMPTY, INFINITE = -0.5, 1.0
# Value of v at which the factor is largest.
WIDEST = 0.98
# Maximum number of pending forecasts of one horizon.
MAX_PENDING = 32
# Maximum difference between the times of an observation and its forecast, as a fraction of the horizon: for horizons in
# time units, and for horizons in steps.
TOLERANCE = 0.05
STEP_TOLERANCE = 0.25
# Amount by which the ratio of steps and pending forecasts may exceed an integer before fewer forecasts are scored. It
# is needed because typical lags are rarely integers.
JITTER = 0.1
# Offset of the beginning of a step, in steps. Regular times do not occur at this offset, so rounding does not assign
# two of them to one step.
EDGE = 0.382
FIELDS = tuple(f"adaptive.{name}" for name in ("shift", "due", "mean", "radius"))


class ConformalState(NamedTuple):
    """Adaptive state of all streams of a pool.

    Attributes:
        shift: The v of the equations, `[streams, horizons, P, levels]`.
        due, mean: Times and means of the pending forecasts, `[streams, pending]` and `[…, P]`.
        radius: Half-widths of their intervals, `[…, P, levels]`, or half-widths below and above the mean,
            `[…, P, 2 levels]`. They are negative if the interval is empty, and 0 if nothing is pending.
    """

    shift: Array
    due: Array
    mean: Array
    radius: Array


class Horizons(NamedTuple):
    """Calibrated horizons, and parameters for scoring their forecasts.

    Attributes:
        step: First horizon, in time units.
        gamma: Learning rate γ of each horizon, `[horizons]`.
        pending_count: Number of pending forecasts of each horizon except the first, `[horizons - 1]`.
        pending_begin: Index of the first pending forecast of each horizon except the first, `[horizons - 1]`.
        pending_horizon: Index of the horizon of each pending forecast, ascending, `[pending]`.
        tolerance: Allowed distance of an observation from the time of each pending forecast, `[pending]`.
        times: Horizons, `[horizons]`.
        in_steps: Whether horizons are in typical lags of the stream rather than in time units.
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
        """Return the parameters for calibrated horizons.

        Args:
            horizons: Horizons in ascending order. The first one is the step.
            in_steps: Whether horizons are in typical lags of the stream.
            max_pending: Maximum number of pending forecasts of one horizon.
            rate: Factor on γ of all horizons except the first. It is below 1 if the intervals of the model itself are
                already good.
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
        """Return the state fields of a stream. See `ConformalState`.

        Args:
            size: Number of components.
            levels: Number of calibrated levels.
            sides: Number of separately stored sides of an interval. It is 2 if intervals are asymmetric.
        """
        pending = len(self.pending_horizon)
        shapes = ((len(self.gamma), size, levels), (pending,), (pending, size), (pending, size, sides * levels))
        kinds = (np.float32, np.float64, np.float64, np.float32)
        return {name: StateField(shape, kind) for name, shape, kind in zip(FIELDS, shapes, kinds, strict=True)}


@inline_jit
def _width_factor(shift):
    bounded = min(max(np.float64(shift), EMPTY), WIDEST)
    ratio = (1 + bounded) / (1 - bounded)
    return ratio * ratio * ratio


@inline_jit
def adapt_half_widths(multipliers, shift, out):
    """Write the half-widths in standard deviations of the model to `out` `[levels]`. They never decrease with the
    level."""
    for level in range(len(multipliers)):
        width = multipliers[level] * _width_factor(shift[level])
        out[level] = max(width, out[level - 1]) if level > 0 else width


@inline_jit
def _update_shift(shift, missed, rate):
    """Return the updated v after an interval contained or missed its value. `rate` is 1 - level."""
    counted = (missed or shift <= EMPTY) and shift < INFINITE
    return shift + GAMMA * ((1.0 if counted else 0.0) - rate)


@inline_jit
def score_step(shift, widths, score, rates):
    """Update `shift` `[levels]` (v in the equations) of one component. `score` is the absolute error of its one-step
    forecast in standard deviations of the model."""
    for level in range(len(rates)):
        shift[level] = _update_shift(np.float64(shift[level]), widths[level] < score, rates[level])
