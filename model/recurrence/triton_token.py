"""What one token does to the slots of one head, and its gradient: on the device, shared by the scan and by the step.

Equations: `slots_reference.py`. The gradient knows K = 1 and the innovation of the key alone: more passes would need
that of a fixed number of nested weights, the scalars of every pass kept per slot and their chain run backwards.

A head is a tile of its key means and one of its value means, real and imaginary parts [2, S, D], and its precisions
[S], all float32. Laid out so, a thread works on one slot and sums its share of the dims before it asks its neighbours.
Slots and dims that pad a tile to a power of two carry means 0, precision 1, measurement precision 0, process variance
1 and decay 1, which leaves every sum over them 0; only the softmax over the slots needs the mask.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def log1p(x):
    """ln(1 + x), x >= 0, with the digits that 1 + x rounds away."""
    u = 1.0 + x
    is_lost = u == 1.0
    return tl.where(is_lost, x, tl.log(u) * (x / tl.where(is_lost, 1.0, u - 1.0)))


@triton.jit
def negative_power(u, exponent):
    """u^-exponent and ln u, u >= 1, as exact as a float allows.

    exp(-exponent ln u) would carry the rounding of its argument: ten times that of the result where u is far out. So u
    is split into 2^n f, 1 <= f < 2, and exponent · n into an exact product and a small rest.
    """
    bits = u.to(tl.int32, bitcast=True)
    n = ((bits >> 23) - 127).to(tl.float32)
    log2_f = tl.log2(((bits & 0x007FFFFF) | 0x3F800000).to(tl.float32, bitcast=True))
    # 12 bits of the exponent times 8 of n fit into the 24 of a float.
    coarse = (exponent.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    exact = -coarse * n
    whole = tl.floor(exact)
    rest = (exact - whole) - (exponent * log2_f + (exponent - coarse) * n)
    return tl.exp2(whole) * tl.exp2(rest), (n + log2_f) * LN2


@triton.jit
def load_head(p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h):
    """The scalars of one head."""
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
    """Of the key means in `[S, 4D]`: real parts, then imaginary parts, [2, S, D]; the value means follow 2D later."""
    return tl.arange(0, 2)[:, None, None] * D + o_s[None, :, None] * (4 * D) + o_d[None, None, :]


@triton.jit
def load_state(p_means, p_precisions, o_s, o_d, m_s, m_d, D: tl.constexpr):
    """Key means, value means [2, S, D] and precisions [S] of the head that the pointers point at."""
    o_k = state_offsets(o_s, o_d, D)  # [2, S, D]
    m_k = m_s[None, :, None] & m_d[None, None, :]  # [1, S, D]
    b_mk = tl.load(p_means + o_k, mask=m_k, other=0.0)  # [2, S, D]
    b_mv = tl.load(p_means + o_k + 2 * D, mask=m_k, other=0.0)  # [2, S, D]
    b_p = tl.load(p_precisions + o_s, mask=m_s, other=1.0)  # [S]
    return b_mk, b_mv, b_p


@triton.jit
def store_state(p_means, p_precisions, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D: tl.constexpr):
    """The inverse of `load_state`."""
    o_k = state_offsets(o_s, o_d, D)  # [2, S, D]
    m_k = m_s[None, :, None] & m_d[None, None, :]  # [1, S, D]
    tl.store(p_means + o_k, b_mk, mask=m_k)
    tl.store(p_means + o_k + 2 * D, b_mv, mask=m_k)
    tl.store(p_precisions + o_s, b_p, mask=m_s)


@triton.jit
def load_vector(p_row, o_d, m_d, D: tl.constexpr):
    """Query, key or value of one token and head, [2, D]."""
    o_w = tl.arange(0, 2)[:, None] * D + o_d[None, :]  # [2, D]
    return tl.load(p_row + o_w, mask=m_d[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_vector(p_row, b_x, o_d, m_d, D: tl.constexpr):
    """The inverse of `load_vector`."""
    o_w = tl.arange(0, 2)[:, None] * D + o_d[None, :]  # [2, D]
    tl.store(p_row + o_w, b_x, mask=m_d[None, :])


@triton.jit
def load_gates(p_measurement, p_process, o_s, m_s):
    """Measurement precision and process variance of one token for every slot, [S] each."""
    b_pi = tl.load(p_measurement + o_s, mask=m_s, other=0.0).to(tl.float32)  # [S]
    b_process = tl.load(p_process + o_s, mask=m_s, other=1.0).to(tl.float32)  # [S]
    return b_pi, b_process


@triton.jit
def load_measurement(
    p_k, p_v, p_measurement, p_process, i_row, o_s, o_d, m_s, m_d, S: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Key, value [2, D] and gates [S] of row i_row of contiguous tokens, [B, N, H] flattened."""
    b_k = load_vector(p_k + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_v = load_vector(p_v + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_pi, b_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)  # [S]
    return b_k, b_v, b_pi, b_process


@triton.jit
def over_dims(b_x):
    """The sum over the dims of every slot, [S]."""
    return tl.sum(tl.sum(b_x, axis=0), axis=1)


@triton.jit
def measure(
    b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER: tl.constexpr
):  # fmt: skip
    """Predict and weigh, in INNER passes.

    Returns:
        innovations of key and value [2, S, D]; prior variance 1/p⁻; of the first pass x = r² / (nu (1/p⁻ + R)),
        ln(1 + x) and weight; of the last posterior precision and gain, [S] each.
    """
    b_yk = b_k[:, None, :] - b_decay[None, :, None] * b_mk  # [2, S, D]
    b_yv = b_v[:, None, :] - b_decay[None, :, None] * b_mv  # [2, S, D]
    b_variance = b_decay * b_decay / b_p + b_process  # [S]
    b_x = over_dims(b_yk * b_yk) / (nu * (b_variance + residual_noise))  # [S]
    b_weight, b_log = negative_power(1.0 + b_x, exponent)  # [S]
    b_weighted = b_weight * b_pi  # [S]
    b_posterior = 1.0 / b_variance + b_weighted  # [S]
    b_gain = delta * b_weighted / b_posterior  # [S]
    for _ in tl.static_range(INNER - 1):
        b_left = 1.0 - b_gain  # [S], of the innovation; again the fused product is written out
        b_again, _ = negative_power(tl.fma(b_left * b_left, b_x, 1.0), exponent)  # [S]
        b_weighted = b_again * b_pi  # [S]
        b_posterior = 1.0 / b_variance + b_weighted  # [S]
        b_gain = delta * b_weighted / b_posterior  # [S]
    return b_yk, b_yv, b_variance, b_x, b_log, b_weight, b_posterior, b_gain


@triton.jit
def moved(b_m, b_y, b_decay, b_gain):
    """E m + g y, [2, S, D]. The fused product is written out, so that every kernel rounds alike."""
    return tl.fma(b_gain[None, :, None], b_y, b_decay[None, :, None] * b_m)


@triton.jit
def advance(
    b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta,
    INNER: tl.constexpr, BY_VALUE: tl.constexpr,
):  # fmt: skip
    """The state after one token, reweighted INNER times. BY_VALUE: the innovation of the value drives the weight."""
    if BY_VALUE:  # to the update, the part that drives the weight is the key
        b_yv, b_yk, _, _, _, _, b_posterior, b_gain = measure(
            b_mv, b_mk, b_p, b_v, b_k, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER
        )
    else:
        b_yk, b_yv, _, _, _, _, b_posterior, b_gain = measure(
            b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER
        )
    return moved(b_mk, b_yk, b_decay, b_gain), moved(b_mv, b_yv, b_decay, b_gain), b_posterior


@triton.jit
def compare(b_q, b_mk, b_p, m_s, nu, kappa, gamma2, tau):
    """The query against the key means.

    Returns:
        spread 1/p + gamma², x = r² / (nu spread), ln(1 + x), logit / tau, weights a (not yet divided by their sum),
        [S] each; the largest logit and the sum.
    """
    b_d = b_q[:, None, :] - b_mk  # [2, S, D]
    b_spread = 1.0 / b_p + gamma2  # [S]
    b_x = over_dims(b_d * b_d) / (nu * b_spread)  # [S]
    b_log = log1p(b_x)  # [S]
    b_score = -tl.log(b_spread) - kappa * b_log  # [S]
    b_logit = tl.where(m_s, tau * b_score, float("-inf"))  # [S]
    top = tl.max(b_logit, axis=0)
    b_a = tl.exp(b_logit - top)  # [S]
    return b_spread, b_x, b_log, b_score, b_a, top, tl.sum(b_a, axis=0)


@triton.jit
def read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau):
    """out [2, D], log_norm and precision of RFA over the slots."""
    b_spread, b_x, _, _, b_a, top, total = compare(b_q, b_mk, b_p, m_s, nu, kappa, gamma2, tau)
    b_out = tl.sum((b_a / total)[None, :, None] * b_mv, axis=1)  # [2, D]
    evidence = tl.sum(tl.where(m_s, 1.0 / ((1.0 + b_x) * b_spread), 0.0), axis=0)
    return b_out, top + tl.log(total), evidence


@triton.jit
def read_gradient(
    b_q, b_mk, b_mv, b_p, b_grad_out, grad_log_norm, grad_evidence, m_s, nu, kappa, gamma2, tau
):  # fmt: skip
    """Gradients of `read` with respect to its state and scalars.

    Returns:
        of the query [2, D]; of the key means, of the value means [2, S, D]; of the precisions [S]; per slot [S], of nu,
        kappa, gamma², tau.
    """
    b_spread, b_x, b_log, b_score, b_a, _, total = compare(b_q, b_mk, b_p, m_s, nu, kappa, gamma2, tau)
    b_a = b_a / total
    b_dot = over_dims(b_grad_out[:, None, :] * b_mv)  # [S]
    b_gl = b_a * (b_dot - tl.sum(b_a * b_dot, axis=0) + grad_log_norm)  # [S], of the logit
    b_u = (1.0 + b_x) * b_spread  # [S], spread + r²/nu, whose inverse is the evidence
    b_gu = tl.where(m_s, -grad_evidence / (b_u * b_u), 0.0)  # [S]
    b_gx = -b_gl * tau * kappa / (1.0 + b_x)  # [S], of x in the logit
    b_gspread = b_gu - (b_gl * tau + b_gx * b_x) / b_spread  # [S]
    b_gr2 = (b_gx / b_spread + b_gu) / nu  # [S], of r²
    b_gd = 2.0 * b_gr2[None, :, None] * (b_q[:, None, :] - b_mk)  # [2, S, D]
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
    b_mk, b_mv, b_p, b_yk, b_yv, b_variance, b_x, b_log, b_weight, b_posterior, b_gain, b_gmk, b_gmv, b_gp,
    b_pi, b_decay, nu, exponent, residual_noise, delta,
):  # fmt: skip
    """Gradients of `advance`, from what `measure` returned and the gradient of the state after the token.

    Returns:
        of the state before it; of key and value [2, D]; of measurement, process; per slot [S], of decay, nu, the
        weight's exponent, the residual noise, delta.
    """
    b_gg = over_dims(b_gmk * b_yk + b_gmv * b_yv)  # [S], of the gain
    b_prior = 1.0 / b_variance  # [S]
    # gain = delta weighted / (prior + weighted): its slope is delta prior / posterior², without a difference.
    b_gweighted = b_gp + b_gg * delta * b_prior / (b_posterior * b_posterior)  # [S]
    b_gprior = b_gp - b_gg * b_gain / b_posterior  # [S]
    b_gw = b_gweighted * b_pi * b_weight  # [S], of ln w
    b_scale = nu * (b_variance + residual_noise)  # [S], x = r² / scale
    b_gx = -exponent * b_gw / (1.0 + b_x)  # [S]
    b_gscale = -b_gx * b_x / b_scale  # [S]
    b_gvariance = b_gscale * nu - b_gprior * b_prior * b_prior  # [S]
    b_gy = (2.0 * b_gx / b_scale)[None, :, None] * b_yk  # [2, S, D], of the key's innovation through the weight
    b_gk = b_gain[None, :, None] * b_gmk + b_gy  # [2, S, D]
    b_gv = b_gain[None, :, None] * b_gmv  # [2, S, D]
    b_keep = (1.0 - b_gain)[None, :, None]  # [1, S, 1]
    b_gmk = b_keep * b_gmk - b_gy  # [2, S, D], of the predicted mean
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
