"""Fused backward pass of Robust Filter Attention: gradients of q, k, v and of the heads' scalars, O(N) memory.

Equations in `triton_score.py`, oracle in `reference.py`. With dO, g, h the gradients of out, log_norm and precision:

    p = exp(L - log_norm)    dL = p (E dO·v - dO·out + g)    s = -dR² nu / c, c = tau kappa (Gaussian: tau)
    Student-t: s = (dL + h / (c U)) / U            m = -dV / c = s - (1 - 1 / kappa) dL / V
    Gaussian:  s = (dL + h e^{-x} / (c V)) / V     m = s (1 - x),  x = R² / (nu V)
    dq_i = -(2 c / nu) Σ_j s (q_i - E k_j)    dk_j = -(2 c / nu) Σ_i s E (E k_j - q_i)    dv_j = Σ_i p E dO_i
    dgamma2 = -c Σ m    deta2 = -c Σ m E²    dsigma2 = -c Σ m phi    dtau = Σ dL L / tau
    dnu = c Σ s R² / nu² + (tau / D) Σ dL log(V / U)
    dmu = -Σ lag (E p dO·v - (2 c / nu) s E (E |k|² - q·k)) - c Σ m dV/dmu

Where rounding makes R² negative it counts as 0, its gradient as that of a positive one, which vanishes there too.

One kernel takes a block of queries over its keys (dq, the scalars), one a block of keys over its queries (dk, dv); two
small ones before them describe every token by the numbers that the blocks need of it, and for float32 a third settles
the norms of the rows. Sums run in a fixed order. In a
block where every key is older than every query, V and E are products of a factor of the query and one of the key: with
an instant between them, u after the key's and s before the query's,

    E = E(u) E(s)    phi = phi(u) + E(u)² phi(s)    V = sigma2 phi(u) + gamma2 + E(u)² (sigma2 phi(s) + eta2 E(s)²)

With horizons both leave out the blocks of keys that are far from all of a block of queries: a row adds the number of
those keys times the terms of one, E = 0 and V its limit (`triton_far.py`).

Variances are in units of the head's smallest V, so that s is no larger than dL and fits 16 bits where dL does.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.attention.launch import Launch, PassName, launch
from rfa.model.attention.triton_blocks import (
    LENGTHS,
    all_blocks,
    batch_stride,
    elapsed,
    first_block,
    is_interpreted,
    last_contiguous,
    sequence,
)
from rfa.model.attention.triton_far import n_far_blocks
from rfa.model.attention.triton_score import (
    LANES,
    LN2,
    LOG2E,
    by_lane,
    log2,
    log2_of_one_plus,
    reciprocal,
    transport,
)
from rfa.model.placement import capability_of

# A row that is not there: its weights vanish, and finite numbers stay finite.
NOTHING = tl.constexpr(1e30)
# Below this exponent mu lag the series are exact to rounding in float32, above it the quotients are.
SMALL = tl.constexpr(0.25)
# Numbers that describe a token, in blocks `[H, blocks, numbers, block]`, every block whole.
KEY_NUMBERS = tl.constexpr(7)
QUERY_NUMBERS = tl.constexpr(9)


@triton.jit
def _accumulated(lag, decay, mu, inverse_mu):
    """phi(lag), with decay = E(lag): lag E sinh(y) / y of y = mu lag, or its quotient."""
    y2 = (mu * lag) * (mu * lag)
    series = lag * decay * (1.0 + y2 * (1.0 / 6.0 + y2 * (1.0 / 120.0 + y2 * (1.0 / 5040.0))))
    return tl.where(mu * lag < SMALL, series, (0.5 - 0.5 * decay * decay) * inverse_mu)


@triton.jit
def _fall(lag, decay, accumulated, mu, inverse_mu):
    """-dphi/dmu, with accumulated = phi(lag): (phi - lag E²) / mu, or its series."""
    y = mu * lag
    series = 1.0 / 6.0 - y * (1.0 / 30.0 - y * (1.0 / 120.0 - y * (1.0 / 840.0)))
    series = lag * lag * decay * (1.0 - y * (1.0 / 3.0 - y * series))
    return tl.where(y < SMALL, series, (accumulated - lag * decay * decay) * inverse_mu)


@triton.jit
def _head(p_heads, i_head, DIMS: tl.constexpr, IS_GAUSSIAN: tl.constexpr):
    """Scalars of a head: mu, 1 / mu; sigma2, eta2, gamma2, 2 / nu in units of 2^log_unit; c; tau; nu; log_unit.

    The unit is at most the smallest V, and no more than a factor of 2 below it unless V falls far.
    """
    p_head = p_heads + i_head * 6
    mu, sigma2, eta2 = tl.load(p_head), tl.load(p_head + 1), tl.load(p_head + 2)
    gamma2, nu, tau = tl.load(p_head + 3), tl.load(p_head + 4), tl.load(p_head + 5)
    inverse_mu = tl.where(mu > 0.0, 1.0 / tl.where(mu > 0.0, mu, 1.0), 0.0)
    first = eta2 + gamma2
    last = tl.where(mu > 0.0, gamma2 + 0.5 * sigma2 * inverse_mu, first)
    # V is monotonic in the lag; it may fall to 0.
    log_unit = tl.floor(tl.log2(tl.minimum(first, tl.maximum(last, first * 1e-3))))
    per_unit = tl.exp2(-log_unit)
    power = tau if IS_GAUSSIAN else tau * ((nu + DIMS) / DIMS)
    scale = 2.0 * per_unit / nu
    return mu, inverse_mu, sigma2 * per_unit, eta2 * per_unit, gamma2 * per_unit, scale, power, tau, nu, log_unit


@triton.jit
def _rows(p, start, o_row, m_row, stride_t, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, MASKED: tl.constexpr):
    """Rows start + o_row of one head, [rows, W]."""
    o_w = tl.arange(0, BLOCK_W)  # [W]
    p_block = p + tl.cast(start, tl.int64) * stride_t + (o_row[:, None] * stride_t + o_w[None, :])  # [rows, W]
    if MASKED:
        return tl.load(p_block, mask=m_row[:, None] & (o_w < WIDTH)[None, :], other=0.0)
    elif WIDTH == BLOCK_W:
        return tl.load(p_block)
    else:
        return tl.load(p_block, mask=(o_w < WIDTH)[None, :], other=0.0)


@triton.jit
def _at(p_stamps, offset, HAS_STAMPS: tl.constexpr):
    """Stamps from `offset` on, if there are any; else a number nobody reads, for not every Triton can return None."""
    if HAS_STAMPS:
        return p_stamps + offset
    else:
        return 0


@triton.jit
def _times(p_time, start, o_row, m_row, HAS_STAMPS: tl.constexpr):
    """Times of the tokens start + o_row as hi + lo; their numbers without stamps."""
    if HAS_STAMPS:
        p_row = p_time + tl.cast(start, tl.int64) * 2 + o_row * 2
        return tl.load(p_row, mask=m_row, other=0.0), tl.load(p_row + 1, mask=m_row, other=0.0)
    else:
        return (start + o_row).to(tl.float32), tl.zeros_like(o_row).to(tl.float32)


@triton.jit
def _time(p_time, i_row, HAS_STAMPS: tl.constexpr):
    """Time of one token as hi + lo."""
    if HAS_STAMPS:
        p_row = p_time + tl.cast(i_row, tl.int64) * 2
        return tl.load(p_row), tl.load(p_row + 1)
    else:
        return tl.cast(i_row, tl.float32), 0.0


@triton.jit(do_not_specialize=LENGTHS)
def _describe_keys(
    p_k, p_heads, p_stamps, p_starts, p_keys,
    stride_kb, stride_kt, stride_kh, stride_stamps, n_keys, n_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    IS_GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """Of each key, s before the last key of its block of BN: -|k|² / 2; E(s), E(s)²; C = sigma2 phi(s) + eta2 E(s)²,
    phi(s), -dC/dmu; s.
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first, length = sequence(p_starts, i_sequence, n_keys, IS_PACKED)
    start = i_block * BN
    if start >= length:
        return
    mu, inverse_mu, sigma2, eta2, _, _, _, _, _, _ = _head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    o_key = tl.arange(0, BN)  # [BN]
    m_key = start + o_key < length
    p_own = p_k + i_batch * stride_kb + i_head.to(tl.int64) * stride_kh + first * stride_kt
    b_k = _rows(p_own, start, o_key, m_key, stride_kt, WIDTH, BLOCK_W, True).to(tl.float32)  # [BN, W]
    p_time = _at(p_stamps, i_batch * stride_stamps + first * 2, HAS_STAMPS)
    b_hi, b_lo = _times(p_time, start, o_key, m_key, HAS_STAMPS)  # [BN]
    # The last block may end early; nothing takes it as a whole.
    last_hi, last_lo = _time(p_time, tl.minimum(start + BN, length) - 1, HAS_STAMPS)
    b_lag = elapsed(last_hi, last_lo, b_hi, b_lo)  # [BN]
    b_decay = transport(b_lag, mu)  # [BN]
    b_phi = _accumulated(b_lag, b_decay, mu, inverse_mu)  # [BN]
    i_own = first_block(first, i_sequence, n_keys, BN, IS_PACKED) + i_block
    p_key = p_keys + (i_head.to(tl.int64) * n_blocks + i_own) * (KEY_NUMBERS * BN) + o_key
    tl.store(p_key, -0.5 * tl.sum(b_k * b_k, 1))
    tl.store(p_key + BN, b_decay)
    tl.store(p_key + 2 * BN, b_decay * b_decay)
    tl.store(p_key + 3 * BN, sigma2 * b_phi + eta2 * b_decay * b_decay)
    tl.store(p_key + 4 * BN, b_phi)
    b_fall = _fall(b_lag, b_decay, b_phi, mu, inverse_mu)  # [BN]
    tl.store(p_key + 5 * BN, sigma2 * b_fall + 2.0 * eta2 * b_lag * b_decay * b_decay)
    tl.store(p_key + 6 * BN, b_lag)


@triton.jit(do_not_specialize=LENGTHS)
def _describe_queries(
    p_q, p_out, p_grad_out, p_log_norm, p_grad_log_norm, p_grad_precision, p_heads, p_stamps, p_starts, p_queries,
    stride_qb, stride_qt, stride_qh, stride_stamps, n_heads, n_queries, n_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr,
    IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr,
):  # fmt: skip
    """Of each query, u after the first query of its block of BM: -|q|² / 2; g - dO·out; log_norm / ln 2 in the units of
    the head as hi + lo; h / c likewise; E(u), E(u)², sigma2 phi(u) + gamma2; g log_norm / ln 2.
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first, length = sequence(p_starts, i_sequence, n_queries, IS_PACKED)
    start = i_block * BM
    if start >= length:
        return
    head = _head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, _, gamma2, _, power, tau, _, log_unit = head
    o_query = tl.arange(0, BM)  # [BM]
    m_query = start + o_query < length
    token = i_batch * n_queries + first + start
    stride_row = n_heads * WIDTH
    p_own = p_q + i_batch * stride_qb + i_head.to(tl.int64) * stride_qh + first * stride_qt
    b_q = _rows(p_own, start, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True).to(tl.float32)  # [BM, W]
    b_out = _rows(p_out + i_head * WIDTH, token, o_query, m_query, stride_row, WIDTH, BLOCK_W, True).to(tl.float32)
    b_do = _rows(p_grad_out + i_head * WIDTH, token, o_query, m_query, stride_row, WIDTH, BLOCK_W, True).to(tl.float32)
    o_row = (token + o_query) * n_heads + i_head  # [BM]
    b_g = tl.load(p_grad_log_norm + o_row, mask=m_query, other=0.0)  # [BM]
    # float64: an error here is one of all of a row's weights.
    b_norm = tl.load(p_log_norm + o_row, mask=m_query, other=0.0).to(tl.float64) / 0.6931471805599453  # [BM]
    b_norm += tau.to(tl.float64) * log_unit
    b_high = tl.where(m_query, b_norm.to(tl.float32), NOTHING)  # [BM]
    b_low = tl.where(m_query, (b_norm - b_high.to(tl.float64)).to(tl.float32), 0.0)  # [BM]
    p_time = _at(p_stamps, i_batch * stride_stamps + first * 2, HAS_STAMPS)
    b_hi, b_lo = _times(p_time, start, o_query, m_query, HAS_STAMPS)  # [BM]
    first_hi, first_lo = _time(p_time, start, HAS_STAMPS)
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
    tl.store(p_query + 7 * BM, sigma2 * _accumulated(b_lag, b_decay, mu, inverse_mu) + gamma2)
    tl.store(p_query + 8 * BM, b_g * tl.load(p_log_norm + o_row, mask=m_query, other=0.0) * LOG2E)


@triton.jit
def _product(b_x, b_y, UPCAST: tl.constexpr):
    """x y, x in the dtype of y; UPCAST because the interpreter multiplies the bits of bfloat16."""
    if UPCAST:
        return tl.dot(b_x.to(b_y.dtype).to(tl.float32), b_y.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(b_x.to(b_y.dtype), b_y, input_precision="ieee")


@triton.jit
def _weigh(
    b_dot, b_decay, b_variance, b_query, b_key, b_norm, b_norm_low, m_pair, head,
    IS_GAUSSIAN: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Of every pair: p; log2 p; log2 V/U; 1 / U; match = -R² / 2; its slope over E, less the last E |k|² / 2.

    Gaussian: 1 / V in place of 1 / U, x in place of log2 V/U. Blocks are all one way round, `[BM, BN]` or `[BN, BM]`,
    the numbers of queries and keys ready to be broadcast.
    """
    scale, power, tau = head[5], head[6], head[7]
    b_slope = b_decay * b_key + b_dot
    b_match = tl.minimum(b_decay * b_slope + b_query, 0.0)
    b_log_v = log2(b_variance, FAST)
    if IS_GAUSSIAN:
        b_inverse = reciprocal(b_variance, FAST)
        b_fit = -scale * b_match * b_inverse
        b_log_p = -tau * (b_log_v + b_fit * LOG2E) - b_norm
    else:
        b_u = b_variance - scale * b_match
        b_inverse = reciprocal(b_u, FAST)
        if FAST:
            b_fit = b_log_v - log2(b_u, FAST)
            b_log_p = (power * b_fit - b_norm) - tau * b_log_v
        else:
            # The power of a light tail is large: the logarithm of a rounded V / U would be off by as much.
            b_fit = -log2_of_one_plus(-scale * b_match / b_variance)
            b_log_p = (power * b_fit - tau * b_log_v) - b_norm
    if not FAST:
        b_log_p -= b_norm_low
    b_p = tl.exp2(b_log_p)
    if MASKED:
        b_p = tl.where(m_pair, b_p, 0.0)
    return b_p, b_log_p, b_fit, b_inverse, b_match, b_slope


@triton.jit
def _differentiate(
    weighed, b_gain, b_offset, b_h, m_pair, IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """dL, s and what the gradient h of precision adds to s, of every pair; b_gain = E dO·v."""
    b_p, _, b_fit, b_inverse, _, _ = weighed
    b_dl = b_p * (b_gain + b_offset)
    b_evidence = 0.0
    if HAS_PRECISION:
        b_evidence = b_h * b_inverse * b_inverse
        if IS_GAUSSIAN:
            b_evidence *= tl.exp2(b_fit * -LOG2E)
        if MASKED:
            b_evidence = tl.where(m_pair, b_evidence, 0.0)
    return b_dl, b_dl * b_inverse + b_evidence, b_evidence


@triton.jit
def _slope_of_variance(
    weighed, b_dl, b_s, b_evidence, b_variance, head, IS_GAUSSIAN: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """m of every pair."""
    _, _, b_fit, b_inverse, b_match, _ = weighed
    scale, power, tau = head[5], head[6], head[7]
    if IS_GAUSSIAN:
        b_m = b_s - b_s * b_fit  # [BM, BN]
    elif FAST:
        # power - tau = tau nu / D.
        b_m = b_s - ((power - tau) / power) * b_dl * reciprocal(b_variance, FAST)  # [BM, BN]
    else:
        # The same, what the two terms share, dL / V, taken out before they cancel.
        b_m = b_dl / b_variance * (tau / power + scale * b_match * b_inverse) + b_evidence  # [BM, BN]
    return b_m


@triton.jit
def _transported(weighed, b_gain, b_carried, b_decay, b_key, head):
    """E dE of every pair, without what reaches E through V."""
    return weighed[0] * b_gain + (head[6] * head[5]) * (b_carried * (weighed[5] + b_decay * b_key))  # [BM, BN]


@triton.jit
def _tail_gradient(b_sum_match, b_sum_fit, head, IS_GAUSSIAN: tl.constexpr):
    """Gradient of nu from Σ s · match and Σ dL log2 V/U."""
    scale, power, tau, nu = head[5], head[6], head[7], head[8]
    b_through_u = -(power * scale / nu) * b_sum_match
    return b_through_u if IS_GAUSSIAN else b_through_u + ((power - tau) / nu * LN2) * b_sum_fit


@triton.jit
def _weigh_far_key(n_far, b_query, b_norm, b_norm_low, m_query, head, IS_GAUSSIAN: tl.constexpr, FAST: tl.constexpr):
    """What `_weigh` returns for one of `n_far` far keys, [BM, 1], and V; of weight 0 and any finite V if there are
    none.
    """
    limit = tl.where(n_far > 0, head[4] + 0.5 * head[2] * head[1], 1.0)
    b_none = tl.zeros_like(b_query)[:, None]  # [BM, 1]
    b_variance = b_none + limit  # [BM, 1]
    weighed = _weigh(
        b_none, b_none, b_variance, b_query[:, None], b_none, b_norm[:, None], b_norm_low[:, None],
        m_query[:, None] & (n_far > 0), head, IS_GAUSSIAN, True, FAST,
    )  # fmt: skip
    return weighed, b_variance


@triton.jit
def _far_sums(
    n_far, b_query, b_offset, b_norm, b_norm_low, b_h, m_query, head, IS_GAUSSIAN: tl.constexpr,
    HAS_PRECISION: tl.constexpr, NEEDS_DYNAMICS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Of the rows' `n_far` far keys, where E = 0, phi = 1 / (2 mu) and -dphi/dmu = 1 / (2 mu²): Σ s; Σ m; Σ m phi;
    c Σ m sigma2 / (2 mu²); Σ dL log2 p; the gradient of nu.
    """
    weighed, b_variance = _weigh_far_key(n_far, b_query, b_norm, b_norm_low, m_query, head, IS_GAUSSIAN, FAST)
    count = tl.cast(n_far, tl.float32)
    b_none = tl.zeros_like(b_variance)  # [BM, 1]
    m_pair = m_query[:, None] & (n_far > 0)  # [BM, 1]
    b_dl, b_s, b_evidence = _differentiate(
        weighed, b_none, b_offset[:, None], b_h[:, None], m_pair, IS_GAUSSIAN, HAS_PRECISION, True
    )
    b_dl, b_s, b_evidence = count * b_dl, count * b_s, count * b_evidence  # [BM, 1]
    b_sum_m, b_sum_tau, b_sum_nu = tl.zeros_like(b_query), tl.zeros_like(b_query), tl.zeros_like(b_query)  # [BM]
    if NEEDS_DYNAMICS:
        b_m = _slope_of_variance(weighed, b_dl, b_s, b_evidence, b_variance, head, IS_GAUSSIAN, FAST)
        b_sum_m, b_sum_tau = tl.sum(b_m, 1), tl.sum(b_dl * weighed[1], 1)  # [BM]
        b_sum_nu = _tail_gradient(tl.sum(b_s * weighed[4], 1), tl.sum(b_dl * weighed[2], 1), head, IS_GAUSSIAN)  # [BM]
    b_sum_phi = tl.where(n_far > 0, 0.5 * head[1], 0.0) * b_sum_m  # [BM]
    b_sum_mu = (head[6] * head[2]) * tl.where(n_far > 0, head[1], 0.0) * b_sum_phi  # [BM]
    return tl.sum(b_s, 1), b_sum_m, b_sum_phi, b_sum_mu, b_sum_tau, b_sum_nu


@triton.jit
def _described(p_query, STRIDE: tl.constexpr, HAS_PRECISION: tl.constexpr, FAST: tl.constexpr):
    """-|q|² / 2, g - dO·out, log_norm and h of a whole block of queries, [BM]; where unused, the last two are any."""
    b_norm = tl.load(p_query + 2 * STRIDE)  # [BM]
    b_norm_low, b_h = b_norm, b_norm
    if not FAST:
        b_norm_low = tl.load(p_query + 3 * STRIDE)  # [BM]
    if HAS_PRECISION:
        b_h = tl.load(p_query + 4 * STRIDE)  # [BM]
    return tl.load(p_query), tl.load(p_query + STRIDE), b_norm, b_norm_low, b_h


@triton.jit(do_not_specialize=LENGTHS)
def _settle_rows(
    p_q, p_k, p_v, p_grad_out, p_grad_log_norm, p_heads, p_queries, p_keys,
    p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_horizons,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, n_heads, n_queries, n_keys, n_query_blocks, n_key_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr, HAS_FAR_FIELD: tl.constexpr, FAST: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """For float32: log_norm and dO·out of a block of queries once more, from the very weights of the other kernels.

    What `out` and `log_norm` were rounded by shifts all of a row's dL, whose sums nearly cancel.
    """
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own = sequence(p_query_starts, i_sequence, n_queries, IS_PACKED)
    _, first_key, length = sequence(p_key_starts, i_sequence, n_keys, IS_PACKED)
    first = i_block * BM
    if first >= n_own:
        return
    head = _head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, eta2, gamma2, _, _, _, _, _ = head
    p_k += i_batch * stride_kb + first_key * stride_kt + i_head.to(tl.int64) * stride_kh
    p_v += i_batch * stride_vb + first_key * stride_vt + i_head.to(tl.int64) * stride_vh
    i_keys = i_head.to(tl.int64) * n_key_blocks + first_block(first_key, i_sequence, n_keys, BN, IS_PACKED)
    i_queries = i_head.to(tl.int64) * n_query_blocks + first_block(first_query, i_sequence, n_queries, BM, IS_PACKED)
    p_key_time = _at(p_key_stamps, i_batch * stride_key_stamps + first_key * 2, HAS_STAMPS)
    p_query_time = _at(p_query_stamps, i_batch * stride_query_stamps + first_query * 2, HAS_STAMPS)

    o_query, o_key = tl.arange(0, BM), tl.arange(0, BN)  # [BM], [BN]
    m_query = first + o_query < n_own
    token = i_batch * n_queries + first_query + first
    p_own = p_q + i_batch * stride_qb + first_query * stride_qt + i_head.to(tl.int64) * stride_qh
    b_q = _rows(p_own, first, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
    b_do = _rows(p_grad_out + i_head * WIDTH, token, o_query, m_query, n_heads * WIDTH, WIDTH, BLOCK_W, True)
    p_query = p_queries + (i_queries + i_block) * (QUERY_NUMBERS * BM) + o_query
    b_query, _offset, b_norm, b_norm_low, _h = _described(p_query, BM, False, FAST)
    position = length - n_own + first
    b_hi, b_lo = _times(p_query_time, first if HAS_STAMPS else position, o_query, m_query, HAS_STAMPS)  # [BM]
    b_sum = tl.zeros([BM], tl.float32)
    b_sum_gain = tl.zeros([BM], tl.float32)
    n_far = 0
    if HAS_FAR_FIELD:
        n_far = n_far_blocks(p_horizons, i_head, position, BN)
        far_key, _variance = _weigh_far_key(n_far, b_query, b_norm, b_norm_low, m_query, head, IS_GAUSSIAN, FAST)
        b_sum += tl.cast(n_far * BN, tl.float32) * tl.sum(far_key[0], 1)
    for start in range(n_far * BN, tl.minimum(position + BM, length), BN):
        m_key = start + o_key < length
        b_k = _rows(p_k, start, o_key, m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BN, W]
        b_v = _rows(p_v, start, o_key, m_key, stride_vt, WIDTH, BLOCK_W, True)  # [BN, W]
        b_key = tl.load(p_keys + (i_keys + start // BN) * (KEY_NUMBERS * BN) + o_key)  # [BN]
        b_key_hi, b_key_lo = _times(p_key_time, start, o_key, m_key, HAS_STAMPS)  # [BN]
        b_lag = elapsed(b_hi[:, None], b_lo[:, None], b_key_hi[None, :], b_key_lo[None, :])  # [BM, BN]
        b_decay = transport(b_lag, mu)  # [BM, BN]
        b_phi = _accumulated(b_lag, b_decay, mu, inverse_mu)  # [BM, BN]
        b_variance = sigma2 * b_phi + eta2 * b_decay * b_decay + gamma2  # [BM, BN]
        m_pair = (start + o_key)[None, :] <= (position + o_query)[:, None]  # [BM, BN]
        weighed = _weigh(
            _product(b_q, tl.trans(b_k), UPCAST), b_decay, b_variance, b_query[:, None], b_key[None, :],
            b_norm[:, None], b_norm_low[:, None], m_pair, head, IS_GAUSSIAN, True, FAST,
        )  # fmt: skip
        b_sum += tl.sum(weighed[0], 1)
        b_sum_gain += tl.sum(weighed[0] * b_decay * _product(b_do, tl.trans(b_v), UPCAST), 1)
    b_g = tl.load(p_grad_log_norm + (token + o_query) * n_heads + i_head, mask=m_query, other=0.0)  # [BM]
    b_sum = tl.where(m_query, b_sum, 1.0)  # [BM]
    tl.store(p_query + BM, b_g - b_sum_gain / b_sum)
    tl.store(p_query + 3 * BM, b_norm_low + tl.log2(b_sum))


@triton.jit(do_not_specialize=LENGTHS)
def _rows_kernel(
    p_q, p_k, p_v, p_grad_out, p_heads, p_queries, p_keys,
    p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_horizons, p_dq, p_sums,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, n_heads, n_queries, n_keys, n_query_blocks, n_key_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    QUERY_BLOCK: tl.constexpr, HAS_STAMPS: tl.constexpr, IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr,
    HAS_FAR_FIELD: tl.constexpr, HAS_PRECISION: tl.constexpr, NEEDS_DYNAMICS: tl.constexpr, NEEDS_DECAY: tl.constexpr,
    FAST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """dq of a block of queries, and its share of the gradients of the head's scalars.

    First the blocks of BD keys that are not before all its queries, then those of BN keys that are.
    """
    # The longest programs first.
    i_block, i_head, i_sequence = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own = sequence(p_query_starts, i_sequence, n_queries, IS_PACKED)
    _, first_key, length = sequence(p_key_starts, i_sequence, n_keys, IS_PACKED)
    first = i_block * BM
    if first >= n_own:
        return
    head = _head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, eta2, gamma2, scale, power, tau, _, log_unit = head
    p_k += i_batch * stride_kb + first_key * stride_kt + i_head.to(tl.int64) * stride_kh
    p_v += i_batch * stride_vb + first_key * stride_vt + i_head.to(tl.int64) * stride_vh
    i_keys = i_head.to(tl.int64) * n_key_blocks + first_block(first_key, i_sequence, n_keys, BN, IS_PACKED)
    p_keys += i_keys * (KEY_NUMBERS * BN)
    p_query_time = _at(p_query_stamps, i_batch * stride_query_stamps + first_query * 2, HAS_STAMPS)
    p_key_time = _at(p_key_stamps, i_batch * stride_key_stamps + first_key * 2, HAS_STAMPS)

    o_query = tl.arange(0, BM)  # [BM]
    m_query = first + o_query < n_own
    token = i_batch * n_queries + first_query + first
    stride_row = n_heads * WIDTH
    p_own = p_q + i_batch * stride_qb + first_query * stride_qt + i_head.to(tl.int64) * stride_qh
    b_q = _rows(p_own, first, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
    b_do = _rows(p_grad_out + i_head * WIDTH, token, o_query, m_query, stride_row, WIDTH, BLOCK_W, True)  # [BM, W]
    i_queries = i_head.to(tl.int64) * n_query_blocks
    i_queries += first_block(first_query, i_sequence, n_queries, QUERY_BLOCK, IS_PACKED)
    o_described = (first + o_query) // QUERY_BLOCK * (QUERY_NUMBERS * QUERY_BLOCK) + (first + o_query) % QUERY_BLOCK
    p_query = p_queries + i_queries * (QUERY_NUMBERS * QUERY_BLOCK) + o_described  # [BM]
    b_query = tl.load(p_query, mask=m_query, other=0.0)  # [BM]
    b_offset = tl.load(p_query + QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    b_norm = tl.load(p_query + 2 * QUERY_BLOCK, mask=m_query, other=NOTHING)  # [BM]
    b_norm_low, b_h = b_norm, b_norm
    if not FAST:
        b_norm_low = tl.load(p_query + 3 * QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    if HAS_PRECISION:
        b_h = tl.load(p_query + 4 * QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    # Position of a query: the number of its own key. Without stamps it is the time.
    position = length - n_own + first
    i_time = first if HAS_STAMPS else position
    b_hi, b_lo = _times(p_query_time, i_time, o_query, m_query, HAS_STAMPS)  # [BM]

    b_zero = tl.zeros([BM, LANES], tl.float32)  # [BM, LANES]
    b_dq = tl.zeros([BM, BLOCK_W], tl.float32)  # [BM, W]
    b_sum_s = b_zero
    b_sum_tau, b_sum_match, b_sum_fit = b_zero, b_zero, b_zero  # Σ dL log2 p, Σ s match, Σ dL log2 V/U
    b_sum_m, b_sum_decay2, b_sum_phi = b_zero, b_zero, b_zero  # Σ m, Σ m E², Σ m phi
    b_sum_mu = b_zero  # -c Σ m dV/dmu - Σ lag E dE

    # The first blocks may be far from all rows.
    n_far = 0
    if HAS_FAR_FIELD:
        n_far = n_far_blocks(p_horizons, i_head, position, BN)

    n_earlier = (position + 1) // BN
    o_near = tl.arange(0, BD)  # [BD]
    for start in range(n_earlier * BN, tl.minimum(position + BM, length), BD):
        m_key = start + o_near < length
        b_k = _rows(p_k, start, o_near, m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BD, W]
        b_v = _rows(p_v, start, o_near, m_key, stride_vt, WIDTH, BLOCK_W, True)  # [BD, W]
        b_key = tl.load(p_keys + tl.cast(start // BN, tl.int64) * (KEY_NUMBERS * BN) + start % BN + o_near)  # [BD]
        b_key_hi, b_key_lo = _times(p_key_time, start, o_near, m_key, HAS_STAMPS)  # [BD]
        b_lag = elapsed(b_hi[:, None], b_lo[:, None], b_key_hi[None, :], b_key_lo[None, :])  # [BM, BD]
        b_decay = transport(b_lag, mu)  # [BM, BD]
        b_phi = _accumulated(b_lag, b_decay, mu, inverse_mu)  # [BM, BD]
        b_variance = sigma2 * b_phi + eta2 * b_decay * b_decay + gamma2  # [BM, BD]
        b_dot = _product(b_q, tl.trans(b_k), UPCAST)  # [BM, BD]
        b_flow = _product(b_do, tl.trans(b_v), UPCAST)  # [BM, BD]
        m_pair = (start + o_near)[None, :] <= (position + o_query)[:, None]  # [BM, BD]
        weighed = _weigh(
            b_dot, b_decay, b_variance, b_query[:, None], b_key[None, :], b_norm[:, None], b_norm_low[:, None], m_pair,
            head, IS_GAUSSIAN, True, FAST,
        )  # fmt: skip
        b_gain = b_decay * b_flow  # [BM, BD]
        b_dl, b_s, b_evidence = _differentiate(
            weighed, b_gain, b_offset[:, None], b_h[:, None], m_pair, IS_GAUSSIAN, HAS_PRECISION, True
        )
        b_carried = b_s * b_decay  # [BM, BD]
        b_dq += _product(b_carried, b_k, UPCAST)
        b_sum_s += by_lane(b_s, BM, BD)
        if NEEDS_DYNAMICS:
            b_m = _slope_of_variance(weighed, b_dl, b_s, b_evidence, b_variance, head, IS_GAUSSIAN, FAST)  # [BM, BD]
            b_sum_tau += by_lane(b_dl * weighed[1], BM, BD)
            b_sum_match += by_lane(b_s * weighed[4], BM, BD)
            b_sum_fit += by_lane(b_dl * weighed[2], BM, BD)
            b_sum_m += by_lane(b_m, BM, BD)
            b_sum_decay2 += by_lane(b_m * b_decay * b_decay, BM, BD)
            b_sum_phi += by_lane(b_m * b_phi, BM, BD)
            if NEEDS_DECAY:
                b_fall = sigma2 * _fall(b_lag, b_decay, b_phi, mu, inverse_mu) + 2.0 * eta2 * b_lag * b_decay * b_decay
                b_direct = _transported(weighed, b_gain, b_carried, b_decay, b_key[None, :], head)  # [BM, BD]
                b_sum_mu += by_lane(power * b_m * b_fall - b_lag * b_direct, BM, BD)

    hi, lo = _time(p_query_time, i_time, HAS_STAMPS)
    b_since = elapsed(b_hi, b_lo, hi, lo)  # [BM]
    b_own_decay = transport(b_since, mu)  # [BM]
    b_own_phi = _accumulated(b_since, b_own_decay, mu, inverse_mu)  # [BM]
    b_own_fall = _fall(b_since, b_own_decay, b_own_phi, mu, inverse_mu)  # [BM]
    o_key = tl.arange(0, BN)  # [BN]
    # From near to far, transport and process of the gap by their sum rule over one more block; in float32 each anew.
    STEPS: tl.constexpr = not HAS_STAMPS and p_q.dtype.element_ty != tl.float32
    gap = tl.cast(position - n_earlier * BN + 1, tl.float32)
    gap_decay = transport(gap, mu)
    gap_phi = _accumulated(gap, gap_decay, mu, inverse_mu)
    block_decay = transport(mu * 0.0 + BN, mu)
    block_phi = _accumulated(mu * 0.0 + BN, block_decay, mu, inverse_mu)
    p_block_k = p_k + tl.cast((n_earlier - 1) * BN, tl.int64) * stride_kt
    p_block_v = p_v + tl.cast((n_earlier - 1) * BN, tl.int64) * stride_vt
    p_block = p_keys + tl.cast(n_earlier - 1, tl.int64) * (KEY_NUMBERS * BN) + o_key
    step_k, step_v = tl.cast(stride_kt, tl.int64) * BN, tl.cast(stride_vt, tl.int64) * BN
    for i_farther in range(n_earlier - n_far):
        b_k = _rows(p_block_k, 0, o_key, o_key < BN, stride_kt, WIDTH, BLOCK_W, False)  # [BN, W]
        b_v = _rows(p_block_v, 0, o_key, o_key < BN, stride_vt, WIDTH, BLOCK_W, False)  # [BN, W]
        b_key = tl.load(p_block)  # [BN]
        b_key_decay = tl.load(p_block + BN)  # [BN]
        b_key_variance = tl.load(p_block + 3 * BN)  # [BN]
        if not STEPS:
            last_hi, last_lo = _time(p_key_time, (n_earlier - i_farther) * BN - 1, HAS_STAMPS)
            gap = elapsed(hi, lo, last_hi, last_lo)
            gap_decay = transport(gap, mu)
            gap_phi = _accumulated(gap, gap_decay, mu, inverse_mu)
        gap_decay2 = gap_decay * gap_decay
        b_u_decay = gap_decay * b_own_decay  # [BM]
        b_u_decay2 = b_u_decay * b_u_decay  # [BM]
        b_u_phi = gap_phi + gap_decay2 * b_own_phi  # [BM]
        b_decay = b_u_decay[:, None] * b_key_decay[None, :]  # [BM, BN]
        b_variance = (gamma2 + sigma2 * b_u_phi)[:, None] + b_u_decay2[:, None] * b_key_variance[None, :]  # [BM, BN]
        b_dot = _product(b_q, tl.trans(b_k), UPCAST)  # [BM, BN]
        weighed = _weigh(
            b_dot, b_decay, b_variance, b_query[:, None], b_key[None, :], b_norm[:, None], b_norm_low[:, None], False,
            head, IS_GAUSSIAN, False, FAST,
        )  # fmt: skip
        b_gain = b_decay * _product(b_do, tl.trans(b_v), UPCAST)  # [BM, BN]
        b_dl, b_s, b_evidence = _differentiate(
            weighed, b_gain, b_offset[:, None], b_h[:, None], False, IS_GAUSSIAN, HAS_PRECISION, False
        )
        b_carried = b_s * b_decay  # [BM, BN]
        b_dq += _product(b_carried, b_k, UPCAST)
        b_sum_s += by_lane(b_s, BM, BN)
        if NEEDS_DYNAMICS:
            b_m = _slope_of_variance(weighed, b_dl, b_s, b_evidence, b_variance, head, IS_GAUSSIAN, FAST)  # [BM, BN]
            b_sum_tau += by_lane(b_dl * weighed[1], BM, BN)
            b_sum_match += by_lane(b_s * weighed[4], BM, BN)
            b_sum_fit += by_lane(b_dl * weighed[2], BM, BN)
            b_block_m = by_lane(b_m, BM, BN)  # [BM, LANES]
            b_block_decay2 = by_lane(b_m * tl.load(p_block + 2 * BN)[None, :], BM, BN)  # [BM, LANES]
            b_block_phi = by_lane(b_m * tl.load(p_block + 4 * BN)[None, :], BM, BN)  # [BM, LANES]
            b_sum_m += b_block_m
            b_sum_decay2 += b_u_decay2[:, None] * b_block_decay2
            b_sum_phi += b_u_phi[:, None] * b_block_m + b_u_decay2[:, None] * b_block_phi
            if NEEDS_DECAY:
                b_direct = _transported(weighed, b_gain, b_carried, b_decay, b_key[None, :], head)  # [BM, BN]
                b_block_fall = by_lane(b_m * tl.load(p_block + 5 * BN)[None, :], BM, BN)  # [BM, LANES]
                b_u = gap + b_since  # [BM]
                gap_fall = _fall(gap, gap_decay, gap_phi, mu, inverse_mu)
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

    b_all_s, b_all_m, b_all_phi = tl.sum(b_sum_s, 1), tl.sum(b_sum_m, 1), tl.sum(b_sum_phi, 1)  # [BM]
    b_all_mu = tl.sum(b_sum_mu, 1)  # [BM]
    # Σ_j dL = g, and L = log p + log_norm.
    b_all_tau = tl.sum(b_sum_tau, 1) + tl.load(p_query + 8 * QUERY_BLOCK, mask=m_query, other=0.0)  # [BM]
    b_all_nu = _tail_gradient(tl.sum(b_sum_match, 1), tl.sum(b_sum_fit, 1), head, IS_GAUSSIAN)  # [BM]
    if HAS_FAR_FIELD:
        b_far_s, b_far_m, b_far_phi, b_far_mu, b_far_tau, b_far_nu = _far_sums(
            n_far * BN, b_query, b_offset, b_norm, b_norm_low, b_h, m_query, head, IS_GAUSSIAN, HAS_PRECISION,
            NEEDS_DYNAMICS, FAST,
        )  # fmt: skip
        b_all_s += b_far_s
        b_all_m += b_far_m
        b_all_phi += b_far_phi
        b_all_mu += b_far_mu
        b_all_tau += b_far_tau
        b_all_nu += b_far_nu
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
    # Loaded again: kept, it or its addresses would take registers from the loops.
    b_q = _rows(p_own, 0, (first + o_query).to(tl.int64), m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
    b_dq = (power * scale) * (b_dq - b_q.to(tl.float32) * b_all_s[:, None])  # [BM, W]
    p_row = p_dq + i_head * WIDTH + (token + o_query)[:, None] * stride_row + o_w[None, :]  # [BM, W]
    tl.store(p_row, b_dq.to(p_dq.dtype.element_ty), mask=m_query[:, None] & (o_w < WIDTH)[None, :])


@triton.jit(do_not_specialize=LENGTHS)
def _columns_kernel(
    p_q, p_k, p_v, p_grad_out, p_heads, p_queries,
    p_query_stamps, p_key_stamps, p_query_starts, p_key_starts, p_horizons, p_dk, p_dv,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_query_stamps, stride_key_stamps, n_heads, n_queries, n_keys, n_query_blocks,
    WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_STAMPS: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_GAUSSIAN: tl.constexpr, HAS_FAR_FIELD: tl.constexpr, HAS_PRECISION: tl.constexpr,
    FAST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """dk and dv of a block of keys: first over the blocks of queries that are not all after it, then the others."""
    i_block, i_head, i_sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_batch, first_query, n_own = sequence(p_query_starts, i_sequence, n_queries, IS_PACKED)
    _, first_key, length = sequence(p_key_starts, i_sequence, n_keys, IS_PACKED)
    first = i_block * BN
    if first >= length:
        return
    head = _head(p_heads, i_head, WIDTH // 2, IS_GAUSSIAN)
    mu, inverse_mu, sigma2, eta2, gamma2, scale, power, _, _, _ = head
    stride_row = n_heads * WIDTH
    p_q += i_batch * stride_qb + first_query * stride_qt + i_head.to(tl.int64) * stride_qh
    p_grad_out += (i_batch * n_queries + first_query) * stride_row + i_head * WIDTH
    i_queries = i_head.to(tl.int64) * n_query_blocks + first_block(first_query, i_sequence, n_queries, BM, IS_PACKED)
    p_queries += i_queries * (QUERY_NUMBERS * BM)
    p_query_time = _at(p_query_stamps, i_batch * stride_query_stamps + first_query * 2, HAS_STAMPS)
    p_key_time = _at(p_key_stamps, i_batch * stride_key_stamps + first_key * 2, HAS_STAMPS)

    o_key = tl.arange(0, BN)  # [BN]
    m_key = first + o_key < length
    p_own_k = p_k + i_batch * stride_kb + first_key * stride_kt + i_head.to(tl.int64) * stride_kh
    p_own_v = p_v + i_batch * stride_vb + first_key * stride_vt + i_head.to(tl.int64) * stride_vh
    b_k = _rows(p_own_k, first, o_key, m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BN, W]
    b_key = -0.5 * tl.sum(b_k.to(tl.float32) * b_k.to(tl.float32), 1)  # [BN]
    last = tl.minimum(first + BN, length) - 1
    b_key_hi, b_key_lo = _times(p_key_time, first, o_key, m_key, HAS_STAMPS)  # [BN]
    b_v = _rows(p_own_v, first, o_key, m_key, stride_vt, WIDTH, BLOCK_W, True)  # [BN, W]

    b_dk = tl.zeros([BN, BLOCK_W], tl.float32)  # [BN, W]
    b_dv = tl.zeros([BN, BLOCK_W], tl.float32)  # [BN, W]
    b_sum = tl.zeros([BN, LANES], tl.float32)  # [BN, LANES] Σ s E²

    o_query = tl.arange(0, BM)  # [BM]
    # Position of the first query.
    base = length - n_own
    n_blocks = tl.cdiv(n_own, BM)
    if HAS_FAR_FIELD:
        # Of the queries before the horizon.
        n_blocks = tl.minimum(n_blocks, tl.cdiv(tl.maximum(tl.load(p_horizons + i_head) + last - base, 0), BM))
    n_near = tl.minimum(tl.cdiv(tl.maximum(last - base, 0), BM), n_blocks)
    for i_queries in range(tl.maximum(first - base, 0) // BM, n_near):
        start = i_queries * BM
        m_query = start + o_query < n_own
        b_q = _rows(p_q, start, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
        b_do = _rows(p_grad_out, start, o_query, m_query, stride_row, WIDTH, BLOCK_W, True)  # [BM, W]
        p_query = p_queries + tl.cast(i_queries, tl.int64) * (QUERY_NUMBERS * BM) + o_query
        b_query, b_offset, b_norm, b_norm_low, b_h = _described(p_query, BM, HAS_PRECISION, FAST)
        i_time = start if HAS_STAMPS else base + start
        b_hi, b_lo = _times(p_query_time, i_time, o_query, m_query, HAS_STAMPS)  # [BM]
        b_lag = elapsed(b_hi[None, :], b_lo[None, :], b_key_hi[:, None], b_key_lo[:, None])  # [BN, BM]
        b_decay = transport(b_lag, mu)  # [BN, BM]
        b_phi = _accumulated(b_lag, b_decay, mu, inverse_mu)  # [BN, BM]
        b_variance = sigma2 * b_phi + eta2 * b_decay * b_decay + gamma2  # [BN, BM]
        b_dot = _product(b_k, tl.trans(b_q), UPCAST)  # [BN, BM]
        b_flow = _product(b_v, tl.trans(b_do), UPCAST)  # [BN, BM]
        m_pair = (first + o_key)[:, None] <= (base + start + o_query)[None, :]  # [BN, BM]
        weighed = _weigh(
            b_dot, b_decay, b_variance, b_query[None, :], b_key[:, None], b_norm[None, :], b_norm_low[None, :], m_pair,
            head, IS_GAUSSIAN, True, FAST,
        )  # fmt: skip
        _dl, b_s, _evidence = _differentiate(
            weighed, b_decay * b_flow, b_offset[None, :], b_h[None, :], m_pair, IS_GAUSSIAN, HAS_PRECISION, True
        )
        b_carried = b_s * b_decay  # [BN, BM]
        b_dv += _product(weighed[0] * b_decay, b_do, UPCAST)
        b_dk += _product(b_carried, b_q, UPCAST)
        b_sum += by_lane(b_carried * b_decay, BN, BM)

    last_hi, last_lo = _time(p_key_time, last, HAS_STAMPS)
    b_until = elapsed(last_hi, last_lo, b_key_hi, b_key_lo)  # [BN]
    b_own_decay = transport(b_until, mu)  # [BN]
    b_own_phi = _accumulated(b_until, b_own_decay, mu, inverse_mu)  # [BN]
    # As over the rows.
    STEPS: tl.constexpr = not HAS_STAMPS and p_q.dtype.element_ty != tl.float32
    gap = tl.cast(base + n_near * BM - last, tl.float32)
    gap_decay = transport(gap, mu)
    gap_phi = _accumulated(gap, gap_decay, mu, inverse_mu)
    block_decay = transport(mu * 0.0 + BM, mu)
    block_phi = _accumulated(mu * 0.0 + BM, block_decay, mu, inverse_mu)
    first_start = tl.cast(n_near * BM, tl.int64)
    p_block_q, p_block_do = p_q + first_start * stride_qt, p_grad_out + first_start * stride_row
    p_block = p_queries + tl.cast(n_near, tl.int64) * (QUERY_NUMBERS * BM) + o_query
    step_q, step_do = tl.cast(stride_qt, tl.int64) * BM, tl.cast(stride_row, tl.int64) * BM
    for i_queries in range(n_near, n_blocks):
        start = i_queries * BM
        m_query = start + o_query < n_own
        b_q = _rows(p_block_q, 0, o_query, m_query, stride_qt, WIDTH, BLOCK_W, True)  # [BM, W]
        b_do = _rows(p_block_do, 0, o_query, m_query, stride_row, WIDTH, BLOCK_W, True)  # [BM, W]
        b_query, b_offset, b_norm, b_norm_low, b_h = _described(p_block, BM, HAS_PRECISION, FAST)
        b_query_decay = tl.load(p_block + 5 * BM)  # [BM]
        b_query_decay2 = tl.load(p_block + 6 * BM)  # [BM]
        b_query_variance = tl.load(p_block + 7 * BM)  # [BM]
        if not STEPS:
            hi, lo = _time(p_query_time, start if HAS_STAMPS else base + start, HAS_STAMPS)
            gap = elapsed(hi, lo, last_hi, last_lo)
            gap_decay = transport(gap, mu)
            gap_phi = _accumulated(gap, gap_decay, mu, inverse_mu)
        gap_decay2 = gap_decay * gap_decay
        b_s_decay = gap_decay * b_own_decay  # [BN]
        b_s_phi = gap_phi + gap_decay2 * b_own_phi  # [BN]
        b_s_variance = sigma2 * b_s_phi + eta2 * b_s_decay * b_s_decay  # [BN]
        b_decay = b_s_decay[:, None] * b_query_decay[None, :]  # [BN, BM]
        b_variance = b_s_variance[:, None] * b_query_decay2[None, :] + b_query_variance[None, :]  # [BN, BM]
        b_dot = _product(b_k, tl.trans(b_q), UPCAST)  # [BN, BM]
        b_flow = _product(b_v, tl.trans(b_do), UPCAST)  # [BN, BM]
        weighed = _weigh(
            b_dot, b_decay, b_variance, b_query[None, :], b_key[:, None], b_norm[None, :], b_norm_low[None, :], False,
            head, IS_GAUSSIAN, False, FAST,
        )  # fmt: skip
        _dl, b_s, _evidence = _differentiate(
            weighed, b_decay * b_flow, b_offset[None, :], b_h[None, :], False, IS_GAUSSIAN, HAS_PRECISION, False
        )
        b_carried = b_s * b_decay  # [BN, BM]
        b_dv += _product(weighed[0] * b_decay, b_do, UPCAST)
        b_dk += _product(b_carried, b_q, UPCAST)
        b_sum += by_lane(b_carried * b_decay, BN, BM)
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
    # Loaded again: kept, it or its addresses would take registers from the loops.
    b_k = _rows(p_own_k, 0, (first + o_key).to(tl.int64), m_key, stride_kt, WIDTH, BLOCK_W, True)  # [BN, W]
    b_dk = (power * scale) * (b_dk - b_k.to(tl.float32) * tl.sum(b_sum, 1)[:, None])  # [BN, W]
    tl.store(p_dk + o_store, b_dk.to(p_dk.dtype.element_ty), mask=m_store)


def backward(
    grad_out: Tensor,
    grad_log_norm: Tensor,
    grad_precision: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
    out: Tensor,
    log_norm: Tensor,
    query_stamps: Tensor | None,
    key_stamps: Tensor | None,
    query_starts: Tensor | None,
    key_starts: Tensor | None,
    longest: int,
    longest_keys: int,
    is_gaussian: bool,
    horizons: Tensor | None = None,
    *,
    needs_dynamics: bool = True,
    needs_decay: bool = True,
    row_blocks: Launch | None = None,
    column_blocks: Launch | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the rotated q, k, v and of the heads' scalars; the caller has checked the inputs.

    Args:
        grad_out, grad_log_norm, grad_precision: `[B, n, H, W]`, `[B, n, H]`, `[B, n, H]`; None: precision has none.
        q, k, v: `[B, n, H, W]`, `[B, M, H, W]`, the queries being those of the last n keys; any strides.
        heads: `[H, 6]` float32: mu, sigma2, eta2, gamma2, nu, tau.
        out, log_norm: what the forward pass returned.
        query_stamps, key_stamps: `[1 or B, n, 2]`, `[1 or B, M, 2]` float32, time = first + second; None = the token
            numbers.
        query_starts, key_starts: `[S + 1]` int32, sequences packed into B = 1; None = one sequence a row.
        longest, longest_keys: most queries and most keys of a sequence.
        horizons: first far lag of each head (`far_horizons`), without stamps; None leaves no key out.
        needs_dynamics: False leaves the gradients of the heads out (zeros).
        needs_decay: False leaves that of mu out.
        row_blocks, column_blocks: in place of the table's entries.

    Returns:
        Gradients of q, k, v, contiguous and in their dtypes, and of heads `[H, 6]` float32. The 16-bit ones take dO·out
        from the rounded `out`, as flash attention does.
    """
    batch, n_queries, n_heads, width = q.shape
    n_keys = k.shape[1]
    q, k, v = (last_contiguous(x) for x in (q, k, v))
    grad_out, grad_log_norm, out, log_norm = (x.contiguous() for x in (grad_out, grad_log_norm, out, log_norm))
    capability = capability_of(q.device)
    has_precision = grad_precision is not None
    pass_name: PassName = "backward_rows_decay" if needs_dynamics and needs_decay else "backward_rows"
    rows = row_blocks or launch(pass_name, capability, width, q.dtype)
    columns = column_blocks or launch("backward_columns", capability, width, q.dtype)
    is_packed = query_starts is not None
    sequences = batch if query_starts is None else query_starts.numel() - 1
    interpreted = is_interpreted()
    places = {
        "WIDTH": width,
        "BLOCK_W": max(16, triton.next_power_of_2(width)),
        "HAS_STAMPS": query_stamps is not None,
        "IS_PACKED": is_packed,
        "IS_GAUSSIAN": is_gaussian,
    }
    far = {"HAS_FAR_FIELD": horizons is not None}
    arithmetic = {
        "HAS_PRECISION": has_precision,
        "FAST": q.dtype.itemsize == 2 and not interpreted,
        "UPCAST": interpreted and q.dtype == torch.bfloat16,
    }
    key_blocks = all_blocks(n_keys, sequences, rows.block_n, is_packed)
    query_blocks = all_blocks(n_queries, sequences, columns.block_m, is_packed)
    keys = heads.new_empty((n_heads, key_blocks, KEY_NUMBERS.value, rows.block_n))
    queries = heads.new_empty((n_heads, query_blocks, QUERY_NUMBERS.value, columns.block_m))
    _describe_keys[(triton.cdiv(longest_keys, rows.block_n), n_heads, sequences)](
        k, heads, key_stamps, key_starts, keys,
        *k.stride()[:3], batch_stride(key_stamps), n_keys, key_blocks,
        **places, BN=rows.block_n, num_warps=4,
    )  # fmt: skip
    _describe_queries[(triton.cdiv(longest, columns.block_m), n_heads, sequences)](
        q, out, grad_out, log_norm, grad_log_norm, None if grad_precision is None else grad_precision.contiguous(),
        heads, query_stamps, query_starts, queries,
        *q.stride()[:3], batch_stride(query_stamps), n_heads, n_queries, query_blocks,
        **places, BM=columns.block_m, HAS_PRECISION=has_precision, num_warps=4,
    )  # fmt: skip
    starts = (query_stamps, key_stamps, query_starts, key_starts, horizons)
    sizes = (
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], batch_stride(query_stamps), batch_stride(key_stamps),
        n_heads, n_queries, n_keys, query_blocks,
    )  # fmt: skip
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    if q.dtype == torch.float32:
        _settle_rows[(triton.cdiv(longest, columns.block_m), n_heads, sequences)](
            q, k, v, grad_out, grad_log_norm, heads, queries, keys, *starts, *sizes, key_blocks,
            **places, **far, BM=columns.block_m, BN=rows.block_n, FAST=False, UPCAST=False, num_warps=4, num_stages=1,
        )  # fmt: skip
    row_grid = (triton.cdiv(longest, rows.block_m), n_heads, sequences)
    # Blocks beyond the end of a packed sequence write nothing.
    sums = heads.new_zeros((n_heads, 6, row_grid[0] * sequences))
    _rows_kernel[row_grid](
        q, k, v, grad_out, heads, queries, keys, *starts, dq, sums, *sizes, key_blocks,
        **places, **far, **arithmetic, BM=rows.block_m, BN=rows.block_n, BD=max(16, rows.block_n // 2),
        QUERY_BLOCK=columns.block_m, NEEDS_DYNAMICS=needs_dynamics, NEEDS_DECAY=needs_dynamics and needs_decay,
        num_warps=rows.num_warps, num_stages=rows.num_stages,
    )  # fmt: skip
    _columns_kernel[(triton.cdiv(longest_keys, columns.block_n), n_heads, sequences)](
        q, k, v, grad_out, heads, queries, *starts, dk, dv, *sizes,
        **places, **far, **arithmetic, BM=columns.block_m, BN=columns.block_n,
        num_warps=columns.num_warps, num_stages=columns.num_stages,
    )  # fmt: skip
    return dq, dk, dv, sums.sum(-1, dtype=torch.float64).to(torch.float32)
