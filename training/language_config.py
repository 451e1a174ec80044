"""Configurations for training language models, which are packaged files or files of the user, and their variants."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfa.runtime.text.config import LanguageModelConfig, Mode
from rfa.training.sequence_config import SequenceTrainingConfig, read_sections

CONFIGS = Path(__file__).parent / "configs"
# Overrides of a configuration, by the names that docs/MATH.md and the papers use.
VARIANTS_FILE = CONFIGS / "variants.json"


@dataclass(frozen=True)
class TrainingConfig(SequenceTrainingConfig):
    """Settings for training a language model.

    Attributes:
        modes: Modes to train. If empty, all modes of the model are trained.
        context: Length of the training sequences, in tokens.
        recurrent_from: Fraction of the steps, at the start, that train only the attention mode. Later steps train both
            modes.
        recurrent_share: Weight of the loss of the recurrent mode if both modes are trained. The loss of the attention
            mode has the remaining weight.
        own_rows: Whether each row of a batch trains only one mode, which takes half the time per token. The fraction
            `recurrent_share` of the rows trains the recurrent mode, and the others the attention mode. By default, all
            rows train both modes.
        vary_passes: Whether successive steps use 1, 2, … `inner` reweighting passes in turn, so that requests can
            choose the number of passes.
        attention_context: Length of the windows of the attention mode, which divides `context`. 0 means `context`.
        compile: Whether to use torch.compile. It compiles the loss on a CPU, and eager attention on a GPU.
        accumulation: Number of parts into which a batch is split. The parts are computed one after another, to limit
            memory use.
        fsdp: Whether to shard the weights, gradients and optimiser states over the processes of torchrun (FSDP2).
            It requires Adam.
    """

    context: int = 256
    recurrent_from: float = 0.0
    recurrent_share: float = 0.5
    own_rows: bool = False
    vary_passes: bool = False
    attention_context: int = 0
    accumulation: int = 1
    fsdp: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("context", "accumulation")
        if self.batch % self.accumulation:
            raise ValueError(f"batch must be a multiple of accumulation, got {self.batch} and {self.accumulation}")
        if self.fsdp and (self.optimiser != "adam" or self.ema or self.compile):
            raise ValueError("fsdp requires optimiser 'adam' and does not support ema or compile")
        if not 0 <= self.recurrent_from < 1:
            raise ValueError(f"recurrent_from must be in [0, 1), got {self.recurrent_from}")
        if self.recurrent_from and self.modes and set(self.modes) != {"attention", "recurrent"}:
            raise ValueError(f"recurrent_from requires both modes, got modes {list(self.modes)}")
        if not 0 < self.recurrent_share < 1:
            raise ValueError(
                f"recurrent_share must be in (0, 1), got {self.recurrent_share}; to train only one mode, set `modes`"
            )
        if self.attention_context < 0 or (self.attention_context and self.context % self.attention_context):
            raise ValueError(f"attention_context must divide context {self.context}, got {self.attention_context}")
        if self.own_rows and self.batch // self.accumulation < 2:
            raise ValueError(
                "own_rows requires batch / accumulation >= 2, "
                f"got batch {self.batch} and accumulation {self.accumulation}"
            )

    def context_of(self, mode: Mode) -> int:
        """Return the length of the windows of a mode."""
        return self.attention_context if mode == "attention" and self.attention_context else self.context

    def passes_of(self, step: int, inner: int) -> int:
        """Return the number of reweighting passes that a step of the training uses."""
        return 1 + step % inner if self.vary_passes else inner


@dataclass(frozen=True)
class LanguageRun:
    """Content of a training configuration file, which has the sections model and training."""

    model: LanguageModelConfig
    training: TrainingConfig

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as the content of a configuration file."""
        return {"model": self.model.to_dict(), "training": self.training.to_dict()}

    @classmethod
    def from_file(cls, path: Path, variant: str | None = None) -> LanguageRun:
        """Read a configuration, with the overrides of a variant from `variants.json`.

        Raises:
            ValueError: If a section, key or variant is unknown, or a value is invalid. The message lists the valid
                ones.
        """
        document = read_sections(path)
        overrides = load_variants()[check_variant(variant)] if variant is not None else {}
        return cls(
            LanguageModelConfig.from_dict({**document["model"], **overrides.get("model", {})}),
            TrainingConfig.from_dict({**document["training"], **overrides.get("training", {})}),
        )


def load_variants() -> dict[str, dict[str, Any]]:
    """Return a mapping from names of variants to titles and overrides of model and training."""
    variants: dict[str, dict[str, Any]] = json.loads(VARIANTS_FILE.read_text())
    return variants


def check_variant(name: str) -> str:
    """Return `name` if it is the name of a variant.

    Raises:
        ValueError: If there is no such variant. The message lists the variants.
    """
    available = load_variants()
    if name not in available:
        raise ValueError(f"there is no variant {name!r}; the variants are {list(available)}")
    return name


def find_config(name: str) -> Path:
    """Return the path of a configuration.

    Args:
        name: Path of a configuration, or name of a packaged configuration.

    Raises:
        FileNotFoundError: If neither exists. The message lists the packaged names.
    """
    for candidate in (Path(name), CONFIGS / f"{name}.json"):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"there is no config {name!r}; pass the path of a file, or one of the packaged configs "
        f"{sorted(path.stem for path in CONFIGS.glob('*.json') if path != VARIANTS_FILE)}"
    )
