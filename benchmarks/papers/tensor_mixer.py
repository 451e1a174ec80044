"""Tensor RFA: every channel has its own decay and noises, and its own softmax. Memory is O(N² D).

Source: Racioppo, Robust Filter Attention, B.1 and C.7; Attention as an Adaptive Filter, 3.1, 4.2 and B.3. For channel
c, with qk and v the dynamics of queries and keys and of values (the same by default):

    L[c,i,j] = tau (log P_v[c] - kappa log(1 + (1/nu) Σ_c' P_qk[c'] |q_i - E_qk k_j|²_c'))
    v̄[c,i]   = Σ_j softmax_j(L[c,i,j]) E_v[c] e^{i omega lag} v_j[c]
    P = 1 / V,   V = S + eta2 E² + gamma2,   E = e^{-mu lag}
    S = s (1 - E²)                                                       noise "white", s = sigma2 / (2 mu)
    S = sigma2 Re Σ_m c_m (e^{g_m lag} - E²) / (2 mu + g_m)              noise "structured" (RFA C.7)
    P ≈ (1 - r / (1 + r) e^{-2 mu lag / (1 + r)}) / b                    precision "separable" (AFA B.3)
        with b = s + gamma2, r = (eta2 - s) / b

The structured rate is q(t) = sigma2 (1 + a e^{-rho t} cos(psi t)), |a| < 1, so that V > 0: c = 1, a/2, a/2 and
g = 0, -rho ± i psi. `floor` replaces E_qk by E_qk + beta² and `learned_step` the lag by dt lag (AFA 4.2).
Layout `[B, N, H, 2D]`, real half first; all parameters are `[H, D / 2]`, shared by conjugate pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rfa.benchmarks.papers.rotating_mixer import RotatingMixer
from rfa.model.attention.reference import without_autocast
from rfa.model.dynamics import positive, raw_from_positive, rotate, wrapped_phase
from rfa.model.mixing import Pairs, head_rates
from rfa.runtime.text.config import LanguageModelConfig, StrictConfig, check_choice

# Initial steady process variance, and noise of queries and keys.
PROCESS, MEASUREMENT = 0.1, 1.0
# Initial decay rate and frequency of the oscillating noise, 1/token, and of the floor beta².
RHO, PSI, FLOOR = 0.05, 0.5, 0.01
NOISES, PRECISIONS = ("white", "structured"), ("exact", "separable")


@dataclass(frozen=True)
class TensorOptions(StrictConfig):
    """See the module's page. `separate`: values have decays and noises of their own."""

    separate: bool = False
    noise: Literal["white", "structured"] = "white"
    precision: Literal["exact", "separable"] = "exact"
    floor: bool = False
    learned_step: bool = False

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, NOISES)
        check_choice("precision", self.precision, PRECISIONS)
        if (self.noise, self.precision) == ("structured", "separable"):
            raise ValueError("the separable precision is of white noise")


class Channels(NamedTuple):
    """Constrained parameters of channels, `[H, D]`. `wave` is a, rho, psi of the structured noise."""

    mu: Tensor
    steady: Tensor
    eta2: Tensor
    gamma2: Tensor
    wave: tuple[Tensor, Tensor, Tensor] | None = None


def kernels(channels: Channels, lag: Tensor, precision: str = "exact") -> tuple[Tensor, Tensor]:
    """Return E and P of every channel, `[H, D, *lag.shape]`, for lag >= 0 and mu > 0."""
    mu, steady, eta2, gamma2 = (part.reshape(*part.shape, *(1,) * lag.dim()) for part in channels[:4])
    kept = torch.exp(-mu * lag)
    if precision == "separable":
        limit = steady + gamma2
        ratio = (eta2 - steady) / limit
        return kept, (1 - ratio / (1 + ratio) * torch.exp(-2 * mu * lag / (1 + ratio))) / limit
    process = -steady * torch.expm1(-2 * mu * lag)
    if channels.wave is not None:
        share, rho, psi = (part.reshape(mu.shape) for part in channels.wave)
        rate = torch.complex(2 * mu - rho, psi)
        wave = torch.exp(torch.complex(-rho, psi) * lag) - torch.exp(-2 * mu * lag)
        process = process + 2 * mu * steady * share * (wave / rate).real
    return kept, 1 / (process + eta2 * kept.square() + gamma2)


def distance(q: Tensor, k: Tensor, kept: Tensor, precision: Tensor) -> Tensor:
    """Return Σ_c P_c |q_i - E k_j|²_c `[B, H, n, M]` of q, k `[B, H, n or M, 2, D]`, given E, P `[B, H, D, n, M]`."""
    own = torch.einsum("bhipc,bhcij->bhij", q.square(), precision)
    carried = torch.einsum("bhjpc,bhcij->bhij", k.square(), precision * kept.square())
    return own + carried - 2 * torch.einsum("bhipc,bhcij,bhjpc->bhij", q, precision * kept, k)


class ChannelDynamics(nn.Module):
    """Learned parameters of the channels, equal in each conjugate pair."""

    def __init__(self, start: Tensor, pairs: int, options: TensorOptions) -> None:
        super().__init__()
        rates = start[:, None].expand(-1, pairs)
        self.mu_raw = nn.Parameter(raw_from_positive(rates))
        self.process_raw = nn.Parameter(raw_from_positive(torch.full_like(rates, PROCESS)))
        self.eta2_raw, self.gamma2_raw = (
            nn.Parameter(raw_from_positive(torch.full_like(rates, MEASUREMENT))) for _ in range(2)
        )
        if options.noise == "structured":
            self.share_raw = nn.Parameter(torch.zeros(rates.shape))
            self.rho_raw = nn.Parameter(raw_from_positive(torch.full_like(rates, RHO)))
            self.psi_raw = nn.Parameter(raw_from_positive(torch.full_like(rates, PSI)))

    def forward(self) -> Channels:
        def paired(value: Tensor) -> Tensor:
            return value.repeat_interleave(2, dim=-1)

        raw = self.mu_raw, self.process_raw, self.eta2_raw, self.gamma2_raw
        mu, steady, eta2, gamma2 = (paired(positive(part)) for part in raw)
        if not hasattr(self, "share_raw"):
            return Channels(mu, steady, eta2, gamma2)
        share, rho, psi = torch.tanh(self.share_raw), positive(self.rho_raw), positive(self.psi_raw)
        return Channels(mu, steady, eta2, gamma2, (paired(share), paired(rho), paired(psi)))


class Scalars(nn.Module):
    """Channels of queries and keys, and of values if separate; and nu, tau, floor and step of the heads."""

    omega: Tensor

    def __init__(self, config: LanguageModelConfig, options: TensorOptions) -> None:
        super().__init__()
        omega, start = head_rates(config, zero_fraction=0.0)
        heads, complex_dims = omega.shape
        self.register_buffer("omega", omega.to(torch.float64), persistent=False)
        self.match = ChannelDynamics(start, complex_dims // 2, options)
        if options.separate:
            self.value = ChannelDynamics(start, complex_dims // 2, options)
        self.nu_raw = nn.Parameter(raw_from_positive(torch.full((heads,), 4.0 - 2.0 / complex_dims)))
        self.tau_raw = nn.Parameter(raw_from_positive(torch.full((heads,), config.temperature)))
        if options.floor:
            self.floor_raw = nn.Parameter(raw_from_positive(torch.full((heads,), FLOOR)))
        if options.learned_step:
            self.step_raw = nn.Parameter(raw_from_positive(torch.ones(heads)))

    @property
    def step(self) -> Tensor:
        """Return dt of the heads, `[H]`."""
        return positive(self.step_raw) if hasattr(self, "step_raw") else torch.ones_like(self.tau_raw)


class TensorMixer(RotatingMixer):
    """See the module's page."""

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config)
        self.options = TensorOptions.from_dict(config.mixer_options)
        self.dynamics = Scalars(config, self.options)

    def anchor_noise(self) -> Tensor:
        own = self.dynamics.value if self.options.separate else self.dynamics.match
        return positive(own.gamma2_raw).mean(-1)

    def phase(self, positions: Tensor, like: Tensor) -> Tensor:
        omega = self.dynamics.omega * self.dynamics.step[:, None].to(torch.float64)
        return wrapped_phase(omega, positions, like.dtype)

    def _kernels(self, channels: Channels, lag: Tensor) -> tuple[Tensor, Tensor]:
        """Return E and P `[1 or B, H, D, n, M]` at lags `[1 or B, n, M]`."""
        step = self.dynamics.step[:, None]
        # The noise of a step of length dt: rates are per unit of time, so that mu dt is what counts per token.
        scaled = channels._replace(mu=channels.mu * step)
        if channels.wave is not None:
            share, rho, psi = channels.wave
            scaled = scaled._replace(wave=(share, rho * step, psi * step))
        kept, precision = kernels(scaled, lag, self.options.precision)
        return kept.movedim(2, 0), precision.movedim(2, 0)

    def read(self, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, *, with_precision: bool) -> tuple[Tensor, Tensor]:
        dynamics, lag = self.dynamics, pairs.lag(q.dtype)
        kept, match = self._kernels(dynamics.match(), lag)
        value_kept, prior = self._kernels(dynamics.value(), lag) if self.options.separate else (kept, match)
        if self.options.floor:
            kept = kept + positive(dynamics.floor_raw)[:, None, None, None]
        q, k, v = (part.transpose(1, 2).unflatten(-1, (2, -1)) for part in (q, k, v))  # [B, H, n, 2, D]
        nu = 2 + q.shape[-1] * positive(dynamics.nu_raw)
        kappa, tau = ((part)[:, None, None] for part in ((nu + q.shape[-1]) / q.shape[-1], positive(dynamics.tau_raw)))
        with without_autocast(q.device):
            distance2 = distance(q, k, kept, match).clamp_min(0) / nu[:, None, None]
            fit = (tau * kappa * torch.log1p(distance2))[:, :, None]
            logits = tau[:, None] * torch.log(prior) - fit  # [B, H, D, n, M]
            weights = torch.softmax(torch.where(pairs.is_visible[:, None, None], logits, float("-inf")), dim=-1)
            mean = torch.einsum("bhcij,bhjpc->bihpc", weights * value_kept, v).flatten(-2)
        latent = rotate(mean, self.phase(pairs.queries, mean))
        if not with_precision:
            return latent, latent.new_zeros(latent.shape[:-1])
        evidence = torch.where(pairs.is_visible[:, None, None], prior / (1 + distance2[:, :, None]), 0.0)
        return latent, torch.log(evidence.sum(-1).mean(2)).transpose(1, 2)


def separable_distance(q: Tensor, k: Tensor, channels: Channels, times: Tensor) -> Tensor:
    """Return Σ_c P_c |q_i - E k_j|²_c of rotated q and k `[B, N, H, 2D]` by products of matrices, `[B, H, N, N]`.

    Memory is O(N² + N D) (AFA B.3). Entries of later keys have no meaning.
    """
    q, k = (part.permute(0, 2, 3, 1).unflatten(2, (2, -1)) for part in (q, k))  # [B, H, 2, D, N]
    limit = channels.steady + channels.gamma2
    ratio = (channels.eta2 - channels.steady) / limit
    growth = torch.exp((2 * channels.mu / (1 + ratio))[..., None] * times)  # bounds the length
    decay = torch.exp(-channels.mu[..., None] * times)  # E_ij = decay_i / decay_j
    k = k / decay[:, None]
    total = q.new_zeros(())
    # P_ij = 1 / b + f_i g_j
    one, varying = torch.ones_like(decay), -(ratio / (1 + ratio) / limit)[..., None] / growth
    for query, key in ((one / limit[..., None], one), (varying, growth)):

        def product(left: Tensor, right: Tensor) -> Tensor:
            return left.flatten(2, -2).transpose(-1, -2) @ right.flatten(2, -2)

        ones = torch.ones_like(q)
        total = total + product(q.square() * query[:, None], ones * key[:, None])
        total = total + product(ones * (query * decay.square())[:, None], k.square() * key[:, None])
        total = total - 2 * product(q * (query * decay)[:, None], k * key[:, None])
    return total
