"""Token mixers of the language model: shared projections, outputs and their registry."""

from __future__ import annotations

import math
from abc import abstractmethod
from importlib import import_module
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfa.runtime.text.config import LanguageModelConfig, Mixer, Mode

# mixer → its class, imported on use: the papers' other systems are not part of the installed package.
HOMES: dict[Mixer, tuple[str, str]] = {
    "rfa": ("rfa.model.layers", "RobustMixer"),
    "softmax": ("rfa.model.softmax_mixer", "SoftmaxMixer"),
    "afa": ("rfa.benchmarks.papers.adaptive_mixer", "AdaptiveMixer"),
    "radial_tangential": ("rfa.benchmarks.papers.radial_mixer", "RadialTangentialMixer"),
}


class MixerOutput(NamedTuple):
    """out `[..., d]` after the output projection; log_precision `[..., H]`; latent `[..., H, 2D]` before it."""

    out: Tensor
    log_precision: Tensor
    latent: Tensor


class ModeLinear(nn.Linear):
    """A projection without bias with one matrix for both modes, or one for each."""

    def __init__(self, d_in: int, d_out: int, scale: float = 1.0, *, is_own: bool) -> None:
        super().__init__(d_in, d_out, bias=False)
        _draw(self.weight, scale)
        if is_own:
            self.recurrent_weight = nn.Parameter(torch.empty_like(self.weight))
            _draw(self.recurrent_weight, scale)

    def of(self, mode: Mode) -> Tensor:
        """Matrix `[d_out, d_in]` of a mode."""
        return _weight_of(self, mode)

    def forward(self, x: Tensor, mode: Mode = "attention") -> Tensor:
        return F.linear(x, self.of(mode))


class ModeNorm(nn.RMSNorm):
    """An RMS norm with gains for both modes, or for each."""

    def __init__(self, width: int, *, is_own: bool) -> None:
        super().__init__(width, eps=1e-6)
        if is_own:
            self.recurrent_weight = nn.Parameter(torch.ones(width))

    def of(self, mode: Mode) -> Tensor:
        """Gains `[d]` of a mode."""
        return _weight_of(self, mode)

    def forward(self, x: Tensor, mode: Mode = "attention") -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.of(mode), self.eps)


def _weight_of(layer: ModeLinear | ModeNorm, mode: Mode) -> Tensor:
    return layer.recurrent_weight if mode == "recurrent" and hasattr(layer, "recurrent_weight") else layer.weight


def projection(d_in: int, d_out: int, scale: float = 1.0) -> nn.Linear:
    """A projection without bias, initialised as those of the mixers."""
    linear = nn.Linear(d_in, d_out, bias=False)
    _draw(linear.weight, scale)
    return linear


def _draw(weight: Tensor, scale: float) -> None:
    """Complex projection as 2D reals: Rayleigh magnitude and uniform phase are iid normal parts (RFA D.2)."""
    d_out, d_in = weight.shape
    nn.init.normal_(weight, std=scale / math.sqrt(d_in + d_out / 2))


class TokenMixer(nn.Module):
    """Projections d → 2D reals of each head → d; output_scale: of the last one."""

    # Whether a block passes the normalised state or the state itself.
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
        """Mix a sequence `[B, N, d]` at positions 0 … N-1; without `with_precision` log_precision is arbitrary."""


def token_mixer(config: LanguageModelConfig) -> TokenMixer:
    """A new mixer for a config.

    Raises:
        ValueError: the mixer is part of a checkout, not of the installed package.
    """
    home, name = HOMES[config.mixer]
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not home.startswith(error.name):
            raise
        raise ValueError(
            f"the mixer {config.mixer!r} is a system of the papers, in {home}: that comes with a checkout of the "
            "repository, not with the installed package"
        ) from None
    made: TokenMixer = getattr(module, name)(config)
    return made
