"""Whole sequences: filtered an observation at a time, looked back at by attention, and smoothed."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rfa.service.engine.filter.forecast_checks import no_checks
from rfa.service.engine.filter.input import (
    check_lag,
    check_mode,
    check_noise,
    check_observations,
    check_times,
    out_of_range,
)
from rfa.service.engine.filter.model import FilterOptions, Row
from rfa.service.engine.filter.smoothing import Trace, draw_paths, fixed_lag, smooth
from rfa.service.engine.filter.steps import Readout
from rfa.service.runtime.filter_state import FilterState
from rfa.service.runtime.pool import StatePool
from rfa.service.schemas.replies import FilterStepReply, SmoothedStep

if TYPE_CHECKING:
    from rfa.service.runtime.filter import FilterRuntime

Array = np.ndarray
CACHE_BLOCK = 128


@dataclass(frozen=True)
class FilterResult:
    """What is known of a sequence beside its steps; `state` continues it, `tally` sums those of the steps."""

    log_likelihood: float
    state: FilterState
    smoothed: list[SmoothedStep] | None
    tally: Array


@dataclass(frozen=True)
class FilteredSequence(FilterResult):
    """A sequence and its steps."""

    steps: list[FilterStepReply]

    @classmethod
    def collect(
        cls, work: Generator[FilterStepReply | None, None, FilterResult], tick: Callable[[], object] = lambda: None
    ) -> FilteredSequence:
        """Do all the work of `run_sequence`; `tick` is called after each piece."""
        steps: list[FilterStepReply] = []
        while True:
            try:
                step = next(work)
            except StopIteration as stop:
                return cls(**vars(stop.value), steps=steps)
            if step is not None:
                steps.append(step)
            tick()


def run_sequence(
    runtime: FilterRuntime, options: FilterOptions
) -> Generator[FilterStepReply | None, None, FilterResult]:
    """Filter in small pieces: pauses after every observation, so that others can have the thread, and gives each step
    as soon as nothing will change it, in order.

    Raises:
        InvalidRequest: naming the field.
    """
    times, observations, state = options.times, options.observations, options.state
    carried = runtime.start() if state is None or not state.count else state
    check_observations(observations, runtime.observation_size, runtime.name)
    check_times(times, len(observations), carried.time if carried.count else -math.inf)
    scales = check_noise(options.noise, len(observations))
    check_mode(options.mode, continues=carried.count > 0, length=len(observations))
    check_lag(options.lag, smooth=options.smooth)
    readout = runtime.readout(options.levels, options.horizon, options.samples, options.mode)
    pool = StatePool(runtime.state_fields, 1)
    seat = pool.acquire()
    runtime.put(pool, seat, carried)
    memory = Memory(runtime.cache_shapes, times) if options.mode == "attention" else None
    steps: list[FilterStepReply] = []
    traces: list[Trace] = []
    total, sums = 0.0, no_checks(len(runtime.levels))
    for i, (t, observation, scale) in enumerate(zip(times, observations, scales, strict=True)):
        row = Row(seat, float(t), observation, scale, readout, options.seed)
        advanced = runtime.advance_alone(pool, row, memory, smooth=options.smooth)
        if advanced is None:
            raise out_of_range(f"observations[{i}]", runtime.name)
        stepped, outputs = advanced
        total += stepped.log_likelihood
        sums += stepped.tally
        if options.smooth:
            steps.append(stepped.step)
            traces.append(Trace.of(outputs))
        yield None if options.smooth else stepped.step
    smoothed = None
    if options.smooth:
        smoothed = yield from _smooth(runtime, traces, steps, readout, options.lag)
        yield from _draw_trajectories(runtime, traces, steps, readout, options.seed)
        yield from steps
    return FilterResult(total, runtime.get(pool, seat, options.seed), smoothed, sums)


def _smooth(
    runtime: FilterRuntime, traces: list[Trace], steps: list[FilterStepReply], readout: Readout, lag: int | None
) -> Generator[None, None, list[SmoothedStep]]:
    scale = readout.calibration.state_scale
    smoothed = []
    ordered = steps[::-1] if lag is None else steps
    for step, (mean, covariance) in zip(
        ordered, smooth(traces) if lag is None else fixed_lag(traces, lag), strict=True
    ):
        variance = np.maximum(np.diagonal(runtime.readout_matrix @ covariance @ runtime.readout_matrix.T), 0.0)
        seen = (runtime.readout_matrix @ mean + runtime.readout_offset).tolist()
        smoothed.append(SmoothedStep(step.index, step.t, seen, (scale * np.sqrt(variance)).tolist()))
        yield
    return smoothed[::-1] if lag is None else smoothed


def _draw_trajectories(
    runtime: FilterRuntime, traces: list[Trace], steps: list[FilterStepReply], readout: Readout, seed: int
) -> Generator[None, None, None]:
    """Set the samples of the steps."""
    if not readout.samples:
        return
    paths = draw_paths(traces, readout.calibration.state_scale, readout.samples, seed, steps[0].index)
    for step, path in zip(reversed(steps), paths, strict=True):
        step.samples = path @ runtime.readout_matrix.T + runtime.readout_offset
        yield


class Memory:
    """What attention looks back at: one row per earlier observation, grown in blocks."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], times: Sequence[float]) -> None:
        self._times = np.asarray(times, np.float64)
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
