"""Arrays that the scoring of an observation reads and writes.

P is the number of components of an observation, H is the number of requested horizons, and R is the number of rows,
with one row per observation.
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
    """State of the streams of a pool by stream index. It does not contain the filter's own state."""

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
        state_scale: Ratio of the calibrated standard deviation of the state and that of the model.
        state: Half-widths of the state's intervals in standard deviations of the model, `[levels]`.
        horizon: Horizons, `[H]`.
        multipliers: Multipliers of the forecasts' intervals at the calibrated levels, `[H, calibrated]`.
        horizon_index: Calibrated horizon nearest to each horizon, `[H]`. It is not used if horizons are in steps.
        columns, weights: Intervals of the levels as weighted sums of two calibrated ones, `[2 * levels]` and
            `[H, 2 levels]`.
        squares: Squares of the normal quantiles at the levels, `[levels]`.
        scale: Ratios of the calibrated standard deviations of the forecasts and those of the model, `[H]`.
        alarm: Conditions for an alarm.
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
        mean, covariance: Estimate, `[P]` and `[P, P]`.
        innovation, innovation_covariance: Innovation `[P]` and its covariance `[P, P]`. They are 0 for missing
            components.
        forecast_mean, forecast_covariance: Forecasts, `[H, P]` and `[H, P, P]`.
        scalars: Precision, weight, nis and log-likelihood of the model, `[4]`.
        inverse_dof: 1/ν of the Student's t distributions of innovation and state, `[2, P]`. It is 0 for normal
            distributions. See student.py.
        forecast_inverse_dof: 1/ν of the forecasts, `[H, P]`.
        half_widths: Half-widths of the forecasts' intervals below and above the mean, `[H, P, 2 calibrated]`. The shape
            is `[H, P, 0]` if they are computed from the covariance.
        has_forecast: False if the forecast of a component was only a guess, `[P]`. It is then not scored, and forecasts
            that are based on it are treated as infinite.
        tail: Tail probability of the observation, or NaN if it is learned from the scores of the stream; and the nis
            that is scored, or NaN if it is that of the filter, `[2]`.
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
    """Calibrated outputs, with one row per observation. They are NaN if nothing was observed.

    Attributes:
        is_good: Whether all of a row is finite. Other rows are undefined, but never an alarm.
        position: Position of the observation in its stream.
        mean, std: Mean and standard deviation of the state, `[R, P]`.
        precision, confidence: Precision of the state, and probability that the next observation is inside its 0.9
            interval, `[R]`.
        weight, nis: Robust weight of the observation, and its normalised innovation squared, `[R]`.
        innovation: Observation minus its one-step forecast, `[R, P]`.
        anomaly: 1 minus the tail probability of the observation, `[R]`.
        alarm: 1 for an alarm and 0 otherwise. NaN unless requested.
        raised: Numbers of an alarm, `[R, 4]`, as described in rules.py. NaN if there is none.
        log_likelihood: Log-likelihood of the observation, `[R]`.
        interval: Intervals of the state, `[R, levels, P, 2]`.
        moments: Mean, std and median of the forecasts, `[R, H, 3, P]`.
        bands: Intervals of the forecasts, `[R, H, levels, P, 2]`.
        tally: See forecast_checks.py.
        weights: Weights of the model's experts in the forecasts, `[R, H, P, experts]`. There are no experts unless
            weights are requested.
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
        """Allocate the outputs of `rows` observations with `size` columns."""
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
    """Buffers for one row. Results are stored in them until the row is known to be finite.

    Attributes:
        shift: The v of one stream (see adaptive.py). It is retained from row to row.
        loaded: Index of that stream (or -1) and the number of its pending forecasts, `[2]`.

    The other buffers contain intermediate results of one row.
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
        """Allocate buffers that are reused for every row."""
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
    """Data that are needed to score observations of a pool's streams."""

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
    """An observation of a stream. `value` has shape `[P]` and is NaN where a component is missing."""

    stream: int
    time: float
    value: Array
