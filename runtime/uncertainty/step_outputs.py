"""Arrays that the scoring of an observation reads and writes.

P is the number of components of an observation, H the number of requested horizons, and R the number of rows, one per
observation.
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
    """State of the streams of a pool in addition to the filter's own state, by stream index."""

    time: Array
    counts: Array
    novelty: Array
    step: Array
    baseline: Array
    tail: Array
    alarms: AlarmState
    conformal: ConformalState


class OutputSpec(NamedTuple):
    """Requested outputs, created by `Readout`.

    Attributes:
        state_scale: Calibrated std of the state per model std.
        state: Half-widths of the state's intervals per model std, `[levels]`.
        horizon: `[H]`.
        multipliers: Multipliers of the forecasts' intervals at the calibrated levels, `[H, calibrated]`.
        horizon_index: Calibrated horizon nearest to each horizon, `[H]`. Unused if horizons count steps.
        columns, weights: Intervals of the levels as weighted sums of two calibrated ones, `[2 levels]` and
            `[H, 2 levels]`.
        squares: Squares of the normal quantiles at the levels, `[levels]`.
        scale: Calibrated std of the forecasts per model std, `[H]`.
        utc_offsets: Offsets of local time, `[K, 2]`. See `local_time_numba.py`.
        muted, muted_weekly, muted_offsets: Maintenance windows, `[W, 2]` each. See mute.py.
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
    """A filter's posterior and forecasts for one observation, in units of the observation.

    Attributes:
        mean, covariance: State, `[P]` and `[P, P]`.
        innovation, innovation_covariance: 0 where a component is missing.
        forecast_mean, forecast_covariance: `[H, P]` and `[H, P, P]`.
        scalars: Precision, weight, nis and log-likelihood of the model, `[4]`.
        inverse_dof: 1/ν of the Student's t of innovation and state, 0 if it is normal, `[2, P]`. See student.py.
        forecast_inverse_dof: 1/ν of the forecasts, `[H, P]`.
        half_widths: Half-widths of the forecasts' intervals below and above the mean, `[H, P, 2 calibrated]`, or
            `[H, P, 0]` if they follow from the covariance.
        has_forecast: `[P]`, False if a component had only a guess. It is not scored, and forecasts made from it count
            as infinite.
        tail: `[2]`, the tail probability of the observation, NaN if it is learned from the scores of the stream; and
            the nis that is scored, NaN for that of the filter.
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
    """Calibrated outputs, one row per observation; NaN if nothing was observed.

    Attributes:
        is_good: Whether all of a row is finite. Other rows are undefined, but raised no alarm.
        position: Position of the observation in its stream.
        alarm: 1 or 0; NaN unless requested.
        raised: RAISED_BY of an alarm, else NaN, `[R, 4]`. See rules.py.
        moments: Mean, std and median of the forecasts, `[R, H, 3, P]`.
        bands: Intervals of the forecasts, `[R, H, levels, P, 2]`.
        tally: See forecast_checks.py.
        weights: Weights of the model's experts in the forecasts, `[R, H, P, experts]`. Without experts unless
            requested.
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
        """Allocate outputs for observations of `size` components."""
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
    """Buffers for one row, used until the row is known to be finite.

    Attributes:
        shift: V of one stream, retained from row to row.
        loaded: Index of that stream, or -1, and the number of its pending forecasts, `[2]`.
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
        """Allocate buffers for the streams of a pool, which are used for one row after another."""
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
    """Data for scoring the observations of a pool's streams."""

    streams: StreamStates
    horizons: Horizons
    tables: Tables
    spec: OutputSpec
    work: Workspace

    @classmethod
    def of(cls, streams: StreamStates, horizons: Horizons, readout: Readout) -> Scorer:
        """Return the scorer for the outputs that `readout` specifies."""
        work = Workspace.allocate(streams.conformal, readout)
        return cls(streams, horizons, readout.calibration.tables, readout.spec, work)


class Observation(NamedTuple):
    """An observation of a stream. value is `[P]`, NaN where missing."""

    stream: int
    time: float
    value: Array
