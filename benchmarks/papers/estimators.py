"""`python -m rfa.benchmarks.papers.estimators`: estimators of the papers on a noisy rotation with outliers.

Series of a known system, dx = (-mu + i omega) x dt + dw, are measured with noise, and some measurements are far off.
Every estimator knows the system. Nothing is trained. The error is that of the state after each measurement, from the
thirtieth on, relative to the measurements' own without outliers.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

from rfa.benchmarks.papers.afa.layer import RationalDynamics
from rfa.benchmarks.papers.polar_mixer import radial_tangential_irls
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


def _rmse(error: Tensor) -> float:
    return float(error[:, SCORED_FROM:].square().mean().sqrt())


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1, ensure_ascii=False))
