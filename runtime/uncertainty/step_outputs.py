"""Arrays that scoring an observation reads and writes.

P: components of an observation; H: requested horizons; R: rows, one an observation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rfa.runtime.uncertainty.adaptive import ConformalState, Horizons
from rfa.runtime.uncertainty.alarms import AlarmRule
from rfa.runtime.uncertainty.baseline import COLUMNS
from rfa.runtime.uncertainty.calibration import Tables
from rfa.runtime.uncertainty.forecast_checks import columns
from rfa.runtime.uncertainty.learned_tail import COLUMNS as TAIL_COLUMNS
from rfa.runtime.uncertainty.rules import RAISED_NUMBERS, RULES, AlarmState

if TYPE_CHECKING:
    from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray[Any, Any]


class StreamStates(NamedTuple):
    """State of the streams of a pool in addition to the filter's own, by stream index."""

    time: Array
    counts: Array
    novelty: Array
    step: Array
    baseline: Array
    tail: Array
    alarms: AlarmState
    conformal: ConformalState


class OutputSpec(NamedTuple):
    """What a request asks for; `Readout` makes it.

    Attributes:
        state_scale: calibrated std of the state per model std.
        state: half widths of its intervals per model std, `[levels]`.
        horizon: `[H]`.
        multipliers: of the forecasts' intervals at the calibrated levels, `[H, calibrated]`.
        horizon_index: the calibrated horizon nearest to each, `[H]`; unused where horizons count steps.
        columns, weights: the intervals of the levels as sums of two calibrated ones, `[2 levels]`, `[H, 2 levels]`.
        squares: of the normal's quantiles at the levels, `[levels]`.
        scale: calibrated std of the forecasts per model std, `[H]`.
        utc_offsets: of local time, `[K, 2]`; see `local_time_numba.py`.
        muted, muted_weekly, muted_offsets: maintenance windows, `[W, 2]` each; see mute.py.
    """

    state_scale: float
    state: Array
    horizon: Array
    multipliers: Array
    horizon_index: Array
    columns: Array
    weights: Array
    squares: Array
    scale: Array
    alarm: AlarmRule
    utc_offsets: Array
    muted: Array
    muted_weekly: Array
    muted_offsets: Array


class FilterOutput(NamedTuple):
    """A filter's posterior and forecasts of one observation, in units of the observation.

    Attributes:
        mean, covariance: of the state, `[P]` and `[P, P]`.
        innovation, innovation_covariance: 0 where a component is missing.
        forecast_mean, forecast_covariance: `[H, P]` and `[H, P, P]`.
        scalars: the model's precision, weight, nis and log-likelihood, `[4]`.
        inverse_dof: 1/ν of the Student's t of innovation and state, 0 where it is normal, `[2, P]`; see student.py.
        forecast_inverse_dof: the same of the forecasts, `[H, P]`.
        half_widths: of the forecasts' intervals below and above the mean, `[H, P, 2 calibrated]`, or `[H, P, 0]` where
            they follow from the covariance.
        has_forecast: False where a component had only a guess: it is not scored, and forecasts made from it count as
            infinite, `[P]`.
        tail: tail probability of the observation, NaN where it is learned from the scores of the stream; and the nis
            that is scored, NaN for that of the filter, `[2]`.
    """

    mean: Array
    covariance: Array
    innovation: Array
    innovation_covariance: Array
    forecast_mean: Array
    forecast_covariance: Array
    scalars: Array
    inverse_dof: Array
    forecast_inverse_dof: Array
    half_widths: Array
    has_forecast: Array
    tail: Array


class StepOutputs(NamedTuple):
    """Calibrated outputs, a row an observation; NaN if nothing was observed.

    Attributes:
        is_good: whether all of a row is finite; other rows are undefined, but raised nothing.
        position: of the observation in its stream.
        alarm: 1 or 0; NaN unless requested.
        raised: of an alarm its RAISED_BY, else NaN, `[R, 4]`; see rules.py.
        moments: mean, std and median of the forecasts, `[R, H, 3, P]`.
        bands: their intervals, `[R, H, levels, P, 2]`.
        tally: see forecast_checks.py.
        weights: of the model's experts in the forecasts, `[R, H, P, experts]`; no experts unless requested.
    """

    is_good: Array
    position: Array
    mean: Array
    std: Array
    precision: Array
    confidence: Array
    weight: Array
    innovation: Array
    nis: Array
    anomaly: Array
    alarm: Array
    raised: Array
    log_likelihood: Array
    interval: Array
    moments: Array
    bands: Array
    tally: Array
    weights: Array

    @classmethod
    def allocate(cls, rows: int, size: int, readout: Readout) -> StepOutputs:
        """For observations of `size` components."""
        levels, horizon, calibrated = len(readout.names), len(readout.horizon), len(readout.calibration.levels)
        wide, row = (rows, size), (rows,)
        found = cls(
            np.zeros(rows, np.bool_), np.zeros(rows, np.int64), *map(np.empty, (wide, wide, row, row, row, wide, row,
            row, row, (rows, RAISED_NUMBERS), row, (rows, levels, size, 2), (rows, horizon, 3, size),
            (rows, horizon, levels, size, 2), (rows, columns(calibrated, horizon, size)),
            (rows, horizon, size, len(readout.experts))))
        )  # fmt: skip
        found.raised.fill(np.nan)
        return found


class Workspace(NamedTuple):
    """Buffers for one row, until it is known to be finite.

    Attributes:
        shift: v of one stream, kept from row to row.
        loaded: which stream, -1 for none, and how many of its forecasts are pending, `[2]`.
    """

    shift: Array
    loaded: Array
    change: Array
    arrived: Array
    baseline: Array
    tail: Array
    radius: Array
    multipliers: Array
    side: Array
    widths: Array
    edges: Array
    scores: Array
    is_scored: Array
    is_above: Array
    horizon_index: Array
    column: Array
    scored: Array
    periods: Array
    tails: Array
    least: Array
    components: Array

    @classmethod
    def allocate(cls, state: ConformalState, readout: Readout) -> Workspace:
        """For streams of a pool, one row after the other."""
        horizons, size, levels = state.shift.shape[1:]
        requested, pit = len(readout.horizon), len(readout.calibration.tables.pit_columns) // 2
        return cls(
            np.empty((horizons, size, levels), np.float32), np.full(2, -1), np.empty((horizons, size, levels)),
            np.empty(state.due.shape[1], np.int8), np.empty(COLUMNS), np.empty(TAIL_COLUMNS),
            np.empty((requested, size, state.radius.shape[3])), np.empty(levels), np.empty(levels),
            np.empty((size, levels)), np.empty((size, pit)), np.empty(size), np.empty(size, np.bool_),
            np.empty(size, np.bool_), np.empty(requested, np.int64), np.empty(horizons, np.int64),
            np.empty((horizons, 1 + levels)), np.empty(size), np.empty(RULES), np.empty(RULES),
            np.empty(RULES, np.int64),
        )  # fmt: skip


class Scorer(NamedTuple):
    """What scores the observations of a pool's streams."""

    streams: StreamStates
    horizons: Horizons
    tables: Tables
    spec: OutputSpec
    work: Workspace

    @classmethod
    def of(cls, streams: StreamStates, horizons: Horizons, readout: Readout) -> Scorer:
        """For the outputs that `readout` asks for."""
        work = Workspace.allocate(streams.conformal, readout)
        return cls(streams, horizons, readout.calibration.tables, readout.spec, work)


class Observation(NamedTuple):
    """An observation of a stream: value `[P]`, NaN where missing."""

    stream: int
    time: float
    value: Array
