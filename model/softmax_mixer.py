"""Causal dot-product attention: baselines of Robust Filter Attention with the same projections (RFA E.2).

    B1  RoPE           score = Re(q̃† k̃) / √(2D), every head with the frequencies 10000^{-n/D}, n = 0 … D-1
    B2  ALiBi          score = q · k / √(2D) - slope_h lag, slope_h = 2^{-8h/H}, h = 1 … H
    B3  decayed RoPE   score = E_h(lag) Re(q̃† k̃) / √(2D), with the decays of SC-RFA
    B4  SC-RoPE        as B3, with the banded frequencies of SC-RFA

Layout `[B, N, H, 2D]`, real parts first. Values are not rotated.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rfa.model.dynamics import banded_decay, banded_frequencies, decay, no_frequencies, rotate, wrapped_phase
from rfa.model.mixing import MixerOutput, TokenMixer
from rfa.runtime.text.config import LanguageModelConfig


def rotary_frequencies(n_heads: int, complex_dims: int, base: float = 10000.0) -> Tensor:
    """Return RoPE frequencies base^{-n/D} of every head, `[H, D]`."""
    return (base ** (-torch.arange(complex_dims, dtype=torch.float64) / complex_dims)).repeat(n_heads, 1)


def alibi_slopes(n_heads: int) -> Tensor:
    """Return 2^{-8h/H}, h = 1 … H, `[H]` (Press et al. 2022)."""
    return 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads)


class SoftmaxMixer(TokenMixer):
    """Dot-product attention with the positional bias of the configuration."""

    omega: Tensor
    slope: Tensor
    mu: Tensor

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, 1 / math.sqrt(2 * config.n_layers))
        heads, complex_dims = config.n_heads, config.head_dim
        banks = {"full": rotary_frequencies, "banded": banded_frequencies, "none": no_frequencies}
        self.register_buffer("omega", banks[config.frequencies](heads, complex_dims), persistent=False)
        self.register_buffer("slope", alibi_slopes(heads), persistent=False)
        mu = banded_decay(heads, complex_dims, config.damping, config.zero_decay_fraction)
        self.register_buffer("mu", mu.to(torch.get_default_dtype()), persistent=False)

    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """Return `[B, N, d]`. log_precision is zero, because dot products have no evidence."""
        batch, length, _ = x.shape
        shape = (batch, length, self.config.n_heads, 2 * self.config.head_dim)
        phase = wrapped_phase(self.omega, torch.arange(length, device=x.device), torch.float32)
        query, key = self.query(x).reshape(shape), self.key(x).reshape(shape)
        v = self.value(x).reshape(shape)
        q, k = (rotate(part.float(), phase).to(v.dtype) for part in (query, key))
        out = self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        latent = out.transpose(1, 2)
        return MixerOutput(self.output(latent.flatten(-2)), latent.new_zeros(shape[:3]), latent)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with queries, keys and values `[B, H, N, 2D]`, positions encoded in q and k."""
        if self.config.distance_bias == "none":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        index = torch.arange(q.shape[2], device=q.device)
        lag = index[:, None] - index
        if self.config.distance_bias == "alibi":
            bias = torch.where(lag >= 0, -self.slope[:, None, None] * lag, float("-inf"))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        scale = decay(self.mu, lag.clamp_min(0)) / math.sqrt(q.shape[-1])
        scores = torch.where(lag >= 0, (q @ k.transpose(-1, -2)).float() * scale, float("-inf"))
        return torch.softmax(scores, dim=-1).to(v.dtype) @ v
