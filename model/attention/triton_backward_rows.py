"""Gradient kernel over blocks of queries, which computes dq and the gradients of the parameters of the heads."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_backward_common import (
    KEY_NUMBERS,
    NO_ROW,
    QUERY_NUMBERS,
    differentiate,
    lag_numbers,
    load_rows,
    load_time,
    load_times,
    minus_phi_slope,
    nu_gradient,
    phi,
    product,
    scaled_head,
    stamps_at,
    transport_gradient,
    variance_slope,
    weigh,
)
from rfa.model.attention.triton_blocks import LENGTHS, elapsed, first_block, spans
from rfa.model.attention.triton_score import LANES, LN2, by_lane, transport


@triton.jit
def _add_pairs(
    b_dq, sums, b_q, b_do, queries, b_k, b_v, b_key, b_decay, b_variance, m_pair, head,
    BM: tl.constexpr, BN: tl.constexpr, IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr,
    NEEDS_DYNAMICS: tl.constexpr, NEEDS_DECAY: tl.constexpr, MASKED: tl.constexpr,
    FAST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Add the pairs of a block of queries and a block of keys to dq and to `sums`: Σ s, Σ dL log2 p, Σ s match and
    Σ dL log2 V/U. Return these, and m and E dE of each pair, which are only defined for gradients that need them."""
    b_query, b_offset, b_norm, b_norm_low, b_h = queries
    b_sum_s, b_sum_tau, b_sum_match, b_sum_fit = sums
    b_dot = product(b_q, tl.trans(b_k), UPCAST)  # [BM, BN]
    weighed = weigh(
        b_dot, b_decay, b_variance, b_query[:, None], b_key[None, :], b_norm[:, None], b_norm_low[:, None], m_pair,
        head, IS_GAUSSIAN, MASKED, FAST,
    )  # fmt: skip
    b_gain = b_decay * product(b_do, tl.trans(b_v), UPCAST)  # [BM, BN]
    b_dl, b_s, b_evidence = differentiate(
        weighed, b_gain, b_offset[:, None], b_h[:, None], m_pair, IS_GAUSSIAN, HAS_PRECISION, MASKED
    )
    b_carried = b_s * b_decay  # [BM, BN]
    b_dq += product(b_carried, b_k, UPCAST)
    b_sum_s += by_lane(b_s, BM, BN)
    b_m, b_direct = b_s, b_s
    if NEEDS_DYNAMICS:
        b_m = variance_slope(weighed, b_dl, b_s, b_evidence, b_variance, head, IS_GAUSSIAN, FAST)  # [BM, BN]
        b_sum_tau += by_lane(b_dl * weighed[1], BM, BN)
        b_sum_match += by_lane(b_s * weighed[4], BM, BN)
        b_sum_fit += by_lane(b_dl * weighed[2], BM, BN)
    if NEEDS_DECAY:
        b_direct = transport_gradient(weighed, b_gain, b_carried, b_decay, b_key[None, :], head)  # [BM, BN]
    return b_dq, (b_sum_s, b_sum_tau, b_sum_match, b_sum_fit), b_m, b_direct


@triton.jit(do_not_specialize=LENGTHS)
def _rows_kernel(
    p_q, p_k, p_v, p_grad_out, p_heads, p_queries, p_keys,
    p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_dq, p_sums,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, n_heads, n_queries, n_keys, n_query_blocks, n_key_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    QUERY_BLOCK: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr,
    HAS_PRECISION: tl.constexpr, NEEDS_DYNAMICS: tl.constexpr, NEEDS_DECAY: tl.constexpr,
    FAST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute dq of a block of queries, and its contribution to the gradients of the parameters of the head.

    The first loop processes the blocks of BD keys that contain or follow some of the queries, and needs a mask. The
    second loop processes the earlier keys in blocks of BN.
    """
    # The longest programs run first.
    i_block, i_head, i_sequence = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own, first_key, length = spans(p_query_starts, p_key_starts, n_queries, n_keys, IS_PACKED)
    first = i_block * BM
    if first >= n_own:
        return
    head = scaled_head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, eta2, gamma2, scale, power, tau, _, log_unit = head
    p_k += i_batch * stride_kb + first_key * stride_kt + i_head.to(tl.int64) * stride_kh
    p_v += i_batch * stride_vb + first_key * stride_vt + i_head.to(tl.int64) * stride_vh
    i_keys = i_head.to(tl.int64) * n_key_blocks + first_block(first_key, i_sequence, n_keys, BN, IS_PACKED)
    p_keys += i_keys * (KEY_NUMBERS * BN)
    p_query_time = stamps_at(p_query_stamps, i_batch * stride_query_stamps + first_query * 2, HAS_STAMPS)
    p_key_time = stamps_at(p_key_stamps, i_batch * stride_key_stamps + first_key * 2, HAS_STAMPS)

    o_query = tl.arange(0, BM)  # [BM]
    m_query = first + o_query < n_own
    token = i_batch * n_queries + first_query + first
    stride_row = n_heads * WIDTH
    p_own = p_q + i_batch * stride_qb + first_query * stride_qt + i_head.to(tl.int64) * stride_qh
    b_q = load_rows(p_own, first, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
    b_do = load_rows(p_grad_out + i_head * WIDTH, token, o_query, m_query, stride_row, WIDTH, BLOCK_W, True)  # [BM, W]
    i_queries = i_head.to(tl.int64) * n_query_blocks
    i_queries += first_block(first_query, i_sequence, n_queries, QUERY_BLOCK, IS_PACKED)
    o_described = (first + o_query) // QUERY_BLOCK * (QUERY_NUMBERS * QUERY_BLOCK) + (first + o_query) % QUERY_BLOCK
    p_query = p_queries + i_queries * (QUERY_NUMBERS * QUERY_BLOCK) + o_described  # [BM]
    b_query = tl.load(p_query, mask=m_query, other=0.0)  # [BM]
    b_offset = tl.load(p_query + QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    b_norm = tl.load(p_query + 2 * QUERY_BLOCK, mask=m_query, other=NO_ROW)  # [BM]
    b_norm_low, b_h = b_norm, b_norm
    if not FAST:
        b_norm_low = tl.load(p_query + 3 * QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    if HAS_PRECISION:
        b_h = tl.load(p_query + 4 * QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    queries = b_query, b_offset, b_norm, b_norm_low, b_h
    # The position of a query is the index of its key, which is its time if there are no stamps.
    position = length - n_own + first
    i_time = first if HAS_STAMPS else position
    b_hi, b_lo = load_times(p_query_time, i_time, o_query, m_query, HAS_STAMPS)  # [BM]

    b_zero = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
    b_dq = tl.zeros([BM, BLOCK_W], tl.float32)  # [BM, W]
    sums = b_zero, b_zero, b_zero, b_zero  # Σ s, Σ dL log2 p, Σ s match, Σ dL log2 V/U
    b_sum_m, b_sum_decay2, b_sum_phi = b_zero, b_zero, b_zero  # Σ m, Σ m E², Σ m phi
    b_sum_mu = b_zero  # -c Σ m dV/dmu - Σ lag E dE

    n_earlier = (position + 1) // BN
    o_near = tl.arange(0, BD)  # [BD]
    for start in range(n_earlier * BN, tl.minimum(position + BM, length), BD):
        m_key = start + o_near < length
        b_k = load_rows(p_k, start, o_near, m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BD, W]
        b_v = load_rows(p_v, start, o_near, m_key, stride_vt, WIDTH, BLOCK_W, True)  # [BD, W]
        b_key = tl.load(p_keys + tl.cast(start // BN, tl.int64) * (KEY_NUMBERS * BN) + start % BN + o_near)  # [BD]
        b_key_hi, b_key_lo = load_times(p_key_time, start, o_near, m_key, HAS_STAMPS)  # [BD]
        b_lag = elapsed(b_hi[:, None], b_lo[:, None], b_key_hi[None, :], b_key_lo[None, :])  # [BM, BD]
        b_decay, b_phi, b_variance = lag_numbers(b_lag, head)  # [BM, BD]
        m_pair = (start + o_near)[None, :] <= (position + o_query)[:, None]  # [BM, BD]
        b_dq, sums, b_m, b_direct = _add_pairs(
            b_dq, sums, b_q, b_do, queries, b_k, b_v, b_key, b_decay, b_variance, m_pair, head, BM, BD,
            IS_GAUSSIAN, HAS_PRECISION, NEEDS_DYNAMICS, NEEDS_DECAY, True, FAST, UPCAST,
        )  # fmt: skip
        if NEEDS_DYNAMICS:
            b_sum_m += by_lane(b_m, BM, BD)
            b_sum_decay2 += by_lane(b_m * b_decay * b_decay, BM, BD)
            b_sum_phi += by_lane(b_m * b_phi, BM, BD)
            if NEEDS_DECAY:
                b_fall = (
                    sigma2 * minus_phi_slope(b_lag, b_decay, b_phi, mu, inverse_mu)
                    + 2.0 * eta2 * b_lag * b_decay * b_decay
                )
                b_sum_mu += by_lane(power * b_m * b_fall - b_lag * b_direct, BM, BD)

    hi, lo = load_time(p_query_time, i_time, HAS_STAMPS)
    b_since = elapsed(b_hi, b_lo, hi, lo)  # [BM]
    b_own_decay = transport(b_since, mu)  # [BM]
    b_own_phi = phi(b_since, b_own_decay, mu, inverse_mu)  # [BM]
    b_own_fall = minus_phi_slope(b_since, b_own_decay, b_own_phi, mu, inverse_mu)  # [BM]
    o_key = tl.arange(0, BN)  # [BN]
    # Blocks are processed from near to far, and E and phi of the gap follow from those of the previous block. In
    # float32, this recursion is too inaccurate, so they are computed for each block.
    STEPS: tl.constexpr = not HAS_STAMPS and p_q.dtype.element_ty != tl.float32
    gap = tl.cast(position - n_earlier * BN + 1, tl.float32)
    gap_decay = transport(gap, mu)
    gap_phi = phi(gap, gap_decay, mu, inverse_mu)
    block_decay = transport(mu * 0.0 + BN, mu)
    block_phi = phi(mu * 0.0 + BN, block_decay, mu, inverse_mu)
    p_block_k = p_k + tl.cast((n_earlier - 1) * BN, tl.int64) * stride_kt
    p_block_v = p_v + tl.cast((n_earlier - 1) * BN, tl.int64) * stride_vt
    p_block = p_keys + tl.cast(n_earlier - 1, tl.int64) * (KEY_NUMBERS * BN) + o_key
    step_k, step_v = tl.cast(stride_kt, tl.int64) * BN, tl.cast(stride_vt, tl.int64) * BN
    for i_farther in range(n_earlier):
        b_k = load_rows(p_block_k, 0, o_key, o_key < BN, stride_kt, WIDTH, BLOCK_W, False)  # [BN, W]
        b_v = load_rows(p_block_v, 0, o_key, o_key < BN, stride_vt, WIDTH, BLOCK_W, False)  # [BN, W]
        b_key = tl.load(p_block)  # [BN]
        b_key_decay = tl.load(p_block + BN)  # [BN]
        b_key_variance = tl.load(p_block + 3 * BN)  # [BN]
        if not STEPS:
            last_hi, last_lo = load_time(p_key_time, (n_earlier - i_farther) * BN - 1, HAS_STAMPS)
            gap = elapsed(hi, lo, last_hi, last_lo)
            gap_decay = transport(gap, mu)
            gap_phi = phi(gap, gap_decay, mu, inverse_mu)
        gap_decay2 = gap_decay * gap_decay
        b_u_decay = gap_decay * b_own_decay  # [BM]
        b_u_decay2 = b_u_decay * b_u_decay  # [BM]
        b_u_phi = gap_phi + gap_decay2 * b_own_phi  # [BM]
        b_decay = b_u_decay[:, None] * b_key_decay[None, :]  # [BM, BN]
        b_variance = (gamma2 + sigma2 * b_u_phi)[:, None] + b_u_decay2[:, None] * b_key_variance[None, :]  # [BM, BN]
        b_dq, sums, b_m, b_direct = _add_pairs(
            b_dq, sums, b_q, b_do, queries, b_k, b_v, b_key, b_decay, b_variance, False, head, BM, BN,
            IS_GAUSSIAN, HAS_PRECISION, NEEDS_DYNAMICS, NEEDS_DECAY, False, FAST, UPCAST,
        )  # fmt: skip
        if NEEDS_DYNAMICS:
            b_block_m = by_lane(b_m, BM, BN)  # [BM, LANES]
            b_block_decay2 = by_lane(b_m * tl.load(p_block + 2 * BN)[None, :], BM, BN)  # [BM, LANES]
            b_block_phi = by_lane(b_m * tl.load(p_block + 4 * BN)[None, :], BM, BN)  # [BM, LANES]
            b_sum_m += b_block_m
            b_sum_decay2 += b_u_decay2[:, None] * b_block_decay2
            b_sum_phi += b_u_phi[:, None] * b_block_m + b_u_decay2[:, None] * b_block_phi
            if NEEDS_DECAY:
                b_block_fall = by_lane(b_m * tl.load(p_block + 5 * BN)[None, :], BM, BN)  # [BM, LANES]
                b_u = gap + b_since  # [BM]
                gap_fall = minus_phi_slope(gap, gap_decay, gap_phi, mu, inverse_mu)
                b_u_fall = gap_fall + gap_decay2 * (b_own_fall + 2.0 * gap * b_own_phi)  # [BM]
                b_block_fall += 2.0 * b_u[:, None] * (eta2 * b_block_decay2 + sigma2 * b_block_phi)
                b_sum_mu += power * (b_u_decay2[:, None] * b_block_fall + (sigma2 * b_u_fall)[:, None] * b_block_m)
                b_sum_mu -= by_lane((b_u[:, None] + tl.load(p_block + 6 * BN)[None, :]) * b_direct, BM, BN)
        p_block_k -= step_k
        p_block_v -= step_v
        p_block -= KEY_NUMBERS * BN
        gap += BN
        gap_phi += gap_decay2 * block_phi
        gap_decay *= block_decay

    b_sum_s, b_sum_tau, b_sum_match, b_sum_fit = sums
    b_all_s, b_all_m, b_all_phi = tl.sum(b_sum_s, 1), tl.sum(b_sum_m, 1), tl.sum(b_sum_phi, 1)  # [BM]
    b_all_mu = tl.sum(b_sum_mu, 1)  # [BM]
    # Σ_j dL = g, and L = log p + log_norm.
    b_all_tau = tl.sum(b_sum_tau, 1) + tl.load(p_query + 8 * QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    b_all_nu = nu_gradient(tl.sum(b_sum_match, 1), tl.sum(b_sum_fit, 1), head, IS_GAUSSIAN)  # [BM]
    if NEEDS_DYNAMICS:
        power_per_unit = power * tl.exp2(-log_unit)
        stride_sum = tl.num_programs(0) * tl.num_programs(2)
        p_sum = p_sums + i_head.to(tl.int64) * (6 * stride_sum) + i_sequence * tl.num_programs(0) + i_block
        tl.store(p_sum, tl.sum(b_all_mu, 0))
        tl.store(p_sum + stride_sum, -power_per_unit * tl.sum(b_all_phi, 0))
        tl.store(p_sum + 2 * stride_sum, -power_per_unit * tl.sum(tl.sum(b_sum_decay2, 1), 0))
        tl.store(p_sum + 3 * stride_sum, -power_per_unit * tl.sum(b_all_m, 0))
        tl.store(p_sum + 4 * stride_sum, tl.sum(b_all_nu, 0))
        tl.store(p_sum + 5 * stride_sum, tl.sum(b_all_tau, 0) / tau * LN2)

    o_w = tl.arange(0, BLOCK_W)  # [W]
    # Load q again, because keeping it or its addresses would take registers from the loops.
    b_q = load_rows(p_own, 0, (first + o_query).to(tl.int64), m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
    b_dq = (power * scale) * (b_dq - b_q.to(tl.float32) * b_all_s[:, None])  # [BM, W]
    p_row = p_dq + i_head * WIDTH + (token + o_query)[:, None] * stride_row + o_w[None, :]  # [BM, W]
    tl.store(p_row, b_dq.to(p_dq.dtype.element_ty), mask=m_query[:, None] & (o_w < WIDTH)[None, :])
