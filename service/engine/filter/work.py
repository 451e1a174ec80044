"""Filter requests at work.

Recurrent requests and live streams share steps: a quantum takes one observation of each job. The answers that somebody
watches, of a live stream or a streamed reply, leave at once; series that are answered in one piece go on until the
quantum's time is up, or their reader lags. So a series needs few turns beside whatever else the server does, and never
keeps a live stream waiting for longer than a quantum. Attention and smoothing look at a whole sequence: such a request
has its quanta to itself. A quantum ends early where a live stream waits for it.

Every step is an event as soon as it is final: what waits for a reader is bounded by the scheduler's buffer, but for
smoothing, which changes all steps at its end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from rfa.service.engine.filter.forecast_checks import (
    INSIDE,
    NIS,
    NIS_EDGES,
    OBSERVATIONS,
    PIT,
    PIT_BINS,
    SCORED,
    WEIGHTED_NIS,
    no_checks,
    summarise,
)
from rfa.service.engine.filter.input import level_name, out_of_range
from rfa.service.engine.filter.steps import Forecasts
from rfa.service.engine.scheduler import Job, hand_over
from rfa.service.errors import NotReady
from rfa.service.metrics import Metrics
from rfa.service.runtime.filter import Row, Stepped
from rfa.service.runtime.pool import Slot, StateField, StatePool
from rfa.service.schemas.replies import FilterTimings, ForecastChecks

# Of the thread's processor time, not of the clock: where other threads or processes have the processor in between, a
# turn would end after a single step, and a series would take as many turns as it has observations.
QUANTUM_SECONDS = 0.005
ROWS_PER_STEP = 64
# Forecasts and samples that cost about as much as the step itself.
FORECASTS_PER_ROW = 4
SAMPLES_PER_ROW = 32
# Anomaly scores are also counted up to these.
ANOMALY_LEVELS = (0.99, 0.999)


class Filter(Protocol):
    """What the engine needs of a filter; tests put small hand-made ones here."""

    name: str
    observation_size: int
    state_size: int  # components of the state
    levels: tuple[float, ...]

    @property
    def state_fields(self) -> Mapping[str, StateField]:
        """What a slot of its pool holds."""

    @property
    def state_bytes(self) -> int:
        """Size of a packed state."""

    def start(self, seed: int = 0) -> Any:
        """The state before the first observation; it has a `count`, a `time` and a `seed`."""

    def put(self, pool: StatePool, slot: Slot, state: Any) -> None:
        """Set a slot to a state."""

    def get(self, pool: StatePool, slot: Slot, seed: int) -> Any:
        """The state in a slot."""

    def pack(self, state: Any) -> bytes:
        """A state as `state_bytes` bytes."""

    def unpack(self, data: bytes) -> Any:
        """The inverse of `pack`; raises InvalidRequest."""

    def readout(self, levels: tuple[float, ...], horizon: tuple[float, ...], samples: int) -> Any:
        """What to tell about each row; raises InvalidRequest."""

    def advance(self, pool: StatePool, rows: Sequence[Row]) -> list[Stepped | None]:
        """One observation of each row; None where the numbers are not finite and the slot is as it was."""

    def work(
        self,
        times: Sequence[float],
        observations: Sequence[Sequence[float | None] | None],
        *,
        noise: Sequence[float | None] | None,
        levels: Sequence[float],
        horizon: Sequence[float],
        samples: int,
        seed: int,
        mode: Literal["recurrent", "attention"],
        smooth: bool,
        state: Any,
    ) -> Generator[Any, None, Any]:
        """A whole sequence in pieces: gives each step once it is final, None in between; returns log-likelihood, the
        state after the last step, the smoothed trajectory, and the tally of the forecasts."""


@dataclass(frozen=True)
class FilterOptions:
    """What to filter and what to tell about it.

    `state` is where to continue, as the model unpacked it; `wants_state` asks for the packed state at the end.
    """

    times: list[float]
    observations: list[list[float | None] | None]
    noise: list[float | None] | None
    levels: tuple[float, ...]
    horizon: tuple[float, ...]
    samples: int
    seed: int
    mode: Literal["recurrent", "attention"]
    smooth: bool
    is_streamed: bool
    state: Any = None
    wants_state: bool = False

    @property
    def needs_whole(self) -> bool:
        """Whether the answer needs the whole sequence at once."""
        return self.smooth or self.mode == "attention"


@dataclass(frozen=True, slots=True)
class PackedState:
    """A stream's state, and how many observations are in it."""

    payload: bytes
    count: int


@dataclass(frozen=True)
class Filtered:
    """A finished sequence; its steps were emitted before."""

    smoothed: list[Any] | None
    log_likelihood: float
    calibration: ForecastChecks
    timings: FilterTimings
    state: PackedState | None


class RecurrentJob(Job):
    """A job that feeds observations to a recurrent filter, one after the other.

    Its slot is taken with its first observation and given back when it leaves the scheduler.
    """

    def __init__(self, stage: FilterStage, options: Any) -> None:
        super().__init__(stage)
        self.filtering = stage
        self.readout = stage.model.readout(options.levels, options.horizon, options.samples)
        self.seed: int = options.seed
        self._resumed: Any = options.state
        self.slot: Slot | None = None
        self.log_likelihood = 0.0
        self._is_fresh = options.state is None or not options.state.count
        self._sums = no_checks(len(stage.model.levels))
        self._rows = reply_rows(options)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def event_rows(self) -> int:
        return self._rows

    @property
    def is_watched(self) -> bool:
        """Whether each answer is sent as it is made."""
        raise NotImplementedError

    @property
    def has_next(self) -> bool:
        """Whether an observation is there."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The field that the next observation came in."""
        raise NotImplementedError

    def next_row(self) -> Row:
        """The next observation, which stays the next one until `accept`."""
        raise NotImplementedError

    def accept(self, stepped: Stepped) -> None:
        """Take the answer to the next observation."""
        self.log_likelihood += stepped.log_likelihood
        self._sums += stepped.tally

    def checks(self) -> ForecastChecks:
        """What became of the forecasts so far."""
        return _summary(self.filtering.model, self._sums, is_fresh=self._is_fresh)

    def settle(self) -> None:
        """Finish if nothing more will come."""
        raise NotImplementedError

    def ensure_slot(self) -> Slot:
        """The slot, set to the state on first use."""
        if self.slot is None:
            self.slot = self.filtering.pool.acquire()
            self.filtering.model.put(self.filtering.pool, self.slot, self._first_state())
            self._resumed = None
        return self.slot

    def pack(self) -> PackedState:
        """The state as it is now; on the worker that has the job."""
        model = self.filtering.model
        if self.slot is None:
            state = self._first_state()
        else:
            state = model.get(self.filtering.pool, self.slot, self.seed)
        return PackedState(model.pack(state), state.count)

    def _first_state(self) -> Any:
        if self._resumed is None or not self._resumed.count:
            return self.filtering.model.start(self.seed)
        return replace(self._resumed, seed=self.seed)

    def release(self) -> None:
        if self.slot is not None:
            self.filtering.pool.release(self.slot)
            self.slot = None


class FilterJob(RecurrentJob):
    """A recurrent filter request."""

    def __init__(self, stage: FilterStage, options: FilterOptions) -> None:
        super().__init__(stage, options)
        self.options = options
        self.position = 0

    @property
    def is_watched(self) -> bool:
        return self.options.is_streamed

    @property
    def has_next(self) -> bool:
        return self.position < len(self.options.observations)

    @property
    def place(self) -> str:
        return f"observations[{self.position}]"

    def next_row(self) -> Row:
        options, i = self.options, self.position
        noise = None if options.noise is None else options.noise[i]
        return Row(
            self.ensure_slot(),
            float(options.times[i]),
            options.observations[i],
            1.0 if noise is None else noise,
            self.readout,
            options.seed,
        )

    def accept(self, stepped: Stepped) -> None:
        super().accept(stepped)
        self.position += 1
        self.emit(stepped.step)

    def settle(self) -> None:
        if not self.has_next:
            state = self.pack() if self.options.wants_state else None
            timings = self.filtering.observe_end(self)
            self.finish(Filtered(None, self.log_likelihood, self.checks(), timings, state))
        elif self.interrupted:
            self.fail(NotReady("The server is shutting down."))


class SequenceJob(Job):
    """A filter request that needs its whole sequence at once."""

    def __init__(self, stage: SequenceStage, options: FilterOptions) -> None:
        super().__init__(stage)
        self.options = options
        self.work: Generator[Any, None, Any] = stage.model.work(
            options.times,
            options.observations,
            noise=options.noise,
            levels=options.levels,
            horizon=options.horizon,
            samples=options.samples,
            seed=options.seed,
            mode=options.mode,
            smooth=options.smooth,
            state=options.state,
        )
        self.steps = 0
        self._rows = reply_rows(options)

    @property
    def event_rows(self) -> int:
        return self._rows


class FilterStage:
    """Advances recurrent jobs of one filter together: by one observation, and those that nobody watches by as many more
    as the quantum has time for."""

    max_rows = ROWS_PER_STEP

    def __init__(self, model: Filter, pool: StatePool, metrics: Metrics) -> None:
        self.model = model
        self.pool = pool
        self._metrics = metrics
        self._observations = metrics.filter_observations.labels(model.name)
        self._step_time = metrics.filter_step.labels(model.name)
        self._corrupted = metrics.corrupted_requests.labels(model.name)
        self._scored = metrics.filter_scored.labels(model.name)
        levels = sorted({*model.levels, *ANOMALY_LEVELS})
        self._inside = [(level, metrics.filter_inside.labels(model.name, level_name(level))) for level in levels]
        self._forecasts = _ForecastCounters(model, metrics)

    def run(self, jobs: Sequence[RecurrentJob]) -> None:
        begun, until = time.monotonic(), time.thread_time() + QUANTUM_SECONDS
        steps: list[Any] = []
        sums = no_checks(len(self.model.levels))
        active = [job for job in jobs if _goes_on(job)]
        try:
            while active:
                steps += self._advance(active, sums)
                unwatched = [job for job in active if not job.is_watched and _goes_on(job)]
                if not unwatched or time.thread_time() >= until or _is_awaited(jobs):
                    break
                hand_over([job for job in active if job.is_watched and not job.done])
                active = unwatched
        finally:  # also of a quantum that failed at one of its steps
            if steps:
                self._observe(steps, time.monotonic() - begun)
                self._forecasts.add(sums)
        for job in jobs:
            if not job.done:
                job.settle()

    def observe_end(self, job: Job) -> FilterTimings:
        """Count a finished request."""
        return _observe_end(job, self._metrics, self.model.name)

    def _advance(self, jobs: Sequence[RecurrentJob], sums: np.ndarray) -> list[Any]:
        """One observation of each job, added to `sums`; a job whose numbers are not finite fails alone."""
        steps = []
        for job, stepped in zip(jobs, self.model.advance(self.pool, [job.next_row() for job in jobs]), strict=True):
            if stepped is None:
                self._corrupted.inc()
                job.fail(out_of_range(job.place, self.model.name))
            else:
                job.accept(stepped)
                steps.append(stepped.step)
                sums += stepped.tally
        return steps

    def _observe(self, steps: Sequence[Any], seconds: float) -> None:
        self._observations.inc(len(steps))
        self._step_time.observe(seconds / len(steps))
        scores = [step.anomaly for step in steps if step.anomaly is not None]
        self._scored.inc(len(scores))
        for level, counter in self._inside:
            counter.inc(sum(score <= level for score in scores))


def _goes_on(job: RecurrentJob) -> bool:
    return job.has_next and not (job.done or job.cancelled or job.interrupted or job.is_ahead)


def _is_awaited(jobs: Sequence[RecurrentJob]) -> bool:
    """Whether a live stream waits for the end of these jobs' quantum: one of them, or another."""
    return jobs[0].is_in_the_way or any(job.is_stream and job.has_next and not job.done for job in jobs)


def reply_rows(options: Any) -> int:
    """What a step that is told so much about weighs, in plain steps."""
    return 1 + len(options.horizon) // FORECASTS_PER_ROW + options.samples // SAMPLES_PER_ROW


class SequenceStage:
    """Attention and smoothing: a piece of one sequence per quantum."""

    max_rows = 1

    def __init__(self, model: Filter, metrics: Metrics) -> None:
        self.model = model
        self._metrics = metrics
        self._forecasts = _ForecastCounters(model, metrics)

    def run(self, jobs: Sequence[SequenceJob]) -> None:
        for job in jobs:
            if job.interrupted:
                job.fail(NotReady("The server is shutting down."))
                continue
            try:
                self._advance(job)
            except StopIteration as stop:
                self._conclude(job, stop.value)

    def _advance(self, job: SequenceJob) -> None:
        until = time.thread_time() + QUANTUM_SECONDS
        while True:
            step = next(job.work)
            if step is not None:
                self._check(step, f"observations[{job.steps}]")
                job.steps += 1
                job.emit(step)
            if job.is_ahead or time.thread_time() >= until or job.is_in_the_way:
                return

    def _check(self, part: Any, place: str) -> None:
        if not _is_finite(part):
            self._metrics.corrupted_requests.labels(self.model.name).inc()
            raise out_of_range(place, self.model.name)

    def _conclude(self, job: SequenceJob, result: Any) -> None:
        self._check((result.smoothed, result.log_likelihood), "observations")
        self._metrics.filter_observations.labels(self.model.name).inc(job.steps)
        self._forecasts.add(result.tally)
        state = None
        if job.options.wants_state:
            state = PackedState(self.model.pack(result.state), result.state.count)
        timings = _observe_end(job, self._metrics, self.model.name)
        resumed = job.options.state
        checks = _summary(self.model, result.tally, is_fresh=resumed is None or not resumed.count)
        job.finish(Filtered(result.smoothed, result.log_likelihood, checks, timings, state))


class _ForecastCounters:
    """Adds tallies to the metrics of a model."""

    def __init__(self, model: Filter, metrics: Metrics) -> None:
        name = model.name
        columns = {
            OBSERVATIONS: metrics.filter_forecast_observations.labels(name),
            WEIGHTED_NIS: metrics.filter_weighted_nis.labels(name),
            SCORED: metrics.filter_forecast_scored.labels(name),
        }
        for i in range(PIT.start, PIT.stop):
            columns[i] = metrics.filter_pit.labels(name, f"{(i - PIT.start + 1) / PIT_BINS:g}")
        for i, edge in enumerate((*NIS_EDGES, math.inf), NIS.start):
            columns[i] = metrics.filter_nis.labels(name, "+Inf" if math.isinf(edge) else f"{edge:g}")
        for i, level in enumerate(model.levels, INSIDE.start):
            columns[i] = metrics.filter_forecast_inside.labels(name, level_name(level))
        self._counters = [columns[i] for i in range(len(columns))]

    def add(self, sums: np.ndarray) -> None:
        """Count the forecasts of a tally."""
        for counter, value in zip(self._counters, sums.tolist(), strict=True):
            if value:
                counter.inc(value)


def _summary(model: Filter, sums: np.ndarray, *, is_fresh: bool) -> ForecastChecks:
    return summarise(sums, model.levels, model.observation_size, is_fresh=is_fresh)


def _observe_end(job: Job, metrics: Metrics, name: str) -> FilterTimings:
    now = time.monotonic()
    started = job.started or now
    metrics.request_queue_time.labels(name).observe(started - job.submitted)
    metrics.e2e_request_latency.labels(name).observe(now - job.submitted)
    return FilterTimings(
        queue_ms=round(1000 * (started - job.submitted), 3), compute_ms=round(1000 * (now - started), 3)
    )


def _is_finite(value: Any) -> bool:
    """Whether every number in a reply is one: JSON has no other."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all())
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, Forecasts):
        return value.is_finite
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    if is_dataclass(value):
        return all(_is_finite(getattr(value, field.name)) for field in fields(value))
    return True
