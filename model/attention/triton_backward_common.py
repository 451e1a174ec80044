"""Device functions of the gradient kernels. They compute phi, its derivative, and the weights and gradients of each
pair of tokens.

The equations and the notation are in `triton_backward.py`.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from rfa.model.attention.triton_score import LN2, LOG2E, log2, log2_of_one_plus, reciprocal, transport

# log_norm of a row after the end of a sequence. It makes the weights of the row 0 without infinite or NaN numbers.
NO_ROW = tl.constexpr(1e30)
# If mu lag is below this, the series of phi are accurate in float32; otherwise, the quotients are.
SMALL = tl.constexpr(0.25)
# Number of values per key and per query. They are stored as `[H, blocks, values, block]`.
KEY_NUMBERS = tl.constexpr(7)
QUERY_NUMBERS = tl.constexpr(9)


@triton.jit
def phi(lag, decay, mu, inverse_mu):
    """Return the variance phi that is accumulated over a lag. `decay` is E. If y = mu lag is small, phi is computed as
    the series of lag E sinh(y) / y, otherwise as the quotient (1 - E²) / (2 mu)."""
    y2 = (mu * lag) * (mu * lag)
    series = lag * decay * (1.0 + y2 * (1.0 / 6.0 + y2 * (1.0 / 120.0 + y2 * (1.0 / 5040.0))))
    return tl.where(mu * lag < SMALL, series, (0.5 - 0.5 * decay * decay) * inverse_mu)


@triton.jit
def minus_phi_slope(lag, decay, accumulated, mu, inverse_mu):
    """Return -dphi/dmu = (phi - lag E²) / mu, where `accumulated` is phi(lag). If mu lag is small, a series is used."""
    y = mu * lag
    series = 1.0 / 6.0 - y * (1.0 / 30.0 - y * (1.0 / 120.0 - y * (1.0 / 840.0)))
    series = lag * lag * decay * (1.0 - y * (1.0 / 3.0 - y * series))
    return tl.where(y < SMALL, series, (accumulated - lag * decay * decay) * inverse_mu)


@triton.jit
def scaled_head(p_heads, i_head, DIMS: tl.constexpr, IS_GAUSSIAN: tl.constexpr):
    """Return the parameters of a head: mu, 1 / mu, sigma2, eta2, gamma2, 2 / nu, c, tau, nu and log_unit. Variances and
    2 / nu are in units of 2^log_unit.

    The unit is the largest power of two that does not exceed the smallest V or, if that is larger, a thousandth of
    V(0).
    """
    p_head = p_heads + i_head * 6
    mu, sigma2, eta2 = tl.load(p_head), tl.load(p_head + 1), tl.load(p_head + 2)
    gamma2, nu, tau = tl.load(p_head + 3), tl.load(p_head + 4), tl.load(p_head + 5)
    inverse_mu = tl.where(mu > 0.0, 1.0 / tl.where(mu > 0.0, mu, 1.0), 0.0)
    first = eta2 + gamma2
    last = tl.where(mu > 0.0, gamma2 + 0.5 * sigma2 * inverse_mu, first)
    # V is monotonic in the lag and may fall to 0.
    log_unit = tl.floor(tl.log2(tl.minimum(first, tl.maximum(last, first * 1e-3))))
    per_unit = tl.exp2(-log_unit)
    power = tau if IS_GAUSSIAN else tau * ((nu + DIMS) / DIMS)
    scale = 2.0 * per_unit / nu
    return mu, inverse_mu, sigma2 * per_unit, eta2 * per_unit, gamma2 * per_unit, scale, power, tau, nu, log_unit


@triton.jit
def load_rows(p, start, o_row, m_row, stride_t, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr, MASKED: tl.constexpr):
    """Load the rows start + o_row of one head, [rows, W]."""
    o_w = tl.arange(0, BLOCK_W)  # [W]
    p_block = p + tl.cast(start, tl.int64) * stride_t + (o_row[:, None] * stride_t + o_w[None, :])  # [rows, W]
    if MASKED:
        return tl.load(p_block, mask=m_row[:, None] & (o_w < WIDTH)[None, :], other=0.0)
    elif WIDTH == BLOCK_W:
        return tl.load(p_block)
    else:
        return tl.load(p_block, mask=(o_w < WIDTH)[None, :], other=0.0)


@triton.jit
def stamps_at(p_stamps, offset, HAS_STAMPS: tl.constexpr):
    """Return the address of the stamps from `offset` on. Without stamps, return 0, because Triton 3.6 cannot return
    None."""
    if HAS_STAMPS:
        return p_stamps + offset
    else:
        return 0


@triton.jit
def load_times(p_time, start, o_row, m_row, HAS_STAMPS: tl.constexpr):
    """Return the times of the tokens start + o_row as hi + lo. Without stamps, return the token numbers."""
    if HAS_STAMPS:
        p_row = p_time + tl.cast(start, tl.int64) * 2 + o_row * 2
        return tl.load(p_row, mask=m_row, other=0.0), tl.load(p_row + 1, mask=m_row, other=0.0)
    else:
        return (start + o_row).to(tl.float32), tl.zeros_like(o_row).to(tl.float32)


@triton.jit
def load_time(p_time, i_row, HAS_STAMPS: tl.constexpr):
    """Return the time of one token as hi + lo."""
    if HAS_STAMPS:
        p_row = p_time + tl.cast(i_row, tl.int64) * 2
        return tl.load(p_row), tl.load(p_row + 1)
    else:
        return tl.cast(i_row, tl.float32), 0.0


@triton.jit
def lag_numbers(b_lag, head):
    """Return E, phi and V at the lags `b_lag`."""
    mu, inverse_mu, sigma2, eta2, gamma2 = head[0], head[1], head[2], head[3], head[4]
    b_decay = transport(b_lag, mu)
    b_phi = phi(b_lag, b_decay, mu, inverse_mu)
    return b_decay, b_phi, sigma2 * b_phi + eta2 * b_decay * b_decay + gamma2


@triton.jit
def product(b_x, b_y, UPCAST: tl.constexpr):
    """Return x y, where x is converted to the dtype of y. UPCAST is used in the interpreter, which cannot multiply
    bfloat16."""
    if UPCAST:
        return tl.dot(b_x.to(b_y.dtype).to(tl.float32), b_y.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(b_x.to(b_y.dtype), b_y, input_precision="ieee")


@triton.jit
def weigh(
    b_dot, b_decay, b_variance, b_query, b_key, b_norm, b_norm_low, m_pair, head,
    IS_GAUSSIAN: tl.constexpr, MASKED: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Return p, log2 p, log2 V/U, 1 / U, match = -R² / 2, and d match / dE - E |k|² / 2 of every pair.

    For the Gaussian kernel, 1 / V replaces 1 / U, and x replaces log2 V/U. Blocks are `[BM, BN]` or `[BN, BM]`, to
    which the values of queries and keys are broadcast.
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
            # nu may be large, in which case a power of a rounded V / U would be inaccurate.
            b_fit = -log2_of_one_plus(-scale * b_match / b_variance)
            b_log_p = (power * b_fit - tau * b_log_v) - b_norm
    if not FAST:
        b_log_p -= b_norm_low
    b_p = tl.exp2(b_log_p)
    if MASKED:
        b_p = tl.where(m_pair, b_p, 0.0)
    return b_p, b_log_p, b_fit, b_inverse, b_match, b_slope


@triton.jit
def differentiate(
    weighed, b_gain, b_offset, b_h, m_pair, IS_GAUSSIAN: tl.constexpr, HAS_PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Return dL, s, and the part of s that is due to the gradient h of the precision, for every pair. b_gain is E
    dO·v."""
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
def variance_slope(
    weighed, b_dl, b_s, b_evidence, b_variance, head, IS_GAUSSIAN: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """Return m of `triton_backward.py` for every pair."""
    _, _, b_fit, b_inverse, b_match, _ = weighed
    scale, power, tau = head[5], head[6], head[7]
    if IS_GAUSSIAN:
        b_m = b_s - b_s * b_fit  # [BM, BN]
    elif FAST:
        # power - tau = tau nu / D.
        b_m = b_s - ((power - tau) / power) * b_dl * reciprocal(b_variance, FAST)  # [BM, BN]
    else:
        # The common factor dL / V is factored out, because the terms nearly cancel.
        b_m = b_dl / b_variance * (tau / power + scale * b_match * b_inverse) + b_evidence  # [BM, BN]
    return b_m


@triton.jit
def transport_gradient(weighed, b_gain, b_carried, b_decay, b_key, head):
    """Return E times the gradient of E for every pair. The dependence of V on E is not included."""
    return weighed[0] * b_gain + (head[6] * head[5]) * (b_carried * (weighed[5] + b_decay * b_key))  # [BM, BN]


@triton.jit
def nu_gradient(b_sum_match, b_sum_fit, head, IS_GAUSSIAN: tl.constexpr):
    """Return the gradient of nu. b_sum_match is Σ s · match, and b_sum_fit is Σ dL log2 V/U."""
    scale, power, tau, nu = head[5], head[6], head[7], head[8]
    b_through_u = -(power * scale / nu) * b_sum_match
    return b_through_u if IS_GAUSSIAN else b_through_u + ((power - tau) / nu * LN2) * b_sum_fit


@triton.jit
def load_queries(p_query, STRIDE: tl.constexpr, HAS_PRECISION: tl.constexpr, FAST: tl.constexpr):
    """Load the values of a block of queries, [BM] each: -|q|² / 2, g - dO·out, log_norm as two numbers hi and lo, and
    h. Values that the kernel does not use are undefined."""
    b_norm = tl.load(p_query + 2 * STRIDE)  # [BM]
    b_norm_low, b_h = b_norm, b_norm
    if not FAST:
        b_norm_low = tl.load(p_query + 3 * STRIDE)  # [BM]
    if HAS_PRECISION:
        b_h = tl.load(p_query + 4 * STRIDE)  # [BM]
    return tl.load(p_query), tl.load(p_query + STRIDE), b_norm, b_norm_low, b_h
