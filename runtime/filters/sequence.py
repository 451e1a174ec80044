"""Filter whole sequences in parts, by recurrence or attention, and smooth them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from rfa.runtime.filters.state import FilterState
from rfa.runtime.outputs import FilterStep, SmoothedStep
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.columns import Columns
from rfa.runtime.uncertainty.forecast_checks import no_checks
from rfa.runtime.uncertainty.incidents import Incidents
from rfa.runtime.uncertainty.input import (
    check_lag,
    check_mode,
    check_observations,
    check_times,
    out_of_range,
)
from rfa.runtime.uncertainty.interface import FilterOptions, Piece
from rfa.runtime.uncertainty.smoothing import Traces, draw_paths, fixed_lag, smooth
from rfa.runtime.uncertainty.steps import LEAST, Readout, Steps

if TYPE_CHECKING:
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.runtime.filters.graph_steps import GraphSteps

Array = np.ndarray
CACHE_BLOCK = 128
Item = TypeVar("Item")


@dataclass(frozen=True)
class FilterResult:
    """Results of a sequence without its steps.

    Attributes:
        log_likelihood: Log-likelihood of the processed observations.
        state: State from which filtering can continue.
        smoothed: Smoothed estimates. None if smoothing was not requested or the deadline passed.
        tally: Counts from which forecasts are checked (forecast_checks.py), summed over the steps.
        incidents: Incidents of the sequence.
        is_cut: Whether the deadline passed before all observations were processed.
    """

    log_likelihood: float
    state: FilterState
    smoothed: list[SmoothedStep] | None
    tally: Array
    incidents: Incidents
    is_cut: bool


@dataclass(frozen=True)
class FilteredSequence(FilterResult):
    """Results of a sequence: those of `FilterResult`, and the steps."""

    pieces: list[Steps]

    @classmethod
    def collect(
        cls, work: Generator[Steps | None, None, FilterResult], tick: Callable[[int], object] = lambda _: None
    ) -> FilteredSequence:
        """Run the generator of `run_sequence` to its end, and return all results.

        Args:
            work: Generator that `run_sequence` returned.
            tick: Function that is called after each part with the number of its observations.
        """
        pieces: list[Steps] = []
        while True:
            try:
                piece = next(work)
            except StopIteration as stop:
                return cls(**vars(stop.value), pieces=pieces)
            if piece is not None:
                pieces.append(piece)
            tick(1 if piece is None else len(piece))

    @cached_property
    def steps(self) -> list[FilterStep]:
        """Return one step per observation."""
        return [step for piece in self.pieces for step in piece.replies()]

    def columns(self, names: Sequence[str], horizon: Sequence[float] = ()) -> dict[str, Array]:
        """Return outputs with one value per observation, by the names that `Columns` defines."""
        found = Columns(names, None, horizon)
        for piece in self.pieces:
            found.add(piece)
        if self.smoothed is not None:
            found.add_smoothed(self.smoothed)
        return found.arrays()


def run_sequence(
    runtime: FilterRuntime, options: FilterOptions, deadline: float = math.inf
) -> Generator[Steps | None, None, FilterResult]:
    """Filter a sequence in small parts. The generator pauses after each part, so that other work can use the thread.

    It yields the steps in order as soon as they are final, and None in pauses without final steps.

    Args:
        runtime: Filter to run.
        options: Observations and requested outputs.
        deadline: Monotonic time after which no further observation is filtered, and smoothing is skipped.

    Raises:
        InvalidInput: If an option or an observation is invalid. The message names the field.
    """
    times, count, carried = options.times, len(options.observations), _first_state(runtime, options)
    readout = runtime.readout(options.levels, options.horizon, options.samples, options.readout)
    pool = StatePool(runtime.state_fields, 1)
    slot = pool.acquire()
    runtime.put(pool, slot, carried)
    series = Piece(slot, times, options.observations, options.noise, readout, options.seed, options.inputs)
    memory = Memory(cast("GraphSteps", runtime.steps).cache_shapes, times) if options.mode == "attention" else None
    pieces: list[Steps] = []
    traces: list[Traces] = []
    incidents, total = Incidents.empty(carried.adaptive), 0.0
    sums = no_checks(len(runtime.levels), len(options.horizon), runtime.observation_size)
    done, most = 0, runtime.piece_rows_of(options) if memory is None else 1
    while done < count and time.monotonic() <= deadline:
        piece = runtime.cut(pool, series.part(slice(done, done + most)), most)
        steps, trace = runtime.trace(pool, piece, memory, traced=options.smooth)
        total, sums = steps.add_to(total, sums)
        incidents.add(piece.times, piece.values, steps.outputs)
        steps, done = steps.without_tally, done + len(steps)
        if options.smooth:
            pieces.append(steps)
            traces.append(Traces.of(trace, len(steps)))
            yield None
        elif len(steps):
            yield steps
        if len(steps) < len(piece.times):
            raise out_of_range(f"observations[{done}]", runtime.name)
    smoothed, is_cut = None, done < count
    if options.smooth:
        back = None if is_cut else (yield from _until(deadline, _look_back(runtime, traces, readout, options, pieces)))
        is_cut = back is None
        smoothed, paths = back or (None, [])
        for steps in pieces:
            part, paths = paths[: len(steps)], paths[len(steps) :]
            yield replace(steps, samples=part or None)
    return FilterResult(total, runtime.get(pool, slot, options.seed), smoothed, sums, incidents, is_cut)


def _first_state(runtime: FilterRuntime, options: FilterOptions) -> FilterState:
    """Validate the request. Return the state from which it continues, or the initial state."""
    state = runtime.start() if options.state is None or not options.state.count else options.state
    check_observations(options.observations, runtime.observation_size, runtime.name)
    check_times(options.times, len(options.observations), state.time if state.count else -math.inf)
    check_mode(options.mode, continues=state.count > 0, length=len(options.observations))
    check_lag(options.lag, smooth=options.smooth)
    return state


def _until(deadline: float, work: Generator[None, None, Item]) -> Generator[None, None, Item | None]:
    """Return the result of `work`, or None if the deadline passes first."""
    while time.monotonic() <= deadline:
        try:
            next(work)
        except StopIteration as stop:
            result: Item = stop.value
            return result
        yield
    return None


def _look_back(
    runtime: FilterRuntime, pieces_of_traces: list[Traces], readout: Readout, options: FilterOptions,
    pieces: list[Steps],
) -> Generator[None, None, tuple[list[SmoothedStep], list[Array]]]:  # fmt: skip
    """Return the smoothed states of a sequence. If samples are requested, also return samples of the states of every
    step."""
    first, traces = int(pieces[0].outputs.position[0]), Traces.joined(pieces_of_traces)
    pieces_of_traces.clear()  # free the memory of the traces
    pattern = runtime.pattern_at(options.times[: traces.steps])
    offset = np.zeros((traces.steps, runtime.observation_size)) if pattern is None else pattern
    smoothed = yield from _smooth(runtime, traces, readout, options, first, offset)
    return smoothed, (yield from _draw_trajectories(runtime, traces, readout, options.seed, first, offset))


def _smooth(
    runtime: FilterRuntime, traces: Traces, readout: Readout, options: FilterOptions, first: int, offset: Array
) -> Generator[None, None, list[SmoothedStep]]:
    scale, matrix, lag = readout.calibration.state_scale, runtime.readout_matrix, options.lag
    blocks: list[tuple[Array, list[list[float]]]] = []
    for mean, covariance in smooth(traces) if lag is None else fixed_lag(traces, lag):
        variance = np.maximum(np.diagonal(matrix @ covariance @ matrix.T, axis1=1, axis2=2), 0.0)
        seen = mean @ matrix.T + runtime.readout_offset
        deviation = scale * np.sqrt(variance)
        seen[np.abs(seen) < LEAST], deviation[deviation < LEAST] = 0.0, 0.0
        blocks.append((seen, deviation.tolist()))
        yield
    in_order = blocks[::-1] if lag is None else blocks
    means = (np.concatenate([seen for seen, _ in in_order]) + offset).clip(*options.range).tolist()
    deviations = [deviation for _, block in in_order for deviation in block]
    rows = zip(options.times.tolist(), means, deviations, strict=False)
    return [SmoothedStep(first + i, *row) for i, row in enumerate(rows)]


def _draw_trajectories(
    runtime: FilterRuntime, traces: Traces, readout: Readout, seed: int, first: int, offset: Array
) -> Generator[None, None, list[Array]]:
    """Return samples of every step, `[samples, P]`. The list is empty if no samples are requested."""
    found: list[Array] = []
    if readout.samples:
        for paths in draw_paths(traces, readout.calibration.state_scale, readout.samples, seed, first):
            found.append(paths @ runtime.readout_matrix.T + runtime.readout_offset)
            yield
    in_order = (path for block in found[::-1] for path in block)
    return [(path + shift).clip(*readout.options.range) for path, shift in zip(in_order, offset, strict=False)]


class Memory:
    """Cache of the attention mode, which has one row per earlier observation. It grows in blocks."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], times: Array) -> None:
        self._times = times
        self._count = 0
        self._rows = {name: np.zeros((1, 0, *shape), np.float32) for name, shape in shapes.items()}

    def inputs(self, t: float) -> dict[str, Array]:
        """Return the cache as inputs of the graph, with space for one more row."""
        size = next(iter(self._rows.values())).shape[1]
        if size == self._count:
            size += CACHE_BLOCK
            for name, rows in self._rows.items():
                more = np.zeros((1, CACHE_BLOCK, *rows.shape[2:]), np.float32)
                self._rows[name] = np.concatenate([rows, more], axis=1)
        lags = np.zeros((1, size), np.float32)
        lags[0, : self._count] = t - self._times[: self._count]
        valid = np.zeros((1, size), np.float32)
        valid[0, : self._count] = 1
        return {"lag": lags, "valid": valid, **{f"cache.{name}": rows for name, rows in self._rows.items()}}

    def add(self, outputs: dict[str, Array]) -> None:
        """Add an observation to the cache. `outputs` are the outputs of the graph for this observation."""
        for name, rows in self._rows.items():
            rows[:, self._count] = outputs[f"row.{name}"]
        self._count += 1
