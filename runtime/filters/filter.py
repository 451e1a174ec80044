"""A filter bundle, ready to run: many streams at once, whole sequences, portable states.

Streams keep their state in seats of a pool. What advances a linear filter is compiled; a deep one runs on the graphs
of its bundle in ONNX Runtime, and has attention mode. Random numbers are keyed by (seed, position in the stream). So a
stream gives the same numbers alone or in a crowd, in one request, in segments or one by one.

A row whose numbers are not finite is left as it was, and its neighbours go on.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import cast, get_args

import numpy as np

from rfa.runtime.bundle.bundle import Bundle
from rfa.runtime.choices import Mode
from rfa.runtime.errors import InvalidInput
from rfa.runtime.filters.ahead import forecasts_after
from rfa.runtime.filters.driven_filter import DRIVEN_ROWS, MOST_STATES, RESPONSE, DrivenSystem, move
from rfa.runtime.filters.graph_steps import GraphSteps
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
from rfa.runtime.uncertainty.input import Observation, as_array, check_noise, check_readout
from rfa.runtime.uncertainty.interface import Ahead, FilterOptions, MergeOptions, Piece, Row, Stepped
from rfa.runtime.uncertainty.step_outputs import StepOutputs
from rfa.runtime.uncertainty.steps import NO_SAMPLES, Readout, Steps, draw

Array = np.ndarray


KEPT_READOUTS = 64  # of 90 kB, with 256 horizons and 16 levels


class FilterRuntime(FilterStates):
    """A filter bundle, ready to run.

    Args:
        bundle: of kind "filter".

    Raises:
        ValueError: the bundle is no filter, or cannot be compiled.
    """

    def __init__(self, bundle: Bundle) -> None:
        if bundle.kind != "filter":
            raise ValueError(f"bundle {bundle.name!r} is of kind {bundle.kind!r}, not a filter")
        self.name = bundle.name
        self._family = bundle.manifest.family
        weights = bundle.weights()
        self.readout_matrix = weights["initial.readout_matrix"].astype(np.float64)
        self.readout_offset = weights["initial.readout_offset"].astype(np.float64)
        self.observation_size: int
        self.state_size: int
        self.observation_size, self.state_size = self.readout_matrix.shape
        self._calibration: dict[Mode, Calibration] = {
            mode: Calibration(bundle.calibration[mode]) for mode in get_args(Mode) if mode in bundle.calibration
        }
        recurrent = self._calibration["recurrent"]
        self.levels: tuple[float, ...] = recurrent.levels
        leads = Horizons.of(recurrent.horizons)
        self.steps = _steps(bundle, leads)
        self._driven = DrivenSystem.of(bundle, self.readout_matrix)
        driven = {} if self._driven is None else self._driven.fields
        adaptive = {**leads.fields(self.observation_size, len(self.levels)), **baseline_fields(), **driven}
        super().__init__(self.steps.magic, self.steps.initial, self.steps.fields, adaptive)
        self.passes = PassesRange.of(bundle)
        self._readouts = self._kept_readouts(KEPT_READOUTS)

    @property
    def own_bytes(self) -> int:
        """Of memory, that each request must pay for beside what it asks for: seats and numbers of bundles are allowed
        for once and for all."""
        return 0

    @property
    def kept_bytes(self) -> int:
        """Of memory, that it may come to keep from request to request beside seats."""
        return 0

    @property
    def label(self) -> str:
        """What metrics call it."""
        return self.name

    @property
    def runtime(self) -> str:
        """What advances streams: compiled or onnx."""
        return self.steps.runtime

    @property
    def modes(self) -> tuple[Mode, ...]:
        """That it runs in, the default last."""
        return tuple(mode for mode in get_args(Mode) if mode in self._calibration)

    @property
    def has_own_steps(self) -> bool:
        """Whether its calibrated leads are so many typical lags of a stream, and not times."""
        return False

    @property
    def suits_any(self) -> bool:
        """Whether it takes any numbers, of any size, and learns of a stream all that it goes by."""
        return False

    @property
    def farthest(self) -> float:
        """Typical lags ahead beyond which it tells no lead apart from that one."""
        return math.inf

    def sized(self, size: int) -> FilterRuntime:
        """The same model for observations of so many components."""
        return self

    @property
    def piece_rows(self) -> int:
        """Observations of a recorded series that are worth one call of `follow`."""
        return self.steps.rows

    def piece_rows_of(self, options: FilterOptions) -> int:
        """As many of this series, at most."""
        is_driven = options.inputs is not None or _was_driven(options.state)
        return min(self.piece_rows, DRIVEN_ROWS) if is_driven else self.piece_rows

    def weight(self, told: int, t: float, kept: Callable[[str], Array | None]) -> int:
        """What an observation costs, in plain ones.

        Args:
            told: the same, by what is told of it.
            t: its time.
            kept: of its stream, by the names of `state_fields`; None before the first observation.
        """
        return told

    def cut(self, pool: StatePool, piece: Piece, most: int) -> Piece:
        """As much of a piece as costs no more than so many plain observations, one at least."""
        return piece

    # Steps.

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """One observation of each row; None for a row whose numbers are not finite: its seat stays as it was.

        Rows have been checked: shapes, finite values, times that do not decrease.
        """
        seats = pool.rows([row.slot for row in rows])
        groups: dict[Readout, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(row.readout, []).append(i)
        found: list[Stepped | None] = [None] * len(rows)
        nothing, ready = [None] * self.observation_size, []
        for readout, members in groups.items():
            chosen = rows if len(groups) == 1 else [rows[i] for i in members]
            batch = Batch(
                seats if len(groups) == 1 else seats[members],
                np.array([row.t for row in chosen], np.float64),
                np.array(
                    [nothing if row.observation is None else row.observation for row in chosen], np.float64
                ).reshape(len(chosen), self.observation_size),
                np.array([row.noise for row in chosen], np.float64),
            )
            ready.append((readout, members, chosen, batch))
        # What fails leaves every stream as it was, those of the readouts before it too.
        may_fail_late = len(ready) > 1 or any(readout.samples for readout in groups)
        before = {name: array[seats] for name, array in pool.arrays.items()} if may_fail_late else {}
        try:
            for readout, members, chosen, batch in ready:
                for i, stepped in zip(members, self.stepped(pool, batch, readout, chosen), strict=True):
                    found[i] = stepped
        except Exception:
            for name, values in before.items():
                pool.arrays[name][seats] = values
            raise
        return found

    def stepped(self, pool: StatePool, batch: Batch, readout: Readout, rows: Sequence[Row]) -> Iterator[Stepped | None]:
        """What `advance` gives, of rows that share a readout and are in the batch already."""
        inputs = None
        if any(row.input is not None for row in rows):
            nothing = [0.0] * self.state_size
            inputs = np.array([nothing if row.input is None else row.input for row in rows], np.float64)
        told, trace = self.step(pool, batch, readout, inputs, traced=readout.samples > 0)
        steps = Steps(readout, batch.times, told, _samples(readout, trace, told, [row.seed for row in rows]))
        likelihoods, replies = told.log_likelihood.tolist(), steps.replies(copies=len(rows) > 1)
        for is_good, *stepped in zip(told.is_good.tolist(), replies, likelihoods, told.tally, strict=True):
            yield Stepped(*stepped) if is_good else None

    def step(
        self, pool: StatePool, batch: Batch, readout: Readout, inputs: Array | None = None,
        memory: Memory | None = None, *, traced: bool,
    ) -> tuple[StepOutputs, Traced]:  # fmt: skip
        """Take the observations, as `FilterSteps.advance`, or one by attention given its memory.

        Args:
            inputs: that drive the state until each, per unit time, `[R, n]`.
        """
        response = None if self._driven is None else self._driven.respond(pool, batch, inputs, readout.horizon)
        if response is not None:
            batch = batch._replace(values=response.hide(batch.values))
        if memory is None:
            told, trace = self.steps.advance(pool, batch, readout, traced=traced)
        else:
            told, trace = cast("GraphSteps", self.steps).attend(pool, batch, readout, memory)
        if self._driven is not None and response is not None:
            self._driven.keep(pool, batch, response, told.is_good)
            move(told, trace, response)
        return told, trace

    def follow(self, pool: StatePool, piece: Piece) -> Steps:
        """Some observations of one stream, up to the first whose numbers are not finite, which is not in the steps: the
        stream stays as it was before it."""
        steps, _ = self.trace(pool, piece, traced=False)
        return steps

    def trace(
        self, pool: StatePool, piece: Piece, memory: Memory | None = None, *, traced: bool
    ) -> tuple[Steps, Traced]:
        """`follow`, with what smoothing needs; one observation alone by attention, given what came before it."""
        readout: Readout = piece.readout
        batch = Batch(np.repeat(pool.rows([piece.slot]), len(piece.times)), piece.times, piece.values, piece.noise)
        is_traced = traced or readout.samples > 0
        told, trace = self.step(pool, batch, readout, piece.inputs, memory, traced=is_traced)
        good = int(told.is_good.argmin()) if not told.is_good.all() else len(piece.times)
        steps = Steps(readout, piece.times, told)[:good]
        return Steps(readout, steps.times, steps.outputs, _samples(readout, trace, steps.outputs, piece.seed)), trace

    def _kept_readouts(self, count: int) -> Callable[..., Readout]:
        """`_make_readout` that keeps what it made; it does not keep this alive, which would then wait for the
        collector."""
        return functools.lru_cache(count)(functools.partial(type(self)._make_readout, weakref.proxy(self)))

    def readout(
        self,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        mode: Mode = "recurrent",
        alarm: Alarm = NEVER,
        passes: int | None = None,
    ) -> Readout:
        """What a request wants to be told; equal requests share one, and share the work.

        Raises:
            InvalidInput: naming the field.
        """
        return self._readouts(levels, horizon, samples, mode, alarm, passes)

    def _make_readout(
        self,
        levels: tuple[float, ...],
        horizon: tuple[float, ...],
        samples: int,
        mode: Mode,
        alarm: Alarm,
        passes: int | None,
    ) -> Readout:
        check_readout(levels, horizon, samples)
        if mode not in self._calibration:
            message = f'model {self.name!r} has no "{mode}" mode, which runs on the graphs of a bundle: leave mode out'
            raise InvalidInput(message, param="mode", code="no_such_mode")
        made = self.passes.checked(passes, self.name)
        return Readout(self._calibration[mode], levels, horizon, samples, alarm, made)

    def check_input(self, alarm: Alarm, state: FilterState | None, *, is_given: bool) -> None:
        """Refuse an input where none can be had; one that ended, in a state, is still there.

        Raises:
            InvalidInput: naming the field.
        """
        has_range = (alarm.low, alarm.high) != (NEVER.low, NEVER.high)
        if has_range and (is_given or _was_driven(state)):
            driven = "input" if is_given else "a state that an input has driven"
            message = f"alarm.range cannot be had with {driven}: leave one of them out."
            raise InvalidInput(message, param="alarm.range", code="range_with_input")
        if is_given and self._driven is None:
            message = f"model {self.name!r} takes no input: linear filters of up to {MOST_STATES} states do."
            raise InvalidInput(message, param="input", code="no_input")

    # Beliefs.

    def check_merges(self) -> None:
        """Refuse to merge beliefs where states are no Gaussians; see `rfa.runtime.filters.merge`.

        Raises:
            InvalidInput: `no_merge`.
        """
        check_merges(self.name, self._family)

    def merge(self, options: MergeOptions) -> Merged:
        """Several beliefs as one; see `rfa.runtime.filters.merge`.

        Raises:
            InvalidInput: naming the field.
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
        """Filter a sequence.

        Args:
            observations: P numbers each; None = nothing observed, None inside = that component is missing.
            noise: factors on the standard deviation of each observation's measurement noise; None = 1.
            inputs: that drive the state, per unit time, until each observation: a number for each part of the state.
            samples: draws of the state per step; with `smooth` they are trajectories given all observations.
            lag: with `smooth`, the smoothed states are given the observations up to so many after each, not all.
            mode: "attention" looks at all earlier observations of the request (at most MAX_ATTENTION) and starts fresh.
            state: continue from here (recurrent mode).

        Raises:
            InvalidInput: naming the field.
        """
        options = FilterOptions(
            np.array(times, np.float64), as_array(observations, self.observation_size, self.name),
            check_noise(noise, len(observations)), tuple(levels), tuple(horizon), samples, alarm, seed, mode, smooth,
            lag, state=state, passes=passes, inputs=None if inputs is None else np.array(inputs, np.float64),
        )  # fmt: skip
        return FilteredSequence.collect(self.work(options))

    def work(self, options: FilterOptions, deadline: float = math.inf) -> Generator[Steps | None, None, FilterResult]:
        """See `run_sequence`."""
        return run_sequence(self, options, deadline)

    def ahead(self, state: FilterState, levels: Sequence[float], leads: Sequence[float]) -> Ahead:
        """See `rfa.runtime.filters.ahead`."""
        return forecasts_after(self, state, levels, leads)

    def pattern_at(self, times: Array) -> Array | None:
        """What measurements have at these times beside what the state makes of them, `[N, P]`; None is nothing."""
        return None

    def no_steps(self, readout: Readout) -> Steps:
        """What is told where no observation was taken."""
        return Steps.empty(readout, self.observation_size)


def _was_driven(state: FilterState | None) -> bool:
    return state is not None and RESPONSE in state.adaptive and bool(state.adaptive[RESPONSE].any())


def _steps(bundle: Bundle, leads: Horizons) -> FilterSteps:
    if bundle.manifest.graphs:
        return GraphSteps(bundle, leads)
    from rfa.runtime.filters.compiled_steps import CompiledSteps

    return CompiledSteps.of(bundle, leads)


def _samples(readout: Readout, trace: Traced, told: StepOutputs, seeds: int | Sequence[int]) -> list[Array] | None:
    """Draws of the state of each row, `[samples, P]`; none of a row that is not good."""
    if not readout.samples:
        return None
    good, position = told.is_good, told.position.tolist()
    keys = [seeds] * len(position) if isinstance(seeds, int) else seeds
    # Of a row that is not good, whatever its covariance holds, nothing is drawn.
    covariances = np.where(good[:, None, None], readout.calibration.state_scale**2 * trace.covariance[: len(good)], 0.0)
    paths = draw(told.mean, covariances, readout.samples, keys, position)
    # Copies: they may go to several readers, of whom none is to keep the draws of all.
    return [path.copy() if is_good else NO_SAMPLES for is_good, path in zip(good.tolist(), paths, strict=True)]
