"""Elementary functions for the kernels of a decode step. They are more accurate than those of the GPU."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

# If this is added to a float64 of at most 2^51, the last bits of the sum contain the nearest integer.
ROUNDS = tl.constexpr(6755399441055744.0)  # 1.5 · 2^52
QUARTERS = tl.constexpr(0.6366197723675814)  # 2 / pi
QUARTER = tl.constexpr(1.5707963267948966)  # pi / 2
LOG2E = tl.constexpr(1.4426950408889634)
# ln 2 in two parts. Products of the first part with small integers are exact.
LN2_FIRST = tl.constexpr(0.693359375)
LN2_REST = tl.constexpr(-2.1219444005469057e-4)


@triton.jit
def cosine_and_sine(b_phase):
    """Return the float32 cosine and sine of float64 phases. The phases are reduced to a small range in float64 before
    polynomials are evaluated.

    The cosine of the GPU has an error of 5e-7. The polynomials, for phases of at most pi / 4, are those of Cephes
    (cosf, sinf).
    """
    b_shifted = b_phase * QUARTERS + ROUNDS
    b_quarter = b_shifted.to(tl.int64, bitcast=True)
    b_r = (b_phase - (b_shifted - ROUNDS) * QUARTER).to(tl.float32)
    b_r2 = b_r * b_r
    b_sin = ((-1.9515295891e-4 * b_r2 + 8.3321608736e-3) * b_r2 - 1.6666654611e-1) * b_r2 * b_r + b_r
    b_cos = (2.443315711809948e-5 * b_r2 - 1.388731625493765e-3) * b_r2 + 4.166664568298827e-2
    b_cos = b_cos * b_r2 * b_r2 - 0.5 * b_r2 + 1.0
    is_odd = (b_quarter & 1) != 0
    b_real, b_imaginary = tl.where(is_odd, b_sin, b_cos), tl.where(is_odd, b_cos, b_sin)
    is_left, is_below = ((b_quarter + 1) & 2) != 0, (b_quarter & 2) != 0
    return tl.where(is_left, -b_real, b_real), tl.where(is_below, -b_imaginary, b_imaginary)


@triton.jit
def exponential(b_x):
    """Return e^x for |x| up to several dozen. It is accurate although x log2 e is rounded."""
    b_whole = tl.floor(b_x * LOG2E)
    b_rest = (b_x - b_whole * LN2_FIRST) - b_whole * LN2_REST
    return tl.exp2(b_whole) * tl.exp2(b_rest * LOG2E)
