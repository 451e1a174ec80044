"""The public function: validation, the rotating frame, dispatch. Equations in `reference.py`."""

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
    """Token numbers `[N]`; each packed sequence counts from 0."""
    index = torch.arange(length, device=device)
    if cu_seqlens is None:
        return index
    return index - cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff(), output_size=length)


def _eager(
    rotated: tuple[Tensor, Tensor, Tensor],
    dynamics: Dynamics,
    times: Tensor | None,
    cu_seqlens: Tensor | None,
    kernel: str,
    far_field: float | None,
) -> AttentionResult:
    """The reference on rotated q, k, v; packed sequences one after the other."""
    q, k, v = rotated
    if cu_seqlens is not None:
        parts = [
            _eager(
                (q[:, a:b], k[:, a:b], v[:, a:b]),
                dynamics,
                None if times is None else times[..., a:b],
                None,
                kernel,
                far_field,
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
    times: Tensor | None,
    cu_seqlens: Tensor | None,
    kernel: Kernel,
    far_field: float | None,
) -> AttentionResult:
    """The fused kernels, into the rotating frame and back."""
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
    # The compiler of torch 2.11 stops at the class that `_replace` makes a tuple of.
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
    """Whether the fused kernels run heads of `width` reals with these dynamics; an explicit choice never falls back.

    Raises:
        ValueError: impl="triton" cannot run them, with the reason.
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
        q, k, v: `[B, N, H, 2D]`, real half first, one floating dtype. What is computed per pair is float32 for those of
            16 bits, whose rotated values the fused kernels round to 16 bits again.
        dynamics: of the H heads, with a finite nu (for its limit nu → ∞ take a large one: 1e9 agrees to 1e-7). The
            fused kernels take any nu in float32, and up to 1e5 in 16 bits.
        times: `[N]` or `[B, N]`, finite and non-decreasing, in the unit of the dynamics; None = 0, 1, 2, …
        cu_seqlens: `[S + 1]` int32, 0 … N: S sequences of different lengths, one behind the other in a batch of one.
            None sees its own sequence only; times, where given, are non-decreasing in each.
        kernel: "student_t" (robust) or "gaussian".
        impl: "reference" (eager, memory O(N²)), "triton" (fused, memory O(N); it never falls back), or "auto": fused on
            a GPU where it can, but for float32 of more than 128 reals, of which the eager code should be faster.
        far_field: an error, 1e-8 to 1e-2, for which decaying heads take the keys of their far past in closed form
            (`triton_far.py`): the fused kernels then take time by the horizon log(1 / far_field) / mu, not by N. Only
            without times. None, the default, takes every key as it is.

    Returns:
        out in the dtype of q; log_norm and precision in the computing dtype.

    Raises:
        ValueError: shapes, dtypes, dynamics, times or names that do not fit, with what was expected; or an explicit
            impl that cannot run the inputs, with the reason.
    """
    check_choice("kernel", kernel, KERNELS)
    check_choice("impl", impl, IMPLEMENTATIONS)
    check_far_field(far_field, times)
    check_inputs(q, k, v, dynamics)
    check_dynamics(dynamics)
    batch, length = q.shape[:2]
    if cu_seqlens is not None:
        check_sequences(cu_seqlens, q)
    if times is not None:
        check_times(times, batch, length, cu_seqlens)
    is_fused = runs_fused(impl, q.device, q.dtype, q.shape[-1], times, dynamics)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    positions = token_positions(length, cu_seqlens, q.device) if times is None else times
    phase = wrapped_phase(dynamics.omega, positions, dtype)
    if is_fused:
        return _fused(q, k, v, phase, dynamics, times, cu_seqlens, kernel, far_field)
    rotated_q, rotated_k, rotated_v = (rotate(x.to(dtype), -phase) for x in (q, k, v))
    result = _eager((rotated_q, rotated_k, rotated_v), dynamics.to(dtype), times, cu_seqlens, kernel, far_field)
    return AttentionResult(rotate(result.out, phase).to(q.dtype), result.log_norm, result.precision)
