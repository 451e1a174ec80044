"""Kernels around the mixers of many sequences' tokens side by side, in which a token's bits are its own.

    arrange    queries, keys and values in the rotating frame, and the gates of the slots, where their mixer takes them
    settle     e^{i omega t} times what a mixer gives, and the gates of the outputs

All else is that of a step (`decoder_triton`), the products too (`product_triton`).

Layout: tokens `[T, …]`, contiguous, float32.
"""

# Kernels are typed by their compiler.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfa.model.config import GATE_RANGE, PROCESS_GATE_SCALE
from rfa.model.decoder_triton import (
    Gates,
    Turned,
    exponential,
    gates_of,
    turned_back,
    turned_vector,
)
from rfa.model.recurrence.slots_reference import SlotInputs
from rfa.model.recurrence.triton_token import load_vector, store_vector

# A shorter vector is not made one of length one, as in `torch.nn.functional.normalize`.
SHORTEST = tl.constexpr(1e-12)


@triton.jit
def of_length_one(b_x):
    """A vector [2, D] by its length."""
    length = tl.sqrt_rn(tl.sum(tl.sum(b_x * b_x, axis=0), axis=0))
    return b_x / tl.maximum(length, SHORTEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["joint_t"])
def arrange_kernel(
    p_joint, p_cos, p_sin, p_q, p_k, p_v, p_places, p_bias, p_eta2, p_own_process, p_measurement, p_process, joint_t,
    H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, S: tl.constexpr, BS: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, PROCESS_SCALE: tl.constexpr,
    IS_UNIT: tl.constexpr, TURNS_VALUES: tl.constexpr, FOR_SLOTS: tl.constexpr,
):  # fmt: skip
    """Program (t, h): head h of token t. FOR_SLOTS: the query goes to the token's place, too, and there are gates."""
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
        b_q, b_k = of_length_one(b_q), of_length_one(b_k)
    if TURNS_VALUES:
        b_v = turned_vector(p_joint + (2 * H + i_h) * 2 * D, b_cos, b_sin, o_d, m_d, D)  # [2, D]
    else:
        b_v = load_vector(p_joint + (2 * H + i_h) * 2 * D, o_d, m_d, D)  # [2, D]
    store_vector(p_q + i_row * 2 * D, b_q.to(p_q.dtype.element_ty), o_d, m_d, D)
    store_vector(p_k + i_place * 2 * D, b_k.to(p_k.dtype.element_ty), o_d, m_d, D)
    store_vector(p_v + i_place * 2 * D, b_v.to(p_v.dtype.element_ty), o_d, m_d, D)
    if FOR_SLOTS:
        o_s = tl.arange(0, BS)  # [S]
        m_s = o_s < S  # [S]
        b_pi, b_process = gates_of(
            p_joint + H * 6 * D, p_bias, p_eta2, p_own_process, i_h, H, o_s, m_s, S, LOWEST, HIGHEST, PROCESS_SCALE
        )  # [S]
        tl.store(p_measurement + i_row * S + o_s, b_pi, mask=m_s)
        tl.store(p_process + i_row * S + o_s, b_process, mask=m_s)


def arrange_for_pages(
    joint: Tensor, turn: Turned, keys: Tensor, values: Tensor, places: Tensor, *, is_unit: bool, turns_values: bool
) -> Tensor:
    """Queries `[T, H, 2D]` for attention, from the joint product; keys and values go to their pages.

    Args:
        joint: `[T, 3 · H · 2D + …]` float32: query, key, value.
        turn: of each token.
        keys, values: pools `[…, H, 2D]` of one dtype, that of the queries too.
        places: `[T]` int64, the row of each token in them.
        is_unit: queries and keys are of length one.
        turns_values: values are turned too.
    """
    tokens, heads, dims = turn.cos.shape
    q = keys.new_empty((tokens, heads, 2 * dims))
    nothing = joint
    with torch.cuda.device_of(joint):
        arrange_kernel[(tokens, heads)](
            joint, *turn, q, keys, values, places, nothing, nothing, nothing, nothing, nothing, joint.stride(0),
            H=heads, D=dims, BD=triton.next_power_of_2(dims), S=1, BS=1, LOWEST=0.0, HIGHEST=0.0, PROCESS_SCALE=0.0,
            IS_UNIT=is_unit, TURNS_VALUES=turns_values, FOR_SLOTS=False, num_warps=1,
        )  # fmt: skip
    return q


def arrange_for_slots(joint: Tensor, turn: Turned, gates: Gates, rows: Tensor, shape: tuple[int, int]) -> SlotInputs:
    """What tokens bring to the slots, `[B, N, …]` float32.

    Args:
        joint: as above; behind query, key and value it has what the gates get, `[T, 2 · H · S]`.
        rows: `[T]` int64, the place of each token in B · N; of the other places nothing is written.
        shape: B, N.
    """
    tokens, heads, dims = turn.cos.shape
    slots = gates.own_process.shape[-1]
    q, k, v = (joint.new_empty((*shape, heads, 2 * dims)) for _ in range(3))
    measurement, process = (joint.new_empty((*shape, heads, slots)) for _ in range(2))
    with torch.cuda.device_of(joint):
        arrange_kernel[(tokens, heads)](
            joint, *turn, q, k, v, rows, *gates[:3], measurement, process, joint.stride(0),
            H=heads, D=dims, BD=triton.next_power_of_2(dims), S=slots, BS=triton.next_power_of_2(slots),
            LOWEST=GATE_RANGE[0], HIGHEST=GATE_RANGE[1], PROCESS_SCALE=PROCESS_GATE_SCALE,
            IS_UNIT=False, TURNS_VALUES=True, FOR_SLOTS=True, num_warps=1,
        )  # fmt: skip
    return SlotInputs(q, k, v, measurement, process)


@triton.jit(do_not_specialize=["gates_t"])
def settle_kernel(
    p_x, p_rows, p_cos, p_sin, p_gates, p_bias, p_out, gates_t, H: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    HAS_ROWS: tl.constexpr, IS_TURNED: tl.constexpr, IS_GATED: tl.constexpr,
):  # fmt: skip
    """Program (t, h): head h of token t."""
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d = tl.arange(0, BD)  # [D]
    m_d = o_d < D  # [D]
    i_row = i_t * H + i_h
    i_place = i_row
    if HAS_ROWS:
        i_place = tl.load(p_rows + i_t) * H + i_h
    b_x = load_vector(p_x + i_place * 2 * D, o_d, m_d, D)  # [2, D]
    if IS_TURNED:
        b_cos = tl.load(p_cos + i_row * D + o_d, mask=m_d, other=0.0)  # [D]
        b_sin = tl.load(p_sin + i_row * D + o_d, mask=m_d, other=0.0)  # [D]
        b_x = turned_back(b_x, b_cos, b_sin)
    if IS_GATED:
        gate = tl.load(p_gates + i_t * gates_t + i_h) + tl.load(p_bias + i_h)
        b_x *= 1.0 / (1.0 + exponential(-gate))
    store_vector(p_out + i_row * 2 * D, b_x.to(p_out.dtype.element_ty), o_d, m_d, D)


def settle(
    x: Tensor, turn: Turned | None, gates: tuple[Tensor, Tensor] | None, dtype: torch.dtype,
    rows: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What a mixer gives on its way to the residual stream, `[T, H · 2D]` in `dtype`.

    Args:
        x: `[T, H, 2D]` float32, or with rows `[…, H, 2D]`.
        turn: of each token; None where x is not in the rotating frame.
        gates: of the outputs `[T, H]`, those of a token side by side, and their bias `[H]`; None where there are none.
        rows: `[T]` int64, the place of each token in x; None where they lie in order.
    """
    heads, width = x.shape[-2:]
    tokens = len(x) if rows is None else len(rows)
    out = x.new_empty((tokens, heads * width), dtype=dtype)
    logits, bias = gates or (x, x)
    with torch.cuda.device_of(x):
        settle_kernel[(tokens, heads)](
            x, x if rows is None else rows, *(turn or (x, x)), logits, bias, out, logits.stride(0),
            H=heads, D=width // 2, BD=triton.next_power_of_2(width // 2), HAS_ROWS=rows is not None,
            IS_TURNED=turn is not None, IS_GATED=gates is not None, num_warps=1,
        )  # fmt: skip
    return out
