"""Job of a filter request that needs its whole sequence at once, for smoothing or in attention mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rfa.runtime.uncertainty.interface import FilterOptions, reply_rows
from rfa.runtime.uncertainty.steps import Steps
from rfa.service.engine.job import Job

if TYPE_CHECKING:
    from rfa.service.engine.filter.stages import SequenceStage


class SequenceJob(Job):
    """Job of a filter request that needs its whole sequence at once, for smoothing or in attention mode."""

    def __init__(self, stage: SequenceStage, options: FilterOptions) -> None:
        super().__init__(stage, deadline_seconds=options.deadline_seconds)
        self.options = options
        self.sequences = stage
        self.work = stage.model.work(options, self.deadline)
        self.steps = 0
        self._rows = reply_rows(options)

    @property
    def filtered(self) -> int:
        """Number of observations that have been filtered so far."""
        return self.steps

    def no_steps(self) -> Steps:
        """Return the outputs of a request without observations, which are empty."""
        requested, model = self.options, self.sequences.model
        return model.no_steps(model.readout(requested.levels, requested.horizon, requested.samples, requested.readout))

    def weight(self, event: Any) -> int:
        return len(event) if isinstance(event, Steps) else 1

    @property
    def event_rows(self) -> int:
        return self._rows
