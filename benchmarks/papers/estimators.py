"""`python -m rfa.benchmarks.papers.estimators`: estimators of the papers on a noisy rotation with outliers.

Series of a known system, dx = (-mu + i omega) x dt + dw, are measured with noise, and some measurements are far off.
Every estimator knows the system. Nothing is trained. The error is that of the state after each measurement, from the
thirtieth on, relative to the measurements' own without outliers.

Two further tables: what separable precision (AFA B.3) costs and how far it is off, and what a filter gains that knows
the direction of a rank-one noise (AFA B.7.1).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor

from rfa.benchmarks.papers.afa.layer import RationalDynamics
from rfa.benchmarks.papers.polar_mixer import radial_tangential_irls
from rfa.benchmarks.papers.rank_one import DirectedNoise, covariance, precision
from rfa.benchmarks.papers.tensor_mixer import Channels, distance, kernels, separable_distance
from rfa.benchmarks.papers.unrolled_mixer import unroll
from rfa.model.attention.api import robust_filter_attention
from rfa.model.dynamics import Dynamics, rotate, wrapped_phase
from rfa.model.recurrence.irkf import irkf_scan

SERIES, LENGTH, SCORED_FROM = 200, 60, 30
OMEGA = (0.4, -0.4)
MU, SIGMA2, ETA2, NU = 0.02, 0.02, 0.5, 4.0
OUTLIERS, OUTLIER_SCALE = 0.05, 8.0
PASSES = (1, 2, 4)


def simulate(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return states and measurements `[B, N, 1, 2D]`, real half first."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    omega = torch.tensor([OMEGA], dtype=torch.float64)
    x, states = 2 * normal(SERIES, 1, 4), []
    for _ in range(LENGTH):
        x = rotate(x, omega) * torch.exp(torch.tensor(-MU)) + (SIGMA2 / 2) ** 0.5 * normal(SERIES, 1, 4)
        states.append(x)
    truth = torch.stack(states, 1)
    is_off = torch.rand(SERIES, LENGTH, 1, 1, dtype=torch.float64, generator=generator) < OUTLIERS
    spread = torch.where(is_off, OUTLIER_SCALE, 1.0) * (ETA2 / 2) ** 0.5
    return truth, truth + spread * normal(SERIES, LENGTH, 1, 4)


def head(cls: type[Dynamics], nu: float) -> Dynamics:
    """Return the system as one head."""
    numbers = (torch.tensor([value], dtype=torch.float64) for value in (SIGMA2, ETA2, ETA2, nu, 1.0))
    omega = torch.tensor([OMEGA], dtype=torch.float64)
    return cls(torch.tensor([MU], dtype=torch.float64), omega, *numbers)


def stack(z: Tensor, passes: int, share: float, *, keeps_measurements: bool) -> Tensor:
    """Return the estimate after passes of RFA with damping. Keys are estimates, as printed, or the measurements."""
    state, dynamics = z, head(Dynamics, NU)
    for _ in range(passes):
        source = z if keeps_measurements else state
        state = (1 - share) * state + share * robust_filter_attention(state, source, source, dynamics).out
    return state


def unrolled(z: Tensor, passes: int) -> Tensor:
    """Return the means of Algorithm 4 with sigmoid(delta) near 1."""
    dynamics = head(RationalDynamics, 1.0)
    phase = wrapped_phase(dynamics.omega, torch.arange(LENGTH), z.dtype)
    return rotate(unroll(rotate(z, -phase), dynamics, z.new_ones(1), passes)[0], phase)


def measure() -> dict[str, float]:
    """Return the relative error of each estimator."""
    truth, z = simulate()
    times, rational = torch.arange(LENGTH, dtype=torch.float64), head(RationalDynamics, 1.0)
    anchor = Dynamics(**{**vars(head(Dynamics, NU)), "gamma2": torch.zeros(1, dtype=torch.float64)})
    exact = Dynamics(**{**vars(anchor), "nu": torch.full((1,), torch.inf, dtype=torch.float64)})
    found = {
        "measurements": z,
        "Kalman filter": irkf_scan(z, exact)[0],
        "IRKF, capped": irkf_scan(z, anchor)[0],
    }
    for n in PASSES:
        found[f"Algorithm 4, K = {n}"] = unrolled(z, n)
        found[f"IRLS of estimates, {n} passes"] = stack(z, n, 1.0, keeps_measurements=False)
        found[f"IRLS of estimates, {n} passes, damping 0.5"] = stack(z, n, 0.5, keeps_measurements=False)
        found[f"IRLS of measurements, {n} passes"] = stack(z, n, 1.0, keeps_measurements=True)
        found[f"magnitude and direction, {n} passes"] = radial_tangential_irls(z, times, (rational, rational), passes=n)
    return {name: round(_rmse(estimate - truth) / (ETA2 / 2) ** 0.5, 3) for name, estimate in found.items()}


def exact_distance(q: Tensor, k: Tensor, channels: Channels, times: Tensor) -> Tensor:
    """Return Σ_c P_c |q_i - E k_j|²_c `[B, H, N, N]` by the tensor of pairs and channels, as tensor RFA does."""
    kept, p = (part[None] for part in kernels(channels, (times[:, None] - times).clamp_min(0)))
    q, k = (part.transpose(1, 2).unflatten(-1, (2, -1)) for part in (q, k))
    return distance(q, k, kept, p)


def separable_precision(length: int = 512, pairs: int = 8, rounds: int = 5) -> dict[str, dict[str, float]]:
    """Compare both precisions of one head with decays of 0.01 to 0.1: error of the distance, seconds and numbers."""
    generator, size = torch.Generator().manual_seed(0), 2 * pairs
    q, k = torch.randn(2, 1, length, 1, 2 * size, dtype=torch.float64, generator=generator)
    times = torch.arange(length, dtype=torch.float64)
    mu = torch.logspace(-2, -1, pairs, dtype=torch.float64).repeat_interleave(2)[None]
    found = {}
    for name, eta2 in (("diffusive", 0.1), ("integrative", 1.0)):
        ones = torch.ones_like(mu)
        channels = Channels(mu, 0.3 * ones, eta2 * ones, 0.5 * ones)
        exact, near = exact_distance(q, k, channels, times), separable_distance(q, k, channels, times)
        relative = (near / exact - 1)[..., *torch.tril_indices(length, length)].abs()
        found[name] = {"mean error": round(float(relative.mean()), 4), "largest": round(float(relative.max()), 4)}
    found["seconds"] = {
        "exact": _seconds(lambda: exact_distance(q, k, channels, times), rounds),
        "separable": _seconds(lambda: separable_distance(q, k, channels, times), rounds),
    }
    found["numbers"] = {"exact": size * length**2, "separable": length**2 + 2 * size * length}
    return found


def directed_noise(trials: int = 4000, size: int = 4, lags: int = 16) -> dict[str, float]:
    """Return the error of precision-weighted means that know the direction, over that of isotropic weights."""
    generator, mu = np.random.default_rng(0), 0.1
    direction = np.eye(size)[0]
    found = {}
    for name, process, measurement in (("process", 8.0, 0.0), ("measurement", 0.0, 8.0), ("both", 8.0, 8.0)):
        noise = DirectedNoise(0.2, 0.5, process, measurement)
        spreads = np.stack([covariance(noise, mu, lag, direction) for lag in range(lags)])
        z = np.einsum("jab,tjb->tja", np.linalg.cholesky(spreads), generator.standard_normal((trials, lags, size)))
        weights = np.stack([precision(noise, mu, lag, direction) for lag in range(lags)])
        plain = 1 / np.trace(spreads, axis1=1, axis2=2)
        directed = np.einsum("ab,jbc,tjc->ta", np.linalg.inv(weights.sum(0)), weights, z)
        isotropic = np.einsum("j,tja->ta", plain / plain.sum(), z)
        found[name] = round(float(np.sqrt(np.square(directed).mean() / np.square(isotropic).mean())), 3)
    return found


def _seconds(call: Callable[[], Tensor], rounds: int) -> float:
    """Return the median of the processor time."""
    taken = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return round(median(taken), 4)


def _rmse(error: Tensor) -> float:
    return float(error[:, SCORED_FROM:].square().mean().sqrt())


if __name__ == "__main__":
    found = {
        "estimators": measure(),
        "separable precision": separable_precision(),
        "directed noise": directed_noise(),
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))
