"""Kalman-IRLS as passes of one RFA layer with shared parameters, damping, and a gate between estimate and prediction.

Source: Racioppo, Robust Filter Attention, C.3; Attention as an Adaptive Filter, 2.4 and 3.1. In pass k of K, with v̄
the RFA estimate of the values v of the state x:

    e = (1 - s) v + s v̄,   s = sigmoid(delta)
    p = e^{-mu + i omega} e,   x ← x + W_o ((1 - g_k) e + g_k p),   g_k = sigmoid(gate_k)

Queries, keys and values of each pass are those of the current state, so the residuals and weights are recomputed;
`W_o W_v ≈ 1` makes the step (1 - s) z + s z̄ of the papers. The projections are shared by the passes, the gates are
not. Layout `[B, N, H, 2D]`, real half first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.afa.layer import gated, transported
from rfa.model.attention.reference import relative_attention, without_autocast
from rfa.model.dynamics import DynamicsParameters, rotate, wrapped_phase
from rfa.model.mixing import MixerOutput, ModeNorm, TokenMixer, head_rates
from rfa.runtime.text.config import LanguageModelConfig, StrictConfig


@dataclass(frozen=True)
class StackedOptions(StrictConfig):
    """Options of `StackedMixer`.

    Attributes:
        passes: Number of passes K.
        gated: Whether each pass mixes its estimate with the one-step prediction. Otherwise, it returns the estimate.
    """

    passes: int = 2
    gated: bool = True

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise ValueError(f"passes must be >= 1, got {self.passes}")


class StackedMixer(TokenMixer):
    """See the module's page."""

    takes_norm = False  # every pass normalises its own input

    def __init__(self, config: LanguageModelConfig) -> None:
        options = StackedOptions.from_dict(config.mixer_options)
        super().__init__(config, 1 / math.sqrt(2 * config.n_layers * options.passes))
        self.options = options
        heads = config.n_heads
        self.dynamics = DynamicsParameters(*head_rates(config), temperature=config.temperature)
        self.norm = ModeNorm(config.d_model, is_own=False)
        self.delta = nn.Parameter(torch.full((heads,), 2.0))
        if self.options.gated:
            self.gate = nn.Parameter(torch.full((self.options.passes, heads), -2.0))

    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """Return what the passes add to the state `[B, N, d]`. latent and log_precision are of the last one."""
        dynamics, state = self.dynamics(), x
        index = torch.arange(x.shape[1], device=x.device)
        for i in range(self.options.passes):
            q, k, v = self._project(self.norm(state))
            phase = wrapped_phase(dynamics.omega, index, v.dtype)
            with without_autocast(x.device):
                turned = (rotate(q, -phase), rotate(k, -phase), rotate(v, -phase))
                result = relative_attention(*turned, dynamics, with_precision=with_precision)
                latent = gated(v, rotate(result.out, phase), self.delta)
                if self.options.gated:
                    latent = gated(latent, transported(latent, dynamics, index.new_ones(())), self.gate[i])
            state = state + self.output(latent.flatten(-2))
        log_precision = torch.log(result.precision) if with_precision else torch.zeros_like(result.log_norm)
        return MixerOutput(state - x, log_precision, latent)
