"""Scan of gated memory slots on a GPU, in three kernels.

The gain of a token for a slot depends only on the mean and precision of that slot, so each warp of the first kernel
processes a few slots of a head over all tokens without synchronisation. The second kernel computes the weights of the
slots for all tokens. The third updates the value means with the gains and reads them with the weights.

Rows of a batch are independent, and results are deterministic. The step of a decoder (`rfa.model.decoder_triton`) calls
the same device functions, so scans and steps give the same bits.

Layout: contiguous tokens `[B, N, H, …]` in float32, bfloat16 or float16; state `[B, H, S, 4D]`, `[B, H, S]` and all
results in float32.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.recurrence.slots_reference import SlotInputs, SlotParameters
from rfa.model.recurrence.triton_token import distance, innovation, load_gates, moved, read_weights, weigh, weighted

OF_A_WARP = 512  # number of reals of key means per warp of the scan
REALS_OF_A_WARP = 32  # number of reals of the value means of all slots per warp
STAGES = 4  # three tokens are loaded ahead
ROWS = 32  # number of pairs of token and head per program that computes weights


@triton.jit
def offsets_of_dims(D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr):
    """Return the offsets of a vector of 2D reals for each slot, and a mask, [4, S, D / 2] each. The first axis consists
    of the real and imaginary parts, and the two halves of the dimensions.

    A thread stores some numbers of each of the four groups. A vector that is the same for all slots is loaded once per
    slot, so that it is available in the threads of every slot. If there is a single dimension, it is not split into
    halves, so the shape is [2, S, 1].
    """
    HALVES: tl.constexpr = 2 if BD > 1 else 1
    HALF: tl.constexpr = BD // HALVES
    o_x = tl.arange(0, 2 * HALVES)[:, None, None]
    o_d = (o_x % HALVES) * HALF + tl.arange(0, HALF)[None, None, :] + tl.zeros([1, BS, 1], tl.int32)
    return (o_x // HALVES) * D + o_d, o_d < D


@triton.jit
def load_driving(p_k, p_v, i_row, o_i, m_i, D: tl.constexpr, BY_VALUE: tl.constexpr):
    """Load the key and, if BY_VALUE, the value of row i_row, [4, S, D / 2] each. Unless BY_VALUE, the key is returned
    instead of the value."""
    b_k = tl.load(p_k + i_row * 2 * D + o_i, mask=m_i, other=0.0).to(tl.float32)
    b_v = b_k
    if BY_VALUE:
        b_v = tl.load(p_v + i_row * 2 * D + o_i, mask=m_i, other=0.0).to(tl.float32)
    return b_k, b_v


@triton.jit(do_not_specialize=["n_tokens", "n_heads", "interval", "n_checkpoints"])
def scan_kernel(
    p_q, p_k, p_v, p_measurement, p_process, p_means, p_precisions,
    p_decay, p_nu, p_exponent, p_residual_noise, p_delta,
    p_course, p_final_means, p_final_precisions, p_kept_means, p_kept_precisions,
    p_lengths, n_tokens, n_heads, interval, n_checkpoints,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, INNER: tl.constexpr,
    BY_VALUE: tl.constexpr, KEEP: tl.constexpr, HAS_LENGTHS: tl.constexpr, OWN_DECAY: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Update the key means and precisions of BS slots, from slot j · BS on, for head i mod H of sequence i div H, in
    program (i, j).

    KEEP: Whether to store the states before tokens 0, interval, 2 interval, …. HAS_LENGTHS: Whether p_lengths limits
    the number of tokens that are read per sequence; a length below 0 or above n_tokens gives NaN precisions. OWN_DECAY:
    Whether decay is `[B, N, H, S]` rather than `[H, S]`. An iteration advances the slots by a token and compares the
    query of the previous token with the slots. These are two independent sequences of operations. Meanwhile, the next
    token is loaded.
    """
    i_bh = tl.program_id(0).to(tl.int64)
    i_h = i_bh % n_heads
    o_s = tl.program_id(1) * BS + tl.arange(0, BS)  # [S]
    m_s = o_s < S  # [S]
    o_i, m_i = offsets_of_dims(D, BS, BD)  # [4, S, D / 2]
    o_m, m_m = o_s[None, :, None] * (4 * D) + o_i, m_s[None, :, None] & m_i  # [4, S, D / 2], of key means
    nu, exponent = tl.load(p_nu + i_h), tl.load(p_exponent + i_h)
    residual_noise, delta = tl.load(p_residual_noise + i_h), tl.load(p_delta + i_h)
    p_means += i_bh * S * 4 * D
    b_mk = tl.load(p_means + o_m, mask=m_m, other=0.0)  # [4, S, D / 2]
    b_mv = b_mk
    if BY_VALUE:
        b_mv = tl.load(p_means + o_m + 2 * D, mask=m_m, other=0.0)  # [4, S, D / 2]
    b_p = tl.load(p_precisions + i_bh * S + o_s, mask=m_s, other=1.0)  # [S]
    p_kept_means += i_bh * n_checkpoints * S * 4 * D
    p_kept_precisions += i_bh * n_checkpoints * S

    length = n_tokens
    n_read = n_tokens  # at least one; unused if the length is 0
    if HAS_LENGTHS:
        length = tl.load(p_lengths + i_bh // n_heads)
        n_read = tl.minimum(tl.maximum(length, 1), n_tokens).to(tl.int32)
    i_row = (i_bh // n_heads) * n_tokens * n_heads + i_h  # of the token in [B, N, H]
    i_before = i_row - n_heads
    b_first = tl.load(p_decay + (i_row if OWN_DECAY else i_h) * S + o_s, mask=m_s, other=1.0)  # [S]
    b_k, b_v = load_driving(p_k, p_v, i_row, o_i, m_i, D, BY_VALUE)
    # These values are not used, because there is no token before the first one.
    b_gain, b_d = b_p, b_mk
    b_yk, b_yv = innovation(b_mk, b_k, b_first), b_mv  # [4, S, D / 2]
    if BY_VALUE:
        b_yv = innovation(b_mv, b_v, b_first)
    for i_t in tl.range(n_read, num_stages=STAGES):
        if KEEP and i_t % interval == 0:
            i_kept = tl.cast(i_t // interval, tl.int64) * S
            tl.store(p_kept_means + i_kept * 4 * D + o_m, b_mk, mask=m_m)
            tl.store(p_kept_precisions + i_kept + o_s, b_p, mask=m_s)
        b_q = tl.load(p_q + i_row * 2 * D + o_i, mask=m_i, other=0.0).to(tl.float32)  # [4, S, D / 2]
        b_k, b_v = load_driving(p_k, p_v, i_row + n_heads, o_i, m_i & (i_t + 1 < n_read), D, BY_VALUE)
        b_pi, b_process = load_gates(p_measurement + i_row * S, p_process + i_row * S, o_s, m_s)
        b_decay, b_ahead = b_first, b_first  # of this token and of the next token
        if OWN_DECAY:
            b_decay = tl.load(p_decay + i_row * S + o_s, mask=m_s, other=1.0)  # [S]
            b_ahead = tl.load(p_decay + (i_row + n_heads) * S + o_s, mask=m_s & (i_t + 1 < n_read), other=1.0)
        store_course(p_course + i_before * 4 * S, b_gain, distance(b_d), b_p, o_s, m_s & (i_t > 0), BS)
        b_r2 = distance(b_yk)
        if BY_VALUE:
            b_r2 = distance(b_yv)
        _, _, _, _, b_p, b_gain = weigh(b_r2, b_p, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER)
        b_mk = moved(b_mk, b_yk, b_decay, b_gain)
        b_yk, b_d = innovation(b_mk, b_k, b_ahead), b_q - b_mk
        if BY_VALUE:
            b_mv = moved(b_mv, b_yv, b_decay, b_gain)
            b_yv = innovation(b_mv, b_v, b_ahead)
        i_row += n_heads
        i_before += n_heads
    store_course(p_course + i_before * 4 * S, b_gain, distance(b_d), b_p, o_s, m_s, BS)
    if HAS_LENGTHS:
        if length < 1:
            b_mk = tl.load(p_means + o_m, mask=m_m, other=0.0)
            b_p = tl.load(p_precisions + i_bh * S + o_s, mask=m_s, other=1.0)
        b_p = tl.where((length < 0) | (length > n_tokens), float("nan"), b_p)
    tl.store(p_final_means + i_bh * S * 4 * D + o_m, b_mk, mask=m_m)
    tl.store(p_final_precisions + i_bh * S + o_s, b_p, mask=m_s)


@triton.jit
def store_course(p_course, b_gain, b_r2, b_p, o_s, m_s, BS: tl.constexpr):
    """Store the gain, the squared distance of the query from the updated key mean, and the precision of each slot, [S,
    4].

    Each thread of a slot stores one number.
    """
    LANES: tl.constexpr = max(4, 32 // BS)
    o_x = tl.arange(0, LANES)[None, :]  # [1, X]
    b_course = tl.where(o_x == 0, b_gain[:, None], tl.where(o_x == 1, b_r2[:, None], b_p[:, None]))  # [S, X]
    tl.store(p_course + o_s[:, None] * 4 + o_x, b_course, mask=m_s[:, None] & (o_x < 4))


@triton.jit(do_not_specialize=["n_rows", "n_heads"])
def weights_kernel(
    p_course, p_nu, p_kappa, p_gamma2, p_tau, p_log_norm, p_precision, p_lengths, n_rows, n_heads,
    S: tl.constexpr, BS: tl.constexpr, BLOCK: tl.constexpr, HAS_LENGTHS: tl.constexpr,
):  # fmt: skip
    """Compute the weights of the slots for BLOCK of the n_rows pairs of token and head of a sequence. Each thread
    processes one pair.

    Gains and weights [2, S] replace the content of the course.
    """
    n_blocks = tl.cdiv(n_rows, BLOCK)
    i_b = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_r = (tl.program_id(0) % n_blocks) * BLOCK + tl.arange(0, BLOCK)[None, :]  # [1, R]
    o_s = tl.arange(0, BS)[:, None]  # [S, 1]
    m_s, m_row = o_s < S, o_r < n_rows
    m_read = m_row
    if HAS_LENGTHS:
        m_read = o_r < tl.minimum(tl.load(p_lengths + i_b) * n_heads, n_rows)
    i_row, i_h = i_b * n_rows + o_r, o_r % n_heads  # [1, R]
    o_x = tl.arange(0, 4)[None, None, :]
    p_slots = p_course + ((i_row * S + o_s) * 4)[:, :, None] + o_x  # [S, R, 4]
    b_course = tl.load(p_slots, mask=(m_read & m_s)[:, :, None], other=1.0)
    b_outer, b_inner = tl.split(tl.reshape(b_course, (BS, BLOCK, 2, 2)))
    b_gain, b_p = tl.split(b_outer)
    b_r2, _ = tl.split(b_inner)
    b_a, b_log_norm, b_precision = read_weights(
        b_r2, b_p, m_s, tl.load(p_nu + i_h), tl.load(p_kappa + i_h), tl.load(p_gamma2 + i_h), tl.load(p_tau + i_h)
    )
    # A thread may overwrite numbers of a token that another thread processes, so it must wait until all have read them.
    tl.debug_barrier()
    tl.store(p_course + i_row * 4 * S + o_s, b_gain, mask=m_read & m_s)
    tl.store(p_course + i_row * 4 * S + S + o_s, b_a, mask=m_read & m_s)
    tl.store(p_log_norm + i_row, tl.where(m_read, b_log_norm[None, :], 0.0), mask=m_row)
    tl.store(p_precision + i_row, tl.where(m_read, b_precision[None, :], 0.0), mask=m_row)


@triton.jit(do_not_specialize=["n_tokens", "n_heads", "interval", "n_checkpoints", "one"])
def values_kernel(
    p_v, p_means, p_decay, p_course, p_out, p_final_means, p_kept_means,
    p_lengths, n_tokens, n_heads, interval, n_checkpoints, one,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BW: tl.constexpr, KEEP: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    OWN_DECAY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Update and read BW reals of the value means, from real j · BW on, for head i mod H of sequence i div H, in
    program (i, j).

    A thread stores one real of all slots. Readouts after the length of a sequence are 0. The argument `one` is always
    1, which the compiler does not know. Otherwise, it would assign four adjacent reals to a thread.
    """
    i_bh = tl.program_id(0).to(tl.int64)
    i_h = i_bh % n_heads
    o_s = tl.arange(0, BS)  # [S]
    o_w = tl.program_id(1) * BW + tl.arange(0, BW)  # [W]
    m_s, m_w = o_s < S, o_w < 2 * D
    o_m = o_s[None, :, None] * (4 * D) + 2 * D + o_w[None, None, :] * one  # [1, S, W], of value means
    m_m = m_s[None, :, None] & m_w[None, None, :]
    b_common = tl.load(p_decay + i_h * S + o_s, mask=m_s, other=1.0)  # [S]
    b_m = tl.load(p_means + i_bh * S * 4 * D + o_m, mask=m_m, other=0.0)  # [1, S, W]
    p_kept_means += i_bh * n_checkpoints * S * 4 * D
    n_read = n_tokens
    if HAS_LENGTHS:
        n_read = tl.minimum(tl.maximum(tl.load(p_lengths + i_bh // n_heads), 0), n_tokens).to(tl.int32)
    i_row = (i_bh // n_heads) * n_tokens * n_heads + i_h  # of the token in [B, N, H]
    for i_t in tl.range(n_read, num_stages=STAGES):
        if KEEP and i_t % interval == 0:
            tl.store(p_kept_means + tl.cast(i_t // interval, tl.int64) * S * 4 * D + o_m, b_m, mask=m_m)
        b_gain = tl.load(p_course + i_row * 4 * S + o_s, mask=m_s, other=0.0)  # [S]
        b_a = tl.load(p_course + i_row * 4 * S + S + o_s, mask=m_s, other=0.0)  # [S]
        b_v = tl.load(p_v + i_row * 2 * D + o_w, mask=m_w, other=0.0).to(tl.float32)  # [W]
        b_decay = b_common
        if OWN_DECAY:
            b_decay = tl.load(p_decay + i_row * S + o_s, mask=m_s, other=1.0)  # [S]
        b_m = moved(b_m, innovation(b_m, b_v[None, None, :], b_decay), b_decay, b_gain)
        tl.store(p_out + i_row * 2 * D + o_w[None, :], weighted(b_a, b_m), mask=m_w[None, :])
        i_row += n_heads
    if HAS_LENGTHS:
        for _ in range(n_read, n_tokens):
            tl.store(p_out + i_row * 2 * D + o_w, tl.zeros([BW], tl.float32), mask=m_w)
            i_row += n_heads
    tl.store(p_final_means + i_bh * S * 4 * D + o_m, b_m, mask=m_m)


def blocks(slots: int, width: int) -> tuple[int, int]:
    """Return the numbers of slots and of complex dimensions of a head, each rounded up to a power of two."""
    return triton.next_power_of_2(slots), triton.next_power_of_2(width // 2)


def warps(slots: int, width: int) -> int:
    """Return the number of warps of a program that processes a head. A thread stores 16 floats of the state, or 32 for
    the largest heads."""
    block_s, block_d = blocks(slots, width)
    return max(1, min(8, 4 * block_s * block_d // 512))


def slots_of_a_warp(slots: int, width: int) -> int:
    """Return the number of slots per warp of the scan. A thread stores 16 reals, so that every sum is computed within a
    warp."""
    block_s, block_d = blocks(slots, width)
    return min(block_s, OF_A_WARP // max(2 * block_d, 16))


def scan_outputs(
    k: Tensor, means: Tensor, precisions: Tensor, interval: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Allocate uninitialised tensors for the results of `scan`."""
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


class ScanOptions(NamedTuple):
    """Options of `scan`.

    Attributes:
        inner: Number of reweighting passes.
        by_value: Whether the innovation of the value determines the weight, rather than that of the key.
        interval: Number of tokens between checkpoints. 0 means that there are no checkpoints.
        lengths: Number of tokens of each row, `[B]` int64. It is only supported without checkpoints.
    """

    inner: int
    by_value: bool
    interval: int
    lengths: Tensor | None


def scan(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    options: ScanOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scan contiguous tokens with the memory slots.

    Args:
        tokens: Inputs with leading dimensions `[B, N]`.
        means, precisions: State before the first token.
        parameters: Parameters of the slots.
        options: Options of the scan.

    Returns:
        out `[B, N, H, W]`, log_norm, precision `[B, N, H]`, the final state, and the states before every `interval`-th
        token, `[B, H, ceil(N / interval), S, 2W]` and `[…, S]`.
    """
    batch, n_tokens, heads, width = tokens.k.shape
    slots = precisions.shape[2]
    inner, by_value, interval, lengths = options
    outputs = scan_outputs(tokens.k, means, precisions, interval)
    block_s, block_d = blocks(slots, width)
    of_a_warp, reals = slots_of_a_warp(slots, width), min(REALS_OF_A_WARP, triton.next_power_of_2(width))
    out, log_norm, precision, final_means, final_precisions, kept_means, kept_precisions = outputs
    rows, kept, own = n_tokens * heads, kept_precisions.shape[2], lengths is not None
    decay, nu, kappa, exponent, residual_noise, gamma2, tau, delta = parameters
    own_decay = decay.dim() > 2
    course = means.new_empty((*log_norm.shape, slots, 4))
    with torch.cuda.device_of(means):
        scan_kernel[(batch * heads, triton.cdiv(slots, of_a_warp))](
            *tokens, means, precisions, decay, nu, exponent, residual_noise, delta,
            course, final_means, final_precisions, kept_means, kept_precisions,
            lengths, n_tokens, heads, interval, kept,
            S=slots, D=width // 2, BS=of_a_warp, BD=block_d, INNER=inner, BY_VALUE=by_value,
            KEEP=interval > 0, HAS_LENGTHS=own, OWN_DECAY=own_decay, STAGES=STAGES, num_warps=1,
        )  # fmt: skip
        weights_kernel[(batch * triton.cdiv(rows, ROWS),)](
            course, nu, kappa, gamma2, tau, log_norm, precision, lengths, rows, heads,
            S=slots, BS=block_s, BLOCK=ROWS, HAS_LENGTHS=own, num_warps=1,
        )  # fmt: skip
        values_kernel[(batch * heads, triton.cdiv(width, reals))](
            tokens.v, means, decay, course, out, final_means, kept_means,
            lengths, n_tokens, heads, interval, kept, 1,
            S=slots, D=width // 2, BS=block_s, BW=reals, KEEP=interval > 0, HAS_LENGTHS=own, OWN_DECAY=own_decay,
            STAGES=STAGES, num_warps=1,
        )  # fmt: skip
    return outputs
