"""A filter request at work: a piece of the sequence per quantum, one observation where the reader watches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Protocol

from service.engine.filter_runtime import FilterInputError
from service.engine.scheduler import Job
from service.errors import EngineFailure, InvalidRequest
from service.metrics import Metrics

PIECE = 64  # observations per quantum of a request that is not streamed


class Filter(Protocol):
    """What the engine needs of a filter; tests put small hand-made ones here."""

    name: str
    observation_size: int
    levels: tuple[float, ...]

    def filter(
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
    ) -> Any:
        """Steps, log-likelihood, state after the last step, and the smoothed trajectory."""


@dataclass(frozen=True)
class FilterOptions:
    """What to filter and what to tell about it."""

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


@dataclass(frozen=True, slots=True)
class FilterTimings:
    """Where the time went, milliseconds."""

    queue_ms: float
    compute_ms: float


@dataclass(frozen=True)
class Filtered:
    """A finished sequence; `steps` is empty where they were streamed."""

    steps: list[Any]
    smoothed: list[Any] | None
    log_likelihood: float
    timings: FilterTimings


class FilterJob(Job):
    """A filter request."""

    def __init__(self, stage: FilterStage, options: FilterOptions) -> None:
        super().__init__(stage)
        self.options = options
        self.position = 0
        self.state: Any = None
        self.log_likelihood = 0.0
        self.steps: list[Any] = []


class FilterStage:
    """Filters a piece of one sequence; the state carries over to the next piece."""

    max_rows = 1

    def __init__(self, model: Filter, metrics: Metrics) -> None:
        self._model = model
        self._metrics = metrics

    def run(self, jobs: Sequence[FilterJob]) -> None:
        for job in jobs:
            try:
                self._advance(job)
            except FilterInputError as error:
                raise InvalidRequest(str(error), param=error.param, code=error.code) from None

    def _advance(self, job: FilterJob) -> None:
        options = job.options
        begun = time.monotonic()
        end = job.position + self._piece(options)
        piece = slice(job.position, end)
        result = self._model.filter(
            options.times[piece],
            options.observations[piece],
            noise=None if options.noise is None else options.noise[piece],
            levels=options.levels,
            horizon=options.horizon,
            samples=options.samples,
            seed=options.seed,
            mode=options.mode,
            smooth=options.smooth,
            state=job.state,
        )
        if not all(_is_finite(part) for part in (result.steps, result.smoothed, result.log_likelihood)):
            self._metrics.corrupted_requests.labels(self._model.name).inc()
            raise EngineFailure("The model gave a value that is not finite for this request.", code="non_finite_output")
        job.state = result.state
        job.position += len(result.steps)
        job.log_likelihood += result.log_likelihood
        self._metrics.filter_observations.labels(self._model.name).inc(len(result.steps))
        self._metrics.filter_step.labels(self._model.name).observe((time.monotonic() - begun) / len(result.steps))
        if options.is_streamed:
            for step in result.steps:
                job.emit(step)
        else:
            job.steps.extend(result.steps)
        if job.position == len(options.observations):
            self._conclude(job, result.smoothed)

    def _piece(self, options: FilterOptions) -> int:
        """Observations of one quantum: all of them where the answer needs the whole sequence."""
        if options.mode == "attention" or options.smooth:
            return len(options.observations)
        return 1 if options.is_streamed else PIECE

    def _conclude(self, job: FilterJob, smoothed: list[Any] | None) -> None:
        now = time.monotonic()
        started = job.started or now
        timings = FilterTimings(
            queue_ms=round(1000 * (started - job.submitted), 3), compute_ms=round(1000 * (now - started), 3)
        )
        self._metrics.request_queue_time.labels(self._model.name).observe(started - job.submitted)
        self._metrics.e2e_request_latency.labels(self._model.name).observe(now - job.submitted)
        job.finish(Filtered(job.steps, smoothed, job.log_likelihood, timings))


def _is_finite(value: Any) -> bool:
    """Whether every number in a reply is one: JSON has no other."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    if is_dataclass(value):
        return all(_is_finite(getattr(value, field.name)) for field in fields(value))
    return True
