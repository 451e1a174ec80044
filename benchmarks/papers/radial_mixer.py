"""Radial-tangential Robust Filter Attention, the token mixer of the RT-Transformer: estimates of directions.

Source: Racioppo, RT-Transformer, eqs. 10 to 18, D.1, D.3 and Algorithms 1 and 2. V, E and kappa as in
`rfa.model.dynamics`. Layout `[B, N, H, 2D]`, real half first; memory is O(N²).

    M_i = |v_i| over all heads;   q, k, v of every head to unit length
    1 / P_ij = V(0) / (M_i² + eps) + V(lag) / (M_j² E² + eps) + floor,   lag = i - j
    R²_ij = 2 - 2 Re(q̃_i† k̃_j),   L = tau (log P - kappa log(1 + P R² / nu))
    v̄_i = e^{i omega t_i} Σ_j softmax(L)_ij ṽ_j          directions do not decay: no E after the softmax
    ū_i = v̄_i - Re(v_i† v̄_i) v_i                         the step in the tangent plane of the token's own direction
    z⁺ = z + W_o ū,   then FFN(Norm(z⁺))                  `Block`

Choices where the paper is open: z itself is the input (Algorithm 2), so that magnitude carries the confidence; unit
length is per head; eps is that of eq. 10; the angular noise floor is learned, one per head; the step size r of eq. 18
is in W_o, which starts √D times as large, because |z_h|² ~ D (§3.5).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rfa.model.attention.reference import without_autocast
from rfa.model.dynamics import (
    Dynamics,
    DynamicsParameters,
    banded_decay,
    decay,
    frequencies,
    positive,
    raw_from_positive,
    rotate,
    variance,
    wrapped_phase,
)
from rfa.model.mixing import MixerOutput, TokenMixer
from rfa.runtime.text.config import LanguageModelConfig

EPSILON = 1e-6
# Added to squared lengths, for vectors of length zero. Bounds the gradient at zero by 1e6.
NO_LENGTH = 1e-12
# Initial noises: V(0) / M² is near 1 / D, so that perfect and average matches differ as in RFA.
PROCESS, MEASUREMENT, FLOOR = 0.01, 0.1, 0.01


def unit(x: Tensor) -> Tensor:
    """Normalise `[..., 2D]` to length one. Zero stays zero, with a finite gradient."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NO_LENGTH)


class DirectionalDynamics(DynamicsParameters):
    """Tangential noises of a layer, and the angular noise floor."""

    def __init__(self, omega: Tensor, mu: Tensor, temperature: float) -> None:
        super().__init__(omega, mu, process=PROCESS, measurement=MEASUREMENT, temperature=temperature)
        self.floor_raw = nn.Parameter(raw_from_positive(torch.full((omega.shape[0],), FLOOR)))

    @property
    def floor(self) -> Tensor:
        return positive(self.floor_raw)


class RadialTangentialMixer(TokenMixer):
    """See the module's page."""

    takes_norm = False  # length counts

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, math.sqrt(config.head_dim / (2 * config.n_layers)))
        heads, complex_dims = config.n_heads, config.head_dim
        self.dynamics = DirectionalDynamics(
            frequencies(config.frequencies, heads, complex_dims),
            banded_decay(heads, complex_dims, config.damping, config.zero_decay_fraction),
            config.temperature,
        )

    def attention(self, x: Tensor, *, with_precision: bool) -> MixerOutput:
        """Return the tangent step of tokens `[B, N, d]` at positions 0 … N-1. x is the state, not its norm."""
        dynamics = self.dynamics()
        shape = (*x.shape[:-1], self.config.n_heads, 2 * self.config.head_dim)
        q, k, v = (weight(x).reshape(shape) for weight in (self.query, self.key, self.value))
        wide = torch.promote_types(v.dtype, torch.float32)
        magnitude2 = v.to(wide).square().sum((-1, -2))
        index = torch.arange(x.shape[1], device=x.device)
        phase = wrapped_phase(dynamics.omega, index, wide)
        q, k, v = (rotate(unit(part.to(wide)), -phase).transpose(1, 2) for part in (q, k, v))
        # float32 under autocast too: R² is a difference of nearly equal numbers.
        with without_autocast(x.device):
            excess, log_precision = self._pairs(q @ k.transpose(-1, -2), magnitude2, dynamics)
            logits = dynamics.tau[:, None, None] * (log_precision - dynamics.kappa[:, None, None] * torch.log1p(excess))
            is_causal = index[:, None] >= index
            mean = torch.softmax(torch.where(is_causal, logits, float("-inf")), dim=-1) @ v
        tangent = mean - (v * mean).sum(-1, keepdim=True) * v
        latent = rotate(tangent.transpose(1, 2), phase)
        evidence = latent.new_zeros(shape[:-1])
        if with_precision:
            weighted = torch.where(is_causal, torch.exp(log_precision) / (1 + excess), 0.0)
            evidence = torch.log(weighted.sum(-1)).transpose(1, 2)
        return MixerOutput(self.output(latent.flatten(-2)), evidence, latent)

    def _pairs(self, dot: Tensor, magnitude2: Tensor, dynamics: Dynamics) -> tuple[Tensor, Tensor]:
        """Return P R² / nu and log P of every pair `[B, H, N, N]`, given Re(q̃† k̃) of unit vectors and |v|² `[B,
        N]`.
        """
        index = torch.arange(dot.shape[-1], device=dot.device)
        lag = (index[:, None] - index).clamp_min(0)
        spread = variance(dynamics, index.to(dot.dtype))  # [H, N]
        kept = decay(dynamics.mu, index.to(dot.dtype)).square()
        own = spread[:, 0][:, None] / (magnitude2[:, None] + EPSILON)  # [B, H, N]
        carried = spread[:, lag] / (magnitude2[:, None, None] * kept[:, lag] + EPSILON)
        angular = own[..., None] + carried + self.dynamics.floor[:, None, None]
        residual2 = (2 - 2 * dot).clamp_min(0)
        return residual2 / (angular * dynamics.nu[:, None, None]), -torch.log(angular)
