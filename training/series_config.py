"""Configuration for training the series network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfa.runtime.series.config import SeriesConfig
from rfa.runtime.text.config import Mode, StrictConfig
from rfa.training.optimiser import OptimiserConfig


@dataclass(frozen=True)
class SeriesTrainingConfig(OptimiserConfig):
    """Training settings.

    Attributes:
        batch: number of series per step.
        tokens: number of tokens per series, which are one patch apart.
        modes: modes to train. With "attention" alone, shared parameters are frozen.
        own_share: weight of the loss on the user's series. The rest is the loss on synthetic series, to avoid
            forgetting.
        workers: number of processes that generate series.
        threads: number of threads of the training process.
        minutes: duration of the training. The learning rates then depend on the share of the time that has passed. With
            None, the run ends after `steps` steps.
        compile: whether to use torch.compile.
    """

    batch: int = 64
    tokens: int = 128
    modes: tuple[Mode, ...] = ("recurrent",)
    seed: int = 0
    validate_every: int = 500
    precision: str = "bf16"
    own_share: float = 0.5
    workers: int = 1
    threads: int = 1
    minutes: float | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "modes", tuple(self.modes))
        for name in ("batch", "tokens", "validate_every", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"precision must be 'bf16' or 'fp32', got {self.precision!r}")
        if not 0 < self.own_share <= 1:
            raise ValueError(f"own_share must be in (0, 1], got {self.own_share}")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be positive, got {self.minutes}")


@dataclass(frozen=True)
class SeriesRun(StrictConfig):
    """A training configuration file with the sections for the network and the training."""

    model: SeriesConfig
    training: SeriesTrainingConfig

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model.to_dict(), "training": self.training.to_dict()}

    @classmethod
    def from_file(cls, path: Path) -> SeriesRun:
        """Read the configuration at `path`.

        Raises:
            ValueError: If there are unknown sections or keys, or invalid values.
        """
        document = json.loads(path.read_text())
        unknown = set(document) - {"model", "training"}
        if unknown:
            raise ValueError(
                f"{path.name} has unknown sections {sorted(unknown)}; the valid sections are model and training"
            )
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SeriesRun:
        """Create a configuration from the sections model and training of a document."""
        return cls(SeriesConfig.from_dict(document["model"]), SeriesTrainingConfig.from_dict(document["training"]))
