"""Device functions that process one token in the slots of one head, and their gradient. The scan and the step use them.

The equations are in `slots_reference.py`. The gradient is for K = 1 and the innovation of the key only.

A head is a tile of key means and a tile of value means, real and imaginary parts [2, S, D], and precisions [S], all
float32. Padding has mean 0, precision 1, measurement precision 0, process variance 1 and decay 1, which add 0 to every
sum. Only the softmax over the slots needs a mask.

Kernels with different layouts give identical bits, because sums add two numbers at a time in an explicit order, and
`tl.fma` marks products that are not rounded before a sum.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
SQRT_HALF_BITS = tl.constexpr(0x3F3504F3)
POWER_23 = tl.constexpr(8388608.0)  # 2^23; if it is added to a small integer, the last bits are this integer


@triton.jit
def log1p(x):
    """Return ln(1 + x) for x >= 0, corrected for the rounding of 1 + x."""
    u = 1.0 + x
    is_lost = u == 1.0
    return tl.where(is_lost, x, tl.log(u) * (x / tl.where(is_lost, 1.0, u - 1.0)))


@triton.jit
def log2_near_one(f):
    """Return log2 f for sqrt(1/2) <= f <= sqrt(2), with a relative error of at most 2.4 · 2^-24.

    It is computed as r / ln 2 + r² P(r), with a minimax polynomial P of degree 8 that is evaluated in pairs to shorten
    the sequence of dependent operations.
    """
    r = f - 1.0
    r2 = r * r
    r4 = r2 * r2
    low = tl.fma(tl.fma(0.288567513, r, -0.360696614), r2, tl.fma(0.480898231, r, -0.721347332))
    high = tl.fma(tl.fma(0.186175331, r, -0.19105576), r2, tl.fma(0.204599813, r, -0.239618346))
    return tl.fma(tl.fma(tl.fma(-0.10996379, r4, high), r4, low), r2, 1.442695041 * r)


@triton.jit
def negative_power(u, exponent):
    """Return u^-exponent and ln u for u >= 1, to float accuracy.

    For large u, exp(-exponent ln u) would have an error of ten rounding errors. u is therefore split into 2^n f with f
    near 1, and exponent · n is split into an exact product and a small remainder. Conversions operate on the bits of
    floats, which is faster than the conversion instructions of the GPU.
    """
    bits = u.to(tl.int32, bitcast=True)
    whole = (bits - SQRT_HALF_BITS) >> 23
    n = (whole + 0x4B400000).to(tl.float32, bitcast=True) - 1.5 * POWER_23
    log2_f = log2_near_one((bits - (whole << 23)).to(tl.float32, bitcast=True))
    # 12 bits of the exponent times 8 bits of n fit into the 24 bits of a float.
    coarse = (exponent.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    exact = -coarse * n
    # If the power is smaller than the smallest normal float, the difference of the exponents remains in `rest`.
    shifted = tl.maximum(exact, -126.0) + 1.5 * POWER_23
    power = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
    rest = (exact - (shifted - 1.5 * POWER_23)) - tl.fma(exponent, log2_f, (exponent - coarse) * n)
    return power * tl.exp2(rest), (n + log2_f) * LN2


@triton.jit
def load_head(p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h):
    """Load the parameters of one head."""
    return (
        tl.load(p_nu + i_h),
        tl.load(p_kappa + i_h),
        tl.load(p_exponent + i_h),
        tl.load(p_residual_noise + i_h),
        tl.load(p_gamma2 + i_h),
        tl.load(p_tau + i_h),
        tl.load(p_delta + i_h),
    )


@triton.jit
def state_offsets(o_s, o_d, D: tl.constexpr):
    """Return the offsets of the real and imaginary parts of the key means in `[S, 4D]`, [2, S, D]. The offsets of the
    value means are larger by 2D.
    """
    return tl.arange(0, 2)[:, None, None] * D + o_s[None, :, None] * (4 * D) + o_d[None, None, :]


@triton.jit
def load_state(p_means, p_precisions, o_s, o_d, m_s, m_d, D: tl.constexpr):
    """Load key means and value means [2, S, D], and precisions [S], of the head at the pointers."""
    o_k = state_offsets(o_s, o_d, D)  # [2, S, D]
    m_k = m_s[None, :, None] & m_d[None, None, :]  # [1, S, D]
    b_mk = tl.load(p_means + o_k, mask=m_k, other=0.0)  # [2, S, D]
    b_mv = tl.load(p_means + o_k + 2 * D, mask=m_k, other=0.0)  # [2, S, D]
    b_p = tl.load(p_precisions + o_s, mask=m_s, other=1.0)  # [S]
    return b_mk, b_mv, b_p


@triton.jit
def store_state(p_means, p_precisions, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D: tl.constexpr):
    """Store the state that `load_state` loads."""
    o_k = state_offsets(o_s, o_d, D)  # [2, S, D]
    m_k = m_s[None, :, None] & m_d[None, None, :]  # [1, S, D]
    tl.store(p_means + o_k, b_mk, mask=m_k)
    tl.store(p_means + o_k + 2 * D, b_mv, mask=m_k)
    tl.store(p_precisions + o_s, b_p, mask=m_s)


@triton.jit
def load_vector(p_row, o_d, m_d, D: tl.constexpr):
    """Load query, key or value of one token and head, [2, D]."""
    o_w = tl.arange(0, 2)[:, None] * D + o_d[None, :]  # [2, D]
    return tl.load(p_row + o_w, mask=m_d[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_vector(p_row, b_x, o_d, m_d, D: tl.constexpr):
    """Store a vector that `load_vector` loads."""
    o_w = tl.arange(0, 2)[:, None] * D + o_d[None, :]  # [2, D]
    tl.store(p_row + o_w, b_x, mask=m_d[None, :])


@triton.jit
def load_gates(p_measurement, p_process, o_s, m_s):
    """Load measurement precision and process variance of one token for every slot, [S] each."""
    b_pi = tl.load(p_measurement + o_s, mask=m_s, other=0.0).to(tl.float32)  # [S]
    b_process = tl.load(p_process + o_s, mask=m_s, other=1.0).to(tl.float32)  # [S]
    return b_pi, b_process


@triton.jit
def load_measurement(
    p_k, p_v, p_measurement, p_process, i_row, o_s, o_d, m_s, m_d, S: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Load key, value [2, D] and gates [S] of row i_row of contiguous tokens, [B, N, H] flattened."""
    b_k = load_vector(p_k + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_v = load_vector(p_v + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_pi, b_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)  # [S]
    return b_k, b_v, b_pi, b_process


@triton.jit
def pairs(b_x):
    """Return the sums of adjacent pairs along the last of three axes."""
    return tl.sum(tl.reshape(b_x, (b_x.shape[0], b_x.shape[1], b_x.shape[2] // 2, 2)), axis=3)


@triton.jit
def distance(b_y):
    """Return |y|² of every slot, [S], for a tile [2, S, D] or, in the scan, [4, S, D / 2], whose first axis consists of
    parts and halves.

    The sum is first over the two lowest bits of a dimension, which one thread stores; then over the halves of the
    dimensions and the parts, which one thread stores in the scan; and last over the other bits, across threads.
    """
    HALF: tl.constexpr = b_y.shape[0] * b_y.shape[2] // 4
    if HALF >= 2:
        b_even, b_odd = tl.split(tl.reshape(b_y, (b_y.shape[0], b_y.shape[1], b_y.shape[2] // 2, 2)))
        b_x = tl.fma(b_even, b_even, tl.fma(b_odd, b_odd, 0.0))
    else:
        b_x = tl.fma(b_y, b_y, 0.0)
    if HALF >= 4:
        b_x = pairs(b_x)
    if b_x.shape[0] == 4:
        b_x = tl.sum(tl.reshape(b_x, (2, 2, b_x.shape[1], b_x.shape[2])), axis=1)
    elif HALF >= 1:
        b_x = tl.sum(tl.reshape(b_x, (2, b_x.shape[1], 2, b_x.shape[2] // 2)), axis=2)
    b_x = tl.sum(b_x, axis=0)[None, :, :]  # [1, S, remaining values of a half]
    for _ in tl.static_range(4):
        if b_x.shape[2] > 1:
            b_x = pairs(b_x)
    return tl.reshape(b_x, (b_x.shape[1],))


@triton.jit
def over_dims(b_x):
    """Return the sum over the dimensions of every slot, [S]."""
    return tl.sum(tl.sum(b_x, axis=0), axis=1)


@triton.jit
def over_slots(b_x):
    """Return the sum of a tile [S, R] or [2, S, D] over the slots. Adjacent slots are added first. In the kernel that
    processes one token, they are in the same warp.
    """
    for _ in tl.static_range(5):
        if len(b_x.shape) == 2:
            if b_x.shape[0] > 1:
                b_x = tl.sum(tl.reshape(b_x, (b_x.shape[0] // 2, 2, b_x.shape[1])), axis=1)
        elif b_x.shape[1] > 1:
            b_x = tl.sum(tl.reshape(b_x, (b_x.shape[0], b_x.shape[1] // 2, 2, b_x.shape[2])), axis=2)
    return tl.sum(b_x, axis=len(b_x.shape) - 2)


@triton.jit
def innovation(b_m, b_z, b_decay):
    """Return z - E m, [2, S, D]. z is [2, 1, D]."""
    return tl.fma(-b_decay[None, :, None], b_m, b_z)


@triton.jit
def weigh(b_r2, b_p, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER: tl.constexpr):
    """Compute the weight of a token for every slot in INNER passes. All arrays are [S]; b_r2 is the squared distance
    r².

    Returns:
        Prior precision p⁻; x = r² / (nu (1/p⁻ + R)), ln(1 + x) and weight of the first pass; posterior precision and
        gain of the last pass.
    """
    b_decay2 = b_decay * b_decay
    b_prior = b_p / tl.fma(b_process, b_p, b_decay2)  # 1 / (E² / p + process)
    b_scale = b_p / (nu * tl.fma(b_process + residual_noise, b_p, b_decay2))  # computed before r² is available
    b_weight, b_log = negative_power(tl.fma(b_r2, b_scale, 1.0), exponent)
    b_x = b_r2 * b_scale
    b_weighted = b_weight * b_pi
    b_posterior = tl.fma(b_weight, b_pi, b_prior)
    b_gain = delta * b_weighted / b_posterior
    for _ in tl.static_range(INNER - 1):
        b_left = 1.0 - b_gain  # fraction of the innovation that remains
        b_again, _ = negative_power(tl.fma(b_left * b_left, b_x, 1.0), exponent)
        b_weighted = b_again * b_pi
        b_posterior = tl.fma(b_again, b_pi, b_prior)
        b_gain = delta * b_weighted / b_posterior
    return b_prior, b_x, b_log, b_weight, b_posterior, b_gain


@triton.jit
def moved(b_m, b_y, b_decay, b_gain):
    """Return E m + g y, [2, S, D]."""
    return tl.fma(b_gain[None, :, None], b_y, b_decay[None, :, None] * b_m)


@triton.jit
def advance(
    b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta,
    INNER: tl.constexpr, BY_VALUE: tl.constexpr,
):  # fmt: skip
    """Return the state after one token, whose weight is computed in INNER passes.

    BY_VALUE: Whether the innovation of the value determines the weight.
    """
    b_yk, b_yv = innovation(b_mk, b_k[:, None, :], b_decay), innovation(b_mv, b_v[:, None, :], b_decay)  # [2, S, D]
    b_r2 = distance(b_yv) if BY_VALUE else distance(b_yk)  # [S]
    _, _, _, _, b_posterior, b_gain = weigh(
        b_r2, b_p, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER
    )
    return moved(b_mk, b_yk, b_decay, b_gain), moved(b_mv, b_yv, b_decay, b_gain), b_posterior


@triton.jit
def compare(b_r2, b_p, m_s, nu, kappa, gamma2, tau):
    """Compare queries with slots. b_r2 is the squared distance r² of each query from a key mean.

    Return the spread 1/p + gamma², x = r² / (nu spread), ln(1 + x), logit / tau, and the logit, each in the shape of
    r². The logit of padding is -inf.
    """
    b_spread = 1.0 / b_p + gamma2
    b_x = b_r2 / (nu * b_spread)
    b_log = log1p(b_x)
    b_score = -tl.fma(kappa, b_log, tl.log(b_spread))
    return b_spread, b_x, b_log, b_score, tl.where(m_s, tl.fma(tau, b_score, 0.0), float("-inf"))


@triton.jit
def read_weights(b_r2, b_p, m_s, nu, kappa, gamma2, tau):
    """Return the weights of the slots [S, R], and log_norm and precision [R] of RFA over the slots, for R queries.

    The arguments are those of `compare`, [S, R]; the parameters are [1, R].
    """
    b_spread, b_x, _, _, b_logit = compare(b_r2, b_p, m_s, nu, kappa, gamma2, tau)
    b_top = tl.max(b_logit, axis=0)  # [R]
    b_a = tl.exp(b_logit - b_top[None, :])
    b_total = over_slots(b_a)  # [R]
    b_precision = over_slots(tl.where(m_s, 1.0 / tl.fma(b_x, b_spread, b_spread), 0.0))
    return b_a / b_total[None, :], b_top + tl.log(b_total), b_precision


@triton.jit
def weighted(b_a, b_m):
    """Return the weighted sum [2, D] of means [2, S, D] over the slots, with weights [S]. Each product is rounded
    before it is added.
    """
    return over_slots(tl.fma(b_a[None, :, None], b_m, 0.0))


@triton.jit
def read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau):
    """Return out [2, D], log_norm and precision of RFA over the slots."""
    b_r2 = distance(b_q[:, None, :] - b_mk)  # [S]
    b_a, b_log_norm, b_precision = read_weights(b_r2[:, None], b_p[:, None], m_s[:, None], nu, kappa, gamma2, tau)
    return weighted(tl.sum(b_a, axis=1), b_mv), tl.sum(b_log_norm, axis=0), tl.sum(b_precision, axis=0)


@triton.jit
def read_gradient(
    b_q, b_mk, b_mv, b_p, b_grad_out, grad_log_norm, grad_evidence, m_s, nu, kappa, gamma2, tau
):  # fmt: skip
    """Return gradients of `read` with respect to its state and parameters.

    Returns:
        Gradients of the query [2, D]; of the key means and the value means [2, S, D]; of the precisions [S]; and, per
        slot [S], of nu, kappa, gamma² and tau.
    """
    b_d = b_q[:, None, :] - b_mk  # [2, S, D]
    b_spread, b_x, b_log, b_score, b_logit = compare(distance(b_d), b_p, m_s, nu, kappa, gamma2, tau)  # [S]
    b_a = tl.exp(b_logit - tl.max(b_logit, axis=0))  # [S]
    b_a = b_a / tl.sum(b_a, axis=0)  # [S]
    b_dot = over_dims(b_grad_out[:, None, :] * b_mv)  # [S]
    b_gl = b_a * (b_dot - tl.sum(b_a * b_dot, axis=0) + grad_log_norm)  # [S], gradient of the logit
    b_u = (1.0 + b_x) * b_spread  # [S], spread + r²/nu, whose inverse is the evidence
    b_gu = tl.where(m_s, -grad_evidence / (b_u * b_u), 0.0)  # [S]
    b_gx = -b_gl * tau * kappa / (1.0 + b_x)  # [S], gradient of x in the logit
    b_gspread = b_gu - (b_gl * tau + b_gx * b_x) / b_spread  # [S]
    b_gr2 = (b_gx / b_spread + b_gu) / nu  # [S], gradient of r²
    b_gd = 2.0 * b_gr2[None, :, None] * b_d  # [2, S, D]
    return (
        tl.sum(b_gd, axis=1),
        -b_gd,
        b_a[None, :, None] * b_grad_out[:, None, :],
        -b_gspread / (b_p * b_p),
        -b_gr2 * b_x * b_spread,
        -b_gl * tau * b_log,
        b_gspread,
        b_gl * b_score,
    )


@triton.jit
def advance_gradient(
    b_mk, b_mv, b_p, b_yk, b_yv, b_prior, b_x, b_log, b_weight, b_posterior, b_gain, b_gmk, b_gmv, b_gp,
    b_pi, b_decay, nu, exponent, residual_noise, delta,
):  # fmt: skip
    """Return gradients of `advance`. The arguments include the result of `weigh` and the gradient of the state after
    the token.

    Returns:
        Gradients of the state before the token; of key and value [2, D]; of measurement and process; and, per slot [S],
        of decay, nu, the exponent of the weight, the residual noise and delta.
    """
    b_gg = over_dims(b_gmk * b_yk + b_gmv * b_yv)  # [S], gradient of the gain
    b_variance = 1.0 / b_prior  # [S]
    # gain = delta weighted / (prior + weighted), so its derivative is delta prior / posterior², without a difference.
    b_gweighted = b_gp + b_gg * delta * b_prior / (b_posterior * b_posterior)  # [S]
    b_gprior = b_gp - b_gg * b_gain / b_posterior  # [S]
    b_gw = b_gweighted * b_pi * b_weight  # [S], gradient of ln w
    b_scale = nu * (b_variance + residual_noise)  # [S], x = r² / scale
    b_gx = -exponent * b_gw / (1.0 + b_x)  # [S]
    b_gscale = -b_gx * b_x / b_scale  # [S]
    b_gvariance = b_gscale * nu - b_gprior * b_prior * b_prior  # [S]
    # [2, S, D], gradient of the key's innovation through the weight
    b_gy = (2.0 * b_gx / b_scale)[None, :, None] * b_yk
    b_gk = b_gain[None, :, None] * b_gmk + b_gy  # [2, S, D]
    b_gv = b_gain[None, :, None] * b_gmv  # [2, S, D]
    b_keep = (1.0 - b_gain)[None, :, None]  # [1, S, 1]
    b_gmk = b_keep * b_gmk - b_gy  # [2, S, D], gradient of the predicted mean
    b_gmv = b_keep * b_gmv  # [2, S, D]
    b_gdecay = over_dims(b_gmk * b_mk + b_gmv * b_mv) + 2.0 * b_gvariance * b_decay / b_p  # [S]
    return (
        b_decay[None, :, None] * b_gmk,
        b_decay[None, :, None] * b_gmv,
        -b_gvariance * b_decay * b_decay / (b_p * b_p),
        tl.sum(b_gk, axis=1),
        tl.sum(b_gv, axis=1),
        b_gweighted * b_weight,
        b_gvariance,
        b_gdecay,
        b_gscale * (b_variance + residual_noise),
        -b_gw * b_log,
        b_gscale * nu,
        b_gg * b_weight * b_pi / b_posterior,
    )
