"""What every token mixer of the language model shares: its projections, and what it returns."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn

from model.config import LanguageModelConfig


class MixerOutput(NamedTuple):
    """out `[..., d]` after the output projection; log_precision `[..., H]`; latent `[..., H, 2D]` before it."""

    out: Tensor
    log_precision: Tensor
    latent: Tensor


def projection(d_in: int, d_out: int, scale: float = 1.0) -> nn.Linear:
    """Complex projection stored as 2D reals: Rayleigh magnitude, uniform phase = iid normal parts (RFA D.2)."""
    linear = nn.Linear(d_in, d_out, bias=False)
    nn.init.normal_(linear.weight, std=scale / math.sqrt(d_in + d_out / 2))
    return linear


class TokenMixer(nn.Module):
    """The projections d → 2D reals of each head → d, the same for every mixer; output_scale: of the last one."""

    def __init__(self, config: LanguageModelConfig, output_scale: float) -> None:
        super().__init__()
        self.config = config
        width = config.n_heads * 2 * config.head_dim
        self.query = projection(config.d_model, width)
        self.key = projection(config.d_model, width)
        self.value = projection(config.d_model, width)
        self.output = projection(width, config.d_model, output_scale)
