"""Latent linear SDE of an attention head, and its closed-form functions of the lag.

Source: Racioppo, Robust Filter Attention, eq. 9, A.2 and B.3.

    dx = (-mu + i omega) x dt + dw,     z = x + v
    E(lag)   = exp(-mu lag)
    phi(lag) = (1 - exp(-2 mu lag)) / (2 mu)                    → lag as mu → 0
    V(lag)   = sigma2 phi(lag) + eta2 E(lag)^2 + gamma2         P = 1 / V

Units: lag in the time unit of `times`; mu and omega per time unit; variances in the squared unit of the keys per
complex dimension; sigma2 also per time unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfa.runtime.text.config import POSITIVE_FLOOR, Frequencies

# Below this, the series of phi with SERIES_TERMS terms is accurate in float64, whereas the terms in the derivative of
# the quotient cancel.
SMALL_EXPONENT = 0.02
SERIES_TERMS = 6
# Approximate ratio of the fastest to the slowest frequency.
BASE = 10_000.0


@dataclass(frozen=True)
class Dynamics:
    """Parameters of the heads of one layer, all `[H]` except `omega`.

    Args:
        mu: Decay rate, >= 0, 1/time.
        omega: Angular frequencies `[H, D]`, rad/time, for D complex dimensions.
        sigma2: Process-noise intensity, >= 0, variance/time.
        eta2: Measurement noise of the key (the past observation), > 0.
        gamma2: Measurement noise of the query, >= 0.
        nu: Student-t degrees of freedom, > 2. `inf` is the Gaussian limit.
        tau: Inverse temperature of the logits, > 0.
    """

    mu: Tensor
    omega: Tensor
    sigma2: Tensor
    eta2: Tensor
    gamma2: Tensor
    nu: Tensor
    tau: Tensor

    @property
    def n_heads(self) -> int:
        return self.omega.shape[0]

    @property
    def complex_dims(self) -> int:
        return self.omega.shape[1]

    @property
    def kappa(self) -> Tensor:
        """Student-t exponent (nu + D) / D, `[H]`."""
        return (self.nu + self.complex_dims) / self.complex_dims

    def to(self, dtype: torch.dtype) -> Dynamics:
        """Return the parameters in another floating dtype."""
        return Dynamics(
            self.mu.to(dtype),
            self.omega.to(dtype),
            self.sigma2.to(dtype),
            self.eta2.to(dtype),
            self.gamma2.to(dtype),
            self.nu.to(dtype),
            self.tau.to(dtype),
        )


def _per_head(parameter: Tensor, lag: Tensor) -> Tensor:
    """Return a parameter `[H]` or `[H, S]` in the shape `[H, 1, …]`, which broadcasts with the dimensions of `lag`."""
    return parameter.reshape(parameter.shape + (1,) * lag.dim())


def decay(mu: Tensor, lag: Tensor) -> Tensor:
    """Return E(lag) = exp(-mu lag), `[H, *lag.shape]`, for `lag` >= 0."""
    return torch.exp(-_per_head(mu, lag) * lag)


def phi(mu: Tensor, lag: Tensor) -> Tensor:
    """Return the process noise that accumulates over `lag` per unit of sigma2, `[H, *lag.shape]`. It is smooth at mu =
    0."""
    exponent = 2 * _per_head(mu, lag) * lag
    is_small = exponent < SMALL_EXPONENT
    # Both branches of `where` are differentiated, so the branch that is not used must remain finite.
    large = torch.where(is_small, torch.ones_like(exponent), exponent)
    small = torch.where(is_small, exponent, torch.zeros_like(exponent))
    series = torch.ones_like(exponent)
    for n in range(SERIES_TERMS, 1, -1):  # Horner: Σ (-x)^n / (n + 1)!
        series = 1 - small / n * series
    quotient = torch.where(is_small, series, -torch.expm1(-large) / large)
    return lag * quotient


def variance(dynamics: Dynamics, lag: Tensor) -> Tensor:
    """Return V(lag), the variance of a key at the time of the query, `[H, *lag.shape]`."""
    transported = decay(dynamics.mu, lag)
    return (
        _per_head(dynamics.sigma2, lag) * phi(dynamics.mu, lag)
        + _per_head(dynamics.eta2, lag) * transported * transported
        + _per_head(dynamics.gamma2, lag)
    )


def wrapped_phase(omega: Tensor, times: Tensor, dtype: torch.dtype) -> Tensor:
    """Return omega · t wrapped to [-pi, pi], `[*times.shape, H, D]`.

    The product is computed in float64. In float32, the phase at token 10^6 has an error of 0.05 rad.
    """
    phase = times.to(torch.float64)[..., None, None] * omega.to(torch.float64)
    turn = 2 * torch.pi
    return (phase - turn * torch.round(phase / turn)).to(dtype)


def rotate(x: Tensor, phase: Tensor) -> Tensor:
    """Return complex vectors multiplied by e^{i phase}.

    Args:
        x: Vectors `[..., H, 2D]`, real parts first.
        phase: Phase, broadcastable to `[..., H, D]`.
    """
    cos, sin = torch.cos(phase), torch.sin(phase)
    real, imaginary = x.chunk(2, dim=-1)
    return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)


def positive(raw: Tensor) -> Tensor:
    """Return softplus(raw) + floor, which converts an unconstrained parameter to a positive one."""
    return F.softplus(raw) + POSITIVE_FLOOR


def raw_from_positive(value: float | Tensor) -> Tensor:
    """Return the unconstrained parameter for which `positive` returns `value`, for initialisation.

    Raises:
        ValueError: If a value is not greater than the floor.
    """
    target = torch.as_tensor(value, dtype=torch.float64) - POSITIVE_FLOOR
    if bool((target <= 0).any()):
        raise ValueError(f"value must be > {POSITIVE_FLOOR}, got {value}")
    return (target + torch.log(-torch.expm1(-target))).to(torch.get_default_dtype())


def no_frequencies(n_heads: int, complex_dims: int) -> Tensor:
    """Return frequencies omega = 0 `[H, D]`, for models without rotation."""
    return torch.zeros(n_heads, complex_dims, dtype=torch.float64)


def banded_frequencies(n_heads: int, complex_dims: int) -> Tensor:
    """Return the frequencies of SC-RFA, `[H, D]`. One set of conjugate pairs is split over the heads, from the slowest
    (head 0) to the fastest."""
    if complex_dims % 2:
        raise ValueError(f"complex_dims must be even, because frequencies form conjugate pairs, got {complex_dims}")
    half = n_heads * complex_dims // 2
    bank = BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    bands = bank.flip(0).reshape(n_heads, complex_dims // 2)
    return torch.stack([bands, -bands], dim=-1).reshape(n_heads, complex_dims)


def full_frequencies(n_heads: int, complex_dims: int) -> Tensor:
    """Return the frequencies of RFA (M1), `[H, D]`. Every head has the complete set BASE^{-n/(D/2)}, in conjugate
    pairs."""
    if complex_dims % 2:
        raise ValueError(f"complex_dims must be even, because frequencies form conjugate pairs, got {complex_dims}")
    half = complex_dims // 2
    bank = BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    return torch.stack([bank, -bank], dim=-1).reshape(complex_dims).repeat(n_heads, 1)


def frequencies(kind: Frequencies, n_heads: int, complex_dims: int) -> Tensor:
    """Return the frequencies of a kind ("banded", "full" or "none"), `[H, D]`."""
    banks = {"banded": banded_frequencies, "full": full_frequencies, "none": no_frequencies}
    return banks[kind](n_heads, complex_dims)


def banded_decay(n_heads: int, complex_dims: int, damping: float, zero_fraction: float = 0.25) -> Tensor:
    """Return the decay rates of SC-RFA, `[H]`. The rate of head h is damping · max |omega_h| of the banded set. It is 0
    for the slowest `zero_fraction` of the heads."""
    mu = damping * banded_frequencies(n_heads, complex_dims).amax(dim=-1)
    mu[: int(n_heads * zero_fraction)] = 0.0
    return mu


class DynamicsParameters(nn.Module):
    """Learned noise parameters of one layer. Frequencies and, by default, decays are fixed buffers.

    If mu > 0, the stationary process variance sigma2 / (2 mu) is learned, which is better conditioned (RFA D.2).
    Otherwise, sigma2 is learned.

    Args:
        omega: Frequencies, `[H, D]`.
        mu: Decay rates, `[H]`.
        process, measurement: Initial process variance and measurement variance.
        has_noise: Whether sigma2 and eta2 are learned. If not, they are 0 and only gamma2 is learned.
        temperature: Initial value of tau.
        learns_decay: Whether mu is learned for the heads whose mu is > 0.

    The steady-state variance starts at `process`, or at (process_per_decay · mu)² if that is given. sigma2 of heads
    without decay starts at process / 10.
    """

    omega: Tensor
    mu: Tensor
    mu_raw: nn.Parameter | None

    def __init__(
        self,
        omega: Tensor,
        mu: Tensor,
        *,
        process: float = 0.1,
        process_per_decay: float | None = None,
        measurement: float = 1.0,
        has_noise: bool = True,
        temperature: float = 1.0,
        learns_decay: bool = False,
    ) -> None:
        super().__init__()
        n_heads, complex_dims = omega.shape
        # The frequencies are float64, because the phase omega · t is computed in float64.
        self.register_buffer("omega", omega.to(torch.float64), persistent=False)
        self.register_buffer("mu", mu.to(torch.get_default_dtype()), persistent=False)
        # The value 1 of heads without decay is not used.
        given = torch.where(self.mu > 0, self.mu, torch.ones_like(self.mu))
        self.mu_raw = nn.Parameter(raw_from_positive(given)) if learns_decay else None
        self.has_noise = has_noise
        if has_noise:
            unit = torch.ones_like(mu)
            steady = process * unit if process_per_decay is None else (process_per_decay * mu).square()
            self.process_raw = nn.Parameter(raw_from_positive(torch.where(mu > 0, steady, process / 10 * unit)))
            self.eta2_raw = nn.Parameter(raw_from_positive(torch.full((n_heads,), measurement)))
        self.gamma2_raw = nn.Parameter(raw_from_positive(torch.full((n_heads,), measurement)))
        # nu = 2 + D · positive(raw), initially 4 D.
        self.nu_raw = nn.Parameter(raw_from_positive(torch.full((n_heads,), 4.0 - 2.0 / complex_dims)))
        self.tau_raw = nn.Parameter(raw_from_positive(torch.full((n_heads,), temperature)))

    def forward(self) -> Dynamics:
        """Return the parameters of the heads, constrained to their valid ranges."""
        mu = self.mu if self.mu_raw is None else torch.where(self.mu > 0, positive(self.mu_raw), 0.0)
        sigma2 = eta2 = torch.zeros_like(self.mu)
        if self.has_noise:
            steady = positive(self.process_raw)
            sigma2 = torch.where(self.mu > 0, 2 * mu * steady, steady)
            eta2 = positive(self.eta2_raw)
        return Dynamics(
            mu=mu,
            omega=self.omega,
            sigma2=sigma2,
            eta2=eta2,
            gamma2=positive(self.gamma2_raw),
            nu=2 + self.omega.shape[1] * positive(self.nu_raw),
            tau=positive(self.tau_raw),
        )
