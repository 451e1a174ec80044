"""Gated filter slots: validation and dispatch. Equations in `slots_reference.py`."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch
from torch import Tensor

from model.recurrence.slots_reference import SlotInputs, SlotParameters, SlotReadout, slot_scan_reference

SlotImpl = Literal["auto", "reference", "numba", "triton"]


def _numba_refusal(tokens: SlotInputs, inner: int) -> str | None:
    """Why the compiled scan cannot run these inputs, or None."""
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    if tokens.k.device.type != "cpu":
        return f"it runs on cpu, got {tokens.k.device.type}"
    if any(tensor.dtype != torch.float32 for tensor in tokens):
        return f"it takes float32, got {sorted({str(tensor.dtype) for tensor in tokens})}"
    if inner != 1:
        return f"it runs inner=1, got inner={inner}"
    return None


def _triton_refusal(tokens: SlotInputs, means: Tensor, precisions: Tensor, inner: int) -> str | None:
    """Why the GPU's scan cannot run these inputs, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    from model.recurrence.triton import refusal

    return refusal(tokens, means, precisions, inner)


def _check(tokens: SlotInputs, means: Tensor, precisions: Tensor, parameters: SlotParameters, inner: int) -> None:
    batch, length, heads, width = tokens.k.shape
    slots = parameters.decay.shape[-1]
    expected = {
        "q": (tokens.q, (batch, length, heads, width)),
        "v": (tokens.v, (batch, length, heads, width)),
        "measurement": (tokens.measurement, (batch, length, heads, slots)),
        "process": (tokens.process, (batch, length, heads, slots)),
        "means": (means, (batch, heads, slots, 2 * width)),
        "precisions": (precisions, (batch, heads, slots)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if length < 1:
        raise ValueError("a scan needs at least one token, got 0")
    if inner < 1:
        raise ValueError(f"inner must be >= 1, got {inner}")


def slot_scan(
    tokens: SlotInputs,
    means: Tensor,
    precisions: Tensor,
    parameters: SlotParameters,
    *,
    inner: int = 1,
    impl: SlotImpl = "auto",
) -> tuple[SlotReadout, Tensor, Tensor]:
    """Run the slots over a sequence.

    Args:
        tokens: leading dims `[B, N]`, see `SlotInputs`.
        means: `[B, H, S, 4D]`, precisions `[B, H, S]` > 0: the state before the first token, float32.
        inner: IRLS passes K.
        impl: "reference" (eager), "numba" (compiled, float32 on a CPU, K = 1), "triton" (one kernel on a GPU, K = 1;
            tokens may have 16 bits, the state and the read-out are float32) or "auto". An explicit choice never falls
            back.

    Returns:
        read-out of every token and the state after the last.

    Raises:
        ValueError: shapes that do not fit, or an explicit impl that cannot run the inputs.
    """
    _check(tokens, means, precisions, parameters, inner)
    if impl not in ("auto", "reference", "numba", "triton"):
        raise ValueError(f"impl must be 'auto', 'reference', 'numba' or 'triton', got {impl!r}")
    if impl == "triton" or (impl == "auto" and tokens.k.device.type == "cuda"):
        refusal = _triton_refusal(tokens, means, precisions, inner)
        if refusal is None:
            from model.recurrence.triton import slot_scan_triton

            return slot_scan_triton(tokens, means, precisions, parameters)
        if impl == "triton":
            raise ValueError(f"impl='triton' cannot run this: {refusal}")
    if impl in ("auto", "numba"):
        refusal = _numba_refusal(tokens, inner)
        if refusal is None:
            from model.recurrence.slots_numba import slot_scan_numba

            return slot_scan_numba(tokens, means, precisions, parameters)
        if impl == "numba":
            raise ValueError(f"impl='numba' cannot run this: {refusal}")
    return slot_scan_reference(tokens, means, precisions, parameters, inner=inner)
