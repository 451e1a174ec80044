"""What every token mixer of the language model shares: its projections, and what it returns."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn


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
