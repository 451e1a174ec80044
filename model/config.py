"""The configuration of a language model: frozen, self-checking, strict about its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

Mixer = Literal["rfa", "softmax"]
Mode = Literal["attention", "recurrent"]
Kernel = Literal["student_t", "gaussian"]
Frequencies = Literal["banded", "full"]

MIXERS = ("rfa", "softmax")
MODES = ("attention", "recurrent")
KERNELS = ("student_t", "gaussian")
FREQUENCIES = ("banded", "full")


@dataclass(frozen=True)
class StrictConfig:
    """A frozen dataclass that refuses unknown keys, with the way to and from JSON."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a JSON object; a missing or unknown key is a ValueError that names it."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"{cls.__name__} has no {unknown}; it takes {sorted(known)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


@dataclass(frozen=True)
class LanguageModelConfig(StrictConfig):
    """A pre-norm decoder whose token mixer is RFA with its recurrent twin, or softmax attention (the RoPE baseline).

    head_dim counts complex dims D, so a head has 2D reals. `inner` is the number K of reweighting passes of the slots.
    `damping` b sets the fixed decay mu_h = b · max omega_h of the banded frequencies.
    """

    vocab_size: int
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    head_dim: int = 32
    mlp_ratio: int = 4
    mixer: Mixer = "rfa"
    frequencies: Frequencies = "banded"
    damping: float = 0.05
    zero_decay_fraction: float = 0.25
    kernel: Kernel = "student_t"
    n_slots: int = 16
    inner: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "head_dim", "mlp_ratio", "n_slots", "inner"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even (conjugate pairs of frequencies), got {self.head_dim}")
        if not 0 <= self.zero_decay_fraction <= 1:
            raise ValueError(f"zero_decay_fraction must be in [0, 1], got {self.zero_decay_fraction}")
        if self.damping < 0:
            raise ValueError(f"damping must be >= 0, got {self.damping}")
        check_choice("mixer", self.mixer, MIXERS)
        check_choice("frequencies", self.frequencies, FREQUENCIES)
        check_choice("kernel", self.kernel, KERNELS)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Softmax attention has no recurrent twin."""
        return ("attention", "recurrent") if self.mixer == "rfa" else ("attention",)
