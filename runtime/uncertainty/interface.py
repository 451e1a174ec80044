"""Requests to a filter, and their results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from rfa.data.utc_offsets import UTC, UtcOffsets
from rfa.runtime.choices import MergeMethod, Mode
from rfa.runtime.errors import InvalidInput
from rfa.runtime.outputs import FilterStep
from rfa.runtime.pool import PoolSlot
from rfa.runtime.uncertainty.alarms import NEVER, Alarm
from rfa.runtime.uncertainty.input import Observation

# Forecasts and samples that cost about as much as the step itself.
FORECASTS_PER_ROW = 4
SAMPLES_PER_ROW = 32
# The range of values without limits.
UNLIMITED = (-math.inf, math.inf)


class ReadoutOptions(NamedTuple):
    """Options of the outputs in addition to levels, horizon and samples.

    Attributes:
        passes: K, of the robust weight; None: the model's own.
        range: no estimate, forecast, bound or sample lies outside.
        weights: whether forecasts come with the weights of the model's experts.
        utc_offsets: of local time, whose days and weeks recur.
    """

    mode: Mode = "recurrent"
    alarm: Alarm = NEVER
    passes: int | None = None
    range: tuple[float, float] = UNLIMITED
    weights: bool = False
    utc_offsets: UtcOffsets = UTC


class Row(NamedTuple):
    """One observation of one stream, checked."""

    slot: PoolSlot
    t: float
    observation: Observation
    noise: float
    readout: Any  # from `FilterRuntime.readout`
    seed: int
    input: Sequence[float] | None = None


class Inputs(Protocol):
    """Inputs of the rows of a series: an array, or what makes the inputs of some rows."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Piece(NamedTuple):
    """Observations of one stream in order, checked.

    Attributes:
        times, noise: `[k]`.
        values: `[k, P]`, NaN where missing.
        inputs: that drive the state until each observation, `[k, n]`, or of `CovariateInputs`, or None.
    """

    slot: PoolSlot
    times: np.ndarray
    values: np.ndarray
    noise: np.ndarray
    readout: Any
    seed: int
    inputs: Inputs | None = None

    def part(self, rows: slice) -> Piece:
        """A slice of the rows."""
        return self._replace(
            times=self.times[rows], values=self.values[rows], noise=self.noise[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
        )  # fmt: skip


class Ahead(NamedTuple):
    """Forecasts after the last observation.

    Attributes:
        times: `[M]`.
        moments: mean, std and median, `[M, 3, P]`.
        bands: intervals, `[M, levels, P, 2]`.
        weights: of the experts, `[M, P, experts]`; see `StepOutputs`.
        experts: their names.
    """

    times: np.ndarray
    moments: np.ndarray
    bands: np.ndarray
    weights: np.ndarray
    experts: tuple[str, ...]


class Stepped(NamedTuple):
    """The reply to a row; for `tally` see forecast_checks.py."""

    step: FilterStep
    log_likelihood: float
    tally: np.ndarray


@dataclass(frozen=True)
class LateOptions:
    """Late rows of a stream.

    Attributes:
        length: of the window, in units of the times.
        packed: window of the state to continue from; empty without one.
    """

    length: float
    packed: bytes = b""


@dataclass(frozen=True)
class FilterOptions:
    """What to filter, and which outputs to return.

    Attributes:
        times: `[N]`.
        observations: `[N, P]`, NaN where missing.
        noise: factors on the standard deviation of each observation's measurement noise, `[N]`.
        samples: draws of the state per step; with `smooth` they are trajectories given all observations.
        mode: "attention" looks at all earlier observations (at most MAX_ATTENTION) and starts fresh.
        lag: with `smooth`, each state is given only so many observations after it (fixed lag), not all.
        state: to continue from, as the model unpacked it (recurrent mode).
        wants_state: whether to return the packed state at the end.
        is_whole: whether the reply is sent only when it is complete.
        deadline_seconds: the request then ends with the finished part.
        passes: K, of the robust weight; None: the model's own.
        inputs: that drive the state, per unit time, until each observation, `[N, n]`; or `CovariateInputs`.
        known_ahead: the columns that are known ahead at `ahead`, `[M, K]`.
        ahead: horizons after the last observation (recurrent mode).
        followed: this many of `horizon`, the last ones, only adapt their intervals; the reply leaves them out.
        range, weights, utc_offsets: see `ReadoutOptions`.
        names: of the components, for warnings.
        refused: errors of invalid rows of a stream, by position; a row without a valid time has the time NaN.
        late: window of late rows of a stream; None refuses them.
    """

    times: np.ndarray
    observations: np.ndarray
    noise: np.ndarray
    levels: tuple[float, ...]
    horizon: tuple[float, ...] = ()
    samples: int = 0
    alarm: Alarm = NEVER
    seed: int = 0
    mode: Mode = "recurrent"
    smooth: bool = False
    lag: int | None = None
    is_streamed: bool = False
    state: Any = None
    wants_state: bool = False
    is_whole: bool = False
    deadline_seconds: float | None = None
    passes: int | None = None
    inputs: Inputs | None = None
    covariates_ahead: np.ndarray | None = None
    ahead: tuple[float, ...] = ()
    followed: int = 0
    range: tuple[float, float] = UNLIMITED
    weights: bool = False
    utc_offsets: UtcOffsets = UTC
    names: tuple[str, ...] = ()
    refused: Mapping[int, InvalidInput] = field(default_factory=dict)
    late: LateOptions | None = None

    @property
    def readout(self) -> ReadoutOptions:
        """Options of the outputs."""
        return ReadoutOptions(self.mode, self.alarm, self.passes, self.range, self.weights, self.utc_offsets)

    @property
    def needs_whole(self) -> bool:
        """Whether the reply needs the whole sequence at once."""
        return self.smooth or self.mode == "attention"


@dataclass(frozen=True)
class MergeOptions:
    """States to merge, and which outputs to return.

    Attributes:
        states: as the model unpacked them.
        method: "precision" adds the precisions, as if the states shared only `prior`; "covariance_intersection" is
            never overconfident, whatever they share.
        prior: common ancestor of the states, counted once; "precision" only.
        t: of the merged state; None: the latest of the states.
    """

    states: tuple[Any, ...]
    method: MergeMethod
    levels: tuple[float, ...] = ()
    horizon: tuple[float, ...] = ()
    prior: Any = None
    t: float | None = None
    wants_state: bool = True


def reply_rows(options: Any) -> int:
    """Cost of a step with these outputs (a horizon and samples), in plain steps."""
    return 1 + len(options.horizon) // FORECASTS_PER_ROW + options.samples // SAMPLES_PER_ROW
