"""Stages that advance filter requests and live streams.

In a quantum, the first observation of each job is filtered in one step, and streamed results are delivered. Then a
compiled filter processes many observations of each series that is not streamed, until the time of the quantum is over
or the buffer of the reader is full. Attention and smoothing need a whole sequence, so these jobs do not share a
quantum. A quantum ends early if a live stream waits for it.

Except with smoothing, each step becomes an event as soon as it is final. The scheduler limits the number of unread
events.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeGuard

import numpy as np

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.outputs import FilterWarning, ForecastChecks
from rfa.runtime.pool import StatePool
from rfa.runtime.uncertainty.diagnostics import diagnose
from rfa.runtime.uncertainty.forecast_checks import (
    ALARMS,
    ASKED,
    EXPECTED,
    INSIDE,
    NIS,
    NIS_EDGES,
    OBSERVATIONS,
    OUTLIERS,
    PIT,
    PIT_BINS,
    SCORED,
    WEIGHTED_NIS,
    no_checks,
    summarise,
)
from rfa.runtime.uncertainty.input import level_name, out_of_range
from rfa.runtime.uncertainty.steps import Forecasts, Steps
from rfa.service.engine.filter.filter_job import Filtered, FilterJob, forecast_rows
from rfa.service.engine.filter.recurrent_job import PackedState, RecurrentJob
from rfa.service.engine.filter.sequence_job import SequenceJob
from rfa.service.engine.job import Job
from rfa.service.engine.scheduler import deliver_early
from rfa.service.errors import NotReady
from rfa.service.metrics import Metrics
from rfa.service.schemas.filter_replies import FilterFinishReason, FilterTimings

# Length of a quantum, as processor time of the thread. With elapsed time, a quantum would end after one step whenever
# other threads run in between.
QUANTUM_SECONDS = 0.005
ROWS_PER_STEP = 64
# Minimum number of observations of a series in one call. With fewer, the overhead of the call would dominate.
MIN_PIECE = 16
NO_SCORES = np.empty(0)
# Levels at which anomaly scores are counted.
ANOMALY_LEVELS = (0.99, 0.999)


@dataclass
class _QuantumCounts:
    """Counts of one quantum: the number of its observations, the checks of their forecasts, and their anomaly
    scores."""

    tally: np.ndarray
    observations: int = 0
    scores: list[np.ndarray] = field(default_factory=list)

    def add(self, tally: np.ndarray) -> None:
        """Add the counts of some observations, which `forecast_checks.py` describes. The last columns, which count
        forecasts by requested horizon, are left out."""
        self.tally += tally[: len(self.tally)]


class FilterStage:
    """Stage that advances the recurrent jobs of one filter. In a quantum, streamed jobs advance by one observation, and
    other jobs by as many as possible."""

    max_rows = ROWS_PER_STEP

    def __init__(self, model: FilterRuntime, pool: StatePool, metrics: Metrics) -> None:
        self.model = model
        self.pool = pool
        self._metrics = metrics
        self._observations = metrics.filter_observations.labels(model.label)
        self._step_time = metrics.filter_step.labels(model.label)
        self._corrupted = metrics.corrupted_requests.labels(model.label)
        self._scored = metrics.filter_scored.labels(model.label)
        levels = sorted({*model.levels, *ANOMALY_LEVELS})
        self._inside = [(level, metrics.filter_inside.labels(model.label, level_name(level))) for level in levels]
        self._forecasts = _ForecastCounters(model, metrics)

    def run(self, jobs: Sequence[RecurrentJob]) -> None:
        begun, until = time.monotonic(), time.thread_time() + QUANTUM_SECONDS
        done = _QuantumCounts(no_checks(len(self.model.levels)))
        active = [job for job in jobs if _can_continue(job)]
        try:
            while active:
                series = [job for job in active if self._replies_in_columns(job)]
                self._advance([job for job in active if not self._replies_in_columns(job)], done)
                for one in series:
                    if _can_continue(one):  # a deadline may have passed in the meantime
                        self._filter_piece(one, max(MIN_PIECE, self.model.piece_rows // len(series)), done)
                others = [job for job in active if not job.is_streamed and _can_continue(job)]
                if not others or time.thread_time() >= until or _must_end(jobs) or self._are_expensive(others):
                    break
                deliver_early([job for job in active if job.is_streamed and not job.done])
                active = others
        finally:  # also if a step has failed
            if done.observations:
                self._observe(done, time.monotonic() - begun)
        for job in jobs:
            if not job.done:
                job.finish_if_done()

    def _are_expensive(self, jobs: Sequence[RecurrentJob]) -> bool:
        """Return whether the next observations of all jobs together cost more than one quantum may take."""
        return len(jobs) > 1 and sum(job.rows for job in jobs) > self.max_rows

    def _replies_in_columns(self, job: RecurrentJob) -> TypeGuard[FilterJob]:
        return isinstance(job, FilterJob) and not job.is_streamed and self.model.piece_rows > 1

    def observe_end(self, job: Job) -> FilterTimings:
        """Count a completed request, and return its timings."""
        return observe_end(job, self._metrics, self.model.label)

    def warn(
        self,
        checks: ForecastChecks,
        *,
        step: float,
        ahead: Sequence[float] = (),
        is_whole: bool = False,
        followed: int = 0,
        names: Sequence[str] = (),
    ) -> list[FilterWarning]:
        """Return the warnings of a reply, and count them in the metrics."""
        return warn(
            checks, self._metrics, self.model, step=step, ahead=ahead, is_whole=is_whole, followed=followed, names=names
        )

    def _advance(self, jobs: Sequence[RecurrentJob], done: _QuantumCounts) -> None:
        """Filter one observation of each job. If the results of a job are not finite, only that job fails."""
        if not jobs:
            return
        for job, stepped in zip(jobs, self.model.advance(self.pool, [job.next_row() for job in jobs]), strict=True):
            if stepped is None:
                self._fail(job)
                continue
            is_new = job.window is None or job.window.is_next_new
            job.accept(stepped)
            if not is_new:
                continue
            done.observations += 1
            done.add(stepped.tally)
            if stepped.step.anomaly is not None:
                done.scores.append(np.array([stepped.step.anomaly]))

    def _filter_piece(self, job: FilterJob, most: int, done: _QuantumCounts) -> None:
        """Filter the next observations of a series. If the results of an observation are not finite, the job fails."""
        piece = job.next_piece(most)
        steps = self.model.follow(self.pool, piece)
        job.accept_piece(steps)
        if len(steps) < len(piece.times):
            self._fail(job)
        done.observations += len(steps)
        done.add(steps.tally)
        done.scores.append(steps.anomalies)

    def _fail(self, job: RecurrentJob) -> None:
        self._corrupted.inc()
        job.reject(out_of_range(job.field_name, self.model.name))

    def _observe(self, done: _QuantumCounts, seconds: float) -> None:
        self._observations.inc(done.observations)
        self._step_time.observe(seconds / done.observations)
        self._forecasts.add(done.tally)
        scores = np.concatenate([*done.scores, NO_SCORES])
        self._scored.inc(len(scores))
        for level, counter in self._inside:
            counter.inc(int((scores <= level).sum()))


def _can_continue(job: RecurrentJob) -> bool:
    if job.done or job.cancelled:
        return False
    if job.is_behind:
        return True
    if job.interrupted or job.is_buffer_full or job.is_overdue:
        return False
    return job.check_next() and not job.done


def _must_end(jobs: Sequence[RecurrentJob]) -> bool:
    """Return whether a live stream is waiting for the end of the quantum."""
    return jobs[0].should_yield or any(job.is_stream and job.has_next and not job.done for job in jobs)


class SequenceStage:
    """Stage that advances jobs with attention or smoothing. In a quantum, it processes one part of the sequence of one
    job."""

    max_rows = 1

    def __init__(self, model: FilterRuntime, metrics: Metrics) -> None:
        self.model = model
        self._metrics = metrics
        self._forecasts = _ForecastCounters(model, metrics)

    def run(self, jobs: Sequence[SequenceJob]) -> None:
        for job in jobs:
            if job.interrupted:
                job.fail(NotReady("The server is shutting down; try again later."))
                continue
            try:
                self._advance(job)
            except StopIteration as stop:
                self._finish(job, stop.value)

    def _advance(self, job: SequenceJob) -> None:
        until = time.thread_time() + QUANTUM_SECONDS
        while True:
            output = next(job.work)
            if output is not None:
                self._check(output.samples if isinstance(output, Steps) else output, f"observations[{job.steps}]")
                job.steps += job.weight(output)
                job.emit(output)
            if job.is_buffer_full or time.thread_time() >= until or job.should_yield:
                return

    def _check(self, part: Any, field_name: str) -> None:
        if not _is_finite(part):
            self._metrics.corrupted_requests.labels(self.model.label).inc()
            raise out_of_range(field_name, self.model.name)

    def _finish(self, job: SequenceJob, result: Any) -> None:
        self._check((result.smoothed, result.log_likelihood), "observations")
        self._metrics.filter_observations.labels(self.model.label).inc(job.steps)
        self._forecasts.add(result.tally)
        state = None
        if job.options.wants_state:
            state = PackedState(self.model.pack(result.state), result.state.count)
        ahead = None
        if job.options.ahead and job.steps:
            ahead = forecast_rows(self.model, result.state, job.options)
        timings = observe_end(job, self._metrics, self.model.label)
        resumed = job.options.state
        is_fresh = resumed is None or not resumed.count
        size, horizon = self.model.observation_size, job.options.horizon
        checks = summarise(result.tally, self.model.levels, size, horizon, is_fresh=is_fresh)
        warnings = warn(
            checks, self._metrics, self.model, step=result.state.step, ahead=job.options.ahead,
            is_whole=is_fresh and not result.is_cut, followed=job.options.followed, names=job.options.names,
        )  # fmt: skip
        reason: FilterFinishReason = "deadline" if result.is_cut else "complete"
        if not job.steps:
            job.emit(job.no_steps())
        smoothed, incidents = result.smoothed, result.incidents
        job.finish(
            Filtered(smoothed, result.log_likelihood, checks, incidents, warnings, timings, state, reason, ahead)
        )


class _ForecastCounters:
    """Counters of a model in the metrics, to which the counts of forecasts (forecast_checks.py) are added."""

    def __init__(self, model: FilterRuntime, metrics: Metrics) -> None:
        name = model.label
        columns = {
            OBSERVATIONS: metrics.filter_forecast_observations.labels(name),
            WEIGHTED_NIS: metrics.filter_weighted_nis.labels(name),
            SCORED: metrics.filter_forecast_scored.labels(name),
            ASKED: metrics.filter_alarm_observations.labels(name),
            EXPECTED: metrics.filter_alarms_expected.labels(name),
            ALARMS: metrics.filter_alarms.labels(name),
            OUTLIERS: metrics.filter_outliers.labels(name),
        }
        for i in range(PIT.start, PIT.stop):
            columns[i] = metrics.filter_pit.labels(name, f"{(i - PIT.start + 1) / PIT_BINS:g}")
        for i, edge in enumerate((*NIS_EDGES, math.inf), NIS.start):
            columns[i] = metrics.filter_nis.labels(name, "+Inf" if math.isinf(edge) else f"{edge:g}")
        for i, level in enumerate(model.levels, INSIDE.start):
            columns[i] = metrics.filter_forecast_inside.labels(name, level_name(level))
        self._counters = [columns[i] for i in range(len(columns))]

    def add(self, sums: np.ndarray) -> None:
        """Add counts of forecasts to the counters. The last columns, which count forecasts by requested horizon, are
        left out."""
        for counter, value in zip(self._counters, sums[: len(self._counters)].tolist(), strict=True):
            if value:
                counter.inc(value)


def observe_end(job: Job, metrics: Metrics, name: str) -> FilterTimings:
    """Count a completed request, and return its timings. In a request with several series, the series are not
    counted."""
    now = time.monotonic()
    started = job.started or now
    if job.time_slice is None:
        metrics.request_queue_time.labels(name).observe(started - job.submitted)
        metrics.e2e_request_latency.labels(name).observe(now - job.submitted)
    return FilterTimings(
        queue_ms=round(1000 * (started - job.submitted), 3), compute_ms=round(1000 * (now - started), 3)
    )


def warn(
    checks: ForecastChecks,
    metrics: Metrics,
    model: FilterRuntime,
    *,
    step: float,
    ahead: Sequence[float],
    is_whole: bool,
    followed: int,
    names: Sequence[str] = (),
) -> list[FilterWarning]:
    """Return the warnings of a reply, and count them in the metrics."""
    found = diagnose(model, checks, step=step, ahead=ahead, is_whole=is_whole, followed=followed, names=names)
    for code in {warning.code for warning in found}:
        metrics.filter_warnings.labels(model.name, code).inc()
    return found


def _is_finite(value: Any) -> bool:
    """Return whether every number in a reply is finite, as JSON requires."""
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
