"""Token mixers of the language model: base classes, output types and registry."""

from __future__ import annotations

import math
from abc import abstractmethod
from importlib import import_module
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfa.runtime.text.config import LanguageModelConfig, Mixer, Mode

# mixer → its class, imported on use, because the papers' other systems are not in the installed package.
HOMES: dict[Mixer, tuple[str, str]] = {
    "rfa": ("rfa.model.layers", "RobustMixer"),
    "softmax": ("rfa.model.softmax_mixer", "SoftmaxMixer"),
    "afa": ("rfa.benchmarks.papers.adaptive_mixer", "AdaptiveMixer"),
    "radial_tangential": ("rfa.benchmarks.papers.radial_mixer", "RadialTangentialMixer"),
}


class MixerOutput(NamedTuple):
    """out `[..., d]` after the projection; log_precision `[..., H]`; latent `[..., H, 2D]` before the projection."""

    out: Tensor
    log_precision: Tensor
    latent: Tensor


class ModeLinear(nn.Linear):
    """A linear layer without bias, with one matrix for both modes or one for each."""

    def __init__(self, d_in: int, d_out: int, scale: float = 1.0, *, is_own: bool) -> None:
        super().__init__(d_in, d_out, bias=False)
        _draw(self.weight, scale)
        if is_own:
            self.recurrent_weight = nn.Parameter(torch.empty_like(self.weight))
            _draw(self.recurrent_weight, scale)

    def of(self, mode: Mode) -> Tensor:
        """Return the matrix `[d_out, d_in]` of a mode."""
        return _weight_of(self, mode)

    def forward(self, x: Tensor, mode: Mode = "attention") -> Tensor:
        return F.linear(x, self.of(mode))


class ModeNorm(nn.RMSNorm):
    """An RMS norm, with gains for both modes or for each."""

    def __init__(self, width: int, *, is_own: bool) -> None:
        super().__init__(width, eps=1e-6)
        if is_own:
            self.recurrent_weight = nn.Parameter(torch.ones(width))

    def of(self, mode: Mode) -> Tensor:
        """Return the gains `[d]` of a mode."""
        return _weight_of(self, mode)

    def forward(self, x: Tensor, mode: Mode = "attention") -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.of(mode), self.eps)


def _weight_of(layer: ModeLinear | ModeNorm, mode: Mode) -> Tensor:
    return layer.recurrent_weight if mode == "recurrent" and hasattr(layer, "recurrent_weight") else layer.weight


def projection(d_in: int, d_out: int, scale: float = 1.0) -> nn.Linear:
    """Return a linear layer without bias, initialised for mixers."""
    linear = nn.Linear(d_in, d_out, bias=False)
    _draw(linear.weight, scale)
    return linear


def _draw(weight: Tensor, scale: float) -> None:
    """Sample a complex projection as 2D real rows; Rayleigh magnitude and uniform phase are iid normal (RFA D.2)."""
    d_out, d_in = weight.shape
    nn.init.normal_(weight, std=scale / math.sqrt(d_in + d_out / 2))


class TokenMixer(nn.Module):
    """Base class: projections d → 2D real dimensions per head → d. `output_scale` scales the output projection."""

    # Whether the block passes the normalised residual stream or the residual stream itself.
    takes_norm = True

    def __init__(self, config: LanguageModelConfig, output_scale: float) -> None:
        super().__init__()
        self.config = config
        width, is_own = config.n_heads * 2 * config.head_dim, config.own_readout
        self.query = ModeLinear(config.d_model, width, is_own=is_own)
        self.key = projection(config.d_model, width)
        self.value = projection(config.d_model, width)
        self.output = ModeLinear(width, config.d_model, output_scale, is_own=is_own)

    @abstractmethod
    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """Mix a sequence `[B, N, d]` at positions 0 … N-1. Without `with_precision`, log_precision is arbitrary."""


def token_mixer(config: LanguageModelConfig) -> TokenMixer:
    """Return a new mixer for a configuration.

    Raises:
        ValueError: The mixer is not in the installed package.
    """
    home, name = HOMES[config.mixer]
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not home.startswith(error.name):
            raise
        raise ValueError(
            f"the mixer {config.mixer!r} is a system of the papers: {home} is in the repository, "
            "not in the installed package"
        ) from None
    made: TokenMixer = getattr(module, name)(config)
    return made
