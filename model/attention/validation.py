"""Every rule about the inputs of Robust Filter Attention, in one place.

Rules about values look at the data, so they hold in eager code only: a compiled graph would break at them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.dynamics import Dynamics

IMPLEMENTATIONS = ("auto", "reference")


def check_inputs(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> None:
    """q, k, v: the same `[B, N, H, 2D]`, floating dtype and device, fitting the dynamics' heads and dims."""
    if q.dim() != 4:
        raise ValueError(f"q must have shape [B, N, H, 2D], got {list(q.shape)}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != q.shape:
            raise ValueError(f"{name} must have the shape of q, {list(q.shape)}, got {list(tensor.shape)}")
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} must have the dtype of q, {q.dtype}, got {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {tensor.device}")
    if not q.dtype.is_floating_point:
        raise ValueError(f"q must be floating point, got {q.dtype}")
    if q.shape[1] < 1:
        raise ValueError("attention needs at least one token, got N = 0")
    if dynamics.omega.dim() != 2:
        raise ValueError(f"omega must have shape [H, D], got {list(dynamics.omega.shape)}")
    heads, complex_dims = dynamics.omega.shape
    if q.shape[2:] != (heads, 2 * complex_dims):
        raise ValueError(f"dynamics have {heads} heads of {2 * complex_dims} reals, q has {list(q.shape[2:])}")


def check_dynamics(dynamics: Dynamics) -> None:
    """Scalars of the heads: `[H]` and in the range of `Dynamics`, nu finite (kappa would be infinite with it)."""
    d = dynamics
    rules = {
        "mu": (d.mu, "finite and >= 0", d.mu.isfinite() & (d.mu >= 0)),
        "sigma2": (d.sigma2, "finite and >= 0", d.sigma2.isfinite() & (d.sigma2 >= 0)),
        "eta2": (d.eta2, "finite and > 0", d.eta2.isfinite() & (d.eta2 > 0)),
        "gamma2": (d.gamma2, "finite and >= 0", d.gamma2.isfinite() & (d.gamma2 >= 0)),
        "nu": (d.nu, "finite and > 2", d.nu.isfinite() & (d.nu > 2)),
        "tau": (d.tau, "finite and > 0", d.tau.isfinite() & (d.tau > 0)),
    }
    for name, (value, _, _) in rules.items():
        if value.shape != (d.n_heads,):
            raise ValueError(f"{name} must have shape [{d.n_heads}], one per head, got {list(value.shape)}")
    # One look at the data for all of them.
    if torch.compiler.is_compiling() or bool(torch.stack([holds for _, _, holds in rules.values()]).all()):
        return
    for name, (value, expected, holds) in rules.items():
        if not bool(holds.all()):
            raise ValueError(f"{name} must be {expected}, got {value.tolist()}")


def check_times(times: Tensor, batch: int, length: int) -> None:
    """times: `[N]` or `[B, N]`, finite and non-decreasing."""
    if tuple(times.shape) not in ((length,), (batch, length)):
        raise ValueError(f"times must have shape [{length}] or [{batch}, {length}], got {list(times.shape)}")
    if torch.compiler.is_compiling():
        return
    times = times.to(torch.float64)  # differences of unsigned integers would wrap
    is_finite = torch.isfinite(times)
    if not bool(is_finite.all()):
        raise ValueError(f"times must be finite, got {times[~is_finite][0].item()}")
    steps = times.diff(dim=-1)
    if bool((steps < 0).any()):
        raise ValueError(f"times must be non-decreasing, got a step of {steps.min().item()}")
