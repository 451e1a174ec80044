"""Separate estimates of magnitude and direction: radial-tangential IRLS, and the AFA Transformer.

Source: Racioppo, Attention as an Adaptive Filter, 5.3 to 5.5, Algorithms 2 and 3. In the rotating frame, with u the
direction of the token's own value, m its length, and · the real inner product of 2D reals:

    R²_r = (u_i·q_i - E u_i·k_j)²,   R²_t = |q_i - E k_j|² - R²_r
    A_r  = softmax_j(-tau_r log(V_r + R²_r)),   A_t = softmax_j(-tau_t log(V_t + R²_t))
    m̄ = u_i·Σ_j A_r E v_j,   t̄ = Σ_j A_t E v_j less its part along u_i
    z̄ = m̄ exp_u(t̄ / m),   or with `geodesic` false m̄ (u + t̄ / m) / |u + t̄ / m|              Algorithm 2

    m̂ = AFA(|q|, |k|, |v|),   Û = AFA(q / |q|, k / |k|, v / |v|),   z̄ = m̂ (u + Û) / |u + Û|      Algorithm 3

Algorithm 2 splits each key and value along its own direction, in a frame that does not rotate; then the tangential
values are zero but for the frame. Here all are split along the query's direction, as in 5.3. The output is mixed with
the value and predicted one step ahead as in Algorithm 1. In Algorithm 3 the feed-forward layer takes the output alone.
Layout `[B, N, H, 2D]`, real half first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.adaptive_mixer import AdaptiveDynamics
from rfa.benchmarks.papers.afa.layer import gated
from rfa.benchmarks.papers.radial_mixer import geodesic, unit
from rfa.benchmarks.papers.rotating_mixer import RotatingMixer
from rfa.model.attention.reference import without_autocast
from rfa.model.dynamics import Dynamics, decay, rotate, variance, wrapped_phase
from rfa.model.mixing import Pairs
from rfa.runtime.text.config import LanguageModelConfig, StrictConfig, check_choice

ALGORITHMS = ("irls", "transformer")


@dataclass(frozen=True)
class PolarOptions(StrictConfig):
    """`algorithm`: "irls" is Algorithm 2, "transformer" Algorithm 3. `geodesic`: see the module's page."""

    algorithm: Literal["irls", "transformer"] = "irls"
    geodesic: bool = True

    def __post_init__(self) -> None:
        check_choice("algorithm", self.algorithm, ALGORITHMS)


def along(direction: Tensor, x: Tensor) -> Tensor:
    """Return u·x `[..., 1]`."""
    return (direction * x).sum(-1, keepdim=True)


def move(direction: Tensor, tangent: Tensor, *, is_geodesic: bool) -> Tensor:
    """Return the unit vector a tangent step from u: exp_u(t), or (u + t) / |u + t|."""
    return geodesic(direction, tangent) if is_geodesic else unit(direction + tangent)


def mean_of(residual2: Tensor, v: Tensor, dynamics: Dynamics, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return Σ_j softmax(-tau log(V + R²)) E v_j `[B, H, n, W]`, and the evidence Σ_j 1 / (V + R²) `[B, H, n]`."""
    lag, is_visible = pairs.lag(v.dtype), pairs.is_visible[:, None]
    spread = variance(dynamics, lag).transpose(0, 1) + residual2.clamp_min(0)
    logits = torch.where(is_visible, -dynamics.tau[:, None, None] * torch.log(spread), float("-inf"))
    mean = (torch.softmax(logits, dim=-1) * decay(dynamics.mu, lag).transpose(0, 1)) @ v
    return mean, torch.where(is_visible, 1 / spread, 0.0).sum(-1)


def distance2(q: Tensor, k: Tensor, kept: Tensor) -> Tensor:
    """Return |q_i - E k_j|² `[B, H, n, M]` of rows `[B, H, n or M, W]`."""
    products = q @ k.transpose(-1, -2)
    return q.square().sum(-1)[..., None] + kept * (kept * k.square().sum(-1)[..., None, :] - 2 * products)


def polar_step(
    q: Tensor, k: Tensor, v: Tensor, dynamics: tuple[Dynamics, Dynamics], pairs: Pairs, *, is_geodesic: bool
) -> tuple[Tensor, Tensor]:
    """Return z̄ `[B, H, n, 2D]` of Algorithm 2 and the evidence of its direction, given radial and tangential dynamics.

    q, k, v: Rotated rows `[B, H, n or M, 2D]`. The last n values belong to the queries.
    """
    radial, tangential = dynamics
    own = v[:, :, -q.shape[2] :]
    u, length = unit(own), own.norm(dim=-1, keepdim=True)
    lag = pairs.lag(v.dtype)
    carried = u @ k.transpose(-1, -2)
    radial2 = (along(u, q) - decay(radial.mu, lag).transpose(0, 1) * carried).square()
    kept = decay(tangential.mu, lag).transpose(0, 1)
    across2 = distance2(q, k, kept) - (along(u, q) - kept * carried).square()
    outward, _ = mean_of(radial2, v, radial, pairs)
    sideways, evidence = mean_of(across2, v, tangential, pairs)
    tangent = (sideways - along(u, sideways) * u) / length.clamp_min(1e-6)
    return along(u, outward) * move(u, tangent, is_geodesic=is_geodesic), evidence


def radial_tangential_irls(
    z: Tensor, times: Tensor, dynamics: tuple[Dynamics, Dynamics], *, passes: int, is_geodesic: bool = True
) -> Tensor:
    """Estimate states from measurements `[B, N, H, 2D]` at `times` `[N]` in some passes of AFA 5.3.

    Each pass estimates every token's magnitude and direction from the estimates of the previous pass, transported by
    the tangential dynamics' frequencies.
    """
    phase = wrapped_phase(dynamics[0].omega, times, z.dtype)
    state = rotate(z, -phase).transpose(1, 2)
    pairs = Pairs(times[None], times[None])
    for _ in range(passes):
        state, _ = polar_step(state, state, state, dynamics, pairs, is_geodesic=is_geodesic)
    return rotate(state.transpose(1, 2), phase)


class PolarMixer(RotatingMixer):
    """See the module's page."""

    takes_norm = False  # length counts

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        self.options = PolarOptions.from_dict(config.mixer_options)
        self.is_residual = self.options.algorithm == "irls"
        self.dynamics = nn.ModuleDict({name: AdaptiveDynamics(config) for name in ("radial", "tangential")})
        if self.is_residual:
            self.delta = nn.Parameter(torch.zeros(config.n_heads))
        else:
            # gamma_1 and gamma_2: a direction starts as long as a vector of unit variances.
            self.gain = nn.Parameter(torch.full((2, config.n_heads), math.sqrt(2 * config.head_dim)))

    def anchor_noise(self) -> Tensor:
        noise: Tensor = self.dynamics["tangential"]().gamma2
        return noise

    def phase(self, positions: Tensor, like: Tensor) -> Tensor:
        return wrapped_phase(self.dynamics["tangential"].omega, positions, like.dtype)

    def read(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, *, with_precision: bool) -> tuple[Tensor, Tensor]:
        radial, tangential = self.dynamics["radial"](), self.dynamics["tangential"]()
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        own, here = v[:, :, -q.shape[2] :], pairs.queries
        with without_autocast(q.device):
            if self.is_residual:
                state, evidence = polar_step(q, k, v, (radial, tangential), pairs, is_geodesic=self.options.geodesic)
                state = gated(own.transpose(1, 2), state.transpose(1, 2), self.delta)
                here, share = here + 1, decay(tangential.mu, state.new_ones(()))[:, None]
            else:
                state, evidence = self._transformer(q, k, v, (radial, tangential), pairs)
                state, share = state.transpose(1, 2), state.new_ones(())
        latent = share * rotate(state, self.phase(here, q))
        return latent, torch.log(evidence).transpose(1, 2)

    def _transformer(
        self, q: Tensor, k: Tensor, v: Tensor, dynamics: tuple[Dynamics, Dynamics], pairs: Pairs
    ) -> tuple[Tensor, Tensor]:
        """Compute Algorithm 3 on rotated rows `[B, H, n or M, 2D]`."""
        radial, tangential = dynamics
        lag = pairs.lag(v.dtype)
        lengths = [part.norm(dim=-1, keepdim=True) for part in (q, k, v)]
        within = distance2(lengths[0], lengths[1], decay(radial.mu, lag).transpose(0, 1))
        magnitude, _ = mean_of(within, lengths[2], radial, pairs)
        first, second = self.gain[:, :, None, None]
        q, k, v = (first * unit(part) for part in (q, k, v))
        kept = decay(tangential.mu, lag).transpose(0, 1)
        mean, evidence = mean_of(distance2(q, k, kept), v, tangential, pairs)
        own = unit(v[:, :, -q.shape[2] :])
        if self.options.geodesic:
            direction = geodesic(own, mean / first - along(own, mean / first) * own)
        else:
            direction = unit(own + mean / first)
        return magnitude / math.sqrt(q.shape[-1]) * second * direction, evidence
