"""Training settings that language models and the series network share."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfa.runtime.text.config import Mode, check_choice
from rfa.training.device import PRECISIONS
from rfa.training.optimiser import OptimiserConfig


@dataclass(frozen=True)
class SequenceTrainingConfig(OptimiserConfig):
    """Settings for training a network with two modes on batches of sequences.

    Attributes:
        batch: Number of sequences per step.
        modes: Modes to train.
        seed: Random seed.
        validate_every: Number of steps between two validations.
        precision: Precision of the matrix products of the model, one of `PRECISIONS`.
        compile: Whether to use torch.compile.
        minutes: Time limit of the training steps, in minutes. The learning rates then depend on the fraction of the
            time that has passed. With None, the run ends after `steps` steps.
    """

    batch: int = 16
    modes: tuple[Mode, ...] = ()
    seed: int = 0
    validate_every: int = 250
    precision: str = "auto"
    compile: bool = False
    minutes: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "modes", tuple(self.modes))
        self.check_positive("batch", "validate_every")
        check_choice("precision", self.precision, PRECISIONS)
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be > 0 and finite, got {self.minutes}")

    def check_positive(self, *names: str) -> None:
        """Raise ValueError if one of the named fields is less than 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")


def read_sections(path: Path) -> dict[str, Any]:
    """Read a training configuration file with the sections model and training.

    Raises:
        ValueError: If there are unknown sections.
    """
    document: dict[str, Any] = json.loads(path.read_text())
    if unknown := set(document) - {"model", "training"}:
        raise ValueError(
            f"{path.name} has unknown sections {sorted(unknown)}; the valid sections are model and training"
        )
    return document
