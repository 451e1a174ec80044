"""Whole sequences: filtered an observation at a time, looked back at by attention, and smoothed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from rfa.runtime.filters.state import FilterState
from rfa.runtime.outputs import FilterStep, SmoothedStep
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.forecast_checks import no_checks
from rfa.runtime.uncertainty.input import (
    check_lag,
    check_mode,
    check_observations,
    check_times,
    out_of_range,
)
from rfa.runtime.uncertainty.interface import FilterOptions, Piece
from rfa.runtime.uncertainty.smoothing import Traces, draw_paths, fixed_lag, smooth
from rfa.runtime.uncertainty.steps import Readout, Steps

if TYPE_CHECKING:
    from rfa.runtime.filters.filter import FilterRuntime
    from rfa.runtime.filters.graph_steps import GraphSteps

Array = np.ndarray
CACHE_BLOCK = 128
Item = TypeVar("Item")


@dataclass(frozen=True)
class FilterResult:
    """What is known of a sequence beside its steps; `state` continues it, `tally` sums those of the steps, and `is_cut`
    tells whether the deadline came before the end."""

    log_likelihood: float
    state: FilterState
    smoothed: list[SmoothedStep] | None
    tally: Array
    is_cut: bool


@dataclass(frozen=True)
class FilteredSequence(FilterResult):
    """A sequence and what is told about it, in pieces."""

    pieces: list[Steps]

    @classmethod
    def collect(
        cls, work: Generator[Steps | None, None, FilterResult], tick: Callable[[int], object] = lambda _: None
    ) -> FilteredSequence:
        """Do all the work of `run_sequence`; `tick` is called after each piece with the observations in it."""
        pieces: list[Steps] = []
        while True:
            try:
                told = next(work)
            except StopIteration as stop:
                return cls(**vars(stop.value), pieces=pieces)
            if told is not None:
                pieces.append(told)
            tick(1 if told is None else len(told))

    @cached_property
    def steps(self) -> list[FilterStep]:
        """One for each observation."""
        return [step for told in self.pieces for step in told.replies()]


def run_sequence(
    runtime: FilterRuntime, options: FilterOptions, deadline: float = math.inf
) -> Generator[Steps | None, None, FilterResult]:
    """Filter in small pieces: pauses after each, so that others can have the thread, and gives what is told as soon as
    nothing will change it, in order; None where that is not yet.

    Args:
        deadline: by the monotonic clock. Then no further observation is taken, and looking back ends with nothing: the
            steps so far are the filter's own.

    Raises:
        InvalidInput: naming the field.
    """
    times, observations, state = options.times, options.observations, options.state
    carried = runtime.start() if state is None or not state.count else state
    check_observations(observations, runtime.observation_size, runtime.name)
    check_times(times, len(observations), carried.time if carried.count else -math.inf)
    check_mode(options.mode, continues=carried.count > 0, length=len(observations))
    check_lag(options.lag, smooth=options.smooth)
    readout = runtime.readout(
        options.levels, options.horizon, options.samples, options.mode, options.alarm, options.passes
    )
    pool = StatePool(runtime.state_fields, 1)
    seat = pool.acquire()
    runtime.put(pool, seat, carried)
    series = Piece(seat, times, observations, options.noise, readout, options.seed, options.inputs)
    memory = Memory(cast("GraphSteps", runtime.steps).cache_shapes, times) if options.mode == "attention" else None
    pieces: list[Steps] = []
    traces: list[Traces] = []
    total, sums = 0.0, no_checks(len(runtime.levels), len(options.horizon), runtime.observation_size)
    done, most = 0, runtime.piece_rows_of(options) if memory is None else 1
    while done < len(observations) and time.monotonic() <= deadline:
        piece = runtime.cut(pool, series.part(slice(done, done + most)), most)
        end = done + len(piece.times)
        told, trace = runtime.trace(pool, piece, memory, traced=options.smooth)
        total, sums = told.add_to(total, sums)
        told = told.without_tally
        done += len(told)
        if options.smooth:
            pieces.append(told)
            traces.append(Traces.of(trace, len(told)))
            yield None
        elif len(told):
            yield told
        if done < end:
            raise out_of_range(f"observations[{done}]", runtime.name)
    smoothed, is_cut = None, done < len(observations)
    if options.smooth:
        back = None if is_cut else (yield from _until(deadline, _look_back(runtime, traces, readout, options, pieces)))
        is_cut = back is None
        smoothed, paths = back or (None, [])
        for told in pieces:
            part, paths = paths[: len(told)], paths[len(told) :]
            yield replace(told, samples=part or None)
    return FilterResult(total, runtime.get(pool, seat, options.seed), smoothed, sums, is_cut)


def _until(deadline: float, work: Generator[None, None, Item]) -> Generator[None, None, Item | None]:
    """The work's result, or None if the deadline came first."""
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
    """The states given later observations, and samples of every step or none."""
    first, traces = int(pieces[0].outputs.position[0]), Traces.joined(pieces_of_traces)
    pieces_of_traces.clear()  # they are large
    pattern = runtime.pattern_at(options.times[: traces.steps])
    beside = np.zeros((traces.steps, runtime.observation_size)) if pattern is None else pattern
    smoothed = yield from _smooth(runtime, traces, readout, options, first, beside)
    return smoothed, (yield from _draw_trajectories(runtime, traces, readout, options.seed, first, beside))


def _smooth(
    runtime: FilterRuntime, traces: Traces, readout: Readout, options: FilterOptions, first: int, beside: Array
) -> Generator[None, None, list[SmoothedStep]]:
    scale, matrix, lag = readout.calibration.state_scale, runtime.readout_matrix, options.lag
    blocks: list[tuple[Array, list[list[float]]]] = []
    for mean, covariance in smooth(traces) if lag is None else fixed_lag(traces, lag):
        variance = np.maximum(np.diagonal(matrix @ covariance @ matrix.T, axis1=1, axis2=2), 0.0)
        seen = mean @ matrix.T + runtime.readout_offset
        blocks.append((seen, (scale * np.sqrt(variance)).tolist()))
        yield
    in_order = blocks[::-1] if lag is None else blocks
    means = (np.concatenate([seen for seen, _ in in_order]) + beside).tolist()
    deviations = [deviation for _, block in in_order for deviation in block]
    told = zip(options.times.tolist(), means, deviations, strict=False)
    return [SmoothedStep(first + i, *step) for i, step in enumerate(told)]


def _draw_trajectories(
    runtime: FilterRuntime, traces: Traces, readout: Readout, seed: int, first: int, beside: Array
) -> Generator[None, None, list[Array]]:
    """Samples of every step, `[samples, P]`, or none."""
    found: list[Array] = []
    if readout.samples:
        for paths in draw_paths(traces, readout.calibration.state_scale, readout.samples, seed, first):
            found.append(paths @ runtime.readout_matrix.T + runtime.readout_offset)
            yield
    in_order = (path for block in found[::-1] for path in block)
    return [path + at for path, at in zip(in_order, beside, strict=False)]


class Memory:
    """What attention looks back at: one row per earlier observation, grown in blocks."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], times: Array) -> None:
        self._times = times
        self._count = 0
        self._rows = {name: np.zeros((1, 0, *shape), np.float32) for name, shape in shapes.items()}

    def inputs(self, t: float) -> dict[str, Array]:
        """The memory as the graph takes it, with room for one more row."""
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
        """Remember the observation that these outputs belong to."""
        for name, rows in self._rows.items():
            rows[:, self._count] = outputs[f"row.{name}"]
        self._count += 1
