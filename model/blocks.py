"""Blocks of the language model: a mixer and a feed-forward layer."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from rfa.model.mixing import ModeNorm, projection, token_mixer
from rfa.runtime.text.config import LanguageModelConfig, Mode


class FeedForward(nn.Module):
    """Feed-forward layer, which consists of two linear layers with GELU between them. Its widths are d → mlp_ratio · d
    → d."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        inner = config.mlp_ratio * config.d_model
        self.up = projection(config.d_model, inner)
        self.down = projection(inner, config.d_model, 1 / math.sqrt(2 * config.n_layers))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """Pre-norm residual block of a mixer and the feed-forward layer."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        mixer = token_mixer(config)
        self.mixer_norm = ModeNorm(config.d_model, is_own=config.own_readout) if mixer.takes_norm else nn.Identity()
        self.mixer = mixer
        norm = ModeNorm(config.d_model, is_own=config.own_readout) if mixer.is_residual else nn.Identity()
        self.feed_forward_norm = norm
        self.feed_forward = FeedForward(config)

    def finish(self, x: Tensor, mixed: Tensor, mode: Mode) -> Tensor:
        """Add the output of the mixer to the residual stream, apply the feed-forward layer, and return the new residual
        stream."""
        if not self.mixer.is_residual:
            out: Tensor = x + self.feed_forward(mixed)
            return out
        x = x + mixed
        out = x + self.feed_forward(self.feed_forward_norm(x, mode))
        return out
