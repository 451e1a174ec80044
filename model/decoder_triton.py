"""Kernels of a decode step on a GPU, except the matrix products (`product_triton`), in float32.

Three kernels replace about a dozen launches between products. They compute the embedding and the rotations; the slots
of a layer; and the logits with evidence and finiteness flags. Norms, GELU and residual sums are fused into the
products. The results of a row do not depend on the other rows, bit for bit.

The equations are in `decoder.py`, and those of the slots in `recurrence/triton_token.py`, which the scan also uses.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.decoder_layers import NORM_EPS, Layer
from rfa.model.functions_triton import cosine_and_sine, exponential
from rfa.model.product_triton import STAGES, Norm, Tile, add_product, multiplied, normed, product
from rfa.model.recurrence.slots_reference import SlotParameters
from rfa.model.recurrence.triton_forward import blocks, warps
from rfa.model.recurrence.triton_token import (
    advance,
    load_head,
    load_state,
    load_vector,
    read,
    store_state,
    store_vector,
)
from rfa.runtime.text.config import GATE_RANGE, PROCESS_GATE_SCALE, Innovation

# Number of values of a row per warp, in `begin_kernel`.
OF_A_WARP = 64


@triton.jit
def begin_kernel(
    p_tokens, p_positions, p_embedding, p_omega, p_x, p_cos, p_sin, scale, n_tokens,
    WIDTH: tl.constexpr, PHASES: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Load the embedding of token b in program b, and compute the cosine and sine of the H · D phases at its position.

    The embedding of a token outside the vocabulary is NaN.
    """
    i_b = tl.program_id(0).to(tl.int64)
    o_w, o_p = tl.arange(0, BLOCK_W), tl.arange(0, BLOCK_P)
    m_w, m_p = o_w < WIDTH, o_p < PHASES
    i_token = tl.load(p_tokens + i_b).to(tl.int64)
    is_valid = (i_token >= 0) & (i_token < n_tokens)
    b_x = tl.load(p_embedding + i_token * WIDTH + o_w, mask=m_w & is_valid, other=0.0).to(tl.float32) * scale
    tl.store(p_x + i_b * WIDTH + o_w, tl.where(is_valid, b_x, float("nan")), mask=m_w)
    position = tl.load(p_positions + i_b).to(tl.float64)
    b_cos, b_sin = cosine_and_sine(tl.load(p_omega + o_p, mask=m_p, other=0.0) * position)
    tl.store(p_cos + i_b * PHASES + o_p, b_cos, mask=m_p)
    tl.store(p_sin + i_b * PHASES + o_p, b_sin, mask=m_p)


@triton.jit
def turned_vector(p_vector, b_cos, b_sin, o_d, m_d, D: tl.constexpr):
    """Load x e^{-i phase} of one head, [2, D]."""
    b_x = load_vector(p_vector, o_d, m_d, D)  # [2, D]
    o_swapped = tl.arange(0, 2)[:, None] * (-D) + D + o_d[None, :]  # [2, D]
    b_swapped = tl.load(p_vector + o_swapped, mask=m_d[None, :], other=0.0).to(tl.float32)  # [2, D]
    sign = tl.where(tl.arange(0, 2)[:, None] == 0, 1.0, -1.0)  # [2, 1]
    return b_x * b_cos[None, :] + b_swapped * (sign * b_sin[None, :])


@triton.jit
def turned_back(b_x, b_cos, b_sin):
    """Rotate x by the phase: compute x e^{i phase}, real and imaginary part, [2, D]."""
    is_real = tl.arange(0, 2)[:, None] == 0  # [2, 1]
    b_real = tl.sum(tl.where(is_real, b_x, 0.0), axis=0)  # [D]
    b_imaginary = tl.sum(tl.where(is_real, 0.0, b_x), axis=0)  # [D]
    return tl.where(
        is_real,
        (b_real * b_cos - b_imaginary * b_sin)[None, :],
        (b_real * b_sin + b_imaginary * b_cos)[None, :],
    )


@triton.jit
def clamped(b_x, LOWEST: tl.constexpr, HIGHEST: tl.constexpr):
    """Clamp values to a range. NaN is not changed."""
    b_x = tl.maximum(b_x, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(b_x, HIGHEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def load_slot_gates(
    p_gates, p_bias, p_eta2, p_own_process, i_h, n_heads, o_s, m_s,
    S: tl.constexpr, LOWEST: tl.constexpr, HIGHEST: tl.constexpr, PROCESS_SCALE: tl.constexpr,
):  # fmt: skip
    """Return the measurement precision and the process variance of the slots of a head, [S] each. They are computed
    from the gate logits [2, H, S]."""
    o_write, o_forget = i_h * S + o_s, (n_heads + i_h) * S + o_s
    b_write = tl.load(p_gates + o_write, mask=m_s, other=0.0) + tl.load(p_bias + o_write, mask=m_s, other=0.0)
    b_forget = tl.load(p_gates + o_forget, mask=m_s, other=0.0) + tl.load(p_bias + o_forget, mask=m_s, other=0.0)
    b_pi = exponential(clamped(b_write, LOWEST, HIGHEST)) / tl.load(p_eta2 + i_h)
    b_own = tl.load(p_own_process + i_h * S + o_s, mask=m_s, other=1.0)
    b_process = b_own + PROCESS_SCALE * exponential(clamped(b_forget, LOWEST, HIGHEST))
    return tl.where(m_s, b_pi, 0.0), tl.where(m_s, b_process, 1.0)


@triton.jit
def is_broken(b_mk, b_mv, b_p):
    """Return 1 if any number of a state is not finite, else 0."""
    is_finite = (tl.abs(b_mk) < float("inf")) & (tl.abs(b_mv) < float("inf"))  # [2, S, D]
    b_broken = tl.max(tl.max(tl.where(is_finite, 0, 1), axis=0), axis=1)  # [S]
    return tl.max(tl.maximum(b_broken, tl.where(tl.abs(b_p) < float("inf"), 0, 1)), axis=0)


@triton.jit(do_not_specialize=["n_rows", "n_heads", "joint_b"])
def slots_kernel(
    p_joint, p_cos, p_sin, p_pool_means, p_pool_precisions, p_sources, p_targets,
    p_gate_bias, p_eta2, p_own_process, p_output_gate_bias, p_noise,
    p_decay, p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta,
    p_mixed, p_latent, p_evidence, p_broken,
    joint_b, means_p, means_h, precisions_p, precisions_h, n_rows, n_heads,
    S: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, PROCESS_SCALE: tl.constexpr,
    INNER: tl.constexpr, BY_VALUE: tl.constexpr, IS_GATED: tl.constexpr, IS_LAST: tl.constexpr,
):  # fmt: skip
    """Process head i mod H of stream i div H in program i, from the joint product to the latent.

    INNER: Number of passes K. BY_VALUE: Whether the innovation of the value determines the weight. IS_GATED: Whether
    there are output gates. IS_LAST: Whether this is the last layer, whose latent is sampled and stored. <name>_p,
    <name>_h: Strides of an array over rows of the pool and over heads. If a row is outside the pool, its results are
    NaN, and the pool is neither read nor written.
    """
    i_bh = tl.program_id(0).to(tl.int64)
    i_b = i_bh // n_heads
    i_h = i_bh % n_heads
    i_source, i_target = tl.load(p_sources + i_b).to(tl.int64), tl.load(p_targets + i_b).to(tl.int64)
    is_held = (i_source >= 0) & (i_source < n_rows) & (i_target >= 0) & (i_target < n_rows)
    o_s, o_d = tl.arange(0, BS), tl.arange(0, BD)  # [S], [D]
    m_s, m_d = o_s < S, o_d < D  # [S], [D]
    nu, kappa, exponent, residual_noise, gamma2, tau, delta = load_head(
        p_nu, p_kappa, p_exponent, p_residual_noise, p_gamma2, p_tau, p_delta, i_h
    )
    b_decay = tl.load(p_decay + i_h * S + o_s, mask=m_s, other=1.0)  # [S]
    b_mk, b_mv, b_p = load_state(
        p_pool_means + i_source * means_p + i_h * means_h,
        p_pool_precisions + i_source * precisions_p + i_h * precisions_h,
        o_s, o_d, m_s & is_held, m_d, D,
    )  # fmt: skip
    b_cos = tl.load(p_cos + i_bh * D + o_d, mask=m_d, other=0.0)  # [D]
    b_sin = tl.load(p_sin + i_bh * D + o_d, mask=m_d, other=0.0)  # [D]
    p_joint += i_b * joint_b
    b_q = turned_vector(p_joint + i_h * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    b_k = turned_vector(p_joint + (n_heads + i_h) * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    b_v = turned_vector(p_joint + (2 * n_heads + i_h) * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    p_joint += n_heads * 6 * D
    b_pi, b_process = load_slot_gates(
        p_joint, p_gate_bias, p_eta2, p_own_process, i_h, n_heads, o_s, m_s, S, LOWEST, HIGHEST, PROCESS_SCALE
    )  # [S]

    b_mk, b_mv, b_p = advance(
        b_mk, b_mv, b_p, b_k, b_v, b_pi, b_process, b_decay, nu, exponent, residual_noise, delta, INNER, BY_VALUE
    )
    store_state(
        p_pool_means + i_target * means_p + i_h * means_h,
        p_pool_precisions + i_target * precisions_p + i_h * precisions_h,
        b_mk, b_mv, b_p, o_s, o_d, m_s & is_held, m_d, D,
    )  # fmt: skip
    tl.store(p_broken + i_bh, tl.where(is_held, is_broken(b_mk, b_mv, b_p), 1))
    b_out, _, evidence = read(b_q, b_mk, b_mv, b_p, m_s, nu, kappa, gamma2, tau)
    b_latent = tl.where(is_held, turned_back(b_out, b_cos, b_sin), float("nan"))  # [2, D]
    if IS_LAST:
        spread = tl.sqrt_rn((1.0 / evidence + gamma2) / 2.0)
        b_latent += load_vector(p_noise + i_bh * 2 * D, o_d, m_d, D) * spread
        store_vector(p_latent + i_bh * 2 * D, b_latent, o_d, m_d, D)
        tl.store(p_evidence + i_bh, tl.where(is_held, evidence, float("nan")))
    if IS_GATED:
        gate = tl.load(p_joint + 2 * n_heads * S + i_h) + tl.load(p_output_gate_bias + i_h)
        b_latent *= 1.0 / (1.0 + exponential(-gate))
    store_vector(p_mixed + i_bh * 2 * D, b_latent.to(p_mixed.dtype.element_ty), o_d, m_d, D)


@triton.jit
def store_outcome(
    p_evidence, p_broken, p_log_precision, p_is_finite, o_row, m_row, n_rows,
    HEADS: tl.constexpr, LAYERS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Store the log evidence averaged over heads for the rows o_row [BM], and 1 if the slots of all layers are finite,
    else 0.

    m_row is [BM, 1].
    """
    o_head = tl.arange(0, BLOCK_H)[None, :]  # [1, H]
    m_head = m_row & (o_head < HEADS)  # [BM, H]
    o_flag = o_row[:, None] * HEADS + o_head  # [BM, H]
    b_evidence = tl.load(p_evidence + o_flag, mask=m_head, other=1.0)  # [BM, H]
    b_broken = tl.zeros_like(o_flag).to(tl.int32)  # [BM, H]
    for i_layer in range(LAYERS):
        b_broken |= tl.load(p_broken + i_layer * (n_rows * HEADS) + o_flag, mask=m_head, other=0)
    tl.store((p_log_precision + o_row)[:, None], tl.sum(tl.log(b_evidence), axis=1, keep_dims=True) / HEADS, mask=m_row)
    b_worst = tl.max(b_broken, axis=1, keep_dims=True)  # [BM, 1]
    tl.store((p_is_finite + o_row)[:, None], tl.where(b_worst == 0, 1.0, 0.0), mask=m_row)


@triton.jit(do_not_specialize=["n_rows"])
def logits_kernel(
    p_x, p_norm, p_embedding, p_logits, p_evidence, p_broken, p_log_precision, p_is_finite, n_rows,
    FACTORS: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PARTS: tl.constexpr, LENGTH: tl.constexpr, INTERPRETED: tl.constexpr, WITH_NORM: tl.constexpr, EPS: tl.constexpr,
    HEADS: tl.constexpr, LAYERS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Compute the logits of BM rows for BN tokens of the vocabulary in program (j, i). Programs with j = 0 also store
    the evidence and the flags of their rows."""
    i_row, i_column = tl.program_id(1).to(tl.int64) * BM, tl.program_id(0).to(tl.int64) * BN
    o_row, o_column = tl.arange(0, BM), tl.arange(0, BN)  # [BM], [BN]
    m_row, m_column = o_row < (n_rows - i_row).to(tl.int32), o_column < (COLUMNS - i_column).to(tl.int32)
    b_logits = multiplied(
        tl.zeros([BM, BN], tl.float32), p_x + i_row * FACTORS, p_norm, p_embedding + i_column * FACTORS,
        m_row[:, None], m_column[:, None],
        FACTORS, BM, BN, BK, PARTS, LENGTH, INTERPRETED, WITH_NORM, EPS,
    )  # fmt: skip
    p_logits += i_row * COLUMNS + i_column
    m_logits = m_row[:, None] & m_column[None, :]  # [BM, BN]
    tl.store(p_logits + o_row[:, None] * COLUMNS + o_column[None, :], b_logits, mask=m_logits)
    if tl.program_id(0) == 0:
        store_outcome(
            p_evidence, p_broken, p_log_precision, p_is_finite, i_row + o_row, m_row[:, None], n_rows,
            HEADS, LAYERS, BLOCK_H,
        )  # fmt: skip


class Turned(NamedTuple):
    """Cosine and sine of the phases of B tokens, each `[B, H, D]`."""

    cos: Tensor
    sin: Tensor


class Gates(NamedTuple):
    """Constants of the gates of a layer.

    Attributes:
        bias: Bias of the gate logits, `[2 · H · S]`.
        eta2: Measurement noise, `[H]`.
        own_process: Process noise of the slots, `[H, S]`.
        output_bias: Bias of the output gates, `[H]`. None if the model has no output gates.
    """

    bias: Tensor
    eta2: Tensor
    own_process: Tensor
    output_bias: Tensor | None

    @classmethod
    def of(cls, layer: Layer) -> Gates:
        """Return the gate constants of a layer with memory slots."""
        slots = layer.required_slots
        return cls(slots.gate_bias, layer.dynamics.eta2, slots.own_process, layer.output_gate_bias)


class Outcome(NamedTuple):
    """Intermediate results of a decoding step.

    Attributes:
        latent: Latent of the last layer, `[B, H, 2D]`.
        evidence: Evidence of the last layer, `[B, H]`.
        broken: 1 if the slots of a layer contain non-finite numbers, else 0, `[L, B, H]` int32.
    """

    latent: Tensor
    evidence: Tensor
    broken: Tensor

    @classmethod
    def empty(cls, rows: int, layers: int, heads: int, width: int, device: torch.device) -> Outcome:
        """Allocate uninitialised tensors for the results."""
        shape = (rows, heads)
        latent, evidence = torch.empty((*shape, width), device=device), torch.empty(shape, device=device)
        return cls(latent, evidence, torch.empty((layers, *shape), dtype=torch.int32, device=device))


def _warps_of(numbers: int) -> int:
    return max(1, min(8, numbers // OF_A_WARP))


def begin(tokens: Tensor, positions: Tensor, embedding: Tensor, scale: float, omega: Tensor) -> tuple[Tensor, Turned]:
    """Return the residual stream `[B, d]` of tokens, and their rotations.

    Args:
        tokens, positions: Tokens and their positions, `[B]`.
        embedding: Embedding, `[V, d]`.
        scale: Factor of the embedding.
        omega: Frequencies, `[H, D]` float64.
    """
    rows, width = len(tokens), embedding.shape[1]
    x = embedding.new_empty((rows, width), dtype=torch.float32)
    turn = Turned(*(x.new_empty((rows, *omega.shape)) for _ in Turned._fields))
    block_w, block_p = triton.next_power_of_2(width), triton.next_power_of_2(omega.numel())
    with torch.cuda.device_of(x):
        begin_kernel[(rows,)](
            tokens, positions, embedding, omega, x, *turn, scale, embedding.shape[0],
            WIDTH=width, PHASES=omega.numel(), BLOCK_W=block_w, BLOCK_P=block_p,
            num_warps=_warps_of(max(block_w, block_p)),
        )  # fmt: skip
    return x, turn


def joint_product(x: Tensor, layer: Layer) -> Tensor:
    """Compute all projections of the residual stream `[T, d]` in a layer, `[T, 3 · H · 2D + 2 · H · S (+ H)]`."""
    return product(x, layer.readout.mix_in, Norm(layer.readout.mixer_norm, NORM_EPS))


def finish_layer(x: Tensor, mixed: Tensor, layer: Layer) -> None:
    """Add the projected output of the mixer, and then that of the feed-forward layer, to the residual stream, in
    place."""
    add_product(x, mixed, layer.readout.mix_out)
    norm = Norm(layer.readout.feed_forward_norm, NORM_EPS)
    add_product(x, product(x, layer.up, norm, with_gelu=True), layer.down)


class PoolRows(NamedTuple):
    """Memory slots of a layer, and the rows of the pool that a step reads and writes.

    Attributes:
        means, precisions: Memory slots, `[R, H, S, 4D]` and `[R, H, S]`.
        sources, targets: Rows to read and rows to write, `[B]` int64 each.
    """

    means: Tensor
    precisions: Tensor
    sources: Tensor
    targets: Tensor


def step_slots(
    joint: Tensor, turn: Turned, gates: Gates, parameters: SlotParameters, pool: PoolRows, outcome: Outcome, *,
    noise: Tensor, index: int, inner: int, innovation: Innovation, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Update the memory slots of a layer with one token. Return the input of the output projection, `[B, H · 2D]`.

    Args:
        joint: `joint_product` of the layer.
        turn: Rotations of the tokens.
        gates, parameters: Constants of the layer.
        pool: Memory slots of the layer, and the rows to read and to write. A stream must not read a row that another
            stream writes.
        outcome: Buffers that receive the latent, the evidence and the flags.
        noise: Scaled standard normal numbers for the sample of the last layer, `[B, H, 2D]`.
        index: Index of the layer.
        inner: Number of passes K.
        innovation: Innovation that determines the robust weight.
        dtype: Dtype of the result.
    """
    rows, heads, width = outcome.latent.shape
    means, precisions, sources, targets = pool
    slots = precisions.shape[2]
    mixed = joint.new_empty((rows, heads * width), dtype=dtype)
    block_s, block_d = blocks(slots, width)
    with torch.cuda.device_of(means):
        slots_kernel[(rows * heads,)](
            joint, *turn, means, precisions, sources, targets,
            *gates[:3], gates.bias if gates.output_bias is None else gates.output_bias, noise,
            *parameters, mixed, outcome.latent, outcome.evidence, outcome.broken[index],
            joint.stride(0), *means.stride()[:2], *precisions.stride()[:2], means.shape[0], heads,
            S=slots, D=width // 2, BS=block_s, BD=block_d,
            LOWEST=GATE_RANGE[0], HIGHEST=GATE_RANGE[1], PROCESS_SCALE=PROCESS_GATE_SCALE,
            INNER=inner, BY_VALUE=innovation == "value", IS_GATED=gates.output_bias is not None,
            IS_LAST=index == len(outcome.broken) - 1, num_warps=warps(slots, width),
        )  # fmt: skip
    return mixed


def compute_logits(x: Tensor, norm: Norm, embedding: Tensor, outcome: Outcome) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits `[B, V]` and log_precision `[B]` of the residual stream `[B, d]`, and a tensor `[B]` that is 1
    if all new states are finite and 0 otherwise."""
    layers, rows, heads = outcome.broken.shape
    tile = Tile.of(embedding, rows)
    x, rest = normed(x, norm, tile, embedding.dtype)
    empty = outcome.evidence.new_empty
    logits, log_precision, is_finite = empty((rows, tile.COLUMNS)), empty(rows), empty(rows)
    with torch.cuda.device_of(x):
        logits_kernel[tile.grid(rows)](
            x, norm.weight, embedding, logits, outcome.evidence, outcome.broken, log_precision, is_finite, rows,
            **tile._asdict(), WITH_NORM=rest is not None, EPS=norm.eps,
            HEADS=heads, LAYERS=layers, BLOCK_H=triton.next_power_of_2(heads), num_warps=tile.warps, num_stages=STAGES,
        )  # fmt: skip
    return logits, log_precision, is_finite
