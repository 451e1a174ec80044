"""Gradient kernels that compute values of each token for the row and column kernels."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_backward_common import (
    KEY_NUMBERS,
    NO_ROW,
    QUERY_NUMBERS,
    lag_numbers,
    load_queries,
    load_rows,
    load_time,
    load_times,
    minus_phi_slope,
    phi,
    product,
    scaled_head,
    stamps_at,
    weigh,
)
from rfa.model.attention.triton_blocks import LENGTHS, elapsed, first_block, sequence, spans
from rfa.model.attention.triton_score import LOG2E, transport


@triton.jit(do_not_specialize=LENGTHS)
def _describe_keys(
    p_k, p_heads, p_stamps, p_starts, p_keys,
    stride_kb, stride_kt, stride_kh, stride_stamps, n_keys, n_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    IS_GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """Store the following values of each key: -|k|² / 2, E(s), E(s)², C, phi(s), -dC/dmu and s.

    s is the time from the key to the last key of its block, and C = sigma2 phi(s) + eta2 E(s)².
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first, length = sequence(p_starts, i_sequence, n_keys, IS_PACKED)
    start = i_block * BN
    if start >= length:
        return
    mu, inverse_mu, sigma2, eta2, _, _, _, _, _, _ = scaled_head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    o_key = tl.arange(0, BN)  # [BN]
    m_key = start + o_key < length
    p_own = p_k + i_batch * stride_kb + i_head.to(tl.int64) * stride_kh + first * stride_kt
    b_k = load_rows(p_own, start, o_key, m_key, stride_kt, WIDTH, BLOCK_W, True).to(tl.float32)  # [BN, W]
    p_time = stamps_at(p_stamps, i_batch * stride_stamps + first * 2, HAS_STAMPS)
    b_hi, b_lo = load_times(p_time, start, o_key, m_key, HAS_STAMPS)  # [BN]
    # The values are only used for complete blocks, so the last block may have any reference time.
    last_hi, last_lo = load_time(p_time, tl.minimum(start + BN, length) - 1, HAS_STAMPS)
    b_lag = elapsed(last_hi, last_lo, b_hi, b_lo)  # [BN]
    b_decay = transport(b_lag, mu)  # [BN]
    b_phi = phi(b_lag, b_decay, mu, inverse_mu)  # [BN]
    i_own = first_block(first, i_sequence, n_keys, BN, IS_PACKED) + i_block
    p_key = p_keys + (i_head.to(tl.int64) * n_blocks + i_own) * (KEY_NUMBERS * BN) + o_key
    tl.store(p_key, -0.5 * tl.sum(b_k * b_k, 1))
    tl.store(p_key + BN, b_decay)
    tl.store(p_key + 2 * BN, b_decay * b_decay)
    tl.store(p_key + 3 * BN, sigma2 * b_phi + eta2 * b_decay * b_decay)
    tl.store(p_key + 4 * BN, b_phi)
    b_fall = minus_phi_slope(b_lag, b_decay, b_phi, mu, inverse_mu)  # [BN]
    tl.store(p_key + 5 * BN, sigma2 * b_fall + 2.0 * eta2 * b_lag * b_decay * b_decay)
    tl.store(p_key + 6 * BN, b_lag)


@triton.jit(do_not_specialize=LENGTHS)
def _describe_queries(
    p_q, p_out, p_grad_out, p_log_norm, p_grad_log_norm, p_grad_precision, p_heads, p_stamps, p_starts, p_queries,
    stride_qb, stride_qt, stride_qh, stride_stamps, n_heads, n_queries, n_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the following values of each query: -|q|² / 2; g - dO·out; log_norm / ln 2 in the units of the head, as two
    numbers hi and lo; h / c in these units; E(u); E(u)²; sigma2 phi(u) + gamma2; and g log_norm / ln 2.

    u is the time from the first query of its block to the query.
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first, length = sequence(p_starts, i_sequence, n_queries, IS_PACKED)
    start = i_block * BM
    if start >= length:
        return
    head = scaled_head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, _, gamma2, _, power, tau, _, log_unit = head
    o_query = tl.arange(0, BM)  # [BM]
    m_query = start + o_query < length
    token = i_batch * n_queries + first + start
    stride_row = n_heads * WIDTH
    p_own = p_q + i_batch * stride_qb + i_head.to(tl.int64) * stride_qh + first * stride_qt
    b_q = load_rows(p_own, start, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True).to(tl.float32)  # [BM, W]
    b_out = load_rows(p_out + i_head * WIDTH, token, o_query, m_query, stride_row, WIDTH, BLOCK_W, True).to(tl.float32)
    b_do = load_rows(p_grad_out + i_head * WIDTH, token, o_query, m_query, stride_row, WIDTH, BLOCK_W, True).to(
        tl.float32
    )
    o_row = (token + o_query) * n_heads + i_head  # [BM]
    b_g = tl.load(p_grad_log_norm + o_row, mask=m_query, other=0.0)  # [BM]
    # This is computed in float64, because its error changes all weights of a row.
    b_norm = tl.load(p_log_norm + o_row, mask=m_query, other=0.0).to(tl.float64) / 0.6931471805599453  # [BM]
    b_norm += tau.to(tl.float64) * log_unit
    b_high = tl.where(m_query, b_norm.to(tl.float32), NO_ROW)  # [BM]
    b_low = tl.where(m_query, (b_norm - b_high.to(tl.float64)).to(tl.float32), 0.0)  # [BM]
    p_time = stamps_at(p_stamps, i_batch * stride_stamps + first * 2, HAS_STAMPS)
    b_hi, b_lo = load_times(p_time, start, o_query, m_query, HAS_STAMPS)  # [BM]
    first_hi, first_lo = load_time(p_time, start, HAS_STAMPS)
    b_lag = tl.where(m_query, elapsed(b_hi, b_lo, first_hi, first_lo), 0.0)  # [BM]
    b_decay = transport(b_lag, mu)  # [BM]
    i_own = first_block(first, i_sequence, n_queries, BM, IS_PACKED) + i_block
    p_query = p_queries + (i_head.to(tl.int64) * n_blocks + i_own) * (QUERY_NUMBERS * BM) + o_query
    tl.store(p_query, -0.5 * tl.sum(b_q * b_q, 1))
    tl.store(p_query + BM, b_g - tl.sum(b_do * b_out, 1))
    tl.store(p_query + 2 * BM, b_high)
    tl.store(p_query + 3 * BM, b_low)
    if HAS_PRECISION:
        b_h = tl.load(p_grad_precision + o_row, mask=m_query, other=0.0)  # [BM]
        tl.store(p_query + 4 * BM, b_h * (tl.exp2(-log_unit) / power))
    tl.store(p_query + 5 * BM, b_decay)
    tl.store(p_query + 6 * BM, b_decay * b_decay)
    tl.store(p_query + 7 * BM, sigma2 * phi(b_lag, b_decay, mu, inverse_mu) + gamma2)
    tl.store(p_query + 8 * BM, b_g * tl.load(p_log_norm + o_row, mask=m_query, other=0.0) * LOG2E)


@triton.jit(do_not_specialize=LENGTHS)
def _normalise_rows(
    p_q, p_k, p_v, p_grad_out, p_grad_log_norm, p_heads, p_queries, p_keys,
    p_query_stamps, p_key_stamps, p_query_starts, p_key_starts,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, n_heads, n_queries, n_keys, n_query_blocks, n_key_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr, FAST: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Recompute log_norm and dO·out in float32 from the weights that the other gradient kernels compute.

    Rounding errors of the saved `out` and `log_norm` would change all dL of a row, whose sums nearly cancel.
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own, first_key, length = spans(p_query_starts, p_key_starts, n_queries, n_keys, IS_PACKED)
    first = i_block * BM
    if first >= n_own:
        return
    head = scaled_head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    p_k += i_batch * stride_kb + first_key * stride_kt + i_head.to(tl.int64) * stride_kh
    p_v += i_batch * stride_vb + first_key * stride_vt + i_head.to(tl.int64) * stride_vh
    i_keys = i_head.to(tl.int64) * n_key_blocks + first_block(first_key, i_sequence, n_keys, BN, IS_PACKED)
    i_queries = i_head.to(tl.int64) * n_query_blocks + first_block(first_query, i_sequence, n_queries, BM, IS_PACKED)
    p_key_time = stamps_at(p_key_stamps, i_batch * stride_key_stamps + first_key * 2, HAS_STAMPS)
    p_query_time = stamps_at(p_query_stamps, i_batch * stride_query_stamps + first_query * 2, HAS_STAMPS)

    o_query, o_key = tl.arange(0, BM), tl.arange(0, BN)  # [BM], [BN]
    m_query = first + o_query < n_own
    token = i_batch * n_queries + first_query + first
    p_own = p_q + i_batch * stride_qb + first_query * stride_qt + i_head.to(tl.int64) * stride_qh
    b_q = load_rows(p_own, first, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
    b_do = load_rows(p_grad_out + i_head * WIDTH, token, o_query, m_query, n_heads * WIDTH, WIDTH, BLOCK_W, True)
    p_query = p_queries + (i_queries + i_block) * (QUERY_NUMBERS * BM) + o_query
    b_query, _offset, b_norm, b_norm_low, _h = load_queries(p_query, BM, False, FAST)
    position = length - n_own + first
    b_hi, b_lo = load_times(p_query_time, first if HAS_STAMPS else position, o_query, m_query, HAS_STAMPS)  # [BM]
    b_sum = tl.zeros([BM], tl.float32)
    b_sum_gain = tl.zeros([BM], tl.float32)
    for start in range(0, tl.minimum(position + BM, length), BN):
        m_key = start + o_key < length
        b_k = load_rows(p_k, start, o_key, m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BN, W]
        b_v = load_rows(p_v, start, o_key, m_key, stride_vt, WIDTH, BLOCK_W, True)  # [BN, W]
        b_key = tl.load(p_keys + (i_keys + start // BN) * (KEY_NUMBERS * BN) + o_key)  # [BN]
        b_key_hi, b_key_lo = load_times(p_key_time, start, o_key, m_key, HAS_STAMPS)  # [BN]
        b_lag = elapsed(b_hi[:, None], b_lo[:, None], b_key_hi[None, :], b_key_lo[None, :])  # [BM, BN]
        b_decay, _phi, b_variance = lag_numbers(b_lag, head)  # [BM, BN]
        m_pair = (start + o_key)[None, :] <= (position + o_query)[:, None]  # [BM, BN]
        weighed = weigh(
            product(b_q, tl.trans(b_k), UPCAST), b_decay, b_variance, b_query[:, None], b_key[None, :],
            b_norm[:, None], b_norm_low[:, None], m_pair, head, IS_GAUSSIAN, True, FAST,
        )  # fmt: skip
        b_sum += tl.sum(weighed[0], 1)
        b_sum_gain += tl.sum(weighed[0] * b_decay * product(b_do, tl.trans(b_v), UPCAST), 1)
    b_g = tl.load(p_grad_log_norm + (token + o_query) * n_heads + i_head, mask=m_query, other=0.0)  # [BM]
    b_sum = tl.where(m_query, b_sum, 1.0)  # [BM]
    tl.store(p_query + BM, b_g - b_sum_gain / b_sum)
    tl.store(p_query + 3 * BM, b_norm_low + tl.log2(b_sum))
