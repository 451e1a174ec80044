"""Interface of every filter implementation, which processes observations of many streams at once."""

# mypy does not know the types of numba's dispatchers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from rfa.runtime.compiling import inline_jit
from rfa.runtime.filters.observed import Observed
from rfa.runtime.pool import StateField, StatePool
from rfa.runtime.uncertainty.adaptive import FIELDS, ConformalState
from rfa.runtime.uncertainty.baseline import FIELD as NORMAL
from rfa.runtime.uncertainty.copy_arrays import copy1, copy2, copy3
from rfa.runtime.uncertainty.learned_tail import FIELD as TAIL
from rfa.runtime.uncertainty.rules import FIELDS as ALARM_FIELDS
from rfa.runtime.uncertainty.rules import AlarmState
from rfa.runtime.uncertainty.step_outputs import FilterOutput, StepOutputs, StreamStates
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray

# Shorter lags are treated as 0, because bundles that measure time in typical lags divide by the lag.
SHORTEST_LAG = 1e-20
CLOCK = {
    "clock.time": StateField((), np.float64),
    "clock.count": StateField((), np.int64),
    "clock.surprise": StateField((), np.float64),
    "clock.step": StateField((), np.float64),
}


class Batch(NamedTuple):
    """Observations of a batch of streams. The observations of a stream are adjacent and in order.

    Attributes:
        slots: Pool slot of each observation, `[R]`.
        times: Times, `[R]`.
        values: Values, `[R, P]`. Missing values are NaN.
        noise: Factors on the standard deviation of the measurement noise, `[R]`.
    """

    slots: Array
    times: Array
    values: Array
    noise: Array

    def packed(self) -> tuple[Array, ...]:
        """Return the arrays in the layout of the kernels: contiguous in row order and writable."""
        return tuple(
            part if part.flags.carray else np.require(part, requirements=["C", "A", "W"]) for part in self
        )  # fmt: skip


class Traced(NamedTuple):
    """Intermediate results for sampling, smoothing and golden outputs.

    The arrays have one row per observation, or no rows if no trace was requested.

    Attributes:
        scalars: Precision, weight, nis and log-likelihood, `[R, 4]`, also for missing observations.
        covariance, innovation_covariance: Covariances in units of the observation, `[R, P, P]`.
        transition: Transition matrix from the previous state, `[R, n, n]`.
        predicted_mean, predicted_covariance: Predicted state, `[R, n]` and `[R, n, n]`.
        mean, state_covariance: State after the observation, `[R, n]` and `[R, n, n]`.
        state: Stored state of the filter itself, `[R, S]`.
        forecast_mean, forecast_covariance: Forecasts, `[R, H, P]` and `[R, H, P, P]`.
    """

    scalars: Array
    covariance: Array
    innovation_covariance: Array
    transition: Array
    predicted_mean: Array
    predicted_covariance: Array
    mean: Array
    state_covariance: Array
    state: Array
    forecast_mean: Array
    forecast_covariance: Array


def allocate_posterior(out: Observed, horizon: int, sides: int = 0) -> FilterOutput:
    """Return a posterior that uses the buffers of `out`, and buffers for its forecasts.

    Args:
        out: Buffers for the outputs of a filter.
        horizon: Number of forecasts.
        sides: Number of columns of `FilterOutput.half_widths`.
    """
    size = out.mean.shape[0]
    return FilterOutput(
        out.mean, out.covariance, out.innovation, out.innovation_covariance, np.zeros((horizon, size)),
        np.zeros((horizon, size, size)), out.scalars, np.zeros((2, size)), np.zeros((horizon, size)),
        np.zeros((horizon, size, sides)), np.ones(size, np.bool_), np.full(2, np.nan),
    )  # fmt: skip


@inline_jit
def store_trace(out, posterior, trace, row):
    """Store an observation in a trace, without the state after it, whose layout depends on the filter."""
    copy1(out.scalars, trace.scalars[row])
    copy2(out.covariance, trace.covariance[row])
    copy2(out.innovation_covariance, trace.innovation_covariance[row])
    copy2(out.transition, trace.transition[row])
    copy1(out.predicted_mean, trace.predicted_mean[row])
    copy2(out.predicted_covariance, trace.predicted_covariance[row])
    copy2(posterior.forecast_mean, trace.forecast_mean[row])
    copy3(posterior.forecast_covariance, trace.forecast_covariance[row])


def allocate_trace(rows: int, size: int, n: int, state_size: int, horizon: int) -> Traced:
    """Return buffers for a trace. An empty trace is cached, because live streams need it at every step.

    Args:
        rows: Number of observations.
        size: Number of components of an observation.
        n: Size of the state.
        state_size: Size of the stored state.
        horizon: Number of horizons.
    """
    return _allocate_trace(rows, size, n, state_size, horizon) if rows else _empty_trace(size, n, state_size, horizon)


@functools.lru_cache(64)
def _empty_trace(size: int, n: int, state_size: int, horizon: int) -> Traced:
    return _allocate_trace(0, size, n, state_size, horizon)


def _allocate_trace(rows: int, size: int, n: int, state_size: int, horizon: int) -> Traced:
    shapes = (
        (4,),
        (size, size), (size, size), (n, n), (n,), (n, n), (n,), (n, n), (state_size,), (horizon, size),
        (horizon, size, size),
    )  # fmt: skip
    return Traced(*(np.empty((rows, *shape)) for shape in shapes))


class FilterSteps(Protocol):
    """Processes observations with a filter.

    Attributes:
        runtime: Name of the implementation.
        magic: First bytes of packed states.
        initial: The filter's part of a state before the first observation, by field.
        fields: Fields of that part.
        rows: Number of observations of one stream per call.
    """

    runtime: str
    magic: bytes
    initial: Mapping[str, Array]
    fields: Mapping[str, StateField]
    rows: int

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """Process the observations of each stream, up to the first one whose results are not finite. That observation
        does not change its stream. Return the outputs and the trace of the batch."""
        ...

    def disable_compilation(self) -> None:
        """Disable compilation. Later calls that would compile raise an error, so every kernel must have run before."""
        ...


def streams_of(pool: StatePool) -> StreamStates:
    """Return the arrays of a pool that scoring reads and writes."""
    arrays = pool.arrays
    return StreamStates(
        arrays["clock.time"], arrays["clock.count"], arrays["clock.surprise"], arrays["clock.step"],
        arrays[NORMAL], arrays[TAIL], AlarmState(*(arrays[name] for name in ALARM_FIELDS)),
        ConformalState(*(arrays[name] for name in FIELDS)),
    )  # fmt: skip
