"""Adaptive Filter Attention as a token mixer of the language model: filter, mix with the token's own value, predict.

Source: Racioppo, Attention as an Adaptive Filter, §3 and Algorithm 1 (isotropic); math as in
`rfa.benchmarks.papers.afa.layer`.

    L  = -tau log(V + R²),   v̄_i = Σ_j softmax(L)_ij E_ij e^{i omega (i - j)} v_j
    z̄  = (1 - s) v + s v̄,   s = sigmoid(delta)
    out = W_o e^{-mu + i omega} z̄,   mu = mu_0 alpha²

The prediction is from z̄ as in §3; Algorithm 1 predicts from v̄. The decay has the sign of a stable system. Rotations
and mu_0 are fixed; alpha starts at one, and no head at mu = 0, where the derivative of alpha² is zero. Learned is the
steady variance sigma2 / (2 mu) (RFA D.2). Layout `[B, N, H, 2D]`, real half first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.afa.layer import AdaptiveScalars, RationalDynamics, gated
from rfa.benchmarks.papers.rotating_mixer import RotatingMixer
from rfa.model.attention.reference import attend
from rfa.model.dynamics import decay, positive, raw_from_positive, rotate
from rfa.model.mixing import Pairs, head_rates
from rfa.runtime.text.config import LanguageModelConfig

# Initial steady process variance, as in `DynamicsParameters`.
PROCESS = 0.1


class AdaptiveDynamics(AdaptiveScalars):
    """Learned decay and noises, fixed frequencies."""

    omega: Tensor
    start: Tensor

    def __init__(self, config: LanguageModelConfig) -> None:
        omega, start = head_rates(config, zero_fraction=0.0)
        super().__init__(torch.ones_like(start), config.temperature)
        self.register_buffer("omega", omega.to(torch.float64), persistent=False)
        self.register_buffer("start", start.to(torch.get_default_dtype()), persistent=False)
        self.process_raw = nn.Parameter(raw_from_positive(torch.full(start.shape, PROCESS)))

    @property
    def mu(self) -> Tensor:
        return self.start * self.alpha.square()

    def forward(self) -> RationalDynamics:
        return self.rational(self.omega, 2 * self.mu * positive(self.process_raw))


class AdaptiveMixer(RotatingMixer):
    """See the module's page."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        if config.mixer_options:
            raise ValueError(f"the mixer afa has no options, got {sorted(config.mixer_options)}")
        self.dynamics = AdaptiveDynamics(config)
        self.delta = nn.Parameter(torch.zeros(config.n_heads))

    def read(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, *, with_precision: bool) -> tuple[Tensor, Tensor]:
        dynamics = self.dynamics()
        queries, keys = pairs.queries.double(), pairs.keys.double()
        result = attend(q, k, v, dynamics, query_times=queries, key_times=keys, key_valid=pairs.key_valid)
        fused = gated(v[:, -q.shape[1] :], result.out, self.delta)
        # One step ahead, from the rotating frame.
        ahead = rotate(fused, self.phase(pairs.queries + 1, fused))
        latent = decay(dynamics.mu, ahead.new_ones(()))[:, None] * ahead
        return latent, torch.log(result.precision)
