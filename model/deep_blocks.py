"""Blocks of the deep filter. They apply RFA to the tokens of a stream, as attention or as a recurrence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rfa.model.attention.reference import attend
from rfa.model.dynamics import DynamicsParameters, banded_frequencies, rotate, wrapped_phase
from rfa.model.recurrence.irkf_reference import irkf_loop
from rfa.runtime.text.config import StrictConfig


class Mixed(NamedTuple):
    """Output of a block and state of its recurrence.

    Attributes:
        out: Output, `[..., d]`.
        mean: Mean of the state, `[..., H, 2D]`.
        precision: Precision of the state, `[..., H]`.
    """

    out: Tensor
    mean: Tensor
    precision: Tensor


@dataclass(frozen=True)
class DeepFilterConfig(StrictConfig):
    """Sizes of a deep filter.

    Attributes:
        observation_size: Number of components of an observation.
        n_modes: Number of conjugate pairs of eigenvalues of the drift.
        d_model: Width of the blocks.
        n_layers: Number of blocks.
        n_heads: Number of heads per block.
        head_dim: Number of complex dimensions per head.
        mlp_ratio: Width of the feed-forward layers, as a multiple of `d_model`.
        inner: Number of reweighting passes.
        time_unit: Median time step of the training data, in the time unit of the data.
        memory: Decay times of the fastest and the slowest head, in units of `time_unit`.
    """

    observation_size: int
    n_modes: int = 1
    d_model: int = 32
    n_layers: int = 2
    n_heads: int = 4
    head_dim: int = 4
    mlp_ratio: int = 2
    inner: int = 1
    time_unit: float = 1.0
    memory: tuple[float, float] = (4.0, 256.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", tuple(self.memory))
        for name in ("observation_size", "n_modes", "d_model", "n_layers", "n_heads", "head_dim", "mlp_ratio", "inner"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, because frequencies form conjugate pairs, got {self.head_dim}")
        if not (self.time_unit > 0 and math.isfinite(self.time_unit)):
            raise ValueError(f"time_unit must be positive, got {self.time_unit}")
        if len(self.memory) != 2 or not 0 < self.memory[0] <= self.memory[1]:
            raise ValueError(f"memory must be two positive numbers in non-decreasing order, got {self.memory}")


class FilterBlock(nn.Module):
    """Pre-norm block that consists of RFA over tokens and a feed-forward layer."""

    def __init__(self, config: DeepFilterConfig) -> None:
        super().__init__()
        self.config = config
        heads, dims, width = config.n_heads, config.head_dim, config.n_heads * 2 * config.head_dim
        self.norm = nn.LayerNorm(config.d_model)
        self.query = nn.Linear(config.d_model, width, bias=False)
        self.key = nn.Linear(config.d_model, width, bias=False)
        self.value = nn.Linear(config.d_model, width)
        self.mix = nn.Linear(width, config.d_model)
        fastest, slowest = config.memory
        rates = torch.exp(torch.linspace(-math.log(slowest), -math.log(fastest), heads))
        frequencies = banded_frequencies(heads, dims) * rates[:, None]
        self.dynamics = DynamicsParameters(frequencies, rates, process=0.02)
        hidden = config.mlp_ratio * config.d_model
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(config.d_model),
            nn.Linear(config.d_model, hidden),
            nn.GELU(),
            nn.Linear(hidden, config.d_model),
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values `[..., H, 2D]` of tokens `[..., d]`."""
        normed = self.norm(x)
        shape = (*x.shape[:-1], self.config.n_heads, 2 * self.config.head_dim)
        return self.query(normed).reshape(shape), self.key(normed).reshape(shape), self.value(normed).reshape(shape)

    def finish(self, x: Tensor, mean: Tensor, precision: Tensor) -> Mixed:
        x = x + self.mix(mean.flatten(-2))
        return Mixed(x + self.feed_forward(x), mean, precision)

    def recurrent(self, x: Tensor, elapsed: Tensor, mean: Tensor, precision: Tensor) -> Mixed:
        """Run the IRKF over tokens, and return the outputs and the states after each token.

        Args:
            x: Tokens, `[B, N, d]`.
            elapsed: Time since the initial state, `[B, N]` float64.
            mean, precision: Initial state, `[B, H, 2D]` and `[B, H]`.
        """
        dynamics = self.dynamics()
        value = self.value(self.norm(x)).reshape(*x.shape[:-1], self.config.n_heads, -1)
        seen = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        one = torch.ones((), dtype=x.dtype, device=x.device)
        means, precisions = irkf_loop(
            value, elapsed, seen, mean, precision, dynamics, inner=self.config.inner, rule="capped", delta=one
        )
        return self.finish(x, means, precisions)

    def attention(self, x: Tensor, times: Tensor) -> Mixed:
        """Apply exact RFA to a sequence `[B, N, d]`, and return the output of the block. `times` is `[B, N]`
        float64."""
        dynamics = self.dynamics()
        q, k, v = self.project(x)
        phase = wrapped_phase(dynamics.omega, times, x.dtype)
        turned_q, turned_k, turned_v = (rotate(part, -phase) for part in (q, k, v))
        result = attend(turned_q, turned_k, turned_v, dynamics, query_times=times, key_times=times)
        return self.finish(x, rotate(result.out, phase), result.precision)

    def attend_cached(
        self, x: Tensor, keys: Tensor, values: Tensor, lag: Tensor, valid: Tensor
    ) -> tuple[Mixed, Tensor, Tensor]:
        """Attend from one token to cached rows. Return its output, and its key and value for the cache.

        Args:
            x: Token, `[B, d]`.
            keys, values: Cached rows, `[B, C, H, 2D]`.
            lag: Time from each cached row to the token, `[B, C]`.
            valid: Whether each row is valid, `[B, C]`.
        """
        dynamics = self.dynamics()
        q, k, v = (part[:, None] for part in self.project(x))
        own = lag.new_zeros(lag.shape[0], 1)
        lags = torch.cat([lag * valid, own], dim=1).to(torch.float64)
        # In the frame of the query, a key at lag tau is rotated by omega tau.
        phase = wrapped_phase(dynamics.omega, lags, x.dtype)
        result = attend(
            q,
            rotate(torch.cat([keys, k], dim=1), phase),
            rotate(torch.cat([values, v], dim=1), phase),
            dynamics,
            query_times=own.to(torch.float64),
            key_times=-lags,
            key_valid=torch.cat([valid, torch.ones_like(own)], dim=1) > 0,
        )
        return self.finish(x, result.out[:, 0], result.precision[:, 0]), k[:, 0], v[:, 0]
