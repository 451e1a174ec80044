"""Causal dot-product attention. These baselines have the same projections as Robust Filter Attention (RFA E.2).

    B1  RoPE           score = Re(q̃† k̃) / √(2D), every head with the frequencies 10000^{-n/D}, n = 0 … D-1
    B2  ALiBi          score = q · k / √(2D) - slope_h lag, slope_h = 2^{-8h/H}, h = 1 … H
    B3  decayed RoPE   score = E_h(lag) Re(q̃† k̃) / √(2D), with the decays of SC-RFA
    B4  SC-RoPE        as B3, with the banded frequencies of SC-RFA

The layout is `[B, N, H, 2D]`, real parts first. Values are not rotated.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.model.attention.reference import without_autocast
from rfa.model.dynamics import banded_decay, banded_frequencies, decay, no_frequencies, rotate, wrapped_phase
from rfa.model.mixing import PairMixer, Pairs
from rfa.runtime.text.config import LanguageModelConfig


def rotary_frequencies(n_heads: int, complex_dims: int, base: float = 10000.0) -> Tensor:
    """Return the RoPE frequencies base^{-n/D} of every head, `[H, D]`."""
    return (base ** (-torch.arange(complex_dims, dtype=torch.float64) / complex_dims)).repeat(n_heads, 1)


def alibi_slopes(n_heads: int) -> Tensor:
    """Return the slopes 2^{-8h/H}, h = 1 … H, `[H]` (Press et al. 2022)."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, dtype=torch.float64) / n_heads)


class SoftmaxMixer(PairMixer):
    """Dot-product attention with the positional bias of the configuration. No evidence is computed, so log_precision is
    0."""

    omega: Tensor
    slope: Tensor
    mu: Tensor

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        heads, complex_dims = config.n_heads, config.head_dim
        banks = {"full": rotary_frequencies, "banded": banded_frequencies, "none": no_frequencies}
        self.register_buffer("omega", banks[config.frequencies](heads, complex_dims), persistent=False)
        self.register_buffer("slope", alibi_slopes(heads), persistent=False)
        mu = banded_decay(heads, complex_dims, config.damping, config.zero_decay_fraction)
        self.register_buffer("mu", mu.to(torch.get_default_dtype()), persistent=False)

    def rows(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._project(x)
        phase = wrapped_phase(self.omega, positions, v.dtype)
        return rotate(q, phase), rotate(k, phase), v

    def read(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, *, with_precision: bool) -> tuple[Tensor, Tensor]:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        latent = self._attend(q, k, v, pairs).transpose(1, 2)
        return latent, latent.new_zeros(latent.shape[:-1])

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs) -> Tensor:
        """Return the result of attention with queries, keys and values `[B, H, n or M, 2D]`. q and k already include
        the positions."""
        if self.config.distance_bias == "none" and pairs.key_valid is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with without_autocast(q.device):
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        lag = pairs.lag(scores.dtype)
        if self.config.distance_bias == "alibi":
            scores = scores - self.slope.to(lag.dtype)[:, None, None] * lag[:, None]
        elif self.config.distance_bias == "decay":
            scores = scores * decay(self.mu, lag).transpose(0, 1)
        with without_autocast(q.device):
            return torch.softmax(scores.masked_fill(~pairs.is_visible[:, None], float("-inf")), dim=-1) @ v
