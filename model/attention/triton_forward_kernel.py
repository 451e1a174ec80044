"""Kernel of the forward pass. The algorithm is described in `triton_forward.py`."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_blocks import LENGTHS, block_place, elapsed, first_block, spans
from rfa.model.attention.triton_columns import COLUMNS
from rfa.model.attention.triton_distant import (
    LAG_NUMBERS,
    LARGEST_SHIFT,
    TERMS,
    is_slow_head,
    n_light_distances,
    shifted_row_terms,
)
from rfa.model.attention.triton_forward_blocks import (
    NOTHING,
    distant_addresses,
    distant_block,
    earlier_block,
    empty_state,
    load_head,
    masked_block,
    n_exact_distances,
    near_block,
)
from rfa.model.attention.triton_score import LANES, LN2, accumulated, exponential

# Smallest U as a fraction of |q|². It is larger than the rounding error of R² if q and E k cancel.
ROUNDING = tl.constexpr(2.0**-18)


@triton.jit(do_not_specialize=LENGTHS)
def _forward_kernel(
    p_q, p_k, p_v, p_heads, p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_columns,
    p_rows, p_table, p_marks, p_lags, p_pages, p_out, p_log_norm, p_precision,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, stride_pages, n_heads, n_queries, n_keys, n_blocks, n_distances,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr,
    HAS_TABLE: tl.constexpr, PAGE: tl.constexpr, HEADROOM: tl.constexpr,
    LIMIT: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute out, log_norm and precision of one block of query positions of one head and sequence."""
    i_head, i_sequence = tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own, first_key, length = spans(p_query_starts, p_key_starts, n_queries, n_keys, IS_PACKED)
    # The longest programs run first. Positions rather than queries are divided into blocks, so that lags between blocks
    # are integers.
    start = length - n_own
    i_rows = (length + BM - 1) // BM - 1 - tl.program_id(0)
    if i_rows * BM + BM <= start or i_rows < 0:
        return
    o_row = i_rows * BM + tl.arange(0, BM)  # [BM] positions
    m_row = (o_row >= start) & (o_row < length)  # [BM]
    o_w = tl.arange(0, BLOCK_W)  # [W]
    head = load_head(p_heads, i_head, WIDTH)

    # Only the beginning of a block needs 64 bits. The first block may begin before the first query.
    query = first_query + (i_rows * BM - start)
    o_query = tl.arange(0, BM)  # [BM]
    p_own_q = p_q + i_batch * stride_qb + query * stride_qt + i_head.to(tl.int64) * stride_qh
    m_q = m_row[:, None] & (o_w < WIDTH)[None, :]  # [BM, W]
    b_q = tl.load(p_own_q + (o_query[:, None] * stride_qt + o_w[None, :]), mask=m_q, other=0.0)  # [BM, W]
    b_q2 = tl.sum(b_q.to(tl.float32) * b_q.to(tl.float32), 1)  # [BM]
    p_own_k = p_k + i_batch * stride_kb + i_head.to(tl.int64) * stride_kh
    p_own_v = p_v + i_batch * stride_vb + i_head.to(tl.int64) * stride_vh
    if PAGE == 0:
        p_own_k += first_key * stride_kt
        p_own_v += first_key * stride_vt
    else:
        p_pages += i_sequence * stride_pages
    i_column = i_head.to(tl.int64) * n_blocks + first_block(first_key, i_sequence, n_keys, BN, IS_PACKED)
    p_own_columns = p_columns + i_column * (COLUMNS * BN)
    p_time = p_key_stamps
    b_hi, b_lo = o_row, o_row
    if HAS_STAMPS:
        p_time += i_batch * stride_key_stamps + first_key * 2
        p_query_time = p_query_stamps + i_batch * stride_query_stamps + query * 2 + o_query * 2
        b_hi = tl.load(p_query_time, mask=m_row, other=0.0)  # [BM]
        b_lo = tl.load(p_query_time + 1, mask=m_row, other=0.0)  # [BM]

    n_earlier = i_rows * (BM // BN)
    n_visible = tl.cdiv(tl.minimum(i_rows * BM + BM, length), BN)
    state = empty_state(BM, BLOCK_W)
    for i_block in range(n_earlier, n_visible):
        if HAS_TABLE:
            state = near_block(
                state, b_q, b_q2, p_own_k, p_own_v, p_own_columns, p_pages,
                p_lags + i_head.to(tl.int64) * (LAG_NUMBERS * 2 * BM), stride_kt, stride_vt, i_block,
                i_block - n_earlier, length, head, WIDTH, BLOCK_W, BM, BN, PAGE, WITH_PRECISION, HEADROOM, FAST,
                INTERPRETED,
            )  # fmt: skip
        else:
            state = masked_block(
                state, b_q, b_q2, o_row, b_hi, b_lo, p_own_k, p_own_v, p_time, p_own_columns, p_pages, stride_kt,
                stride_vt, i_block, length, head, WIDTH, BLOCK_W, BN, HAS_STAMPS, PAGE, IS_GAUSSIAN, WITH_PRECISION,
                HEADROOM, FAST, INTERPRETED,
            )  # fmt: skip

    head = load_head(p_heads, i_head, WIDTH)
    mu, sigma2, eta2, gamma2, nu, tau, kappa = head
    if HAS_STAMPS:
        p_first = p_time + tl.maximum(i_rows * BM, start).to(tl.int64) * 2
        first_hi, first_lo = tl.load(p_first), tl.load(p_first + 1)
        b_offset = tl.where(m_row, elapsed(b_hi, b_lo, first_hi, first_lo), 0.0)  # [BM]
    else:
        b_offset = tl.arange(0, BM).to(tl.float32)  # [BM]
    b_row_decay = exponential(-mu * b_offset)  # [BM]
    b_row_process = accumulated(b_offset, exponential(-2.0 * mu * b_offset), mu)  # [BM]
    n_distant = 0
    if HAS_TABLE:
        n_exact = n_exact_distances(p_marks + i_head.to(tl.int64) * n_distances, n_earlier)
        has_small_shift = tl.max(tl.where(m_row, tl.abs(state[2]), 0.0), 0) < LARGEST_SHIFT
        n_distant = tl.where(has_small_shift, tl.maximum(n_earlier - n_exact, 0), 0)
    for i_block in range(n_distant, n_earlier):
        if HAS_STAMPS:
            p_anchor = p_time + tl.cast(i_block * BN + BN - 1, tl.int64) * 2
            gap = elapsed(first_hi, first_lo, tl.load(p_anchor), tl.load(p_anchor + 1))
        else:
            gap = tl.cast((n_earlier - i_block) * BN - (BN - 1), tl.float32)
        state = earlier_block(
            state, b_q, b_q2, b_row_decay, b_row_process, p_own_k, p_own_v, p_own_columns, p_pages, stride_kt,
            stride_vt, i_block, gap, head, WIDTH, BLOCK_W, BN, PAGE, IS_GAUSSIAN, WITH_PRECISION, FAST, INTERPRETED
        )  # fmt: skip

    if HAS_TABLE:
        mu, sigma2, eta2, gamma2, nu, tau, kappa = load_head(p_heads, i_head, WIDTH)
        b_out, b_sum, b_shift, b_evidence = state
        is_slow = is_slow_head(mu, BN)
        steady = sigma2 / tl.where(is_slow, 1.0, 2.0 * mu)
        half_nu = 0.5 * nu
        # Near U = 0, the rounding of R² cannot exceed this fraction of |q|², so U remains positive without a maximum.
        least = half_nu * tl.minimum(eta2 + gamma2, gamma2 + tl.where(is_slow, float("inf"), steady))
        b_lift = tl.maximum(b_q2 * ROUNDING - 0.5 * least, 0.0)  # [BM]
        b_row_total = (
            tl.where(b_shift > NOTHING, 0.5 * b_q2, 0.0) + half_nu * (gamma2 + tl.where(is_slow, 0.0, steady)) + b_lift
        )  # [BM]
        process_scale = tl.where(is_slow, half_nu * sigma2, 0.0)
        b_far_decay = tl.where(b_shift > NOTHING, b_row_decay, 0.0)  # [BM]
        b_far_process = tl.where(b_shift > NOTHING, process_scale * b_row_process, 0.0)  # [BM]
        b_row_terms = shifted_row_terms(p_rows, b_shift, BM)  # [BM, TERMS]
        # Blocks are processed from near to far, and E and phi of the gap follow from those of the previous block.
        gap = tl.cast((n_earlier - n_distant) * BN + 1, tl.float32)
        gap_decay = exponential(-mu * gap)
        gap_process = process_scale * accumulated(gap, exponential(-2.0 * mu * gap), mu)
        block_decay = exponential(-mu * BN)
        block_process = process_scale * accumulated(mu * 0.0 + BN, exponential(-2.0 * mu * BN), mu)
        b_key_decay = exponential(-mu * (BN - 1 - tl.arange(0, BN)).to(tl.float32))  # [BN]
        n_nearer = n_earlier - n_distant
        n_light = tl.minimum(tl.maximum(n_light_distances(mu, BM, BN) - n_nearer, 0), n_distant)
        # If the sums are divided by E, the divisors are at least 2^-LIGHT_EXPONENT.
        light_mu = tl.where(n_light > 0, mu, 0.0)
        factor = 1.0 / exponential(-light_mu * gap)
        block_factor = 1.0 / exponential(-light_mu * BN)
        b_key_factor = 1.0 / exponential(-light_mu * (BN - 1 - tl.arange(0, BN)).to(tl.float32))  # [BN]
        b_sums = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
        b_evidences = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
        step_k, step_v = tl.cast(stride_kt, tl.int64) * BN, tl.cast(stride_vt, tl.int64) * BN
        p_block_k, p_block_v, p_totals = distant_addresses(
            p_own_k, p_own_v, p_own_columns, n_distant - 1, stride_kt, stride_vt, BN
        )
        p_terms = p_table + (i_head.to(tl.int64) * n_distances + n_nearer) * (TERMS * BN)
        for i_farther in range(n_light):
            if PAGE > 0:
                place = block_place(p_pages, n_distant - 1 - i_farther, BN, PAGE)
                p_block_k, p_block_v = p_own_k + place * stride_kt, p_own_v + place * stride_vt
            gap_decay2 = gap_decay * gap_decay
            b_query_total = b_row_total + (gap_process + gap_decay2 * b_far_process)  # [BM]
            b_out, b_sums, b_evidences = distant_block(
                b_out, b_sums, b_evidences, b_q, b_row_terms, -gap_decay * b_far_decay, b_query_total, b_key_decay,
                b_key_factor, factor, p_block_k, p_block_v, p_totals, p_terms, stride_kt, stride_vt, tau * kappa,
                WIDTH, BLOCK_W, BM, BN, True, WITH_PRECISION, FAST, INTERPRETED,
            )  # fmt: skip
            if PAGE == 0:
                p_block_k, p_block_v = p_block_k - step_k, p_block_v - step_v
            p_totals, p_terms = p_totals - COLUMNS * BN, p_terms + TERMS * BN
            gap_process, gap_decay = gap_process + gap_decay2 * block_process, gap_decay * block_decay
            factor *= block_factor
        b_row_factor = 1.0 / exponential(-light_mu * tl.arange(0, BM).to(tl.float32))  # [BM]
        b_sum += tl.sum(b_sums, 1) * b_row_factor  # [BM]
        b_minus_out = -b_out  # [BM, W]
        b_sums = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
        p_block_k, p_block_v, p_totals = distant_addresses(
            p_own_k, p_own_v, p_own_columns, n_distant - n_light - 1, stride_kt, stride_vt, BN
        )
        p_terms = p_table + (i_head.to(tl.int64) * n_distances + n_nearer + n_light) * (TERMS * BN)
        for i_farther in range(n_distant - n_light):
            if PAGE > 0:
                place = block_place(p_pages, n_distant - n_light - 1 - i_farther, BN, PAGE)
                p_block_k, p_block_v = p_own_k + place * stride_kt, p_own_v + place * stride_vt
            gap_decay2 = gap_decay * gap_decay
            b_query_total = b_row_total + (gap_process + gap_decay2 * b_far_process)  # [BM]
            b_minus_out, b_sums, b_evidences = distant_block(
                b_minus_out, b_sums, b_evidences, b_q, b_row_terms, -gap_decay * b_far_decay, b_query_total,
                b_key_decay, b_key_decay, 1.0, p_block_k, p_block_v, p_totals, p_terms, stride_kt, stride_vt,
                tau * kappa, WIDTH, BLOCK_W, BM, BN, False, WITH_PRECISION, FAST, INTERPRETED,
            )  # fmt: skip
            if PAGE == 0:
                p_block_k, p_block_v = p_block_k - step_k, p_block_v - step_v
            p_totals, p_terms = p_totals - COLUMNS * BN, p_terms + TERMS * BN
            gap_process, gap_decay = gap_process + gap_decay2 * block_process, gap_decay * block_decay
        state = -b_minus_out, b_sum + tl.sum(b_sums, 1), b_shift, b_evidence + half_nu * tl.sum(b_evidences, 1)

    if tl.max(tl.where(m_row, state[1], 0.0), 0) > LIMIT:
        head = load_head(p_heads, i_head, WIDTH)
        state = empty_state(BM, BLOCK_W)
        for i_block in range(n_visible):
            state = masked_block(
                state, b_q, b_q2, o_row, b_hi, b_lo, p_own_k, p_own_v, p_time, p_own_columns, p_pages,
                stride_kt, stride_vt, i_block, length, head, WIDTH, BLOCK_W, BN, HAS_STAMPS, PAGE, IS_GAUSSIAN,
                WITH_PRECISION, HEADROOM, FAST, INTERPRETED
            )  # fmt: skip

    b_out, b_sum, b_shift, b_evidence = state
    row = (i_batch * n_queries + query) * n_heads + i_head
    o_own = o_query * n_heads  # [BM]
    b_out = b_out / b_sum[:, None]  # [BM, W]
    o_out = o_own[:, None] * WIDTH + o_w[None, :]  # [BM, W]
    tl.store(p_out + row * WIDTH + o_out, b_out.to(p_out.dtype.element_ty), mask=m_q)
    tl.store(p_log_norm + row + o_own, (b_shift + tl.log2(b_sum)) * LN2, mask=m_row)
    if WITH_PRECISION:
        tl.store(p_precision + row + o_own, b_evidence, mask=m_row)
