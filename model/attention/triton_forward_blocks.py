"""Device functions of the forward pass, which add one block of keys to the sums of a block of queries."""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_blocks import block_place, elapsed
from rfa.model.attention.triton_columns import COLUMNS
from rfa.model.attention.triton_distant import LAG_NUMBERS, TERMS, numbers_of_lags
from rfa.model.attention.triton_score import (
    LOG2E,
    accumulated,
    by_lane,
    exponential,
    log2,
    log2_of_one_plus,
    reciprocal,
    spread,
)

# Initial shift of a row. It is less than every logit, and finite so that differences are finite.
NOTHING = tl.constexpr(-1.0e30)
# If BN times the head width is above this, the decays of columns are loaded in every iteration to save registers.
KEPT_DECAYS = tl.constexpr(4096)


@triton.jit
def decayed(b_exponent, IS_EXACT: tl.constexpr):
    """Return e^-x for x >= 0."""
    if IS_EXACT:
        return exponential(-b_exponent)
    else:
        return tl.exp2(b_exponent * -LOG2E)


@triton.jit
def half_residual2(b_decay, b_dot, b_half_q2, b_half_k2):
    """Return R² / 2 of every pair, [BM, BN]."""
    b_match = b_half_q2 - b_decay * (b_dot - b_decay * b_half_k2)  # [BM, BN]
    # By default, the maximum of a number and NaN is the number, so that NaN would become the best match.
    return tl.maximum(b_match, 0.0, propagate_nan=tl.PropagateNan.ALL)  # [BM, BN]


@triton.jit
def logits(
    b_decay, b_variance, b_dot, b_half_q2, b_half_k2, b_shift, nu, tau, kappa,
    IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr, IS_EXACT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Return L / ln 2 - shift and the evidence of every pair. Both have shape [BM, BN], to which the arguments are
    broadcast.
    """
    b_half = half_residual2(b_decay, b_dot, b_half_q2, b_half_k2)  # [BM, BN]
    if IS_GAUSSIAN:
        b_precision = reciprocal(b_variance, FAST)  # [BM, BN]
        b_excess = b_precision * b_half * (2.0 / nu)  # [BM, BN]
        b_logit = -tau * (log2(b_variance, FAST) + b_excess * LOG2E) - b_shift  # [BM, BN]
        b_evidence = decayed(b_excess, IS_EXACT) * b_precision if WITH_PRECISION else 0.0
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
def accumulate(b_out, b_weight, b_decay, b_v, INTERPRETED: tl.constexpr):
    """Return out + (weight · E) v. weight · E is rounded to the dtype of v."""
    b_transported = b_weight * b_decay  # [BM, BN]
    if INTERPRETED and b_v.dtype == tl.bfloat16:
        return tl.dot(b_transported, b_v.to(tl.float32), b_out, input_precision="ieee")
    else:
        return tl.dot(b_transported.to(b_v.dtype), b_v, b_out, input_precision="ieee")


@triton.jit
def similarity(b_q, b_k, INTERPRETED: tl.constexpr):
    """Return q·k of every pair, [BM, BN]."""
    if INTERPRETED and b_q.dtype == tl.bfloat16:
        return tl.dot(b_q.to(tl.float32), tl.trans(b_k.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(b_q, tl.trans(b_k), input_precision="ieee")


@triton.jit
def load_any_block(
    p_k, p_v, p_pages, stride_kt, stride_vt, i_block, length, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    BN: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Load k and v of a block, [BN, W], with zeros after the last key."""
    o_within = tl.arange(0, BN)  # [BN]
    o_w = tl.arange(0, BLOCK_W)  # [W]
    m_kv = (i_block * BN + o_within < length)[:, None] & (o_w < WIDTH)[None, :]  # [BN, W]
    place = block_place(p_pages, i_block, BN, PAGE)
    b_k = tl.load(p_k + place * stride_kt + (o_within[:, None] * stride_kt + o_w[None, :]), mask=m_kv, other=0.0)
    b_v = tl.load(p_v + place * stride_vt + (o_within[:, None] * stride_vt + o_w[None, :]), mask=m_kv, other=0.0)
    return b_k, b_v


@triton.jit
def add_weighted(state, b_logit, b_decay, b_v, HEADROOM: tl.constexpr, INTERPRETED: tl.constexpr):
    """Add a block of pairs to the state, and update the running maximum. Logits of -inf exclude pairs."""
    b_out, b_sum, b_shift, b_evidence = state  # [BM, W], [BM], [BM], [BM]
    b_top = tl.maximum(b_shift, tl.max(b_logit, 1) - HEADROOM)  # [BM]
    b_rescale = tl.exp2(b_shift - b_top)  # [BM]
    b_weight = tl.exp2(b_logit - b_top[:, None])  # [BM, BN]
    b_out = accumulate(b_out * b_rescale[:, None], b_weight, b_decay, b_v, INTERPRETED)  # [BM, W]
    return b_out, b_sum * b_rescale + tl.sum(b_weight, 1), b_top, b_evidence


@triton.jit
def masked_block(
    state, b_q, b_q2, o_row, b_hi, b_lo, p_k, p_v, p_time, p_columns, p_pages, stride_kt, stride_vt, i_block, length,
    head, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, PAGE: tl.constexpr,
    IS_GAUSSIAN: tl.constexpr, WITH_PRECISION: tl.constexpr, HEADROOM: tl.constexpr, FAST: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add any block of keys to the state, and return the new state. A causal mask, a lag per pair and a running maximum
    are used."""
    mu, sigma2, eta2, gamma2, nu, tau, kappa = head
    b_k, b_v = load_any_block(p_k, p_v, p_pages, stride_kt, stride_vt, i_block, length, WIDTH, BLOCK_W, BN, PAGE)
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
    b_decay = decayed(mu * b_lag, b_q.dtype == tl.float32)  # [BM, BN]
    # The square of a rounded E is too inaccurate for the difference 1 - E².
    b_decay2 = exponential(-2.0 * mu * b_lag) if b_q.dtype == tl.float32 else b_decay * b_decay  # [BM, BN]
    b_variance = spread(b_lag, b_decay2, mu, sigma2, eta2, gamma2, b_q.dtype == tl.float32)  # [BM, BN]
    b_dot = similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    b_logit, b_weighted_precision = logits(
        b_decay, b_variance, b_dot, (0.5 * b_q2)[:, None], b_half_k2[None, :], 0.0, nu, tau, kappa, IS_GAUSSIAN,
        WITH_PRECISION, b_q.dtype == tl.float32, FAST,
    )  # fmt: skip
    m_pair = o_key[None, :] <= o_row[:, None]  # [BM, BN]
    b_out, b_sum, b_top, b_evidence = add_weighted(
        state, tl.where(m_pair, b_logit, float("-inf")), b_decay, b_v, HEADROOM, INTERPRETED
    )
    if WITH_PRECISION:
        b_evidence += tl.sum(tl.where(m_pair, b_weighted_precision, 0.0), 1)  # [BM]
    return b_out, b_sum, b_top, b_evidence


@triton.jit
def near_block(
    state, b_q, b_q2, p_k, p_v, p_columns, p_pages, p_lags, stride_kt, stride_vt, i_block, i_near, length, head,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr,
    WITH_PRECISION: tl.constexpr, HEADROOM: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add a block like `masked_block`, with E, V and log V from the table of lags. i_near is the index of the block
    relative to the block of the first query."""
    nu, tau, kappa = head[4], head[5], head[6]
    b_k, b_v = load_any_block(p_k, p_v, p_pages, stride_kt, stride_vt, i_block, length, WIDTH, BLOCK_W, BN, PAGE)
    b_half_k2 = tl.load(p_columns + tl.cast(i_block, tl.int64) * (COLUMNS * BN) + 2 * BN + tl.arange(0, BN))  # [BN]
    p_row = p_lags + (BM + i_near * BN - tl.arange(0, BM)) * LAG_NUMBERS  # [BM]
    # With a 64-bit offset, the compiler includes the distance between two columns in the load instruction.
    p_lag = p_row[:, None] + (tl.arange(0, BN).to(tl.int64) * LAG_NUMBERS)[None, :]  # [BM, BN]
    b_decay, b_variance, b_level = numbers_of_lags(p_lag, FAST)  # [BM, BN]
    b_dot = similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    b_half = half_residual2(b_decay, b_dot, (0.5 * b_q2)[:, None], b_half_k2[None, :])  # [BM, BN]
    b_total = b_variance + b_half * (2.0 / nu)  # [BM, BN]
    b_logit = b_level - tau * kappa * log2(b_total, FAST)  # [BM, BN]
    m_pair = (i_near * BN + tl.arange(0, BN))[None, :] <= tl.arange(0, BM)[:, None]  # [BM, BN]
    b_out, b_sum, b_top, b_evidence = add_weighted(
        state, tl.where(m_pair, b_logit, float("-inf")), b_decay, b_v, HEADROOM, INTERPRETED
    )
    if WITH_PRECISION:
        b_evidence += tl.sum(tl.where(m_pair, reciprocal(b_total, FAST), 0.0), 1)  # [BM]
    return b_out, b_sum, b_top, b_evidence


@triton.jit
def load_whole_block(
    p_k, p_v, stride_kt, stride_vt, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Load k and v of a complete block, [BN, W]."""
    o_key = tl.arange(0, BN)[:, None]  # [BN, 1]
    o_w = tl.arange(0, BLOCK_W)[None, :]  # [1, W]
    if WIDTH == BLOCK_W:
        return tl.load(p_k + (o_key * stride_kt + o_w)), tl.load(p_v + (o_key * stride_vt + o_w))
    else:
        b_k = tl.load(p_k + (o_key * stride_kt + o_w), mask=o_w < WIDTH, other=0.0)  # [BN, W]
        return b_k, tl.load(p_v + (o_key * stride_vt + o_w), mask=o_w < WIDTH, other=0.0)


@triton.jit
def earlier_block(
    state, b_q, b_q2, b_row_decay, b_row_process, p_k, p_v, p_columns, p_pages, stride_kt, stride_vt, i_block, gap,
    head, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, PAGE: tl.constexpr, IS_GAUSSIAN: tl.constexpr,
    WITH_PRECISION: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add a complete block of keys that precede all queries, and return the new state. `gap` is the time between the
    last key and the first query.
    """
    b_out, b_sum, b_shift, b_evidence = state  # [BM, W], [BM], [BM], [BM]
    mu, sigma2, _, gamma2, nu, tau, kappa = head
    place = block_place(p_pages, i_block, BN, PAGE)
    b_k, b_v = load_whole_block(
        p_k + place * stride_kt, p_v + place * stride_vt, stride_kt, stride_vt, WIDTH, BLOCK_W, BN
    )
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
    b_dot = similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    b_logit, b_weighted_precision = logits(
        b_decay, b_variance, b_dot, (0.5 * b_q2)[:, None], b_half_k2[None, :], b_shift[:, None], nu, tau, kappa,
        IS_GAUSSIAN, WITH_PRECISION, b_q.dtype == tl.float32, FAST,
    )  # fmt: skip
    b_weight = tl.exp2(b_logit)  # [BM, BN]
    b_out = accumulate(b_out, b_weight, b_decay, b_v, INTERPRETED)  # [BM, W]
    b_sum += tl.sum(b_weight, 1)  # [BM]
    if WITH_PRECISION:
        b_evidence += tl.sum(b_weighted_precision, 1)  # [BM]
    return b_out, b_sum, b_shift, b_evidence


@triton.jit
def distant_block(
    b_out, b_sums, b_evidences, b_q, b_row_terms, b_minus_query_decay, b_query_total, b_key_decay, b_key_factor, factor,
    p_k, p_v, p_totals, p_table, stride_kt, stride_vt, exponent,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, IS_LIGHT: tl.constexpr,
    WITH_PRECISION: tl.constexpr, FAST: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add a complete block of distant keys to the sums. One matrix product computes log V and the shifts of the rows.

    The notation is that of `triton_score.py`, and `triton_distant.py` describes the table. If IS_LIGHT, the exponents
    in the table include the exponent of E, and b_sums accumulates weight · E · factor / E(s). Return out, Σ weight and
    Σ 2 / (nu U), where both sums are split over LANES. Unless IS_LIGHT, -out is returned instead of out, because
    computing -q·k would take another instruction.
    """
    b_k, b_v = load_whole_block(p_k, p_v, stride_kt, stride_vt, WIDTH, BLOCK_W, BN)  # [BN, W]
    b_key_total = tl.load(p_totals + tl.arange(0, BN))  # [BN]
    if BLOCK_W * BN > KEPT_DECAYS:
        b_key_decay = tl.load(p_totals - 3 * BN + tl.arange(0, BN))  # [BN]
    o_table = tl.arange(0, TERMS)[:, None] * BN + tl.arange(0, BN)[None, :]  # [TERMS, BN]
    b_terms = tl.load(p_table + o_table)  # [TERMS, BN]
    b_minus_decay = b_minus_query_decay[:, None] * b_key_decay[None, :]  # [BM, BN]
    b_dot = similarity(b_q, b_k, INTERPRETED)  # [BM, BN]
    # As sums, these would be compiled to the accumulators of one product, and each would wait for the previous one.
    b_match = tl.fma(b_minus_decay, tl.broadcast_to(b_key_total[None, :], (BM, BN)), b_dot)  # [BM, BN]
    b_total = tl.fma(b_minus_decay, b_match, tl.broadcast_to(b_query_total[:, None], (BM, BN)))  # [BM, BN] nu U / 2
    b_level = tl.dot(b_row_terms, b_terms)  # [BM, BN]
    b_weight = tl.exp2(tl.fma(log2(b_total, FAST), tl.full((BM, BN), 0.0, tl.float32) - exponent, b_level))  # [BM, BN]
    if IS_LIGHT:
        b_out = accumulate(b_out, b_weight, 1.0, b_v, INTERPRETED)  # [BM, W]
        b_sums += factor * by_lane(b_weight * b_key_factor[None, :], BM, BN)  # [BM, LANES]
    else:
        b_out = accumulate(b_out, b_weight, b_minus_decay, b_v, INTERPRETED)  # [BM, W]
        b_sums += by_lane(b_weight, BM, BN)  # [BM, LANES]
    if WITH_PRECISION:
        b_evidences += by_lane(reciprocal(b_total, FAST), BM, BN)  # [BM, LANES]
    return b_out, b_sums, b_evidences


@triton.jit
def distant_addresses(p_k, p_v, p_columns, i_block, stride_kt, stride_vt, BN: tl.constexpr):
    """Return the addresses of k, v and the totals of a distant block."""
    i_block = tl.cast(i_block, tl.int64)
    p_block_k = p_k + i_block * BN * stride_kt
    p_block_v = p_v + i_block * BN * stride_vt
    return p_block_k, p_block_v, p_columns + i_block * (COLUMNS * BN) + 3 * BN


@triton.jit
def n_exact_distances(p_marks, n_distances):
    """Return the number of distances that are computed exactly. The table may be used for all later ones of
    `n_distances`."""
    first = 0
    for start in range(0, n_distances, 128):
        o_distance = start + tl.arange(0, 128)
        b_marked = tl.load(p_marks + o_distance, mask=o_distance < n_distances, other=0)
        first = tl.maximum(first, tl.max(b_marked, 0))
    return first


@triton.jit
def load_head(p_heads, i_head, WIDTH: tl.constexpr):
    """Load mu, sigma2, eta2, gamma2, nu and tau, and compute kappa. Each loop loads them again to save registers."""
    mu = tl.load(p_heads + i_head * 6, volatile=True)
    sigma2 = tl.load(p_heads + i_head * 6 + 1, volatile=True)
    eta2 = tl.load(p_heads + i_head * 6 + 2, volatile=True)
    gamma2 = tl.load(p_heads + i_head * 6 + 3, volatile=True)
    nu = tl.load(p_heads + i_head * 6 + 4, volatile=True)
    tau = tl.load(p_heads + i_head * 6 + 5, volatile=True)
    return mu, sigma2, eta2, gamma2, nu, tau, (nu + WIDTH // 2) / (WIDTH // 2)


@triton.jit
def empty_state(BM: tl.constexpr, BLOCK_W: tl.constexpr):
    """Return the state of rows before their first key: out, sum of weights, shift of the exponents, and evidence."""
    b_zero = tl.zeros([BM], tl.float32)  # [BM]
    return tl.zeros([BM, BLOCK_W], tl.float32), b_zero, b_zero + NOTHING, b_zero
