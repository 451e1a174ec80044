"""Device functions of the sampling kernels, for the order, exponents and weights of logits.

The bits of a logit, read as an integer, preserve its order, and the token id in the lower bits breaks ties. Several
kernels recompute the weight of a token instead of loading it. They compute identical bits, because products and sums
are fused only by explicit `tl.fma`, and quotients are correctly rounded (IEEE 754).
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.functions_triton import LN2_FIRST, LN2_REST, LOG2E

# Exponent whose exponential is less than one unit of the weights.
NO_WEIGHT = tl.constexpr(-64.0)
# An XOR with this mask reverses the order of negative integers.
WITHOUT_SIGN = tl.constexpr(0x7FFFFFFF)
# If this is added to a float32 of at most 2^21, the last bits of the sum contain the nearest integer.
ROUNDS = tl.constexpr(12582912.0)  # 1.5 · 2^23
MINUS_LN2_FIRST, MINUS_LN2_REST = tl.constexpr(-LN2_FIRST.value), tl.constexpr(-LN2_REST.value)


@triton.jit
def ordered(b_x):
    """Map floats to int32 numbers with the same order. Both zeros are mapped to the same number."""
    b_bits = tl.where(b_x == 0.0, 0.0, b_x).to(tl.int32, bitcast=True)
    return tl.where(b_bits < 0, b_bits ^ WITHOUT_SIGN, b_bits)


@triton.jit
def number_of(key):
    """Return the float that `ordered` maps to an integer."""
    return tl.where(key < 0, key ^ WITHOUT_SIGN, key).to(tl.float32, bitcast=True)


@triton.jit
def ranks(b_x, o_token, TOKEN_BITS: tl.constexpr):
    """Map logits to int64 sort keys that preserve their order. Among equal logits, the lower token id ranks higher."""
    return (ordered(b_x).to(tl.int64) << TOKEN_BITS) + ((1 << TOKEN_BITS) - 1 - o_token)


@triton.jit
def quotient(b_x, divisor):
    """Return b_x / divisor, correctly rounded (IEEE 754)."""
    if divisor != 1.0:
        b_x = tl.div_rn(b_x, divisor)
    return b_x


@triton.jit
def scaled_weights(b_exponent, UNIT_BITS: tl.constexpr):
    """Return e^x for exponents x <= 0 as float32, in units of 2^-UNIT_BITS.

    e^x = 2^whole · e^rest. The bits of `whole` become the exponent of a float, which is faster than a conversion.
    """
    b_x = tl.maximum(b_exponent, NO_WEIGHT)
    b_shifted = tl.fma(b_x, LOG2E, ROUNDS)
    b_whole = b_shifted - ROUNDS
    b_rest = tl.fma(b_whole, MINUS_LN2_REST, tl.fma(b_whole, MINUS_LN2_FIRST, b_x))
    b_power = (b_shifted.to(tl.int32, bitcast=True) + (127 + UNIT_BITS)) << 23
    return tl.exp2(b_rest * LOG2E) * b_power.to(tl.float32, bitcast=True)


@triton.jit
def extents(p_extents, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr):
    """Return the lowest and the highest logit of each block of a row, as mapped by `ordered`, `[J]` each."""
    o_j = tl.arange(0, BLOCK_J)  # [J]
    b_low = tl.load(p_extents + 2 * o_j, mask=o_j < BLOCKS, other=0x7FFFFFFF)  # [J]
    return b_low, tl.load(p_extents + 2 * o_j + 1, mask=o_j < BLOCKS, other=-0x80000000)


@triton.jit
def filters(p_top_p, p_last_place, VOCABULARY: tl.constexpr):
    """Return top_p and last_place of a row, whether top_p excludes tokens, and whether top_k excludes tokens.

    last_place is the index of the last token that top_k retains.
    """
    top_p, last_place = tl.load(p_top_p), tl.load(p_last_place)
    return top_p, last_place, top_p < float("inf"), (last_place > 0) & (last_place < VOCABULARY - 1)
