"""Gradient kernel over blocks of keys, which computes dk and dv."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_backward_common import (
    QUERY_NUMBERS,
    differentiate,
    lag_numbers,
    load_queries,
    load_rows,
    load_time,
    load_times,
    phi,
    product,
    scaled_head,
    stamps_at,
    weigh,
)
from rfa.model.attention.triton_blocks import LENGTHS, elapsed, first_block, spans
from rfa.model.attention.triton_score import LANES, by_lane, transport


@triton.jit
def _add_pairs(
    b_dk, b_dv, b_sum, b_k, b_v, b_key, b_q, b_do, queries, b_decay, b_variance, m_pair, head,
    BM: tl.constexpr, BN: tl.constexpr, IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr, MASKED: tl.constexpr,
    FAST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Add the pairs of a block of keys and a block of queries to dk, dv and Σ s E². Return these sums."""
    b_query, b_offset, b_norm, b_norm_low, b_h = queries
    b_dot = product(b_k, tl.trans(b_q), UPCAST)  # [BN, BM]
    b_flow = product(b_v, tl.trans(b_do), UPCAST)  # [BN, BM]
    weighed = weigh(
        b_dot, b_decay, b_variance, b_query[None, :], b_key[:, None], b_norm[None, :], b_norm_low[None, :], m_pair,
        head, IS_GAUSSIAN, MASKED, FAST,
    )  # fmt: skip
    _dl, b_s, _evidence = differentiate(
        weighed, b_decay * b_flow, b_offset[None, :], b_h[None, :], m_pair, IS_GAUSSIAN, HAS_PRECISION, MASKED
    )
    b_carried = b_s * b_decay  # [BN, BM]
    b_dv += product(weighed[0] * b_decay, b_do, UPCAST)
    b_dk += product(b_carried, b_q, UPCAST)
    b_sum += by_lane(b_carried * b_decay, BN, BM)
    return b_dk, b_dv, b_sum


@triton.jit(do_not_specialize=LENGTHS)
def _columns_kernel(
    p_q, p_k, p_v, p_grad_out, p_heads, p_queries,
    p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_dk, p_dv,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, n_heads, n_queries, n_keys, n_query_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr,
    FAST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a block of keys.

    The first loop processes the blocks of queries that contain or precede some of the keys, and needs a mask. The
    second loop processes the later blocks.
    """
    first, i_head, i_sequence = tl.program_id(0) * BN, tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own, first_key, length = spans(p_query_starts, p_key_starts, n_queries, n_keys, IS_PACKED)
    if first >= length:
        return
    o_key = tl.arange(0, BN)  # [BN]
    m_key = first + o_key < length
    head = scaled_head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, eta2, _, scale, power, _, _, _ = head
    stride_row = n_heads * WIDTH
    p_q += i_batch * stride_qb + first_query * stride_qt + i_head.to(tl.int64) * stride_qh
    p_grad_out += (i_batch * n_queries + first_query) * stride_row + i_head * WIDTH
    i_queries = i_head.to(tl.int64) * n_query_blocks + first_block(first_query, i_sequence, n_queries, BM, IS_PACKED)
    p_queries += i_queries * (QUERY_NUMBERS * BM)
    p_query_time = stamps_at(p_query_stamps, i_batch * stride_query_stamps + first_query * 2, HAS_STAMPS)
    p_key_time = stamps_at(p_key_stamps, i_batch * stride_key_stamps + first_key * 2, HAS_STAMPS)

    p_own_k = p_k + i_batch * stride_kb + first_key * stride_kt + i_head.to(tl.int64) * stride_kh
    p_own_v = p_v + i_batch * stride_vb + first_key * stride_vt + i_head.to(tl.int64) * stride_vh
    b_k = load_rows(p_own_k, first, o_key, m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BN, W]
    b_key = -0.5 * tl.sum(b_k.to(tl.float32) * b_k.to(tl.float32), 1)  # [BN]
    last = tl.minimum(first + BN, length) - 1
    b_key_hi, b_key_lo = load_times(p_key_time, first, o_key, m_key, HAS_STAMPS)  # [BN]
    b_v = load_rows(p_own_v, first, o_key, m_key, stride_vt, WIDTH, BLOCK_W, True)  # [BN, W]

    b_dk = tl.zeros([BN, BLOCK_W], tl.float32)  # [BN, W]
    b_dv = tl.zeros([BN, BLOCK_W], tl.float32)  # [BN, W]
    b_sum = tl.zeros([BN, LANES], tl.float32)  # [BN, LANES] Σ s E²

    o_query = tl.arange(0, BM)  # [BM]
    # Position of the first query.
    base = length - n_own
    n_blocks = tl.cdiv(n_own, BM)
    n_near = tl.minimum(tl.cdiv(tl.maximum(last - base, 0), BM), n_blocks)
    for i_queries in range(tl.maximum(first - base, 0) // BM, n_near):
        start = i_queries * BM
        m_query = start + o_query < n_own
        b_q = load_rows(p_q, start, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
        b_do = load_rows(p_grad_out, start, o_query, m_query, stride_row, WIDTH, BLOCK_W, True)  # [BM, W]
        p_query = p_queries + tl.cast(i_queries, tl.int64) * (QUERY_NUMBERS * BM) + o_query
        queries = load_queries(p_query, BM, HAS_PRECISION, FAST)
        i_time = start if HAS_STAMPS else base + start
        b_hi, b_lo = load_times(p_query_time, i_time, o_query, m_query, HAS_STAMPS)  # [BM]
        b_lag = elapsed(b_hi[None, :], b_lo[None, :], b_key_hi[:, None], b_key_lo[:, None])  # [BN, BM]
        b_decay, _phi, b_variance = lag_numbers(b_lag, head)  # [BN, BM]
        m_pair = (first + o_key)[:, None] <= (base + start + o_query)[None, :]  # [BN, BM]
        b_dk, b_dv, b_sum = _add_pairs(
            b_dk, b_dv, b_sum, b_k, b_v, b_key, b_q, b_do, queries, b_decay, b_variance, m_pair, head, BM, BN,
            IS_GAUSSIAN, HAS_PRECISION, True, FAST, UPCAST,
        )  # fmt: skip

    last_hi, last_lo = load_time(p_key_time, last, HAS_STAMPS)
    b_until = elapsed(last_hi, last_lo, b_key_hi, b_key_lo)  # [BN]
    b_own_decay = transport(b_until, mu)  # [BN]
    b_own_phi = phi(b_until, b_own_decay, mu, inverse_mu)  # [BN]
    # See the kernel over rows.
    STEPS: tl.constexpr = not HAS_STAMPS and p_q.dtype.element_ty != tl.float32
    gap = tl.cast(base + n_near * BM - last, tl.float32)
    gap_decay = transport(gap, mu)
    gap_phi = phi(gap, gap_decay, mu, inverse_mu)
    block_decay = transport(mu * 0.0 + BM, mu)
    block_phi = phi(mu * 0.0 + BM, block_decay, mu, inverse_mu)
    first_start = tl.cast(n_near * BM, tl.int64)
    p_block_q, p_block_do = p_q + first_start * stride_qt, p_grad_out + first_start * stride_row
    p_block = p_queries + tl.cast(n_near, tl.int64) * (QUERY_NUMBERS * BM) + o_query
    step_q, step_do = tl.cast(stride_qt, tl.int64) * BM, tl.cast(stride_row, tl.int64) * BM
    for i_queries in range(n_near, n_blocks):
        start = i_queries * BM
        m_query = start + o_query < n_own
        b_q = load_rows(p_block_q, 0, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
        b_do = load_rows(p_block_do, 0, o_query, m_query, stride_row, WIDTH, BLOCK_W, True)  # [BM, W]
        queries = load_queries(p_block, BM, HAS_PRECISION, FAST)
        b_query_decay = tl.load(p_block + 5 * BM)  # [BM]
        b_query_decay2 = tl.load(p_block + 6 * BM)  # [BM]
        b_query_variance = tl.load(p_block + 7 * BM)  # [BM]
        if not STEPS:
            hi, lo = load_time(p_query_time, start if HAS_STAMPS else base + start, HAS_STAMPS)
            gap = elapsed(hi, lo, last_hi, last_lo)
            gap_decay = transport(gap, mu)
            gap_phi = phi(gap, gap_decay, mu, inverse_mu)
        gap_decay2 = gap_decay * gap_decay
        b_s_decay = gap_decay * b_own_decay  # [BN]
        b_s_phi = gap_phi + gap_decay2 * b_own_phi  # [BN]
        b_s_variance = sigma2 * b_s_phi + eta2 * b_s_decay * b_s_decay  # [BN]
        b_decay = b_s_decay[:, None] * b_query_decay[None, :]  # [BN, BM]
        b_variance = b_s_variance[:, None] * b_query_decay2[None, :] + b_query_variance[None, :]  # [BN, BM]
        b_dk, b_dv, b_sum = _add_pairs(
            b_dk, b_dv, b_sum, b_k, b_v, b_key, b_q, b_do, queries, b_decay, b_variance, False, head, BM, BN,
            IS_GAUSSIAN, HAS_PRECISION, False, FAST, UPCAST,
        )  # fmt: skip
        p_block_q += step_q
        p_block_do += step_do
        p_block += QUERY_NUMBERS * BM
        gap_phi += gap_decay2 * block_phi
        gap_decay *= block_decay

    o_w = tl.arange(0, BLOCK_W)  # [W]
    m_store = m_key[:, None] & (o_w < WIDTH)[None, :]  # [BN, W]
    token = i_batch * n_keys + first_key + first
    o_store = i_head * WIDTH + (token + o_key)[:, None] * stride_row + o_w[None, :]  # [BN, W]
    tl.store(p_dv + o_store, b_dv.to(p_dv.dtype.element_ty), mask=m_store)
    # Load k again, because keeping it or its addresses would take registers from the loops.
    b_k = load_rows(p_own_k, 0, (first + o_key).to(tl.int64), m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BN, W]
    b_dk = (power * scale) * (b_dk - b_k.to(tl.float32) * tl.sum(b_sum, 1)[:, None])  # [BN, W]
    tl.store(p_dk + o_store, b_dk.to(p_dk.dtype.element_ty), mask=m_store)
