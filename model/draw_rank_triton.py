"""What both files of the draw's kernels have in common: the order of logits, their exponents and their weights.

A logit's bits, seen as an integer, have its order; with the token behind them there are no ties.

Several kernels form the weight of a token, each for itself: memory would hand it over more slowly. That they get the
same bits is laid down: products and sums are joined where `tl.fma` stands, nowhere else is there a product that a sum
follows, and quotients are rounded as IEEE asks.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.decoder_triton import LN2_FIRST, LN2_REST, LOG2E

# e to the power of this is none of the units in which weights are integers.
NO_WEIGHT = tl.constexpr(-64.0)
# What of an integer below 0 turns the order of its numbers round: all bits but the sign.
WITHOUT_SIGN = tl.constexpr(0x7FFFFFFF)
# Added to a float32 of at most 2^21, it leaves the nearest whole number in the last bits.
ROUNDS = tl.constexpr(12582912.0)  # 1.5 · 2^23
MINUS_LN2_FIRST, MINUS_LN2_REST = tl.constexpr(-LN2_FIRST.value), tl.constexpr(-LN2_REST.value)


@triton.jit
def ordered(b_x):
    """Floats as int32 in their order; both zeros are one."""
    b_bits = tl.where(b_x == 0.0, 0.0, b_x).to(tl.int32, bitcast=True)
    return tl.where(b_bits < 0, b_bits ^ WITHOUT_SIGN, b_bits)


@triton.jit
def number_of(key):
    """The float that `ordered` made an int32 of."""
    return tl.where(key < 0, key ^ WITHOUT_SIGN, key).to(tl.float32, bitcast=True)


@triton.jit
def ranks(b_x, o_token, TOKEN_BITS: tl.constexpr):
    """Logits as int64 in their order, and of equal ones the first token above the others."""
    return (ordered(b_x).to(tl.int64) << TOKEN_BITS) + ((1 << TOKEN_BITS) - 1 - o_token)


@triton.jit
def quotient(b_x, divisor):
    """As IEEE rounds it, which takes a dozen instructions."""
    if divisor != 1.0:
        b_x = tl.div_rn(b_x, divisor)
    return b_x


@triton.jit
def scaled_weights(b_exponent, UNIT_BITS: tl.constexpr):
    """exp of exponents of at most 0, in units of 2^-UNIT_BITS, float32.

    The whole number of e^x = 2^whole · e^rest becomes the exponent of a float by its bits: a GPU's conversions and
    roundings are as slow as its exponentials.
    """
    b_x = tl.maximum(b_exponent, NO_WEIGHT)
    b_shifted = tl.fma(b_x, LOG2E, ROUNDS)
    b_whole = b_shifted - ROUNDS
    b_rest = tl.fma(b_whole, MINUS_LN2_REST, tl.fma(b_whole, MINUS_LN2_FIRST, b_x))
    b_power = (b_shifted.to(tl.int32, bitcast=True) + (127 + UNIT_BITS)) << 23
    return tl.exp2(b_rest * LOG2E) * b_power.to(tl.float32, bitcast=True)


@triton.jit
def extents(p_extents, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr):
    """The lowest and the highest logit of each block of a row, as `ordered` has them, `[J]`."""
    o_j = tl.arange(0, BLOCK_J)  # [J]
    b_low = tl.load(p_extents + 2 * o_j, mask=o_j < BLOCKS, other=0x7FFFFFFF)  # [J]
    return b_low, tl.load(p_extents + 2 * o_j + 1, mask=o_j < BLOCKS, other=-0x80000000)


@triton.jit
def filters(p_top_p, p_last_place, VOCABULARY: tl.constexpr):
    """The mass of the nucleus and the last place of a row, and whether these rule out tokens for which to search."""
    top_p, last_place = tl.load(p_top_p), tl.load(p_last_place)
    return top_p, last_place, top_p < float("inf"), (last_place > 0) & (last_place < VOCABULARY - 1)
