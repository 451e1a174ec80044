"""Gradient of the scan of gated memory slots on a GPU.

The gradient needs the state before every token. The forward pass stores it every `interval` tokens. The backward pass
processes these segments from last to first. For each segment, it recomputes the states and then processes the tokens in
reverse order. It therefore stores N / interval + interval states instead of N.

Programs and layout are those of `triton_forward`. Gradients of tokens have the dtypes of the tokens, and all others are
float32. Gradients of parameters are first summed per slot and segment. These sums are added in float64 without atomics,
so the gradients are deterministic.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters
from rfa.model.recurrence.triton_forward import blocks, warps
from rfa.model.recurrence.triton_token import (
    advance,
    advance_gradient,
    distance,
    innovation,
    load_head,
    load_measurement,
    load_state,
    load_vector,
    moved,
    read_gradient,
    store_state,
    store_vector,
    weigh,
)

# Number of sums over a segment per slot. They are in the order of SlotParameters.
N_PARAMETERS = len(SlotParameters._fields)


@triton.jit
def repeat_segment(
    p_k, p_v, p_measurement, p_process, p_decay, p_scratch_means, p_scratch_precisions,
    b_mk, b_mv, b_p, b_common, nu, exponent, residual_noise, delta,
    i_row, n_heads, n_inside, o_s, o_d, m_s, m_d, S: tl.constexpr, D: tl.constexpr, OWN_DECAY: tl.constexpr,
):  # fmt: skip
    """Recompute the states before the tokens of a segment and store them in the scratch buffer. The first token of the
    segment is in row i_row."""
    b_k, b_v, b_pi, b_process = load_measurement(p_k, p_v, p_measurement, p_process, i_row, o_s, o_d, m_s, m_d, S, D)
    i_last_row = i_row + (n_inside - 1) * n_heads
    for i_t in range(n_inside):
        o_t = tl.cast(i_t, tl.int64) * S
        store_state(p_scratch_means + o_t * 4 * D, p_scratch_precisions + o_t, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D)
        b_decay = b_common
        if OWN_DECAY:
            b_decay = tl.load(p_decay + i_row * S + o_s, mask=m_s, other=1.0)  # [S]
        i_row = tl.minimum(i_row + n_heads, i_last_row)
        b_next_k, b_next_v, b_next_pi, b_next_process = load_measurement(
            p_k, p_v, p_measurement, p_process, i_row, o_s, o_d, m_s, m_d, S, D
        )
        b_mk, b_mv, b_p = advance(
            b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, 1, False
        )
        b_k, b_v, b_pi, b_process = b_next_k, b_next_v, b_next_pi, b_next_process
    # Other threads may read values that this thread has written.
    tl.debug_barrier()


@triton.jit
def load_for_gradient(
    p_q, p_k, p_v, p_measurement, p_process, p_grad_out, p_grad_log_norm, p_grad_evidence,
    p_scratch_means, p_scratch_precisions, i_row, i_t, o_s, o_d, m_s, m_d, S: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Load the state before token i_t of a segment, the token in row i_row, and the gradients of its outputs."""
    o_t = tl.cast(i_t, tl.int64) * S
    b_mk, b_mv, b_p = load_state(p_scratch_means + o_t * 4 * D, p_scratch_precisions + o_t, o_s, o_d, m_s, m_d, D)
    b_q = load_vector(p_q + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_k, b_v, b_pi, b_process = load_measurement(p_k, p_v, p_measurement, p_process, i_row, o_s, o_d, m_s, m_d, S, D)
    b_grad_out = load_vector(p_grad_out + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    grad_log_norm = tl.load(p_grad_log_norm + i_row)
    grad_evidence = tl.load(p_grad_evidence + i_row)
    return b_mk, b_mv, b_p, b_q, b_k, b_v, b_pi, b_process, b_grad_out, grad_log_norm, grad_evidence


@triton.jit(do_not_specialize=["n_tokens", "n_heads", "interval", "n_checkpoints"])
def scan_gradient_kernel(
    p_q, p_k, p_v, p_measurement, p_process,
    p_decay, p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta,
    p_kept_means, p_kept_precisions, p_scratch_means, p_scratch_precisions,
    p_grad_out, p_grad_log_norm, p_grad_evidence, p_grad_final_means, p_grad_final_precisions,
    p_gq, p_gk, p_gv, p_gmeasurement, p_gprocess, p_gmeans, p_gprecisions, p_gdecay, p_gparameters,
    n_tokens, n_heads, interval, n_checkpoints,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, N_SUMS: tl.constexpr,
    OWN_DECAY: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of all inputs. p_gparameters, `[B, H, n_checkpoints, N_SUMS, S]`, contains the sums over
    each segment.

    OWN_DECAY: Whether decay and its gradient p_gdecay are `[B, N, H, S]`. If not, p_gdecay is not used.
    """
    i_bh = tl.program_id(0).to(tl.int64)
    i_h = i_bh % n_heads
    o_s, o_d = tl.arange(0, BS), tl.arange(0, BD)  # [S], [D]
    m_s, m_d = o_s < S, o_d < D  # [S], [D]
    nu, kappa, exponent, residual_noise, gamma2, tau, delta = load_head(
        p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h
    )
    b_common = tl.load(p_decay + i_h * S + o_s, mask=m_s, other=1.0)  # [S]
    i_first_row = (i_bh // n_heads) * n_tokens * n_heads + i_h
    p_scratch_means += i_bh * interval * S * 4 * D
    p_scratch_precisions += i_bh * interval * S
    b_gmk, b_gmv, b_gp = load_state(
        p_grad_final_means + i_bh * S * 4 * D, p_grad_final_precisions + i_bh * S, o_s, o_d, m_s, m_d, D
    )

    for i_back in range(n_checkpoints):
        i_segment = n_checkpoints - 1 - i_back
        i_start = i_segment * interval
        n_inside = tl.minimum(interval, n_tokens - i_start)
        i_row = i_first_row + tl.cast(i_start, tl.int64) * n_heads
        o_kept = (i_bh * n_checkpoints + i_segment) * S
        b_mk, b_mv, b_p = load_state(p_kept_means + o_kept * 4 * D, p_kept_precisions + o_kept, o_s, o_d, m_s, m_d, D)
        repeat_segment(
            p_k, p_v, p_measurement, p_process, p_decay, p_scratch_means, p_scratch_precisions,
            b_mk, b_mv, b_p, b_common, nu, exponent, residual_noise, delta,
            i_row, n_heads, n_inside, o_s, o_d, m_s, m_d, S, D, OWN_DECAY,
        )  # fmt: skip

        b_sum_decay = tl.zeros([BS], tl.float32)  # [S]
        b_sum_nu = tl.zeros([BS], tl.float32)  # [S]
        b_sum_kappa = tl.zeros([BS], tl.float32)  # [S]
        b_sum_exponent = tl.zeros([BS], tl.float32)  # [S]
        b_sum_residual_noise = tl.zeros([BS], tl.float32)  # [S]
        b_sum_gamma2 = tl.zeros([BS], tl.float32)  # [S]
        b_sum_tau = tl.zeros([BS], tl.float32)  # [S]
        b_sum_delta = tl.zeros([BS], tl.float32)  # [S]
        i_t = n_inside - 1
        i_row += i_t * n_heads
        b_mk, b_mv, b_p, b_q, b_k, b_v, b_pi, b_process, b_grad_out, grad_log_norm, grad_evidence = load_for_gradient(
            p_q, p_k, p_v, p_measurement, p_process, p_grad_out, p_grad_log_norm, p_grad_evidence,
            p_scratch_means, p_scratch_precisions, i_row, i_t, o_s, o_d, m_s, m_d, S, D,
        )  # fmt: skip
        for _ in range(n_inside):
            # The token before this one is prefetched. At the first token, the first token is loaded again.
            i_before_t = tl.maximum(i_t - 1, 0)
            i_before_row = i_row - (i_t - i_before_t) * n_heads
            (
                b_next_mk, b_next_mv, b_next_p, b_next_q, b_next_k, b_next_v, b_next_pi, b_next_process,
                b_next_grad_out, next_grad_log_norm, next_grad_evidence,
            ) = load_for_gradient(
                p_q, p_k, p_v, p_measurement, p_process, p_grad_out, p_grad_log_norm, p_grad_evidence,
                p_scratch_means, p_scratch_precisions, i_before_row, i_before_t, o_s, o_d, m_s, m_d, S, D,
            )  # fmt: skip

            b_decay = b_common
            if OWN_DECAY:
                b_decay = tl.load(p_decay + i_row * S + o_s, mask=m_s, other=1.0)  # [S]
            b_yk, b_yv = innovation(b_mk, b_k[:, None, :], b_decay), innovation(b_mv, b_v[:, None, :], b_decay)
            b_prior, b_x, b_log, b_weight, b_posterior, b_gain = weigh(
                distance(b_yk), b_p, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, 1
            )
            b_gq, b_rk, b_rv, b_rp, b_gnu, b_gkappa, b_ggamma2, b_gtau = read_gradient(
                b_q, moved(b_mk, b_yk, b_decay, b_gain), moved(b_mv, b_yv, b_decay, b_gain), b_posterior,
                b_grad_out, grad_log_norm, grad_evidence, m_s, nu, kappa, gamma2, tau,
            )  # fmt: skip
            b_sum_nu += b_gnu
            b_sum_kappa += b_gkappa
            b_sum_gamma2 += b_ggamma2
            b_sum_tau += b_gtau
            store_vector(p_gq + i_row * 2 * D, b_gq, o_d, m_d, D)
            (
                b_gmk, b_gmv, b_gp, b_gk, b_gv, b_gpi, b_gprocess, b_gdecay, b_gnu, b_gexponent, b_gnoise, b_gdelta,
            ) = advance_gradient(
                b_mk, b_mv, b_p, b_yk, b_yv, b_prior, b_x, b_log, b_weight, b_posterior, b_gain,
                b_gmk + b_rk, b_gmv + b_rv, b_gp + b_rp, b_pi, b_decay, nu, exponent, residual_noise, delta,
            )  # fmt: skip
            if OWN_DECAY:
                tl.store(p_gdecay + i_row * S + o_s, b_gdecay, mask=m_s)
            else:
                b_sum_decay += b_gdecay
            b_sum_nu += b_gnu
            b_sum_exponent += b_gexponent
            b_sum_residual_noise += b_gnoise
            b_sum_delta += b_gdelta
            store_vector(p_gk + i_row * 2 * D, b_gk, o_d, m_d, D)
            store_vector(p_gv + i_row * 2 * D, b_gv, o_d, m_d, D)
            tl.store(p_gmeasurement + i_row * S + o_s, b_gpi, mask=m_s)
            tl.store(p_gprocess + i_row * S + o_s, b_gprocess, mask=m_s)

            i_t, i_row = i_before_t, i_before_row
            b_mk, b_mv, b_p, b_q, b_k, b_v = b_next_mk, b_next_mv, b_next_p, b_next_q, b_next_k, b_next_v
            b_pi, b_process, b_grad_out = b_next_pi, b_next_process, b_next_grad_out
            grad_log_norm, grad_evidence = next_grad_log_norm, next_grad_evidence
        p_sums = p_gparameters + (i_bh * n_checkpoints + i_segment) * N_SUMS * S + o_s  # [S]
        tl.store(p_sums, b_sum_decay, mask=m_s)
        tl.store(p_sums + S, b_sum_nu, mask=m_s)
        tl.store(p_sums + 2 * S, b_sum_kappa, mask=m_s)
        tl.store(p_sums + 3 * S, b_sum_exponent, mask=m_s)
        tl.store(p_sums + 4 * S, b_sum_residual_noise, mask=m_s)
        tl.store(p_sums + 5 * S, b_sum_gamma2, mask=m_s)
        tl.store(p_sums + 6 * S, b_sum_tau, mask=m_s)
        tl.store(p_sums + 7 * S, b_sum_delta, mask=m_s)
        # The next segment overwrites the scratch buffer.
        tl.debug_barrier()
    store_state(p_gmeans + i_bh * S * 4 * D, p_gprecisions + i_bh * S, b_gmk, b_gmv, b_gp, o_s, o_d, m_s, m_d, D)


def checkpoint_interval(n_tokens: int) -> int:
    """Return the number of tokens per segment. It is √N rounded up, which minimises N / interval + interval."""
    return math.isqrt(n_tokens - 1) + 1


def scan_gradient(
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    tokens: SlotInputs,
    parameters: SlotParameters,
    kept_means: Tensor,
    kept_precisions: Tensor,
    interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the scan.

    Args:
        gradients: Contiguous gradients of out, log_norm, precision and the final state.
        tokens, parameters: Contiguous inputs of the scan.
        kept_means, kept_precisions: States before every `interval`-th token.
        interval: Number of tokens per segment.

    Returns:
        Gradients of the five inputs, the initial state, decay `[H, S]` (or `[B, N, H, S]`) and the other seven
        parameters `[7, H]`.
    """
    batch, n_tokens, heads, width = tokens.k.shape
    kept, slots = kept_precisions.shape[2:]
    token_gradients = SlotInputs(*(token.new_empty(token.shape) for token in tokens))
    gmeans, gprecisions = gradients[3].new_empty(gradients[3].shape), gradients[4].new_empty(gradients[4].shape)
    sums = kept_means.new_empty((batch, heads, kept, N_PARAMETERS, slots))
    scratch_means = kept_means.new_empty((batch, heads, interval, slots, 2 * width))
    scratch_precisions = kept_means.new_empty((batch, heads, interval, slots))
    own_decay = parameters.decay.dim() > 2
    gdecay = kept_means.new_empty(parameters.decay.shape) if own_decay else None
    block_s, block_d = blocks(slots, width)
    with torch.cuda.device_of(kept_means):
        scan_gradient_kernel[(batch * heads,)](
            *tokens, *parameters, kept_means, kept_precisions, scratch_means, scratch_precisions, *gradients,
            *token_gradients, gmeans, gprecisions, gdecay, sums,
            n_tokens, heads, interval, kept,
            S=slots, D=width // 2, BS=block_s, BD=block_d, N_SUMS=N_PARAMETERS, OWN_DECAY=own_decay,
            num_warps=warps(slots, width),
        )  # fmt: skip
    # Sum over sequences and segments in float64: [H, N_PARAMETERS, S].
    summed = sums.sum((0, 2), dtype=torch.float64)
    if gdecay is None:
        gdecay = summed[:, 0].float().contiguous()
    return (*token_gradients, gmeans, gprecisions, gdecay, summed[:, 1:].sum(-1).T.float().contiguous())
