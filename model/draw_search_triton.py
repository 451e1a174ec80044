"""Device functions and kernels that find the last token that top_k and top_p retain in a row. They are three steps of
`draw_triton`.

Nothing is sorted. A token is retained if the number, or the weight, of all better tokens is below a bound. The last
retained token is the best token at which the number or weight of all tokens that are at least as good reaches the
bound.

1. Edges divide the range of exponents of a row into intervals. Every block sums the number and weight of its tokens
   above each edge (`edge_sums`).
2. The sums of all blocks determine the two edges between which the search ends (`narrow_kernel`). Tokens between them
   are listed by block, and tokens above them are summed.
3. One program per row finds the last retained token in the list (`last_rank`), by a search over the bits of its ranks.

The edges determine only the length of the list. If all logits are equal, it contains the complete row.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.draw_rank_triton import extents, filters, number_of, quotient, ranks, scaled_weights

# Bound on the relative error of the float32 sums that choose the edges. It allows for thousands of rounding errors of
# the same sign.
MARGIN = tl.constexpr(2.0**-10)
# Number of edges that a thread sums at a time.
EDGES_AT_ONCE = tl.constexpr(4)
LN2 = tl.constexpr(0.6931471805599453)
# If 1 - top_p is below 2 to this power, rounding may reduce it to 0.
LEAST_LEFT_OUT = tl.constexpr(-40)
# Bounds outside the range of ranks, whose difference fits into int64.
LOWEST_RANK = tl.constexpr(-(2**62))
HIGHEST_RANK = tl.constexpr(2**62 - 1)


@triton.jit
def lowest_edge(lowest, top_p, is_cut, UNIT_BITS: tl.constexpr, TOKEN_BITS: tl.constexpr):
    """Return the exponent of the lowest logit, or a higher exponent below which weights have no effect.

    A weight has no effect if it is less than one unit. If only top_p excludes tokens, it also has no effect if the sum
    of V such weights is less than half of 1 - top_p.
    """
    bottom = tl.cast(-(UNIT_BITS + 2) * LN2, tl.float32)
    if (top_p < float("inf")) & (is_cut == 0):
        left_out = ((1.0 - top_p).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        if left_out > LEAST_LEFT_OUT:
            bottom = tl.maximum(bottom, (left_out - TOKEN_BITS - 1).to(tl.float32) * LN2)
    return tl.maximum(bottom, lowest)


@triton.jit
def edges(lowest, o_w, EDGES: tl.constexpr):
    """Return EDGES evenly spaced exponents in [lowest, 0), in ascending order."""
    return lowest * ((EDGES - o_w).to(tl.float32) / EDGES)


@triton.jit
def edge_sums(p_shares, p_places, b_exponent, b_scaled, lowest, is_nucleus, is_cut, EDGES: tl.constexpr):
    """For each edge, store the weight (if is_nucleus) and the number (if is_cut) of the tokens of a block at or above
    the edge, `[EDGES]` each."""
    AT_ONCE: tl.constexpr = min(EDGES, EDGES_AT_ONCE)
    for first in tl.static_range(0, EDGES, AT_ONCE):
        o_w = first + tl.arange(0, AT_ONCE)  # [W]
        m_wv = b_exponent[None, :] >= edges(lowest, o_w, EDGES)[:, None]  # [W, V]
        if is_nucleus:
            tl.store(p_shares + o_w, tl.sum(tl.where(m_wv, b_scaled[None, :], 0.0), axis=1))
        if is_cut:
            tl.store(p_places + o_w, tl.sum(m_wv.to(tl.int32), axis=1))


@triton.jit
def bin_of(
    p_shares, p_places, p_sums, lowest, top_p, last_place, is_nucleus, is_cut,
    BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Return exponents low and high such that the exponent of the last retained token is in [low, high). They are equal
    if no search is needed."""
    o_j, o_w = tl.arange(0, BLOCK_J), tl.arange(0, EDGES)
    o_jw = o_j[:, None] * EDGES + o_w[None, :]  # [J, W]
    m_share, m_place = o_j < tl.where(is_nucleus, BLOCKS, 0), o_j < tl.where(is_cut, BLOCKS, 0)  # [J], [J]
    b_sum = tl.load(p_sums + 3 * o_j, mask=o_j < BLOCKS, other=0)  # [J]
    b_shares = tl.load(p_shares + o_jw, mask=m_share[:, None], other=0.0)  # [J, W]
    b_places = tl.load(p_places + o_jw, mask=m_place[:, None], other=0)  # [J, W]
    b_share, b_place = tl.sum(b_shares, axis=0), tl.sum(b_places, axis=0)  # [W], [W]
    total = tl.sum(b_sum, axis=0).to(tl.float32)

    # The k-th token is at or above this edge and below the next one. If the index is -1, the token is below all edges,
    # where weights are 0.
    i_kth = tl.sum((b_place > last_place).to(tl.int32), axis=0) - 1
    i_low, i_high = tl.maximum(i_kth, 0), i_kth + 1
    if is_nucleus:
        share = top_p.to(tl.float32)
        least = tl.where(i_kth >= 0, tl.sum(tl.where(o_w == i_high, b_share, 0.0), axis=0), total)
        i_high = EDGES - tl.sum((b_share * (1.0 + MARGIN) < least * share).to(tl.int32), axis=0)
        reached = tl.sum((b_share * (1.0 - MARGIN) >= total * share).to(tl.int32), axis=0) - 1
        i_low = tl.where(i_kth >= 0, i_kth, tl.maximum(reached, 0))
    high = tl.where(i_high < EDGES, edges(lowest, i_high, EDGES), float("inf"))
    return edges(lowest, i_low, EDGES), high


# The alignment of these arrays depends on the number of rows.
@triton.jit(do_not_specialize_on_alignment=["p_top_p", "p_last_place", "p_temperature"])
def narrow_kernel(
    p_logits, p_extents, p_top_p, p_last_place, p_temperature, p_lowest, p_shares, p_places, p_sums,
    p_ranks, p_weights, p_above, p_counts,
    VOCABULARY: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr,
    UNIT_BITS: tl.constexpr, TOKEN_BITS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """List the ranks and weights of the tokens in block j of row b that are between the two edges, in program (b, j).

    It also stores the weight of the tokens above them, `[B, J]`, and the number of listed tokens and of those above,
    `[B, J, 2]`.
    """
    i_b, i_j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top_p, last_place, is_nucleus, is_cut = filters(p_top_p + i_b, p_last_place + i_b, VOCABULARY)
    if is_nucleus | is_cut:
        # These are loaded before the sums over the row, which wait for all threads.
        temperature, lowest = tl.load(p_temperature + i_b), tl.load(p_lowest + i_b)
        best = tl.load(p_extents + 2 * (BLOCKS * i_b + i_j) + 1)
        _, b_high = extents(p_extents + 2 * BLOCKS * i_b, BLOCKS, BLOCK_J)  # [J]
        low, high = bin_of(
            p_shares + i_b * BLOCKS * EDGES, p_places + i_b * BLOCKS * EDGES, p_sums + 3 * BLOCKS * i_b,
            lowest, top_p, last_place, is_nucleus, is_cut, BLOCKS, BLOCK_J, EDGES,
        )  # fmt: skip
        top = number_of(tl.max(b_high, axis=0))
        above, n_above, n_listed = tl.cast(0, tl.int64), tl.cast(0, tl.int32), tl.cast(0, tl.int32)
        # Most blocks do not contain such a token.
        if quotient(number_of(best) - top, temperature) >= low:
            o_v = i_j * BLOCK + tl.arange(0, BLOCK)  # [V]
            m_v = o_v < VOCABULARY  # [V]
            b_x = tl.load(p_logits + i_b * VOCABULARY + o_v, mask=m_v, other=float("-inf"))  # [V]
            b_exponent = quotient(b_x - top, temperature)  # [V]
            b_weight = scaled_weights(b_exponent, UNIT_BITS).to(tl.int64)  # [V]
            if last_place == 0:
                b_weight = tl.where(b_exponent >= 0.0, b_weight, 0)  # [V]
            m_above = b_exponent >= high  # [V]
            m_listed = (b_exponent >= low) & (b_exponent < high)  # [V]
            above = tl.sum(tl.where(m_above, b_weight, 0), axis=0)
            n_above = tl.sum(m_above.to(tl.int32), axis=0)
            b_place = tl.cumsum(m_listed.to(tl.int32), axis=0)  # [V]
            n_listed = tl.max(b_place, axis=0)
            o_listed = i_b * VOCABULARY + i_j * BLOCK + b_place - 1  # [V]
            tl.store(p_ranks + o_listed, ranks(b_x, o_v, TOKEN_BITS), mask=m_listed)
            tl.store(p_weights + o_listed, b_weight, mask=m_listed)
        i_bj = i_b * BLOCKS + i_j
        tl.store(p_above + i_bj, above)
        tl.store(p_counts + 2 * i_bj, n_listed)
        tl.store(p_counts + 2 * i_bj + 1, n_above)


@triton.jit
def listed(p_counts, first, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, PART: tl.constexpr):
    """Return the positions in the list of PART entries per block, starting at entry `first` of each block, and a
    mask."""
    o_n = tl.arange(0, BLOCK_J * PART)  # [N]
    o_j, o_own = o_n // PART, first + o_n % PART  # [N]
    return o_j * BLOCK + o_own, o_own < tl.load(p_counts + 2 * o_j, mask=o_j < BLOCKS, other=0)


@triton.jit
def span(
    p_ranks, p_counts, most, least, beyond,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Return the lowest rank of the list in [least, beyond), and the highest rank plus one."""
    b_low = tl.full([BLOCK_J * PART], HIGHEST_RANK, tl.int64)  # [N]
    b_high = tl.full([BLOCK_J * PART], LOWEST_RANK, tl.int64)  # [N]
    for first in range(0, most, PART):
        o_n, m_n = listed(p_counts, first, BLOCK, BLOCKS, BLOCK_J, PART)
        b_rank = tl.load(p_ranks + o_n, mask=m_n, other=LOWEST_RANK)  # [N]
        m_n = m_n & (b_rank >= least) & (b_rank < beyond)  # [N]
        b_low = tl.minimum(b_low, tl.where(m_n, b_rank, HIGHEST_RANK))  # [N]
        b_high = tl.maximum(b_high, tl.where(m_n, b_rank, LOWEST_RANK))  # [N]
    return tl.min(b_low, axis=0), tl.max(b_high, axis=0) + 1


@triton.jit
def bound(
    p_ranks, p_weights, p_counts, most, least, beyond, above, need, IS_WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, PART: tl.constexpr, WAY_BITS: tl.constexpr,
):  # fmt: skip
    """Return the highest rank of the list in [least, beyond) whose sum is at least `need`. The sum of the rank `least`
    must be at least `need`.

    The sum of a rank is `above` plus the weights of all listed tokens with this or a higher rank. Without IS_WEIGHED,
    every weight is 1.
    """
    o_way = tl.arange(0, 1 << WAY_BITS)  # [W]
    while beyond - least > 1:
        step = (beyond - least + (1 << WAY_BITS) - 1) >> WAY_BITS
        b_candidate = least + o_way * step  # [W]
        b_sum = tl.zeros([1 << WAY_BITS], tl.int64) + above  # [W]
        for first in range(0, most, PART):
            o_n, m_n = listed(p_counts, first, BLOCK, BLOCKS, BLOCK_J, PART)
            b_rank = tl.load(p_ranks + o_n, mask=m_n, other=LOWEST_RANK)  # [N]
            m_reached = b_rank[None, :] >= b_candidate[:, None]  # [W, N]
            if IS_WEIGHED:
                b_weight = tl.load(p_weights + o_n, mask=m_n, other=0)  # [N]
                b_sum += tl.sum(tl.where(m_reached, b_weight[None, :], 0), axis=1)
            else:
                b_sum += tl.sum(m_reached.to(tl.int32), axis=1)
        b_reached = b_sum.to(need.dtype) >= need  # [W]
        least += tl.maximum(tl.sum(b_reached.to(tl.int32), axis=0) - 1, 0) * step
        beyond = tl.minimum(beyond, least + step)
        # Most of the range contains no logits, so for a list of some hundred entries the search ends after a few
        # iterations.
        least, beyond = span(p_ranks, p_counts, most, least, beyond, BLOCK, BLOCKS, BLOCK_J, PART)
    return least


@triton.jit
def block_sums(
    p_ranks, p_weights, p_counts, most, least,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Return the total weight of the listed tokens with a rank of at least `least`, for each block, `[J]`."""
    b_sum = tl.zeros([BLOCK_J * PART], tl.int64)  # [N]
    for first in range(0, most, PART):
        o_n, m_n = listed(p_counts, first, BLOCK, BLOCKS, BLOCK_J, PART)
        m_n = m_n & (tl.load(p_ranks + o_n, mask=m_n, other=LOWEST_RANK) >= least)  # [N]
        b_sum += tl.load(p_weights + o_n, mask=m_n, other=0)
    return tl.sum(tl.reshape(b_sum, [BLOCK_J, PART]), axis=1)


@triton.jit
def last_of_the_best(
    p_ranks, p_counts, most, least, beyond, n_above, last_place, top, temperature, TOKEN_BITS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, PART: tl.constexpr, WAY_BITS: tl.constexpr,
):  # fmt: skip
    """Return the lowest rank in the list whose exponent is at least that of the token at `last_place`. Several logits
    may have this exponent."""
    kth = bound(
        p_ranks, p_ranks, p_counts, most, least, beyond, n_above, last_place + 1, False,
        BLOCK, BLOCKS, BLOCK_J, PART, WAY_BITS,
    )  # fmt: skip
    exponent = quotient(number_of((kth >> TOKEN_BITS).to(tl.int32)) - top, temperature)
    b_low = tl.full([BLOCK_J * PART], HIGHEST_RANK, tl.int64)  # [N]
    for first in range(0, most, PART):
        o_n, m_n = listed(p_counts, first, BLOCK, BLOCKS, BLOCK_J, PART)
        b_rank = tl.load(p_ranks + o_n, mask=m_n, other=LOWEST_RANK)  # [N]
        b_x = number_of((b_rank >> TOKEN_BITS).to(tl.int32))  # [N]
        m_n = m_n & (quotient(b_x - top, temperature) >= exponent)  # [N]
        b_low = tl.minimum(b_low, tl.where(m_n, b_rank, HIGHEST_RANK))  # [N]
    return tl.min(b_low, axis=0)


@triton.jit
def last_rank(
    p_ranks, p_weights, p_counts, most, above, n_above, total, top_p, last_place, is_nucleus, is_cut, top, temperature,
    TOKEN_BITS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_J: tl.constexpr, PART: tl.constexpr,
    WAY_BITS: tl.constexpr,
):  # fmt: skip
    """Return the lowest retained rank of a row whose list is not empty.

    Args:
        most: Maximum number of entries of a block in the list.
        above, n_above: Weight and number of the tokens that rank higher than the list.
        total: Weight of the row.
        is_cut: Whether the last token that top_k retains is in the list.
    """
    least, beyond = span(p_ranks, p_counts, most, LOWEST_RANK, HIGHEST_RANK, BLOCK, BLOCKS, BLOCK_J, PART)
    if is_cut:
        least = last_of_the_best(
            p_ranks, p_counts, most, least, beyond, n_above, last_place, top, temperature, TOKEN_BITS,
            BLOCK, BLOCKS, BLOCK_J, PART, WAY_BITS,
        )  # fmt: skip
        kept = block_sums(p_ranks, p_weights, p_counts, most, least, BLOCK, BLOCKS, BLOCK_J, PART)
        total = above + tl.sum(kept, axis=0)
    if is_nucleus:
        need = total.to(tl.float64) * top_p
        least = bound(
            p_ranks, p_weights, p_counts, most, least, beyond, above, need, True,
            BLOCK, BLOCKS, BLOCK_J, PART, WAY_BITS,
        )  # fmt: skip
    return least
