"""Fused forward pass of Robust Filter Attention: out, log_norm and precision in one pass over the keys, O(N) memory.

Equations in `triton_score.py`, oracle in `reference.py`. A program owns the queries at the positions P0 … P0 + BM - 1
of one head and sequence (position p is the token of key p) and takes the keys in blocks of BN:

* First the blocks that reach P0 … P0 + BM - 1: masked, each pair with its own lag, under a running maximum; where the
  distant blocks below have a table, what the lag tells comes from one too. The row's maximum over these keys then
  shifts its exponents for good. The token's own key is among them, so no row underflows; a
  row that meets keys LIMIT times as likely shows it in its sum, and its program goes over all keys again with the
  running maximum.
* Then the blocks before them: no mask, no maximum. These keys lie before an anchor (their block's last key), the
  queries after it, so the kernels of the lag are sums and products of a row's and a column's factor, transported over
  s = anchor - key and then over u = query - anchor, without a cancellation and for any mu >= 0:

      E = E(u) E(s)     V = [sigma2 phi(u) + gamma2] + E(u)² [sigma2 phi(s) + eta2 E(s)²]

  The columns' factors and |k|² come from a kernel that reads k once, the rows' by the same sum rule from their offset
  to the first query of the block and one scalar per block.
* Of those, for token numbers as times, inputs of 16 bits and the Student-t kernel, the distant ones: log V comes as a
  product from a table (`triton_distant.py`, which states the error), and E stands in the weight's exponent while it is
  above 2^-60, to be divided out of the weights' sum again.
* With horizons, of all of them only the blocks that hold a key before the horizon of some row; the keys of the others
  come as one weight a row, under a maximum again (`triton_far.py`).

Layout: q [B, n, H, W], k, v [B, M, H, W], W = 2D reals, even, 16 … 256; float32, float16 or bfloat16, accumulated in
float32. float16 weights are scaled up by 2^HEADROOM, for they vanish below 2^-24.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.attention.launch import Launch, PassName, launch
from rfa.model.attention.pages import PAGE_KEYS, KeyPages
from rfa.model.attention.triton_blocks import (
    LENGTHS,
    all_blocks,
    batch_stride,
    block_place,
    blocks_of,
    elapsed,
    first_block,
    is_interpreted,
    last_contiguous,
    sequence,
)
from rfa.model.attention.triton_distant import (
    LAG_NUMBERS,
    LARGEST_SHIFT,
    TERMS,
    is_slow_head,
    n_light_distances,
    numbers_of_lags,
    shifted_row_terms,
    table_kernel,
)
from rfa.model.attention.triton_far import n_far_blocks
from rfa.model.attention.triton_score import (
    LANES,
    LN2,
    LOG2E,
    accumulated,
    by_lane,
    exponential,
    log2,
    log2_of_one_plus,
    reciprocal,
    spread,
)
from rfa.model.placement import capability_of

# Shift of a row that has seen no key: below every logit, and finite, so that differences are.
NOTHING = tl.constexpr(-1.0e30)
# A block's column vectors: E(s); sigma2 phi(s) + eta2 E(s)²; |k|² / 2; K of a distant block.
COLUMNS = tl.constexpr(4)
# Of the columns of pages, at most, where sequences are not more: as many as a GPU runs at a time, or two times that.
COLUMN_PROGRAMS = 4096
# Reals of a block of keys above which a thread has no registers for the decays of its columns: each turn loads them,
# which those that wait for shared memory had better not.
KEPT_DECAYS = tl.constexpr(4096)
# Of |q|²: more than the rounding of R² where q and E k cancel.
ROUNDING = tl.constexpr(2.0**-18)


@triton.jit
def _describe_block(
    p_k, p_heads, p_stamps, p_columns, p_pages, stride_kb, stride_kt, stride_kh, stride_stamps, n_keys, n_blocks,
    i_block, i_head, i_sequence, i_batch, first, length,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """What one block brings; p_pages: those of its sequence."""
    mu = tl.load(p_heads + i_head * 6)
    sigma2 = tl.load(p_heads + i_head * 6 + 1)
    eta2 = tl.load(p_heads + i_head * 6 + 2)
    nu = tl.load(p_heads + i_head * 6 + 4)
    o_key = i_block * BN + tl.arange(0, BN)  # [BN]
    m_key = o_key < length
    o_w = tl.arange(0, BLOCK_W)  # [W]
    token = first + o_key
    p_row = p_k + i_batch * stride_kb + i_head.to(tl.int64) * stride_kh
    m_k = m_key[:, None] & (o_w < WIDTH)[None, :]
    place = token
    if PAGE > 0:
        place = block_place(p_pages, i_block, BN, PAGE) + tl.arange(0, BN)
    b_k = tl.load(p_row + place[:, None] * stride_kt + o_w[None, :], mask=m_k, other=0.0).to(tl.float32)  # [BN, W]
    if HAS_STAMPS:
        p_time = p_stamps + i_batch * stride_stamps
        # Only whole blocks are used; for the last one of a sequence any key will do.
        p_anchor = p_time + (first + tl.minimum(i_block * BN + BN, length) - 1) * 2
        b_hi = tl.load(p_time + token * 2, mask=m_key, other=0.0)
        b_lo = tl.load(p_time + token * 2 + 1, mask=m_key, other=0.0)
        b_lag = elapsed(tl.load(p_anchor), tl.load(p_anchor + 1), b_hi, b_lo)  # [BN]
    else:
        b_lag = (BN - 1 - tl.arange(0, BN)).to(tl.float32)  # [BN]
    b_decay = exponential(-mu * b_lag)  # [BN]
    b_variance = spread(b_lag, exponential(-2.0 * mu * b_lag), mu, sigma2, eta2, 0.0)  # [BN]
    i_column = first_block(first, i_sequence, n_keys, BN, IS_PACKED) + i_block
    p_out = p_columns + (i_head.to(tl.int64) * n_blocks + i_column) * (COLUMNS * BN) + tl.arange(0, BN)
    tl.store(p_out, b_decay)
    tl.store(p_out + BN, b_variance)
    b_half_k2 = 0.5 * tl.sum(b_k * b_k, 1)  # [BN]
    tl.store(p_out + 2 * BN, b_half_k2)
    is_slow = is_slow_head(mu, BN)
    b_slow = b_variance / tl.where(is_slow, b_decay * b_decay, 1.0)  # [BN]
    steady = sigma2 / tl.where(is_slow, 1.0, 2.0 * mu)
    tl.store(p_out + 3 * BN, b_half_k2 + 0.5 * nu * tl.where(is_slow, b_slow, eta2 - steady))


@triton.jit(do_not_specialize=LENGTHS)
def _columns_kernel(
    p_k, p_heads, p_stamps, p_starts, p_columns, p_pages,
    stride_kb, stride_kt, stride_kh, stride_stamps, stride_pages, n_keys, n_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    PAGE: tl.constexpr,
):  # fmt: skip
    """What a block of keys brings to every query behind it, [H, blocks, COLUMNS, BN]. Of pages a program takes every
    so-manieth block: a captured step does not know how many there are."""
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first, length = sequence(p_starts, i_sequence, n_keys, IS_PACKED)
    if i_block * BN >= length:
        return
    if PAGE == 0:
        _describe_block(
            p_k, p_heads, p_stamps, p_columns, p_pages, stride_kb, stride_kt, stride_kh, stride_stamps, n_keys,
            n_blocks, i_block, i_head, i_sequence, i_batch, first, length,
            WIDTH, BLOCK_W, BN, HAS_STAMPS, IS_PACKED, PAGE,
        )  # fmt: skip
    else:
        for i_own in range(i_block, tl.cdiv(length, BN), tl.num_programs(0)):
            _describe_block(
                p_k, p_heads, p_stamps, p_columns, p_pages + i_sequence * stride_pages, stride_kb, stride_kt, stride_kh,
                stride_stamps, n_keys, n_blocks, i_own, i_head, i_sequence, i_batch, first, length,
                WIDTH, BLOCK_W, BN, HAS_STAMPS, IS_PACKED, PAGE,
            )  # fmt: skip


@triton.jit
def _decayed(b_exponent, IS_EXACT: tl.constexpr):
    """e^-x for x >= 0."""
    if IS_EXACT:
        return exponential(-b_exponent)
    else:
        return tl.exp2(b_exponent * -LOG2E)


@triton.jit
def _half_residual2(b_decay, b_dot, b_half_q2, b_half_k2):
    """R² / 2 of every pair, [BM, BN]."""
    b_match = b_half_q2 - b_decay * (b_dot - b_decay * b_half_k2)  # [BM, BN]
    # A maximum takes a number before a NaN: the worst input would be the best match.
    return tl.maximum(b_match, 0.0, propagate_nan=tl.PropagateNan.ALL)  # [BM, BN]


@triton.jit
def _logits(
    b_decay, b_variance, b_dot, b_half_q2, b_half_k2, b_shift, nu, tau, kappa,
    IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr, IS_EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """L / ln 2 - shift and the evidence of every pair; all of them [BM, BN] or a row or column vector of it."""
    b_half = _half_residual2(b_decay, b_dot, b_half_q2, b_half_k2)  # [BM, BN]
    if IS_GAUSSIAN:
        b_precision = reciprocal(b_variance, FAST)  # [BM, BN]
        b_excess = b_precision * b_half * (2.0 / nu)  # [BM, BN]
        b_logit = -tau * (log2(b_variance, FAST) + b_excess * LOG2E) - b_shift  # [BM, BN]
        b_evidence = _decayed(b_excess, IS_EXACT) * b_precision if WITH_PRECISION else 0.0
    else:
        b_total = b_variance + b_half * (2.0 / nu)  # [BM, BN]
        if IS_EXACT:
            b_excess = (2.0 * b_half) / (nu * b_variance)  # [BM, BN]
            b_logit = -tau * (log2(b_variance, FAST) + kappa * log2_of_one_plus(b_excess)) - b_shift  # [BM, BN]
        else:
            b_level = tau * (kappa - 1.0) * log2(b_variance, FAST) - b_shift  # [BM, BN]
            b_logit = b_level - tau * kappa * log2(b_total, FAST)  # [BM, BN]
        b_evidence = reciprocal(b_total, FAST) if WITH_PRECISION else 0.0
    return b_logit, b_evidence


@triton.jit
def _accumulate(b_out, b_weight, b_decay, b_v, INTERPRETED: tl.constexpr):
    """out + (weight · E) v, the factor in the dtype of v."""
    b_transported = b_weight * b_decay  # [BM, BN]
    if INTERPRETED and b_v.dtype == tl.bfloat16:
        return tl.dot(b_transported, b_v.to(tl.float32), b_out, input_precision="ieee")
    else:
        return tl.dot(b_transported.to(b_v.dtype), b_v, b_out, input_precision="ieee")


@triton.jit
def _similarity(b_q, b_k, INTERPRETED: tl.constexpr):
    """q·k of every pair, [BM, BN]."""
    if INTERPRETED and b_q.dtype == tl.bfloat16:
        return tl.dot(b_q.to(tl.float32), tl.trans(b_k.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(b_q, tl.trans(b_k), input_precision="ieee")


@triton.jit
def _keys_of_any_block(
    p_k, p_v, p_pages, stride_kt, stride_vt, i_block, length, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    BN: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """k and v of a block, zeros behind the last key, [BN, W]."""
    o_within = tl.arange(0, BN)  # [BN]
    o_w = tl.arange(0, BLOCK_W)  # [W]
    m_kv = (i_block * BN + o_within < length)[:, None] & (o_w < WIDTH)[None, :]  # [BN, W]
    place = block_place(p_pages, i_block, BN, PAGE)
    b_k = tl.load(p_k + place * stride_kt + (o_within[:, None] * stride_kt + o_w[None, :]), mask=m_kv, other=0.0)
    b_v = tl.load(p_v + place * stride_vt + (o_within[:, None] * stride_vt + o_w[None, :]), mask=m_kv, other=0.0)
    return b_k, b_v


@triton.jit
def _weighted(state, b_logit, b_decay, b_v, HEADROOM: tl.constexpr, INTERPRETED: tl.constexpr):
    """The state after pairs of any logits, -inf of those that do not count, under a running maximum."""
    b_out, b_sum, b_shift, b_evidence = state  # [BM, W], [BM], [BM], [BM]
    b_top = tl.maximum(b_shift, tl.max(b_logit, 1) - HEADROOM)  # [BM]
    b_rescale = tl.exp2(b_shift - b_top)  # [BM]
    b_weight = tl.exp2(b_logit - b_top[:, None])  # [BM, BN]
    b_out = _accumulate(b_out * b_rescale[:, None], b_weight, b_decay, b_v, INTERPRETED)  # [BM, W]
    return b_out, b_sum * b_rescale + tl.sum(b_weight, 1), b_top, b_evidence


@triton.jit
def _masked_block(
    state, b_q, b_q2, o_row, b_hi, b_lo, p_k, p_v, p_time, p_columns, p_pages, stride_kt, stride_vt, i_block, length,
    head, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, PAGE: tl.constexpr,
    IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr, HEADROOM: tl.constexpr, FAST: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Any block of keys: the causal mask, each pair with its own lag, a running maximum. Returns the new state."""
    mu, sigma2, eta2, gamma2, nu, tau, kappa = head
    b_k, b_v = _keys_of_any_block(p_k, p_v, p_pages, stride_kt, stride_vt, i_block, length, WIDTH, BLOCK_W, BN, PAGE)
    o_key = i_block * BN + tl.arange(0, BN)  # [BN]
    first = tl.cast(i_block, tl.int64) * BN
    o_within = tl.arange(0, BN)  # [BN]
    b_half_k2 = tl.load(p_columns + first * COLUMNS + 2 * BN + o_within)  # [BN]
    if HAS_STAMPS:
        m_key = o_key < length  # [BN]
        b_key_hi = tl.load(p_time + first * 2 + o_within * 2, mask=m_key, other=0.0)  # [BN]
        b_key_lo = tl.load(p_time + first * 2 + o_within * 2 + 1, mask=m_key, other=0.0)  # [BN]
        b_lag = elapsed(b_hi[:, None], b_lo[:, None], b_key_hi[None, :], b_key_lo[None, :])  # [BM, BN]
    else:
        b_ahead = (o_row - i_block * BN).to(tl.float32)  # [BM]
        b_lag = tl.maximum(b_ahead[:, None] - o_within.to(tl.float32)[None, :], 0.0)  # [BM, BN]
    b_decay = _decayed(mu * b_lag, b_q.dtype == tl.float32)  # [BM, BN]
    # The square of a rounded E would not do for the difference 1 - E².
    b_decay2 = exponential(-2.0 * mu * b_lag) if b_q.dtype == tl.float32 else b_decay * b_decay  # [BM, BN]
    b_variance = spread(b_lag, b_decay2, mu, sigma2, eta2, gamma2, b_q.dtype == tl.float32)  # [BM, BN]
    b_dot = _similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    b_logit, b_weighted_precision = _logits(
        b_decay,
        b_variance,
        b_dot,
        (0.5 * b_q2)[:, None],
        b_half_k2[None, :],
        0.0,
        nu,
        tau,
        kappa,
        IS_GAUSSIAN,
        WITH_PRECISION,
        b_q.dtype == tl.float32,
        FAST,
    )
    m_pair = o_key[None, :] <= o_row[:, None]  # [BM, BN]
    b_out, b_sum, b_top, b_evidence = _weighted(
        state, tl.where(m_pair, b_logit, float("-inf")), b_decay, b_v, HEADROOM, INTERPRETED
    )
    if WITH_PRECISION:
        b_evidence += tl.sum(tl.where(m_pair, b_weighted_precision, 0.0), 1)  # [BM]
    return b_out, b_sum, b_top, b_evidence


@triton.jit
def _near_block(
    state, b_q, b_q2, p_k, p_v, p_columns, p_pages, p_lags, stride_kt, stride_vt, i_block, i_near, length, head,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    WITH_PRECISION: tl.constexpr, HEADROOM: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The same, of block `i_near` from the first query's on, where the lag alone tells V and E: from their table."""
    nu, tau, kappa = head[4], head[5], head[6]
    b_k, b_v = _keys_of_any_block(p_k, p_v, p_pages, stride_kt, stride_vt, i_block, length, WIDTH, BLOCK_W, BN, PAGE)
    b_half_k2 = tl.load(p_columns + tl.cast(i_block, tl.int64) * (COLUMNS * BN) + 2 * BN + tl.arange(0, BN))  # [BN]
    p_row = p_lags + (BM + i_near * BN - tl.arange(0, BM)) * LAG_NUMBERS  # [BM]
    # In 64 bits: what two columns are apart becomes part of the load.
    p_lag = p_row[:, None] + (tl.arange(0, BN).to(tl.int64) * LAG_NUMBERS)[None, :]  # [BM, BN]
    b_decay, b_variance, b_level = numbers_of_lags(p_lag, FAST)  # [BM, BN]
    b_dot = _similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    b_half = _half_residual2(b_decay, b_dot, (0.5 * b_q2)[:, None], b_half_k2[None, :])  # [BM, BN]
    b_total = b_variance + b_half * (2.0 / nu)  # [BM, BN]
    b_logit = b_level - tau * kappa * log2(b_total, FAST)  # [BM, BN]
    m_pair = (i_near * BN + tl.arange(0, BN))[None, :] <= tl.arange(0, BM)[:, None]  # [BM, BN]
    b_out, b_sum, b_top, b_evidence = _weighted(
        state, tl.where(m_pair, b_logit, float("-inf")), b_decay, b_v, HEADROOM, INTERPRETED
    )
    if WITH_PRECISION:
        b_evidence += tl.sum(tl.where(m_pair, reciprocal(b_total, FAST), 0.0), 1)  # [BM]
    return b_out, b_sum, b_top, b_evidence


@triton.jit
def _whole_block(
    p_k, p_v, stride_kt, stride_vt, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """k and v of a block that has no key too many, from where it begins, [BN, W]."""
    o_key = tl.arange(0, BN)[:, None]  # [BN, 1]
    o_w = tl.arange(0, BLOCK_W)[None, :]  # [1, W]
    if WIDTH == BLOCK_W:
        return tl.load(p_k + (o_key * stride_kt + o_w)), tl.load(p_v + (o_key * stride_vt + o_w))
    else:
        b_k = tl.load(p_k + (o_key * stride_kt + o_w), mask=o_w < WIDTH, other=0.0)  # [BN, W]
        return b_k, tl.load(p_v + (o_key * stride_vt + o_w), mask=o_w < WIDTH, other=0.0)


@triton.jit
def _earlier_block(
    state, b_q, b_q2, b_row_decay, b_row_process, p_k, p_v, p_columns, p_pages, stride_kt, stride_vt, i_block, gap,
    head, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr, IS_GAUSSIAN: tl.constexpr,
    WITH_PRECISION: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A whole block of keys before all queries, its anchor `gap` before the first of them. Returns the new state."""
    b_out, b_sum, b_shift, b_evidence = state  # [BM, W], [BM], [BM], [BM]
    mu, sigma2, _, gamma2, nu, tau, kappa = head
    place = block_place(p_pages, i_block, BN, PAGE)
    b_k, b_v = _whole_block(p_k + place * stride_kt, p_v + place * stride_vt, stride_kt, stride_vt, WIDTH, BLOCK_W, BN)
    o_column = tl.cast(i_block, tl.int64) * (COLUMNS * BN) + tl.arange(0, BN)  # [BN]
    b_key_decay = tl.load(p_columns + o_column)  # [BN]
    b_key_variance = tl.load(p_columns + o_column + BN)  # [BN]
    b_half_k2 = tl.load(p_columns + o_column + 2 * BN)  # [BN]
    gap_decay = exponential(-mu * gap)
    gap_process = accumulated(gap, exponential(-2.0 * mu * gap), mu, b_q.dtype == tl.float32)
    b_query_decay = gap_decay * b_row_decay  # [BM]
    b_query_variance = gamma2 + sigma2 * (gap_process + gap_decay * gap_decay * b_row_process)  # [BM]
    b_decay = b_query_decay[:, None] * b_key_decay[None, :]  # [BM, BN]
    b_variance = b_query_variance[:, None] + (b_query_decay * b_query_decay)[:, None] * b_key_variance[None, :]
    b_dot = _similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    b_logit, b_weighted_precision = _logits(
        b_decay,
        b_variance,
        b_dot,
        (0.5 * b_q2)[:, None],
        b_half_k2[None, :],
        b_shift[:, None],
        nu,
        tau,
        kappa,
        IS_GAUSSIAN,
        WITH_PRECISION,
        b_q.dtype == tl.float32,
        FAST,
    )
    b_weight = tl.exp2(b_logit)  # [BM, BN]
    b_out = _accumulate(b_out, b_weight, b_decay, b_v, INTERPRETED)  # [BM, W]
    b_sum += tl.sum(b_weight, 1)  # [BM]
    if WITH_PRECISION:
        b_evidence += tl.sum(b_weighted_precision, 1)  # [BM]
    return b_out, b_sum, b_shift, b_evidence


@triton.jit
def _distant_block(
    b_out, b_sums, b_evidences, b_q, b_row_terms, b_minus_query_decay, b_query_total, b_key_decay, b_key_factor, factor,
    p_k, p_v, p_totals, p_table, stride_kt, stride_vt, exponent,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, IS_LIGHT: tl.constexpr,
    WITH_PRECISION: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A whole block of keys far before all queries, log V and the rows' shifts as a product.

    Of a light distance the table's exponent includes that of E, and the sums are taken of weight E factor / E(s).
    Returns out, or -out where the distance is not light (-q·k would be an instruction more), and by LANES the sums of
    the weights and of 2 / (nu U).
    """
    b_k, b_v = _whole_block(p_k, p_v, stride_kt, stride_vt, WIDTH, BLOCK_W, BN)  # [BN, W]
    b_key_total = tl.load(p_totals + tl.arange(0, BN))  # [BN]
    if BLOCK_W * BN > KEPT_DECAYS:
        b_key_decay = tl.load(p_totals - 3 * BN + tl.arange(0, BN))  # [BN]
    o_table = tl.arange(0, TERMS)[:, None] * BN + tl.arange(0, BN)[None, :]  # [TERMS, BN]
    b_terms = tl.load(p_table + o_table)  # [TERMS, BN]
    b_minus_decay = b_minus_query_decay[:, None] * b_key_decay[None, :]  # [BM, BN]
    b_dot = _similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    # Sums that are written as such would become where a product starts from, and so wait for each other.
    b_match = tl.fma(b_minus_decay, tl.broadcast_to(b_key_total[None, :], (BM, BN)), b_dot)  # [BM, BN]
    b_total = tl.fma(b_minus_decay, b_match, tl.broadcast_to(b_query_total[:, None], (BM, BN)))  # [BM, BN] nu U / 2
    b_level = tl.dot(b_row_terms, b_terms)  # [BM, BN]
    b_weight = tl.exp2(tl.fma(log2(b_total, FAST), tl.full((BM, BN), 0.0, tl.float32) - exponent, b_level))  # [BM, BN]
    if IS_LIGHT:
        b_out = _accumulate(b_out, b_weight, 1.0, b_v, INTERPRETED)  # [BM, W]
        b_sums += factor * by_lane(b_weight * b_key_factor[None, :], BM, BN)  # [BM, LANES]
    else:
        b_out = _accumulate(b_out, b_weight, b_minus_decay, b_v, INTERPRETED)  # [BM, W]
        b_sums += by_lane(b_weight, BM, BN)  # [BM, LANES]
    if WITH_PRECISION:
        b_evidences += by_lane(reciprocal(b_total, FAST), BM, BN)  # [BM, LANES]
    return b_out, b_sums, b_evidences


@triton.jit
def _exact_distances(p_marks, n_distances):
    """The first distance from which on the table holds for all the `n_distances`."""
    first = 0
    for start in range(0, n_distances, 128):
        o_distance = start + tl.arange(0, 128)
        b_marked = tl.load(p_marks + o_distance, mask=o_distance < n_distances, other=0)
        first = tl.maximum(first, tl.max(b_marked, 0))
    return first


@triton.jit
def _head(p_heads, i_head, WIDTH: tl.constexpr):
    """mu, sigma2, eta2, gamma2, nu, tau, kappa; read anew for each loop, for kept they would cost registers."""
    mu = tl.load(p_heads + i_head * 6, volatile=True)
    sigma2 = tl.load(p_heads + i_head * 6 + 1, volatile=True)
    eta2 = tl.load(p_heads + i_head * 6 + 2, volatile=True)
    gamma2 = tl.load(p_heads + i_head * 6 + 3, volatile=True)
    nu = tl.load(p_heads + i_head * 6 + 4, volatile=True)
    tau = tl.load(p_heads + i_head * 6 + 5, volatile=True)
    return mu, sigma2, eta2, gamma2, nu, tau, (nu + WIDTH // 2) / (WIDTH // 2)


@triton.jit
def _nothing(BM: tl.constexpr, BLOCK_W: tl.constexpr):
    """The state of rows before their first key: out, sum of weights, shift of their exponents, evidence."""
    b_zero = tl.zeros([BM], tl.float32)  # [BM]
    return tl.zeros([BM, BLOCK_W], tl.float32), b_zero, b_zero + NOTHING, b_zero


@triton.jit
def _with_far_keys(
    state, b_q2, count, head, IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr, IS_EXACT: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """The state after `count` far keys, under a running maximum."""
    b_out, b_sum, b_shift, b_evidence = state  # [BM, W], [BM], [BM], [BM]
    mu, sigma2, _, gamma2, nu, tau, kappa = head
    # A head without far keys need not have a limit of V.
    limit = tl.where(count > 0.0, gamma2 + sigma2 / tl.where(count > 0.0, 2.0 * mu, 1.0), 1.0)
    b_zero = tl.zeros_like(b_q2)  # [BM]
    b_logit, b_far_evidence = _logits(
        b_zero, b_zero + limit, b_zero, 0.5 * b_q2, b_zero, 0.0, nu, tau, kappa, IS_GAUSSIAN, WITH_PRECISION, IS_EXACT,
        FAST,
    )  # fmt: skip
    b_logit = tl.where(count > 0.0, b_logit + tl.log2(tl.maximum(count, 1.0)), float("-inf"))  # [BM]
    b_top = tl.maximum(b_shift, b_logit)  # [BM]
    b_rescale = tl.exp2(b_shift - b_top)  # [BM]
    b_sum = b_sum * b_rescale + tl.exp2(b_logit - b_top)  # [BM]
    if WITH_PRECISION:
        b_evidence += count * b_far_evidence  # [BM]
    return b_out * b_rescale[:, None], b_sum, b_top, b_evidence


@triton.jit(do_not_specialize=LENGTHS)
def _forward_kernel(
    p_q, p_k, p_v, p_heads, p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_columns,
    p_rows, p_table, p_marks, p_lags, p_horizons, p_pages, p_out, p_log_norm, p_precision,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, stride_pages, n_heads, n_queries, n_keys, n_blocks, n_distances,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr,
    HAS_TABLE: tl.constexpr, HAS_FAR_FIELD: tl.constexpr, PAGE: tl.constexpr, HEADROOM: tl.constexpr,
    LIMIT: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The queries at the positions of one block, one head, one sequence."""
    i_head, i_sequence = tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own = sequence(p_query_starts, i_sequence, n_queries, IS_PACKED)
    _, first_key, length = sequence(p_key_starts, i_sequence, n_keys, IS_PACKED)
    # The longest programs first. Positions, not queries, are cut into blocks, so that lags between blocks are whole.
    start = length - n_own
    i_rows = (length + BM - 1) // BM - 1 - tl.program_id(0)
    if i_rows * BM + BM <= start or i_rows < 0:
        return
    o_row = i_rows * BM + tl.arange(0, BM)  # [BM] positions
    m_row = (o_row >= start) & (o_row < length)  # [BM]
    o_w = tl.arange(0, BLOCK_W)  # [W]
    head = _head(p_heads, i_head, WIDTH)

    # Only where a block begins takes 64 bits; the first one may begin before the first query.
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
    # The first blocks may be far from all rows.
    n_far = 0
    if HAS_FAR_FIELD:
        n_far = n_far_blocks(p_horizons, i_head, i_rows * BM, BN)
    n_visible = tl.cdiv(tl.minimum(i_rows * BM + BM, length), BN)
    state = _nothing(BM, BLOCK_W)
    for i_block in range(n_earlier, n_visible):
        if HAS_TABLE:
            state = _near_block(
                state, b_q, b_q2, p_own_k, p_own_v, p_own_columns, p_pages,
                p_lags + i_head.to(tl.int64) * (LAG_NUMBERS * 2 * BM), stride_kt, stride_vt, i_block,
                i_block - n_earlier, length, head, WIDTH, BLOCK_W, BM, BN, PAGE, WITH_PRECISION, HEADROOM, FAST,
                INTERPRETED,
            )  # fmt: skip
        else:
            state = _masked_block(
                state, b_q, b_q2, o_row, b_hi, b_lo, p_own_k, p_own_v, p_time, p_own_columns, p_pages, stride_kt,
                stride_vt, i_block, length, head, WIDTH, BLOCK_W, BN, HAS_STAMPS, PAGE, IS_GAUSSIAN, WITH_PRECISION,
                HEADROOM, FAST, INTERPRETED,
            )  # fmt: skip

    head = _head(p_heads, i_head, WIDTH)
    mu, sigma2, eta2, gamma2, nu, tau, kappa = head
    if HAS_STAMPS:
        p_first = p_time + tl.maximum(i_rows * BM, start).to(tl.int64) * 2
        first_hi, first_lo = tl.load(p_first), tl.load(p_first + 1)
        b_offset = tl.where(m_row, elapsed(b_hi, b_lo, first_hi, first_lo), 0.0)  # [BM]
    else:
        b_offset = tl.arange(0, BM).to(tl.float32)  # [BM]
    b_row_decay = exponential(-mu * b_offset)  # [BM]
    b_row_process = accumulated(b_offset, exponential(-2.0 * mu * b_offset), mu)  # [BM]
    n_distant = n_far
    if HAS_TABLE:
        n_exact = _exact_distances(p_marks + i_head.to(tl.int64) * n_distances, n_earlier - n_far)
        has_small_shift = tl.max(tl.where(m_row, tl.abs(state[2]), 0.0), 0) < LARGEST_SHIFT
        n_distant = tl.where(has_small_shift, tl.maximum(n_earlier - n_exact, n_far), n_far)
    for i_block in range(n_distant, n_earlier):
        if HAS_STAMPS:
            p_anchor = p_time + tl.cast(i_block * BN + BN - 1, tl.int64) * 2
            gap = elapsed(first_hi, first_lo, tl.load(p_anchor), tl.load(p_anchor + 1))
        else:
            gap = tl.cast((n_earlier - i_block) * BN - (BN - 1), tl.float32)
        state = _earlier_block(
            state, b_q, b_q2, b_row_decay, b_row_process, p_own_k, p_own_v, p_own_columns, p_pages, stride_kt,
            stride_vt, i_block, gap, head, WIDTH, BLOCK_W, BN, PAGE, IS_GAUSSIAN, WITH_PRECISION, FAST, INTERPRETED
        )  # fmt: skip

    if HAS_TABLE:
        mu, sigma2, eta2, gamma2, nu, tau, kappa = _head(p_heads, i_head, WIDTH)
        b_out, b_sum, b_shift, b_evidence = state
        is_slow = is_slow_head(mu, BN)
        steady = sigma2 / tl.where(is_slow, 1.0, 2.0 * mu)
        half_nu = 0.5 * nu
        # The rounding of R² cannot exceed this much of |q|² where U is near zero: U stays positive without a maximum.
        least = half_nu * tl.minimum(eta2 + gamma2, gamma2 + tl.where(is_slow, float("inf"), steady))
        b_lift = tl.maximum(b_q2 * ROUNDING - 0.5 * least, 0.0)  # [BM]
        b_row_total = (
            tl.where(b_shift > NOTHING, 0.5 * b_q2, 0.0) + half_nu * (gamma2 + tl.where(is_slow, 0.0, steady)) + b_lift
        )  # [BM]
        process_scale = tl.where(is_slow, half_nu * sigma2, 0.0)
        b_far_decay = tl.where(b_shift > NOTHING, b_row_decay, 0.0)  # [BM]
        b_far_process = tl.where(b_shift > NOTHING, process_scale * b_row_process, 0.0)  # [BM]
        b_row_terms = shifted_row_terms(p_rows, b_shift, BM)  # [BM, TERMS]
        # From near to far, transport and process of the gap by their sum rule over one more block.
        gap = tl.cast((n_earlier - n_distant) * BN + 1, tl.float32)
        gap_decay = exponential(-mu * gap)
        gap_process = process_scale * accumulated(gap, exponential(-2.0 * mu * gap), mu)
        block_decay = exponential(-mu * BN)
        block_process = process_scale * accumulated(mu * 0.0 + BN, exponential(-2.0 * mu * BN), mu)
        b_key_decay = exponential(-mu * (BN - 1 - tl.arange(0, BN)).to(tl.float32))  # [BN]
        n_nearer = n_earlier - n_distant
        n_light = tl.minimum(tl.maximum(n_light_distances(mu, BM, BN) - n_nearer, 0), n_distant - n_far)
        # Where E is divided out of sums, it is by factors that a light distance bounds.
        light_mu = tl.where(n_light > 0, mu, 0.0)
        factor = 1.0 / exponential(-light_mu * gap)
        block_factor = 1.0 / exponential(-light_mu * BN)
        b_key_factor = 1.0 / exponential(-light_mu * (BN - 1 - tl.arange(0, BN)).to(tl.float32))  # [BN]
        b_sums = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
        b_evidences = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
        step_k, step_v = tl.cast(stride_kt, tl.int64) * BN, tl.cast(stride_vt, tl.int64) * BN
        i_nearest = tl.cast(n_distant - 1, tl.int64)
        p_block_k = p_own_k + i_nearest * BN * stride_kt
        p_block_v = p_own_v + i_nearest * BN * stride_vt
        p_totals = p_own_columns + i_nearest * (COLUMNS * BN) + 3 * BN
        p_terms = p_table + (i_head.to(tl.int64) * n_distances + n_nearer) * (TERMS * BN)
        for i_farther in range(n_light):
            if PAGE > 0:
                place = block_place(p_pages, n_distant - 1 - i_farther, BN, PAGE)
                p_block_k, p_block_v = p_own_k + place * stride_kt, p_own_v + place * stride_vt
            gap_decay2 = gap_decay * gap_decay
            b_query_total = b_row_total + (gap_process + gap_decay2 * b_far_process)  # [BM]
            b_out, b_sums, b_evidences = _distant_block(
                b_out, b_sums, b_evidences, b_q, b_row_terms, -gap_decay * b_far_decay, b_query_total, b_key_decay,
                b_key_factor, factor, p_block_k, p_block_v, p_totals, p_terms, stride_kt, stride_vt, tau * kappa,
                WIDTH, BLOCK_W, BM, BN, True, WITH_PRECISION, FAST, INTERPRETED,
            )  # fmt: skip
            if PAGE == 0:
                p_block_k -= step_k
                p_block_v -= step_v
            p_totals -= COLUMNS * BN
            p_terms += TERMS * BN
            gap_process += gap_decay2 * block_process
            gap_decay *= block_decay
            factor *= block_factor
        b_row_factor = 1.0 / exponential(-light_mu * tl.arange(0, BM).to(tl.float32))  # [BM]
        b_sum += tl.sum(b_sums, 1) * b_row_factor  # [BM]
        b_minus_out = -b_out  # [BM, W]
        b_sums = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
        i_nearest = tl.cast(n_distant - n_light - 1, tl.int64)
        p_block_k = p_own_k + i_nearest * BN * stride_kt
        p_block_v = p_own_v + i_nearest * BN * stride_vt
        p_totals = p_own_columns + i_nearest * (COLUMNS * BN) + 3 * BN
        p_terms = p_table + (i_head.to(tl.int64) * n_distances + n_nearer + n_light) * (TERMS * BN)
        for i_farther in range(n_distant - n_far - n_light):
            if PAGE > 0:
                place = block_place(p_pages, n_distant - n_light - 1 - i_farther, BN, PAGE)
                p_block_k, p_block_v = p_own_k + place * stride_kt, p_own_v + place * stride_vt
            gap_decay2 = gap_decay * gap_decay
            b_query_total = b_row_total + (gap_process + gap_decay2 * b_far_process)  # [BM]
            b_minus_out, b_sums, b_evidences = _distant_block(
                b_minus_out, b_sums, b_evidences, b_q, b_row_terms, -gap_decay * b_far_decay, b_query_total,
                b_key_decay, b_key_decay, 1.0, p_block_k, p_block_v, p_totals, p_terms, stride_kt, stride_vt,
                tau * kappa, WIDTH, BLOCK_W, BM, BN, False, WITH_PRECISION, FAST, INTERPRETED,
            )  # fmt: skip
            if PAGE == 0:
                p_block_k -= step_k
                p_block_v -= step_v
            p_totals -= COLUMNS * BN
            p_terms += TERMS * BN
            gap_process += gap_decay2 * block_process
            gap_decay *= block_decay
        state = -b_minus_out, b_sum + tl.sum(b_sums, 1), b_shift, b_evidence + half_nu * tl.sum(b_evidences, 1)

    if tl.max(tl.where(m_row, state[1], 0.0), 0) > LIMIT:
        head = _head(p_heads, i_head, WIDTH)
        state = _nothing(BM, BLOCK_W)
        if HAS_FAR_FIELD:
            n_far = n_far_blocks(p_horizons, i_head, i_rows * BM, BN)
        for i_block in range(n_far, n_visible):
            state = _masked_block(
                state, b_q, b_q2, o_row, b_hi, b_lo, p_own_k, p_own_v, p_time, p_own_columns, p_pages,
                stride_kt, stride_vt, i_block, length, head, WIDTH, BLOCK_W, BN, HAS_STAMPS, PAGE, IS_GAUSSIAN,
                WITH_PRECISION, HEADROOM, FAST, INTERPRETED
            )  # fmt: skip

    if HAS_FAR_FIELD:
        state = _with_far_keys(
            state, b_q2, tl.cast(n_far_blocks(p_horizons, i_head, i_rows * BM, BN) * BN, tl.float32),
            _head(p_heads, i_head, WIDTH), IS_GAUSSIAN, WITH_PRECISION, b_q.dtype == tl.float32, FAST,
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


def _launch(device: torch.device, width: int, dtype: torch.dtype, with_precision: bool) -> Launch:
    """The table's entry; without a GPU, that of the oldest one."""
    name: PassName = "forward_precision" if with_precision else "forward"
    return launch(name, capability_of(device), width, dtype)


class Distances(NamedTuple):
    """What lags tell of H heads, for T distances of blocks (`triton_distant.py`): rows `[BM, TERMS]`, table
    `[H, T, TERMS, BN]`, both float16, marks `[H, T]` int32; and lags `[H, 2 BM, LAG_NUMBERS]` float32."""

    rows: Tensor
    table: Tensor
    marks: Tensor
    lags: Tensor


def distances(
    heads: Tensor, width: int, dtype: torch.dtype, longest: int, *, with_precision: bool,
    horizons: Tensor | None = None, blocks: Launch | None = None,
) -> Distances:  # fmt: skip
    """For keys up to `longest` and inputs of 16 bits, whose times are token numbers; of the Student-t kernel."""
    shape = blocks or _launch(heads.device, width, dtype, with_precision)
    n_heads, count = heads.shape[0], blocks_of(longest, shape.block_n)
    found = Distances(
        heads.new_empty((shape.block_m, TERMS.value), dtype=torch.float16),
        heads.new_empty((n_heads, count, TERMS.value, shape.block_n), dtype=torch.float16),
        heads.new_empty((n_heads, count), dtype=torch.int32),
        heads.new_empty((n_heads, 2 * shape.block_m, LAG_NUMBERS.value)),
    )
    table_kernel[(count, n_heads)](
        heads, *found, horizons, count,
        WIDTH=width, BM=shape.block_m, BN=shape.block_n, HAS_FAR_FIELD=horizons is not None,
        FAST=not is_interpreted(), num_warps=4,
    )  # fmt: skip
    return found


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
    query_stamps: Tensor | None,
    key_stamps: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
    is_gaussian: bool,
    with_precision: bool,
    horizons: Tensor | None = None,
    *,
    pages: KeyPages | None = None,
    out_dtype: torch.dtype | None = None,
    held: Distances | None = None,
    blocks: Launch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Out, log_norm and precision of rotated inputs; the caller has checked them.

    Args:
        q, k, v: `[B, n, H, W]`, `[B, M, H, W]`, the queries being those of the last n keys; any strides.
        heads: `[H, 6]` float32: mu, sigma2, eta2, gamma2, nu, tau.
        query_stamps, key_stamps: `[1 or B, n, 2]`, `[1 or B, M, 2]` float32, times as hi + lo; None = token numbers.
        query_starts, key_starts: `[S + 1]` int32, sequences packed into B = 1; None = one sequence a row.
        longest: most queries of a sequence.
        horizons: first far lag of each head (`far_horizons`), without stamps; None leaves no key out.
        pages: where the keys and values of the sequences, then packed and without stamps, lie in k and v; None where
            `key_starts` tell.
        out_dtype: None = that of q.
        held: what `distances` gave of these heads for as many keys or more; None: it is worked out again.
        blocks: in place of the table's entry, `block_n` dividing `block_m`.

    Returns:
        out `[B, n, H, W]`, log_norm and precision `[B, n, H]` float32; precision `[0]` if not wanted.
    """
    batch, n_queries, n_heads, width = q.shape
    n_keys = k.shape[1]
    q, k, v = (last_contiguous(x) for x in (q, k, v))
    shape = blocks or _launch(q.device, width, q.dtype, with_precision)
    if shape.block_m % shape.block_n:
        raise ValueError(f"block_m must be a multiple of block_n, got {shape.block_m} and {shape.block_n}")
    is_packed = query_starts is not None
    has_stamps = query_stamps is not None
    sequences = batch if query_starts is None else query_starts.numel() - 1
    longest_keys = n_keys - n_queries + longest
    if pages is not None:
        if PAGE_KEYS % shape.block_n:
            raise ValueError(f"block_n must divide {PAGE_KEYS}, the keys of a page, got {shape.block_n}")
        n_keys, longest_keys = pages.n_keys, pages.longest
    n_blocks = all_blocks(n_keys, sequences, shape.block_n, is_packed)
    columns = q.new_empty((n_heads, n_blocks, COLUMNS.value, shape.block_n), dtype=torch.float32)
    out = q.new_empty((batch, n_queries, n_heads, width), dtype=out_dtype or q.dtype)
    log_norm = q.new_empty((batch, n_queries, n_heads), dtype=torch.float32)
    precision = torch.empty_like(log_norm) if with_precision else log_norm.new_empty(0)
    interpreted = is_interpreted()
    fast = q.dtype.itemsize == 2 and not interpreted
    common = {
        "WIDTH": width,
        "BLOCK_W": max(16, 1 << (width - 1).bit_length()),
        "BN": shape.block_n,
        "HAS_STAMPS": has_stamps,
        "IS_PACKED": is_packed,
        "PAGE": PAGE_KEYS if pages else 0,
    }
    table_of_pages, stride_pages = (pages.table, pages.table.stride(0)) if pages else (None, 0)
    n_programs = blocks_of(longest_keys, shape.block_n)
    if pages is not None:
        n_programs = min(n_programs, max(1, COLUMN_PROGRAMS // (n_heads * sequences)))
    _columns_kernel[(n_programs, n_heads, sequences)](
        k, heads, key_stamps, key_starts, columns, table_of_pages,
        *k.stride()[:3], batch_stride(key_stamps), stride_pages, n_keys, n_blocks,
        **common, num_warps=4,
    )  # fmt: skip
    # The table is made for rounded inputs: float32 asks for more than its rounding.
    has_table = not has_stamps and not is_gaussian and q.dtype != torch.float32
    if not has_table:
        held = None
    elif held is None:
        held = distances(
            heads, width, q.dtype, longest_keys, with_precision=with_precision, horizons=horizons, blocks=shape
        )
    elif (count := held.marks.shape[1] * shape.block_n) < longest_keys:
        raise ValueError(f"the table of distances is of {count} keys, got a sequence of {longest_keys}")
    table, n_distances = (held, held.marks.shape[1]) if held else ((None,) * 4, 0)
    _forward_kernel[(blocks_of(longest - 1, shape.block_m) + 1, n_heads, sequences)](
        q, k, v, heads, query_stamps, key_stamps, query_starts, key_starts, columns,
        *table, horizons, table_of_pages, out, log_norm, precision,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], batch_stride(query_stamps), batch_stride(key_stamps),
        stride_pages, n_heads, n_queries, n_keys, n_blocks, n_distances,
        **common, BM=shape.block_m, IS_GAUSSIAN=is_gaussian, WITH_PRECISION=with_precision, HAS_TABLE=has_table,
        HAS_FAR_FIELD=horizons is not None,
        HEADROOM=5.0 if q.dtype == torch.float16 else 0.0, LIMIT=2.0**15 if q.dtype == torch.float16 else 2.0**100,
        FAST=fast, INTERPRETED=interpreted,
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    return out, log_norm, precision
