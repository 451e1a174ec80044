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
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.rotating_mixer import RotatingMixer
from rfa.model.attention.reference import without_autocast
from rfa.model.dynamics import Dynamics, DynamicsParameters, decay, positive, raw_from_positive, rotate, variance
from rfa.model.mixing import Pairs, head_rates
from rfa.runtime.text.config import LanguageModelConfig, StrictConfig

EPSILON = 1e-6
# Least squared length, for vectors of length zero. Bounds the gradient at zero by 1e6. Not added, because exporters to
# ONNX drop the addition of so small a number.
NO_LENGTH = 1e-12
# Initial noises: V(0) / M² is near 1 / D, so that perfect and average matches differ as in RFA.
PROCESS, MEASUREMENT, FLOOR = 0.01, 0.1, 0.01


def unit(x: Tensor) -> Tensor:
    """Normalise `[..., 2D]` to length one. Zero stays zero, with a finite gradient."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True).clamp_min(NO_LENGTH))


def geodesic(direction: Tensor, tangent: Tensor) -> Tensor:
    """Return exp_u(t) = cos |t| u + sin |t| t / |t| `[..., 2D]`, for unit u and t orthogonal to it (AFA 5.3)."""
    angle = torch.sqrt(tangent.square().sum(-1, keepdim=True).clamp_min(NO_LENGTH))
    return torch.cos(angle) * direction + torch.sin(angle) / angle * tangent


class DirectionalDynamics(DynamicsParameters):
    """Tangential noises of a layer, and the angular noise floor."""

    def __init__(self, config: LanguageModelConfig) -> None:
        rates = head_rates(config)
        super().__init__(*rates, process=PROCESS, measurement=MEASUREMENT, temperature=config.temperature)
        self.floor_raw = nn.Parameter(raw_from_positive(torch.full((config.n_heads,), FLOOR)))

    @property
    def floor(self) -> Tensor:
        return positive(self.floor_raw)


@dataclass(frozen=True)
class RadialOptions(StrictConfig):
    """`geodesic`: the step is exp_v(ū) - v along the sphere (AFA 5.3), instead of ū in the tangent plane."""

    geodesic: bool = False


class RadialTangentialMixer(RotatingMixer):
    """See the module's page."""

    takes_norm = False  # length counts

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, math.sqrt(config.head_dim / (2 * config.n_layers)))
        self.options = RadialOptions.from_dict(config.mixer_options)
        self.dynamics = DirectionalDynamics(config)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project the state to directions of queries and keys, and values of any length."""
        q, k, v = super()._project(x)
        return unit(q), unit(k), v

    def read(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, *, with_precision: bool) -> tuple[Tensor, Tensor]:
        dynamics = self.dynamics()
        magnitude2, is_visible = v.square().sum((-1, -2)), pairs.is_visible[:, None]
        q, k, v = (part.transpose(1, 2) for part in (q, k, unit(v)))
        own = v[:, :, -q.shape[2] :]
        # float32 under autocast too: R² is a difference of nearly equal numbers.
        with without_autocast(q.device):
            angular = self._angular(magnitude2, pairs.lag(q.dtype), dynamics)
            residual2 = (2 - 2 * q @ k.transpose(-1, -2)).clamp_min(0)
            excess, log_precision = residual2 / (angular * dynamics.nu[:, None, None]), -torch.log(angular)
            logits = dynamics.tau[:, None, None] * (log_precision - dynamics.kappa[:, None, None] * torch.log1p(excess))
            mean = torch.softmax(torch.where(is_visible, logits, float("-inf")), dim=-1) @ v
        step = mean - (own * mean).sum(-1, keepdim=True) * own
        if self.options.geodesic:
            step = geodesic(own, step) - own
        latent = rotate(step.transpose(1, 2), self.phase(pairs.queries, q))
        if not with_precision:
            return latent, latent.new_zeros(latent.shape[:-1])
        weighted = torch.where(is_visible, torch.exp(log_precision) / (1 + excess), 0.0)
        return latent, torch.log(weighted.sum(-1)).transpose(1, 2)

    def _angular(self, magnitude2: Tensor, lag: Tensor, dynamics: Dynamics) -> Tensor:
        """Return 1/P of every pair `[B, H, n, M]`, given |v|² of the keys `[B, M]`."""
        spread, kept = (x.transpose(0, 1) for x in (variance(dynamics, lag), decay(dynamics.mu, lag).square()))
        start = (dynamics.eta2 + dynamics.gamma2)[:, None, None]
        own = start / (magnitude2[:, None, -lag.shape[1] :, None] + EPSILON)
        carried = spread / (magnitude2[:, None, None] * kept + EPSILON)
        return own + carried + self.dynamics.floor[:, None, None]
