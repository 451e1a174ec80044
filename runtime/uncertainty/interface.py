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

# Number of forecasts and of samples that cost about as much as the step itself.
FORECASTS_PER_ROW = 4
SAMPLES_PER_ROW = 32
# Range of values without limits.
UNLIMITED = (-math.inf, math.inf)


class ReadoutOptions(NamedTuple):
    """Options of the outputs other than levels, horizon and samples.

    Attributes:
        mode: Mode of the filter: "recurrent" or "attention".
        alarm: Alarm options.
        passes: Number of reweighting passes K. None selects the default of the model.
        range: Limits of estimates, forecasts, bounds and samples.
        weights: Whether forecasts include the weights of the model's experts.
        utc_offsets: Offsets of local time, which determines days and weeks.
    """

    mode: Mode = "recurrent"
    alarm: Alarm = NEVER
    passes: int | None = None
    range: tuple[float, float] = UNLIMITED
    weights: bool = False
    utc_offsets: UtcOffsets = UTC


class Row(NamedTuple):
    """One validated observation of one stream."""

    slot: PoolSlot
    t: float
    observation: Observation
    noise: float
    readout: Any  # from `FilterRuntime.readout`
    seed: int
    input: Sequence[float] | None = None


class Inputs(Protocol):
    """Interface of the inputs of a series: an array, or an object that computes the inputs of the selected rows."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Piece(NamedTuple):
    """Validated observations of one stream in order.

    Attributes:
        slot: Pool slot with the state of the stream.
        times, noise: Times, and factors on the standard deviation of the measurement noise, `[k]`.
        values: Values, `[k, P]`. Missing values are NaN.
        readout: Requested outputs.
        seed: Random seed of the samples.
        inputs: Inputs to the state until each observation, `[k, n]` or `CovariateInputs`. None if there are none.
    """

    slot: PoolSlot
    times: np.ndarray
    values: np.ndarray
    noise: np.ndarray
    readout: Any
    seed: int
    inputs: Inputs | None = None

    def part(self, rows: slice) -> Piece:
        """Return the selected rows of the piece."""
        return self._replace(
            times=self.times[rows], values=self.values[rows], noise=self.noise[rows],
            inputs=None if self.inputs is None else self.inputs[rows],
        )  # fmt: skip


class Ahead(NamedTuple):
    """Forecasts after the last observation, at M horizons.

    Attributes:
        times: Times of the forecasts, `[M]`.
        moments: Mean, std and median, `[M, 3, P]`.
        bands: Intervals, `[M, levels, P, 2]`.
        weights: Weights of the experts, `[M, P, experts]`. See `StepOutputs`.
        experts: Names of the experts.
    """

    times: np.ndarray
    moments: np.ndarray
    bands: np.ndarray
    weights: np.ndarray
    experts: tuple[str, ...]


class Stepped(NamedTuple):
    """Result of one row. The counts in `tally` are described in forecast_checks.py."""

    step: FilterStep
    log_likelihood: float
    tally: np.ndarray


@dataclass(frozen=True)
class LateOptions:
    """Options for late rows of a stream.

    Attributes:
        length: Length of the window, in the unit of the times.
        packed: Packed window of the state to continue from. Empty if there is none.
    """

    length: float
    packed: bytes = b""


@dataclass(frozen=True)
class FilterOptions:
    """Series to filter, and the requested outputs.

    Attributes:
        times: Times, `[N]`.
        observations: Observations, `[N, P]`. Missing values are NaN.
        noise: Factors on the standard deviation of each observation's measurement noise, `[N]`.
        levels: Levels of the intervals.
        horizon: Horizons of the forecasts.
        samples: Number of samples of the state per step. With `smooth`, they are trajectories given all observations.
        alarm: Options for alarms.
        seed: Random seed of the samples.
        mode: Mode of the filter: "recurrent" or "attention". "attention" uses all earlier observations (at most
            MAX_ATTENTION) and starts a new stream.
        smooth: Whether to return smoothed estimates.
        lag: Number of later observations that a smoothed state depends on (fixed lag). None selects all.
        is_streamed: Whether each step is sent as soon as it is final.
        state: Unpacked state to continue from, in recurrent mode.
        wants_state: Whether to return the packed state at the end.
        is_whole: Whether the reply is sent only when it is complete.
        deadline_seconds: Time after which the request ends with the completed part.
        passes: Number of reweighting passes K. None selects the default of the model.
        inputs: Inputs to the state per unit time until each observation, `[N, n]` or `CovariateInputs`.
        covariates_ahead: Values at `ahead` of the columns whose future values are known, `[M, K]`.
        ahead: Horizons after the last observation, in recurrent mode.
        followed: Number of the last entries of `horizon` that are forecast only so that their intervals adapt. The
            reply omits them.
        range, weights, utc_offsets: See `ReadoutOptions`.
        names: Names of the components, for warnings.
        refused: Errors of invalid rows of a stream, by position. The time of a row without a valid time is NaN.
        late: Options for late rows of a stream. If None, late rows are rejected.
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
        """Return the options of the outputs."""
        return ReadoutOptions(self.mode, self.alarm, self.passes, self.range, self.weights, self.utc_offsets)

    @property
    def needs_whole(self) -> bool:
        """Whether the reply requires the whole sequence at once."""
        return self.smooth or self.mode == "attention"


@dataclass(frozen=True)
class MergeOptions:
    """States to merge, and the requested outputs.

    Attributes:
        states: Unpacked states.
        method: Method. "precision" adds the precisions, as if the states had only `prior` in common.
            "covariance_intersection" is never overconfident, even if the states share information.
        levels: Levels of the intervals.
        horizon: Horizons of the forecasts.
        prior: State from which all states continued. It is included once ("precision" only).
        t: Time of the merged state. None selects the latest time of the states.
        wants_state: Whether to return the packed merged state.
    """

    states: tuple[Any, ...]
    method: MergeMethod
    levels: tuple[float, ...] = ()
    horizon: tuple[float, ...] = ()
    prior: Any = None
    t: float | None = None
    wants_state: bool = True


def reply_rows(options: Any) -> int:
    """Return the cost of a step with its requested outputs, relative to a step without forecasts and samples.

    Args:
        options: Object with the attributes `horizon` and `samples`.
    """
    return 1 + len(options.horizon) // FORECASTS_PER_ROW + options.samples // SAMPLES_PER_ROW
