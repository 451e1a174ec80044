"""Run a filter bundle on many streams at once or on whole sequences, with states that can be stored.

The states of streams are in a pool. Linear filters are compiled. Deep filters run on the graphs of their bundle in ONNX
Runtime, and support attention mode. Random numbers depend only on the seed and the position in the stream. Therefore
the results of a stream are the same with or without other streams, in one request, in several requests, or one row at a
time.

A row with non-finite results changes neither its stream nor the other rows.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, cast, get_args

import numpy as np

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.choices import Mode
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.ahead import forecasts_after
from rfa.runtime.filters.driven_filter import DRIVEN_ROWS, MOST_STATES, RESPONSE, DrivenSystem
from rfa.runtime.filters.graph_steps import GraphSteps
from rfa.runtime.filters.live_rows import advance, stepped
from rfa.runtime.filters.merge import Merged, check_merges, merge
from rfa.runtime.filters.sequence import FilteredSequence, FilterResult, Memory, run_sequence
from rfa.runtime.filters.state import FilterState, FilterStates
from rfa.runtime.filters.steps import Batch, FilterSteps, Traced
from rfa.runtime.passes import PassesRange
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.adaptive import Horizons
from rfa.runtime.uncertainty.alarms import NEVER, Alarm
from rfa.runtime.uncertainty.baseline import baseline_fields
from rfa.runtime.uncertainty.calibration import Calibration
from rfa.runtime.uncertainty.draws import state_samples
from rfa.runtime.uncertainty.input import Observation, as_array, check_noise, check_readout
from rfa.runtime.uncertainty.interface import (
    Ahead,
    FilterOptions,
    Inputs,
    MergeOptions,
    Piece,
    ReadoutOptions,
    Row,
    Stepped,
)
from rfa.runtime.uncertainty.rules import alarm_fields
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import Readout, Steps, limit_outputs

Array = np.ndarray
DEFAULT: Final = ReadoutOptions()
KEPT_READOUTS = 64  # a readout takes 90 kB with 256 horizons and 16 levels


class FilterRuntime(FilterStates):
    """A filter bundle that is ready to process observations.

    Args:
        bundle: Bundle of kind "filter".

    Attributes:
        passes: Range of the number of reweighting passes.
        has_own_steps: Whether calibrated horizons are in typical lags of the stream rather than in units of time.
        suits_any: Whether the model accepts numbers of any size, and learns only from the stream.
        farthest: Horizon in typical lags beyond which the forecast is constant.
        experts: Names of the models whose forecasts are combined.
        covariates: Number of columns whose future values are known.
        observation_size, state_size: Number of components of an observation, and of the state.

    Raises:
        ValueError: If the bundle is not a filter, or cannot be compiled.
    """

    has_own_steps = False
    suits_any = False
    farthest = math.inf
    experts: tuple[str, ...] = ()
    covariates: int = 0

    observation_size: int
    state_size: int

    def __init__(self, bundle: Bundle) -> None:
        if bundle.kind != "filter":
            raise ValueError(f"bundle {bundle.name!r} is of kind {bundle.kind!r}, not a filter")
        weights = bundle.weights()
        matrix, offset = (weights[f"initial.readout_{part}"].astype(np.float64) for part in ("matrix", "offset"))
        calibration: dict[Mode, Calibration] = {
            mode: Calibration(bundle.calibration[mode]) for mode in get_args(Mode) if mode in bundle.calibration
        }
        self.passes = PassesRange.of(bundle)
        self._describe(bundle.name, bundle.manifest.family, matrix, offset)
        horizons = Horizons.of(calibration["recurrent"].horizons)
        self._set_up(calibration, _steps(bundle, horizons), horizons, DrivenSystem.of(bundle, matrix))

    def _describe(self, name: str, family: str, matrix: Array, offset: Array) -> None:
        """Set the name, the family, and the observation matrix C `[P, n]` and offset b `[P]`."""
        self.name, self._family = name, family
        self.readout_matrix, self.readout_offset = matrix, offset
        self.observation_size, self.state_size = matrix.shape

    def _set_up(
        self, calibration: Mapping[Mode, Calibration], steps: FilterSteps, horizons: Horizons,
        driven: Any = None, *, sides: int = 1, readouts: int = KEPT_READOUTS,
    ) -> None:  # fmt: skip
        """Set up the components of the filter, and the fields of the state.

        Args:
            driven: Object that handles inputs: a `DrivenSystem` or a `Regression`.
            sides: Number of separately adapted sides of an interval. It is 2 if intervals are asymmetric.
            readouts: Number of readouts to cache.
        """
        self._calibration, self.steps, self._driven = calibration, steps, driven
        self.levels: tuple[float, ...] = calibration["recurrent"].levels
        adaptive = {**horizons.fields(self.observation_size, len(self.levels), sides), **baseline_fields()}
        adaptive |= alarm_fields(self.observation_size)
        adaptive |= {} if driven is None else driven.fields
        super().__init__(steps.magic, steps.initial, steps.fields, adaptive)
        # Use a proxy, because a cache that refers to `self` would keep it alive until the next garbage collection.
        self._readouts = functools.lru_cache(readouts)(functools.partial(type(self)._make_readout, weakref.proxy(self)))

    @property
    def own_bytes(self) -> int:
        """Memory of the model that each request must reserve, in bytes. It is 0 for bundles, whose memory is reserved
        when they are loaded."""
        return 0

    @property
    def learned_horizons(self) -> Array:
        """Horizons at which the model learns from the errors of its forecasts, `[H]`, in the unit of the calibrated
        horizons. Of a recorded series, those up to the requested ones are forecast at each row."""
        return self.readout((0.9,), (), 0).calibration.horizons

    @property
    def kept_bytes(self) -> int:
        """Maximum memory that is retained between requests, in bytes. The pool is not included."""
        return 0

    @property
    def label(self) -> str:
        """Name of the model in metrics."""
        return self.name

    @property
    def runtime(self) -> str:
        """Implementation of the filter: "compiled" or "onnx"."""
        return self.steps.runtime

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Supported modes. The last one is the default."""
        return tuple(mode for mode in get_args(Mode) if mode in self._calibration)

    def sized(self, size: int) -> FilterRuntime:
        """Return the same model for another number of components."""
        return self

    def with_covariates(self, count: int) -> FilterRuntime:
        """Return the same model for a number of columns whose future values are known.

        Raises:
            InvalidInput: If the model does not support that many columns.
        """
        message = (
            f"model {self.name!r} does not support columns whose future values are known; omit the model to use "
            "`default`"
        )
        raise InvalidInput(message, param="known", code="no_known")

    @property
    def piece_rows(self) -> int:
        """Number of observations of a recorded series per call of `follow`."""
        return self.steps.rows

    def piece_rows_of(self, options: FilterOptions) -> int:
        """Return the maximum number of observations per call of `follow` for a series with the given options."""
        is_driven = options.inputs is not None or _was_driven(options.state)
        return min(self.piece_rows, DRIVEN_ROWS) if is_driven else self.piece_rows

    def weight(self, cost: int, t: float, state: Callable[[str], Array | None]) -> int:
        """Return the cost of an observation, relative to an observation without additional outputs.

        Args:
            cost: Cost of its outputs.
            t: Time of the observation.
            state: Function that returns a field of the state of the stream. The field is None before the first
                observation.
        """
        return cost

    def cut(self, pool: StatePool, piece: Piece, most: int) -> Piece:
        """Return the first rows of a part of a series. Their number is as large as possible without exceeding the total
        cost `most`, but at least one."""
        return piece

    # Steps.

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """Process one observation per row, and return one result per row. See `rfa.runtime.filters.live_rows`."""
        return advance(self, pool, rows)

    def stepped(self, pool: StatePool, batch: Batch, readout: Readout, rows: Sequence[Row]) -> Iterator[Stepped | None]:
        """Yield the results of `advance` for the rows of a batch. All rows have the same readout."""
        return stepped(self, pool, batch, readout, rows)

    def step(
        self, pool: StatePool, batch: Batch, readout: Readout, inputs: Inputs | None = None,
        memory: Memory | None = None, *, traced: bool,
    ) -> tuple[StepOutputs, Traced]:  # fmt: skip
        """Process a batch with `FilterSteps.advance`. If `memory` is given, process one observation by attention
        instead. Return the outputs and the trace of the batch.

        Args:
            pool, batch: States of the streams, and their observations.
            readout: Options of the outputs.
            inputs: Inputs to the state until each observation, per unit time, `[R, n]`.
        """
        batch = batch._replace(values=readout.hide_muted(batch.times, batch.values))
        response = None if self._driven is None else self._driven.respond(pool, batch, inputs, readout.horizon)
        if response is not None:
            batch = batch._replace(values=response.hide(batch.values))
        if memory is None:
            outputs, trace = self.steps.advance(pool, batch, readout, traced=traced)
        else:
            outputs, trace = cast("GraphSteps", self.steps).attend(pool, batch, readout, memory)
        if self._driven is not None and response is not None:
            self._driven.keep(pool, batch, response, outputs.is_good)
            self._driven.shift(outputs, trace, response)
        return outputs, trace

    def follow(self, pool: StatePool, piece: Piece) -> Steps:
        """Filter observations of one stream, up to the first one whose results are not finite. Return the steps."""
        steps, _ = self.trace(pool, piece, traced=False)
        return steps

    def trace(
        self, pool: StatePool, piece: Piece, memory: Memory | None = None, *, traced: bool
    ) -> tuple[Steps, Traced]:
        """Filter observations of one stream. Return the steps, as `follow` does, and the data for smoothing. If
        `memory` is given, one observation is processed by attention. If `traced` is false, the data are empty."""
        readout: Readout = piece.readout
        batch = Batch(np.repeat(pool.rows([piece.slot]), len(piece.times)), piece.times, piece.values, piece.noise)
        is_traced = traced or readout.samples > 0
        outputs, trace = self.step(pool, batch, readout, piece.inputs, memory, traced=is_traced)
        limit_outputs(outputs, readout.options.range)
        good = int(outputs.is_good.argmin()) if not outputs.is_good.all() else len(piece.times)
        steps = Steps(readout, piece.times, outputs)[:good]
        return Steps(
            readout, steps.times, steps.outputs, state_samples(readout, trace, steps.outputs, piece.seed)
        ), trace

    def readout(
        self, levels: tuple[float, ...], horizon: tuple[float, ...], samples: int, options: ReadoutOptions = DEFAULT
    ) -> Readout:
        """Return the options of a reply. Equal options result in one object, so that their rows can be processed
        together.

        Raises:
            InvalidInput: If an option is not valid for this model. The message names the field.
        """
        return self._readouts(levels, horizon, samples, options)

    def _make_readout(
        self,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        options: ReadoutOptions,
    ) -> Readout:
        self.check_horizon(horizon)
        check_readout(levels, horizon, samples)
        if options.mode not in self._calibration:
            missing = f'model {self.name!r} does not support the mode "{options.mode}"'
            message = f"{missing}, which only a bundle with graphs supports; leave out mode"
            raise InvalidInput(message, param="mode", code="no_such_mode")
        passes = self.passes.checked(options.passes, self.name)
        experts = self.experts if options.weights else ()
        return Readout(
            self._calibration[options.mode], levels, horizon, samples, options, passes=passes, experts=experts
        )

    def check_horizon(self, horizon: tuple[float, ...]) -> None:
        """Check that the number of horizons is allowed.

        Raises:
            InvalidInput: If there are more horizons than allowed per observation (code `too_large`).
        """

    def check_input(self, alarm: Alarm, state: FilterState | None, *, is_given: bool) -> None:
        """Check that the model supports the input and the alarm range. Earlier inputs still affect a state.

        Raises:
            InvalidInput: If one of them is not supported. `param` is its field.
        """
        has_range = (alarm.rule.low, alarm.rule.high) != (NEVER.rule.low, NEVER.rule.high)
        if has_range and (is_given or self.covariates or _was_driven(state)):
            driven = "known" if self.covariates else "input" if is_given else "a state that was computed with inputs"
            message = f"alarm.range cannot be combined with {driven}; leave out one of them."
            raise InvalidInput(message, param="alarm.range", code="range_with_input")
        if is_given and (self._driven is None or self.covariates):
            message = (
                f"model {self.name!r} does not support inputs; use a linear filter with up to {MOST_STATES} states."
            )
            raise InvalidInput(message, param="input", code="no_input")

    # Merging.

    def check_merges(self) -> None:
        """Check that states of this filter can be merged. See `rfa.runtime.filters.merge`.

        Raises:
            InvalidInput: If they cannot be merged (code `no_merge`).
        """
        check_merges(self.name, self._family)

    def merge(self, options: MergeOptions) -> Merged:
        """Merge states, and return the merged state and its outputs. See `rfa.runtime.filters.merge`.

        Raises:
            InvalidInput: If the states cannot be merged. The message names the field.
        """
        return merge(self, options)

    # Whole sequences.

    def filter(
        self,
        times: Sequence[float],
        observations: Sequence[Observation],
        *,
        noise: Sequence[float | None] | None = None,
        levels: Sequence[float] = (0.5, 0.9),
        horizon: Sequence[float] = (),
        samples: int = 0,
        alarm: Alarm = NEVER,
        passes: int | None = None,
        inputs: Sequence[Sequence[float]] | None = None,
        seed: int = 0,
        mode: Mode = "recurrent",
        smooth: bool = False,
        lag: int | None = None,
        state: FilterState | None = None,
    ) -> FilteredSequence:
        """Filter a sequence, and return its steps and the state after the last observation.

        Args:
            times: Times of the observations, non-decreasing.
            observations: P numbers each. None instead of an observation or a number means that it is missing.
            noise: Factors by which the standard deviation of the measurement noise is multiplied, one per observation.
                None means 1.
            levels: Levels of the intervals.
            horizon: Horizons of the forecasts, in the unit of the times.
            samples: Number of samples of the state per step. With `smooth`, the samples are trajectories given all
                observations.
            alarm: Alarm rule.
            passes: Number of reweighting passes K. None selects the default of the model.
            inputs: Inputs to the state until each observation, per unit time, with one number per state.
            seed: Seed of the samples.
            mode: Decoding mode. "attention" uses all earlier observations of the request (at most MAX_ATTENTION), and
                excludes `state`.
            smooth: Whether to smooth the estimates with later observations.
            lag: Number of later observations that a smoothed state depends on. By default, all of them.
            state: State to continue from, in recurrent mode.

        Raises:
            InvalidInput: If an argument is invalid. The message names the field.
        """
        options = FilterOptions(
            np.array(times, np.float64), as_array(observations, self.observation_size, self.name),
            check_noise(noise, len(observations)), tuple(levels), tuple(horizon), samples, alarm, seed, mode, smooth,
            lag, state=state, passes=passes, inputs=None if inputs is None else np.array(inputs, np.float64),
        )  # fmt: skip
        return FilteredSequence.collect(self.work(options))

    def work(self, options: FilterOptions, deadline: float = math.inf) -> Generator[Steps | None, None, FilterResult]:
        return run_sequence(self, options, deadline)

    def ahead(
        self, state: FilterState, levels: Sequence[float], leads: Sequence[float],
        options: ReadoutOptions = DEFAULT, covariates: Array | None = None,
    ) -> Ahead:  # fmt: skip
        return forecasts_after(self, state, levels, leads, options, covariates)

    def pattern_at(self, times: Array) -> Array | None:
        """Return the offsets of measurements at the given times, `[N, P]`. Return None if the model has no offsets."""
        return None

    def no_steps(self, readout: Readout) -> Steps:
        """Return an empty result, for a sequence without observations."""
        return Steps.empty(readout, self.observation_size)


def _was_driven(state: FilterState | None) -> bool:
    return state is not None and RESPONSE in state.adaptive and bool(state.adaptive[RESPONSE].any())


def _steps(bundle: Bundle, leads: Horizons) -> FilterSteps:
    if bundle.manifest.graphs:
        return GraphSteps(bundle, leads)
    from rfa.runtime.filters.compiled_steps import CompiledSteps

    return CompiledSteps.of(bundle, leads)
