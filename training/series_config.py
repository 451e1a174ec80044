"""Configuration for training the series network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfa.runtime.series.config import SeriesConfig
from rfa.runtime.text.config import Mode, StrictConfig
from rfa.training.sequence_config import SequenceTrainingConfig, read_sections


@dataclass(frozen=True)
class SeriesTrainingConfig(SequenceTrainingConfig):
    """Settings for training the series network.

    Attributes:
        batch: Number of series per step.
        tokens: Number of tokens per series, which are one patch apart.
        modes: Modes to train. If it is only "attention", the parameters that both modes share are frozen.
        validate_every: Number of steps between two validations.
        own_share: Weight of the loss on the user's series. The rest is the loss on synthetic series, to avoid
            forgetting.
        workers: Number of processes that generate series.
        threads: Number of threads of the training process.
    """

    batch: int = 64
    tokens: int = 128
    modes: tuple[Mode, ...] = ("recurrent",)
    validate_every: int = 500
    own_share: float = 0.5
    workers: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("tokens", "threads")
        if not 0 < self.own_share <= 1:
            raise ValueError(f"own_share must be in (0, 1], got {self.own_share}")


@dataclass(frozen=True)
class SeriesRun(StrictConfig):
    """Content of a training configuration file, which has the sections model and training."""

    model: SeriesConfig
    training: SeriesTrainingConfig

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model.to_dict(), "training": self.training.to_dict()}

    @classmethod
    def from_file(cls, path: Path) -> SeriesRun:
        """Read the configuration at `path`.

        Raises:
            ValueError: If a section or key is unknown, or a value is invalid.
        """
        return cls.from_dict(read_sections(path))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SeriesRun:
        """Create a configuration from the sections model and training of a document."""
        return cls(SeriesConfig.from_dict(document["model"]), SeriesTrainingConfig.from_dict(document["training"]))
