"""Gated filter slots on a GPU, forward: the scan of a sequence, without autograd.

One program holds the state of one head of one sequence in registers, from its first token to its last. Programs share
nothing: a row does not depend on the rest of its batch, and every run gives the same bits. The scan and the step of a
decoder (`rfa.model.decoder_triton`) call the same functions with the same layout, so that from the same inputs a
sequence at once and its tokens one by one agree bit for bit.

Layout: contiguous tokens `[B, N, H, …]` in float32, bfloat16 or float16; the state `[B, H, S, 4D]`, `[B, H, S]`, and
everything handed out in float32.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters
from rfa.model.recurrence.triton_token import (
    advance,
    load_head,
    load_measurement,
    load_state,
    load_vector,
    read,
    store_state,
    store_vector,
)


@triton.jit(do_not_specialize=["n_tokens", "n_heads", "interval", "n_checkpoints"])
def scan_kernel(
    p_q, p_k, p_v, p_measurement, p_process, p_means, p_precisions,
    p_decay, p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta,
    p_out, p_log_norm, p_evidence, p_final_means, p_final_precisions, p_kept_means, p_kept_precisions,
    p_lengths, n_tokens, n_heads, interval, n_checkpoints,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, INNER: tl.constexpr,
    BY_VALUE: tl.constexpr, KEEP: tl.constexpr, HAS_LENGTHS: tl.constexpr,
):  # fmt: skip
    """Program i runs head i mod H of sequence i div H. KEEP: store the states before tokens 0, interval, ….

    HAS_LENGTHS: of a sequence only so many tokens are read; its other read-outs are 0. A length that is none, below 0
    or above n_tokens, is a mistake of the caller: its precisions after it are NaN.
    A turn of the loop advances the state by a token and reads what the token before it left: two chains that do not
    depend on each other. The token of the next turn is on its way meanwhile.
    """
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
    p_kept_means += i_bh * n_checkpoints * S * 4 * D
    p_kept_precisions += i_bh * n_checkpoints * S
    if KEEP:
        store_state(p_kept_means, p_kept_precisions, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D)

    length = n_tokens
    n_read = n_tokens  # at least one, whose number is not used if there is none
    if HAS_LENGTHS:
        length = tl.load(p_lengths + i_bh // n_heads)
        n_read = tl.minimum(tl.maximum(length, 1), n_tokens).to(tl.int32)
    i_row = (i_bh // n_heads) * n_tokens * n_heads + i_h  # of the token in [B, N, H]
    i_last_row = i_row + (n_read - 1) * n_heads
    b_k, b_v, b_pi, b_process = load_measurement(p_k, p_v, p_measurement, p_process, i_row, o_s, o_d, m_s, m_d, S, D)
    b_mk, b_mv, b_p = advance(
        b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER, BY_VALUE
    )
    b_q = load_vector(p_q + i_row * 2 * D, o_d, m_d, D)  # [2, D]
    b_k, b_v, b_pi, b_process = load_measurement(
        p_k, p_v, p_measurement, p_process, tl.minimum(i_row + n_heads, i_last_row), o_s, o_d, m_s, m_d, S, D
    )
    for i_t in range(1, n_read):
        if KEEP and i_t % interval == 0:
            i_kept = tl.cast(i_t // interval, tl.int64) * S
            store_state(
                p_kept_means + i_kept * 4 * D, p_kept_precisions + i_kept, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D
            )
        b_next_q = load_vector(p_q + (i_row + n_heads) * 2 * D, o_d, m_d, D)  # [2, D]
        i_ahead = tl.minimum(i_row + 2 * n_heads, i_last_row)
        b_next_k, b_next_v, b_next_pi, b_next_process = load_measurement(
            p_k, p_v, p_measurement, p_process, i_ahead, o_s, o_d, m_s, m_d, S, D
        )
        b_next_mk, b_next_mv, b_next_p = advance(
            b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER, BY_VALUE
        )
        b_out, log_norm, evidence = read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau)
        store_vector(p_out + i_row * 2 * D, b_out, o_d, m_d, D)
        tl.store(p_log_norm + i_row, log_norm)
        tl.store(p_evidence + i_row, evidence)

        i_row += n_heads
        b_q, b_k, b_v, b_pi, b_process = b_next_q, b_next_k, b_next_v, b_next_pi, b_next_process
        b_mk, b_mv, b_p = b_next_mk, b_next_mv, b_next_p
    b_out, log_norm, evidence = read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau)
    if HAS_LENGTHS:
        if length < 1:
            b_mk, b_mv, b_p = load_state(p_means + i_bh * S * 4 * D, p_precisions + i_bh * S, o_s, o_d, m_s, m_d, D)
        b_out = tl.where(length < 1, 0.0, b_out)
        log_norm, evidence = tl.where(length < 1, 0.0, log_norm), tl.where(length < 1, 0.0, evidence)
        b_p = tl.where((length < 0) | (length > n_tokens), float("nan"), b_p)
    store_vector(p_out + i_row * 2 * D, b_out, o_d, m_d, D)
    tl.store(p_log_norm + i_row, log_norm)
    tl.store(p_evidence + i_row, evidence)
    if HAS_LENGTHS:
        for _ in range(n_read, n_tokens):
            i_row += n_heads
            store_vector(p_out + i_row * 2 * D, tl.zeros([2, BD], tl.float32), o_d, m_d, D)
            tl.store(p_log_norm + i_row, 0.0)
            tl.store(p_evidence + i_row, 0.0)
    store_state(p_final_means + i_bh * S * 4 * D, p_final_precisions + i_bh * S, b_mk, b_mv, b_p, o_s, o_d, m_s, m_d, D)


def blocks(slots: int, width: int) -> tuple[int, int]:
    """Powers of two that hold the slots and the complex dims of a head."""
    return triton.next_power_of_2(slots), triton.next_power_of_2(width // 2)


def warps(slots: int, width: int) -> int:
    """Warps of a program: 16 floats of the state to a thread, 32 in the largest. Scan and step need the same order."""
    block_s, block_d = blocks(slots, width)
    return max(1, min(8, 4 * block_s * block_d // 512))


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
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    inner: int,
    by_value: bool,
    interval: int,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Everything contiguous; interval 0: keep no checkpoints. lengths `[B]` int64: without checkpoints only.

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
            lengths, n_tokens, heads, interval, outputs[5].shape[2],
            S=slots, D=width // 2, BS=block_s, BD=block_d, INNER=inner, BY_VALUE=by_value,
            KEEP=interval > 0, HAS_LENGTHS=lengths is not None, num_warps=warps(slots, width),
        )  # fmt: skip
    return outputs
