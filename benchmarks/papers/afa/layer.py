"""Adaptive Filter Attention: one layer that filters and predicts by one linear SDE, all of it learned.

Source: Racioppo, Attention as an Adaptive Filter, Algorithm 1 (isotropic); V, E and R² as in Robust Filter Attention.

    L  = -log(V + R² + eps),   A = softmax(tau L),   v̄_i = Σ_j A_ij E_ij e^{i omega (t_i - t_j)} v_j
    v⁺ = e^{(-mu + i omega) dt} v̄,   mu = alpha²,   omega in conjugate pairs
    z̄  = (1 - s) v + s v̄,      s = sigmoid(delta)

L is the Student-t logit of Robust Filter Attention with nu = 1 and the exponent 1, log P - log(1 + P R²), so its code
runs here; eps is the floor of gamma2. v⁺ predicts the next token, z̄ is for a next layer. Algorithm 1 prints the
decay of v⁺ with the wrong sign. Layout `[B, N, H, 2D]`, real half first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rfa.model.attention.reference import AttentionResult, attend
from rfa.model.dynamics import Dynamics, decay, positive, raw_from_positive, rotate, wrapped_phase
from rfa.runtime.text.config import StrictConfig

# Initially, every head decays at INITIAL_MU, and its frequencies are spread evenly up to FASTEST, both in 1/time.
INITIAL_MU, FASTEST = 0.25, 4.0


@dataclass(frozen=True)
class RationalDynamics(Dynamics):
    """Dynamics whose robust weight is the rational 1 / (1 + P R²).

    nu is 1, absorbed by the noises and projections: the logit is tau (log P - log(1 + P R²)) = -tau log(V + R²).
    """

    @property
    def kappa(self) -> Tensor:
        return torch.ones_like(self.tau)


@dataclass(frozen=True)
class AFAConfig(StrictConfig):
    """One layer of width d_model with heads of head_dim complex dimensions; it predicts `step` dt ahead."""

    observation_size: int
    d_model: int = 128
    n_heads: int = 1
    head_dim: int = 128
    step: float = 1.0


class AdaptiveScalars(nn.Module):
    """Learned scalars of each head of an AFA layer: alpha, with mu = alpha², the noises of key and query, and tau."""

    def __init__(self, mu: Tensor, temperature: float = 1.0) -> None:
        super().__init__()
        self.alpha = nn.Parameter(mu.sqrt().to(torch.get_default_dtype()))
        self.eta2_raw, self.gamma2_raw, self.tau_raw = (
            nn.Parameter(raw_from_positive(torch.full(mu.shape, value))) for value in (1.0, 1.0, temperature)
        )

    @property
    def mu(self) -> Tensor:
        return self.alpha.square()

    def rational(self, omega: Tensor, sigma2: Tensor) -> RationalDynamics:
        """Map raw parameters to constrained ones. No other code does so."""
        return RationalDynamics(
            mu=self.mu,
            omega=omega,
            sigma2=sigma2,
            eta2=positive(self.eta2_raw),
            gamma2=positive(self.gamma2_raw),
            nu=torch.ones_like(self.alpha),
            tau=positive(self.tau_raw),
        )


class AdaptiveParameters(AdaptiveScalars):
    """Learned decay, frequencies and noises of the heads."""

    def __init__(self, config: AFAConfig) -> None:
        heads, pairs = config.n_heads, config.head_dim // 2
        super().__init__(torch.full((heads,), INITIAL_MU))
        bank = FASTEST * (torch.arange(pairs) + 0.5) / pairs
        self.frequency = nn.Parameter(bank.repeat(heads, 1))
        self.sigma2_raw = nn.Parameter(raw_from_positive(torch.full((heads,), 0.1)))

    def forward(self) -> Dynamics:
        omega = torch.stack([self.frequency, -self.frequency], dim=-1).flatten(-2)
        return self.rational(omega, positive(self.sigma2_raw))


def transported(value: Tensor, dynamics: Dynamics, lag: Tensor) -> Tensor:
    """Return e^{(-mu + i omega) lag} v of `[..., L, H, 2D]` over lags `[L]`, or `[..., H, 2D]` over one lag."""
    turned = rotate(value, wrapped_phase(dynamics.omega, lag, value.dtype))
    return decay(dynamics.mu, lag.to(value.dtype)).movedim(0, -1)[..., None] * turned


def gated(value: Tensor, mean: Tensor, delta: Tensor) -> Tensor:
    """Return (1 - s) v + s v̄ of `[..., H, 2D]`, with s = sigmoid(delta) of the heads."""
    share = torch.sigmoid(delta)[:, None]
    return (1 - share) * value + share * mean


def _complex_weight(d_out: int, d_in: int) -> Tensor:
    """Return an isotropic complex weight `[out, in]`: magnitude N(0, 2 / (in + out)), uniform phase."""
    magnitude = math.sqrt(2 / (d_in + d_out)) * torch.randn(d_out, d_in)
    return torch.polar(magnitude.abs(), 2 * math.pi * torch.rand(d_out, d_in))


def _linear(weight: Tensor) -> nn.Linear:
    """Return a layer with the given weight and no bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.zero_()
    return linear


def _to_complex(config: AFAConfig) -> nn.Linear:
    """Map real `d` to the complex dimensions of the heads, as reals `[H, 2D]`."""
    parts = [_complex_weight(config.head_dim, config.d_model) for _ in range(config.n_heads)]
    return _linear(torch.cat([half for weight in parts for half in (weight.real, weight.imag)]))


def _to_real(config: AFAConfig) -> nn.Linear:
    """Map the complex dimensions of the heads to the real part of complex `d`."""
    parts = [_complex_weight(config.d_model, config.head_dim) for _ in range(config.n_heads)]
    return _linear(torch.cat([half for weight in parts for half in (weight.real, -weight.imag)], dim=1))


class Filtered(NamedTuple):
    """Outputs of the layer after the output projection.

    prediction (v⁺), estimate (v̄) and residual (z̄) are `[B, N, d]`; precision, the evidence of each row, is `[B, N,
    H]`.
    """

    prediction: Tensor
    estimate: Tensor
    residual: Tensor
    precision: Tensor


class AFALayer(nn.Module):
    """One AFA layer. `times` `[N]`, float64, are the times of the tokens, in the unit of the dynamics."""

    def __init__(self, config: AFAConfig) -> None:
        super().__init__()
        self.config = config
        self.query, self.key, self.value = (_to_complex(config) for _ in range(3))
        self.output = _to_real(config)
        self.scalars = AdaptiveParameters(config)
        self.delta = nn.Parameter(torch.zeros(config.n_heads))

    def dynamics(self) -> Dynamics:
        dynamics: Dynamics = self.scalars()
        return dynamics

    def heads(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """Map `[B, N, d]` to `[B, N, H, 2D]`."""
        return projection(x).reshape(*x.shape[:-1], self.config.n_heads, -1)

    def leave(self, latent: Tensor) -> Tensor:
        """Map `[..., H, 2D]` to `[..., d]`."""
        out: Tensor = self.output(latent.flatten(-2))
        return out

    def _attend(self, x: Tensor, values: Tensor, times: Tensor, dynamics: Dynamics) -> AttentionResult:
        """Attend over values of any width in the rotating frame."""
        phase = wrapped_phase(dynamics.omega, times, x.dtype)
        q, k = (rotate(self.heads(projection, x), -phase) for projection in (self.query, self.key))
        return attend(q, k, values, dynamics, query_times=times[None], key_times=times[None])

    def forward(self, x: Tensor, times: Tensor) -> Filtered:
        dynamics, value = self.dynamics(), self.heads(self.value, x)
        phase = wrapped_phase(dynamics.omega, times, x.dtype)
        result = self._attend(x, rotate(value, -phase), times, dynamics)
        mean = rotate(result.out, phase)
        ahead = transported(mean, dynamics, times.new_tensor(self.config.step))
        fused = gated(value, mean, self.delta)
        return Filtered(self.leave(ahead), self.leave(mean), self.leave(fused), result.precision)

    def attention(self, x: Tensor, times: Tensor) -> Tensor:
        """Return the matrices A ⊙ E `[B, H, N, N]`: the weights of the transported values."""
        batch, length, _ = x.shape
        unit = torch.eye(length, dtype=x.dtype)[None, :, None].expand(batch, -1, self.config.n_heads, -1)
        return self._attend(x, unit, times, self.dynamics()).out.transpose(1, 2)

    def carry(self, value: Tensor, lag: Tensor) -> Tensor:
        """Return e^{(-mu + i omega) lag} v of values `[..., L, H, 2D]` over lags `[L]`."""
        return transported(value, self.dynamics(), lag)

    def pulled_forward(self, x: Tensor, times: Tensor, row: int) -> Tensor:
        """Transport the value of every token up to `row` to the time of that token, `[B, row + 1, d]`."""
        value = self.heads(self.value, x[:, : row + 1])
        return self.leave(self.carry(value, times[row] - times[: row + 1]))


class AFAFilter(nn.Module):
    """Predicts the next observation: a fixed orthonormal embedding, one layer, and the inverse of the embedding."""

    embedding: Tensor

    def __init__(self, config: AFAConfig) -> None:
        super().__init__()
        self.config = config
        basis, _ = torch.linalg.qr(torch.randn(config.d_model, config.observation_size))
        self.register_buffer("embedding", basis)
        self.layer = AFALayer(config)

    def forward(self, observations: Tensor, times: Tensor) -> Filtered:
        """Return the prediction of the next observation, the estimate of this one and the residual for `[B, N, P]`."""
        found = self.layer(observations @ self.embedding.T, times)
        prediction, estimate, residual = (part @ self.embedding for part in found[:3])
        return Filtered(prediction, estimate, residual, found.precision)

    def attention(self, observations: Tensor, times: Tensor) -> Tensor:
        """Return the attention weights `[B, H, N, N]`."""
        return self.layer.attention(observations @ self.embedding.T, times)

    def pulled_forward(self, observations: Tensor, times: Tensor, row: int) -> Tensor:
        """Transport the observations up to `row` to its time, `[B, row + 1, P]`."""
        return self.layer.pulled_forward(observations @ self.embedding.T, times, row) @ self.embedding

    def transport(self, lags: Tensor) -> Tensor:
        """Return the matrices `[L, P, P]` by which the layer transports an observation over each of `lags` `[L]`."""
        value = (self.layer.value.weight @ self.embedding).T.reshape(
            self.config.observation_size, 1, self.config.n_heads, -1
        )
        carried = self.layer.carry(value.expand(-1, len(lags), -1, -1), lags).flatten(-2)  # [P, L, 2DH]
        return (carried @ self.layer.output.weight.T @ self.embedding).permute(1, 2, 0)

    def channel_strength(self) -> tuple[Tensor, Tensor]:
        """Return |omega| of every channel and the gain of observations through it, both `[H D]`."""
        omega = self.layer.dynamics().omega.abs().flatten()
        heads, dims = self.config.n_heads, self.config.head_dim
        inward = (self.layer.value.weight @ self.embedding).reshape(heads, 2, dims, -1).square().sum((1, 3))
        outward = (self.embedding.T @ self.layer.output.weight).reshape(-1, heads, 2, dims).square().sum((0, 2))
        return omega, (inward * outward).sqrt().flatten()
