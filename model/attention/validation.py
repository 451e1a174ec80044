"""Every rule about the inputs of Robust Filter Attention, in one place."""

from __future__ import annotations

import torch
from torch import Tensor

from model.dynamics import Dynamics

KERNELS = ("student_t", "gaussian")
IMPLEMENTATIONS = ("auto", "reference")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def check_inputs(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> None:
    """q, k, v: the same `[B, N, H, 2D]`, floating dtype and device, fitting the dynamics' heads and dims."""
    if q.dim() != 4:
        raise ValueError(f"q must have shape [B, N, H, 2D], got {list(q.shape)}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != q.shape:
            raise ValueError(f"{name} must have the shape of q, {list(q.shape)}, got {list(tensor.shape)}")
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} must have the dtype of q, {q.dtype}, got {tensor.dtype}")
    if not q.dtype.is_floating_point:
        raise ValueError(f"q must be floating point, got {q.dtype}")
    if q.shape[1] < 1:
        raise ValueError("attention needs at least one token, got N = 0")
    heads, complex_dims = dynamics.omega.shape
    if q.shape[2:] != (heads, 2 * complex_dims):
        raise ValueError(f"dynamics have {heads} heads of {2 * complex_dims} reals, q has {list(q.shape[2:])}")


def check_times(times: Tensor, batch: int, length: int) -> None:
    """times: `[N]` or `[B, N]`, finite and non-decreasing."""
    if tuple(times.shape) not in ((length,), (batch, length)):
        raise ValueError(f"times must have shape [{length}] or [{batch}, {length}], got {list(times.shape)}")
    if not bool(torch.isfinite(times.double()).all()):
        raise ValueError("times must be finite")
    if bool((times.diff(dim=-1) < 0).any()):
        raise ValueError("times must be non-decreasing")
