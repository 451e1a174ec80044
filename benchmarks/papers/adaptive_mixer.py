"""Adaptive Filter Attention as a token mixer of the language model: filter, mix with the token's own value, predict.

Source: Racioppo, Attention as an Adaptive Filter, §3 and Algorithm 1 (isotropic); math as in
`rfa.benchmarks.papers.afa.layer`.

    L  = -tau log(V + R²),   v̄_i = Σ_j softmax(L)_ij E_ij e^{i omega (i - j)} v_j
    z̄  = (1 - s) v + s v̄,   s = sigmoid(delta)
    out = W_o e^{-mu + i omega} z̄,   mu = mu_0 alpha²

The prediction is from z̄ as in §3; Algorithm 1 predicts from v̄. The decay has the sign of a stable system. Rotations
and mu_0 are fixed; alpha starts at one, and no head at mu = 0, where alpha² has no slope. Learned is the steady
variance sigma2 / (2 mu) (RFA D.2). Layout `[B, N, H, 2D]`, real half first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.afa.layer import AdaptiveScalars, RationalDynamics, gated, transported
from rfa.model.attention.reference import relative_attention
from rfa.model.dynamics import banded_decay, frequencies, positive, raw_from_positive, rotate, wrapped_phase
from rfa.model.mixing import MixerOutput, TokenMixer
from rfa.runtime.text.config import LanguageModelConfig

# Initial steady process variance, as in `DynamicsParameters`.
PROCESS = 0.1


class AdaptiveDynamics(AdaptiveScalars):
    """Learned decay and noises, fixed frequencies."""

    omega: Tensor
    start: Tensor

    def __init__(self, omega: Tensor, start: Tensor, temperature: float) -> None:
        super().__init__(torch.ones_like(start), temperature)
        self.register_buffer("omega", omega.to(torch.float64), persistent=False)
        self.register_buffer("start", start.to(torch.get_default_dtype()), persistent=False)
        self.process_raw = nn.Parameter(raw_from_positive(torch.full(start.shape, PROCESS)))

    @property
    def mu(self) -> Tensor:
        return self.start * self.alpha.square()

    def forward(self) -> RationalDynamics:
        return self.rational(self.omega, 2 * self.mu * positive(self.process_raw))


class AdaptiveMixer(TokenMixer):
    """See the module's page."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, 1 / math.sqrt(2 * config.n_layers))
        heads, complex_dims = config.n_heads, config.head_dim
        self.dynamics = AdaptiveDynamics(
            frequencies(config.frequencies, heads, complex_dims),
            banded_decay(heads, complex_dims, config.damping, zero_fraction=0.0),
            config.temperature,
        )
        self.delta = nn.Parameter(torch.zeros(heads))

    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """`[B, N, d]` at positions 0 … N-1."""
        dynamics = self.dynamics()
        shape = (*x.shape[:-1], self.config.n_heads, 2 * self.config.head_dim)
        # R² below float32's resolution is lost.
        q, k, v = (weight(x).reshape(shape) for weight in (self.query, self.key, self.value))
        wide = torch.promote_types(v.dtype, torch.float32)
        index = torch.arange(x.shape[1], device=x.device)
        phase = wrapped_phase(dynamics.omega, index, wide)
        q, k, turned = (rotate(part.to(wide), -phase) for part in (q, k, v))
        result = relative_attention(q, k, turned, dynamics, with_precision=with_precision)
        fused = gated(v.to(wide), rotate(result.out, phase), self.delta)
        latent = transported(fused, dynamics, index.new_ones(()))
        log_precision = torch.log(result.precision) if with_precision else torch.zeros_like(result.log_norm)
        return MixerOutput(self.output(latent.flatten(-2)), log_precision, latent)
