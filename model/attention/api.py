"""`robust_filter_attention`: validation, rotation and choice of implementation. Equations in `reference.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult, attend, relative_attention
from rfa.model.attention.validation import (
    AUTO_FLOAT32_WIDTH,
    IMPLEMENTATIONS,
    check_dynamics,
    check_far_field,
    check_inputs,
    check_sequences,
    check_times,
    fused_refusal,
)
from rfa.model.dynamics import Dynamics, rotate, wrapped_phase
from rfa.runtime.text.config import KERNELS, Kernel, check_choice

AttentionImpl = Literal["auto", "reference", "triton"]


def token_positions(length: int, cu_seqlens: Tensor | None, device: torch.device) -> Tensor:
    """Token numbers `[N]`, from 0 in each packed sequence."""
    index = torch.arange(length, device=device)
    if cu_seqlens is None:
        return index
    return index - cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff(), output_size=length)


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dynamics: Dynamics,
    times: Tensor | None,
    cu_seqlens: Tensor | None,
    *,
    kernel: str,
    far_field: float | None,
) -> AttentionResult:
    """The reference on rotated q, k, v, one packed sequence at a time."""
    if cu_seqlens is not None:
        parts = [
            _eager(
                q[:, a:b],
                k[:, a:b],
                v[:, a:b],
                dynamics,
                None if times is None else times[..., a:b],
                None,
                kernel=kernel,
                far_field=far_field,
            )
            for a, b in pairwise(cu_seqlens.tolist())
        ]
        return AttentionResult(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
    if times is None:
        return relative_attention(q, k, v, dynamics, kernel=kernel, far_field=far_field)
    stamps = times.to(torch.float64).reshape(-1, q.shape[1])
    return attend(q, k, v, dynamics, query_times=stamps, key_times=stamps, kernel=kernel)


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phase: Tensor,
    dynamics: Dynamics,
    *,
    times: Tensor | None,
    cu_seqlens: Tensor | None,
    kernel: Kernel,
    far_field: float | None,
) -> AttentionResult:
    """Rotation, the fused kernels, and rotation back."""
    from rfa.model.attention.triton import fused_attention, fused_rotation

    q, k, v = fused_rotation(q, k, v, phase=phase, is_inverse=True)
    result = fused_attention(
        q,
        k,
        v,
        dynamics,
        query_times=times,
        key_times=times,
        query_starts=cu_seqlens,
        key_starts=cu_seqlens,
        kernel=kernel,
        far_field=far_field,
    )
    (out,) = fused_rotation(result.out, phase=phase)
    # Not `_replace`: torch.compile of torch 2.11 cannot trace it.
    return AttentionResult(out, result.log_norm, result.precision)


def _is_faster_eager(dtype: torch.dtype, width: int) -> bool:
    """Whether the fused kernels run heads of `width` reals, but slower than the eager code."""
    return dtype == torch.float32 and width > AUTO_FLOAT32_WIDTH


def runs_fused(
    impl: AttentionImpl,
    device: torch.device,
    dtype: torch.dtype,
    width: int,
    times: Tensor | None = None,
    dynamics: Dynamics | None = None,
) -> bool:
    """Whether the fused kernels run heads of `width` reals with these dynamics.

    Raises:
        ValueError: impl="triton" cannot run them; the message has the reason.
    """
    if impl == "reference" or (impl == "auto" and (device.type != "cuda" or _is_faster_eager(dtype, width))):
        return False
    refusal = fused_refusal(device, dtype, width, times, dynamics)
    if refusal is not None and impl == "triton":
        raise ValueError(f"impl='triton' cannot run this: {refusal}")
    return refusal is None


def robust_filter_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dynamics: Dynamics,
    *,
    times: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    kernel: Kernel = "student_t",
    impl: AttentionImpl = "auto",
    far_field: float | None = None,
) -> AttentionResult:
    """Causal Robust Filter Attention.

    Args:
        q, k, v: `[B, N, H, 2D]`, real half first, one floating dtype. For 16 bits, pairs are computed in float32 and
            the fused kernels round rotated values to 16 bits.
        dynamics: of H heads; nu is finite (1e9 agrees with its limit to 1e-7), in 16 bits at most 1e5 if fused.
        times: `[N]` or `[B, N]`, finite and non-decreasing in each sequence, in the unit of the dynamics; default 0, 1,
            …
        cu_seqlens: `[S + 1]` int32, 0 … N: S sequences packed into a batch of one; no token sees another sequence.
        kernel: "student_t" (robust) or "gaussian".
        impl: "reference" (eager, memory O(N²)), "triton" (fused, memory O(N), no fallback), or "auto": fused on a GPU
            if possible, but eager for float32 of more than 128 reals, where that is faster.
        far_field: allowed error, 1e-8 to 1e-2, without times: keys beyond the horizon log(1 / far_field) / mu of a head
            are summed in closed form (`triton_far.py`). None: no approximation.

    Returns:
        out in the dtype of q; log_norm and precision in the computing dtype.

    Raises:
        ValueError: an argument does not fit, or an explicit impl cannot run the inputs.
    """
    check_choice("kernel", kernel, KERNELS)
    check_choice("impl", impl, IMPLEMENTATIONS)
    check_far_field(far_field, times)
    check_inputs(q, k, v, dynamics)
    check_dynamics(dynamics)
    if cu_seqlens is not None:
        check_sequences(cu_seqlens, q)
    if times is not None:
        check_times(times, q.shape[0], q.shape[1], cu_seqlens)
    out_dtype, dtype = q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
    positions = token_positions(q.shape[1], cu_seqlens, q.device) if times is None else times
    phase = wrapped_phase(dynamics.omega, positions, dtype)
    if runs_fused(impl, q.device, q.dtype, q.shape[-1], times, dynamics):
        return _fused(q, k, v, phase, dynamics, times=times, cu_seqlens=cu_seqlens, kernel=kernel, far_field=far_field)
    q, k, v = (rotate(x.to(dtype), -phase) for x in (q, k, v))
    result = _eager(q, k, v, dynamics.to(dtype), times, cu_seqlens, kernel=kernel, far_field=far_field)
    return AttentionResult(rotate(result.out, phase).to(out_dtype), result.log_norm, result.precision)
