"""Position of a run in the learning rate schedule, which follows the steps or, with a time limit, the time."""

from __future__ import annotations

from typing import Protocol

from rfa.training.sequence_config import SequenceTrainingConfig


class _Run(Protocol):
    @property
    def training(self) -> SequenceTrainingConfig:
        """Training settings of the run."""


class Scheduled:
    """Base class of trainers. It stores the run, the number of completed steps, and the seconds that these steps have
    taken."""

    run: _Run
    step: int
    seconds: float

    @property
    def position(self) -> float:
        """Position in the learning rate schedule, in steps. With a time limit, it is proportional to the elapsed
        time."""
        config = self.run.training
        return self.step if config.minutes is None else config.steps * min(self.seconds / (60 * config.minutes), 1.0)

    @property
    def is_finished(self) -> bool:
        """Whether the run is at the end of the schedule."""
        return self.position >= self.run.training.steps
