"""The public function: validation, the rotating frame, dispatch. Equations in `reference.py`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from model.attention.reference import AttentionResult, attend, relative_attention
from model.attention.validation import (
    IMPLEMENTATIONS,
    check_dynamics,
    check_inputs,
    check_times,
)
from model.config import KERNELS, check_choice
from model.dynamics import Dynamics, rotate, wrapped_phase


def robust_filter_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dynamics: Dynamics,
    *,
    times: Tensor | None = None,
    kernel: Literal["student_t", "gaussian"] = "student_t",
    impl: Literal["auto", "reference"] = "auto",
) -> AttentionResult:
    """Causal Robust Filter Attention.

    Args:
        q, k, v: `[B, N, H, 2D]`, real half first, one floating dtype; float16 and bfloat16 are computed in float32.
        dynamics: of the H heads, with a finite nu (for its limit nu → ∞ take a large one: 1e9 agrees to 1e-7).
        times: `[N]` or `[B, N]`, finite and non-decreasing, in the unit of the dynamics; None = 0, 1, 2, …
        kernel: "student_t" (robust) or "gaussian".
        impl: "reference" (eager) or "auto".

    Returns:
        out in the dtype of q; log_norm and precision in the computing dtype.

    Raises:
        ValueError: shapes, dtypes, dynamics, times or names that do not fit, with what was expected.
    """
    check_choice("kernel", kernel, KERNELS)
    check_choice("impl", impl, IMPLEMENTATIONS)
    check_inputs(q, k, v, dynamics)
    check_dynamics(dynamics)
    batch, length = q.shape[:2]
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    positions = torch.arange(length, device=q.device) if times is None else times
    if times is not None:
        check_times(times, batch, length)
    phase = wrapped_phase(dynamics.omega, positions, dtype)
    rotated_q, rotated_k, rotated_v = (rotate(x.to(dtype), -phase) for x in (q, k, v))
    computed = dynamics.to(dtype)
    if times is None:
        result = relative_attention(rotated_q, rotated_k, rotated_v, computed, kernel=kernel)
    else:
        stamps = times.to(torch.float64).reshape(-1, length)
        result = attend(rotated_q, rotated_k, rotated_v, computed, query_times=stamps, key_times=stamps, kernel=kernel)
    return result._replace(out=rotate(result.out, phase).to(q.dtype))
