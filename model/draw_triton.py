"""Sample the next tokens on a GPU, in three kernels, or four with top_k or top_p.

The reference implementation is `draw.draw_by_torch`. The first kernels run in parallel over the blocks of a row. They
compute the range of its logits, the sums of their exponentials and, for filtered rows, the list of candidates for the
last retained token (`draw_search_triton`). The final kernel, with one program per row, ends the search and finds the
block and the token. Sums are integers, so their order does not matter.

Rows are logits `[V]` float32 of any length, in blocks of at most `LARGEST_BLOCK`.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rfa.model.draw import SUM_BITS, Distribution, Drawn, token_bits
from rfa.model.draw_rank_triton import extents, filters, number_of, ordered, quotient, ranks, scaled_weights
from rfa.model.draw_search_triton import LOWEST_RANK, block_sums, edge_sums, last_rank, lowest_edge, narrow_kernel
from rfa.model.language import StepOutput

# Number of logits per block, and per warp.
LARGEST_BLOCK = 2048
OF_A_WARP = 256
# Number of edges per row, and logarithm to base 2 of the number of candidates per search iteration.
EDGES = 16
WAY_BITS = 2
# Infinity as mapped by `ordered`.
INFINITE = tl.constexpr(0x7F800000)


@triton.jit
def extent_kernel(p_logits, p_extents, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """Store the lowest and the highest logit of block j of row b, as mapped by `ordered`, in program (b, j), `[B, J,
    2]` int32. NaN is mapped to a value outside the range of numbers."""
    i_b, i_j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_v = i_j * BLOCK + tl.arange(0, BLOCK)  # [V]
    m_v = o_v < VOCABULARY  # [V]
    b_key = ordered(tl.load(p_logits + i_b * VOCABULARY + o_v, mask=m_v, other=0.0))  # [V]
    p_extents += 2 * (i_b * tl.num_programs(1) + i_j)
    tl.store(p_extents, tl.min(tl.where(m_v, b_key, 0x7FFFFFFF), axis=0))
    tl.store(p_extents + 1, tl.max(tl.where(m_v, b_key, -0x80000000), axis=0))


# The alignment of these arrays depends on the number of rows.
@triton.jit(do_not_specialize_on_alignment=["p_top_p", "p_last_place", "p_temperature", "p_calibration"])
def weigh_kernel(
    p_logits, p_extents, p_top_p, p_last_place, p_temperature, p_calibration, p_sums, p_lowest, p_shares, p_places,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr,
    UNIT_BITS: tl.constexpr, TOKEN_BITS: tl.constexpr, EDGES: tl.constexpr, IS_FILTERED: tl.constexpr,
):  # fmt: skip
    """Compute three sums of the weights of each block of each row, `[B, J, 3]` int64. Program (b, j) stores those of
    block j of row b.

    The sums are for the temperature of the row, for temperature 1, and for the calibration temperature. For greedy
    rows, the first sum includes only tokens with the largest logit. For filtered rows, the program also stores the
    lowest edge and the results of `edge_sums`.
    """
    i_b, i_j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_v = i_j * BLOCK + tl.arange(0, BLOCK)  # [V]
    b_x = tl.load(p_logits + i_b * VOCABULARY + o_v, mask=o_v < VOCABULARY, other=float("-inf"))  # [V]
    top_p, last_place, is_nucleus, is_cut = filters(p_top_p + i_b, p_last_place + i_b, VOCABULARY)
    temperature, calibration = tl.load(p_temperature + i_b), tl.load(p_calibration)
    b_low, b_high = extents(p_extents + 2 * BLOCKS * i_b, BLOCKS, BLOCK_J)  # [J], [J]
    low, top = tl.min(b_low, axis=0), number_of(tl.max(b_high, axis=0))
    p_sums += 3 * (i_b * BLOCKS + i_j)
    b_difference = b_x - top  # [V]
    tl.store(p_sums + 1, tl.sum(scaled_weights(b_difference, UNIT_BITS).to(tl.int64), axis=0))
    b_calibrated = quotient(b_x, calibration) - quotient(top, calibration)  # [V]
    tl.store(p_sums + 2, tl.sum(scaled_weights(b_calibrated, UNIT_BITS).to(tl.int64), axis=0))
    b_exponent = quotient(b_difference, temperature)  # [V]
    if last_place == 0:
        b_scaled = tl.where(b_exponent >= 0.0, 1.0 * (1 << UNIT_BITS), 0.0)  # [V]
    else:
        b_scaled = scaled_weights(b_exponent, UNIT_BITS)  # [V]
    tl.store(p_sums, tl.sum(b_scaled.to(tl.int64), axis=0))
    if IS_FILTERED:
        lowest = lowest_edge(quotient(number_of(low) - top, temperature), top_p, is_cut, UNIT_BITS, TOKEN_BITS)
        tl.store(p_lowest + i_b, lowest)  # all programs of a row write the same value
        o_sums = (i_b * BLOCKS + i_j) * EDGES
        edge_sums(p_shares + o_sums, p_places + o_sums, b_exponent, b_scaled, lowest, is_nucleus, is_cut, EDGES)


@triton.jit
def kept(
    p_ranks, p_weights, p_counts, b_sum, b_above, b_count, b_better, top_p, last_place, is_nucleus, is_cut,
    top, temperature,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, TOKEN_BITS: tl.constexpr, PART: tl.constexpr,
    WAY_BITS: tl.constexpr,
):  # fmt: skip
    """Return the lowest retained rank of a row, and the retained weight of its blocks `[J]`.

    Args:
        b_sum: Weight of each block.
        b_above, b_better: Weight and number of the tokens in each block that rank higher than the list.
        b_count: Number of entries of each block in the list.
    """
    rank = tl.cast(LOWEST_RANK, tl.int64)
    most = tl.where(is_nucleus | is_cut, tl.max(b_count, axis=0), 0)
    if most > 0:
        n_above = tl.sum(b_better, axis=0)
        ends_in_list = is_cut & (n_above + tl.sum(b_count, axis=0) > last_place)
        rank = last_rank(
            p_ranks, p_weights, p_counts, most, tl.sum(b_above, axis=0), n_above, tl.sum(b_sum, axis=0), top_p,
            last_place, is_nucleus, ends_in_list, top, temperature, TOKEN_BITS, BLOCK, BLOCKS, BLOCK_J, PART, WAY_BITS,
        )  # fmt: skip
        b_sum = b_above + block_sums(p_ranks, p_weights, p_counts, most, rank, BLOCK, BLOCKS, BLOCK_J, PART)
    return rank, b_sum


@triton.jit(
    do_not_specialize=["n_rows"],
    do_not_specialize_on_alignment=[
        "p_log_precision", "p_slots_finite", "p_top_p", "p_uniform", "p_last_place", "p_temperature", "p_tokens",
        "p_totals", "p_numbers",
    ],
)  # fmt: skip
def draw_kernel(
    p_logits, p_log_precision, p_latent, p_slots_finite, p_top_p, p_uniform, p_last_place, p_temperature,
    p_tokens, p_totals, p_numbers, p_extents, p_sums, p_ranks, p_weights, p_above, p_counts, n_rows,
    VOCABULARY: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_L: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK_J: tl.constexpr, UNIT_BITS: tl.constexpr, TOKEN_BITS: tl.constexpr, PART: tl.constexpr,
    WAY_BITS: tl.constexpr, IS_FILTERED: tl.constexpr,
):  # fmt: skip
    """Sample the token of row b in program b, and write the other outputs of the row."""
    i_b = tl.program_id(0).to(tl.int64)
    p_logits += i_b * VOCABULARY
    # These are loaded before the sums over the row, which wait for all threads.
    top_p, last_place, is_nucleus, is_cut = filters(p_top_p + i_b, p_last_place + i_b, VOCABULARY)
    temperature, uniform = tl.load(p_temperature + i_b), tl.load(p_uniform + i_b)
    log_precision, slots_finite = tl.load(p_log_precision + i_b), tl.load(p_slots_finite + i_b)
    o_l, o_j = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_J)
    m_j = o_j < BLOCKS  # [J]
    b_latent = tl.load(p_latent + i_b * LATENT + o_l, mask=o_l < LATENT, other=0.0)  # [L]
    b_low, b_high = extents(p_extents + 2 * BLOCKS * i_b, BLOCKS, BLOCK_J)  # [J], [J]
    p_sums += 3 * (BLOCKS * i_b + o_j)
    b_sum, b_plain = tl.load(p_sums, mask=m_j, other=0), tl.load(p_sums + 1, mask=m_j, other=0)  # [J], [J]
    b_calibrated = tl.load(p_sums + 2, mask=m_j, other=0)  # [J]
    if IS_FILTERED:
        p_counts += 2 * BLOCKS * i_b
        b_above = tl.load(p_above + BLOCKS * i_b + o_j, mask=m_j, other=0)  # [J]
        b_count = tl.load(p_counts + 2 * o_j, mask=m_j, other=0)  # [J]
        b_better = tl.load(p_counts + 2 * o_j + 1, mask=m_j, other=0)  # [J]
    low, high = tl.min(b_low, axis=0), tl.max(b_high, axis=0)
    top = number_of(high)
    if IS_FILTERED:
        rank, b_sum = kept(
            p_ranks + i_b * VOCABULARY, p_weights + i_b * VOCABULARY, p_counts, b_sum, b_above, b_count, b_better,
            top_p, last_place, is_nucleus, is_cut, top, temperature,
            BLOCK, BLOCKS, BLOCK_J, TOKEN_BITS, PART, WAY_BITS,
        )  # fmt: skip
    # Find the block, and then the token, whose interval contains the uniform number.
    mark = (tl.sum(b_sum, axis=0).to(tl.float64) * uniform).to(tl.int64)
    i_j = tl.minimum(tl.sum((tl.cumsum(b_sum, axis=0) <= mark).to(tl.int32), axis=0), BLOCKS - 1)
    mark -= tl.sum(tl.where(o_j < i_j, b_sum, 0), axis=0)
    o_v = i_j * BLOCK + tl.arange(0, BLOCK)  # [V]
    b_x = tl.load(p_logits + o_v, mask=o_v < VOCABULARY, other=float("-inf"))  # [V]
    b_exponent = quotient(b_x - top, temperature)  # [V]
    b_weight = scaled_weights(b_exponent, UNIT_BITS).to(tl.int64)  # [V]
    if last_place == 0:
        b_weight = tl.where(b_exponent >= 0.0, b_weight, 0)  # [V]
    if IS_FILTERED:
        b_weight = tl.where(ranks(b_x, o_v, TOKEN_BITS) >= rank, b_weight, 0)  # [V]
    token = i_j * BLOCK + tl.sum((tl.cumsum(b_weight, axis=0) <= mark).to(tl.int32), axis=0)
    # Only for rows with NaN, the token may be out of range.
    token = tl.minimum(token, VOCABULARY - 1)
    chosen = tl.load(p_logits + token)
    is_finite = (low > -INFINITE) & (high < INFINITE) & (tl.abs(log_precision) < float("inf"))
    broken = tl.max(tl.where(tl.abs(b_latent) < float("inf"), 0, 1), axis=0)
    tl.store(p_tokens + i_b, token.to(tl.int64))
    tl.store(p_totals + i_b, tl.sum(b_plain, axis=0))
    tl.store(p_totals + n_rows + i_b, tl.sum(b_calibrated, axis=0))
    tl.store(p_numbers + i_b, top)
    tl.store(p_numbers + n_rows + i_b, chosen)
    tl.store(p_numbers + 2 * n_rows + i_b, tl.where(is_finite & (broken == 0), 1.0, 0.0))
    tl.store(p_numbers + 3 * n_rows + i_b, slots_finite)


def draw_by_kernel(
    output: StepOutput, slots_finite: torch.Tensor, given: Distribution, out: Drawn, *, is_filtered: bool
) -> None:
    """Sample the next tokens with kernels. See `draw.draw`."""
    logits, log_precision, latents = (part.contiguous() for part in output)
    rows, vocabulary = logits.shape
    latent, bits = latents[0].numel(), token_bits(vocabulary)
    block = min(LARGEST_BLOCK, triton.next_power_of_2(vocabulary))
    blocks = triton.cdiv(vocabulary, block)
    block_j = triton.next_power_of_2(blocks)

    def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return logits.new_empty(shape, dtype=dtype)

    sizes = {"VOCABULARY": vocabulary, "BLOCK": block}
    parts = {"BLOCKS": blocks, "BLOCK_J": block_j, "UNIT_BITS": SUM_BITS - bits, "TOKEN_BITS": bits}
    warps, by_block = max(1, block // OF_A_WARP), (rows, blocks)
    extents, sums = empty(torch.int32, rows, blocks, 2), empty(torch.int64, rows, blocks, 3)
    marks: tuple[torch.Tensor | None, ...] = (None,) * 3  # lowest edge; weight and count above each edge
    found: tuple[torch.Tensor | None, ...] = (None,) * 4  # ranks and weights of candidates; weight above them; counts
    if is_filtered:
        by_edge = (rows, blocks, EDGES)
        marks = empty(torch.float32, rows), empty(torch.float32, *by_edge), empty(torch.int32, *by_edge)
        ranks, weights = (empty(torch.int64, rows, vocabulary) for _ in range(2))
        found = ranks, weights, empty(torch.int64, rows, blocks), empty(torch.int32, rows, blocks, 2)
    top_p, uniform, last_place, temperature, calibration = given
    with torch.cuda.device_of(logits):
        extent_kernel[by_block](logits, extents, **sizes, num_warps=warps)
        weigh_kernel[by_block](
            logits, extents, top_p, last_place, temperature, calibration, sums, *marks,
            **sizes, **parts, EDGES=EDGES, IS_FILTERED=is_filtered, num_warps=warps,
        )  # fmt: skip
        if is_filtered:
            narrow_kernel[by_block](
                logits, extents, top_p, last_place, temperature, *marks, sums, *found,
                **sizes, **parts, EDGES=EDGES, num_warps=warps,
            )  # fmt: skip
        draw_kernel[(rows,)](
            logits, log_precision, latents, slots_finite, top_p, uniform, last_place, temperature, *out,
            extents, sums, *found, rows,
            **sizes, LATENT=latent, BLOCK_L=triton.next_power_of_2(latent), **parts,
            PART=max(1, block // block_j), WAY_BITS=WAY_BITS, IS_FILTERED=is_filtered, num_warps=warps,
        )  # fmt: skip
