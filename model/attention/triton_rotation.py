"""Fused rotation into and out of the rotating frame (`rfa.model.dynamics.rotate`).

    y = e^{i phase} x, or e^{-i phase} x

x is [B, N, H, 2D], real parts first, in float32, float16 or bfloat16. The cosine and sine of the phase are
[1 or B, N, H, D] float32. The result is computed in float32 and rounded to the dtype of x. The gradient of x is the
inverse rotation; the gradient of the phase is not supported.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.attention.triton_blocks import is_interpreted

# Number of complex numbers per program, and of warps per program.
BLOCK = 2048
WARPS = 4


# The kernel is not specialised for lengths; see `triton_blocks.py`.
@triton.jit(do_not_specialize=["n_rows", "n_phases"])
def _rotation_kernel(
    p_x, p_cos, p_sin, p_out, n_rows, n_phases,
    DIMS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, IS_INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_R rows of D complex numbers. Row r of x has the phases of row r modulo n_phases."""
    o_row = (tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]  # [R, 1]
    o_d = tl.arange(0, BLOCK_D)[None, :]  # [1, D]
    m_x = (o_row < n_rows) & (o_d < DIMS)  # [R, D]
    o_x = o_row * (2 * DIMS) + o_d  # [R, D]
    o_phase = (o_row % n_phases) * DIMS + o_d  # [R, D]
    b_cos = tl.load(p_cos + o_phase, mask=m_x, other=0.0)  # [R, D]
    b_sin = tl.load(p_sin + o_phase, mask=m_x, other=0.0)  # [R, D]
    if IS_INVERSE:
        b_sin = -b_sin
    b_real = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)  # [R, D]
    b_imaginary = tl.load(p_x + o_x + DIMS, mask=m_x, other=0.0).to(tl.float32)  # [R, D]
    dtype = p_out.dtype.element_ty
    tl.store(p_out + o_x, (b_real * b_cos - b_imaginary * b_sin).to(dtype), mask=m_x)
    tl.store(p_out + o_x + DIMS, (b_real * b_sin + b_imaginary * b_cos).to(dtype), mask=m_x)


def rotation(x: Tensor, cos: Tensor, sin: Tensor, is_inverse: bool) -> Tensor:
    """Rotate x by the phase into a contiguous tensor. The caller must have validated the arguments."""
    if x.dtype == torch.bfloat16 and is_interpreted():
        # Triton's interpreter truncates to bfloat16, whereas the hardware rounds.
        return rotation(x.float(), cos, sin, is_inverse).to(x.dtype)
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    out = x.new_empty(x.shape)
    dims = cos.shape[-1]
    n_rows, n_phases = x.numel() // (2 * dims), cos.numel() // dims
    block_d = triton.next_power_of_2(dims)
    block_r = max(1, BLOCK // block_d)
    _rotation_kernel[(triton.cdiv(n_rows, block_r),)](
        x, cos, sin, out, n_rows, n_phases,
        DIMS=dims, BLOCK_D=block_d, BLOCK_R=block_r, IS_INVERSE=is_inverse, num_warps=WARPS,
    )  # fmt: skip
    return out
