"""Unrolled AFA as printed: one filtered value per head, queries and keys recomputed from it in each pass.

Source: Racioppo, Attention as an Adaptive Filter, Algorithm 4. In the rotating frame, with E = e^{-mu}, for token i
with value z_i, and the state (m, p) after the token before:

    m ← E m                      p ← 1 / (E² / p + sigma2)
    K times:  y = z_i - m,       w = 1 / (1 + (p + 1/V) |y|²),   V = sigma2 phi(1) + eta2 E² + gamma2
              p ← p + exp(tau w) / V,      m ← m + sigmoid(delta) w y / (p V)

Before the first token m = z_1 and p = 1/V. As printed the weight is of the value's innovation, so that the recomputed
queries and keys q(m), k(m) have no effect (`innovation` "value"); with "key" y in w is z_q - k(m). exp(tau w) is at
least 1: an outlier too makes the state surer. Each pass counts the measurement again. The loop over tokens is
sequential; nothing here is fused. Layout `[B, N, H, 2D]`, real half first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.adaptive_mixer import AdaptiveDynamics
from rfa.model.attention.reference import without_autocast
from rfa.model.dynamics import Dynamics, decay, rotate, variance, wrapped_phase
from rfa.model.mixing import MixerOutput, TokenMixer
from rfa.runtime.text.config import INNOVATIONS, LanguageModelConfig, StrictConfig, check_choice


@dataclass(frozen=True)
class UnrolledOptions(StrictConfig):
    """`passes` K, and the innovation of the weight."""

    passes: int = 1
    innovation: Literal["value", "key"] = "value"

    def __post_init__(self) -> None:
        check_choice("innovation", self.innovation, INNOVATIONS)
        if self.passes < 1:
            raise ValueError(f"passes must be >= 1, got {self.passes}")


def unroll(
    v: Tensor, dynamics: Dynamics, share: Tensor, passes: int, off: Callable[[int, Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Filter rotated values `[B, N, H, 2D]` and return means of that shape and precisions `[B, N, H]`.

    Args:
        share: sigmoid(delta), `[H]`.
        off: Innovation of the weight, given the token's index and the mean. Default: that of the value.
    """
    one = v.new_ones(())
    kept, noise = decay(dynamics.mu, one), variance(dynamics, one)  # [H]
    mean, precision = v[:, 0], (1 / noise).expand(v.shape[0], -1)
    means, precisions = [], []
    for i in range(v.shape[1]):
        mean, precision = kept[:, None] * mean, 1 / (kept.square() / precision + dynamics.sigma2)
        for _ in range(passes):
            innovation = v[:, i] - mean
            weighed = innovation if off is None else off(i, mean)
            weight = 1 / (1 + (precision + 1 / noise) * weighed.square().sum(-1))
            precision = precision + torch.exp(dynamics.tau * weight) / noise
            mean = mean + (share * weight / (precision * noise))[..., None] * innovation
        means.append(mean)
        precisions.append(precision)
    return torch.stack(means, 1), torch.stack(precisions, 1)


class UnrolledMixer(TokenMixer):
    """See the module's page."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        self.options = UnrolledOptions.from_dict(config.mixer_options)
        self.dynamics = AdaptiveDynamics(config)
        self.delta = nn.Parameter(torch.zeros(config.n_heads))
        # k(m): from the value's space of a head to that of its queries and keys.
        self.value_key = nn.Parameter(torch.eye(2 * config.head_dim).repeat(config.n_heads, 1, 1))

    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """Filter a sequence `[B, N, d]` token by token."""
        dynamics = self.dynamics()
        q, _, v = self._project(x)
        phase = wrapped_phase(dynamics.omega, torch.arange(x.shape[1], device=x.device), v.dtype)

        def off(i: int, mean: Tensor) -> Tensor:
            return q[:, i] - torch.einsum("bhw,huw->bhu", rotate(mean, phase[i]), self.value_key)

        with without_autocast(x.device):
            is_key = self.options.innovation == "key"
            share = torch.sigmoid(self.delta)
            means, precisions = unroll(rotate(v, -phase), dynamics, share, self.options.passes, off if is_key else None)
        latent = rotate(means, phase)
        return MixerOutput(self.output(latent.flatten(-2)), torch.log(precisions), latent)
