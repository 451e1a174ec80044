"""Validate the inputs of Robust Filter Attention.

`fused_refusal` checks the limits of the fused kernels; the other checks apply to every implementation. Checks of values
are skipped in compiled graphs.
"""

from __future__ import annotations

import importlib.util
import os
from itertools import pairwise

import torch
from torch import Tensor

from rfa.model.dynamics import Dynamics
from rfa.model.placement import capability_of, is_simulated

IMPLEMENTATIONS = ("auto", "reference", "triton")
FUSED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Smallest and largest width of heads that fit into one block of the fused kernels.
FUSED_WIDTHS = (16, 256)
# Largest width for which "auto" uses the fused kernels in float32. On an H100, a score takes 41 clocks of an SM in
# eager code, and 4 (width 64), 8 (128) or 180 (256, with spills) in the kernels, as estimated by
# `benchmarks/cost/gpus.py`.
AUTO_FLOAT32_WIDTH = 128
# Largest nu, and largest nu tau, in 16 bits. For larger values, tau (kappa - 1) log V - tau kappa log U is inaccurate
# in float32.
FUSED_NU = 1e5
# The first NVIDIA architecture with bfloat16 products.
FUSED_CAPABILITY = (8, 0)
HAS_TRITON = importlib.util.find_spec("triton") is not None


def check_inputs(q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics) -> None:
    """Check that q, k and v have the same shape `[B, N, H, 2D]`, floating dtype and device, and match the dynamics.

    Raises:
        ValueError: If a tensor is invalid. The message names it.
    """
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
        raise ValueError("q must contain at least one token, got N = 0")
    if dynamics.omega.dim() != 2:
        raise ValueError(f"omega must have shape [H, D], got {list(dynamics.omega.shape)}")
    heads, complex_dims = dynamics.omega.shape
    if q.shape[2:] != (heads, 2 * complex_dims):
        raise ValueError(
            f"dynamics have {heads} heads of {2 * complex_dims} real dimensions, but q has shape {list(q.shape[2:])}"
        )


def check_dynamics(dynamics: Dynamics) -> None:
    """Check that the parameters of the heads have shape `[H]` and valid values, and that nu is finite.

    Raises:
        ValueError: If a parameter is invalid. The message names it.
    """
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
    # Check all rules with one synchronisation of the device.
    if torch.compiler.is_compiling() or bool(torch.stack([holds for _, _, holds in rules.values()]).all()):
        return
    for name, (value, expected, holds) in rules.items():
        if not bool(holds.all()):
            raise ValueError(f"{name} must be {expected}, got {value.tolist()}")


def check_times(times: Tensor, batch: int, length: int, cu_seqlens: Tensor | None = None) -> None:
    """Check that times are `[N]` or `[B, N]`, finite and non-decreasing within each packed sequence.

    Args:
        times: The times.
        batch, length: B and N.
        cu_seqlens: Cumulative lengths of packed sequences, `[S + 1]`.

    Raises:
        ValueError: If times are invalid.
    """
    if tuple(times.shape) not in ((length,), (batch, length)):
        raise ValueError(f"times must have shape [{length}] or [{batch}, {length}], got {list(times.shape)}")
    if torch.compiler.is_compiling():
        return
    times = times.to(torch.float64)  # differences of unsigned integers would wrap
    is_finite = torch.isfinite(times)
    if not bool(is_finite.all()):
        raise ValueError(f"times must be finite, got {times[~is_finite][0].item()}")
    steps = times.diff(dim=-1)
    if cu_seqlens is not None:
        steps[..., cu_seqlens[1:-1] - 1] = 0  # do not compare times of different sequences
    if bool((steps < 0).any()):
        raise ValueError(f"times must be non-decreasing, got a step of {steps.min().item()}")


def check_sequences(cu_seqlens: Tensor, q: Tensor) -> None:
    """Check that cu_seqlens is `[S + 1]` int32 on the device of q, increasing from 0 to N, and that the batch size is
    one.

    Raises:
        ValueError: If cu_seqlens is invalid.
    """
    batch, length = q.shape[:2]
    if batch != 1:
        raise ValueError(f"cu_seqlens requires a batch size of one, got {batch}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens must have shape [S + 1] with S >= 1, got {list(cu_seqlens.shape)}")
    if cu_seqlens.dtype != torch.int32:
        raise ValueError(f"cu_seqlens must be int32, got {cu_seqlens.dtype}")
    if cu_seqlens.device != q.device:
        raise ValueError(f"cu_seqlens must be on the device of q, {q.device}, got {cu_seqlens.device}")
    if torch.compiler.is_compiling():
        return
    starts = cu_seqlens.tolist()
    if starts[0] != 0 or starts[-1] != length:
        raise ValueError(f"cu_seqlens must start at 0 and end at N = {length}, got {starts[0]} and {starts[-1]}")
    if any(end <= start for start, end in pairwise(starts)):
        raise ValueError(f"cu_seqlens must be strictly increasing, because no sequence may be empty, got {starts}")


def fused_refusal(
    device: torch.device, dtype: torch.dtype, width: int, times: Tensor | None = None, dynamics: Dynamics | None = None
) -> str | None:
    """Return the reason why the fused kernels do not support heads of `width` real dimensions with the given inputs, or
    None if they do. nu and tau are not checked in compiled graphs."""
    narrowest, widest = FUSED_WIDTHS
    if not HAS_TRITON:
        return "triton is not installed"
    if dtype not in FUSED_DTYPES:
        return f"it supports {', '.join(map(str, FUSED_DTYPES))}, got {dtype}"
    if not narrowest <= width <= widest:
        return f"it supports heads with {narrowest} to {widest} real dimensions, got {width}"
    if times is not None and times.requires_grad:
        return "it does not support gradients with respect to times"
    if dynamics is not None and dtype.itemsize == 2 and not torch.compiler.is_compiling():
        lightest = (dynamics.nu * dynamics.tau.clamp(min=1.0)).max().item()
        if lightest > FUSED_NU:
            return f"in 16 bits it supports nu and nu · tau up to {FUSED_NU:g}, got {lightest:g}"
    return _device_refusal(device)


def _device_refusal(device: torch.device) -> str | None:
    if is_simulated() or (device.type == "cuda" and torch.version.cuda is not None):
        capability = capability_of(device)
        if capability >= FUSED_CAPABILITY:
            return None
        return f"it needs compute capability {FUSED_CAPABILITY}, but {device} has {capability}"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"it runs on NVIDIA GPUs, and on a CPU in triton's interpreter (TRITON_INTERPRET=1), got {device.type}"


# This attribute has the effect of `torch.compiler.assume_constant_result` without importing the compiler.
_device_refusal._dynamo_marked_constant = True  # type: ignore[attr-defined]
