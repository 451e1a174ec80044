"""Kernels before and after the mixers for packed tokens of many sequences. The results of a token do not depend on the
other tokens, bit for bit.

    arrange        rotates queries, keys and values, and writes them and the slot gates where the mixer reads them
    leave_frame    rotates the output of a mixer back and applies output gates

For the last tokens, leave_frame also writes the latent and the evidence. The other operations are those of a step
(`decoder_triton`, `product_triton`). Tokens are `[T, …]`, contiguous, float32.
"""

# Triton kernels have no type annotations.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.decoder_triton import (
    Gates,
    Outcome,
    Turned,
    load_slot_gates,
    turned_back,
    turned_vector,
)
from rfa.model.functions_triton import exponential
from rfa.model.recurrence.slots_reference import SlotInputs
from rfa.model.recurrence.triton_token import load_vector, store_vector
from rfa.runtime.text.config import GATE_RANGE, PROCESS_GATE_SCALE

# Minimum norm, as in `torch.nn.functional.normalize`.
SHORTEST = tl.constexpr(1e-12)


@triton.jit
def normalise(b_x):
    """Normalise a vector [2, D]."""
    length = tl.sqrt_rn(tl.sum(tl.sum(b_x * b_x, axis=0), axis=0))
    return b_x / tl.maximum(length, SHORTEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["joint_t"], do_not_specialize_on_alignment=["p_broken"])
def arrange_kernel(
    p_joint, p_cos, p_sin, p_q, p_k, p_v, p_places, p_streams, p_broken,
    p_bias, p_eta2, p_own_process, p_measurement, p_process, joint_t,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, S: tl.constexpr, BS: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, PROCESS_SCALE: tl.constexpr,
    IS_UNIT: tl.constexpr, TURNS_VALUES: tl.constexpr, FOR_SLOTS: tl.constexpr,
):  # fmt: skip
    """Arrange query, key and value of head h of token t in program (t, h).

    If FOR_SLOTS, the mixer uses memory slots. The query is then also written to row p_places[t], like the key and
    the value, and the gates are computed. Otherwise, the stream of the token is flagged if its key or value contains
    numbers that are not finite.
    """
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d = tl.arange(0, BD)  # [D]
    m_d = o_d < D  # [D]
    i_row = i_t * H + i_h
    b_cos = tl.load(p_cos + i_row * D + o_d, mask=m_d, other=0.0)  # [D]
    b_sin = tl.load(p_sin + i_row * D + o_d, mask=m_d, other=0.0)  # [D]
    i_place = tl.load(p_places + i_t) * H + i_h
    if FOR_SLOTS:
        i_row = i_place
    p_joint += i_t * joint_t
    b_q = turned_vector(p_joint + i_h * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    b_k = turned_vector(p_joint + (H + i_h) * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    if IS_UNIT:
        b_q, b_k = normalise(b_q), normalise(b_k)
    if TURNS_VALUES:
        b_v = turned_vector(p_joint + (2 * H + i_h) * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    else:
        b_v = load_vector(p_joint + (2 * H + i_h) * 2 * D, o_d, m_d, D)  # [2, D]
    store_vector(p_q + i_row * 2 * D, b_q.to(p_q.dtype.element_ty), o_d, m_d, D)
    b_k, b_v = b_k.to(p_k.dtype.element_ty), b_v.to(p_v.dtype.element_ty)
    store_vector(p_k + i_place * 2 * D, b_k, o_d, m_d, D)
    store_vector(p_v + i_place * 2 * D, b_v, o_d, m_d, D)
    if not FOR_SLOTS:
        i_stream = tl.load(p_streams + i_t)
        b_nothing = b_k.to(tl.float32) * 0.0 + b_v.to(tl.float32) * 0.0  # [2, D], NaN where a number is not finite
        is_broken = tl.sum(tl.sum(b_nothing, axis=0), axis=0) != 0.0
        tl.store(p_broken + i_stream * H + i_h, 1, mask=is_broken & (i_stream >= 0))
    if FOR_SLOTS:
        o_s = tl.arange(0, BS)  # [S]
        m_s = o_s < S  # [S]
        b_pi, b_process = load_slot_gates(
            p_joint + H * 6 * D, p_bias, p_eta2, p_own_process, i_h, H, o_s, m_s, S, LOWEST, HIGHEST, PROCESS_SCALE
        )  # [S]
        tl.store(p_measurement + i_row * S + o_s, b_pi, mask=m_s)
        tl.store(p_process + i_row * S + o_s, b_process, mask=m_s)


@functools.cache
def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`. The result is cached, because the function of Triton
    takes as long as a kernel launch."""
    return int(triton.next_power_of_2(size))


class Watch(NamedTuple):
    """Flags that mark streams with non-finite values.

    Attributes:
        streams: Index of the stream of each token, `[T]` int64. It is -1 for tokens without a stream.
        broken: The flags, initially 0, `[S, H]` int32.
    """

    streams: Tensor
    broken: Tensor


def arrange_for_pages(
    joint: Tensor, turn: Turned, keys: Tensor, values: Tensor, places: Tensor, watch: Watch, *,
    is_unit: bool, turns_values: bool,
) -> Tensor:  # fmt: skip
    """Return the queries for attention, `[T, H, 2D]`, and write keys and values to their pages.

    Args:
        joint: Joint product with query, key and value, `[T, 3 · H · 2D + …]` float32.
        turn: Rotation of each token.
        keys, values: Pools `[…, H, 2D]` of one dtype, which is also that of the queries.
        places: Pool row of each token, `[T]` int64.
        watch: Flags for the stored keys and values.
        is_unit: Whether to normalise queries and keys.
        turns_values: Whether to rotate values too.
    """
    tokens, heads, dims = turn.cos.shape
    q = keys.new_empty((tokens, heads, 2 * dims))
    nothing = joint
    with torch.cuda.device_of(joint):
        arrange_kernel[(tokens, heads)](
            joint, *turn, q, keys, values, places, *watch, nothing, nothing, nothing, nothing, nothing,
            joint.stride(0),
            H=heads, D=dims, BD=power_of_two(dims), S=1, BS=1, LOWEST=0.0, HIGHEST=0.0, PROCESS_SCALE=0.0,
            IS_UNIT=is_unit, TURNS_VALUES=turns_values, FOR_SLOTS=False, num_warps=1,
        )  # fmt: skip
    return q


def arrange_for_slots(joint: Tensor, turn: Turned, gates: Gates, rows: Tensor, shape: tuple[int, int]) -> SlotInputs:
    """Return the inputs of the slots, `[B, N, …]` float32.

    Args:
        joint: Joint product with query, key, value and gate logits, `[T, 3 · H · 2D + 2 · H · S]`.
        turn: Rotation of each token.
        gates: Constants of the gates.
        rows: Index of each token in the flattened `[B, N]`, `[T]` int64. Other rows are not written.
        shape: B and N.
    """
    tokens, heads, dims = turn.cos.shape
    slots = gates.own_process.shape[-1]
    q, k, v = (joint.new_empty((*shape, heads, 2 * dims)) for _ in range(3))
    measurement, process = (joint.new_empty((*shape, heads, slots)) for _ in range(2))
    with torch.cuda.device_of(joint):
        arrange_kernel[(tokens, heads)](
            joint, *turn, q, k, v, rows, rows, rows, *gates[:3], measurement, process, joint.stride(0),
            H=heads, D=dims, BD=power_of_two(dims), S=slots, BS=power_of_two(slots),
            LOWEST=GATE_RANGE[0], HIGHEST=GATE_RANGE[1], PROCESS_SCALE=PROCESS_GATE_SCALE,
            IS_UNIT=False, TURNS_VALUES=True, FOR_SLOTS=True, num_warps=1,
        )  # fmt: skip
    return SlotInputs(q, k, v, measurement, process)


@triton.jit(do_not_specialize=["gates_t"])
def leave_frame_kernel(
    p_x, p_rows, p_cos, p_sin, p_gates, p_bias, p_out,
    p_last, p_precision, p_noise, p_gamma2, p_latent, p_evidence, gates_t,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    HAS_ROWS: tl.constexpr, IS_TURNED: tl.constexpr, IS_GATED: tl.constexpr, IS_LAST: tl.constexpr,
    IS_SAMPLED: tl.constexpr,
):  # fmt: skip
    """Process head h of token t in program (t, h).

    If IS_LAST, t is the index of a stream, whose last token is processed in the last layer. If IS_SAMPLED, the latent
    is sampled.
    """
    i_out, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d = tl.arange(0, BD)  # [D]
    m_d = o_d < D  # [D]
    i_t = i_out
    if IS_LAST:
        i_t = tl.load(p_last + i_out)
    i_out = i_out * H + i_h
    i_row = i_t * H + i_h
    i_place = i_row
    if HAS_ROWS:
        i_place = tl.load(p_rows + i_t) * H + i_h
    b_x = load_vector(p_x + i_place * 2 * D, o_d, m_d, D)  # [2, D]
    if IS_TURNED:
        b_cos = tl.load(p_cos + i_row * D + o_d, mask=m_d, other=0.0)  # [D]
        b_sin = tl.load(p_sin + i_row * D + o_d, mask=m_d, other=0.0)  # [D]
        b_x = turned_back(b_x, b_cos, b_sin)
    if IS_LAST:
        evidence = tl.load(p_precision + i_place)
        if IS_SAMPLED:
            spread = tl.sqrt_rn((1.0 / evidence + tl.load(p_gamma2 + i_h)) / 2.0)
            b_x += load_vector(p_noise + i_out * 2 * D, o_d, m_d, D) * spread
        store_vector(p_latent + i_out * 2 * D, b_x, o_d, m_d, D)
        tl.store(p_evidence + i_out, evidence)
    if IS_GATED:
        gate = tl.load(p_gates + i_t * gates_t + i_h) + tl.load(p_bias + i_h)
        b_x *= 1.0 / (1.0 + exponential(-gate))
    store_vector(p_out + i_out * 2 * D, b_x.to(p_out.dtype.element_ty), o_d, m_d, D)


class LastTokens(NamedTuple):
    """Last tokens of S streams in the last layer, and buffers for their outputs.

    Attributes:
        places: Indices of the tokens among the T tokens, `[S]` int64.
        precision: Precision of the mixer. It has the shape of x without its last dimension.
        noise: Scaled standard normal numbers for the sample of the latent, `[S, H, 2D]`. If None, the latent is the
            mean.
        gamma2: Measurement noise of the query, `[H]`.
        outcome: Buffers that receive the latent and the evidence.
    """

    places: Tensor
    precision: Tensor
    noise: Tensor | None
    gamma2: Tensor
    outcome: Outcome


def leave_frame(
    x: Tensor, turn: Turned | None, gates: tuple[Tensor, Tensor] | None, dtype: torch.dtype,
    rows: Tensor | None = None, last: LastTokens | None = None,
) -> Tensor:  # fmt: skip
    """Return the input of the output projection, `[T, H · 2D]`. With `last`, only the last tokens are processed.

    Args:
        x: Output of a mixer, `[T, H, 2D]` float32, or `[…, H, 2D]` with `rows`.
        turn: Rotation of each token. None if x is not in the rotating frame.
        gates: Logits of the output gates `[T, H]`, contiguous per token, and their bias `[H]`. None if there are none.
        dtype: Dtype of the result.
        rows: Index of each token in x, `[T]` int64. By default, x contains the tokens in order.
        last: Tokens to process in the last layer. By default, all tokens are processed.
    """
    heads, width = x.shape[-2:]
    tokens = len(x) if rows is None else len(rows)
    last_arguments = (x,) * 6
    if last is not None:
        tokens, outcome = len(last.places), last.outcome
        noise = x if last.noise is None else last.noise
        last_arguments = (last.places, last.precision, noise, last.gamma2, outcome.latent, outcome.evidence)
    out = x.new_empty((tokens, heads * width), dtype=dtype)
    logits, bias = gates or (x, x)
    with torch.cuda.device_of(x):
        leave_frame_kernel[(tokens, heads)](
            x, x if rows is None else rows, *(turn or (x, x)), logits, bias, out, *last_arguments, logits.stride(0),
            H=heads, D=width // 2, BD=power_of_two(width // 2), HAS_ROWS=rows is not None,
            IS_TURNED=turn is not None, IS_GATED=gates is not None, IS_LAST=last is not None,
            IS_SAMPLED=last is not None and last.noise is not None, num_warps=1,
        )  # fmt: skip
    return out
