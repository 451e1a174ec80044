"""Merge states. The stage performs each merge in one quantum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rfa.runtime.filters.filter import FilterRuntime
from rfa.runtime.outputs import FilterStep
from rfa.runtime.uncertainty.interface import MergeOptions
from rfa.service.engine.filter.recurrent_job import PackedState
from rfa.service.engine.filter.stages import observe_end
from rfa.service.engine.job import Job
from rfa.service.metrics import Metrics
from rfa.service.schemas.filter_replies import FilterTimings


@dataclass(frozen=True)
class MergedState:
    """Result of merging states.

    Attributes:
        step: Step with the estimate of the merged state.
        weights: Weight of each state with "covariance_intersection". None with "precision".
        seed: Random seed of the merged state.
        timings: Durations of the phases of the request.
        state: Packed merged state. None unless requested.
    """

    step: FilterStep
    weights: list[float] | None
    seed: int
    timings: FilterTimings
    state: PackedState | None


class MergeJob(Job):
    """Job of a request that merges states."""

    def __init__(self, stage: MergeStage, options: MergeOptions) -> None:
        super().__init__(stage)
        self.options = options


class MergeStage:
    """Stage that merges the states of one filter."""

    max_rows = 1

    def __init__(self, model: FilterRuntime, metrics: Metrics) -> None:
        self.model = model
        self._metrics = metrics

    def run(self, jobs: Sequence[MergeJob]) -> None:
        for job in jobs:
            merged = self.model.merge(job.options)
            packed = PackedState(self.model.pack(merged.state), merged.state.count)
            state = packed if job.options.wants_state else None
            timings = observe_end(job, self._metrics, self.model.label)
            job.finish(MergedState(merged.step, merged.weights, merged.state.seed, timings, state))
