"""Public function `robust_filter_attention`. The equations are in `reference.py`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from rfa.model.attention.reference import AttentionResult, attend, relative_attention
from rfa.model.attention.validation import (
    AUTO_FLOAT32_WIDTH,
    IMPLEMENTATIONS,
    check_dynamics,
    check_inputs,
    check_sequences,
    check_times,
    fused_refusal,
)
from rfa.model.dynamics import Dynamics, rotate, wrapped_phase
from rfa.runtime.text.config import KERNELS, Kernel, check_choice

AttentionImpl = Literal["auto", "reference", "triton"]


def token_positions(length: int, cu_seqlens: Tensor | None, device: torch.device) -> Tensor:
    """Return the token positions, counted from 0 in each packed sequence, `[N]`."""
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
    horizon: float,
) -> AttentionResult:
    """Compute attention of rotated q, k and v with the reference implementation. Packed sequences are processed one at
    a time."""
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
                horizon=horizon,
            )
            for a, b in pairwise(cu_seqlens.tolist())
        ]
        return AttentionResult(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
    if times is None:
        return relative_attention(q, k, v, dynamics, kernel=kernel, horizon=horizon)
    stamps = times.to(torch.float64).reshape(-1, q.shape[1])
    return attend(q, k, v, dynamics, query_times=stamps, key_times=stamps, kernel=kernel, horizon=horizon)


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
) -> AttentionResult:
    """Rotate the inputs, run the fused kernels, and return the result with the output rotated back."""
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
    )
    (out,) = fused_rotation(result.out, phase=phase)
    # torch.compile in torch 2.11 cannot trace `_replace`.
    return AttentionResult(out, result.log_norm, result.precision)


def _is_faster_eager(dtype: torch.dtype, width: int) -> bool:
    """Return whether the reference implementation is faster than the fused kernels for heads of the given width."""
    return dtype == torch.float32 and width > AUTO_FLOAT32_WIDTH


def runs_fused(
    impl: AttentionImpl,
    device: torch.device,
    dtype: torch.dtype,
    width: int,
    times: Tensor | None = None,
    dynamics: Dynamics | None = None,
) -> bool:
    """Return whether the fused kernels are used for the given inputs.

    Args:
        impl: Implementation that the caller requests.
        device, dtype: Device and dtype of the inputs.
        width: Number of real dimensions per head.
        times: Times of the tokens, or None for token positions.
        dynamics: Dynamics of the heads. If None, they are not checked.

    Raises:
        ValueError: If impl="triton" does not support the inputs. The message contains the reason.
    """
    if impl == "reference" or (impl == "auto" and (device.type != "cuda" or _is_faster_eager(dtype, width))):
        return False
    refusal = fused_refusal(device, dtype, width, times, dynamics)
    if refusal is not None and impl == "triton":
        raise ValueError(f"impl='triton' cannot be used here: {refusal}")
    return refusal is None


def robust_filter_attention(
    q: Tensor, k: Tensor, v: Tensor, dynamics: Dynamics, *,
    times: Tensor | None = None, cu_seqlens: Tensor | None = None, kernel: Kernel = "student_t",
    impl: AttentionImpl = "auto", horizon: float = 0.0,
) -> AttentionResult:  # fmt: skip
    """Compute causal Robust Filter Attention.

    Args:
        q, k, v: Tensors `[B, N, H, 2D]` of one floating dtype, with the D real parts followed by the D imaginary parts.
            For 16-bit inputs, the fused kernels compute scores in float32 and round rotated values to 16 bits.
        dynamics: Dynamics of the H heads. nu must be finite; the fused kernels accept nu up to 1e5 in 16 bits.
        times: Times `[N]` or `[B, N]` in the time unit of the dynamics, finite and non-decreasing in each sequence. The
            default is 0, 1, …
        cu_seqlens: Cumulative lengths `[S + 1]`, int32, from 0 to N, of S sequences packed into a batch of one. Tokens
            attend only to their own sequence.
        kernel: "student_t" (robust) or "gaussian".
        impl: "reference" (eager, O(N²) memory), "triton" (fused, O(N) memory), or "auto", which uses the fused kernels
            on a GPU if they support the inputs and are faster.
        horizon: Time from each query to its estimate (RFA C.6). The horizon is added to every lag, and out is rotated
            to the later time. The queries must be the values expected at that time, rotated back to the time of the
            query. Only the reference implementation supports a horizon.

    Returns:
        `AttentionResult` with out in the dtype of q, and log_norm and precision in the dtype of the computation.

    Raises:
        ValueError: If an argument is invalid, or impl="triton" does not support the inputs.
    """
    _check_options(kernel, impl, horizon)
    check_inputs(q, k, v, dynamics)
    check_dynamics(dynamics)
    _check_positions(q, times, cu_seqlens)
    out_dtype, dtype = q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
    positions = token_positions(q.shape[1], cu_seqlens, q.device) if times is None else times
    phase = wrapped_phase(dynamics.omega, positions, dtype)
    if not horizon and runs_fused(impl, q.device, q.dtype, q.shape[-1], times, dynamics):
        return _fused(q, k, v, phase, dynamics, times=times, cu_seqlens=cu_seqlens, kernel=kernel)
    q, k, v = (rotate(x.to(dtype), -phase) for x in (q, k, v))
    result = _eager(q, k, v, dynamics.to(dtype), times, cu_seqlens, kernel=kernel, horizon=horizon)
    if horizon:
        phase = wrapped_phase(dynamics.omega, positions + horizon, dtype)
    return AttentionResult(rotate(result.out, phase).to(out_dtype), result.log_norm, result.precision)


def _check_positions(q: Tensor, times: Tensor | None, cu_seqlens: Tensor | None) -> None:
    if cu_seqlens is not None:
        check_sequences(cu_seqlens, q)
    if times is not None:
        check_times(times, q.shape[0], q.shape[1], cu_seqlens)


def _check_options(kernel: Kernel, impl: AttentionImpl, horizon: float) -> None:
    check_choice("kernel", kernel, KERNELS)
    check_choice("impl", impl, IMPLEMENTATIONS)
    if not 0 <= horizon < math.inf:
        raise ValueError(f"horizon must be a finite number >= 0, got {horizon}")
    if horizon and impl == "triton":
        raise ValueError("impl='triton' cannot be used here: the kernels do not support a horizon")
