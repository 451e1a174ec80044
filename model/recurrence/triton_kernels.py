"""Gated filter slots on a GPU: the scan of a sequence, its gradient, and one token of many streams; plain tensors.

One program holds the state of one head of one sequence in registers, from its first token to its last; tokens are
loaded one ahead. Nothing is shared between programs, so a row does not depend on the rest of its batch, and nothing is
summed by atomics, so every run gives the same bits.

The gradient needs the state before every token. The scan keeps it every `interval` tokens only; the backward pass
takes the segments from the last to the first, repeats a segment from its checkpoint while writing the states to a
scratch of `interval` states, and walks back through them: N / interval + interval states of memory instead of N.

Layout: contiguous tokens `[B, N, H, …]` in float32, bfloat16 or float16; state `[B, H, S, 2W]`, `[B, H, S]` and
everything handed out in float32, but gradients of tokens in their own dtypes. W = 2D reals, S <= 32, W <= 128.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.recurrence.slots_reference import SlotInputs, SlotParameters
from model.recurrence.triton_token import (
    advance,
    advance_gradient,
    load_gates,
    load_head,
    load_state,
    load_vector,
    measure,
    moved,
    read,
    read_gradient,
    store_state,
    store_vector,
)

MAX_SLOTS = 32
MAX_WIDTH = 128
# Rows of the sums over a segment that the backward pass writes per slot, in the order of SlotParameters.
N_PARAMETERS = tl.constexpr(len(SlotParameters._fields))


@triton.jit(do_not_specialize=["n_tokens", "n_heads", "interval", "n_checkpoints"])
def scan_kernel(
    p_q, p_k, p_v, p_measurement, p_process, p_means, p_precisions,
    p_decay, p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta,
    p_out, p_log_norm, p_evidence, p_final_means, p_final_precisions, p_kept_means, p_kept_precisions,
    n_tokens, n_heads, interval, n_checkpoints,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Program i runs head i mod H of sequence i div H. KEEP: store the states before tokens 0, interval, …."""
    i_bh = tl.program_id(0).to(tl.int64)
    i_h = i_bh % n_heads
    o_s = tl.arange(0, BS)  # [S]
    o_d = tl.arange(0, BD)  # [D]
    m_s = o_s < S  # [S]
    m_d = o_d < D  # [D]
    nu, kappa, exponent, residual_noise, gamma2, tau, delta = load_head(
        p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h
    )
    b_decay = tl.load(p_decay + i_h * S + o_s, mask=m_s, other=1.0)  # [S]
    b_mk, b_mv, b_p = load_state(p_means + i_bh * S * 4 * D, p_precisions + i_bh * S, o_s, o_d, m_s, m_d, D)

    if KEEP:
        store_state(
            p_kept_means + i_bh * n_checkpoints * S * 4 * D, p_kept_precisions + i_bh * n_checkpoints * S,
            b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D,
        )  # fmt: skip

    # A turn of the loop reads the state after the last token and advances it by this one: two chains that depend on
    # nothing of each other. The token of the next turn is on its way meanwhile.
    i_row = (i_bh // n_heads) * n_tokens * n_heads + i_h  # of the token in [B, N, H]
    i_last_row = i_row + (n_tokens - 1) * n_heads
    b_q = load_vector(p_q + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_k = load_vector(p_k + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_v = load_vector(p_v + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_pi, b_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)  # [S]
    b_mk, b_mv, b_p = advance(b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta)
    i_next = tl.minimum(i_row + n_heads, i_last_row)
    b_k = load_vector(p_k + i_next * 2 * D, o_d, m_d, D)  # [2, D]
    b_v = load_vector(p_v + i_next * 2 * D, o_d, m_d, D)  # [2, D]
    b_pi, b_process = load_gates(p_measurement + i_next * S, p_process + i_next * S, o_s, m_s)  # [S]
    for i_t in range(1, n_tokens):
        if KEEP and i_t % interval == 0:
            i_kept = (i_bh * n_checkpoints + i_t // interval) * S
            store_state(
                p_kept_means + i_kept * 4 * D, p_kept_precisions + i_kept, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D
            )
        b_next_q = load_vector(p_q + (i_row + n_heads) * 2 * D, o_d, m_d, D)  # [2, D]
        i_next = tl.minimum(i_row + 2 * n_heads, i_last_row)
        b_next_k = load_vector(p_k + i_next * 2 * D, o_d, m_d, D)  # [2, D]
        b_next_v = load_vector(p_v + i_next * 2 * D, o_d, m_d, D)  # [2, D]
        b_next_pi, b_next_process = load_gates(p_measurement + i_next * S, p_process + i_next * S, o_s, m_s)  # [S]

        b_next_mk, b_next_mv, b_next_p = advance(
            b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta
        )
        b_out, log_norm, evidence = read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau)
        store_vector(p_out + i_row * 2 * D, b_out, o_d, m_d, D)
        tl.store(p_log_norm + i_row, log_norm)
        tl.store(p_evidence + i_row, evidence)

        i_row += n_heads
        b_q, b_k, b_v, b_pi, b_process = b_next_q, b_next_k, b_next_v, b_next_pi, b_next_process
        b_mk, b_mv, b_p = b_next_mk, b_next_mv, b_next_p
    b_out, log_norm, evidence = read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau)
    store_vector(p_out + i_row * 2 * D, b_out, o_d, m_d, D)
    tl.store(p_log_norm + i_row, log_norm)
    tl.store(p_evidence + i_row, evidence)
    store_state(p_final_means + i_bh * S * 4 * D, p_final_precisions + i_bh * S, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D)


@triton.jit(do_not_specialize=["n_tokens", "n_heads", "interval", "n_checkpoints"])
def scan_gradient_kernel(
    p_q, p_k, p_v, p_measurement, p_process,
    p_decay, p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta,
    p_kept_means, p_kept_precisions, p_scratch_means, p_scratch_precisions,
    p_grad_out, p_grad_log_norm, p_grad_evidence, p_grad_final_means, p_grad_final_precisions,
    p_gq, p_gk, p_gv, p_gmeasurement, p_gprocess, p_gmeans, p_gprecisions, p_gparameters,
    n_tokens, n_heads, interval, n_checkpoints,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, N_SUMS: tl.constexpr,
):  # fmt: skip
    """Programs as in `scan_kernel`. p_gparameters `[B, H, n_checkpoints, N_SUMS, S]`: sums over one segment."""
    i_bh = tl.program_id(0).to(tl.int64)
    i_h = i_bh % n_heads
    o_s = tl.arange(0, BS)  # [S]
    o_d = tl.arange(0, BD)  # [D]
    m_s = o_s < S  # [S]
    m_d = o_d < D  # [D]
    nu, kappa, exponent, residual_noise, gamma2, tau, delta = load_head(
        p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h
    )
    b_decay = tl.load(p_decay + i_h * S + o_s, mask=m_s, other=1.0)  # [S]
    i_first_row = (i_bh // n_heads) * n_tokens * n_heads + i_h
    p_scratch_means += i_bh * interval * S * 4 * D
    p_scratch_precisions += i_bh * interval * S
    b_gmk, b_gmv, b_gp = load_state(
        p_grad_final_means + i_bh * S * 4 * D, p_grad_final_precisions + i_bh * S, o_s, o_d, m_s, m_d, D
    )
    # The gradient of a slot that is not there is 0, where its precision is 1.
    b_gp = tl.where(m_s, b_gp, 0.0)  # [S]

    for i_back in range(n_checkpoints):
        i_segment = n_checkpoints - 1 - i_back
        i_start = i_segment * interval
        n_inside = tl.minimum(interval, n_tokens - i_start)
        i_kept = (i_bh * n_checkpoints + i_segment) * S
        b_mk, b_mv, b_p = load_state(p_kept_means + i_kept * 4 * D, p_kept_precisions + i_kept, o_s, o_d, m_s, m_d, D)
        i_row = i_first_row + i_start.to(tl.int64) * n_heads
        b_k = load_vector(p_k + i_row * 2 * D, o_d, m_d, D)  # [2, D]
        b_v = load_vector(p_v + i_row * 2 * D, o_d, m_d, D)  # [2, D]
        b_pi, b_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)  # [S]
        for i_t in range(n_inside):
            store_state(
                p_scratch_means + i_t * S * 4 * D, p_scratch_precisions + i_t * S,
                b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D,
            )  # fmt: skip
            i_row = tl.where(i_t + 1 < n_inside, i_row + n_heads, i_row)
            b_next_k = load_vector(p_k + i_row * 2 * D, o_d, m_d, D)  # [2, D]
            b_next_v = load_vector(p_v + i_row * 2 * D, o_d, m_d, D)  # [2, D]
            b_next_pi, b_next_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)  # [S]
            b_mk, b_mv, b_p = advance(
                b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta
            )
            b_k, b_v, b_pi, b_process = b_next_k, b_next_v, b_next_pi, b_next_process
        # The threads that read the scratch need not be those that wrote it.
        tl.debug_barrier()

        b_sum_decay = tl.zeros([BS], tl.float32)  # [S]
        b_sum_nu = tl.zeros([BS], tl.float32)  # [S]
        b_sum_kappa = tl.zeros([BS], tl.float32)  # [S]
        b_sum_exponent = tl.zeros([BS], tl.float32)  # [S]
        b_sum_residual_noise = tl.zeros([BS], tl.float32)  # [S]
        b_sum_gamma2 = tl.zeros([BS], tl.float32)  # [S]
        b_sum_tau = tl.zeros([BS], tl.float32)  # [S]
        b_sum_delta = tl.zeros([BS], tl.float32)  # [S]
        for i_inner in range(n_inside):
            i_t = n_inside - 1 - i_inner
            i_row = i_first_row + (i_start + i_t).to(tl.int64) * n_heads
            b_mk, b_mv, b_p = load_state(
                p_scratch_means + i_t * S * 4 * D, p_scratch_precisions + i_t * S, o_s, o_d, m_s, m_d, D
            )
            b_q = load_vector(p_q + i_row * 2 * D, o_d, m_d, D)  # [2, D]
            b_k = load_vector(p_k + i_row * 2 * D, o_d, m_d, D)  # [2, D]
            b_v = load_vector(p_v + i_row * 2 * D, o_d, m_d, D)  # [2, D]
            b_pi, b_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)  # [S]
            b_grad_out = load_vector(p_grad_out + i_row * 2 * D, o_d, m_d, D)  # [2, D]
            grad_log_norm = tl.load(p_grad_log_norm + i_row)
            grad_evidence = tl.load(p_grad_evidence + i_row)

            b_yk, b_yv, b_variance, b_x, b_log, b_weight, b_posterior, b_gain = measure(
                b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta
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
                b_mk, b_mv, b_p, b_yk, b_yv, b_variance, b_x, b_log, b_weight, b_posterior, b_gain,
                b_gmk + b_rk, b_gmv + b_rv, b_gp + b_rp, b_pi, b_decay, nu, exponent, residual_noise, delta,
            )  # fmt: skip
            b_sum_decay += b_gdecay
            b_sum_nu += b_gnu
            b_sum_exponent += b_gexponent
            b_sum_residual_noise += b_gnoise
            b_sum_delta += b_gdelta
            store_vector(p_gk + i_row * 2 * D, b_gk, o_d, m_d, D)
            store_vector(p_gv + i_row * 2 * D, b_gv, o_d, m_d, D)
            tl.store(p_gmeasurement + i_row * S + o_s, b_gpi, mask=m_s)
            tl.store(p_gprocess + i_row * S + o_s, b_gprocess, mask=m_s)
        p_sums = p_gparameters + (i_bh * n_checkpoints + i_segment) * N_SUMS * S + o_s  # [S]
        tl.store(p_sums, b_sum_decay, mask=m_s)
        tl.store(p_sums + S, b_sum_nu, mask=m_s)
        tl.store(p_sums + 2 * S, b_sum_kappa, mask=m_s)
        tl.store(p_sums + 3 * S, b_sum_exponent, mask=m_s)
        tl.store(p_sums + 4 * S, b_sum_residual_noise, mask=m_s)
        tl.store(p_sums + 5 * S, b_sum_gamma2, mask=m_s)
        tl.store(p_sums + 6 * S, b_sum_tau, mask=m_s)
        tl.store(p_sums + 7 * S, b_sum_delta, mask=m_s)
        # The next segment overwrites the scratch.
        tl.debug_barrier()
    store_state(p_gmeans + i_bh * S * 4 * D, p_gprecisions + i_bh * S, b_gmk, b_gmv, b_gp, o_s, o_d, m_s, m_d, D)


@triton.jit
def step_kernel(
    p_q, p_k, p_v, p_measurement, p_process, p_pool_means, p_pool_precisions, p_rows,
    p_decay, p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta,
    p_out, p_log_norm, p_evidence,
    q_b, q_h, k_b, k_h, v_b, v_h, measurement_b, measurement_h, process_b, process_h,
    means_p, means_h, precisions_p, precisions_h, n_rows, n_heads,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Program i runs head i mod H of stream i div H. x_b, x_h: strides of x over streams and heads; x_p: over the
    rows of the pool.

    A negative row is padding: zeros go out. A row beyond the pool is a mistake of the caller: NaN goes out.
    """
    i_bh = tl.program_id(0).to(tl.int64)
    i_b = i_bh // n_heads
    i_h = i_bh % n_heads
    i_row = tl.load(p_rows + i_b).to(tl.int64)
    is_held = (i_row >= 0) & (i_row < n_rows)
    o_s = tl.arange(0, BS)  # [S]
    o_d = tl.arange(0, BD)  # [D]
    m_s = o_s < S  # [S]
    m_d = o_d < D  # [D]
    m_held_s = m_s & is_held  # [S]
    m_held_d = m_d & is_held  # [D]
    nu, kappa, exponent, residual_noise, gamma2, tau, delta = load_head(
        p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h
    )
    b_decay = tl.load(p_decay + i_h * S + o_s, mask=m_s, other=1.0)  # [S]
    p_means = p_pool_means + i_row * means_p + i_h * means_h
    p_precisions = p_pool_precisions + i_row * precisions_p + i_h * precisions_h
    b_mk, b_mv, b_p = load_state(p_means, p_precisions, o_s, o_d, m_held_s, m_d, D)
    b_q = load_vector(p_q + i_b * q_b + i_h * q_h, o_d, m_held_d, D)  # [2, D]
    b_k = load_vector(p_k + i_b * k_b + i_h * k_h, o_d, m_held_d, D)  # [2, D]
    b_v = load_vector(p_v + i_b * v_b + i_h * v_h, o_d, m_held_d, D)  # [2, D]
    b_pi, b_process = load_gates(
        p_measurement + i_b * measurement_b + i_h * measurement_h,
        p_process + i_b * process_b + i_h * process_h,
        o_s,
        m_held_s,
    )  # [S]

    b_mk, b_mv, b_p = advance(b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta)
    store_state(p_means, p_precisions, b_mk, b_mv, b_p, o_s, o_d, m_held_s, m_d, D)
    b_out, log_norm, evidence = read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau)
    empty = tl.where(i_row < 0, 0.0, float("nan"))
    store_vector(p_out + i_bh * 2 * D, tl.where(is_held, b_out, empty), o_d, m_d, D)
    tl.store(p_log_norm + i_bh, tl.where(is_held, log_norm, empty))
    tl.store(p_evidence + i_bh, tl.where(is_held, evidence, empty))


def blocks(slots: int, width: int) -> tuple[int, int]:
    """Powers of two that hold the slots and the complex dims of a head."""
    return triton.next_power_of_2(slots), triton.next_power_of_2(width // 2)


def warps(slots: int, width: int) -> int:
    """Warps of a program: 16 floats of the state to a thread. Scan and step must agree, to sum in the same order."""
    block_s, block_d = blocks(slots, width)
    return max(1, 4 * block_s * block_d // 512)


def checkpoint_interval(n_tokens: int) -> int:
    """Tokens per segment: the root of N rounded up, where N / interval + interval is smallest."""
    return math.isqrt(n_tokens - 1) + 1


def scan_outputs(
    k: Tensor, means: Tensor, precisions: Tensor, interval: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Unwritten tensors for what `scan` returns."""
    batch, n_tokens, heads, width = k.shape
    slots = precisions.shape[2]
    kept = (n_tokens + interval - 1) // interval if interval else 0
    return (
        means.new_empty((batch, n_tokens, heads, width)),
        means.new_empty((batch, n_tokens, heads)),
        means.new_empty((batch, n_tokens, heads)),
        means.new_empty((batch, heads, slots, 2 * width)),
        means.new_empty((batch, heads, slots)),
        means.new_empty((batch, heads, kept, slots, 2 * width)),
        means.new_empty((batch, heads, kept, slots)),
    )


def scan(
    tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, interval: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything contiguous; interval 0: keep no checkpoints.

    Returns:
        out `[B, N, H, W]`, log_norm, precision `[B, N, H]`, the final state, and the states before every `interval`-th
        token, `[B, H, ceil(N / interval), S, 2W]` and `[…, S]`.
    """
    batch, n_tokens, heads, width = tokens.k.shape
    slots = precisions.shape[2]
    outputs = scan_outputs(tokens.k, means, precisions, interval)
    block_s, block_d = blocks(slots, width)
    with torch.cuda.device_of(means):
        scan_kernel[(batch * heads,)](
            *tokens, means, precisions, *parameters, *outputs,
            n_tokens, heads, interval, outputs[5].shape[2],
            S=slots, D=width // 2, BS=block_s, BD=block_d, KEEP=interval > 0, num_warps=warps(slots, width),
        )  # fmt: skip
    return outputs


def scan_gradient(
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    tokens: SlotInputs,
    parameters: SlotParameters,
    kept_means: Tensor,
    kept_precisions: Tensor,
    interval: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """From the gradients of out, log_norm, precision and the final state, everything contiguous.

    Returns:
        gradients of the five inputs, the initial state, decay `[H, S]` and the other seven parameters `[7, H]`.
    """
    batch, n_tokens, heads, width = tokens.k.shape
    kept, slots = kept_precisions.shape[2:]
    token_gradients = SlotInputs(*(token.new_empty(token.shape) for token in tokens))
    gmeans, gprecisions = gradients[3].new_empty(gradients[3].shape), gradients[4].new_empty(gradients[4].shape)
    sums = kept_means.new_empty((batch, heads, kept, N_PARAMETERS.value, slots))
    scratch_means = kept_means.new_empty((batch, heads, interval, slots, 2 * width))
    scratch_precisions = kept_means.new_empty((batch, heads, interval, slots))
    block_s, block_d = blocks(slots, width)
    with torch.cuda.device_of(kept_means):
        scan_gradient_kernel[(batch * heads,)](
            *tokens, *parameters, kept_means, kept_precisions, scratch_means, scratch_precisions, *gradients,
            *token_gradients, gmeans, gprecisions, sums,
            n_tokens, heads, interval, kept,
            S=slots, D=width // 2, BS=block_s, BD=block_d, N_SUMS=N_PARAMETERS.value, num_warps=warps(slots, width),
        )  # fmt: skip
    # Over sequences and segments, in float64: [H, N_PARAMETERS, S].
    summed = sums.sum((0, 2), dtype=torch.float64)
    decay, scalars = summed[:, 0].float(), summed[:, 1:].sum(-1).T.float()
    return (*token_gradients, gmeans, gprecisions, decay.contiguous(), scalars.contiguous())


def step_outputs(q: Tensor, pool_means: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unwritten tensors for what `step` returns."""
    return (
        pool_means.new_empty(q.shape),
        pool_means.new_empty(q.shape[:2]),
        pool_means.new_empty(q.shape[:2]),
    )


def step(
    token: SlotInputs, pool_means: Tensor, pool_precisions: Tensor, rows: Tensor, parameters: SlotParameters
) -> tuple[Tensor, Tensor, Tensor]:
    """One token `[B, H, …]` of every stream; its state is row `rows[b]` of the pool, which is updated in place.

    The last dim of every tensor is contiguous, and so are the last two of pool_means.

    Returns:
        out `[B, H, W]`, log_norm and precision `[B, H]`.
    """
    batch, heads, width = token.k.shape
    slots = pool_precisions.shape[2]
    outputs = step_outputs(token.q, pool_means)
    token_strides = [stride for tensor in token for stride in tensor.stride()[:2]]
    block_s, block_d = blocks(slots, width)
    with torch.cuda.device_of(pool_means):
        step_kernel[(batch * heads,)](
            *token, pool_means, pool_precisions, rows, *parameters, *outputs,
            *token_strides, *pool_means.stride()[:2], *pool_precisions.stride()[:2], pool_means.shape[0], heads,
            S=slots, D=width // 2, BS=block_s, BD=block_d, num_warps=warps(slots, width),
        )  # fmt: skip
    return outputs
