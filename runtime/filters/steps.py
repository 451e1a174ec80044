"""Steps of many streams at once: what a runtime of filters offers, whatever computes it."""

# numba types its dispatchers by their first call, which mypy cannot follow.
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
from rfa.runtime.uncertainty.step_outputs import FilterOutput, StepOutputs, StreamStates
from rfa.runtime.uncertainty.steps import Readout

Array = np.ndarray

# A shorter lag is none: a bundle that measures time in typical lags divides by it.
SHORTEST_LAG = 1e-20
CLOCK = {
    "clock.time": StateField((), np.float64),
    "clock.count": StateField((), np.int64),
    "clock.surprise": StateField((), np.float64),
    "clock.step": StateField((), np.float64),
}


class Batch(NamedTuple):
    """Observations of some streams, those of a stream side by side and in order: rows of the pool, times and noise
    `[R]`, values `[R, P]`, NaN where missing."""

    seats: Array
    times: Array
    values: Array
    noise: Array

    def packed(self) -> tuple[Array, ...]:
        """As kernels take it, which know but one layout: without gaps, by rows, not read-only."""
        return tuple(
            part if part.flags.carray else np.require(part, requirements=["C", "A", "W"]) for part in self
        )  # fmt: skip


class Traced(NamedTuple):
    """What samples, smoothing and golden outputs need beside what is told, a row an observation, or no row at all.

    covariance and innovation_covariance `[P, P]` in units of the observation; in those of the state transition, and
    mean and covariance before and after the observation; the state that is kept; and of the forecasts mean `[H, P]` and
    covariance `[H, P, P]`. scalars `[4]` are precision, weight, nis and log-likelihood, also where nothing was seen.
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


def room_of_known(out: Observed, horizon: int, sides: int = 0) -> FilterOutput:
    """What is known of an observation: what a filter tells of it in `out`, and room for its forecasts, of zeros.

    sides: columns of `FilterOutput.half_widths`.
    """
    size = out.mean.shape[0]
    return FilterOutput(
        out.mean, out.covariance, out.innovation, out.innovation_covariance, np.zeros((horizon, size)),
        np.zeros((horizon, size, size)), out.scalars, np.zeros((2, size)), np.zeros((horizon, size)),
        np.zeros((horizon, size, sides)), np.ones(size, np.bool_),
    )  # fmt: skip


@inline_jit
def keep_trace(out, known, trace, row):
    """Keep what an observation told, but for the state after it, which filters have in forms of their own."""
    copy1(out.scalars, trace.scalars[row])
    copy2(out.covariance, trace.covariance[row])
    copy2(out.innovation_covariance, trace.innovation_covariance[row])
    copy2(out.transition, trace.transition[row])
    copy1(out.predicted_mean, trace.predicted_mean[row])
    copy2(out.predicted_covariance, trace.predicted_covariance[row])
    copy2(known.forecast_mean, trace.forecast_mean[row])
    copy3(known.forecast_covariance, trace.forecast_covariance[row])


def trace_room(rows: int, size: int, n: int, kept: int, horizon: int) -> Traced:
    """Room for a trace. Of no rows there is one for all: live streams trace nothing, many times a second."""
    return _room(rows, size, n, kept, horizon) if rows else _no_room(size, n, kept, horizon)


@functools.lru_cache(64)
def _no_room(size: int, n: int, kept: int, horizon: int) -> Traced:
    return _room(0, size, n, kept, horizon)


def _room(rows: int, size: int, n: int, kept: int, horizon: int) -> Traced:
    shapes = (
        (4,),
        (size, size), (size, size), (n, n), (n,), (n, n), (n,), (n, n), (kept,), (horizon, size), (horizon, size, size)
    )  # fmt: skip
    return Traced(*(np.empty((rows, *shape)) for shape in shapes))


class FilterSteps(Protocol):
    """A filter's steps on one runtime.

    Attributes:
        runtime: its name.
        magic: what its states begin with.
        initial: its part of a state before the first observation, by the names of its fields.
        fields: of that part.
        rows: observations of one stream that are worth one call.
    """

    runtime: str
    magic: bytes
    initial: Mapping[str, Array]
    fields: Mapping[str, StateField]
    rows: int

    def advance(self, pool: StatePool, batch: Batch, readout: Readout, *, traced: bool) -> tuple[StepOutputs, Traced]:
        """Take the observations, up to the first of each stream whose numbers are not finite: its stream stays as it
        was before that one."""
        ...

    def disable_compilation(self) -> None:
        """Compile no more: what serves has run before."""
        ...


def streams_of(pool: StatePool) -> StreamStates:
    """What scoring reads and writes of a pool."""
    arrays = pool.arrays
    return StreamStates(
        arrays["clock.time"], arrays["clock.count"], arrays["clock.surprise"], arrays["clock.step"],
        arrays[NORMAL], arrays[TAIL], ConformalState(*(arrays[name] for name in FIELDS)),
    )  # fmt: skip
