"""The choice of the next tokens of a batch on a GPU, three kernels: `draw.draw_by_torch` is the reference.

Two go over the blocks of a row side by side: for how far its logits reach, and for their exponentials, which are most
of the work. The third, a program a row, chooses.

Nothing is sorted. A logit's bits, seen as an integer, have its order; with the token behind them there are no ties.
Which logits are the k best, and which tokens are the nucleus, is where the number or the weight of all that are at
least as good reaches a bound: a few turns of a search that sums the row for several candidates at once. The draw
itself sums in the order of the vocabulary.

Weights are formed once and kept in memory as integers; all that is decided after that is the sum and comparison of
integers, so that no order of summing, and no way in which the compiler joins a product with a sum within `exponential`,
can have two places of the kernel see two weights of one token. Quotients are rounded as IEEE asks.

Rows of logits `[V]` float32 of any length, in blocks of at most `LARGEST_BLOCK`.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rfa.model.decoder_triton import exponential
from rfa.model.draw import SUM_BITS, Distribution, Drawn, token_bits
from rfa.model.language import StepOutput

# Logits of a block, and how many of them a warp has.
LARGEST_BLOCK = 4096
OF_A_WARP = 256
# Candidates of a turn of the search, as a power of two.
WAY_BITS = 2
# e to the power of this is none of the units in which weights are integers.
NO_WEIGHT = tl.constexpr(-64.0)
# What of an integer below 0 turns the order of its numbers round: all bits but the sign.
WITHOUT_SIGN = tl.constexpr(0x7FFFFFFF)


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
    """Logits as int64 in their order and, if there are bits for it, of equal ones the first token above the others."""
    b_rank = ordered(b_x).to(tl.int64) << TOKEN_BITS
    if TOKEN_BITS > 0:
        b_rank += (1 << TOKEN_BITS) - 1 - o_token
    return b_rank


@triton.jit
def integer_weights(b_exponent, UNIT_BITS: tl.constexpr):
    """exp of exponents of at most 0 as int64, in units of 2^-UNIT_BITS."""
    return (exponential(tl.maximum(b_exponent, NO_WEIGHT)) * (1 << UNIT_BITS)).to(tl.int64)


@triton.jit
def bound(
    p_logits, p_weights, least, beyond, need, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, TOKEN_BITS: tl.constexpr,
    WAY_BITS: tl.constexpr, IS_WEIGHED: tl.constexpr,
):  # fmt: skip
    """The highest rank in [least, beyond) that with all above it has at least the weight `need`, which `least` has; and
    that weight. Without IS_WEIGHED a logit weighs 1."""
    o_way = tl.arange(0, 1 << WAY_BITS)  # [W]
    weight = tl.cast(0, tl.int64)
    while beyond - least > 1:
        step = (beyond - least + (1 << WAY_BITS) - 1) >> WAY_BITS
        b_candidate = least + o_way * step  # [W]
        b_sum = tl.zeros([1 << WAY_BITS, BLOCK], tl.int64)  # [W, V]
        for first in range(0, VOCABULARY, BLOCK):
            o_v = first + tl.arange(0, BLOCK)  # [V]
            m_v = o_v < VOCABULARY  # [V]
            b_rank = ranks(tl.load(p_logits + o_v, mask=m_v, other=0.0), o_v, TOKEN_BITS)  # [V]
            if IS_WEIGHED:
                b_weight = tl.load(p_weights + o_v, mask=m_v, other=0)  # [V]
            else:
                b_weight = m_v.to(tl.int64)  # [V]
            b_sum += tl.where(b_rank[None, :] >= b_candidate[:, None], b_weight[None, :], 0)
        b_sums = tl.sum(b_sum, axis=1)  # [W]
        i_way = tl.maximum(tl.sum((b_sums.to(need.dtype) >= need).to(tl.int32), axis=0) - 1, 0)
        weight = tl.sum(tl.where(o_way == i_way, b_sums, 0), axis=0)
        least += i_way * step
        beyond = least + step
    return least, weight


@triton.jit
def is_broken(p_x, N: tl.constexpr, BLOCK_N: tl.constexpr):
    """1 if one of N numbers is not finite, else 0."""
    o_n = tl.arange(0, BLOCK_N)
    b_x = tl.load(p_x + o_n, mask=o_n < N, other=0.0)  # [N]
    return tl.max(tl.where(tl.abs(b_x) < float("inf"), 0, 1), axis=0)


@triton.jit
def extent_kernel(p_logits, p_extents, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Program (b, j): of block j of row b the lowest and the highest as `ordered` has them, and 1 if one is not finite,
    else 0; `[B, J, 3]` int32."""
    i_b, i_j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_v = i_j * BLOCK + tl.arange(0, BLOCK)  # [V]
    m_v = o_v < VOCABULARY  # [V]
    b_x = tl.load(p_logits + i_b * VOCABULARY + o_v, mask=m_v, other=0.0)  # [V]
    b_key = ordered(b_x)  # [V]
    p_extents += 3 * (i_b * tl.num_programs(1) + i_j)
    tl.store(p_extents, tl.min(tl.where(m_v, b_key, 0x7FFFFFFF), axis=0))
    tl.store(p_extents + 1, tl.max(tl.where(m_v, b_key, -0x80000000), axis=0))
    tl.store(p_extents + 2, tl.max(tl.where(tl.abs(b_x) < float("inf"), 0, 1), axis=0))


@triton.jit
def extent(p_extents, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr):
    """What `extent_kernel` says of a block, of the whole row."""
    o_j = tl.arange(0, BLOCK_J)  # [J]
    m_j = o_j < BLOCKS  # [J]
    low = tl.min(tl.load(p_extents + 3 * o_j, mask=m_j, other=0x7FFFFFFF), axis=0)
    high = tl.max(tl.load(p_extents + 3 * o_j + 1, mask=m_j, other=-0x80000000), axis=0)
    return low, high, tl.max(tl.load(p_extents + 3 * o_j + 2, mask=m_j, other=0), axis=0)


@triton.jit
def exponent_of(key, top, temperature):
    """Of a logit, as `ordered` has it. Several logits may have one."""
    return tl.div_rn(number_of(key) - top, temperature)


@triton.jit(do_not_specialize_on_alignment=["p_last_place", "p_temperature", "p_calibration"])
def weigh_kernel(
    p_logits, p_extents, p_last_place, p_temperature, p_calibration, p_weights, p_sums,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, UNIT_BITS: tl.constexpr,
):  # fmt: skip
    """Program (b, j): the weights of block j of row b at its temperature, of the best logit alone where only the first
    place is wanted; their sum, and those of all weights as they are and at the calibration's temperature, `[B, J, 3]`
    int64."""
    i_b, i_j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low, high, _ = extent(p_extents + 3 * BLOCKS * i_b, BLOCKS, BLOCK_J)
    top, temperature, calibration = number_of(high), tl.load(p_temperature + i_b), tl.load(p_calibration)
    least = exponent_of(tl.where(tl.load(p_last_place + i_b) == 0, high, low), top, temperature)
    o_v = i_j * BLOCK + tl.arange(0, BLOCK)  # [V]
    m_v = o_v < VOCABULARY  # [V]
    b_x = tl.load(p_logits + i_b * VOCABULARY + o_v, mask=m_v, other=0.0)  # [V]
    b_exponent = tl.div_rn(b_x - top, temperature)  # [V]
    b_weight = tl.where(m_v & (b_exponent >= least), integer_weights(b_exponent, UNIT_BITS), 0)  # [V]
    tl.store(p_weights + i_b * VOCABULARY + o_v, b_weight, mask=m_v)
    b_plain = tl.where(m_v, integer_weights(b_x - top, UNIT_BITS), 0)  # [V]
    b_exponent = tl.div_rn(b_x, calibration) - tl.div_rn(top, calibration)  # [V]
    b_calibrated = tl.where(m_v, integer_weights(b_exponent, UNIT_BITS), 0)  # [V]
    p_sums += 3 * (i_b * BLOCKS + i_j)
    tl.store(p_sums, tl.sum(b_weight, axis=0))
    tl.store(p_sums + 1, tl.sum(b_plain, axis=0))
    tl.store(p_sums + 2, tl.sum(b_calibrated, axis=0))


@triton.jit
def cut(p_logits, p_weights, top, least, temperature, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Take away the weights of exponents below `least`; the sum of what is left."""
    b_total = tl.zeros([BLOCK], tl.int64)  # [V]
    for first in range(0, VOCABULARY, BLOCK):
        o_v = first + tl.arange(0, BLOCK)  # [V]
        m_v = o_v < VOCABULARY  # [V]
        b_exponent = tl.div_rn(tl.load(p_logits + o_v, mask=m_v, other=0.0) - top, temperature)  # [V]
        b_weight = tl.where(b_exponent >= least, tl.load(p_weights + o_v, mask=m_v, other=0), 0)  # [V]
        tl.store(p_weights + o_v, b_weight, mask=m_v)
        b_total += b_weight
    return tl.sum(b_total, axis=0)


@triton.jit
def token_at(
    p_logits, p_weights, mark, least, begin, end, before,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, TOKEN_BITS: tl.constexpr,
):  # fmt: skip
    """The first token with which the weights of ranks of at least `least`, summed by token, are more than the mark: of
    those in [begin, end), with the weight `before` of all before them."""
    token = tl.cast(0, tl.int32)
    for first in range(begin, end, BLOCK):
        o_v = first + tl.arange(0, BLOCK)  # [V]
        m_v = o_v < VOCABULARY  # [V]
        b_rank = ranks(tl.load(p_logits + o_v, mask=m_v, other=0.0), o_v, TOKEN_BITS)  # [V]
        b_weight = tl.load(p_weights + o_v, mask=m_v & (b_rank >= least), other=0)  # [V]
        weight = tl.sum(b_weight, axis=0)
        if (before <= mark) & (mark < before + weight):
            b_is_passed = before + tl.cumsum(b_weight, axis=0) <= mark  # [V]
            token = first + tl.sum(b_is_passed.to(tl.int32), axis=0)
        before += weight
    return token


# Of rows laid side by side the addresses are divisible by whatever the number of rows is.
@triton.jit(
    do_not_specialize=["n_rows"],
    do_not_specialize_on_alignment=[
        "p_log_precision", "p_slots_finite", "p_top_p", "p_uniform", "p_last_place", "p_temperature", "p_tokens",
        "p_told", "p_numbers",
    ],
)  # fmt: skip
def draw_kernel(
    p_logits, p_log_precision, p_latent, p_slots_finite, p_top_p, p_uniform, p_last_place, p_temperature,
    p_tokens, p_told, p_numbers, p_extents, p_sums, p_weights, n_rows,
    VOCABULARY: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK_J: tl.constexpr, TOKEN_BITS: tl.constexpr, WAY_BITS: tl.constexpr,
):  # fmt: skip
    """Program b: the token of row b, and what is told of it."""
    i_b = tl.program_id(0).to(tl.int64)
    p_logits += i_b * VOCABULARY
    p_weights += i_b * VOCABULARY
    low, high, broken = extent(p_extents + 3 * BLOCKS * i_b, BLOCKS, BLOCK_J)
    o_j = tl.arange(0, BLOCK_J)  # [J]
    p_sums += 3 * (BLOCKS * i_b + o_j)
    m_j = o_j < BLOCKS  # [J]
    b_sum = tl.load(p_sums, mask=m_j, other=0)  # [J]
    weight = tl.sum(b_sum, axis=0)

    # Without a search the sums of the blocks tell in which of them the token is.
    top, last_place, top_p = number_of(high), tl.load(p_last_place + i_b), tl.load(p_top_p + i_b)
    mark = (weight.to(tl.float64) * tl.load(p_uniform + i_b)).to(tl.int64)
    i_j = tl.minimum(tl.sum((tl.cumsum(b_sum, axis=0) <= mark).to(tl.int32), axis=0), BLOCKS - 1)
    is_cut = (last_place > 0) & (last_place < VOCABULARY - 1)
    is_searched = is_cut | (top_p < float("inf"))
    begin, end = tl.where(is_searched, 0, i_j * BLOCK), tl.where(is_searched, VOCABULARY, (i_j + 1) * BLOCK)
    before = tl.where(is_searched, 0, tl.sum(tl.where(o_j < i_j, b_sum, 0), axis=0))
    if is_cut:
        kth, _ = bound(
            p_logits, p_weights, low.to(tl.int64), high.to(tl.int64) + 1, last_place + 1,
            VOCABULARY, BLOCK, 0, WAY_BITS, False,
        )  # fmt: skip
        temperature = tl.load(p_temperature + i_b)
        least = exponent_of(kth.to(tl.int32), top, temperature)
        weight = cut(p_logits, p_weights, top, least, temperature, VOCABULARY, BLOCK)
    tl.debug_barrier()  # weights are read by other threads than have written them

    rank = low.to(tl.int64) << TOKEN_BITS
    if top_p < float("inf"):
        rank, weight = bound(
            p_logits, p_weights, rank, (high.to(tl.int64) + 1) << TOKEN_BITS, weight.to(tl.float64) * top_p,
            VOCABULARY, BLOCK, TOKEN_BITS, WAY_BITS, True,
        )  # fmt: skip
    mark = (weight.to(tl.float64) * tl.load(p_uniform + i_b)).to(tl.int64)
    token = token_at(p_logits, p_weights, mark, rank, begin, end, before, VOCABULARY, BLOCK, TOKEN_BITS)

    broken = tl.maximum(broken, is_broken(p_latent + i_b * LATENT, LATENT, BLOCK_L))
    broken = tl.where(tl.abs(tl.load(p_log_precision + i_b)) < float("inf"), broken, 1)
    tl.store(p_tokens + i_b, token.to(tl.int64))
    tl.store(p_told + i_b, tl.sum(tl.load(p_sums + 1, mask=m_j, other=0), axis=0))
    tl.store(p_told + n_rows + i_b, tl.sum(tl.load(p_sums + 2, mask=m_j, other=0), axis=0))
    tl.store(p_numbers + i_b, top)
    tl.store(p_numbers + n_rows + i_b, tl.load(p_logits + token))
    tl.store(p_numbers + 2 * n_rows + i_b, tl.where(broken == 0, 1.0, 0.0))
    tl.store(p_numbers + 3 * n_rows + i_b, tl.load(p_slots_finite + i_b))


def draw_by_kernel(output: StepOutput, slots_finite: torch.Tensor, given: Distribution, out: Drawn) -> None:
    """See `draw.draw`."""
    logits, log_precision, latents = (part.contiguous() for part in output)
    rows, vocabulary = logits.shape
    latent, bits = latents[0].numel(), token_bits(vocabulary)
    block = min(LARGEST_BLOCK, triton.next_power_of_2(vocabulary))
    blocks = triton.cdiv(vocabulary, block)
    extents = logits.new_empty((rows, blocks, 3), dtype=torch.int32)
    sums, weights = (logits.new_empty(shape, dtype=torch.int64) for shape in ((rows, blocks, 3), (rows, vocabulary)))
    warps = max(1, block // OF_A_WARP)
    many = {"BLOCKS": blocks, "BLOCK_J": triton.next_power_of_2(blocks)}
    with torch.cuda.device_of(logits):
        extent_kernel[(rows, blocks)](logits, extents, VOCABULARY=vocabulary, BLOCK=block, num_warps=warps)
        weigh_kernel[(rows, blocks)](
            logits, extents, given.last_place, given.temperature, given.calibration, weights, sums,
            VOCABULARY=vocabulary, BLOCK=block, **many, UNIT_BITS=SUM_BITS - bits, num_warps=warps,
        )  # fmt: skip
        draw_kernel[(rows,)](
            logits, log_precision, latents, slots_finite, *given[:4], *out, extents, sums, weights, rows,
            VOCABULARY=vocabulary, LATENT=latent, BLOCK=block, BLOCK_L=triton.next_power_of_2(latent), **many,
            TOKEN_BITS=bits, WAY_BITS=WAY_BITS, num_warps=warps,
        )  # fmt: skip
